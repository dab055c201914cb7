//! Checkpoints: copying the WAL into the database file, beside the writer.
//!
//! SQLite would do it inside a commit, and that one caller would wait for all of it: measured, 6 ms where others wait 1.8.
//! Here a thread with a connection of its own does it:
//!
//! ```text
//!   writer        ──commit──commit──commit──commit──commit──commit──last part──commit (from the WAL's start)
//!                      │ WAL is long enough                           ▲
//!   checkpointer       └──► copy all so far ──► sync ──► copy more ───┘ little is left
//! ```
//!
//! 1. Once the WAL has so many pages, the checkpointer copies them without getting in anybody's way (`PASSIVE`), and again
//!    while more than [`LAST_PAGES`] have come since.
//! 2. While anybody writes there is always something left, and the WAL would grow for ever. So when little is left the
//!    checkpointer asks the writer to copy that between two commits; then the WAL begins anew from its start.
//! 3. SQLite syncs the file only when all of the WAL is copied: beside a writer, never. The writer would have to sync all
//!    that the checkpointer has copied, and 64 callers would wait for that: 60 to 75 ms at ten million records. So the
//!    checkpointer syncs the file itself, first. SQLite still syncs before the WAL begins anew, and then finds little to do.
//! 4. The writer's own `fdatasync` waits for the checkpointer's. How long that takes depends on the disk and on how far the
//!    pages lie apart. So the checkpointer measures it, and [`pace`] says after how many pages it begins next.
//! 5. The checkpointer could make the WAL begin anew too (`RESTART`). But then the writer would find that somebody else had
//!    done so, and forget all the pages it has in memory.
//! 6. The WAL's file is not cut short: writing over blocks that exist is faster than growing a file.
//!
//! **A sync that fails is final** (`latch.rs`), the checkpointer's own too: the system reports a failed write once, and calls the
//! pages clean afterwards. A checkpoint that fails otherwise, as on a full disk, loses nothing: the WAL has everything, and
//! the next one goes on. Where a reader is in the way, as a backup is, the WAL grows until it has left.
//!
//! Needs SQLite 3.51.3 or later: before, a checkpoint beside a writer could, very rarely, damage the file
//! (<https://sqlite.org/wal.html#walresetbug>).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::connection;
use super::failure::{Failure, quoted};
use super::latch::Latch;
use super::owner::Owned;
use crate::failpoint;

/// After so many pages a checkpoint is made, until the disk is known.
const STEP_FIRST: i64 = 1_000;
/// At least so many: each checkpoint costs two syncs, however little there is.
const STEP_MIN: i64 = 250;
/// At most so many: a process that is killed leaves some 32 MB to recover.
const STEP_MAX: i64 = 8_000;
/// It took too long: whoever committed meanwhile waited about as long.
const LONG: Duration = Duration::from_millis(5);
/// It took so little that more may be copied at once, which writes a page that changed often only once.
const SHORT: Duration = Duration::from_millis(2);
/// So little is left that the writer may copy it itself.
const LAST_PAGES: i64 = 200;
/// How often what has come since is copied beside the writer; then it is the writer's, however much it is.
const ROUNDS_MAX: usize = 3;
/// What remains of the WAL's file when it begins anew, after something kept it from doing so for long.
const FILE_BYTES_KEPT: i64 = 64 << 20;
const CACHE_BYTES: usize = 1 << 20;

/// After how many pages to begin next, where `step` took so long.
fn pace(step: i64, took: Duration) -> i64 {
    let next = if took > LONG {
        step / 2
    } else if took < SHORT {
        step * 2
    } else {
        step
    };
    next.clamp(STEP_MIN, STEP_MAX)
}

/// What the writer and the checkpointer know of the WAL.
struct State {
    /// Pages in the WAL after the last commit.
    pages: AtomicI64,
    /// Pages after which the checkpointer wants to be told.
    step: AtomicI64,
    /// Set by the checkpointer: little is left.
    finish: AtomicBool,
    checkpoints: AtomicU64,
    latch: Latch,
    path: PathBuf,
}

impl State {
    /// Copies what nobody reads any more, and says how many pages of the WAL are in the file by now.
    fn checkpoint(&self, connection: &Connection) -> Result<i64, Failure> {
        self.latch.check()?;
        let copied = connection.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), CheckpointMode::PASSIVE);
        let (_, done) = copied.map_err(|error| self.failed(&error))?;
        Ok(i64::from(done))
    }

    fn failed(&self, error: &rusqlite::Error) -> Failure {
        let failure = Failure::of(&self.path, error);
        self.latch.judge(&failure);
        failure
    }
}

