use std::error::Error as StdError;
use std::fmt;

use crate::Unreadable;

/// Something a store could not do. Branch on [`Error::kind`]; read the message.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    wrote_nothing: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
    unreadable: Option<Box<Unreadable>>,
}

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The store did not answer, or not in time. Whether a write took place is not known; it may be tried again.
    Unavailable,
    /// The store answers, but somebody else holds the record. Nothing was written; it may be tried again. No failure of the store.
    Busy,
    /// What is stored cannot be understood. Never retried: somebody must look.
    Corrupt,
    /// What is stored is encrypted with a key that this node does not have. Nothing was written. It can be read once the node
    /// has the key.
    Undecryptable,
    /// The store is not what the settings say.
    Misconfigured,
    /// Anything else.
    Other,
}

impl Error {
    /// A failure of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), wrote_nothing: false, source: None, unreadable: None }
    }

    /// The same with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same, of a write that certainly did not take place: it was never sent, or the store refused it.
    #[must_use]
    pub fn having_written_nothing(mut self) -> Self {
        self.wrote_nothing = true;
        self
    }

    /// Whether a write certainly did not take place, and never will. False where nobody knows.
    pub const fn wrote_nothing(&self) -> bool {
        self.wrote_nothing
    }

    /// The record's key is missing; what can be told of the record goes with it.
    #[cfg(any(
        feature = "dynamodb",
        feature = "mysql",
        feature = "sqlite",
        feature = "postgres",
        feature = "redis",
        test
    ))]
    pub(crate) fn undecryptable(message: String, unreadable: Unreadable) -> Self {
        let error = Self::new(ErrorKind::Undecryptable, message).having_written_nothing();
        Self { unreadable: Some(Box::new(unreadable)), ..error }
    }

    /// What can be told of a record whose key is missing.
    pub fn unreadable(&self) -> Option<&Unreadable> {
        self.unreadable.as_deref()
    }

    /// What to branch on.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}
