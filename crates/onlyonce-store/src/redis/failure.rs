//! Redis's errors, with their kind, what they mean for a write, and a remedy.

use std::fmt;
use std::time::Duration;

use redis::{RedisError, ServerError};

use super::url::{Database, Host};
use crate::ssl::Unusable;
use crate::{Error, ErrorKind};

/// An error that can be cloned: all who wait for a connection get it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    /// Whether certainly nothing was written.
    wrote_nothing: bool,
    message: String,
}

impl Failure {
    /// An error after which nothing was written, since we or the server refused.
    pub(super) fn refused(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, wrote_nothing: true, message: message.into() }
    }

    /// An error after which it is unknown what was written.
    pub(super) fn doubt(database: &Database, what: &str) -> Self {
        let message = format!("Redis at {}: {what}", database.shown);
        Self { kind: ErrorKind::Unavailable, wrote_nothing: false, message }
    }

    pub(super) fn late(database: &Database, after: Duration) -> Self {
        let after = after.as_millis();
        Self::doubt(database, &format!("no answer within {after} ms; check whether it is overloaded"))
    }

    /// Connecting took too long: a port without TLS waits for the rest of what it takes for a command.
    pub(super) fn silent(database: &Database, after: Duration) -> Self {
        if database.tls.is_none() {
            return Self::late(database, after);
        }
        let after = after.as_millis();
        Self::doubt(
            database,
            &format!("no answer within {after} ms; check that it runs, and that this is its tls-port"),
        )
    }

    /// The failure of a connection.
    pub(super) fn lost(database: &Database, error: &RedisError) -> Self {
        if error.to_string().contains("fatal alert") {
            // It comes after our handshake, with the answer to the first command, which connecting sends. Later, a command may
            // have been executed before it.
            let shown = &database.shown;
            let message = format!(
                "Redis at {shown}: {error}; it wants a client certificate that it trusts: name its files by sslcert and sslkey"
            );
            return Self { kind: ErrorKind::Misconfigured, wrote_nothing: false, message };
        }
        Self::doubt(database, &format!("{error}; check that it runs and can be reached from here"))
    }

    /// Connecting failed. What the library says of a login is left out.
    pub(super) fn unconnected(database: &Database, host: &Host, error: &RedisError) -> Self {
        let text = error.to_string();
        let what = if error.kind() == redis::ErrorKind::AuthenticationFailed {
            "it does not accept the login; check user and password in the URL".to_owned()
        } else if text.contains("DB index is out of range") {
            "it has no database of that number; use one below its setting \"databases\"".to_owned()
        } else if text.contains("certificate") {
            format!(
                "{host}: {text}; give the authority that signed its certificate with sslrootcert=FILE, and use the host name that \
                 the certificate is for"
            )
        } else {
            return Self::lost(database, error);
        };
        Self::refused(ErrorKind::Misconfigured, format!("Redis at {}: {what}", database.shown))
    }

    /// What the server answered to one command.
    pub(super) fn answered(database: &Database, error: &ServerError) -> Self {
        let (kind, remedy) = judge(error.code(), error.details().unwrap_or_default());
        let told = error
            .details()
            .map_or_else(|| error.code().to_owned(), |details| format!("{} {details}", error.code()));
        Self::refused(kind, format!("Redis at {}: {told}; {remedy}", database.shown))
    }

    /// An answer that is none to what was asked.
    pub(super) fn misunderstood(database: &Database) -> Self {
        Self::doubt(
            database,
            "an answer that does not belong to its command; check what is between this node and it",
        )
    }

    pub(super) fn has_written_nothing(&self) -> bool {
        self.wrote_nothing
    }

    /// The same for what was never sent, since there was no connection.
    pub(super) fn before_sending(self) -> Self {
        Self { wrote_nothing: true, ..self }
    }

    /// The same where something else of the same trip may have been written.
    pub(super) fn after_others(self) -> Self {
        Self { wrote_nothing: false, ..self }
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
        let error = Self::new(failure.kind, failure.message);
        if failure.wrote_nothing { error.having_written_nothing() } else { error }
    }
}

/// The errors of a Redis server that a store meets: a command that is answered so has written nothing.
fn judge(code: &str, details: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Corrupt, Misconfigured, Other, Unavailable};
    match code {
        "OOM" => {
            (Unavailable, "raise maxmemory, or let more be reaped; what was reserved can still complete")
        }
        "READONLY" => (Unavailable, "it is a replica; use the master's URL, or list all hosts in it"),
        "MASTERDOWN" => (Unavailable, "it is a replica whose master is away; use the master's URL"),
        "LOADING" => (Unavailable, "it reads its files after a start; wait until it has"),
        "NOREPLICAS" => (Unavailable, "fewer replicas are connected than min-replicas-to-write demands"),
        "MISCONF" => (Unavailable, "it cannot write to its disk; see its log"),
        "BUSY" => (Unavailable, "a script runs for too long; see its log"),
        "CLUSTERDOWN" | "TRYAGAIN" => (Unavailable, "the cluster is changing; wait until it has settled"),
        "MOVED" | "ASK" | "CROSSSLOT" => (
            Misconfigured,
            "it is a member of a Redis Cluster; write redis+cluster://, or rediss+cluster:// with TLS",
        ),
        "NOAUTH" | "WRONGPASS" => (Misconfigured, "check user and password in the URL"),
        "NOPERM" => (Misconfigured, "grant the user what docs/engines.md lists"),
        "WRONGTYPE" => (Corrupt, "something else has written to this prefix; use another one"),
        "ERR" if details.starts_with("unknown command") => {
            (Misconfigured, "use Redis 7.0 or Valkey 7.2, or newer, and rename no command")
        }
        "ERR" if details.contains("cannot be used with replica") => {
            (Unavailable, "it has become a replica; use the master's URL, or list all hosts in it")
        }
        "ERR" if details.contains("appendonly is disabled") => (Misconfigured, "set appendonly yes"),
        "ERR" if details.contains("max number of clients") => (Unavailable, "raise maxclients"),
        _ => (Other, "see its log"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X05
    #[test]
    fn each_answer_has_its_kind() {
        use ErrorKind::{Corrupt, Misconfigured, Other, Unavailable};
        for (code, details, kind) in [
            ("OOM", "command not allowed", Unavailable),
            ("READONLY", "You can't write", Unavailable),
            ("MISCONF", "", Unavailable),
            ("TRYAGAIN", "", Unavailable),
            ("WRONGPASS", "", Misconfigured),
            ("NOPERM", "", Misconfigured),
            ("MOVED", "3999 127.0.0.1:6381", Misconfigured),
            ("WRONGTYPE", "", Corrupt),
            ("ERR", "unknown command 'EVALSHA'", Misconfigured),
            ("ERR", "max number of clients reached", Unavailable),
            ("ERR", "WAIT cannot be used with replica instances.", Unavailable),
            ("ERR", "WAITAOF cannot be used with replica instances. Please also note", Unavailable),
            ("ERR", "WAITAOF cannot be used when numlocal is set but appendonly is disabled.", Misconfigured),
            ("ERR", "syntax error", Other),
        ] {
            assert_eq!(judge(code, details).0, kind, "{code} {details}");
        }
    }
}
