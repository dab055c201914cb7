//! The one thread that writes.
//!
//! What waits while a transaction commits goes into the next one, together (group commit). A lone write finds the thread
//! idle, and goes at once.
//!
//! ```text
//!   swap ─┐                   ┌─ work, work, work ──┐
//!   swap ─┼─► queue ─► BEGIN ─┤ each its own answer ├─► COMMIT (fdatasync) ──► every caller
//!   reap ─┘                   └─────────────────────┘
//! ```
//!
//! 1. Nobody is answered before the commit is durable; also not those who lost, since they were shown what the same
//!    transaction wrote.
//! 2. Work that fails leaves nothing behind and fails alone, unless SQLite gave up the whole transaction: then all of
//!    it is `Unavailable`, and nothing of it was written.
//! 3. A commit that fails is `Unavailable` for everyone in it. SQLite has rolled it back; where the system says that
//!    the disk did not take it, a crash right then may still find it in the WAL. So nobody may say that it was not
//!    written: the callers look, and recognise their writes by their revisions.
//! 4. Once a sync has failed, or SQLite has called the file damaged, nothing more is written until a restart
//!    (`latch.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use onlyonce_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::checkpoint;
use super::connection::run;
use super::failure::Failure;
use super::latch::Latch;
use super::row::{Done, Swap};
use crate::clock::Clock;
use crate::seal::Keyring;
use crate::{Error, ErrorKind, Swapped, failpoint};

/// How much goes into one transaction. More than callers that wait at once in practice; a bound all the same.
const ROWS_MAX: usize = 512;
const BYTES_MAX: usize = 4 << 20;

/// Why work was not done: SQLite would not, or what is stored cannot be understood.
pub(super) enum Refused {
    Sqlite(rusqlite::Error),
    Stored(Error),
}

impl Refused {
    /// As a failure of the file at `path`.
    pub(super) fn failure(&self, path: &Path) -> Failure {
        match self {
            Self::Sqlite(error) => Failure::of(path, error),
            Self::Stored(error) => Failure::new(error.kind(), error.to_string()),
        }
    }
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

/// A single statement is atomic by itself; several are made so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Statements {
    One,
    Many,
}

/// What the writer has done so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) commits: AtomicU64,
    pub(super) works: AtomicU64,
}

/// The way to the thread.
pub(super) struct Writer {
    queue: Sender<Order>,
    thread: Mutex<Option<JoinHandle<Connection>>>,
}

enum Order {
    Work(Box<dyn Work>),
    Stop,
}

