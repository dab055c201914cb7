//! Transactions of sqlx on MySQL and MariaDB.

use std::error::Error as StdError;
use std::ops::{Deref, DerefMut};

use onlyonce_store::failpoint;
use onlyonce_store::mysql::Mysql as Store;
use onlyonce_store::user::{Statement, Value};
use sqlx::mysql::{MySqlArguments, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, MySqlPool};

use super::{ErrorKind, driver};
use crate::attempt::Attempt;
use crate::in_transaction::{Begun, InTransaction, OpenAttempt};
use crate::transaction::driver::{
    Database, Future, at_once, begin, carried, give_up, is_completion, statement, transaction, written,
};
use crate::transaction::sealed::Sealed;
use crate::transaction::{Completion, Error, Order, Transaction};

/// There is a row with this key.
const DUPLICATE: u16 = 1062;

transaction!(['c,] sqlx::Transaction<'c, MySql>, Store, run_in);
transaction!([] MySqlTransaction, Store, run_on);

/// A transaction of sqlx's that a phase has begun. It is a connection, for statements: `.execute(&mut **tx)`. The phase ends it.
#[derive(Debug)]
pub struct MySqlTransaction(sqlx::Transaction<'static, MySql>);

impl Deref for MySqlTransaction {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.0
    }
}

impl DerefMut for MySqlTransaction {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.0
    }
}

async fn run_in(tx: &mut sqlx::Transaction<'_, MySql>, statement: Statement) -> Result<Option<i64>, Error> {
    run(tx, statement).await
}

async fn run_on(tx: &mut MySqlTransaction, statement: Statement) -> Result<Option<i64>, Error> {
    run(&mut *tx, statement).await
}

async fn run(connection: &mut MySqlConnection, statement: Statement) -> Result<Option<i64>, Error> {
    let Statement { sql, values } = statement;
    if values.is_empty() {
        // Not every server prepares ROLLBACK.
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await;
        return done.map(|_| None).map_err(failed);
    }
    let mut query = sqlx::query::<MySql>(AssertSqlSafe(sql));
    for value in values {
        query = bound(query, value);
    }
    match query.execute(connection).await {
        Ok(done) => Ok((done.rows_affected() > 0).then(|| done.last_insert_id().cast_signed())),
        // Only a plain INSERT of a record is refused so: it is lost to the one that is there.
        Err(error) if answered(&error).is_some_and(|(number, _)| number == DUPLICATE) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

fn bound(
    query: sqlx::query::Query<'_, MySql, MySqlArguments>,
    value: Value,
) -> sqlx::query::Query<'_, MySql, MySqlArguments> {
    match value {
        Value::Bytes(bytes) => query.bind(bytes),
        Value::Text(text) => query.bind(text),
        Value::Integer(integer) => query.bind(integer),
        Value::Flag(flag) => query.bind(flag),
    }
}

impl Database for MySqlPool {}

impl begin::Begin for MySqlPool {
    type Store = Store;
    type Transaction = MySqlTransaction;

    fn begin(&self) -> Future<'_, MySqlTransaction> {
        Box::pin(async { Self::begin(self).await.map(MySqlTransaction).map_err(failed) })
    }

    fn run(tx: &mut MySqlTransaction, statement: Statement) -> Future<'_, Option<i64>> {
        Box::pin(run(&mut *tx, statement))
    }

    fn commit(tx: MySqlTransaction) -> Future<'static, ()> {
        Box::pin(async { tx.0.commit().await.map_err(failed) })
    }

    fn roll_back(tx: MySqlTransaction) -> Future<'static, ()> {
        Box::pin(async { tx.0.rollback().await.map_err(failed) })
    }
}

/// What an error of the server's means, by its number, and by its SQLSTATE where the number is any procedure's.
fn kind(number: u16, state: &str) -> ErrorKind {
    match (number, state) {
        (31001, _) => ErrorKind::Superseded,
        (31002, _) => ErrorKind::Completed,
        // Held, older than the record, or lost to another transaction: also to one on another node of a Galera cluster.
        (1020 | 1205 | 1213, _) => ErrorKind::Again,
        (_, "22023" | "23514" | "54000") => ErrorKind::Invalid,
        _ => ErrorKind::Database,
    }
}

/// What an error of the driver's means, where it is an answer of the server.
pub(super) fn kind_of(error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
    let (number, state) = answered(error.downcast_ref::<sqlx::Error>()?)?;
    Some(kind(number, &state))
}

/// The number and the SQLSTATE of an answer of the server.
fn answered(error: &sqlx::Error) -> Option<(u16, String)> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some((error.number(), error.code().unwrap_or_default().to_owned()))
}

/// The error of the driver.
fn failed(error: sqlx::Error) -> Error {
    driver::failed(kind_of(&error).unwrap_or(ErrorKind::Database), error)
}
