//! Carrying the WAL over into the file (a checkpoint), beside the writer.
//!
//! SQLite would do it inside a commit, and that one caller would wait for all: measured, 6 ms where others wait 1.8.
//! Here a thread with a connection of its own does it:
//!
//! ```text
//!   writer   ──commit──commit──commit──commit──commit──the rest──commit (from the WAL's start)
//!                 │ long enough                          ▲
//!   keeper        └──► all so far ──► what came since ───┘ little is left
//! ```
//!
//! 1. Once the WAL has [`PAGES_DUE`] pages, the keeper carries it over without getting in anybody's way (`PASSIVE`),
//!    and again while that makes the rest smaller.
//! 2. While anybody writes there is always a rest, and the WAL would grow for ever. So when little is left the keeper
//!    asks the writer to carry it over between two commits; then the WAL begins anew from its start.
//! 3. The keeper could do that too (`RESTART`). But then the writer would find that somebody else had begun the WAL
//!    anew, and forget all the pages it has in memory.
//! 4. The WAL's file is not cut short: writing over blocks that exist is faster than growing a file.
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

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::connection;
use crate::failpoint;

/// After so many pages the WAL is carried over, and again after so many more. With 64 callers fewer than one swap in a
/// hundred then meets the writer at the rest; and a process that is killed leaves some 32 MB to recover.
const PAGES_DUE: i64 = 8_000;
/// So little is left that the writer may carry it over itself.
const REST_PAGES: i32 = 100;
/// How often the rest is carried over beside the writer; then it is the writer's, however much it is.
const ROUNDS_MAX: usize = 5;
/// What remains of the WAL's file when it begins anew, after something kept it from doing so for long.
const FILE_BYTES_KEPT: i64 = 64 << 20;
const CACHE_BYTES: usize = 1 << 20;

/// The writer's side.
pub(super) struct Signal {
    /// Pages in the WAL after the last commit.
    pages: Arc<AtomicI64>,
    /// When to tell the keeper next.
    due: i64,
    keeper: SyncSender<()>,
    /// Set by the keeper: little is left.
    finish: Arc<AtomicBool>,
}

impl Signal {
    /// Makes the writer's connection count the pages of its WAL.
    pub(super) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        connection.pragma_update(None, "journal_size_limit", FILE_BYTES_KEPT)?;
        let pages = self.pages.clone();
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count: i32| {
            pages.store(i64::from(count), Ordering::Release);
            Ok(())
        }))
    }

    /// After every commit, when its callers have their answers.
    pub(super) fn committed(&mut self, connection: &Connection) {
        if self.finish.swap(false, Ordering::AcqRel) {
            failpoint!("sqlite.checkpoint.rest");
            // A failure is the keeper's to meet again.
            let _ = checkpoint(connection, CheckpointMode::PASSIVE);
        }
        let pages = self.pages.load(Ordering::Acquire);
        if pages < self.due - PAGES_DUE {
            // It has begun anew.
            self.due = PAGES_DUE;
        }
        if pages >= self.due {
            self.due = pages + PAGES_DUE;
            // A full channel: it is told already.
            let _ = self.keeper.try_send(());
        }
    }
}

/// The thread beside the writer. Dropped, it ends with the checkpoint under way; the writer must be gone by then.
pub(super) struct Keeper {
    pub(super) checkpoints: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn start(path: &Path) -> std::io::Result<(Self, Signal)> {
        let (keeper, signals) = mpsc::sync_channel(1);
        let signal = Signal { pages: Arc::default(), due: PAGES_DUE, keeper, finish: Arc::default() };
        let checkpoints = Arc::<AtomicU64>::default();
        let (path, count, finish) = (path.to_owned(), checkpoints.clone(), signal.finish.clone());
        let thread = thread::Builder::new()
            .name("onlyonce-wal".to_owned())
            .spawn(move || keep(&path, &signals, &finish, &count))?;
        Ok((Self { checkpoints, thread: Some(thread) }, signal))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn keep(path: &Path, signals: &Receiver<()>, finish: &AtomicBool, count: &AtomicU64) {
    let mut connection = None;
    while signals.recv().is_ok() {
        failpoint!("sqlite.checkpoint.before");
        match carry_over(&mut connection, path) {
            Ok(()) => finish.store(true, Ordering::Release),
            // Tried again at the next signal: the WAL has everything.
            Err(_) => connection = None,
        }
        count.fetch_add(1, Ordering::Relaxed);
        failpoint!("sqlite.checkpoint.after");
    }
}

fn carry_over(connection: &mut Option<Connection>, path: &Path) -> rusqlite::Result<()> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(connection::writer(path, CACHE_BYTES)?),
    };
    for _ in 0..ROUNDS_MAX {
        let (pages, done) = checkpoint(connection, CheckpointMode::PASSIVE)?;
        if pages - done <= REST_PAGES {
            break;
        }
    }
    Ok(())
}

/// How many pages the WAL has, and how many of them are carried over.
fn checkpoint(connection: &Connection, mode: CheckpointMode) -> rusqlite::Result<(i32, i32)> {
    connection.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), mode)
}
