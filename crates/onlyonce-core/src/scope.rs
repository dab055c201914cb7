//! The namespace a key is unique in.

use std::fmt;
use std::sync::Arc;

/// The namespace a key is unique in, from the authenticated caller: a digest, and a label where that is no secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    digest: [u8; 32],
    label: Option<Arc<str>>,
}

impl Scope {
    /// A scope as a store kept it.
    pub fn stored(digest: [u8; 32], label: Option<Arc<str>>) -> Self {
        Self { digest, label }
    }

    /// The digest that tells scopes apart.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// What an operator reads, where the sources are no secret.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::record::hex(&self.digest, f)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({self})")
    }
}
/// x
#[derive(Clone, Debug, PartialEq, Eq)] pub enum Source { /// x
 Header(http::HeaderName) }
