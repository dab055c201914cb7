//! The one thread that writes.
//!
//! What waits while a transaction commits goes into the next one, together. A lone write finds the thread idle, and
//! goes at once.
//!
//! ```text
//!   swap ─┐
//!   swap ─┼─► batcher ─┐                   ┌─ work, work, work ──┐
//!   swap ─┘            ├─► queue ─► BEGIN ─┤ each its own answer ├─► COMMIT (fsync) ─► answers
//!   reap, claim ───────┘                   └─────────────────────┘
//! ```
//!
//! The queue alone would be batch enough. But then this thread, which is the one that everybody waits for, would wake
//! each caller itself; behind the batcher it wakes one task for all, and goes on. Measured, about a
//! fifth more (docs/decisions/0013-sqlite-layout.md).
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
use super::wal;
use crate::clock::Clock;
use crate::{Error, ErrorKind, failpoint};

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
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Order {
    Do(Box<dyn Works>),
    Stop,
}

impl Writer {
    pub(super) fn start(thread: Thread) -> std::io::Result<Self> {
        let (orders, queue) = mpsc::channel();
        let named = thread::Builder::new().name("onlyonce-writer".to_owned());
        let thread = named.spawn(move || thread.run(&queue))?;
        Ok(Self { orders, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `work` in a transaction, and answers once it is durable. It is carried out also where its caller goes away.
    pub(super) async fn submit<R: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send + 'static,
    ) -> Result<R, Error> {
        let mut answers = self.submit_all(vec![(size, work)]).await;
        answers.pop().expect("one piece of work has one answer")
    }

    /// The same for several, which share a transaction, and each of which has an answer of its own.
    pub(super) async fn submit_all<R: Send + 'static>(
        &self,
        works: Vec<(Size, impl FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send + 'static)>,
    ) -> Vec<Result<R, Error>> {
        let count = works.len();
        let (caller, answers) = oneshot::channel();
        let tasks = works.into_iter().map(|(size, work)| Task { size, work: Some(work), done: None });
        // A thread that has ended has dropped its end, and drops this: its channel closes.
        let _ = self.orders.send(Order::Do(Box::new(Tasks { tasks: tasks.collect(), caller })));
        let ended = || Err(Error::new(ErrorKind::Unavailable, "the store is closed"));
        answers.await.unwrap_or_else(|_| (0..count).map(|_| ended()).collect())
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
        while let Ok(Order::Do(first)) = queue.recv() {
            let (mut works, is_last) = collect(first, queue);
            let outcome = self.transact(&mut works);
            for works in works {
                works.end(&outcome);
            }
            if is_last {
                break;
            }
            self.wal.committed(&self.connection);
        }
    }

    fn transact(&mut self, works: &mut [Box<dyn Works>]) -> Result<(), Failure> {
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

    fn commit(&mut self, works: &mut [Box<dyn Works>]) -> Result<(), Failure> {
        let failed = |error: rusqlite::Error| Failure::of(&self.path, &error);
        // The write lock first: nobody may come between what is compared and what is written.
        run(&self.connection, "BEGIN IMMEDIATE").map_err(failed)?;
        let changes = self.connection.total_changes();
        let now = self.clock.now();
        let mut count = 0;
        for works in works.iter_mut() {
            for index in 0..works.count() {
                self.work(&mut **works, index, now)?;
            }
            count += works.count() as u64;
        }
        if self.connection.total_changes() > changes {
            keep_time(&self.connection, now).map_err(failed)?;
            self.counts.commits.fetch_add(1, Ordering::Relaxed);
            self.counts.works.fetch_add(count, Ordering::Relaxed);
        }
        failpoint!("sqlite.commit.before");
        run(&self.connection, "COMMIT").map_err(failed)?;
        failpoint!("sqlite.commit.after");
        Ok(())
    }

    /// An error here is the whole transaction's.
    fn work(&self, works: &mut dyn Works, index: usize, now: Timestamp) -> Result<(), Failure> {
        let failed = |error: rusqlite::Error| Failure::of(&self.path, &error);
        let is_many = works.size(index).statements == Statements::Many;
        if is_many {
            run(&self.connection, "SAVEPOINT work").map_err(failed)?;
        }
        let work = AssertUnwindSafe(|| works.run(index, &self.connection, now));
        let ended = catch_unwind(work).map_err(|_| {
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
                works.fail(index, &failure);
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

/// Pieces of work that one caller waits for, whatever they answer.
trait Works: Send {
    fn count(&self) -> usize;
    fn size(&self, index: usize) -> Size;
    fn run(&mut self, index: usize, connection: &Connection, now: Timestamp) -> Ended;
    /// This piece failed, alone.
    fn fail(&mut self, index: usize, failure: &Failure);
    /// The transaction has ended: the caller is told.
    fn end(self: Box<Self>, outcome: &Result<(), Failure>);
}

enum Ended {
    Done,
    /// What is stored cannot be understood; its caller is told.
    Refused,
    Failed(rusqlite::Error),
}

struct Tasks<R, F> {
    tasks: Vec<Task<R, F>>,
    caller: oneshot::Sender<Vec<Result<R, Error>>>,
}

struct Task<R, F> {
    size: Size,
    work: Option<F>,
    done: Option<Result<R, Error>>,
}

impl<R, F> Works for Tasks<R, F>
where
    R: Send,
    F: FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send,
{
    fn count(&self) -> usize {
        self.tasks.len()
    }

    fn size(&self, index: usize) -> Size {
        self.tasks[index].size
    }

    fn run(&mut self, index: usize, connection: &Connection, now: Timestamp) -> Ended {
        let task = &mut self.tasks[index];
        let work = task.work.take().expect("work is run once");
        let (done, ended) = match work(connection, now) {
            Ok(done) => (Ok(done), Ended::Done),
            Err(Refused::Stored(error)) => (Err(error), Ended::Refused),
            Err(Refused::Sqlite(error)) => return Ended::Failed(error),
        };
        task.done = Some(done);
        ended
    }

    fn fail(&mut self, index: usize, failure: &Failure) {
        self.tasks[index].done = Some(Err(failure.error()));
    }

    fn end(self: Box<Self>, outcome: &Result<(), Failure>) {
        let answer = |task: Task<R, F>| match outcome {
            Ok(()) => task.done.expect("work in a transaction that was committed has ended"),
            Err(failure) => Err(failure.error()),
        };
        // A caller that went away does not want its answers.
        let _ = self.caller.send(self.tasks.into_iter().map(answer).collect());
    }
}

/// So much of what waits as goes together, and whether it is the last.
fn collect(first: Box<dyn Works>, queue: &Receiver<Order>) -> (Vec<Box<dyn Works>>, bool) {
    let mut room = Room { rows: ROWS_MAX, bytes: BYTES_MAX };
    room.take(&*first);
    let mut works = vec![first];
    while room.rows > 0 && room.bytes > 0 {
        match queue.try_recv() {
            Ok(Order::Do(next)) => {
                room.take(&*next);
                works.push(next);
            }
            Ok(Order::Stop) => return (works, true),
            Err(_) => break,
        }
    }
    (works, false)
}

/// What still goes into a transaction.
struct Room {
    rows: usize,
    bytes: usize,
}

impl Room {
    fn take(&mut self, works: &dyn Works) {
        for index in 0..works.count() {
            self.rows = self.rows.saturating_sub(works.size(index).rows);
            self.bytes = self.bytes.saturating_sub(works.size(index).bytes);
        }
    }
}

/// The latest stamp, in the same transaction as what it stamps.
pub(super) fn keep_time(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    const SQL: &str = "UPDATE clock SET latest = ?1 WHERE one = 1";
    connection.prepare_cached(SQL)?.execute([now.as_micros()]).map(drop)
}
