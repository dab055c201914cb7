//! Completing a request in a transaction of one's own: rows, messages and the completion commit together or not at all.
//!
//! **The one rule: rows, messages and [`Attempt::complete_in`](crate::Attempt::complete_in) in one transaction; commit; then
//! answer.** The store is the application's own database: PostgreSQL, another schema will do; MySQL or MariaDB, another database
//! of the same server will do; or one SQLite file.
//!
//! | transaction | feature | calls give |
//! |---|---|---|
//! | `&mut tokio_postgres::Transaction` | `tokio-postgres` | a future |
//! | `&mut deadpool_postgres::Transaction` | `deadpool-postgres` | a future |
//! | `&mut sqlx::Transaction<Postgres>` | `sqlx` | a future |
//! | `&mut sqlx::Transaction<MySql>` | `sqlx-mysql` | a future |
//! | `&store::sqlite::Transaction`, inside `Sqlite::write` | `sqlite` | the result itself |
//!
//! On a server the SQL functions or procedures of the store are called (`onlyonce_hold`, `onlyonce_complete`, `onlyonce_send`): the
//! transaction's role needs `EXECUTE` on them, which `onlyonce migrate --grants app=ROLE` prints.
//!
//! An error leaves a PostgreSQL transaction aborted, and a MySQL transaction rolled back, so the rows cannot commit. [`ErrorKind::Superseded`] and
//! [`ErrorKind::Completed`] turn into an answer that is never sent: the stored one goes out instead, so `?` is right.
//! `Completed` also tells what a lost COMMIT did: it went through.
//!
#![cfg_attr(all(feature = "axum", feature = "sqlite"), doc = "```")]
#![cfg_attr(not(all(feature = "axum", feature = "sqlite")), doc = "```text")]
//! use std::sync::Arc;
//! use axum::{Router, body::Body, extract::State, routing::post};
//! use http::{Request, Response};
//! use onlyonce::{Attempt, Effects, Message, Onlyonce, Policy, Problem, transaction};
//! use onlyonce::store::sqlite::{Options, Sqlite};
//! # use tower::ServiceExt;
//!
//! #[derive(Debug)]
//! struct Failed(String);
//!
//! impl<E: std::error::Error> From<E> for Failed {
//!     fn from(error: E) -> Self {
//!         Self(error.to_string())
//!     }
//! }
//!
//! async fn pay(State(store): State<Arc<Sqlite>>, attempt: Attempt) -> Result<Response<String>, &'static str> {
//!     let paid = store.write(move |tx| {
//!         tx.execute("INSERT INTO payment (amount) VALUES (1200)", [])?;
//!         attempt.send(tx, Message::to("receipts").json(&1200)?)?;
//!         let response = Response::new(format!("payment {}", tx.last_insert_rowid()));
//!         attempt.complete_in(tx, &response)?;
//!         Ok::<_, Failed>(response)
//!     });
//!     paid.await.map_err(|_| "not paid")
//! }
//!
//! # #[tokio::main(flavor = "multi_thread")]
//! # async fn main() {
//! # let folder = std::env::temp_dir().join(format!("onlyonce-doc-transaction-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! # let path = folder.join("onlyonce.db");
//! let store = Arc::new(Sqlite::open(path, Options::default()).await.unwrap());
//! store.write(|tx| Ok::<_, Failed>(tx.execute_batch("CREATE TABLE payment (amount INTEGER)")?)).await.unwrap();
//! let local = Policy { effects: Effects::Local, ..Policy::default() };
//! let onlyonce = Onlyonce::new(store.clone()).with_policy(local).unwrap();
//! let app = Router::new().route("/payments", post(pay)).layer(onlyonce.layer()).with_state(store);
//! for is_replay in [false, true] {
//!     let request = Request::post("/payments").header("authorization", "Bearer ann").header("idempotency-key", "k-1");
//!     let answer = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
//!     assert_eq!((answer.status().as_u16(), answer.headers().contains_key("idempotent-replayed")), (200, is_replay));
//! }
//! # drop((app, onlyonce));
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # }
//! ```

