//! Encryption at rest: what SQL engines do to answers, requests, results and payloads before they write them.
//!
//! 1. XChaCha20-Poly1305 with a random nonce of 192 bits for each: nodes need not agree on a count.
//! 2. Sealed bytes are the key's id (8 bytes), the nonce (24), the ciphertext, and the tag (16).
//! 3. The additional data is the version of this layout, the kind, and the id of the record: sealed bytes that were moved to
//!    another row or column are refused.
//! 4. The first key of a [`Keyring`] encrypts, all decrypt. So a new key is made known to every node as the last one before
//!    it becomes the first one anywhere.
//! 5. A key that is missing and bytes that were changed are told apart: [`Unsealable`]. Neither ever gives any plain text.
//! 6. Key material is in no log line, error or `Debug`, and is overwritten when the keyring is dropped.
//!
//! ```
//! use onlyonce_core::record::Id;
//! use onlyonce_store::seal::{Keyring, Kind};
//!
//! let keyring = Keyring::new([[7; 32]])?;
//! let sealed = keyring.seal(&Id([1; 32]), Kind::Body, b"paid");
//! assert_eq!(keyring.open(&Id([1; 32]), Kind::Body, &sealed)?, b"paid");
//! assert!(keyring.open(&Id([2; 32]), Kind::Body, &sealed).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use chacha20poly1305::aead::Generate;
use chacha20poly1305::{AeadInOut, KeyInit, Tag, XChaCha20Poly1305, XNonce};
use onlyonce_core::record::Id;
use sha2::{Digest, Sha256};

/// The version of the layout and of what is bound to it.
const VERSION: u8 = 1;
const KEY_ID_BYTES: usize = 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// By how much sealing makes bytes longer.
pub const OVERHEAD_BYTES: usize = KEY_ID_BYTES + NONCE_BYTES + TAG_BYTES;

/// What a key is hashed with for its id.
const KEY_ID_CONTEXT: &[u8] = b"onlyonce key id 1";

/// The keys of a node: the first encrypts, all decrypt. Cheap to clone.
#[derive(Clone)]
pub struct Keyring {
    keys: Arc<[Key]>,
}

struct Key {
    id: KeyId,
    cipher: XChaCha20Poly1305,
}

/// Which key it was: the beginning of a digest of the key, as 16 hexadecimal digits. No secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; KEY_ID_BYTES]);

impl KeyId {
    /// The id of a key.
    pub fn of(key: &[u8; 32]) -> Self {
        let digest = Sha256::new().chain_update(KEY_ID_CONTEXT).chain_update(key).finalize();
        let id = digest.first_chunk().expect("a SHA-256 digest has 32 bytes");
        Self(*id)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// What is sealed, so that no sealed bytes fit elsewhere in the same record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The headers of a stored answer.
    Headers,
    /// The body of a stored answer.
    Body,
    /// A request that was accepted, to be run later.
    Request,
    /// The answer in evidence.
    Evidence,
    /// The answer that a phase found.
    Found,
    /// The result of the phase with this number.
    Phase(u32),
    /// The payload of a message. Its id is [`message_id`], not that of a record.
    Payload,
}

/// What the payload of a message is bound to: its key, which is unique among the messages that are kept.
pub fn message_id(key: &str) -> Id {
    Id(Sha256::new().chain_update("onlyonce message 1").chain_update(key).finalize().into())
}

/// Why sealed bytes were not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsealable {
    /// The keyring has no key with this id.
    MissingKey(KeyId),
    /// The bytes are not what a key of the keyring sealed for this record and kind.
    Altered,
}

impl fmt::Display for Unsealable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey(id) => {
                write!(f, "it is encrypted with key {id}, which encryption.keys does not have; add that key")
            }
            Self::Altered => f.write_str("its encrypted bytes were altered, or belong to another row"),
        }
    }
}

impl StdError for Unsealable {}

/// Why keys make no keyring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadKeys {
    /// There is none.
    Empty,
    /// Two are the same: their places in the list, from 0.
    Equal(usize, usize),
}

impl fmt::Display for BadKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a keyring needs at least one key"),
            Self::Equal(one, other) => {
                write!(f, "keys {} and {} are the same; remove one of them", one + 1, other + 1)
            }
        }
    }
}

impl StdError for BadKeys {}

impl Keyring {
    /// A keyring of these keys, 32 random bytes each.
    ///
    /// # Errors
    ///
    /// There is no key, or two are the same.
    pub fn new(keys: impl IntoIterator<Item = [u8; 32]>) -> Result<Self, BadKeys> {
        let keys: Vec<Key> = keys
            .into_iter()
            .map(|key| Key { id: KeyId::of(&key), cipher: XChaCha20Poly1305::new(&key.into()) })
            .collect();
        if keys.is_empty() {
            return Err(BadKeys::Empty);
        }
        for (place, key) in keys.iter().enumerate() {
            if let Some(earlier) = keys[..place].iter().position(|earlier| earlier.id == key.id) {
                return Err(BadKeys::Equal(earlier, place));
            }
        }
        Ok(Self { keys: keys.into() })
    }

