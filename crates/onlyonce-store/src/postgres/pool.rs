//! A pool of connections with the same settings, and the connection that batches share.
//!
//! A pool of our own, since `deadpool-postgres` does not do three things: keep with a connection that the server has put a
//! commit on it in doubt; discard a connection whose answer was not awaited (a pool that takes connections back on drop would
//! hand it to the next caller); share one connection among several batches. The rest is a semaphore and a list.
//!
//! ```text
//!   client   ──A──B────────────────C──────────►      the pipeline: a batch is sent while the one before is executed
//!   server     [ A ][commit][ B ][commit][ C ]
//!   client   ◄─────────────a─────────────b─────
//! ```
//!
//! 1. A connection goes back to the pool only after a complete answer. After a time-out, a lost server or a doubt it is
//!    closed. So is the pipeline, once the batches in flight on it have ended; no later batch is sent on it.
//! 2. Nothing waits for ever: one time-out covers waiting for a slot, connecting and the answer.
//! 3. Each new connection checks that its server accepts writes, and whether a standby confirms commits. It raises
//!    `synchronous_commit=off` to `on`: nothing is acknowledged that a crash of the server could undo.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_postgres::{Config, Row, SimpleQueryMessage};

use super::connection::{Connection, Parameters};
use super::doubt::Doubts;
use super::failure::{Failure, Left};
use super::row::Swap;
use super::statement::Verb;
use super::url::Database;
use super::write;
use crate::{ErrorKind, failpoint};

/// The oldest server version that supports our statements.
const SERVER_MIN: u32 = 13_00_00;
/// How much longer than the server's statement time-out we wait for an answer.
const GRACE: Duration = Duration::from_secs(1);
/// How often a deadlock or a serialization failure is retried.
const RETRIES_MAX: u32 = 5;
/// The pause before the first retry; it doubles each time.
const PAUSE: Duration = Duration::from_millis(2);

/// The session settings of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// The most connections.
    pub(super) connections: usize,
    /// The statement time-out.
    pub(super) statement: Duration,
    /// The lock time-out.
    pub(super) lock: Duration,
    /// How the server plans.
    pub(super) plans: Plans,
}

/// How the server plans statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plans {
    /// Always by index: each statement touches rows by id. A plan made while the table is small must not scan the table
    /// once it has grown.
    ByIndex,
    /// By index, planned at each execution: some statements touch few rows or many, by their parameters.
    Anew,
}

/// Connections of one kind; see the module's documentation.
pub(super) struct Pool {
    database: Arc<Database>,
    pub(super) doubts: Arc<Doubts>,
    /// For each host.
    configs: Vec<Config>,
    patience: Duration,
    places: Semaphore,
    idle: Mutex<Vec<Connection>>,
    /// The connection for batches, once there is one.
    pipeline: Mutex<Option<Arc<Connection>>>,
}

