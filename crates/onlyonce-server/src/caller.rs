//! Who calls: what the `scope` setting names and a request alone cannot prove.
//!
//! 1. `trusted:NAME` counts from the addresses of `trusted_from` only, and is taken off everybody else's requests.
//! 2. `jwt:CLAIM` counts from a token that was verified: signature, time, issuer, audience.
//! 3. `certificate` counts from a connection whose client proved to have the key of a certificate of `tls.client_ca`.
//! 4. What is missing, twice there, or cannot be verified is left out. The layer then refuses the caller, 401: it never
//!    makes a scope of fewer sources than the setting lists.
//!
//! How the values become one scope, each with its length, is [`onlyonce::scope`]'s.

mod certificate;
mod jwt;
mod trusted;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::request::Parts;
use http::{HeaderMap, HeaderName};
use onlyonce::Verified;
use onlyonce::policy::Faults;
use onlyonce::scope::Source;

pub(crate) use self::certificate::ClientCertificate;
use self::jwt::Tokens;
pub(crate) use self::jwt::algorithms;
use self::trusted::Proxies;
use crate::config::Config;

/// Verifies callers by the settings it was made of. A reload makes a new one, with nothing remembered from the old.
#[derive(Debug)]
pub(crate) struct Callers {
    proxies: Proxies,
    tokens: Option<Tokens>,
}

impl Callers {
    /// Of these settings; every key that cannot be used is reported at once.
    pub(crate) fn new(config: &Config) -> Result<Self, Faults> {
        let (trusted, claims) = named(config);
        let tokens = config.jwt.as_ref().map(|jwt| Tokens::new(jwt, claims)).transpose()?;
        Ok(Self { proxies: Proxies::new(config.trusted_from.clone(), trusted), tokens })
    }

    /// What was verified for those of a route's `sources` that need it. None where there is nothing, which costs nothing
    /// where no source needs it.
    pub(crate) fn verified(
        &self,
        parts: &Parts,
        peer: IpAddr,
        certificate: Option<&ClientCertificate>,
        sources: &[Source],
    ) -> Option<Verified> {
        let mut sources = sources.iter().filter(|source| source.needs_verifying()).peekable();
        sources.peek()?;
        self.verified_at(unix_seconds(), &parts.headers, peer, certificate, sources)
    }

    /// Whether `peer` is one of the proxies whose word counts.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.trusts(peer)
    }

    /// Takes off the headers that only a trusted proxy may set, where the request came from elsewhere. The upstream
    /// believes them as we do, and a client must not reach it with one of its own.
    pub(crate) fn strip_untrusted(&self, headers: &mut HeaderMap, peer: IpAddr) {
        self.proxies.strip(headers, peer);
    }

    fn verified_at<'a>(
        &self,
        now: f64,
        headers: &HeaderMap,
        peer: IpAddr,
        certificate: Option<&ClientCertificate>,
        sources: impl Iterator<Item = &'a Source>,
    ) -> Option<Verified> {
        let mut token = None;
        let mut verified = None;
        for source in sources {
            let value: Option<Vec<u8>> = match source {
                Source::Trusted(name) => self.proxies.value(headers, name, peer).map(<[u8]>::to_vec),
                Source::Jwt(claim) => {
                    let claims = token.get_or_insert_with(|| self.claims(headers, now));
                    claims.as_ref().and_then(|claims| claims.value(claim)).map(Into::into)
                }
                Source::Certificate => certificate.map(|certificate| certificate.name().into()),
                Source::Header(_) | Source::Route => None,
            };
            if let Some(value) = value {
                verified = Some(verified.unwrap_or_else(Verified::default).with(source.clone(), value));
            }
        }
        verified
    }

    /// The claims of the request's token. The client is told 401 and no more; why is for the operator to see.
    fn claims(&self, headers: &HeaderMap, now: f64) -> Option<Arc<jwt::Claims>> {
        let claims = self.tokens.as_ref()?.claims(headers, now);
        claims.inspect_err(|refused| tracing::debug!(%refused, "token not believed")).ok()
    }
}

/// The trusted headers and the claims that the scopes of all routes name.
fn named(config: &Config) -> (Vec<HeaderName>, Vec<Arc<str>>) {
    let (mut trusted, mut claims) = (Vec::new(), Vec::new());
    let routes = config.routes.iter().chain([&config.default]);
    for source in routes.flat_map(|route| &route.policy.scope) {
        match source {
            Source::Trusted(name) if !trusted.contains(name) => trusted.push(name.clone()),
            Source::Jwt(claim) if !claims.contains(claim) => claims.push(claim.clone()),
            Source::Trusted(_) | Source::Jwt(_) | Source::Certificate | Source::Header(_) | Source::Route => {
            }
        }
    }
    (trusted, claims)
}

/// A clock that stands before 1970 makes every token expired, and none eternal.
fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(f64::INFINITY, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests;
