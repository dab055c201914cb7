//! The errors of MySQL and MariaDB, with their kind, what they mean for a write, and a remedy.

use std::error::Error as StdError;
use std::time::Duration;

use mysql_async::{DriverError, Error, ServerError};

use super::url::Database;
use crate::ErrorKind;
pub(super) use crate::failure::{Failure, Left};

/// A deadlock: the server has rolled the transaction back.
pub(super) const DEADLOCK: u16 = 1213;

/// An error after which it is unknown what was written.
pub(super) fn doubt(database: &Database, what: &str) -> Failure {
    let message = format!("MySQL at {}: {what}", database.shown);
    Failure { kind: ErrorKind::Unavailable, left: Left::Doubt, wrote_nothing: false, message }
}

pub(super) fn late(database: &Database, after: Duration) -> Failure {
    let what = format!("no answer within {} ms; check whether it is overloaded", after.as_millis());
    doubt(database, &what)
}

/// A node of a cluster that no longer takes part in it: nothing was written, and the connection leads to the wrong server.
pub(super) fn cut_off(database: &Database) -> Failure {
    let message = format!(
        "MySQL at {}: this node is cut off from its cluster; see its log, or list all hosts in the URL",
        database.shown
    );
    Failure { kind: ErrorKind::Unavailable, left: Left::Doubt, wrote_nothing: true, message }
}

/// The failure for an error of the client library.
pub(super) fn of(database: &Database, error: &Error) -> Failure {
    let shown = &database.shown;
    let Error::Server(ServerError { code, message, state }) = error else {
        let (kind, remedy) = without_code(error);
        let message = format!("MySQL at {shown}: {}; {remedy}", chain(error));
        return Failure { kind, left: Left::Doubt, wrote_nothing: false, message };
    };
    let (kind, left, remedy) = judge(*code, state, database);
    let message = format!("MySQL at {shown}: {message} ({code}); {remedy}");
    // It has refused, but the connection leads to the wrong server.
    let wrote_nothing = left != Left::Doubt || is_wrong_server(*code);
    Failure { kind, left, wrote_nothing, message }
}

/// The code of a server's error.
pub(super) fn code(error: &Error) -> Option<u16> {
    if let Error::Server(error) = error { Some(error.code) } else { None }
}

/// A read-only server, or a node that is cut off from its cluster.
fn is_wrong_server(code: u16) -> bool {
    matches!(code, 1047 | 1290 | 1792 | 1836)
}

