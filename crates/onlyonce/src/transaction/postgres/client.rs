//! Transactions of `tokio_postgres` and of `deadpool_postgres`.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Poll;

use onlyonce_store::failpoint;
use onlyonce_store::postgres::Postgres;
use onlyonce_store::user::{Statement, Value};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::failed;
use crate::attempt::Attempt;
use crate::in_transaction::{Begun, InTransaction, OpenAttempt};
use crate::transaction::driver::{
    Database, Future, at_once, begin, carried, give_up, is_completion, statement, transaction, written,
};
use crate::transaction::sealed::Sealed;
use crate::transaction::{Completion, Error, Order, Transaction};

transaction!(['c,] tokio_postgres::Transaction<'c>, Postgres, run_in);
transaction!(
    #[cfg(feature = "deadpool-postgres")]
    ['c,] deadpool_postgres::Transaction<'c>, Postgres, run_in_pooled
);
transaction!([C: Connection + Send + Sync,] PhaseClient<C>, Postgres, run_on_own);

/// A transaction that a phase, or [`InTransaction::run`], has begun on a connection of its own. It is a client of `tokio_postgres`,
/// or of `deadpool_postgres`, for statements; what began it ends it.
pub struct PhaseClient<C> {
    /// Empty once it has ended.
    client: Option<C>,
}

impl<C: Deref> Deref for PhaseClient<C> {
    type Target = C::Target;

    fn deref(&self) -> &C::Target {
        self.client.as_deref().expect("a transaction that a handler has was not ended")
    }
}

/// What a transaction was begun on.
pub trait Connection: Deref {
    /// The driver's own client.
    fn client(client: &Self::Target) -> &Client;
}

impl Connection for Turn {
    fn client(client: &Client) -> &Client {
        client
    }
}

#[cfg(feature = "deadpool-postgres")]
impl Connection for Pooled {
    fn client(client: &deadpool_postgres::ClientWrapper) -> &Client {
        client
    }
}

impl<C> fmt::Debug for PhaseClient<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhaseClient").finish_non_exhaustive()
    }
}

/// One client of `tokio_postgres` that phases take turns on. A service with traffic has a pool instead.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Guarded>>);

/// A client that is fit for a transaction, or was given up in the middle of one.
struct Guarded {
    client: Client,
    is_open: bool,
}

impl Shared {
    /// Phases take turns on this client.
    pub fn new(client: Client) -> Self {
        Self(Arc::new(Mutex::new(Guarded { client, is_open: false })))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// The turn of one phase.
pub struct Turn(OwnedMutexGuard<Guarded>);

impl Deref for Turn {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0.client
    }
}

impl Database for Shared {}

impl begin::Begin for Shared {
    type Store = Postgres;
    type Transaction = PhaseClient<Turn>;

    fn begin(&self) -> Future<'_, PhaseClient<Turn>> {
        Box::pin(async {
            let mut turn = Turn(self.0.clone().lock_owned().await);
            // A phase that was given up with its future left its transaction open.
            if turn.0.is_open {
                turn.batch_execute("ROLLBACK").await.map_err(failed)?;
            }
            turn.0.deref_mut().is_open = true;
            turn.batch_execute("BEGIN").await.map_err(failed)?;
            Ok(PhaseClient { client: Some(turn) })
        })
    }

    fn run(tx: &mut PhaseClient<Turn>, statement: Statement) -> Future<'_, Option<i64>> {
        Box::pin(run_on(tx, statement))
    }

    fn insert_and_commit(tx: PhaseClient<Turn>, insert: Statement) -> Future<'static, Option<i64>> {
        Box::pin(async move {
            let (written, ended) = and_commit(run_on(&tx, insert), &tx).await;
            if let (Ended::Yes, Some(mut turn)) = (ended, { tx }.client.take()) {
                turn.0.is_open = false;
            }
            written
        })
    }

    fn commit(tx: PhaseClient<Turn>) -> Future<'static, ()> {
        Box::pin(end_turn(tx, "COMMIT"))
    }

    fn roll_back(tx: PhaseClient<Turn>) -> Future<'static, ()> {
        Box::pin(end_turn(tx, "ROLLBACK"))
    }
}

async fn end_turn(mut tx: PhaseClient<Turn>, sql: &str) -> Result<(), Error> {
    let Some(mut turn) = tx.client.take() else { return Ok(()) };
    turn.batch_execute(sql).await.map_err(failed)?;
    turn.0.is_open = false;
    Ok(())
}

/// A connection of a pool. One whose transaction was not ended does not go back there.
#[cfg(feature = "deadpool-postgres")]
pub struct Pooled(Option<deadpool_postgres::Object>);

#[cfg(feature = "deadpool-postgres")]
impl Deref for Pooled {
    type Target = deadpool_postgres::ClientWrapper;

    fn deref(&self) -> &deadpool_postgres::ClientWrapper {
        self.0.as_deref().expect("a connection in use was not given back")
    }
}

#[cfg(feature = "deadpool-postgres")]
impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(deadpool_postgres::Object::take(object));
        }
    }
}

#[cfg(feature = "deadpool-postgres")]
impl Database for deadpool_postgres::Pool {}

