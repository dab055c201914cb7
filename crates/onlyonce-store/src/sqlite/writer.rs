//! The one thread that writes.
//!
//! What waits while a transaction commits goes into the next one, together. A lone write finds the thread idle, and
//! goes at once.
//!
//! ```text
//!   swap ─┐                   ┌─ work, work, work ──┐                    ┌─► a task of each runtime ─► callers
//!   swap ─┼─► queue ─► BEGIN ─┤ each its own answer ├─► COMMIT (fsync) ──┤
//!   reap ─┘                   └─────────────────────┘                    └─► who asked for anything else
//! ```
//!
//! Answers go to one task of each runtime that waits (`post.rs`): this thread, which is the one that everybody waits for,
//! does not wake each caller itself.
//!
//! 1. Nobody is answered before the commit is durable; also not those who lost, since they were shown what the same
//!    transaction wrote.
//! 2. Work that fails leaves nothing behind and fails alone, unless SQLite gave up the whole transaction: then all of
//!    it is `Unavailable`, and nothing of it was written.
//! 3. A commit that fails is `Unavailable` for everyone in it. SQLite has rolled it back; where the system says that
//!    the disk did not take it, a crash right then may still find it in the WAL. So nobody may say that it was not
//!    written: the callers look, and recognise their writes by their revisions.
//! 4. Once SQLite has called the file damaged, nothing more is written to it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use onlyonce_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::connection::run;
use super::failure::Failure;
use super::post::{Bags, Letter, Offices};
use super::row::Swap;
use super::wal;
use crate::clock::Clock;
use crate::{Error, ErrorKind, Swapped, failpoint};

/// How much goes into one transaction. More than callers that wait at once in practice; a bound all the same.
pub(super) const ROWS_MAX: usize = 512;
pub(super) const BYTES_MAX: usize = 4 << 20;

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
    orders: Sender<Order>,
    offices: Offices,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Order {
    Swap(Box<Letter>),
    Other(Box<dyn Work>),
    Stop,
}

impl Writer {
    pub(super) fn start(thread: Thread) -> std::io::Result<Self> {
        let (orders, queue) = mpsc::channel();
        let named = thread::Builder::new().name("onlyonce-writer".to_owned());
        let thread = named.spawn(move || thread.run(&queue))?;
        Ok(Self { orders, offices: Offices::default(), thread: Mutex::new(Some(thread)) })
    }

    /// Carries out a swap, and answers once it is durable; also where its caller goes away.
    pub(super) async fn swap(&self, swap: Swap) -> Result<Swapped, Error> {
        let (caller, answer) = oneshot::channel();
        let letter = Letter { swap, done: None, sender: self.offices.here(), caller };
        // A thread that has ended has dropped its end, and drops this: its channel closes.
        let _ = self.orders.send(Order::Swap(Box::new(letter)));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Runs `work` in a transaction, and answers once it is durable. It is carried out also where its caller goes away.
    pub(super) async fn submit<R: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send + 'static,
    ) -> Result<R, Error> {
        let (caller, answer) = oneshot::channel();
        let _ =
            self.orders.send(Order::Other(Box::new(Other { size, work: Some(work), done: None, caller })));
        answer.await.unwrap_or_else(|_| Err(closed()))
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
    /// What SQLite said when it found the file damaged.
    pub(super) damage: Option<Failure>,
}

impl Thread {
    fn run(mut self, queue: &Receiver<Order>) {
        while let Ok(first) = queue.recv() {
            let (mut works, is_last) = collect(first, queue);
            let outcome = self.transact(&mut works);
            let mut bags = Bags::default();
            for work in works {
                work.end(&outcome, &mut bags);
            }
            bags.send();
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
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        let outcome = self.commit(works);
        if outcome.is_err() && !self.connection.is_autocommit() {
            // Where even this fails, the next BEGIN does too, and says so.
            let _ = run(&self.connection, "ROLLBACK");
        }
        self.damage = outcome.as_ref().err().filter(|failure| failure.kind == ErrorKind::Corrupt).cloned();
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
        let running = AssertUnwindSafe(|| work.run(&self.connection, now));
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
        ErrorKind::Busy | ErrorKind::Other => false,
    }
}

/// A piece of work, whatever it answers.
trait Work: Send {
    fn size(&self) -> Size;
    fn run(&mut self, connection: &Connection, now: Timestamp) -> Ended;
    /// It failed, alone.
    fn fail(&mut self, failure: &Failure);
    /// The transaction has ended: the caller is told, by `bags` where it is a swap's.
    fn end(self: Box<Self>, outcome: &Result<(), Failure>, bags: &mut Bags);
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

impl Work for Letter {
    fn size(&self) -> Size {
        self.swap.size()
    }

    fn run(&mut self, connection: &Connection, now: Timestamp) -> Ended {
        keep(&mut self.done, self.swap.run(connection, now))
    }

    fn fail(&mut self, failure: &Failure) {
        self.done = Some(Err(failure.error()));
    }

    fn end(mut self: Box<Self>, outcome: &Result<(), Failure>, bags: &mut Bags) {
        if let Err(failure) = outcome {
            self.fail(failure);
        }
        bags.put(self);
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

    fn run(&mut self, connection: &Connection, now: Timestamp) -> Ended {
        let work = self.work.take().expect("work is run once");
        keep(&mut self.done, work(connection, now))
    }

    fn fail(&mut self, failure: &Failure) {
        self.done = Some(Err(failure.error()));
    }

    fn end(mut self: Box<Self>, outcome: &Result<(), Failure>, _: &mut Bags) {
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
        let work: Box<dyn Work> = match order {
            Order::Swap(letter) => letter,
            Order::Other(other) => other,
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

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is closed")
}

/// The latest stamp, in the same transaction as what it stamps.
pub(super) fn keep_time(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    const SQL: &str = "UPDATE clock SET latest = ?1 WHERE one = 1";
    connection.prepare_cached(SQL)?.execute([now.as_micros()]).map(drop)
}
