//! The one thread that writes.
//!
//! What waits while a transaction commits goes into the next one, together: the queue itself is the batch. A lone
//! write finds the thread idle, and goes at once.
//!
//! ```text
//!   swap ─┐                      ┌─ work, work, work ─┐
//!   swap ─┼─► queue ─► BEGIN ────┤ each its own answer ├─► COMMIT (fsync) ─► answers
//!   reap ─┘                      └─────────────────────┘
//! ```
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
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

/// The way to the thread. Dropped, it waits until what was handed in is done.
pub(super) struct Writer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    size: Size,
    work: Box<dyn Work>,
}

impl Writer {
    pub(super) fn start(thread: Thread) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let thread =
            thread::Builder::new().name("onlyonce-writer".to_owned()).spawn(move || thread.run(&queue))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs `work` in a transaction, and answers once it is durable. It is carried out also where its caller goes away.
    pub(super) async fn submit<R: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send + 'static,
    ) -> Result<R, Error> {
        let (caller, answer) = oneshot::channel();
        let work = Box::new(Task { work: Some(work), done: None, caller });
        let jobs = self.jobs.as_ref().expect("the queue is open until the writer is dropped");
        // A thread that has died has dropped its end, and so this job: its channel closes.
        let _ = jobs.send(Job { size, work });
        answer.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the writer has ended")))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // A panic there was printed there.
        let _ = self.thread.take().map(JoinHandle::join);
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
    fn run(mut self, queue: &Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            let mut works = collect(first, queue);
            let outcome = self.transact(&mut works);
            for job in works {
                job.work.end(&outcome);
            }
            self.wal.committed(&self.connection);
        }
    }

    fn transact(&mut self, works: &mut [Job]) -> Result<(), Failure> {
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

    fn commit(&mut self, works: &mut [Job]) -> Result<(), Failure> {
        let failed = |error: rusqlite::Error| Failure::of(&self.path, &error);
        // The write lock first: nobody may come between what is compared and what is written.
        run(&self.connection, "BEGIN IMMEDIATE").map_err(failed)?;
        let changes = self.connection.total_changes();
        let now = self.clock.now();
        for job in works.iter_mut() {
            self.work(job, now)?;
        }
        if self.connection.total_changes() > changes {
            keep_time(&self.connection, now).map_err(failed)?;
            self.counts.commits.fetch_add(1, Ordering::Relaxed);
            self.counts.works.fetch_add(works.len() as u64, Ordering::Relaxed);
        }
        failpoint!("sqlite.commit.before");
        run(&self.connection, "COMMIT").map_err(failed)?;
        failpoint!("sqlite.commit.after");
        Ok(())
    }

    /// An error here is the whole transaction's.
    fn work(&self, job: &mut Job, now: Timestamp) -> Result<(), Failure> {
        let failed = |error: rusqlite::Error| Failure::of(&self.path, &error);
        let is_many = job.size.statements == Statements::Many;
        if is_many {
            run(&self.connection, "SAVEPOINT work").map_err(failed)?;
        }
        let work = AssertUnwindSafe(|| job.work.run(&self.connection, now));
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
                job.work.fail(&failure);
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
        ErrorKind::Other => false,
    }
}

/// What happens in a transaction, whatever it answers.
trait Work: Send {
    fn run(&mut self, connection: &Connection, now: Timestamp) -> Ended;
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

struct Task<R, F> {
    work: Option<F>,
    done: Option<Result<R, Error>>,
    caller: oneshot::Sender<Result<R, Error>>,
}

impl<R, F> Work for Task<R, F>
where
    R: Send,
    F: FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send,
{
    fn run(&mut self, connection: &Connection, now: Timestamp) -> Ended {
        let work = self.work.take().expect("work is run once");
        match work(connection, now) {
            Ok(done) => {
                self.done = Some(Ok(done));
                Ended::Done
            }
            Err(Refused::Stored(error)) => {
                self.done = Some(Err(error));
                Ended::Refused
            }
            Err(Refused::Sqlite(error)) => Ended::Failed(error),
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.done = Some(Err(failure.error()));
    }

    fn end(self: Box<Self>, outcome: &Result<(), Failure>) {
        let answer = match outcome {
            Ok(()) => self.done.expect("work in a transaction that was committed has ended"),
            Err(failure) => Err(failure.error()),
        };
        // A caller that went away does not want its answer.
        let _ = self.caller.send(answer);
    }
}

/// So much of what waits as goes together.
fn collect(first: Job, queue: &Receiver<Job>) -> Vec<Job> {
    let (mut rows, mut bytes) = (first.size.rows, first.size.bytes);
    let mut works = vec![first];
    while rows < ROWS_MAX && bytes < BYTES_MAX {
        let Ok(next) = queue.try_recv() else { break };
        rows += next.size.rows;
        bytes += next.size.bytes;
        works.push(next);
    }
    works
}

/// The latest stamp, in the same transaction as what it stamps.
pub(super) fn keep_time(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    const SQL: &str = "UPDATE clock SET latest = ?1 WHERE one = 1";
    connection.prepare_cached(SQL)?.execute([now.as_micros()]).map(drop)
}
