//! Connections of one kind, kept while nobody needs them, and the one that batches share.
//!
//! A pool of our own, since three things must stay with a connection that `deadpool-postgres` does not keep there: whether the
//! server has said on it that a commit is in doubt, that whoever gave up waiting for an answer leaves it unusable (a
//! pool that takes connections back when they are dropped would hand it to the next one), and that one is shared by
//! several batches. What is left for a pool to do is a semaphore and a list.
//!
//! ```text
//!   we       ──A──B────────────────C──────────►      the pipeline: a batch is sent while the one before is executed
//!   server     [ A ][commit][ B ][commit][ C ]
//!   we       ◄─────────────a─────────────b─────
//! ```
//!
//! 1. A connection goes back only after a whole answer. One that met a time-out, lost its server or is in doubt is closed. So
//!    is the pipeline, once the batches that are under way on it have ended: none that comes later is sent there.
//! 2. Nothing waits for ever: a place, a connection and an answer are waited for together, for one span.
//! 3. Every connection is asked when it is made whether its server takes writes. `synchronous_commit=off` is lifted to
//!    `on` there: nothing is acknowledged that a crash of the server could take back. Whether it has a standby that
//!    confirms commits is asked too.

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

/// The oldest server that knows all we say.
const SERVER_MIN: u32 = 13_00_00;
/// How much longer than the server is allowed to work we wait for its answer.
const GRACE: Duration = Duration::from_secs(1);
/// How often a deadlock or a failed serialization is tried again.
const RETRIES_MAX: u32 = 5;
/// The pause before that, the first time; each next one is twice as long.
const PAUSE: Duration = Duration::from_millis(2);

/// What the connections of a pool are for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// The most connections.
    pub(super) connections: usize,
    /// How long the server may work on a statement.
    pub(super) statement: Duration,
    /// How long a statement may wait for a lock.
    pub(super) lock: Duration,
    /// How the server plans.
    pub(super) plans: Plans,
}

/// How the server plans statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plans {
    /// By the index, always: each statement touches rows by their ids. A table that is small when a plan is made and
    /// large when it is used again must not be read as a whole.
    ByIndex,
    /// As the server thinks best, each time anew.
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
    /// Where batches go, once there was one.
    pipeline: Mutex<Option<Arc<Connection>>>,
}

/// What is asked of the server.
#[derive(Clone, Copy)]
pub(super) enum Asked<'a> {
    /// A statement, on a connection of its own.
    Statement(Verb, Parameters<'a>),
    /// A record and its messages, which are one transaction.
    WithMessages(&'a Swap),
    /// A batch, on the pipeline. Its inserts and its updates each come in the order of ids.
    Batch { inserts: &'a [&'a Swap], updates: &'a [&'a Swap] },
}

/// A connection in use, and its place.
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

    /// The rows of a statement. It has been committed when they come.
    pub(super) async fn query(&self, verb: Verb, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        self.ask_in_time(Asked::Statement(verb, parameters)).await
    }

    /// The same for what writes: it is sent again where it met another transaction, since nothing of it was written.
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

    /// An answer, or that there was none in time.
    async fn ask_in_time(&self, asked: Asked<'_>) -> Result<Vec<Row>, Failure> {
        timeout(self.patience, self.ask(asked)).await.unwrap_or_else(|_| {
            self.doubts.lost();
            // It may still be under way there.
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
            Asked::WithMessages(swap) => {
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

    /// What an answer says. Where nobody knows, none of the connections that are kept is used again: what happened to this one
    /// has likely happened to the others.
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
                    "the standby did not confirm the commit in time; see that it runs and can be reached";
                return Err(Failure::doubt(&self.database, what));
            }
            Ok(_) | Err(_) => {}
        }
        answer
    }

    /// The same for a connection of the pool, which goes back where it can be used again.
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

    /// The pipeline, or a new one where it cannot be used any more. Where two batches make one at once, the second is kept.
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

    /// Nothing that comes later is sent on any of these. What is under way on the pipeline ends there.
    fn close_kept(&self) {
        self.idle().clear();
        *self.kept_pipeline() = None;
    }

    /// A connection of this kind, ready: for whoever needs one of its own. Of several hosts, to the first that takes writes.
    pub(super) async fn connect(&self) -> Result<Connection, Failure> {
        let (count, first) = (self.configs.len(), self.database.last.load(Ordering::Relaxed));
        let mut failed = None;
        for number in (first..count).chain(0..first) {
            // Whoever waits may give up before a silent host does: the next one begins with another.
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
        // The others are to the same server, and would still be answered: part of the looks would succeed.
        self.close_kept();
        let remedy = "point the URL at the primary, or name all hosts in it";
        Err(Failure::refused(ErrorKind::Unavailable, format!("PostgreSQL at {shown} {trouble}; {remedy}")))
    }
}

impl Tuning {
    /// As settings of the session, sent when it begins.
    fn options(&self) -> String {
        let (statement, lock) = (self.statement.as_millis(), self.lock.as_millis());
        let plans = match self.plans {
            Plans::ByIndex => {
                "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off \
                 -c plan_cache_mode=force_generic_plan"
            }
            Plans::Anew => "-c plan_cache_mode=force_custom_plan",
        };
        format!(
            "-c statement_timeout={statement} -c lock_timeout={lock} -c jit=off \
             -c idle_in_transaction_session_timeout={statement} -c timezone=UTC \
             -c default_transaction_isolation=read\\ committed {plans}"
        )
    }
}
