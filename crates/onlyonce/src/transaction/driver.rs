//! Transactions of the drivers of a server, whichever it is.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::pin::Pin;

use onlyonce_core::record::{Handle, Id};
use onlyonce_store::outbox::Message;
use onlyonce_store::user::{self, LockWait, Statement};
use onlyonce_store::{Change, failpoint};

use super::{Completion, Error, ErrorKind, Order};
use crate::attempt::Attempt;
use crate::engine::chain;
use crate::in_transaction::OpenAttempt;

/// What the calls of an asynchronous driver give.
pub(super) type Future<'a, T> = Pin<Box<dyn std::future::Future<Output = Result<T, Error>> + Send + 'a>>;

/// A pool or client in whose transactions phases commit: `sqlx::PgPool`, `sqlx::MySqlPool`, `deadpool_postgres::Pool`,
/// `transaction::Shared`.
///
/// The role it connects as updates `onlyonce_record` and `onlyonce_result` itself, so it needs the rights that a node has
/// (docs/engines.md).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a database in which phases can commit",
    note = "pass a `sqlx::PgPool`, a `sqlx::MySqlPool`, a `deadpool_postgres::Pool` or a `transaction::Shared` client, each a \
            feature of `onlyonce`",
    note = "on SQLite, use `Attempt::phase_blocking`"
)]
pub trait Database: begin::Begin {}

pub(crate) mod begin {
    use onlyonce_store::user::Statement;

    use super::{Error, Future, Server};

    /// What a phase needs of a database. Sealed: only this crate names it.
    pub trait Begin: Sync {
        /// The store whose records commit with it.
        #[allow(private_bounds, reason = "nobody else names it")]
        type Store: Server;

        /// A transaction of its own.
        type Transaction: Send + 'static;

        /// Begins one.
        fn begin(&self) -> Future<'_, Self::Transaction>;

        /// Runs a statement in it: the moment of a write, or none where it is lost.
        fn run(tx: &mut Self::Transaction, statement: Statement) -> Future<'_, Option<i64>>;

        /// Commits it.
        fn commit(tx: Self::Transaction) -> Future<'static, ()>;

        /// Gives it up.
        fn roll_back(tx: Self::Transaction) -> Future<'static, ()>;

        /// Inserts a record and commits: the moment of the write, or none where the record was there already. Then nothing is
        /// committed. A driver that can sends both at once.
        fn insert_and_commit(mut tx: Self::Transaction, insert: Statement) -> Future<'static, Option<i64>> {
            Box::pin(async move {
                let written: Result<Option<i64>, Error> = Self::run(&mut tx, insert).await;
                match &written {
                    Ok(Some(_)) => Self::commit(tx).await?,
                    Ok(None) | Err(_) => {
                        let _ = Self::roll_back(tx).await;
                    }
                }
                written
            })
        }
    }
}

/// A store whose statements can be part of a transaction of the user's own.
pub(crate) trait Server: 'static {
    /// What it is called.
    const NAME: &str;

    fn hold(&self, handle: Handle) -> Statement;

    fn complete(&self, handle: Handle, completion: user::Completion) -> Statement;

    fn send(&self, handle: Handle, message: &Message) -> Statement;

    fn swap(&self, id: Id, change: Change, wait: LockWait) -> Result<Vec<Statement>, onlyonce_store::Error>;

    /// Whether the statement that inserts a record failed since the record is there already.
    fn is_lost(error: &Error) -> bool;

    /// Keeps the rows of a transaction from being committed, also where the handler ignores why.
    const GIVE_UP: &str;
}

macro_rules! server {
    ($store:ty, $name:literal, $is_lost:expr, $give_up:expr) => {
        impl Server for $store {
            const NAME: &str = $name;

            fn hold(&self, handle: Handle) -> Statement {
                self.hold_statement(handle)
            }

            fn complete(&self, handle: Handle, completion: user::Completion) -> Statement {
                self.complete_statement(handle, completion)
            }

            fn send(&self, handle: Handle, message: &Message) -> Statement {
                self.send_statement(handle, message)
            }

            fn swap(
                &self,
                id: Id,
                change: Change,
                wait: LockWait,
            ) -> Result<Vec<Statement>, onlyonce_store::Error> {
                self.swap_statements(id, change, wait)
            }

            fn is_lost(error: &Error) -> bool {
                $is_lost(error)
            }

            const GIVE_UP: &str = $give_up;
        }
    };
}

#[cfg(feature = "_postgres")]
server!(
    onlyonce_store::postgres::Postgres,
    "PostgreSQL",
    super::postgres::is_duplicate,
    // An error aborts the transaction: its COMMIT rolls it back.
    "DO $$ BEGIN RAISE EXCEPTION 'the request could not be completed in this transaction' USING ERRCODE = 'OO001'; END $$"
);
// There the driver tells it as a write that changed nothing, and an error ends the statement only.
#[cfg(feature = "sqlx-mysql")]
server!(onlyonce_store::mysql::Mysql, "MySQL or MariaDB", |_| false, "ROLLBACK");

/// The layer's store, where it is of this kind.
pub(crate) fn store<S: Server>(attempt: &Attempt) -> Result<&S, Error> {
    let store = attempt.keyed.engine().store();
    let store = store.as_any().and_then(|store| store.downcast_ref::<S>());
    store.ok_or_else(|| Error::wrong_store(S::NAME))
}