/// What is sent to the server.
#[derive(Clone, Copy)]
pub(super) enum Asked<'a> {
    /// A statement, on a connection from the pool.
    Statement(Verb, Parameters<'a>),
    /// Two statements in one transaction, sent together; the rows of the first.
    Two([(Verb, Parameters<'a>); 2]),
    /// A record and what is attached to it, in one transaction.
    WithAttached(&'a Swap),
    /// A batch, on the pipeline. Inserts and updates are each sorted by id.
    Batch { inserts: &'a [&'a Swap], updates: &'a [&'a Swap] },
}

/// A connection in use, and its slot.
struct Taken<'a> {
    connection: Connection,
    _place: SemaphorePermit<'a>,
}

impl Pool {
    pub(super) fn new(database: &Arc<Database>, doubts: &Arc<Doubts>, tuning: Tuning) -> Self {
        let mut configs = database.hosts.clone();
        for config in &mut configs {
            let said = config.get_options().unwrap_or_default();
            config.options(format!("{said} {}", tuning.options()));
        }
        Self {
            database: database.clone(),
            doubts: doubts.clone(),
            configs,
            patience: tuning.statement.saturating_add(GRACE),
            places: Semaphore::new(tuning.connections.max(1)),
            idle: Mutex::default(),
            pipeline: Mutex::default(),
        }
    }

    /// Runs a statement and returns its rows. It is committed by then.
    pub(super) async fn query(&self, verb: Verb, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        self.ask_in_time(Asked::Statement(verb, parameters)).await
    }

    /// The same for a write: retried after a conflict with another transaction, since nothing was written.
    pub(super) async fn write(&self, asked: Asked<'_>) -> Result<Vec<Row>, Failure> {
        let mut pause = PAUSE;
        for _ in 0..RETRIES_MAX {
            failpoint!("postgres.write.before");
            let answer = self.ask_in_time(asked).await;
            failpoint!("postgres.write.after");
            match answer {
                Err(failure) if failure.left == Left::Again => {}
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.ask_in_time(asked).await
    }

    /// An answer, or a time-out.
    async fn ask_in_time(&self, asked: Asked<'_>) -> Result<Vec<Row>, Failure> {
        timeout(self.patience, self.ask(asked)).await.unwrap_or_else(|_| {
            self.doubts.lost();
            // The batch may still be in flight there.
            *self.kept_pipeline() = None;
            Err(Failure::late(&self.database, self.patience))
        })
    }

    async fn ask(&self, asked: Asked<'_>) -> Result<Vec<Row>, Failure> {
        match asked {
            Asked::Statement(verb, parameters) => {
                let taken = self.take().await?;
                let answer = taken.connection.query(verb, parameters).await;
                self.finish(taken, answer)
            }
            Asked::Two(statements) => {
                let taken = self.take().await?;
                let answer = taken.connection.query_two(statements).await;
                self.finish(taken, answer)
            }
            Asked::WithAttached(swap) => {
                let mut taken = self.take().await?;
                let answer = write::in_own_transaction(&mut taken.connection, swap).await;
                self.finish(taken, answer)
            }
            Asked::Batch { inserts, updates } => {
                let pipeline = self.pipeline().await.map_err(Failure::before_sending)?;
                let answer = pipeline.query_batch(inserts, updates).await;
                self.judge(answer, &pipeline)
            }
        }
    }

    /// Judges an answer. If the outcome is unknown, all kept connections are discarded: they likely have the same
    /// problem.
    fn judge<T>(
        &self,
        answer: Result<T, tokio_postgres::Error>,
        connection: &Connection,
    ) -> Result<T, Failure> {
        let answer = answer.map_err(|error| Failure::of(&self.database, &error));
        match &answer {
            Err(failure) if failure.left == Left::Doubt => {
                self.doubts.lost();
                self.close_kept();
            }
            Ok(_) if connection.is_in_doubt() => {
                self.doubts.raise();
                let what =
                    "the standby did not confirm the commit in time; check that it runs and can be reached";
                return Err(Failure::doubt(&self.database, what));
            }
            Ok(_) | Err(_) => {}
        }
        answer
    }

    /// The same for a connection of the pool, which goes back if it is usable.
    fn finish<T>(&self, taken: Taken<'_>, answer: Result<T, tokio_postgres::Error>) -> Result<T, Failure> {
        let answer = self.judge(answer, &taken.connection);
        let is_whole = answer.as_ref().map_or_else(|failure| failure.left != Left::Doubt, |_| true);
        if is_whole && taken.connection.is_usable() {
            self.idle().push(taken.connection);
        }
        answer
    }

    async fn take(&self) -> Result<Taken<'_>, Failure> {
        let place = self.places.acquire().await.expect("the places are never closed");
        let kept = || self.idle().pop();
        while let Some(connection) = kept() {
            if connection.is_usable() {
                return Ok(Taken { connection, _place: place });
            }
        }
        let connection = self.connect().await.map_err(Failure::before_sending)?;
        Ok(Taken { connection, _place: place })
    }

    /// The pipeline, or a new one if it is unusable. If two batches connect at once, the second connection is kept.
    async fn pipeline(&self) -> Result<Arc<Connection>, Failure> {
        let kept = self.kept_pipeline().clone();
        if let Some(pipeline) = kept.filter(|pipeline| pipeline.is_usable()) {
            return Ok(pipeline);
        }
        let pipeline = Arc::new(self.connect().await?);
        *self.kept_pipeline() = Some(pipeline.clone());
        Ok(pipeline)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept_pipeline(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.pipeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discards the kept connections. Batches in flight on the pipeline still end there.
    fn close_kept(&self) {
        self.idle().clear();
        *self.kept_pipeline() = None;
    }

    /// A new connection with this pool's settings. Of several hosts, to the first that accepts writes.
    pub(super) async fn connect(&self) -> Result<Connection, Failure> {
        let (count, first) = (self.configs.len(), self.database.last.load(Ordering::Relaxed));
        let mut failed = None;
        for number in (first..count).chain(0..first) {
            // The caller may time out before a silent host does: the next caller starts with another host.
            self.database.last.store((number + 1) % count, Ordering::Relaxed);
            match self.connect_to(&self.configs[number]).await {
                Ok(connection) => {
                    self.database.last.store(number, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(failure) => failed = Some(failure),
            }
        }
        Err(failed.expect("a URL names a host, or it is refused"))
    }

    async fn connect_to(&self, config: &Config) -> Result<Connection, Failure> {
        let within = self.database.connects_within();
        let connecting = async {
            let connection = Connection::open(&self.database, config).await;
            let connection = connection.map_err(|error| Failure::of(&self.database, &error))?;
            self.set_up(&connection).await?;
            Ok(connection)
        };
        timeout(within, connecting).await.unwrap_or_else(|_| Err(Failure::late(&self.database, within)))
    }

    async fn set_up(&self, connection: &Connection) -> Result<(), Failure> {
        const SQL: &str = "
            SELECT current_setting('server_version_num'),
                   pg_is_in_recovery()::text,
                   current_setting('transaction_read_only'),
                   set_config('synchronous_commit',
                              CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                   ELSE current_setting('synchronous_commit') END, false),
                   current_setting('synchronous_standby_names', true)";
        let answer =
            connection.simple_query(SQL).await.map_err(|error| Failure::of(&self.database, &error))?;
        let row = answer
            .iter()
            .find_map(|message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None });
        let told = |column| row.and_then(|row| row.get(column)).unwrap_or_default();
        let shown = &self.database.shown;
        let version = told(0).parse::<u32>().unwrap_or(0);
        if version < SERVER_MIN {
            let message = format!(
                "PostgreSQL at {shown} is of version \"{}\"; use {} or newer",
                version / 10_000,
                SERVER_MIN / 10_000
            );
            return Err(Failure::refused(ErrorKind::Misconfigured, message));
        }
        let trouble = match (told(1), told(2)) {
            ("true", _) => "is in recovery: it is a standby, or still starting",
            (_, "on") => "is read-only",
            _ => {
                self.doubts.connected(!told(4).is_empty());
                return Ok(());
            }
        };
        // The other connections lead to the same server and would still serve reads: some requests would succeed, some not.
        self.close_kept();
        let remedy = "use the primary's URL, or list all hosts in it";
        Err(Failure::refused(ErrorKind::Unavailable, format!("PostgreSQL at {shown} {trouble}; {remedy}")))
    }
}

impl Tuning {
    /// Session settings, sent at connect.
    fn options(&self) -> String {
        let (statement, lock) = (self.statement.as_millis(), self.lock.as_millis());
        let plans = match self.plans {
            Plans::ByIndex => {
                "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off \
                 -c plan_cache_mode=force_generic_plan"
            }
            Plans::Anew => "-c enable_seqscan=off -c plan_cache_mode=force_custom_plan",
        };
        format!(
            "-c statement_timeout={statement} -c lock_timeout={lock} -c jit=off \
             -c idle_in_transaction_session_timeout={statement} -c timezone=UTC \
             -c default_transaction_isolation=read\\ committed {plans}"
        )
    }
}