#[cfg(feature = "_driver")]
mod driver;
#[cfg(feature = "sqlx-mysql")]
mod mysql;
#[cfg(feature = "_postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use onlyonce_core::record;
use onlyonce_store::outbox;

use crate::attempt::Attempt;
#[cfg(any(feature = "_driver", feature = "sqlite"))]
use crate::in_transaction::{Begun, InTransaction, OpenAttempt};
use crate::message::{Key as MessageKey, Message};
use crate::{answer, headers};

#[cfg(feature = "_driver")]
pub use driver::Database;
#[cfg(feature = "_driver")]
pub(crate) use driver::{Server, at_once, begin, store, written};
#[cfg(feature = "sqlx-mysql")]
pub use mysql::MySqlTransaction;
#[cfg(feature = "tokio-postgres")]
pub use postgres::client::{PhaseClient, Shared};
#[cfg(feature = "sqlx")]
pub use postgres::sqlx::PgTransaction;

/// A transaction of one's own; see the [module](self). No other type can be one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction in which a request can be completed",
    label = "not a transaction of a driver whose feature is enabled",
    note = "pass `&mut tx` of tokio_postgres, deadpool_postgres or sqlx (PostgreSQL, MySQL), each a feature of `onlyonce`",
    note = "on SQLite, pass the `tx` that `Sqlite::write` hands to its closure: a transaction on another connection could not \
            commit with the record"
)]
pub trait Transaction: sealed::Sealed {
    /// What a call gives: a future, or on SQLite the result itself.
    type Done<T: Send + 'static>;

    /// Carries an order out, and gives `value`.
    #[doc(hidden)]
    fn carry_out<T: Send + 'static>(
        self,
        attempt: &Attempt,
        order: Result<Order, Error>,
        value: T,
    ) -> Self::Done<T>;

    /// Begins a request whose reservation is part of this transaction.
    #[doc(hidden)]
    #[cfg(any(feature = "_driver", feature = "sqlite"))]
    fn begin_at_once(self, key: InTransaction) -> Self::Done<Begun>;

    /// Reserves and completes it.
    #[doc(hidden)]
    #[cfg(any(feature = "_driver", feature = "sqlite"))]
    fn complete_at_once(self, open: OpenAttempt, completion: Result<Completion, Error>) -> Self::Done<()>;
}

pub(crate) mod sealed {
    /// Only this crate says what a transaction is.
    pub trait Sealed {}
}

/// What a transaction is asked for.
#[doc(hidden)]
#[derive(Debug)]
pub enum Order {
    /// To judge the attempt, and lock its record.
    Hold,
    /// To complete it.
    Complete(Completion),
    /// To store a message.
    Send(outbox::Message),
}

/// The answer that a completion stores, and for how long.
#[doc(hidden)]
#[derive(Debug)]
pub struct Completion {
    #[doc(hidden)]
    pub response: Arc<record::Response>,
    #[doc(hidden)]
    pub keep_for: Option<Duration>,
}

