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

use http::HeaderMap;
use http::request::Parts;
use onlyonce::Verified;
use onlyonce::policy::{Fault, Faults};
use onlyonce::scope::Source;

pub(crate) use self::certificate::ClientCertificate;
use self::jwt::Tokens;
use self::trusted::Proxies;
use crate::config::Config;

/// Verifies callers by the settings it was made of. A reload makes a new one, with nothing remembered from the old.
#[derive(Debug)]
pub(crate) struct Callers {
    proxies: Proxies,
    tokens: Option<Tokens>,
}

impl Callers {
    /// Of these settings; every fault in them is reported at once.
    pub(crate) fn new(config: &Config) -> Result<Self, Faults> {
        let sources = Sources::of(config);
        let mut faults = sources.faults(config);
        let tokens = match &config.jwt {
            Some(jwt) => Tokens::new(jwt, sources.claims).map_err(|found| faults.extend(found.0)).ok(),
            None => None,
        };
        if !faults.is_empty() {
            return Err(Faults(faults));
        }
        Ok(Self { proxies: Proxies::new(config.trusted_from.clone(), sources.trusted), tokens })
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

/// What is legal and risky about who calls, for `check` and for the log at start.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    config.jwt.iter().flat_map(jwt::warnings).collect()
}

/// What the scopes of all routes name.
struct Sources {
    trusted: Vec<http::HeaderName>,
    claims: Vec<Arc<str>>,
    has_certificate: bool,
}

impl Sources {
    fn of(config: &Config) -> Self {
        let mut sources = Self { trusted: Vec::new(), claims: Vec::new(), has_certificate: false };
        let routes = config.routes.iter().chain([&config.default]);
        for source in routes.flat_map(|route| &route.policy.scope) {
            match source {
                Source::Trusted(name) if !sources.trusted.contains(name) => sources.trusted.push(name.clone()),
                Source::Jwt(claim) if !sources.claims.contains(claim) => sources.claims.push(claim.clone()),
                Source::Certificate => sources.has_certificate = true,
                Source::Trusted(_) | Source::Jwt(_) | Source::Header(_) | Source::Route => {}
            }
        }
        sources
    }

    /// A scope that nobody could ever have.
    fn faults(&self, config: &Config) -> Vec<Fault> {
        let fault = |value: String, remedy: &str| Fault { path: "policy.scope", value, remedy: remedy.into() };
        let mut faults = Vec::new();
        if let (Some(claim), None) = (self.claims.first(), &config.jwt) {
            faults.push(fault(format!("jwt:{claim}"), "needs keys to verify tokens with; set jwt.keys and jwt.algorithms"));
        }
        if self.has_certificate && config.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none()) {
            faults.push(fault(
                "certificate".into(),
                "needs to know who issues clients' certificates; set tls.cert, tls.key and tls.client_ca",
            ));
        }
        if let (Some(name), true) = (self.trusted.first(), config.trusted_from.is_empty()) {
            faults.push(fault(
                format!("trusted:{name}"),
                "is believed from nobody; set trusted_from to the addresses of your proxy",
            ));
        }
        faults
    }
}

/// A clock that stands before 1970 makes every token expired, and none eternal.
fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(f64::INFINITY, |since| since.as_secs_f64())
}



