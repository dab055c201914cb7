//! A pool of connections with the same settings.
//!
//! A pool of our own, since that of `mysql_async` waits for ever for a silent server, hands out connections that the server
//! has closed meanwhile, and knows nothing of several hosts of which one takes writes. The rest is a semaphore and a list.
//!
//! 1. A connection goes back to the pool only after a complete answer, outside a transaction. Otherwise it is closed: what was
//!    not committed is rolled back.
//! 2. Nothing waits for ever: one time-out covers waiting for a slot, connecting and the answer.
//! 3. Each new connection checks that its server accepts writes, and sets what a session needs. It is kept for as long as the
//!    server keeps it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, Row, Value};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::failure::{self, Failure, Left};
use super::url::Database;
use crate::{ErrorKind, failpoint};

/// The oldest servers that have what our statements use: `SKIP LOCKED`, `JSON_TABLE`, defaults that are expressions.
const MARIADB_MIN: (u16, u16, u16) = (10, 6, 0);
const MYSQL_MIN: (u16, u16, u16) = (8, 0, 19);
/// How much longer than the server's statement time-out we wait for an answer.
const GRACE: Duration = Duration::from_secs(1);
/// How often a deadlock is retried.
const RETRIES_MAX: u32 = 5;
/// The pause before the first retry; it doubles each time.
const PAUSE: Duration = Duration::from_millis(2);
/// A connection that was idle for so long is asked whether it is still there: its server may have been restarted.
const ASKED_AFTER: Duration = Duration::from_millis(100);
/// How long closing a connection may take.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);
/// The server closes no connection that is idle for less than a year: the greatest value that it takes.
const IDLE_SECONDS_MAX: u32 = 31_536_000;

/// The session settings of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// The most connections.
    pub(super) connections: usize,
    /// How long the server may work on a statement.
    pub(super) statement: Duration,
    /// How long a statement waits for a row lock: whole seconds. Of MySQL at least one.
    pub(super) lock: Duration,
    /// When what a statement wrote is committed.
    pub(super) commits: Commits,
}

/// When what a statement wrote is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commits {
    /// With the statement, outside a transaction.
    AtOnce,
    /// By a statement of its own: every piece of work ends with a commit.
    AtTheEnd,
}

/// Something that is done on one connection: a statement, or a transaction from its beginning to its commit.
pub(super) trait Work: Sync {
    /// What it returns.
    type Answer: Send;

    /// Does it. It may be done again after a deadlock.
    fn run(&self, connection: &mut Conn) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

/// A statement and its values.
#[derive(Clone, Debug)]
pub(super) struct Statement<'a> {
    pub(super) sql: &'a str,
    pub(super) values: Vec<Value>,
}

/// What a statement returned.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// How many rows it changed.
    pub(super) changed: u64,
    /// What it gave to `LAST_INSERT_ID`.
    pub(super) stamp: Option<i64>,
}

impl Work for Statement<'_> {
    type Answer = Answer;

    async fn run(&self, connection: &mut Conn) -> Result<Answer, Error> {
        ask(connection, self.sql, self.values.clone()).await
    }
}

/// Runs a statement, prepared at its first use on this connection.
pub(super) async fn ask(connection: &mut Conn, sql: &str, values: Vec<Value>) -> Result<Answer, Error> {
    let mut result = connection.exec_iter(sql, values).await?;
    let changed = result.affected_rows();
    let stamp = result.last_insert_id().and_then(|stamp| i64::try_from(stamp).ok());
    let rows = result.collect().await?;
    result.drop_result().await?;
    Ok(Answer { rows, changed, stamp })
}

pub(super) async fn begin(connection: &mut Conn) -> Result<(), Error> {
    connection.query_drop("START TRANSACTION").await
}

/// A commit that the server did not confirm may have happened, unless it lost to another transaction.
pub(super) async fn commit(connection: &mut Conn) -> Result<(), Error> {
    let committed = connection.query_drop("COMMIT").await;
    committed.map_err(|error| match failure::code(&error) {
        Some(failure::DEADLOCK) | None => error,
        Some(_) => Error::Other(Box::new(error)),
    })
}

pub(super) async fn roll_back(connection: &mut Conn) -> Result<(), Error> {
    connection.query_drop("ROLLBACK").await
}

/// Connections of one kind; see the module's documentation.
pub(super) struct Pool {
    pub(super) database: Arc<Database>,
    tuning: Tuning,
    patience: Duration,
    places: Semaphore,
    idle: Mutex<Vec<Idle>>,
    /// By how many microseconds a test has moved the clock.
    ahead: Arc<AtomicI64>,
}

