//! Statements for transactions of the user's own, whichever driver they are made with.

use std::sync::Arc;

use onlyonce_core::record::Response;

/// A statement with its values. On PostgreSQL it returns no row, or one with one `bigint`. On MySQL it changes no row, or some,
/// and its `LAST_INSERT_ID` is that number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The text, with places `$1` and so on, on MySQL `?`: the same for every statement of its kind, so that a driver can prepare
    /// it once.
    pub sql: Arc<str>,
    /// A value for each place.
    pub values: Vec<Value>,
}

/// A value, in one of the few types that every driver has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `bytea`, `BLOB`
    Bytes(Option<Vec<u8>>),
    /// `text`
    Text(Option<String>),
    /// `bigint`
    Integer(Option<i64>),
    /// `boolean`
    Flag(bool),
}

/// A completion, as the function or procedure takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The status of the answer.
    pub status: u16,
    /// Its headers, as a JSON object of lists.
    pub headers: String,
    /// The answer; none where it is not stored.
    pub response: Option<Arc<Response>>,
    /// How long it is kept, in microseconds; none for the route's retention.
    pub keep_us: Option<i64>,
}

/// How long a write waits for another transaction that has written the same record and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// As long as the session says, which by default is without end on PostgreSQL, and 50 seconds on MySQL.
    OfSession,
    /// Half a second on PostgreSQL, where the session does not say: it holds until the transaction ends. A second on MySQL, for
    /// this write.
    Shortly,
}
