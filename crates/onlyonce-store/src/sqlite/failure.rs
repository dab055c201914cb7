//! What SQLite could not do, told so that somebody can do something about it.

use std::path::Path;

use rusqlite::{ErrorCode, ffi};

use crate::{Error, ErrorKind};

/// An error that many callers are told: those of one transaction fail together.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    /// The system could not make durable what it had taken.
    pub(super) is_failed_sync: bool,
}

impl Failure {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), is_failed_sync: false }
    }

    /// What SQLite said about the file at `path`, with the remedy.
    pub(super) fn of(path: &Path, error: &rusqlite::Error) -> Self {
        let (kind, remedy) = judge(error);
        let is_failed_sync = is_failed_sync(error);
        Self { is_failed_sync, ..Self::new(kind, format!("store file {}: {error}; {remedy}", quoted(path))) }
    }

    pub(super) fn error(&self) -> Error {
        Error::new(self.kind, self.message.clone())
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error()
    }
}

pub(super) fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

fn is_failed_sync(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "SQLite's list of codes grows, and is not ours")]
fn judge(error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match error {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => {
            return (
                ErrorKind::Corrupt,
                "a column does not hold what Onlyonce writes there; restore it from a backup",
            );
        }
        _ => {}
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Unavailable, "free some space on its disk; no restart is needed")
        }
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unavailable, "check the disk in the system's log"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unavailable, "another program has locked it; stop that program")
        }
        Some(ErrorCode::OutOfMemory | ErrorCode::OperationInterrupted) => {
            (ErrorKind::Unavailable, "try again")
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Corrupt, "it is damaged and nothing more is written to it; restore it from a backup")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            (ErrorKind::Misconfigured, "allow this process to read and write the file and its folder")
        }
        _ => (ErrorKind::Other, "this is a bug; please report it"),
    }
}
