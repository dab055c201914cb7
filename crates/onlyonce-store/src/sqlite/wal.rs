//! Carrying the WAL over into the file (a checkpoint), beside the writer.
//!
//! SQLite would do it inside a commit, and that one caller would wait for all: measured, 6 ms where others wait 1.8.
//! Here a thread with a connection of its own does it whenever the WAL has grown by [`PAGES_DUE`]:
//!
//! 1. First without getting in anybody's way (`PASSIVE`), again while that makes the rest smaller.
//! 2. As long as anybody writes, there is always a rest, and the WAL would grow for ever. So above [`PAGES_MAX`] the
//!    little that is left is carried over while the writer waits (`RESTART`), and the WAL begins anew from its start.
//!    Where a reader is in the way, as a backup is, it is tried again later.
//! 3. The WAL's file is not cut short each time: writing over blocks that exist is faster than growing a file.
//!
//! A checkpoint that fails, as on a full disk, loses nothing: the WAL has everything, and the next one goes on.
//!
//! Needs SQLite 3.51.3 or later: before, a checkpoint beside a writer could, very rarely, damage the file
//! (<https://sqlite.org/wal.html#walresetbug>).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::connection;
use crate::failpoint;

/// After so many pages the WAL is carried over.
pub(super) const PAGES_DUE: i64 = 2_000;
/// Above so many pages the writer waits for the rest to be carried over.
const PAGES_MAX: i64 = 4 * PAGES_DUE;
/// So little is left that the writer may wait for it.
const REST_PAGES: i32 = 200;
/// How often the rest is carried over without getting in the way, at most.
const ROUNDS_MAX: usize = 4;
/// How long the writer may wait for a reader to leave.
const RESTART_WITHIN: Duration = Duration::from_millis(5);
/// What remains of the WAL's file when it begins anew, after something kept it from doing so for long.
const FILE_BYTES_KEPT: i64 = 64 << 20;
const CACHE_BYTES: usize = 1 << 20;

/// How the writer tells that there is something to do.
pub(super) struct Signal {
    /// Pages in the WAL after the last commit.
    pages: Arc<AtomicI64>,
    /// When to say so next.
    due: i64,
    sender: SyncSender<()>,
}

impl Signal {
    /// Makes the writer's connection count the pages of its WAL.
    pub(super) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let pages = self.pages.clone();
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count: i32| {
            pages.store(i64::from(count), Ordering::Release);
            Ok(())
        }))
    }

    /// After every commit.
    pub(super) fn committed(&mut self) {
        let pages = self.pages.load(Ordering::Acquire);
        if pages < self.due - PAGES_DUE {
            // It has begun anew.
            self.due = PAGES_DUE;
        }
        if pages >= self.due {
            self.due = pages + PAGES_DUE;
            // A full channel: it is told already.
            let _ = self.sender.try_send(());
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
        let (sender, signals) = mpsc::sync_channel(1);
        let (path, checkpoints) = (path.to_owned(), Arc::<AtomicU64>::default());
        let count = checkpoints.clone();
        let thread = thread::Builder::new().name("onlyonce-wal".to_owned()).spawn(move || {
            keep(&path, &signals, &count);
        })?;
        let signal = Signal { pages: Arc::default(), due: PAGES_DUE, sender };
        Ok((Self { checkpoints, thread: Some(thread) }, signal))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn keep(path: &Path, signals: &Receiver<()>, count: &AtomicU64) {
    let mut connection = None;
    while signals.recv().is_ok() {
        failpoint!("sqlite.checkpoint.before");
        // Whatever fails here is tried again at the next signal: the WAL has everything.
        if carry_over(&mut connection, path).is_err() {
            connection = None;
        }
        count.fetch_add(1, Ordering::Relaxed);
        failpoint!("sqlite.checkpoint.after");
    }
}

fn carry_over(connection: &mut Option<Connection>, path: &Path) -> rusqlite::Result<()> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(open(path)?),
    };
    let mut rest_before = i32::MAX;
    for _ in 0..ROUNDS_MAX {
        let (pages, done) = checkpoint(connection, CheckpointMode::PASSIVE)?;
        let rest = pages - done;
        if rest <= REST_PAGES || rest >= rest_before {
            return restart_if_long(connection, pages);
        }
        rest_before = rest;
    }
    Ok(())
}

fn restart_if_long(connection: &Connection, pages: i32) -> rusqlite::Result<()> {
    if i64::from(pages) < PAGES_MAX {
        return Ok(());
    }
    failpoint!("sqlite.checkpoint.restart");
    match checkpoint(connection, CheckpointMode::RESTART) {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => Ok(()),
        other => other.map(drop),
    }
}

fn checkpoint(connection: &Connection, mode: CheckpointMode) -> rusqlite::Result<(i32, i32)> {
    connection.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), mode)
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connection::writer(path, CACHE_BYTES)?;
    connection.busy_timeout(RESTART_WITHIN)?;
    connection.pragma_update(None, "journal_size_limit", FILE_BYTES_KEPT)?;
    Ok(connection)
}