/// Why a transaction of one's own did not take what it was asked for. Branch on [`Error::kind`]; read the message.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A later attempt has begun, or the record is gone: roll back.
    Superseded,
    /// This attempt has completed already: an earlier commit went through. Roll back.
    Completed,
    /// The database would not now (40001, 40P01, 55P03; on MySQL 1020, 1205, 1213): nothing was changed. Roll back and run the transaction again.
    Again,
    /// An earlier attempt has committed a phase that this handler did not come to: the handler was changed while the record
    /// was under way. Roll back; the attempt ends unknown.
    Changed,
    /// What was asked for cannot be stored; or the attempt has ended with a call that failed, and cannot be completed.
    Invalid,
    /// The database failed, or is not what the settings say.
    Database,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    #[cfg(any(feature = "_driver", feature = "sqlite"))]
    pub(crate) fn superseded() -> Self {
        let message = "this attempt may no longer complete: a later attempt has begun, or the record is gone";
        Self::new(ErrorKind::Superseded, message)
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn completed() -> Self {
        Self::new(ErrorKind::Completed, "this attempt has completed already")
    }

    #[cfg(feature = "_driver")]
    pub(crate) fn wrong_store(needs: &str) -> Self {
        let message = format!(
            "the layer's store is not {needs}, so this transaction cannot commit with its records; open the store where \
             the rows are"
        );
        Self::new(ErrorKind::Invalid, message)
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

impl From<onlyonce_store::Error> for Error {
    fn from(error: onlyonce_store::Error) -> Self {
        let kind = match error.kind() {
            onlyonce_store::ErrorKind::Busy => ErrorKind::Again,
            onlyonce_store::ErrorKind::Unavailable
            | onlyonce_store::ErrorKind::Corrupt
            | onlyonce_store::ErrorKind::Misconfigured
            | onlyonce_store::ErrorKind::Undecryptable
            | onlyonce_store::ErrorKind::Other => ErrorKind::Database,
        };
        Self::new(kind, "the store failed").because(error)
    }
}

/// Whether somewhere in an error's chain the database asks to run the transaction again.
#[cfg(feature = "_driver")]
pub(crate) fn asks_again(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<Error>().is_some_and(|error| error.kind == ErrorKind::Again)
            || driver_asks_again(error)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(feature = "_driver")]
fn driver_asks_again(error: &(dyn StdError + 'static)) -> bool {
    #[cfg(feature = "sqlx-mysql")]
    if let Some(kind) = mysql::kind_of(error) {
        return kind == ErrorKind::Again;
    }
    #[cfg(feature = "_postgres")]
    if let Some(code) = postgres::code_of(error) {
        return postgres::kind(&code) == ErrorKind::Again;
    }
    let _ = error;
    false
}

impl Attempt {
    /// Takes the record's lock and judges whether this attempt may still complete, before any work is done. Optional; as the
    /// transaction's first statement. Transactions at REPEATABLE READ or SERIALIZABLE that are longer than half a lease need
    /// it: each renewal rewrites the record.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    pub fn hold<X: Transaction>(&self, tx: X) -> X::Done<()> {
        tx.carry_out(self, Ok(Order::Hold), ())
    }

    /// Completes the request with this answer, in a transaction of one's own: commit, then answer. Every retry gets it, also
    /// where this process dies right after the commit. Headers that are not replayed on this route are left out; how long it
    /// is kept is the route's to say, or [`Attempt::keep_for`]'s. Call it last: the record is locked until the transaction
    /// ends.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    pub fn complete_in<X: Transaction, B: AsRef<[u8]>>(&self, tx: X, response: &Response<B>) -> X::Done<()> {
        let order = self.completion(response).map(Order::Complete);
        tx.carry_out(self, order, ())
    }

    /// Stores a message in a transaction of one's own, and gives its key. Inside a phase it is passed `&mut *tx`.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    pub fn send<X: Transaction>(&self, tx: X, message: Message) -> X::Done<MessageKey> {
        let message = message.stored();
        let key = message.as_ref().map_or_else(|_| "".into(), |message| message.key.clone());
        tx.carry_out(self, message.map(Order::Send), key)
    }

    /// The answer as it is stored.
    pub(crate) fn completion<B: AsRef<[u8]>>(&self, response: &Response<B>) -> Result<Completion, Error> {
        self.has_passed_all()?;
        let policy = &self.keyed.settings.policy;
        let status = response.status();
        if !(200..=599).contains(&status.as_u16()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("status \"{status}\" is not between 200 and 599"),
            ));
        }
        let mut kept = response.headers().clone();
        headers::clean(&mut kept, policy);
        let body = Bytes::copy_from_slice(response.body().as_ref());
        let response = Arc::new(answer::compact(status, &kept, &body, policy));
        let keep_for = self.keyed.heard().keep_for;
        Ok(Completion { response, keep_for })
    }
}
