//! Transactions of sqlx.

use std::ops::{Deref, DerefMut};

use onlyonce_store::failpoint;
use onlyonce_store::postgres::Postgres as Store;
use onlyonce_store::user::{Statement, Value};
use sqlx::postgres::PgArguments;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row};

use super::failed;
use crate::attempt::Attempt;
use crate::in_transaction::{Begun, InTransaction, OpenAttempt};
use crate::transaction::driver::{
    Database, Future, at_once, begin, carried, give_up, is_completion, statement, transaction, written,
};
use crate::transaction::sealed::Sealed;
use crate::transaction::{Completion, Error, Order, Transaction};

transaction!(['c,] sqlx::Transaction<'c, Postgres>, Store, run_in);
transaction!([] PgTransaction, Store, run_on);

/// A transaction of sqlx's that a phase has begun. It is a connection, for statements: `.execute(&mut **tx)`. The phase ends it.
#[derive(Debug)]
pub struct PgTransaction(sqlx::Transaction<'static, Postgres>);

impl Deref for PgTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for PgTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

async fn run_in(
    tx: &mut sqlx::Transaction<'_, Postgres>,
    statement: Statement,
) -> Result<Option<i64>, Error> {
    run(tx, statement).await
}

async fn run_on(tx: &mut PgTransaction, statement: Statement) -> Result<Option<i64>, Error> {
    run(&mut *tx, statement).await
}

async fn run(connection: &mut PgConnection, statement: Statement) -> Result<Option<i64>, Error> {
    let Statement { sql, values } = statement;
    let mut query = sqlx::query::<Postgres>(AssertSqlSafe(sql));
    for value in values {
        query = bound(query, value);
    }
    let row = query.fetch_optional(connection).await.map_err(failed)?;
    row.map(|row| row.try_get(0).map_err(failed)).transpose()
}

fn bound(
    query: sqlx::query::Query<'_, Postgres, PgArguments>,
    value: Value,
) -> sqlx::query::Query<'_, Postgres, PgArguments> {
    match value {
        Value::Bytes(bytes) => query.bind(bytes),
        Value::Text(text) => query.bind(text),
        Value::Integer(integer) => query.bind(integer),
        Value::Flag(flag) => query.bind(flag),
    }
}

impl Database for PgPool {}

impl begin::Begin for PgPool {
    type Store = Store;
    type Transaction = PgTransaction;

    fn begin(&self) -> Future<'_, PgTransaction> {
        Box::pin(async { Self::begin(self).await.map(PgTransaction).map_err(failed) })
    }

    fn run(tx: &mut PgTransaction, statement: Statement) -> Future<'_, Option<i64>> {
        Box::pin(run(&mut *tx, statement))
    }

    fn commit(tx: PgTransaction) -> Future<'static, ()> {
        Box::pin(async { tx.0.commit().await.map_err(failed) })
    }

    fn roll_back(tx: PgTransaction) -> Future<'static, ()> {
        Box::pin(async { tx.0.rollback().await.map_err(failed) })
    }
}