#[cfg(feature = "deadpool-postgres")]
impl begin::Begin for deadpool_postgres::Pool {
    type Store = Postgres;
    type Transaction = PhaseClient<Pooled>;

    fn begin(&self) -> Future<'_, PhaseClient<Pooled>> {
        Box::pin(async {
            let pooled = Pooled(Some(self.get().await.map_err(failed)?));
            pooled.batch_execute("BEGIN").await.map_err(failed)?;
            Ok(PhaseClient { client: Some(pooled) })
        })
    }

    fn run(tx: &mut PhaseClient<Pooled>, statement: Statement) -> Future<'_, Option<i64>> {
        Box::pin(run_on(tx, statement))
    }

    fn insert_and_commit(tx: PhaseClient<Pooled>, insert: Statement) -> Future<'static, Option<i64>> {
        Box::pin(async move {
            let (values, types): (Vec<_>, Vec<_>) = typed(&insert).into_iter().unzip();
            let prepared = tx.prepare_typed_cached(&insert.sql, &types).await.map_err(failed)?;
            let inserting = async { first(tx.query(&prepared, &values).await) };
            let (written, ended) = and_commit(inserting, &tx).await;
            if let (Ended::Yes, Some(mut pooled)) = (ended, { tx }.client.take()) {
                drop(pooled.0.take());
            }
            written
        })
    }

    fn commit(tx: PhaseClient<Pooled>) -> Future<'static, ()> {
        Box::pin(give_back(tx, "COMMIT"))
    }

    fn roll_back(tx: PhaseClient<Pooled>) -> Future<'static, ()> {
        Box::pin(give_back(tx, "ROLLBACK"))
    }
}

#[cfg(feature = "deadpool-postgres")]
async fn give_back(mut tx: PhaseClient<Pooled>, sql: &str) -> Result<(), Error> {
    let Some(mut pooled) = tx.client.take() else { return Ok(()) };
    pooled.batch_execute(sql).await.map_err(failed)?;
    drop(pooled.0.take());
    Ok(())
}

async fn run_in(
    tx: &mut tokio_postgres::Transaction<'_>,
    statement: Statement,
) -> Result<Option<i64>, Error> {
    let typed = typed(&statement);
    first(tx.query_typed(&statement.sql, &typed).await)
}

/// Prepared once a connection, by the pool's own cache: to plan a write takes the server longer than to carry it out.
#[cfg(feature = "deadpool-postgres")]
async fn run_in_pooled(
    tx: &mut deadpool_postgres::Transaction<'_>,
    statement: Statement,
) -> Result<Option<i64>, Error> {
    let (values, types): (Vec<_>, Vec<_>) = typed(&statement).into_iter().unzip();
    let prepared = tx.prepare_typed_cached(&statement.sql, &types).await.map_err(failed)?;
    first(tx.query(&prepared, &values).await)
}

async fn run_on_own<C: Connection>(
    tx: &mut PhaseClient<C>,
    statement: Statement,
) -> Result<Option<i64>, Error> {
    run_on(C::client(tx), statement).await
}

/// Whether a transaction has ended.
enum Ended {
    Yes,
    Unknown,
}

/// Inserts a record and commits, in one round trip: the driver sends requests in the order in which they are first polled. A
/// record that is there already fails the insert; the transaction is aborted then, and COMMIT rolls it back.
///
/// An insert that has ended when it is first polled was answered very quickly, or was never sent. The latter is not followed by a
/// COMMIT, which would commit the rows alone.
async fn and_commit(
    inserting: impl std::future::Future<Output = Result<Option<i64>, Error>>,
    client: &Client,
) -> (Result<Option<i64>, Error>, Ended) {
    let mut inserting = std::pin::pin!(inserting);
    let (written, end) = match futures_util::poll!(inserting.as_mut()) {
        Poll::Ready(written) => {
            let sql = if matches!(written, Ok(Some(_))) { "COMMIT" } else { "ROLLBACK" };
            (written, client.batch_execute(sql).await)
        }
        Poll::Pending => tokio::join!(biased; inserting, client.batch_execute("COMMIT")),
    };
    let ended = if end.is_ok() { Ended::Yes } else { Ended::Unknown };
    (written.and_then(|written| end.map(|()| written).map_err(failed)), ended)
}

async fn run_on(client: &Client, statement: Statement) -> Result<Option<i64>, Error> {
    let typed = typed(&statement);
    first(client.query_typed(&statement.sql, &typed).await)
}

fn typed(statement: &Statement) -> Vec<(&(dyn ToSql + Sync), Type)> {
    let typed = statement.values.iter().map(|value| match value {
        Value::Bytes(bytes) => (bytes as &(dyn ToSql + Sync), Type::BYTEA),
        Value::Text(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
        Value::Integer(integer) => (integer as &(dyn ToSql + Sync), Type::INT8),
        Value::Flag(flag) => (flag as &(dyn ToSql + Sync), Type::BOOL),
    });
    typed.collect()
}

fn first(rows: Result<Vec<Row>, tokio_postgres::Error>) -> Result<Option<i64>, Error> {
    let rows = rows.map_err(failed)?;
    rows.first().map(|row| row.try_get(0).map_err(failed)).transpose()
}
