//! The caller: values of the `scope` setting that must be verified.
//!
//! 1. `trusted:NAME` counts only from the addresses of `trusted_from`, and is removed from all other requests.
//! 2. `jwt:CLAIM` counts from a verified token: signature, time, issuer, audience.
//! 3. `certificate` counts if the client proved possession of a certificate issued by `tls.client_ca`.
//! 4. A value that is missing, duplicated or cannot be verified is left out. The layer then refuses the caller with 401: it
//!    never makes a scope of fewer sources than the setting lists.
//!
//! [`onlyonce::scope`] combines the values into one scope, each with its length.

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

/// Verifies callers by one version of the settings. A reload makes a new one, with an empty cache.
#[derive(Debug)]
pub(crate) struct Callers {
    proxies: Proxies,
    tokens: Option<Tokens>,
}

impl Callers {
    /// From these settings; every unusable key is reported at once.
    pub(crate) fn new(config: &Config) -> Result<Self, Faults> {
        let (trusted, claims) = named(config);
        let tokens = config.jwt.as_ref().map(|jwt| Tokens::new(jwt, claims)).transpose()?;
        Ok(Self { proxies: Proxies::new(config.trusted_from.clone(), trusted), tokens })
    }

    /// The verified values of those `sources` that need verification. `None` if there are none, which is free if no source
    /// needs it.
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

    /// Whether `peer` is a trusted proxy.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.trusts(peer)
    }

    /// Removes the headers that only a trusted proxy may set from requests that came from elsewhere. The upstream trusts them as
    /// we do, so a client must not be able to set one.
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

    /// The claims of the request's token. The client only gets 401; the reason is logged.
    fn claims(&self, headers: &HeaderMap, now: f64) -> Option<Arc<jwt::Claims>> {
        let claims = self.tokens.as_ref()?.claims(headers, now);
        claims.inspect_err(|refused| tracing::debug!(%refused, "token not accepted")).ok()
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

/// With a clock before 1970 every token is expired, and none is eternal.
fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(f64::INFINITY, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests;