impl Writer {
    pub(super) fn start(thread: Thread) -> std::io::Result<Self> {
        let (queue, orders) = mpsc::channel();
        let named = thread::Builder::new().name("onlyonce-writer".to_owned());
        let thread = named.spawn(move || thread.run(&orders))?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Carries out a swap, and answers once it is durable. It is carried out also where its caller goes away.
    pub(super) async fn swap(&self, swap: Swap) -> Result<Swapped, Error> {
        let (caller, answer) = oneshot::channel();
        // A thread that has ended has dropped its end, and drops this: its channel closes.
        let _ = self.queue.send(Order::Work(Box::new(Swapping { swap, done: None, caller })));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Runs `work` in a transaction, and answers once it is durable. It is carried out also where its caller goes away.
    pub(super) async fn submit<R: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send + 'static,
    ) -> Result<R, Error> {
        let (caller, answer) = oneshot::channel();
        let work = Box::new(Other { size, work: Some(work), done: None, caller });
        let _ = self.queue.send(Order::Work(work));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Carries out what was handed in so far, and gives the connection back: who closes it last checkpoints the WAL.
    pub(super) fn close(&self) -> Option<Connection> {
        let _ = self.queue.send(Order::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic there was printed there.
        thread.and_then(|thread| thread.join().ok())
    }
}

/// What the thread has.
pub(super) struct Thread {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) checkpoints: checkpoint::Signal,
    pub(super) counts: Arc<Counts>,
    pub(super) latch: Latch,
    pub(super) keyring: Option<Keyring>,
}

impl Thread {
    fn run(mut self, orders: &Receiver<Order>) -> Connection {
        while let Ok(first) = orders.recv() {
            let (mut works, is_last) = collect(first, orders);
            let outcome = self.transact(&mut works);
            for work in works {
                work.end(&outcome);
            }
            if is_last {
                break;
            }
            self.checkpoints.committed(&self.connection);
        }
        self.connection
    }

    fn transact(&mut self, works: &mut [Box<dyn Work>]) -> Result<(), Failure> {
        if works.is_empty() {
            return Ok(());
        }
        self.latch.check()?;
        let outcome = self.commit(works);
        if let Err(failure) = &outcome {
            self.latch.judge(failure);
            if !self.connection.is_autocommit() {
                // Where even this fails, the next BEGIN does too, and says so.
                let _ = run(&self.connection, "ROLLBACK");
            }
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
            self.counts.commits.fetch_add(1, Ordering::Relaxed);
            self.counts.works.fetch_add(works.len() as u64, Ordering::Relaxed);
            metrics::histogram!("onlyonce_batch_size").record(u32::try_from(works.len()).unwrap_or(u32::MAX));
        }
        failpoint!("sqlite.commit.before");
        run(&self.connection, "COMMIT").map_err(failed)?;
        failpoint!("sqlite.commit.after");
        Ok(())
    }

    /// An error here is the whole transaction's.
    fn work(&self, work: &mut dyn Work, now: Timestamp) -> Result<(), Failure> {
        let failed = |error: rusqlite::Error| Failure::of(&self.path, &error);
        let is_many = work.size().statements == Statements::Many;
        if is_many {
            run(&self.connection, "SAVEPOINT work").map_err(failed)?;
        }
        let keyring = self.keyring.as_ref();
        let running = AssertUnwindSafe(|| work.run(&self.connection, keyring, now));
        let ended = catch_unwind(running).map_err(|_| {
            Failure::new(ErrorKind::Unavailable, "a write panicked, and its transaction was undone")
        })?;
        match ended {
            Ended::Done => {}
            Ended::Failed(error) => {
                let failure = Failure::of(&self.path, &error);
                // A full disk or a damaged file is nobody's alone.
                if self.connection.is_autocommit() || is_everybodys(failure.kind) {
                    return Err(failure);
                }
                work.fail(&failure);
                self.undo(is_many).map_err(failed)?;
            }
            Ended::Refused => self.undo(is_many).map_err(failed)?,
        }
        if is_many {
            run(&self.connection, "RELEASE work").map_err(failed)?;
        }
        Ok(())
    }

    fn undo(&self, is_many: bool) -> rusqlite::Result<()> {
        if is_many { run(&self.connection, "ROLLBACK TO work") } else { Ok(()) }
    }
}

fn is_everybodys(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Misconfigured => true,
        ErrorKind::Busy | ErrorKind::Undecryptable | ErrorKind::Other => false,
    }
}

/// A piece of work, whatever it answers.
trait Work: Send {
    fn size(&self) -> Size;
    fn run(&mut self, connection: &Connection, keyring: Option<&Keyring>, now: Timestamp) -> Ended;
    /// It failed, alone.
    fn fail(&mut self, failure: &Failure);
    /// The transaction has ended: the caller is told.
    fn end(self: Box<Self>, outcome: &Result<(), Failure>);
}

enum Ended {
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

/// What work in a transaction that has ended is answered with.
fn answer<R>(done: Option<Result<R, Error>>, outcome: &Result<(), Failure>) -> Result<R, Error> {
    match outcome {
        Ok(()) => done.expect("work in a transaction that was committed has ended"),
        Err(failure) => Err(failure.error()),
    }
}

/// A swap, which is what nearly all work is.
struct Swapping {
    swap: Swap,
    done: Option<Result<Done, Error>>,
    caller: oneshot::Sender<Result<Swapped, Error>>,
}

impl Work for Swapping {
    fn size(&self) -> Size {
        self.swap.size()
    }

    fn run(&mut self, connection: &Connection, keyring: Option<&Keyring>, now: Timestamp) -> Ended {
        keep(&mut self.done, self.swap.run(connection, keyring, now))
    }

    fn fail(&mut self, failure: &Failure) {
        self.done = Some(Err(failure.error()));
    }

    fn end(self: Box<Self>, outcome: &Result<(), Failure>) {
        let Self { swap, done, caller } = *self;
        // A caller that went away does not want its answer.
        let _ = caller.send(answer(done, outcome).map(|done| swap.swapped(done)));
    }
}

/// What is no swap.
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

    fn run(&mut self, connection: &Connection, _keyring: Option<&Keyring>, now: Timestamp) -> Ended {
        let work = self.work.take().expect("work is run once");
        keep(&mut self.done, work(connection, now))
    }

    fn fail(&mut self, failure: &Failure) {
        self.done = Some(Err(failure.error()));
    }

    fn end(self: Box<Self>, outcome: &Result<(), Failure>) {
        let Self { done, caller, .. } = *self;
        let _ = caller.send(answer(done, outcome));
    }
}

/// So much of what waits as goes together, and whether it is the last.
fn collect(first: Order, orders: &Receiver<Order>) -> (Vec<Box<dyn Work>>, bool) {
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
        next = if has_room { orders.try_recv().ok() } else { None };
    }
    (works, false)
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is closed")
}

/// The latest stamp, in the same transaction as what it stamps.
pub(super) fn keep_time(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    const SQL: &str = "UPDATE onlyonce_store SET latest = max(latest, ?1) WHERE one = 1";
    connection.prepare_cached(SQL)?.execute([now.as_micros()]).map(drop)
}
