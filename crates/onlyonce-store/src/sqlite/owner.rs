//! One process has the file: a lock on the database file itself.
//!
//! The lock (`flock`) belongs to the file and not to a name, so no second process gets it through a hard link, another path,
//! or by removing a file beside it. It is not one of the locks that SQLite uses (`fcntl`): `sqlite3` beside it reads, and
//! backs up, as it likes. The system drops it when the process ends, however it ends.
//!
//! On Unix, closing a file gives up every `fcntl` lock its process has on it, SQLite's too. So a process opens the file once,
//! before its first connection, and closes it after the last. A list of the files that this process has keeps a second
//! opening in the same process from opening, and so closing, the file at all.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::failure::{Failure, quoted};
use super::file;
use crate::{Error, ErrorKind};

/// The file beside SQLite's own hold on it, locked. Whoever has a connection has one of these, and lets go of it later:
/// the last one closes the file and gives it free.
pub(super) type Owned = Arc<Owner>;

/// The right to the file, until it is dropped.
#[derive(Debug)]
pub(super) struct Owner {
    // Dropped in this order: the list must not say that the file is free before it is closed.
    file: File,
    _listed: Listed,
}

impl Owner {
    /// Takes the file at `path`, which is created where there is none, or says who has it.
    pub(super) fn take(path: &Path) -> Result<Owned, Failure> {
        refuse_ours(path)?;
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(path, holder(&file))),
            Err(TryLockError::Error(error)) => return Err(file::unreadable(path, &error)),
        }
        let listed = Listed::of(&file).ok_or_else(|| taken(path, Some(std::process::id())))?;
        Ok(Arc::new(Self { file, _listed: listed }))
    }

    /// The file, to read its first bytes and to sync it.
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

/// Opening, and so closing, a file that this process has would cost SQLite its locks.
pub(super) fn refuse_ours(path: &Path) -> Result<(), Failure> {
    if OURS.contains(path) { Err(taken(path, Some(std::process::id()))) } else { Ok(()) }
}

fn open(path: &Path) -> Result<File, Failure> {
    let existed = path.symlink_metadata().is_ok();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    file::for_owner_only(&mut options);
    let opened = options.open(path);
    if existed {
        return opened.map_err(|error| file::unreadable(path, &error));
    }
    opened.and_then(|file| file::sync_folder(path).map(|()| file)).map_err(|error| {
        let message = format!(
            "store file {} cannot be created: {error}; allow this process to write to its folder",
            quoted(path)
        );
        Failure::new(file::kind_of(&error), message)
    })
}

fn taken(path: &Path, holder: Option<u32>) -> Failure {
    let name = match holder {
        Some(holder) if holder == std::process::id() => "this process already".to_owned(),
        Some(holder) => format!("process {holder}"),
        None => "another process".to_owned(),
    };
    let message =
        format!("store file {} belongs to {name}; stop that process, or use another file", quoted(path));
    Failure::new(ErrorKind::Misconfigured, message)
}

/// Which process holds the lock, where the system tells: Linux lists every lock with the file's number.
fn holder(file: &File) -> Option<u32> {
    let (_, inode) = identity(file)?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", process, place, ..] = words[..] else { return None };
        let held = place.rsplit(':').next()?.parse::<u64>().ok()?;
        if held == inode { process.parse().ok() } else { None }
    })
}

/// The process that has a store file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number, where the system tells.
    pub process: Option<u32>,
    /// When it was started, where the system tells.
    pub since: Option<SystemTime>,
}

impl Holder {
    /// Who has the file at `path`; none where nobody has, or no file is there. **For another process than the owner's**, as
    /// [`Guest`](super::Guest) is.
    ///
    /// # Errors
    ///
    /// Where the file cannot be opened.
    pub fn of(path: impl AsRef<Path>) -> Result<Option<Self>, Error> {
        let path = path.as_ref();
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(file::unreadable(path, &error).into()),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => {
                let process = holder(&file);
                Ok(Some(Self { process, since: process.and_then(started) }))
            }
            Err(TryLockError::Error(error)) => Err(file::unreadable(path, &error).into()),
        }
    }
}

/// When a process was started, where the system tells: Linux counts hundredths of a second since it was booted.
fn started(process: u32) -> Option<SystemTime> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may contain anything; what follows its last parenthesis are numbers, the 20th of which is meant.
    let (_, numbers) = stat.rsplit_once(')')?;
    let hundredths: u64 = numbers.split_whitespace().nth(19)?.parse().ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let booted: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(UNIX_EPOCH + Duration::from_secs(booted) + Duration::from_millis(hundredths * 10))
}

/// The files that this process has, by device and number.
static OURS: Ours = Ours(Mutex::new(None));

struct Ours(Mutex<Option<HashSet<Identity>>>);

type Identity = (u64, u64);

impl Ours {
    fn contains(&self, path: &Path) -> bool {
        let Some(identity) = std::fs::metadata(path).ok().as_ref().and_then(identity_of) else {
            return false;
        };
        let ours = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ours.as_ref().is_some_and(|ours| ours.contains(&identity))
    }

    fn insert(&self, identity: Identity) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(identity)
    }

    fn remove(&self, identity: Identity) {
        if let Some(ours) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            ours.remove(&identity);
        }
    }
}

/// A file on the list, until it is dropped.
#[derive(Debug)]
struct Listed(Option<Identity>);

impl Listed {
    /// None where it is on the list already.
    fn of(file: &File) -> Option<Self> {
        let identity = identity(file);
        identity.is_none_or(|identity| OURS.insert(identity)).then_some(Self(identity))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(identity) = self.0 {
            OURS.remove(identity);
        }
    }
}

fn identity(file: &File) -> Option<Identity> {
    file.metadata().ok().as_ref().and_then(identity_of)
}

#[cfg(unix)]
fn identity_of(metadata: &std::fs::Metadata) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity_of(_metadata: &std::fs::Metadata) -> Option<Identity> {
    None
}
