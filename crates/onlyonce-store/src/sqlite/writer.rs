//! The one thread that writes to the database: rounds that are carried over, and what is no swap.
//!
//! ```text
//!   round ─┐                   ┌─ work, work, work ──┐
//!   reap  ─┼─► queue ─► BEGIN ─┤ each its own answer ├─► COMMIT (fsync) ──► who asked
//!   claim ─┘                   └─────────────────────┘
//! ```
//!
//! 1. Nobody is answered before the commit is durable.
//! 2. Work that fails leaves nothing behind and fails alone, unless SQLite gave up the whole transaction: then all of
//!    it is `Unavailable`, and nothing of it was written. A round that fails takes its transaction with it.
//! 3. A commit that fails is `Unavailable` for everyone in it. SQLite has rolled it back; where the system says that
//!    the disk did not take it, a crash right then may still find it in the WAL. So nobody may say that it was not
//!    written.
//! 4. Once SQLite has called the file damaged, nothing more is written to it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use onlyonce_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::connection::run;
use super::failure::Failure;
use super::{carry, wal};
use crate::clock::Clock;
use crate::{Error, ErrorKind, failpoint};

/// How much goes into one transaction.
const ROWS_MAX: usize = 512;
const BYTES_MAX: usize = 4 << 20;

/// Why work was not done: SQLite would not, or what is stored cannot be understood.
pub(super) enum Refused {
    Sqlite(rusqlite::Error),
    Stored(Error),
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Stored(error)
    }
}

/// How much a piece of work writes, and whether it is one statement.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) bytes: usize,
    pub(super) statements: Statements,
}

/// Several statements are made one. SQLite keeps every page that they change for that, which a round is too large for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Statements {
    /// Undone alone.
    Many,
    /// Undone with its transaction.
    Whole,
}

/// What was made durable so far, on the tapes and in the database.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) commits: AtomicU64,
    pub(super) works: AtomicU64,
    pub(super) transactions: AtomicU64,
}

