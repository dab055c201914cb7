//! A copy of the file while it is in use.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::failure::{Failure, quoted};
use super::{Sqlite, connection, file};
use crate::{Error, ErrorKind};

/// So many pages are copied between two reports of progress.
const STEP_PAGES: i32 = 1_000;
const CACHE_BYTES: usize = 4 << 20;

/// How far a backup has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Pages that are copied.
    pub pages_done: usize,
    /// Pages in all.
    pub pages: usize,
}

impl Sqlite {
    /// Copies all that is stored at this moment into a new file, which can be opened like this one. Nobody waits for
    /// it; while it runs the WAL does not begin anew, so on a busy store it grows by what is written meanwhile.
    ///
    /// The file appears under its name once it is whole and durable.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where `to` exists or cannot be written, `Unavailable` where its disk is full.
    pub async fn backup(
        &self,
        to: impl AsRef<Path>,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<(), Error> {
        let (from, to) = (self.path().to_owned(), to.as_ref().to_owned());
        let owned = self.owned.clone();
        let copying = tokio::task::spawn_blocking(move || {
            let copied = backup(&from, &to, progress);
            // After its connection, which may be the last: the store may have been closed meanwhile.
            drop(owned);
            copied
        });
        match copying.await {
            Ok(copied) => Ok(copied?),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the backup was given up")),
        }
    }
}

pub(super) fn backup(from: &Path, to: &Path, progress: impl FnMut(Progress)) -> Result<(), Failure> {
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let copied = create(to, &partial).and_then(|()| copy(from, &partial, progress));
    let named = copied.and_then(|()| finish(&partial, to).map_err(|error| unwritable(to, &error)));
    if named.is_err() {
        // Nothing but half a copy of ours; where it cannot be removed, its name says what it is.
        let _ = fs::remove_file(&partial);
    }
    named
}

/// Nothing is there yet, and there is a folder for it.
pub(super) fn is_free(to: &Path) -> Result<(), Failure> {
    if to.symlink_metadata().is_ok() {
        let message = format!("backup {} exists already; use a new file", quoted(to));
        return Err(Failure::new(ErrorKind::Misconfigured, message));
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let message = format!("folder {} of the backup does not exist; create it first", quoted(folder));
        return Err(Failure::new(ErrorKind::Misconfigured, message));
    }
    Ok(())
}

fn create(to: &Path, partial: &Path) -> Result<(), Failure> {
    is_free(to)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    file::for_owner_only(&mut options);
    options.open(partial).map(drop).map_err(|error| unwritable(partial, &error))
}

/// One read transaction over the whole copy: otherwise every write in between would make SQLite begin anew.
fn copy(from: &Path, partial: &Path, mut progress: impl FnMut(Progress)) -> Result<(), Failure> {
    let reading = |error: rusqlite::Error| Failure::of(from, &error);
    let writing = |error: rusqlite::Error| Failure::of(partial, &error);
    let source = connection::reader(from, CACHE_BYTES).map_err(reading)?;
    let mut target = Connection::open(partial).map_err(writing)?;
    source.execute_batch("BEGIN; SELECT one FROM onlyonce_store;").map_err(reading)?;
    let backup = Backup::new(&source, &mut target).map_err(reading)?;
    loop {
        let step = backup.step(STEP_PAGES).map_err(writing)?;
        let at = backup.progress();
        let count = |pages: i32| usize::try_from(pages).unwrap_or(0);
        progress(Progress { pages_done: count(at.pagecount - at.remaining), pages: count(at.pagecount) });
        match step {
            StepResult::Done => return Ok(()),
            StepResult::More => {}
            // Somebody else holds the copy, or our own connection: it passes.
            StepResult::Busy | StepResult::Locked | _ => std::thread::yield_now(),
        }
    }
}

fn finish(partial: &Path, to: &Path) -> io::Result<()> {
    fs::File::open(partial)?.sync_all()?;
    fs::rename(partial, to)?;
    file::sync_folder(to)
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let message = format!(
        "backup {} cannot be written: {error}; allow this process to write to its folder, or free some space",
        quoted(path)
    );
    Failure::new(file::kind_of(error), message)
}
