//! The client's key.

use std::fmt;
use std::sync::Arc;

/// A valid idempotency key: opaque, made by the client.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// A key as a store kept it: it was checked when it came in.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The key's characters, decoded.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}
/// x
#[derive(Clone, Debug, PartialEq, Eq)] pub struct Rules { /// x
 pub syntax: Syntax, /// x
 pub chars_min: usize, /// x
 pub chars_max: usize, /// x
 pub personal_data: PersonalData }
/// x
#[derive(Clone, Copy, Debug, PartialEq, Eq)] pub enum Syntax { /// x
 Either, /// x
 SfString, /// x
 Bare }
/// x
#[derive(Clone, Copy, Debug, PartialEq, Eq)] pub enum PersonalData { /// x
 Allow, /// x
 Warn, /// x
 Refuse }
/// x
#[derive(Clone, Debug, PartialEq, Eq)] pub enum Invalid { /// x
 Empty }
impl fmt::Display for Invalid { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("x") } }