/// The way to the thread.
pub(super) struct Writer {
    orders: Sender<Order>,
    damage: Damage,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Order {
    Work(Box<dyn Work>),
    Stop,
}

impl Writer {
    pub(super) fn start(thread: Thread) -> std::io::Result<Self> {
        let (orders, queue) = mpsc::channel();
        let damage = thread.damage.clone();
        let named = thread::Builder::new().name("onlyonce-writer".to_owned());
        let thread = named.spawn(move || thread.run(&queue))?;
        Ok(Self { orders, damage, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `work` in a transaction, and answers once it is durable. It is carried out also where its caller goes away.
    pub(super) async fn submit<R: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send + 'static,
    ) -> Result<R, Error> {
        let (caller, answer) = oneshot::channel();
        self.hand_in(Box::new(Other { size, work: Some(work), done: None, caller }));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// What SQLite said, where it has found the file damaged: nothing more is written to it.
    pub(super) fn damage(&self) -> Option<&Failure> {
        self.damage.get()
    }

    /// Hands in work that tells by itself how it ended.
    pub(super) fn hand_in(&self, work: Box<dyn Work>) {
        // A thread that has ended has dropped its end, and drops this.
        let _ = self.orders.send(Order::Work(work));
    }

    /// Nothing is left on the tapes: they need not be there any more. Whether the database says so now.
    pub(super) fn release(&self) -> bool {
        let (caller, answer) = oneshot::channel();
        let size = Size { rows: 1, bytes: 0, statements: Statements::Many };
        let work = |connection: &Connection, _| Ok(carry::set_open(connection, false)?);
        self.hand_in(Box::new(Other { size, work: Some(work), done: None, caller }));
        answer.blocking_recv().is_ok_and(|released| released.is_ok())
    }

    /// Carries out what was handed in so far, and waits for it.
    pub(super) fn close(&self) {
        let _ = self.orders.send(Order::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic there was printed there.
        let _ = thread.map(JoinHandle::join);
    }
}

/// What the thread has.
pub(super) struct Thread {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) wal: wal::Signal,
    pub(super) counts: Arc<Counts>,
    pub(super) damage: Damage,
}

/// What SQLite said when it found the file damaged.
pub(super) type Damage = Arc<OnceLock<Failure>>;

impl Thread {
    fn run(mut self, queue: &Receiver<Order>) {
        while let Ok(first) = queue.recv() {
            let (mut works, is_last) = collect(first, queue);
            let outcome = self.transact(&mut works);
            for work in works {
                work.end(&outcome);
            }
            if is_last {
                break;
            }
            self.wal.committed(&self.connection);
        }
    }

    fn transact(&mut self, works: &mut [Box<dyn Work>]) -> Result<(), Failure> {
        if works.is_empty() {
            return Ok(());
        }
        if let Some(damage) = self.damage.get() {
            return Err(damage.clone());
        }
        let outcome = self.commit(works);
        if outcome.is_err() && !self.connection.is_autocommit() {
            // Where even this fails, the next BEGIN does too, and says so.
            let _ = run(&self.connection, "ROLLBACK");
        }
        if let Err(failure) = &outcome
            && failure.kind == ErrorKind::Corrupt
        {
            // The first word counts.
            let _ = self.damage.set(failure.clone());
        }
        outcome
    }

    fn commit(&mut self, works: &mut [Box<dyn Work>]) -> Result<(), Failure> {
        let failed = |error: rusqlite::Error| Failure::of(&self.path, &error);
        // The write lock first: nobody may come between what is compared and what is written.
        run(&self.connection, "BEGIN IMMEDIATE").map_err(failed)?;
        let changes = self.connection.total_changes();
        let now = self.clock.now();
        for work in works.iter_mut() {
            self.work(&mut **work, now)?;
        }
        if self.connection.total_changes() > changes {
            keep_time(&self.connection, now).map_err(failed)?;
            self.counts.transactions.fetch_add(1, Ordering::Relaxed);
        }
        failpoint!("sqlite.carry.before");
        run(&self.connection, "COMMIT").map_err(failed)?;
        failpoint!("sqlite.carry.after");
        Ok(())
    }

    /// An error here is the whole transaction's.
    fn work(&self, work: &mut dyn Work, now: Timestamp) -> Result<(), Failure> {
        let failed = |error: rusqlite::Error| Failure::of(&self.path, &error);
        let is_many = work.size().statements == Statements::Many;
        if is_many {
            run(&self.connection, "SAVEPOINT work").map_err(failed)?;
        }
        let running = AssertUnwindSafe(|| work.run(&self.connection, now));
        let ended = catch_unwind(running).map_err(|_| {
            Failure::new(ErrorKind::Unavailable, "a write panicked, and its transaction was undone")
        })?;
        match ended {
            Ended::Done => {}
            Ended::Failed(error) => {
                let failure = Failure::of(&self.path, &error);
                // A full disk or a damaged file is nobody's alone.
                if !is_many || self.connection.is_autocommit() || is_everybodys(failure.kind) {
                    return Err(failure);
                }
                work.fail(&failure);
                self.undo().map_err(failed)?;
            }
            Ended::Refused => self.undo().map_err(failed)?,
        }
        if is_many {
            run(&self.connection, "RELEASE work").map_err(failed)?;
        }
        Ok(())
    }

    fn undo(&self) -> rusqlite::Result<()> {
        run(&self.connection, "ROLLBACK TO work")
    }
}

fn is_everybodys(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Misconfigured => true,
        ErrorKind::Busy | ErrorKind::Other => false,
    }
}

/// A piece of work, whatever it answers.
pub(super) trait Work: Send {
    fn size(&self) -> Size;
    fn run(&mut self, connection: &Connection, now: Timestamp) -> Ended;
    /// It failed, alone.
    fn fail(&mut self, failure: &Failure);
    /// The transaction has ended: the caller is told.
    fn end(self: Box<Self>, outcome: &Result<(), Failure>);
}

pub(super) enum Ended {
    Done,
    /// What is stored cannot be understood; its caller is told.
    Refused,
    Failed(rusqlite::Error),
}

/// Keeps what was done for the caller, and says how it ended.
fn keep<R>(kept: &mut Option<Result<R, Error>>, done: Result<R, Refused>) -> Ended {
    let (done, ended) = match done {
        Ok(done) => (Ok(done), Ended::Done),
        Err(Refused::Stored(error)) => (Err(error), Ended::Refused),
        Err(Refused::Sqlite(error)) => return Ended::Failed(error),
    };
    *kept = Some(done);
    ended
}

/// What somebody waits for.
struct Other<R, F> {
    size: Size,
    work: Option<F>,
    done: Option<Result<R, Error>>,
    caller: oneshot::Sender<Result<R, Error>>,
}

impl<R, F> Work for Other<R, F>
where
    R: Send,
    F: FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send,
{
    fn size(&self) -> Size {
        self.size
    }

    fn run(&mut self, connection: &Connection, now: Timestamp) -> Ended {
        let work = self.work.take().expect("work is run once");
        keep(&mut self.done, work(connection, now))
    }

    fn fail(&mut self, failure: &Failure) {
        self.done = Some(Err(failure.error()));
    }

    fn end(mut self: Box<Self>, outcome: &Result<(), Failure>) {
        if let Err(failure) = outcome {
            self.fail(failure);
        }
        let done = self.done.expect("work in a transaction that was committed has ended");
        // A caller that went away does not want its answer.
        let _ = self.caller.send(done);
    }
}

/// So much of what waits as goes together, and whether it is the last.
fn collect(first: Order, queue: &Receiver<Order>) -> (Vec<Box<dyn Work>>, bool) {
    let (mut rows, mut bytes) = (ROWS_MAX, BYTES_MAX);
    let mut works: Vec<Box<dyn Work>> = Vec::new();
    let mut next = Some(first);
    while let Some(order) = next {
        let work = match order {
            Order::Work(work) => work,
            Order::Stop => return (works, true),
        };
        rows = rows.saturating_sub(work.size().rows);
        bytes = bytes.saturating_sub(work.size().bytes);
        works.push(work);
        let has_room = rows > 0 && bytes > 0;
        next = if has_room { queue.try_recv().ok() } else { None };
    }
    (works, false)
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is closed")
}

/// The latest stamp, in the same transaction as what it stamps. What is recovered from a tape may be older than what was
/// written after it.
pub(super) fn keep_time(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    const SQL: &str = "UPDATE clock SET latest = max(latest, ?1) WHERE one = 1";
    connection.prepare_cached(SQL)?.execute([now.as_micros()]).map(drop)
}
