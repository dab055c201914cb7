//! Who may use the admin port.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use crate::config::{AdminToken, Role};

/// A peer on this machine, or a request with a token of any role.
pub(crate) fn may_read(tokens: &[AdminToken], peer: IpAddr, headers: &HeaderMap) -> bool {
    if peer.to_canonical().is_loopback() {
        return true;
    }
    let Some(shown) = bearer(headers) else { return false };
    tokens.iter().any(|token| match token.role {
        Role::Read | Role::Operate => is_equal(&token.token.bytes, shown.as_bytes()),
    })
}

/// The one token of a request; of two it is ambiguous which counts.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (scheme, token) = values.next()?.to_str().ok()?.split_once(' ')?;
    let is_only = values.next().is_none();
    (is_only && scheme.eq_ignore_ascii_case("bearer")).then(|| token.trim())
}

/// Compares digests, so that the time taken reveals nothing about the token.
fn is_equal(known: &[u8], shown: &[u8]) -> bool {
    !known.is_empty() && Sha256::digest(known) == Sha256::digest(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn tokens() -> Vec<AdminToken> {
        [("reader", "r-token", Role::Read), ("operator", "o-token", Role::Operate), ("empty", "", Role::Read)]
            .map(|(name, token, role)| AdminToken {
                name: name.to_owned(),
                token: Secret { source: "env:T".to_owned(), bytes: token.as_bytes().to_vec() },
                role,
            })
            .to_vec()
    }

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())).collect()
    }

    /// L04
    #[test]
    fn from_elsewhere_it_takes_a_token_and_here_it_does_not() {
        let far: IpAddr = "192.0.2.7".parse().unwrap();
        let may = |values: &[&str]| may_read(&tokens(), far, &headers(values));
        assert!(may(&["Bearer r-token"]));
        assert!(may(&["bearer o-token"]));
        for wrong in [
            &[][..],
            &["Bearer "],
            &["Bearer x"],
            &["Basic r-token"],
            &["r-token"],
            &["Bearer r-token", "Bearer x"],
        ] {
            assert!(!may(wrong), "{wrong:?}");
        }
        for here in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(may_read(&[], here.parse().unwrap(), &HeaderMap::new()), "{here}");
        }
    }
}
