//! Connections of one kind, kept while nobody needs them.
//!
//! A pool of our own, since three things belong to a connection that no pool at hand keeps with it: the statements it
//! has prepared, whether the server has said on it that a commit is in doubt, and that whoever leaves in the middle of
//! an answer leaves it unusable.
//!
//! 1. A connection goes back only after a whole answer; a look that nobody needs any more may still be under way. One that
//!    was left in the middle, met a time-out or lost its server is closed. So is the line of the batches (`line.rs`), once
//!    those that are under way on it have ended: nobody who comes later is sent there.
//! 2. Nothing waits for ever: a place, a connection and an answer are waited for together, for one span.
//! 3. Every connection is asked when it is made whether its server takes writes. `synchronous_commit=off` is lifted to
//!    `on` there: nothing is acknowledged that a crash of the server could take back. Whether it has a standby that
//!    confirms commits is asked too.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onlyonce_core::record::Id;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, NoTls, Row, SimpleQueryMessage};

use super::care::{Care, Lately};
use super::connection::Connection;
use super::doubt::Doubts;
use super::failure::{Failure, Left};
use super::followed::Followed;
use super::line::Line;
use super::statement::{Statements, Verb};
use super::tried::Tried;
use super::url::Place;
use crate::timers::Timers;
use crate::{ErrorKind, failpoint};

/// The oldest server that knows all we say.
const SERVER_MIN: u32 = 13_00_00;
/// How much longer than the server is allowed to work we wait for its word.
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
    place: Arc<Place>,
    statements: Arc<Statements>,
    pub(super) doubts: Arc<Doubts>,
    /// For each host.
    configs: Vec<Config>,
    patience: Duration,
    timers: Timers,
    places: Semaphore,
    idle: Mutex<Vec<Connection>>,
    /// Where batches go, once there was one.
    line: Mutex<Option<Arc<Line>>>,
    /// Held by who makes a new line: the others wait for it.
    making: Semaphore,
    /// Rows that somebody holds.
    pub(super) held: Lately,
    /// Keys that are taken, among lone inserts.
    pub(super) taken: Lately,
    pub(super) tried: Tried,
    pub(super) followed: Arc<Followed>,
}

impl Pool {
    pub(super) fn new(
        place: &Arc<Place>,
        statements: &Arc<Statements>,
        doubts: &Arc<Doubts>,
        followed: &Arc<Followed>,
        tuning: Tuning,
    ) -> Self {
        let mut configs = place.hosts.clone();
        for config in &mut configs {
            let said = config.get_options().unwrap_or_default();
            config.options(format!("{said} {}", tuning.options()));
        }
        Self {
            place: place.clone(),
            statements: statements.clone(),
            doubts: doubts.clone(),
            configs,
            patience: tuning.statement.saturating_add(GRACE),
            timers: Timers::default(),
            places: Semaphore::new(tuning.connections.max(1)),
            idle: Mutex::default(),
            line: Mutex::default(),
            making: Semaphore::new(1),
            held: Lately::default(),
            taken: Lately::default(),
            tried: Tried::default(),
            followed: followed.clone(),
        }
    }

    /// The rows of a statement. It has been committed when they come.
    pub(super) async fn query(
        &self,
        verb: Verb,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        self.in_time(|| self.ask(verb, parameters, None)).await
    }

    /// The same for a statement that writes.
    pub(super) async fn write(
        &self,
        verb: Verb,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        self.written(|| self.query(verb, parameters)).await
    }

    /// The same for one that may be lost to what stands there: then that answers. In the same trip, where care is taken.
    pub(super) async fn write_or_look(
        &self,
        care: Care,
        verb: Verb,
        parameters: &[&(dyn ToSql + Sync)],
        id: Id,
    ) -> Result<Vec<Row>, Failure> {
        self.written(|| self.in_time(|| self.ask(verb, parameters, Some((id, care))))).await
    }