/// The writer's side.
pub(super) struct Signal {
    state: Arc<State>,
    /// How many pages there were when the checkpointer was last told.
    told: i64,
    checkpointer: SyncSender<()>,
}

impl Signal {
    /// Makes the writer's connection count the pages of its WAL.
    pub(super) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        connection.pragma_update(None, "journal_size_limit", FILE_BYTES_KEPT)?;
        let state = self.state.clone();
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count: i32| {
            state.pages.store(i64::from(count), Ordering::Release);
            Ok(())
        }))
    }

    /// After every commit, when its callers have their answers.
    pub(super) fn committed(&mut self, connection: &Connection) {
        if self.state.finish.swap(false, Ordering::AcqRel) {
            failpoint!("sqlite.checkpoint.last");
            // A failed sync has set the latch; anything else the checkpointer meets again.
            let _ = self.state.checkpoint(connection);
        }
        let pages = self.state.pages.load(Ordering::Acquire);
        if pages < self.told {
            // It has begun anew.
            self.told = 0;
        }
        if pages - self.told >= self.state.step.load(Ordering::Relaxed) {
            self.told = pages;
            // A full channel: it is told already.
            let _ = self.checkpointer.try_send(());
        }
    }
}

/// The thread beside the writer. Dropped, it ends with the checkpoint under way; the writer must be gone by then.
pub(super) struct Checkpointer {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(super) fn start(path: &Path, owned: &Owned, latch: &Latch) -> std::io::Result<(Self, Signal)> {
        let (checkpointer, signals) = mpsc::sync_channel(1);
        let state = Arc::new(State {
            pages: AtomicI64::new(0),
            step: AtomicI64::new(STEP_FIRST),
            finish: AtomicBool::new(false),
            checkpoints: AtomicU64::new(0),
            latch: latch.clone(),
            path: path.to_owned(),
        });
        let (owned, shared) = (owned.clone(), state.clone());
        let thread = thread::Builder::new()
            .name("onlyonce-checkpoint".to_owned())
            .spawn(move || keep_checkpointing(&owned, &signals, &shared))?;
        let signal = Signal { state: state.clone(), told: 0, checkpointer };
        Ok((Self { state, thread: Some(thread) }, signal))
    }

    /// How many checkpoints were made.
    pub(super) fn checkpoints(&self) -> u64 {
        self.state.checkpoints.load(Ordering::Relaxed)
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn keep_checkpointing(owned: &Owned, signals: &Receiver<()>, state: &State) {
    let mut connection = None;
    while signals.recv().is_ok() {
        failpoint!("sqlite.checkpoint.before");
        match copy(&mut connection, owned, state) {
            Ok(()) => state.finish.store(true, Ordering::Release),
            Err(failure) => {
                tracing::warn!(error = failure.message, "a checkpoint failed; the WAL keeps everything");
                connection = None;
            }
        }
        state.checkpoints.fetch_add(1, Ordering::Relaxed);
        failpoint!("sqlite.checkpoint.after");
    }
}

fn copy(connection: &mut Option<Connection>, owned: &Owned, state: &State) -> Result<(), Failure> {
    state.latch.check()?;
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(
            connection::checkpointer(&state.path, CACHE_BYTES).map_err(|error| state.failed(&error))?,
        ),
    };
    for round in 0..ROUNDS_MAX {
        let began = Instant::now();
        let done = state.checkpoint(connection)?;
        if let Err(error) = owned.file().sync_data() {
            let message = format!("store file {}: {error}", quoted(&state.path));
            state.latch.sync_failed(&message);
            return state.latch.check();
        }
        if round == 0 {
            let step = state.step.load(Ordering::Relaxed);
            state.step.store(pace(step, began.elapsed()), Ordering::Relaxed);
        }
        if state.pages.load(Ordering::Acquire) - done <= LAST_PAGES {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_done_in_smaller_steps_and_what_does_not_in_larger_ones() {
        assert_eq!(pace(1_000, LONG * 2), 500);
        assert_eq!(pace(1_000, SHORT / 2), 2_000);
        assert_eq!(pace(1_000, (LONG + SHORT) / 2), 1_000);
    }

    #[test]
    fn steps_have_bounds() {
        let after = |took| (0..20).fold(STEP_FIRST, |step, _| pace(step, took));
        assert_eq!(after(LONG * 100), STEP_MIN);
        assert_eq!(after(Duration::ZERO), STEP_MAX);
    }
}