struct Idle {
    connection: Conn,
    since: Instant,
}

/// A connection in use, and its slot. It is closed unless it is given back.
struct Taken<'a> {
    connection: Option<Conn>,
    pool: &'a Pool,
    _place: SemaphorePermit<'a>,
}

impl Pool {
    pub(super) fn new(database: &Arc<Database>, tuning: Tuning, ahead: &Arc<AtomicI64>) -> Self {
        Self {
            database: database.clone(),
            tuning,
            patience: tuning.statement.saturating_add(GRACE),
            places: Semaphore::new(tuning.connections.max(1)),
            idle: Mutex::default(),
            ahead: ahead.clone(),
        }
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn query(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Failure> {
        Ok(self.once(&Statement { sql, values }).await?.rows)
    }

    /// Does something that writes: again after a deadlock, since nothing was written. It is committed when this returns.
    pub(super) async fn write<W: Work>(&self, work: &W) -> Result<W::Answer, Failure> {
        let mut pause = PAUSE;
        for _ in 0..RETRIES_MAX {
            failpoint!("mysql.write.before");
            let answer = self.once(work).await;
            failpoint!("mysql.write.after");
            match answer {
                Err(failure) if failure.left == Left::Again => {}
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.once(work).await
    }

    /// A statement that writes; how many rows it changed.
    pub(super) async fn change(&self, sql: &str, values: Vec<Value>) -> Result<usize, Failure> {
        let answer = self.write(&Statement { sql, values }).await?;
        Ok(usize::try_from(answer.changed).unwrap_or(usize::MAX))
    }

    /// Does something once: an answer, or a time-out.
    pub(super) async fn once<W: Work>(&self, work: &W) -> Result<W::Answer, Failure> {
        let answer = timeout(self.patience, self.do_once(work)).await;
        answer.unwrap_or_else(|_| Err(failure::late(&self.database, self.patience)))
    }

    async fn do_once<W: Work>(&self, work: &W) -> Result<W::Answer, Failure> {
        let mut taken = self.take().await.map_err(Failure::before_sending)?;
        match self.run(work, taken.connection()).await {
            Ok(answer) => {
                taken.give_back();
                Ok(answer)
            }
            Err(error) => {
                let mut failure = failure::of(&self.database, &error);
                if failure.left == Left::Busy && !self.is_in_cluster(taken.connection()).await {
                    failure = failure::cut_off(&self.database);
                }
                if failure.left == Left::Doubt {
                    // The other connections likely have the same problem.
                    self.close_idle();
                } else if roll_back(taken.connection()).await.is_ok() {
                    taken.give_back();
                }
                Err(failure)
            }
        }
    }

    async fn run<W: Work>(&self, work: &W, connection: &mut Conn) -> Result<W::Answer, Error> {
        let ahead = self.ahead.load(Ordering::Relaxed);
        if ahead != 0 {
            // `SYSDATE` is the clock itself, which this setting does not move.
            let clock = format!("SET SESSION timestamp = UNIX_TIMESTAMP(SYSDATE(6)) + {ahead} / 1000000");
            connection.query_drop(clock).await?;
        }
        work.run(connection).await
    }

    async fn take(&self) -> Result<Taken<'_>, Failure> {
        let place = self.places.acquire().await.expect("the places are never closed");
        let mut taken = Taken { connection: None, pool: self, _place: place };
        let kept = || self.idle().pop();
        while let Some(Idle { connection, since }) = kept() {
            taken.connection = Some(connection);
            if since.elapsed() < ASKED_AFTER || taken.connection().ping().await.is_ok() {
                return Ok(taken);
            }
            taken.close();
        }
        taken.connection = Some(self.connect().await?);
        Ok(taken)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle());
        idle.into_iter().for_each(|idle| close(idle.connection));
    }

    /// A new connection with this pool's settings. Of several hosts, to the first that accepts writes.
    pub(super) async fn connect(&self) -> Result<Conn, Failure> {
        let database = &self.database;
        let (count, first) = (database.hosts.len(), database.last.load(Ordering::Relaxed));
        let mut failed = None;
        for number in (first..count).chain(0..first) {
            // The caller may time out before a silent host does: the next caller starts with another host.
            database.last.store((number + 1) % count, Ordering::Relaxed);
            match self.connect_to(&database.hosts[number]).await {
                Ok(connection) => {
                    database.last.store(number, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(failure) => failed = Some(failure),
            }
        }
        Err(failed.expect("a URL names a host, or it is refused"))
    }

    async fn connect_to(&self, options: &Opts) -> Result<Conn, Failure> {
        let within = self.database.connects_within();
        let failed = |error: Error| failure::of(&self.database, &error);
        let connecting = async {
            let mut connection = Conn::new(options.clone()).await.map_err(failed)?;
            let told: Option<(String, bool)> =
                connection.query_first("SELECT VERSION(), @@read_only").await.map_err(failed)?;
            let (version, is_read_only) = told.unwrap_or_default();
            let is_mariadb = version.contains("MariaDB");
            self.check(&connection, &version, is_mariadb, is_read_only)?;
            for setting in self.tuning.settings(is_mariadb) {
                connection.query_drop(setting).await.map_err(failed)?;
            }
            let is_galera = is_galera(&mut connection).await.map_err(failed)?;
            self.database.is_galera.store(is_galera, Ordering::Relaxed);
            if is_galera {
                connection.query_drop(SYNC_WAIT).await.map_err(failed)?;
                if !self.is_in_cluster(&mut connection).await {
                    self.close_idle();
                    return Err(failure::cut_off(&self.database));
                }
            }
            Ok(connection)
        };
        timeout(within, connecting).await.unwrap_or_else(|_| Err(failure::late(&self.database, within)))
    }

    /// Whether a node of a Galera cluster takes part in it. One that does not says to some statements that they waited for a lock
    /// for too long, and answers others as if nothing had happened.
    async fn is_in_cluster(&self, connection: &mut Conn) -> bool {
        if !self.database.is_galera.load(Ordering::Relaxed) {
            return true;
        }
        let told: Result<Option<(String, String)>, Error> =
            connection.query_first("SHOW GLOBAL STATUS LIKE 'wsrep_ready'").await;
        told.is_ok_and(|told| told.is_some_and(|(_, value)| value == "ON"))
    }

    fn check(
        &self,
        connection: &Conn,
        version: &str,
        is_mariadb: bool,
        is_read_only: bool,
    ) -> Result<(), Failure> {
        let shown = &self.database.shown;
        let (name, least) = if is_mariadb { ("MariaDB", MARIADB_MIN) } else { ("MySQL", MYSQL_MIN) };
        if connection.server_version() < least {
            let (major, minor, patch) = least;
            let message = format!(
                "{name} at {shown} is of version \"{version}\"; use {major}.{minor}.{patch} or newer"
            );
            return Err(Failure::refused(ErrorKind::Misconfigured, message));
        }
        if is_read_only {
            // The other connections lead to the same server and would still serve reads: some requests would succeed, some not.
            self.close_idle();
            let message =
                format!("{name} at {shown} is read-only; use the primary's URL, or list all hosts in it");
            return Err(Failure::refused(ErrorKind::Unavailable, message));
        }
        Ok(())
    }
}

/// On a node of a Galera cluster every statement waits until what other nodes have answered has arrived here: a look could miss
/// it, and the epoch too.
const SYNC_WAIT: &str = "SET SESSION wsrep_sync_wait = 7";

/// MySQL knows no such variable.
async fn is_galera(connection: &mut Conn) -> Result<bool, Error> {
    let told: Option<(String, String)> =
        connection.query_first("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").await?;
    Ok(told.is_some_and(|(_, value)| value == "ON"))
}

impl Tuning {
    /// Session settings, sent at connect. What is text to us is bytes to the server.
    fn settings(&self, is_mariadb: bool) -> [String; 3] {
        let lock = self.lock.as_secs().max(u64::from(!is_mariadb));
        let autocommit = u8::from(self.commits == Commits::AtOnce);
        let statement = match is_mariadb {
            true => format!("SET SESSION max_statement_time = {}", self.statement.as_secs_f64()),
            false => format!("SET SESSION max_execution_time = {}", self.statement.as_millis()),
        };
        let session = format!(
            "SET NAMES binary, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
             autocommit = {autocommit}, innodb_lock_wait_timeout = {lock}, lock_wait_timeout = {}, wait_timeout = {IDLE_SECONDS_MAX}",
            self.statement.as_secs().max(1)
        );
        [session, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(), statement]
    }
}

impl Taken<'_> {
    fn connection(&mut self) -> &mut Conn {
        self.connection.as_mut().expect("a connection that is taken is there until it is given back")
    }

    fn give_back(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.idle().push(Idle { connection, since: Instant::now() });
        }
    }

    fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            close(connection);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Says goodbye to the server, and waits only a moment for it: dropping a connection would wait for the answer that nobody
/// awaits any more, for ever where the server is silent.
fn close(connection: Conn) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(timeout(CLOSES_WITHIN, connection.disconnect()));
    }
}