    /// The same for a batch of so many rows.
    pub(super) async fn write_batch(
        &self,
        care: Care,
        rows: usize,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        self.written(|| self.in_time(|| self.ask_on_line(care, rows, parameters))).await
    }

    /// Sent again where it met another transaction: nothing of it was written.
    async fn written<F>(&self, send: impl Fn() -> F) -> Result<Vec<Row>, Failure>
    where
        F: Future<Output = Result<Vec<Row>, Failure>>,
    {
        let mut pause = PAUSE;
        for _ in 0..RETRIES_MAX {
            failpoint!("postgres.write.before");
            let answer = send().await;
            failpoint!("postgres.write.after");
            match answer {
                Err(failure) if failure.left == Left::Again => {}
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        send().await
    }

    /// An answer, or that there was none in time.
    async fn in_time<F>(&self, ask: impl FnOnce() -> F) -> Result<Vec<Row>, Failure>
    where
        F: Future<Output = Result<Vec<Row>, Failure>>,
    {
        let late = || {
            self.doubts.lost();
            Failure::late(&self.place, self.patience)
        };
        self.timers.within(self.patience, ask).await.unwrap_or_else(|| Err(late()))
    }

    /// Where a statement has no row, and an id is given to look at: the row of that.
    async fn ask(
        &self,
        verb: Verb,
        parameters: &[&(dyn ToSql + Sync)],
        or_look: Option<(Id, Care)>,
    ) -> Result<Vec<Row>, Failure> {
        let _place = acquired(&self.places).await;
        let mut connection = self.take().await.map_err(Failure::before_sending)?;
        let answer = match or_look {
            None => connection.query(&self.statements, verb, parameters).await,
            Some((id, care)) => connection.query_or_look(care, &self.statements, verb, parameters, id).await,
        };
        let (answer, may_be_used) = self.judged(answer, connection.is_in_doubt());
        if may_be_used {
            self.give_back(connection);
        }
        answer
    }

    /// Sent behind what is under way on the line; or on a connection of its own, where it is much larger than that.
    async fn ask_on_line(
        &self,
        care: Care,
        rows: usize,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let line = self.line().await.map_err(Failure::before_sending)?;
        if line.is_small_beside(rows) {
            let verb = match care {
                Care::None => Verb::Batch,
                Care::Taken => Verb::CarefulBatch,
            };
            return self.ask(verb, parameters, None).await;
        }
        let mut asking = Asking { pool: self, line: &line, may_be_used: false };
        let answer = line.query(care, rows, parameters).await;
        let (answer, may_be_used) = self.judged(answer, line.is_in_doubt());
        asking.may_be_used = may_be_used;
        answer
    }

    /// What an answer says, and whether its connection may be used again.
    fn judged(
        &self,
        answer: Result<Vec<Row>, tokio_postgres::Error>,
        is_in_doubt: bool,
    ) -> (Result<Vec<Row>, Failure>, bool) {
        match answer.map_err(|error| Failure::of(&self.place, &error)) {
            Err(failure) if failure.left == Left::Doubt => {
                self.doubts.lost();
                // What happened to this one has likely happened to the others.
                self.close_kept();
                (Err(failure), false)
            }
            Ok(_) if is_in_doubt => {
                self.doubts.raise();
                let what =
                    "the standby did not confirm the commit in time; see that it runs and can be reached";
                (Err(Failure::doubt(&self.place, what)), false)
            }
            answer => (answer, !is_in_doubt),
        }
    }

    async fn take(&self) -> Result<Connection, Failure> {
        while let Some(mut connection) = self.idle_one() {
            if connection.is_open() {
                return Ok(connection);
            }
        }
        // Apart: hardly anybody has need of the room for it.
        Box::pin(self.connect()).await
    }

    fn idle_one(&self) -> Option<Connection> {
        self.idle().pop()
    }

    fn give_back(&self, connection: Connection) {
        self.idle().push(connection);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody who comes later is sent on any of these. What is under way on the line ends there.
    fn close_kept(&self) {
        self.idle().clear();
        *self.line_kept() = None;
    }

    /// The line, or a new one where it cannot be used any more.
    async fn line(&self) -> Result<Arc<Line>, Failure> {
        match self.usable_line() {
            Some(line) => Ok(line),
            // Apart: hardly anybody has need of the room for it.
            None => Box::pin(self.new_line()).await,
        }
    }

    async fn new_line(&self) -> Result<Arc<Line>, Failure> {
        let _alone = acquired(&self.making).await;
        if let Some(line) = self.usable_line() {
            return Ok(line);
        }
        let connection = self.connect().await?;
        let line = Line::new(connection, &self.statements).await;
        let line = Arc::new(line.map_err(|error| Failure::of(&self.place, &error))?);
        *self.line_kept() = Some(line.clone());
        Ok(line)
    }

    fn usable_line(&self) -> Option<Arc<Line>> {
        self.line_kept().clone().filter(|line| line.is_usable())
    }

    fn line_kept(&self) -> MutexGuard<'_, Option<Arc<Line>>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of this kind, ready: for whoever needs one of its own. Of several hosts, to the first that takes writes.
    pub(super) async fn connect(&self) -> Result<Connection, Failure> {
        let (count, first) = (self.configs.len(), self.place.last.load(Ordering::Relaxed));
        let mut failed = None;
        for number in (first..count).chain(0..first) {
            // Whoever waits may give up before a silent host does: the next one begins with another.
            self.place.last.store((number + 1) % count, Ordering::Relaxed);
            match self.connect_to(&self.configs[number]).await {
                Ok(connection) => {
                    self.place.last.store(number, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(failure) => failed = Some(failure),
            }
        }
        Err(failed.expect("a URL names a host, or it is refused"))
    }

    async fn connect_to(&self, config: &Config) -> Result<Connection, Failure> {
        let within = self.place.connects_within();
        let connecting = async {
            let connection = match &self.place.tls {
                None => Connection::open(config, NoTls).await,
                Some(tls) => Connection::open(config, tls.clone()).await,
            };
            let mut connection = connection.map_err(|error| Failure::of(&self.place, &error))?;
            self.set_up(&mut connection).await?;
            Ok(connection)
        };
        timeout(within, connecting).await.unwrap_or_else(|_| Err(Failure::late(&self.place, within)))
    }

    async fn set_up(&self, connection: &mut Connection) -> Result<(), Failure> {
        const SQL: &str = "
            SELECT current_setting('server_version_num'),
                   pg_is_in_recovery()::text,
                   current_setting('transaction_read_only'),
                   set_config('synchronous_commit',
                              CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                   ELSE current_setting('synchronous_commit') END, false),
                   current_setting('synchronous_standby_names', true)";
        let answer = connection.simple_query(SQL).await.map_err(|error| Failure::of(&self.place, &error))?;
        let row = answer
            .iter()
            .find_map(|message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None });
        let told = |column| row.and_then(|row| row.get(column)).unwrap_or_default();
        let shown = &self.place.shown;
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

/// Who waits for an answer on the line. It is used on only where that was a whole one, and not where they left before.
struct Asking<'a> {
    pool: &'a Pool,
    line: &'a Arc<Line>,
    may_be_used: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.may_be_used {
            return;
        }
        // There may be a new one by now, which has nothing to do with it.
        self.pool.line_kept().take_if(|line| Arc::ptr_eq(line, self.line));
    }
}

async fn acquired(places: &Semaphore) -> SemaphorePermit<'_> {
    places.acquire().await.expect("the places are never closed")
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
            // tidy: allow(words) PostgreSQL's own name
            "-c statement_timeout={statement} -c lock_timeout={lock} -c jit=off \
             -c idle_in_transaction_session_timeout={statement} -c timezone=UTC \
             -c default_transaction_isolation=read\\ committed {plans}"
        )
    }
}
