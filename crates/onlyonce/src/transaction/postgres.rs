//! Transactions on PostgreSQL, by whichever driver the user has.

#[cfg(feature = "tokio-postgres")]
pub(super) mod client;
#[cfg(feature = "sqlx")]
pub(super) mod sqlx;

use std::borrow::Cow;
use std::error::Error as StdError;

use super::{Error, ErrorKind, driver};

/// What a SQLSTATE means.
pub(super) fn kind(code: &str) -> ErrorKind {
    match code {
        "OO001" => ErrorKind::Superseded,
        "OO002" => ErrorKind::Completed,
        "40001" | "40P01" | "55P03" => ErrorKind::Again,
        "22023" | "23514" | "54000" => ErrorKind::Invalid,
        _ => ErrorKind::Database,
    }
}

/// The SQLSTATE of an error of one of the drivers.
pub(super) fn code_of<'a>(error: &'a (dyn StdError + 'static)) -> Option<Cow<'a, str>> {
    #[cfg(feature = "tokio-postgres")]
    if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
        return error.code().map(|code| code.code().to_owned().into());
    }
    #[cfg(feature = "sqlx")]
    if let Some(error) = error.downcast_ref::<::sqlx::Error>() {
        return error.as_database_error().and_then(|error| error.code());
    }
    let _ = error;
    None
}

/// Whether a row with this key is there already.
pub(super) fn is_duplicate(error: &Error) -> bool {
    error.source().and_then(code_of).as_deref() == Some("23505")
}

/// The error of a driver.
fn failed(error: impl StdError + Send + Sync + 'static) -> Error {
    let kind = code_of(&error).map_or(ErrorKind::Database, |code| kind(&code));
    driver::failed(kind, error)
}