/// An error and its causes on one line.
fn chain(error: &Error) -> String {
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

/// Errors that did not come from the server: connection or TLS.
fn without_code(error: &Error) -> (ErrorKind, &'static str) {
    let told = chain(error);
    if told.contains("certificate") || told.contains("UnknownIssuer") {
        let remedy = "give the authority that signed its certificate with sslrootcert=FILE, and use the host name that the \
                      certificate is for";
        return (ErrorKind::Misconfigured, remedy);
    }
    match error {
        Error::Driver(DriverError::NoClientSslFlagFromServer) => (
            ErrorKind::Misconfigured,
            "enable ssl on the server, or write sslmode=disable on a network you trust",
        ),
        Error::Driver(
            DriverError::UnknownAuthPlugin { .. }
            | DriverError::MysqlOldPasswordDisabled
            | DriverError::CleartextPluginDisabled,
        ) => (
            ErrorKind::Misconfigured,
            "let the user log in by mysql_native_password or caching_sha2_password",
        ),
        Error::Driver(DriverError::PacketTooLarge) => {
            (ErrorKind::Other, "raise max_allowed_packet of the server")
        }
        Error::Driver(_) | Error::Io(_) | Error::Other(_) | Error::Server(_) | Error::Url(_) => {
            (ErrorKind::Unavailable, "check that it runs and can be reached from here")
        }
    }
}

/// The codes of <https://mariadb.com/kb/en/mariadb-error-codes/> that a store meets.
fn judge(code: u16, state: &str, database: &Database) -> (ErrorKind, Left, String) {
    use ErrorKind::{Busy, Misconfigured, Other, Unavailable};
    let (user, name) = (&database.user, &database.name);
    match code {
        // The second is a message whose group another relay has just claimed.
        DEADLOCK | 1062 => (Unavailable, Left::Again, "it may be sent again".to_owned()),
        // Not a failure of the server: it must not count as one.
        1205 => (
            Busy,
            Left::Busy,
            "another transaction holds the record; see information_schema.innodb_trx".to_owned(),
        ),
        1040 | 1203 => (
            Unavailable,
            Left::Nothing,
            "raise max_connections, or give this node fewer connections".to_owned(),
        ),
        1047 => (
            Unavailable,
            Left::Doubt,
            "this node is cut off from its cluster; see its log, or list all hosts in the URL".to_owned(),
        ),
        1290 | 1792 | 1836 => (
            Unavailable,
            Left::Doubt,
            "it is read-only; use the primary's URL, or list all hosts in it".to_owned(),
        ),
        1317 | 1969 | 3024 => (
            Unavailable,
            Left::Nothing,
            "it took too long; check whether the server is overloaded".to_owned(),
        ),
        1021 | 1041 | 1114 => {
            (Unavailable, Left::Nothing, "free some space on its disk; no restart is needed".to_owned())
        }
        1153 => (Other, Left::Nothing, "raise max_allowed_packet of the server".to_owned()),
        3819 | 4025 => (Other, Left::Nothing, "see docs/guide.md for what a message may contain".to_owned()),
        1044 | 1045 | 1698 => {
            (Misconfigured, Left::Nothing, format!("check the password of user \"{user}\", and its grants"))
        }
        1049 => (
            Misconfigured,
            Left::Nothing,
            format!("create it with CREATE DATABASE `{name}`, or name one that is there"),
        ),
        1142 | 1143 | 1227 => (
            Misconfigured,
            Left::Nothing,
            format!(
                "grant user \"{user}\" the privileges that docs/engines.md lists for database \"{name}\""
            ),
        ),
        1054 | 1146 => (
            Misconfigured,
            Left::Nothing,
            format!(
                "database \"{name}\" lacks a migration; run \"onlyonce migrate\" as a user that may create tables, views and \
                 procedures"
            ),
        ),
        1665 => {
            (Misconfigured, Left::Nothing, "set binlog_format = ROW on the server, and restart it".to_owned())
        }
        1053 | 1180 | 1184 | 1927 | 2006 | 2013 => (Unavailable, Left::Doubt, "see its log".to_owned()),
        1364 | 1366 | 1644 => (Other, Left::Nothing, "see its log".to_owned()),
        _ if is_refusal(state) => (Other, Left::Nothing, "see its log".to_owned()),
        // It may have come while the statement was being committed.
        _ => (Other, Left::Doubt, "see its log".to_owned()),
    }
}

/// Whether an SQLSTATE is of a class that is about the statement itself: its values, what they violate, its text, or what the
/// server cannot do. It is told before anything is committed.
fn is_refusal(state: &str) -> bool {
    ["0A", "21", "22", "23", "42"].iter().any(|class| state.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X05: that nothing was written is said only if the server's answer is certain.
    #[test]
    fn what_may_have_been_committed_is_doubt_and_what_was_refused_is_nothing() {
        let database = Database::parse("mysql://ann@localhost/pay?sslmode=disable").unwrap();
        for (code, state, left) in [
            (1053, "08S01", Left::Doubt),
            (1180, "HY000", Left::Doubt),
            (1927, "70100", Left::Doubt),
            (2006, "HY000", Left::Doubt),
            (2013, "HY000", Left::Doubt),
            (1213, "40001", Left::Again),
            (1205, "HY000", Left::Busy),
            (1969, "70100", Left::Nothing),
            (1114, "HY000", Left::Nothing),
            (1406, "22001", Left::Nothing),
            (1064, "42000", Left::Nothing),
            (4025, "23000", Left::Nothing),
            // Codes that nobody has listed: a disk that fails during the commit, a session that is killed.
            (1026, "HY000", Left::Doubt),
            (1152, "08S01", Left::Doubt),
            (3169, "HY000", Left::Doubt),
        ] {
            assert_eq!(judge(code, state, &database).1, left, "{code}");
        }
    }

    #[test]
    fn a_server_that_takes_no_writes_wrote_nothing_and_is_not_used_again() {
        let database = Database::parse("mysql://ann@localhost/pay?sslmode=disable").unwrap();
        for code in [1047, 1290] {
            let error = ServerError { code, message: "not here".to_owned(), state: "HY000".to_owned() };
            let failure = of(&database, &Error::Server(error));
            assert_eq!((failure.kind, failure.left), (ErrorKind::Unavailable, Left::Doubt));
            assert!(failure.error().wrote_nothing());
        }
    }
}