/// The statement of an order.
pub(super) fn statement<S: Server>(
    attempt: &Attempt,
    order: Result<Order, Error>,
) -> Result<Statement, Error> {
    let (store, handle) = (store::<S>(attempt)?, attempt.handle());
    Ok(match order? {
        Order::Hold => store.hold(handle),
        Order::Complete(completion) => store.complete(handle, completed::<S>(completion)?),
        Order::Send(message) => store.send(handle, &message),
    })
}

/// A completion as the SQL function takes it.
fn completed<S: Server>(completion: Completion) -> Result<user::Completion, Error> {
    let Completion { response, keep_for } = completion;
    let mut headers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in &response.headers {
        let Ok(value) = std::str::from_utf8(value.as_bytes()) else {
            let message =
                format!("header \"{name}\" has a value that is not text; {} cannot store it", S::NAME);
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        headers.entry(name.as_str()).or_default().push(value);
    }
    let headers = serde_json::to_string(&headers).expect("texts are JSON");
    let is_kept = keep_for.is_none_or(|span| !span.is_zero());
    Ok(user::Completion {
        status: response.status,
        headers,
        // Zero: the work is done, and its answer is not stored.
        response: is_kept.then_some(response),
        keep_us: keep_for.filter(|_| is_kept).map(|span| i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
    })
}

/// Carries an order out on a connection, and gives `value`.
pub(super) async fn carried<T, F>(
    statement: Result<Statement, Error>,
    is_completion: bool,
    value: T,
    run: impl FnOnce(Statement) -> F,
) -> Result<T, Error>
where
    F: std::future::Future<Output = Result<Option<i64>, Error>>,
{
    if is_completion {
        failpoint!("complete.before");
    }
    run(statement?).await?;
    if is_completion {
        failpoint!("complete.after");
    }
    Ok(value)
}

/// The statements by which a request is reserved and completed at once: the write, and what belongs to it. Another request
/// with its key may have written and not committed yet: it is not waited for without end.
pub(crate) fn at_once<S: Server>(
    open: &OpenAttempt,
    change: Change,
) -> Result<(Statement, Vec<Statement>), Error> {
    let store = store::<S>(open.attempt())?;
    let mut statements = store.swap(open.id(), change, LockWait::Shortly)?;
    Ok((statements.remove(0), statements))
}

/// The moment of the write that reserves and completes a request, or what it means that there is none.
pub(crate) fn written<S: Server>(
    open: &OpenAttempt,
    written: Result<Option<i64>, Error>,
) -> Result<i64, Error> {
    match written {
        Ok(Some(at)) => Ok(at),
        Ok(None) => Err(open.lost()),
        Err(error) if S::is_lost(&error) => Err(open.lost().because(error)),
        Err(error) => Err(open.failed(error)),
    }
}

/// See [`Server::GIVE_UP`].
pub(crate) fn give_up<S: Server>() -> Statement {
    Statement { sql: S::GIVE_UP.into(), values: Vec::new() }
}

/// A transaction of a driver, by how it runs a statement.
macro_rules! transaction {
    ($(#[$attribute:meta])* [$($generics:tt)*] $tx:ty, $store:ty, $run:expr) => {
        $(#[$attribute])*
        impl<'a, $($generics)*> Sealed for &'a mut $tx {}

        $(#[$attribute])*
        impl<'a, $($generics)*> Transaction for &'a mut $tx {
            type Done<T: Send + 'static> = Future<'a, T>;

            fn carry_out<T: Send + 'static>(
                self,
                attempt: &Attempt,
                order: Result<Order, Error>,
                value: T,
            ) -> Future<'a, T> {
                let is_completion = is_completion(&order);
                let statement = statement::<$store>(attempt, order);
                Box::pin(carried(statement, is_completion, value, move |statement| $run(self, statement)))
            }

            fn begin_at_once(self, key: InTransaction) -> Future<'a, Begun> {
                Box::pin(key.begin_by_store())
            }

            fn complete_at_once(
                self,
                open: OpenAttempt,
                completion: Result<Completion, Error>,
            ) -> Future<'a, ()> {
                Box::pin(async move {
                    let completed = async {
                        let (write, rest) = at_once::<$store>(&open, open.write(completion?))?;
                        failpoint!("complete.before");
                        written::<$store>(&open, $run(&mut *self, write).await)?;
                        for statement in rest {
                            $run(&mut *self, statement).await?;
                        }
                        Ok(())
                    };
                    if let Err(error) = completed.await {
                        // Where this fails too, the connection is gone, or the transaction was aborted before.
                        let _ = $run(&mut *self, give_up::<$store>()).await;
                        return Err(error);
                    }
                    failpoint!("complete.after");
                    open.written();
                    Ok(())
                })
            }
        }
    };
}
pub(super) use transaction;

pub(super) fn is_completion(order: &Result<Order, Error>) -> bool {
    matches!(order, Ok(Order::Complete(_)))
}

/// The error of a driver, where this is its kind.
pub(super) fn failed(kind: ErrorKind, error: impl StdError + Send + Sync + 'static) -> Error {
    match kind {
        ErrorKind::Superseded => Error::superseded().because(error),
        ErrorKind::Completed => Error::new(kind, "this attempt has completed already").because(error),
        ErrorKind::Again => Error::new(kind, "the database asks to run the transaction again").because(error),
        ErrorKind::Invalid | ErrorKind::Changed => {
            Error::new(kind, format!("the database refuses it: {}", chain(&error))).because(error)
        }
        ErrorKind::Database => {
            Error::new(kind, format!("the database failed: {}", chain(&error))).because(error)
        }
    }
}
