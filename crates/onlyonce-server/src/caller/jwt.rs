//! Verified tokens (RFC 7519) in `Authorization: Bearer`.
//!
//! 1. The header occurs exactly once, and the token is at most 16 KiB.
//! 2. `alg` is one of `jwt.algorithms`, and is tried only with keys of its own kind: a public key is never used as a secret,
//!    and `none` is no algorithm. Keys come from the settings, never from the token. Any of them may have signed it, so that
//!    old and new keys can overlap; `kid` is ignored.
//! 3. Tokens with `crit`, with duplicate members, or that are not a compact JWS (RFC 7515) of a JSON object are
//!    refused.
//! 4. `exp` is required: a token that never expires could not be revoked. `exp` and `nbf` have 60 seconds of leeway.
//! 5. `iss` and `aud` must match the settings, if set. `aud` may be a list that contains the value.
//! 6. Verified tokens are cached by digest, since verifying a signature costs more than the rest of a request. The times are
//!    checked at every use.

mod claims;
mod key;

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use onlyonce::policy::{Fault, Faults};
use quick_cache::sync::Cache;
use ring::digest::{SHA256, digest};

pub(super) use self::claims::Claims;
use self::claims::Object;
use self::key::Key;
use crate::config::{Algorithm, Jwt, Secret};

/// How far an issuer's clock may be from ours, in seconds.
const LEEWAY: f64 = 60.0;
/// Far above what services put into a header, and small enough that a hostile token costs little.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// The callers of a busy hour. One takes some 200 bytes.
const REMEMBERED_MAX: usize = 10_000;

/// The algorithms of `keys`, each once: the default of the setting. An unusable key is reported when [`Tokens`] are
/// made.
pub(crate) fn algorithms(keys: &[Secret]) -> Vec<Algorithm> {
    let all = [Algorithm::Hs256, Algorithm::Rs256, Algorithm::Es256];
    let keys: Vec<_> = keys.iter().filter_map(|secret| Key::read(secret, &all).ok()).flatten().collect();
    let is_for = |algorithm: &Algorithm| keys.iter().any(|key| key.algorithm() == *algorithm);
    all.into_iter().filter(is_for).collect()
}

/// Verifies tokens.
pub(super) struct Tokens {
    keys: Vec<Key>,
    algorithms: Vec<Algorithm>,
    issuer: Option<String>,
    audience: Option<String>,
    /// The claims that scopes name; no other is kept.
    names: Vec<Arc<str>>,
    /// Only tokens verified with these keys: a reload makes a new cache.
    remembered: Cache<[u8; 32], Arc<Claims>>,
}

impl Tokens {
    pub(super) fn new(jwt: &Jwt, names: Vec<Arc<str>>) -> Result<Self, Faults> {
        let mut keys = Vec::new();
        let mut faults = Vec::new();
        for secret in &jwt.keys {
            match Key::read(secret, &jwt.algorithms) {
                Ok(found) => keys.extend(found),
                Err(remedy) => faults.push(Fault { path: "jwt.keys", value: secret.source.clone(), remedy }),
            }
        }
        let is_idle = |algorithm: &&Algorithm| !keys.iter().any(|key| key.algorithm() == **algorithm);
        if faults.is_empty() {
            faults.extend(jwt.algorithms.iter().filter(is_idle).map(|algorithm| Fault {
                path: "jwt.algorithms",
                value: name(*algorithm).into(),
                remedy: "has no key; add one to jwt.keys, or remove the algorithm".into(),
            }));
        }
        if !faults.is_empty() {
            return Err(Faults(faults));
        }
        Ok(Self {
            keys,
            algorithms: jwt.algorithms.clone(),
            issuer: jwt.issuer.clone(),
            audience: jwt.audience.clone(),
            names,
            remembered: Cache::new(REMEMBERED_MAX),
        })
    }

    /// The claims of the request's token; `now` is in seconds since 1970.
    pub(super) fn claims(&self, headers: &HeaderMap, now: f64) -> Result<Arc<Claims>, Refused> {
        let token = bearer(headers)?;
        let mut id = [0; 32];
        id.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        if let Some(claims) = self.remembered.get(&id) {
            return claims.check_time(now).map(|()| claims);
        }
        let claims = Arc::new(self.verify(token)?);
        claims.check_time(now)?;
        self.remembered.insert(id, claims.clone());
        Ok(claims)
    }

    /// Verifies everything except the times.
    fn verify(&self, token: &str) -> Result<Claims, Refused> {
        let (signed, signature) = token.rsplit_once('.').ok_or(Refused::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(Refused::Malformed)?;
        if payload.contains('.') {
            return Err(Refused::Malformed);
        }
        let algorithm = self.algorithm(&Object::decode(header)?)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Refused::Malformed)?;
        if !self.keys.iter().any(|key| key.has_signed(algorithm, signed.as_bytes(), &signature)) {
            return Err(Refused::Signature);
        }
        let payload = Object::decode(payload)?;
        payload.check_issuer(self.issuer.as_deref())?;
        payload.check_audience(self.audience.as_deref())?;
        Claims::of(&payload, &self.names)
    }

    fn algorithm(&self, header: &Object) -> Result<Algorithm, Refused> {
        if header.has("crit") {
            return Err(Refused::Critical);
        }
        let algorithm = header.text("alg");
        self.algorithms
            .iter()
            .copied()
            .find(|known| algorithm == Some(name(*known)))
            .ok_or(Refused::Algorithm)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("algorithms", &self.algorithms).finish_non_exhaustive()
    }
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Result<&str, Refused> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Refused::Missing)?;
    if values.next().is_some() {
        return Err(Refused::Twice);
    }
    let (scheme, token) =
        value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(Refused::Missing)?;
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(Refused::Missing);
    }
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Refused::TooLong);
    }
    Ok(token)
}

/// As `alg` has it.
fn name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Hs256 => "HS256",
        Algorithm::Rs256 => "RS256",
        Algorithm::Es256 => "ES256",
    }
}

/// Why a token is refused. It is logged, and contains nothing of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("there is no bearer token")]
    Missing,
    #[error("Authorization is present twice")]
    Twice,
    #[error("it is longer than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    #[error(
        "it is not three parts of base64url, the first two of them JSON objects without duplicate members"
    )]
    Malformed,
    #[error("its algorithm is not in jwt.algorithms")]
    Algorithm,
    #[error("it has critical extensions (crit), which are not supported")]
    Critical,
    #[error("no key in jwt.keys verifies its signature")]
    Signature,
    #[error("it has no exp, or a time in it is not a number")]
    Time,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYet,
    #[error("its issuer is not jwt.issuer")]
    Issuer,
    #[error("jwt.audience is not in its audience")]
    Audience,
}

#[cfg(test)]
mod tests;