    /// The key that encrypts.
    pub fn first(&self) -> KeyId {
        self.keys[0].id
    }

    /// Whether this key is there.
    pub fn has(&self, id: KeyId) -> bool {
        self.keys.iter().any(|key| key.id == id)
    }

    /// Encrypts `plain` for this record and kind, with the first key.
    ///
    /// # Panics
    ///
    /// The operating system has no random bytes: without them nothing may be encrypted.
    pub fn seal(&self, id: &Id, kind: Kind, plain: &[u8]) -> Vec<u8> {
        let key = &self.keys[0];
        let nonce = XNonce::generate();
        let mut sealed = Vec::with_capacity(plain.len() + OVERHEAD_BYTES);
        sealed.extend_from_slice(&key.id.0);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let text = &mut sealed[KEY_ID_BYTES + NONCE_BYTES..];
        let tag = key
            .cipher
            .encrypt_inout_detached(&nonce, &bound_to(id, kind), text.into())
            .expect("the cipher takes 256 GiB at a time");
        sealed.extend_from_slice(&tag);
        sealed
    }

    /// Decrypts what [`Keyring::seal`] made of this record and kind.
    ///
    /// # Errors
    ///
    /// The key is missing, or the bytes are not those that were sealed.
    pub fn open(&self, id: &Id, kind: Kind, sealed: &[u8]) -> Result<Vec<u8>, Unsealable> {
        let (key_id, rest) = sealed.split_first_chunk().ok_or(Unsealable::Altered)?;
        let key_id = KeyId(*key_id);
        let key = self.keys.iter().find(|key| key.id == key_id).ok_or(Unsealable::MissingKey(key_id))?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(Unsealable::Altered)?;
        let (text, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(Unsealable::Altered)?;
        let mut plain = text.to_vec();
        key.cipher
            .decrypt_inout_detached(
                &XNonce::from(*nonce),
                &bound_to(id, kind),
                plain.as_mut_slice().into(),
                &Tag::from(*tag),
            )
            .map_err(|_| Unsealable::Altered)?;
        Ok(plain)
    }
}

/// Opens what is sealed in one record, and remembers which keys were missing.
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "sqlite",
    feature = "postgres",
    feature = "redis",
    test
))]
pub(crate) struct Opener<'a> {
    keyring: Option<&'a Keyring>,
    id: Id,
    missing: Vec<(Kind, KeyId)>,
}

#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "sqlite",
    feature = "postgres",
    feature = "redis",
    test
))]
impl<'a> Opener<'a> {
    pub(crate) fn new(keyring: Option<&'a Keyring>, id: Id) -> Self {
        Self { keyring, id, missing: Vec::new() }
    }

    /// A key that was missing for one of these kinds.
    pub(crate) fn missing(&self, is_needed: impl Fn(Kind) -> bool) -> Option<KeyId> {
        self.missing.iter().find(|(kind, _)| is_needed(*kind)).map(|(_, key_id)| *key_id)
    }

    /// `None` if the key is missing.
    ///
    /// # Errors
    ///
    /// The bytes are not those that were sealed.
    pub(crate) fn open(&mut self, kind: Kind, sealed: &[u8]) -> Result<Option<Vec<u8>>, Unsealable> {
        let opened = match self.keyring {
            Some(keyring) => keyring.open(&self.id, kind, sealed),
            None => Err(key_id(sealed).map_or(Unsealable::Altered, Unsealable::MissingKey)),
        };
        match opened {
            Ok(plain) => Ok(Some(plain)),
            Err(Unsealable::MissingKey(key_id)) => {
                self.missing.push((kind, key_id));
                Ok(None)
            }
            Err(altered @ Unsealable::Altered) => Err(altered),
        }
    }
}

/// The key that sealed bytes name.
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "sqlite",
    feature = "postgres",
    feature = "redis",
    test
))]
fn key_id(sealed: &[u8]) -> Option<KeyId> {
    sealed.first_chunk().copied().map(KeyId)
}

impl PartialEq for Keyring {
    /// The same keys in the same order.
    fn eq(&self, other: &Self) -> bool {
        self.keys.iter().map(|key| key.id).eq(other.keys.iter().map(|key| key.id))
    }
}

impl Eq for Keyring {}

impl fmt::Debug for Keyring {
    /// The ids of the keys, never the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| key.id)).finish()
    }
}

/// The additional data: version, kind, number within the kind, and id.
fn bound_to(id: &Id, kind: Kind) -> [u8; 38] {
    let (kind, number) = match kind {
        Kind::Headers => (1, 0),
        Kind::Body => (2, 0),
        Kind::Request => (3, 0),
        Kind::Evidence => (4, 0),
        Kind::Found => (5, 0),
        Kind::Phase(number) => (6, number),
        Kind::Payload => (7, 0),
    };
    let mut bound = [0; 38];
    bound[0] = VERSION;
    bound[1] = kind;
    bound[2..6].copy_from_slice(&u32::to_be_bytes(number));
    bound[6..].copy_from_slice(&id.0);
    bound
}

#[cfg(test)]
mod tests;
