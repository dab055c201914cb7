//! PostgreSQL's errors, with their kind, what they mean for a write, and a remedy.

use std::error::Error as StdError;
use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::url::Database;
use crate::ErrorKind;
pub(super) use crate::failure::{Failure, Left};

impl Failure {
    /// An error after which it is unknown what was written.
    pub(super) fn doubt(database: &Database, what: &str) -> Self {
        let message = format!("PostgreSQL at {}: {what}", database.shown);
        Self { kind: ErrorKind::Unavailable, left: Left::Doubt, wrote_nothing: false, message }
    }

    pub(super) fn late(database: &Database, after: Duration) -> Self {
        Self::doubt(
            database,
            &format!("no answer within {} ms; check whether it is overloaded", after.as_millis()),
        )
    }

    /// The failure for an error of the client library.
    pub(super) fn of(database: &Database, error: &tokio_postgres::Error) -> Self {
        let Some(code) = error.code() else {
            let (kind, remedy) = without_code(error);
            let message = format!("PostgreSQL at {}: {}; {remedy}", database.shown, chain(error));
            return Self { kind, left: Left::Doubt, wrote_nothing: false, message };
        };
        let (kind, left, remedy) = judge(code, database);
        let told = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
        let message = format!("PostgreSQL at {}: {told} ({}); {remedy}", database.shown, code.code());
        // An error about the statement rolls back its transaction; one that ends the connection may come after the commit.
        let wrote_nothing = left != Left::Doubt || *code == SqlState::READ_ONLY_SQL_TRANSACTION;
        Self { kind, left, wrote_nothing, message }
    }
}

/// An error and its causes on one line.
fn chain(error: &tokio_postgres::Error) -> String {
    let mut told = error.to_string();
    let mut cause = StdError::source(error);
    while let Some(source) = cause {
        let text = source.to_string();
        // Some errors quote their cause, some do not.
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        cause = source.source();
    }
    told
}

/// Errors that did not come from the server: connection, TLS, or a missing password.
fn without_code(error: &tokio_postgres::Error) -> (ErrorKind, &'static str) {
    let told = chain(error);
    if told.contains("certificate") || told.contains("UnknownIssuer") {
        let remedy = "give the authority that signed its certificate with sslrootcert=FILE, and use the host name that the \
                      certificate is for";
        return (ErrorKind::Misconfigured, remedy);
    }
    if told.contains("does not support TLS") {
        return (
            ErrorKind::Misconfigured,
            "enable ssl on the server, or write sslmode=disable on a network you trust",
        );
    }
    if told.contains("authentication") || told.contains("password missing") {
        return (ErrorKind::Misconfigured, "use a user and a password that the server accepts");
    }
    (ErrorKind::Unavailable, "check that it runs and can be reached from here")
}

/// The codes of <https://www.postgresql.org/docs/current/errcodes-appendix.html> that a store meets.
fn judge(code: &SqlState, database: &Database) -> (ErrorKind, Left, String) {
    use ErrorKind::{Busy, Corrupt, Misconfigured, Other, Unavailable};
    let schema = &database.schema;
    let user = database.user();
    let (kind, left, remedy) = match code.code() {
        // Distributed servers return this if the node that committed is gone.
        "40003" => (
            Unavailable,
            Left::Doubt,
            "it is not known whether it was committed; the record is read again".to_owned(),
        ),
        // Of unique keys only that of a message which another relay has just claimed is not left to the statement itself.
        "40001" | "40P01" | "23505" => (Unavailable, Left::Again, "it may be sent again".to_owned()),
        // Not a failure of the server: it must not count as one.
        "55P03" => {
            (Busy, Left::Busy, "another transaction holds the record; see pg_stat_activity".to_owned())
        }
        "57014" => (
            Unavailable,
            Left::Nothing,
            "it took too long; check whether the server is overloaded".to_owned(),
        ),
        "25006" => (
            Unavailable,
            Left::Doubt,
            "it is read-only or in recovery; use the primary's URL, or list all hosts in it".to_owned(),
        ),
        "53100" => {
            (Unavailable, Left::Nothing, "free some space on its disk; no restart is needed".to_owned())
        }
        "53300" => (
            Unavailable,
            Left::Doubt,
            "raise max_connections, or give this node fewer connections".to_owned(),
        ),
        "28P01" | "28000" => {
            (Misconfigured, Left::Doubt, format!("check the password of role \"{user}\", and pg_hba.conf"))
        }
        "3D000" => (Misconfigured, Left::Doubt, "create the database, or use an existing one".to_owned()),
        "3F000" => {
            (Misconfigured, Left::Nothing, format!("create schema \"{schema}\", or use an existing one"))
        }
        "42501" => (
            Misconfigured,
            Left::Nothing,
            format!(
                "grant role \"{user}\" the privileges that docs/engines.md lists for schema \"{schema}\""
            ),
        ),
        "42P01" | "42703" | "42883" => (
            Misconfigured,
            Left::Nothing,
            format!("schema \"{schema}\" lacks a migration; run \"onlyonce migrate\" as its owner"),
        ),
        "22021" | "22P05" => (
            Other,
            Left::Nothing,
            "leave out characters that the server cannot store as text, such as NUL".to_owned(),
        ),
        "23514" => (Other, Left::Nothing, "see docs/guide.md for what a message may contain".to_owned()),
        "XX001" | "XX002" => {
            (Corrupt, Left::Nothing, "the database is damaged; restore it from a backup".to_owned())
        }
        code => match &code[..2] {
            // Connection lost, operator intervention, system error: the backend may be gone.
            "08" | "57" | "58" => (Unavailable, Left::Doubt, "see its log".to_owned()),
            "53" => (Unavailable, Left::Nothing, "see its log".to_owned()),
            "28" => (Misconfigured, Left::Doubt, "see pg_hba.conf".to_owned()),
            _ => (Other, Left::Nothing, "see its log".to_owned()),
        },
    };
    (kind, left, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X05: that nothing was written is said only if the server's answer is certain.
    #[test]
    fn what_may_have_been_committed_is_doubt_and_what_was_refused_is_nothing() {
        let database = Database::parse("postgres://ann@localhost/pay?sslmode=disable").unwrap();
        for (code, left) in [
            ("40003", Left::Doubt),
            ("08006", Left::Doubt),
            ("57P01", Left::Doubt),
            ("57P02", Left::Doubt),
            ("58030", Left::Doubt),
            ("40001", Left::Again),
            ("40P01", Left::Again),
            ("55P03", Left::Busy),
            ("57014", Left::Nothing),
            ("53100", Left::Nothing),
            ("22001", Left::Nothing),
            ("23514", Left::Nothing),
        ] {
            assert_eq!(judge(&SqlState::from_code(code), &database).1, left, "{code}");
        }
    }
}
