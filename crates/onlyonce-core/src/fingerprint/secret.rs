//! What signs a fingerprint, and the digest it signs with.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// A secret that signs fingerprints, so that who reads the store cannot guess at small bodies.
///
/// The key itself is not kept: only the digest's state after reading it, which every request starts from.
#[derive(Clone)]
pub struct Secret {
    keyed: Hmac<Sha256>,
    /// Tells secrets apart without keeping them: what the secret makes of an empty message.
    id: [u8; 32],
}

impl Secret {
    /// A secret of these bytes, of any length but none.
    pub fn new(key: &[u8]) -> Result<Self, EmptySecret> {
        if key.is_empty() {
            return Err(EmptySecret);
        }
        let keyed = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
        let id = keyed.clone().finalize().into_bytes().into();
        Ok(Self { keyed, id })
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A secret without a single byte would sign nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptySecret;

impl fmt::Display for EmptySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fingerprint secret is empty; give it some random bytes, such as the output of `openssl rand -base64 32`")
    }
}

impl std::error::Error for EmptySecret {}

/// SHA-256, or HMAC-SHA-256 where there is a secret.
#[derive(Clone)]
pub(super) enum Digester {
    Plain(Sha256),
    Keyed(Hmac<Sha256>),
}

impl Digester {
    pub(super) fn new(secret: Option<&Secret>) -> Self {
        secret.map_or_else(|| Self::Plain(Sha256::new()), |secret| Self::Keyed(secret.keyed.clone()))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(digest) => digest.update(bytes),
            Self::Keyed(digest) => digest.update(bytes),
        }
    }

    pub(super) fn finish(self) -> [u8; 32] {
        match self {
            Self::Plain(digest) => digest.finalize().into(),
            Self::Keyed(digest) => digest.finalize().into_bytes().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F08
    #[test]
    fn a_secret_is_told_from_another_and_never_shown() {
        let secret = Secret::new(b"hunter2").unwrap();
        assert_eq!(secret, Secret::new(b"hunter2").unwrap());
        assert_ne!(secret, Secret::new(b"hunter3").unwrap());
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    /// F08
    #[test]
    fn an_empty_secret_is_refused() {
        assert_eq!(Secret::new(b""), Err(EmptySecret));
    }

    /// F01: RFC 4231, test case 2, fed in pieces.
    #[test]
    fn a_keyed_digest_is_hmac_sha_256() {
        let secret = Secret::new(b"Jefe").unwrap();
        let mut digester = Digester::new(Some(&secret));
        digester.update(b"what do ya want ");
        digester.update(b"for nothing?");
        let hex: String = digester.finish().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
