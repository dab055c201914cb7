//! One connection: a client, the task that does its I/O, and its prepared statements.
//!
//! 1. Several statements may be in flight. The server executes them in the order sent, each in its own transaction; one
//!    that fails does not affect the others.
//! 2. The task ends with the connection. If the task ends first, with its runtime, the connection is closed and every waiting
//!    caller gets an error.
//! 3. A warning arrives before the end of the answer it belongs to, and is recorded before that answer is returned. With
//!    several statements in flight it is not known which one it was about, so all later answers are in doubt.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, NoTls, Row, SimpleQueryMessage, Socket, Statement,
};

use super::row::{Swap, Values};
use super::statement::Verb;
use super::url::Database;
use crate::accepted::Request;
use crate::sql::Sealing;

/// The server function that warns when the wait for the standby was cancelled. The message itself is translated.
const GAVE_UP_ON_STANDBY: &str = "SyncRepWaitForLSN";

pub(super) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// One connection; see the module's documentation.
pub(super) struct Connection {
    pub(super) client: Client,
    database: Arc<Database>,
    prepared: Mutex<HashMap<Verb, Statement>>,
    gave_up_on_standby: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Connection {
    pub(super) async fn open(database: &Arc<Database>, config: &Config) -> Result<Self, Error> {
        match &database.tls {
            None => Self::open_with(database, config, NoTls).await,
            Some(tls) => Self::open_with(database, config, tls.clone()).await,
        }
    }

    async fn open_with<T>(database: &Arc<Database>, config: &Config, tls: T) -> Result<Self, Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, mut connection) = config.connect(tls).await?;
        let gave_up_on_standby = Arc::new(AtomicBool::new(false));
        let noted = gave_up_on_standby.clone();
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notice(notice) = message
                    && notice.routine() == Some(GAVE_UP_ON_STANDBY)
                {
                    noted.store(true, Ordering::Release);
                }
            }
        });
        Ok(Self { client, database: database.clone(), prepared: Mutex::default(), gave_up_on_standby, task })
    }

    /// Runs a statement, prepared at its first use, and returns its rows.
    pub(super) async fn query(&self, verb: Verb, parameters: Parameters<'_>) -> Result<Vec<Row>, Error> {
        let statement = self.prepare(verb).await?;
        self.client.query(&statement, parameters).await
    }

    /// Runs two statements in one transaction and returns the rows of the first. They are sent together; where the first
    /// fails, the server refuses the second and rolls back.
    pub(super) async fn query_two(&self, statements: [(Verb, Parameters<'_>); 2]) -> Result<Vec<Row>, Error> {
        let [(first, of_first), (second, of_second)] = statements;
        let (prepared, then) = (self.prepare(first).await?, self.prepare(second).await?);
        let (begun, rows, done, committed) = tokio::join!(
            self.client.batch_execute("BEGIN"),
            self.client.query(&prepared, of_first),
            self.client.query(&then, of_second),
            self.client.batch_execute("COMMIT"),
        );
        begun?;
        let rows = rows?;
        done?;
        committed?;
        Ok(rows)
    }

    /// Runs a batch and returns its rows: inserts and updates are sent together and committed in one transaction.
    pub(super) async fn query_batch(&self, inserts: &[&Swap], updates: &[&Swap]) -> Result<Vec<Row>, Error> {
        let changed = |swap: &&&Swap| swap.with.request != Request::Keep;
        let requests: Vec<&Swap> = inserts.iter().chain(updates).filter(changed).copied().collect();
        if !requests.is_empty() {
            return self.query_with_requests(inserts, updates, &requests).await;
        }
        if updates.is_empty() {
            return self.query_many(Verb::InsertMany, inserts).await;
        }
        if inserts.is_empty() {
            return self.query_many(Verb::UpdateMany, updates).await;
        }
        for verb in [Verb::InsertMany, Verb::UpdateMany] {
            self.prepare(verb).await?;
        }
        let (begun, inserted, updated, committed) = tokio::join!(
            self.client.batch_execute("BEGIN"),
            self.query_many(Verb::InsertMany, inserts),
            self.query_many(Verb::UpdateMany, updates),
            self.client.batch_execute("COMMIT"),
        );
        begun?;
        let mut rows = inserted?;
        rows.extend(updated?);
        committed?;
        Ok(rows)
    }

    /// The same, with what becomes of the requests of accepted work. Those of swaps that are lost stay as they are: a request
    /// is changed where its record has the revision of its swap.
    async fn query_with_requests(
        &self,
        inserts: &[&Swap],
        updates: &[&Swap],
        requests: &[&Swap],
    ) -> Result<Vec<Row>, Error> {
        for verb in [Verb::InsertMany, Verb::UpdateMany, Verb::PutRequests, Verb::DropRequests] {
            self.prepare(verb).await?;
        }
        let (begun, inserted, updated, put, dropped, committed) = tokio::join!(
            self.client.batch_execute("BEGIN"),
            self.query_many(Verb::InsertMany, inserts),
            self.query_many(Verb::UpdateMany, updates),
            self.put_requests(requests),
            self.drop_requests(requests),
            self.client.batch_execute("COMMIT"),
        );
        begun?;
        let mut rows = inserted?;
        rows.extend(updated?);
        put?;
        dropped?;
        committed?;
        Ok(rows)
    }

    async fn put_requests(&self, swaps: &[&Swap]) -> Result<(), Error> {
        let (mut ids, mut revisions, mut requests, mut keys) = (vec![], vec![], vec![], vec![]);
        for swap in swaps {
            if let Request::Put(request) = &swap.with.request {
                ids.push(&swap.id.0[..]);
                revisions.push(swap.revision);
                requests.push(&request[..]);
                keys.push(swap.sealing.as_deref().and_then(Sealing::request_key));
            }
        }
        if ids.is_empty() {
            return Ok(());
        }
        self.query(Verb::PutRequests, &[&ids, &revisions, &requests, &keys]).await.map(drop)
    }

    async fn drop_requests(&self, swaps: &[&Swap]) -> Result<(), Error> {
        let dropped = swaps.iter().filter(|swap| swap.with.request == Request::Drop);
        let (ids, revisions): (Vec<_>, Vec<_>) = dropped.map(|swap| (&swap.id.0[..], swap.revision)).unzip();
        if ids.is_empty() {
            return Ok(());
        }
        self.query(Verb::DropRequests, &[&ids, &revisions]).await.map(drop)
    }

    async fn query_many(&self, verb: Verb, swaps: &[&Swap]) -> Result<Vec<Row>, Error> {
        if swaps.is_empty() {
            return Ok(Vec::new());
        }
        let statement = self.prepare(verb).await?;
        let values: Vec<_> = swaps.iter().map(|swap| Values::of(swap)).collect();
        let rows: Vec<_> = values.iter().map(Values::parameters).collect();
        let columns: Vec<Vec<_>> = (0..statement.params().len())
            .map(|column| rows.iter().map(|row| row[column]).collect())
            .collect();
        let parameters: Vec<_> = columns.iter().map(|column| column as &(dyn ToSql + Sync)).collect();
        self.client.query(&statement, &parameters).await
    }

    /// The prepared statement on this connection.
    pub(super) async fn prepare(&self, verb: Verb) -> Result<Statement, Error> {
        if let Some(statement) = self.prepared().get(&verb) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&verb.sql(&self.database.quoted_schema())).await?;
        self.prepared().insert(verb, statement.clone());
        Ok(statement)
    }

    fn prepared(&self) -> std::sync::MutexGuard<'_, HashMap<Verb, Statement>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn simple_query(&self, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        self.client.simple_query(sql).await
    }

    /// False if the connection is known to be closed, or is in doubt.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.is_in_doubt()
    }

    /// The server has warned on this connection that it did not wait for its standby.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.gave_up_on_standby.load(Ordering::Acquire)
    }
}

impl Drop for Connection {
    /// Statements still in flight have no waiting caller.
    fn drop(&mut self) {
        self.task.abort();
    }
}
