//! An engine with a server, and a clock that a case can move.
//!
//! The clock is the server's. On PostgreSQL the schema of a case has its own `clock_timestamp()` and `statement_timestamp()`, which the
//! statements find first and which are ahead by the case's offset; on MySQL and Redis the engine adds that offset. The engine has its own
//! runtime: a case moves the clock of its runtime too, which must not trigger the engine's time-outs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onlyonce::store::postgres::{Options, Postgres};
use onlyonce::store::{
    Alive, Audit, Change, Count, EpochSeen, Error, Outbox, Page, Promises, Query, Store, Swapped, audit,
};
use onlyonce_core::record::{Id, Seen, StateName};
use onlyonce_testkit::engines::postgres::Server;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

use super::store::MovedClock;

pub(crate) struct Moved {
    inner: Arc<Inner>,
    runtime: Option<Runtime>,
}

struct Inner {
    store: Box<dyn Store>,
    clock: MovedClock,
    ahead: Ahead,
}

/// How the clock is moved.
enum Ahead {
    /// In this schema; the offset last set there.
    Postgres(String, Mutex<(Client, i64)>),
    /// What the engine adds, in microseconds.
    #[cfg(any(feature = "mysql", feature = "redis"))]
    Added(Arc<std::sync::atomic::AtomicI64>),
}

impl Moved {
    /// PostgreSQL, in a schema of its own.
    pub(crate) async fn postgres(clock: &MovedClock) -> Self {
        let server = Server::shared();
        let schema = server.fresh_name();
        server.sql(&format!(
            "CREATE SCHEMA {schema};
             CREATE TABLE {schema}.ahead (micros bigint NOT NULL);
             INSERT INTO {schema}.ahead VALUES (0);
             CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
             $$ SELECT pg_catalog.clock_timestamp() + (SELECT micros FROM {schema}.ahead) * interval '1 microsecond' $$;
             CREATE FUNCTION {schema}.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
             $$ SELECT pg_catalog.statement_timestamp() + (SELECT micros FROM {schema}.ahead) * interval '1 microsecond' $$"
        ));
        let url = server.url("postgres");
        let options = format!("options=-c%20search_path%3D{schema}%2Cpg_catalog");
        let store_url = format!("{url}?schema={schema}&{options}");
        let clock = clock.clone();
        Self::on_a_runtime(async move {
            let store =
                Postgres::open(&store_url, Options::default()).await.expect("a new schema can be opened");
            store.prepare().await.expect("a new schema can be prepared");
            let (client, connection) =
                tokio_postgres::connect(&url, NoTls).await.expect("the server is there");
            tokio::spawn(connection);
            Inner { store: Box::new(store), clock, ahead: Ahead::Postgres(schema, Mutex::new((client, 0))) }
        })
        .await
    }

    /// MySQL, in a database of its own.
    #[cfg(feature = "mysql")]
    pub(crate) async fn mysql(clock: &MovedClock) -> Self {
        use onlyonce::store::mysql::{Mysql, Options};
        let server = onlyonce_testkit::engines::mariadb::Server::shared();
        let url = server.url(&server.fresh_database());
        let clock = clock.clone();
        Self::on_a_runtime(async move {
            let options = Options::default();
            let ahead = options.ahead.clone();
            let store = Mysql::open(&url, options).await.expect("a new database can be opened");
            store.prepare().await.expect("a new database can be prepared");
            Inner { store: Box::new(store), clock, ahead: Ahead::Added(ahead) }
        })
        .await
    }

    /// Redis, in a prefix of its own.
    #[cfg(feature = "redis")]
    pub(crate) async fn redis(clock: &MovedClock) -> Self {
        use onlyonce::store::redis::{Options, Redis};
        let url = onlyonce_testkit::engines::redis::Server::shared().fresh_prefix();
        let clock = clock.clone();
        Self::on_a_runtime(async move {
            let options = Options::default();
            let ahead = options.ahead.clone();
            let store = Redis::open(&url, options).await.expect("a new prefix can be opened");
            store.prepare().await.expect("a new prefix can be prepared");
            Inner { store: Box::new(store), clock, ahead: Ahead::Added(ahead) }
        })
        .await
    }

    async fn on_a_runtime(open: impl Future<Output = Inner> + Send + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime for the engine");
        let opening = runtime.spawn(open);
        Self { inner: Arc::new(opening.await.expect("opening ends")), runtime: Some(runtime) }
    }

    /// Runs a call on the engine's runtime, after setting its clock.
    async fn call<R, F>(&self, call: impl FnOnce(Arc<Inner>) -> F + Send + 'static) -> Result<R, Error>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, Error>> + Send,
    {
        let inner = self.inner.clone();
        let runtime = self.runtime.as_ref().expect("it is taken only when all ends");
        let calling = runtime.spawn(async move {
            inner.keep_time().await;
            call(inner).await
        });
        calling.await.expect("a call ends")
    }
}

impl Inner {
    async fn keep_time(&self) {
        let moved = self.clock.moved();
        match &self.ahead {
            Ahead::Postgres(schema, ahead) => {
                let mut ahead = ahead.lock().await;
                if ahead.1 < moved {
                    let sql = format!("UPDATE {schema}.ahead SET micros = {moved}");
                    ahead.0.batch_execute(&sql).await.expect("the clock can be moved");
                    ahead.1 = moved;
                }
            }
            #[cfg(any(feature = "mysql", feature = "redis"))]
            Ahead::Added(ahead) => ahead.store(moved, std::sync::atomic::Ordering::Release),
        }
    }
}

#[async_trait]
impl Store for Moved {
    async fn prepare(&self) -> Result<(), Error> {
        self.call(|inner| async move { inner.store.prepare().await }).await
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.call(move |inner| async move { inner.store.load(id).await }).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.call(move |inner| async move { inner.store.swap(id, change).await }).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.call(move |inner| async move { inner.store.scan(query).await }).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.call(move |inner| async move { inner.store.reap(limit).await }).await
    }

    async fn results(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Vec<onlyonce::store::result::PhaseResult>, Error> {
        self.call(move |inner| async move { inner.store.results(id, used_at).await }).await
    }

    async fn request(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Option<bytes::Bytes>, Error> {
        self.call(move |inner| async move { inner.store.request(id, used_at).await }).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.call(move |inner| async move { inner.store.requests(limit).await }).await
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        self.call(move |inner| async move { inner.store.count_alive(scope, limit).await }).await
    }

    async fn prepare_counting(&self) -> Result<(), Error> {
        self.call(|inner| async move { inner.store.prepare_counting().await }).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.call(|inner| async move { inner.store.count().await }).await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        self.call(|inner| async move { inner.store.epoch().await }).await
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.call(|inner| async move { inner.store.raise_epoch().await }).await
    }

    fn promises(&self) -> Promises {
        self.inner.store.promises()
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.call(move |inner| async move { inner.store.erase(scope, limit).await }).await
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        None
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

#[async_trait]
impl Audit for Moved {
    async fn write(&self, entry: audit::Entry) -> Result<(), Error> {
        self.call(move |inner| async move { inner.store.audit().write(entry).await }).await
    }

    async fn list(&self, query: audit::Query) -> Result<audit::Page, Error> {
        self.call(move |inner| async move { inner.store.audit().list(query).await }).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        self.call(move |inner| async move { inner.store.audit().prune(age, limit).await }).await
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moved").field("store", &self.inner.store).finish_non_exhaustive()
    }
}
