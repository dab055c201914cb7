//! Keys that tokens are verified with, each for one algorithm.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::hmac;
use ring::signature::{ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use rustls::pki_types::pem::{PemObject, SectionKind};
use x509_cert::Certificate;
use x509_cert::der::asn1::{ObjectIdentifier, UintRef};
use x509_cert::der::{Decode, Encode, Reader, SliceReader};
use x509_cert::spki::SubjectPublicKeyInfoRef;

use super::name;
use crate::config::{Algorithm, Secret};

/// A key and, by its kind, the one algorithm it is for.
pub(super) enum Key {
    Hs256(hmac::Key),
    Rs256(UnparsedPublicKey<Vec<u8>>),
    Es256(UnparsedPublicKey<Vec<u8>>),
}

impl Key {
    /// The keys in `secret`: one of text, or all of a PEM file. The error says what is wrong and how to fix it.
    pub(super) fn read(secret: &Secret, algorithms: &[Algorithm]) -> Result<Vec<Self>, String> {
        let keys =
            if is_pem(&secret.bytes) { public_keys(&secret.bytes)? } else { vec![shared(&secret.bytes)?] };
        match keys.iter().find(|key| !algorithms.contains(&key.algorithm())) {
            Some(key) => {
                let algorithm = name(key.algorithm());
                Err(format!(
                    "has a key for {algorithm}, which jwt.algorithms does not list; add it there, or remove the key"
                ))
            }
            None => Ok(keys),
        }
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Hs256(_) => Algorithm::Hs256,
            Self::Rs256(_) => Algorithm::Rs256,
            Self::Es256(_) => Algorithm::Es256,
        }
    }

    /// Whether `signature` was made with this key and exactly this algorithm.
    pub(super) fn has_signed(&self, algorithm: Algorithm, signed: &[u8], signature: &[u8]) -> bool {
        algorithm == self.algorithm()
            && match self {
                Self::Hs256(key) => hmac::verify(key, signed, signature).is_ok(),
                Self::Rs256(key) | Self::Es256(key) => key.verify(signed, signature).is_ok(),
            }
    }
}

fn is_pem(bytes: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN ";
    bytes.windows(BEGIN.len()).any(|window| window == BEGIN)
}

/// A shared secret. A public key in another encoding is refused: it is known to everybody, so as a secret it would let
/// everybody sign.
fn shared(bytes: &[u8]) -> Result<Key, String> {
    if bytes.is_empty() {
        return Err("is empty; give it a secret for HS256, or a public key in PEM".into());
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(
            "is neither text nor PEM; an HS256 secret is text, public keys are PEM (\"BEGIN PUBLIC KEY\")"
                .into(),
        );
    };
    if looks_public(text.trim()) {
        return Err(
            "looks like a public key that is not PEM; convert it to PEM (\"BEGIN PUBLIC KEY\")".into()
        );
    }
    Ok(Key::Hs256(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
}

/// A JWK or a set of them, an ssh public key, or base64 DER of a public key or certificate without its PEM frame.
fn looks_public(text: &str) -> bool {
    let joined: String = text.split_ascii_whitespace().collect();
    let der = STANDARD_NO_PAD.decode(joined.trim_end_matches('='));
    let is_der = der.is_ok_and(|der| {
        SubjectPublicKeyInfoRef::from_der(&der).is_ok() || Certificate::from_der(&der).is_ok()
    });
    is_der || text.starts_with('{') || text.starts_with("ssh-") || text.starts_with("ecdsa-sha2-")
}

/// The public keys of a PEM file, also those in certificates.
fn public_keys(pem: &[u8]) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        let (kind, der) = section.map_err(|error| format!("is not PEM that can be read ({error})"))?;
        match kind {
            SectionKind::PublicKey => keys.push(public_key(&der)?),
            SectionKind::Certificate => keys.push(public_key(&in_certificate(&der)?)?),
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                return Err(
                    "has a private key, which only the issuer should have; give the public key".into()
                );
            }
            // Other sections of such a file have no keys.
            SectionKind::Crl | SectionKind::Csr | SectionKind::EchConfigList | _ => {}
        }
    }
    if keys.is_empty() {
        return Err("has no public key; it must have \"BEGIN PUBLIC KEY\" or \"BEGIN CERTIFICATE\"".into());
    }
    Ok(keys)
}

fn in_certificate(der: &[u8]) -> Result<Vec<u8>, String> {
    let key = Certificate::from_der(der)
        .and_then(|found| found.tbs_certificate().subject_public_key_info().to_der());
    key.map_err(|error| format!("has a certificate that cannot be read ({error})"))
}

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");

fn public_key(der: &[u8]) -> Result<Key, String> {
    let unreadable = |error| format!("has a public key that cannot be read ({error})");
    let info = SubjectPublicKeyInfoRef::from_der(der).map_err(|error| unreadable(error.to_string()))?;
    let key = info.subject_public_key.as_bytes().ok_or_else(|| unreadable("its bits are no bytes".into()))?;
    if info.algorithm.oid == RSA {
        check_rsa(key)?;
        return Ok(Key::Rs256(UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.to_vec())));
    }
    if info.algorithm.oid == EC && info.algorithm.parameters_oid() == Ok(P256) {
        check_p256(key)?;
        return Ok(Key::Es256(UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.to_vec())));
    }
    Err("has a public key that is neither RSA (for RS256) nor on the curve P-256 (for ES256); use one of these".into())
}

/// A key that could never verify a token is refused at start.
fn check_rsa(key: &[u8]) -> Result<(), String> {
    let modulus = SliceReader::new(key).and_then(|mut reader| {
        reader.sequence(|reader| {
            let modulus = UintRef::decode(reader)?;
            UintRef::decode(reader)?;
            Ok::<_, x509_cert::der::Error>(modulus)
        })
    });
    let modulus = modulus.map_err(|error| format!("has an RSA key that cannot be read ({error})"))?;
    let bits = modulus
        .as_bytes()
        .first()
        .map_or(0, |first| modulus.as_bytes().len() * 8 - first.leading_zeros() as usize);
    if (2048..=8192).contains(&bits) {
        return Ok(());
    }
    Err(format!("has an RSA key of {bits} bits; use one of 2048 to 8192"))
}

fn check_p256(point: &[u8]) -> Result<(), String> {
    match point {
        [4, rest @ ..] if rest.len() == 64 => Ok(()),
        _ => Err("has a key on P-256 that is compressed or truncated; use the uncompressed point".into()),
    }
}
