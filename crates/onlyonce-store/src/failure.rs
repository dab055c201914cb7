//! What an error of a server means for a write, for every engine with a server.

use std::fmt;

use crate::ssl::Unusable;
use crate::{Error, ErrorKind};

/// An error that can be cloned: all callers of a batch get it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    /// What the failed statement wrote.
    pub(crate) left: Left,
    /// Whether nothing was certainly written, also if the connection was lost.
    pub(crate) wrote_nothing: bool,
    pub(crate) message: String,
}

/// What a failed statement has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: another transaction holds a lock on the row.
    Busy,
    /// Nothing: it conflicted with another transaction, and may be retried.
    Again,
    /// Nothing: the server refused it.
    Nothing,
    /// Unknown; the connection is not used again.
    Doubt,
}

impl Failure {
    /// An error after which nothing was written, since we or the server refused.
    pub(crate) fn refused(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, left: Left::Nothing, wrote_nothing: true, message: message.into() }
    }

    /// The same for a statement that was never sent, since there was no connection.
    pub(crate) fn before_sending(self) -> Self {
        Self { wrote_nothing: true, ..self }
    }

    pub(crate) fn error(&self) -> Error {
        let error = Error::new(self.kind, self.message.clone());
        if self.wrote_nothing { error.having_written_nothing() } else { error }
    }

    /// Whether the rows of a batch that failed so are sent one by one: a locked row, or one that the server refuses, must not
    /// fail the others. If the server is in trouble, all fail at once.
    pub(crate) fn is_of_one_row(&self, rows: usize) -> bool {
        match self.left {
            Left::Busy | Left::Again => true,
            Left::Nothing => rows > 1 && self.kind == ErrorKind::Other,
            Left::Doubt => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Unusable> for Failure {
    fn from(Unusable(message): Unusable) -> Self {
        Self::refused(ErrorKind::Misconfigured, message)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error()
    }
}
