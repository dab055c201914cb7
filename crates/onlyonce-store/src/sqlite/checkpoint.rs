//! Carrying the WAL over into the file (a checkpoint), beside the writer.
//!
//! SQLite would do it inside a commit, and that one caller would wait for all: measured, 6 ms where others wait 1.8.
//! Here a thread with a connection of its own does it:
//!
//! ```text
//!   writer   ──commit──commit──commit──commit──commit──commit──the rest──commit (from the WAL's start)
//!                 │ long enough                                 ▲
//!   keeper        └──► all so far ──► sync ──► what came since ─┘ little is left
//! ```
//!
//! 1. Once the WAL has so many pages, the keeper carries it over without getting in anybody's way (`PASSIVE`), and again
//!    while more than [`REST_PAGES`] have come since.
//! 2. While anybody writes there is always a rest, and the WAL would grow for ever. So when little is left the keeper
//!    asks the writer to carry it over between two commits; then the WAL begins anew from its start.
//! 3. SQLite syncs the file only at the end of the WAL: beside a writer, never. All that the keeper has carried over would
//!    be left for the writer to sync with the rest, and 64 callers would wait for that: 60 to 75 ms at ten million
//!    records. So the keeper syncs the file itself, first. Nothing relies on it: SQLite still syncs before the WAL begins
//!    anew, and then finds little to do.
//! 4. The writer's own `fsync` waits for the keeper's. How long that takes depends on the disk and on how far the pages
//!    lie apart, which in a large file is far. So the keeper measures it, and [`pace`] says after how many pages it
//!    begins next.
//! 5. The keeper could make the WAL begin anew too (`RESTART`). But then the writer would find that somebody else had
//!    done so, and forget all the pages it has in memory.
//! 6. The WAL's file is not cut short: writing over blocks that exist is faster than growing a file.
//!
//! A checkpoint that fails, as on a full disk, loses nothing: the WAL has everything, and the next one goes on. Where a
//! reader is in the way, as a backup is, the WAL grows until it has left.
//!
//! Needs SQLite 3.51.3 or later: before, a checkpoint beside a writer could, very rarely, damage the file
//! (<https://sqlite.org/wal.html#walresetbug>).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::connection;
use super::file::Handle;
use crate::failpoint;

/// After so many pages the WAL is carried over, until the disk is known.
const STEP_FIRST: i64 = 1_000;
/// At least so many: each time costs two syncs, however little there is.
const STEP_MIN: i64 = 250;
/// At most so many: a process that is killed leaves some 32 MB to recover.
const STEP_MAX: i64 = 8_000;
/// It took too long: whoever committed meanwhile waited about as long.
const LONG: Duration = Duration::from_millis(5);
/// It took so little that more may be carried over at once, which writes a page that changed often only once.
const SHORT: Duration = Duration::from_millis(2);
/// So little is left that the writer may carry it over itself.
const REST_PAGES: i64 = 200;
/// How often the rest is carried over beside the writer; then it is the writer's, however much it is.
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

/// What the writer and the keeper know of the WAL.
struct State {
    /// Pages in the WAL after the last commit.
    pages: AtomicI64,
    /// Pages after which the keeper wants to be told.
    step: AtomicI64,
    /// Set by the keeper: little is left.
    finish: AtomicBool,
    checkpoints: AtomicU64,
}

/// The writer's side.
pub(super) struct Signal {
    state: Arc<State>,
    /// How many pages there were when the keeper was last told.
    told: i64,
    keeper: SyncSender<()>,
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
            failpoint!("sqlite.checkpoint.rest");
            // A failure is the keeper's to meet again.
            let _ = checkpoint(connection);
        }
        let pages = self.state.pages.load(Ordering::Acquire);
        if pages < self.told {
            // It has begun anew.
            self.told = 0;
        }
        if pages - self.told >= self.state.step.load(Ordering::Relaxed) {
            self.told = pages;
            // A full channel: it is told already.
            let _ = self.keeper.try_send(());
        }
    }
}

/// The thread beside the writer. Dropped, it ends with the checkpoint under way; the writer must be gone by then.
pub(super) struct Keeper {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn start(path: &Path, file: &Handle) -> std::io::Result<(Self, Signal)> {
        let (keeper, signals) = mpsc::sync_channel(1);
        let state = Arc::new(State {
            pages: AtomicI64::new(0),
            step: AtomicI64::new(STEP_FIRST),
            finish: AtomicBool::new(false),
            checkpoints: AtomicU64::new(0),
        });
        let (path, file, shared) = (path.to_owned(), file.clone(), state.clone());
        let thread = thread::Builder::new()
            .name("onlyonce-wal".to_owned())
            .spawn(move || keep(&path, &file, &signals, &shared))?;
        let signal = Signal { state: state.clone(), told: 0, keeper };
        Ok((Self { state, thread: Some(thread) }, signal))
    }

    /// How often the WAL was carried over.
    pub(super) fn checkpoints(&self) -> u64 {
        self.state.checkpoints.load(Ordering::Relaxed)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn keep(path: &Path, file: &Handle, signals: &Receiver<()>, state: &State) {
    let mut connection = None;
    while signals.recv().is_ok() {
        failpoint!("sqlite.checkpoint.before");
        match carry_over(&mut connection, path, file, state) {
            Ok(()) => state.finish.store(true, Ordering::Release),
            // Tried again at the next signal: the WAL has everything.
            Err(_) => connection = None,
        }
        state.checkpoints.fetch_add(1, Ordering::Relaxed);
        failpoint!("sqlite.checkpoint.after");
    }
}

fn carry_over(
    connection: &mut Option<Connection>,
    path: &Path,
    file: &Handle,
    state: &State,
) -> rusqlite::Result<()> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(connection::writer(path, CACHE_BYTES)?),
    };
    for round in 0..ROUNDS_MAX {
        let began = Instant::now();
        let done = checkpoint(connection)?;
        // A failure is SQLite's to meet again, before it relies on it.
        let _ = file.sync_data();
        if round == 0 {
            let step = state.step.load(Ordering::Relaxed);
            state.step.store(pace(step, began.elapsed()), Ordering::Relaxed);
        }
        if state.pages.load(Ordering::Acquire) - done <= REST_PAGES {
            break;
        }
    }
    Ok(())
}

/// Carries over what nobody reads any more, and says how many pages of the WAL are by now.
fn checkpoint(connection: &Connection) -> rusqlite::Result<i64> {
    let (_, done) = connection.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), CheckpointMode::PASSIVE)?;
    Ok(i64::from(done))
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
