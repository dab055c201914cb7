//! The file before SQLite sees it: is it there, is it ours, is it whole?
//!
//! SQLite may write to a file just by opening it: it recovers, it carries the WAL over. So whatever may be somebody
//! else's, of a newer release or half written is judged from its first bytes, and refused untouched.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::failure::{Failure, quoted};
use super::migration;
use crate::ErrorKind;

/// `PRAGMA application_id` of our files: "OnO2".
pub(super) const APPLICATION_ID: u32 = 0x4f6e_4f32;
/// Of files from before a record was a row of columns: "OnO1". They kept part of what was acknowledged in files beside them.
const APPLICATION_ID_BEFORE: u32 = 0x4f6e_4f31;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER_BYTES: usize = 100;

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing yet, or an empty file.
    Nothing,
    /// A file of ours, as far as its header says.
    Ours,
}

/// The path with its folder resolved.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, Failure> {
    if path.is_dir() {
        let message = format!(
            "store path {} is a folder; use a file in it, such as {}",
            quoted(path),
            quoted(&path.join("onlyonce.db"))
        );
        return Err(Failure::new(ErrorKind::Misconfigured, message));
    }
    if let Ok(resolved) = fs::canonicalize(path) {
        return Ok(resolved);
    }
    let Some(name) = path.file_name() else {
        let message = format!("store path {} has no file name; add one", quoted(path));
        return Err(Failure::new(ErrorKind::Misconfigured, message));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let resolved = fs::canonicalize(folder).map_err(|error| {
        let message =
            format!("folder {} of the store cannot be used: {error}; create it first", quoted(folder));
        Failure::new(ErrorKind::Misconfigured, message)
    })?;
    Ok(resolved.join(name))
}

/// Judges what is at `path` by its first bytes, without SQLite. For a process that does not have the file.
pub(super) fn inspect_at(path: &Path) -> Result<Found, Failure> {
    match File::open(path) {
        Ok(file) => inspect(path, &file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// The same of a file that is open.
pub(super) fn inspect(path: &Path, mut file: &File) -> Result<Found, Failure> {
    let length = file.metadata().map_err(|error| unreadable(path, &error))?.len();
    if length == 0 {
        return Ok(Found::Nothing);
    }
    let mut header = [0; HEADER_BYTES];
    if file.read_exact(&mut header).is_err() || !header.starts_with(MAGIC) {
        return Err(foreign(path, "is not an SQLite database"));
    }
    judge(path, &Header(header), length)?;
    Ok(Found::Ours)
}

fn judge(path: &Path, header: &Header, length: u64) -> Result<(), Failure> {
    match header.number(68) {
        APPLICATION_ID => {}
        APPLICATION_ID_BEFORE => return Err(before_columns(path)),
        _ => return Err(foreign(path, "is a database of another program")),
    }
    newer_is_refused(path, header.number(60))?;
    // After a crash the WAL has what the file lacks; without one the file must be whole.
    let has_wal = fs::metadata(beside(path, "wal")).is_ok_and(|wal| wal.len() > 0);
    let has_journal = fs::metadata(beside(path, "journal")).is_ok_and(|journal| journal.len() > 0);
    let expected = header.bytes();
    if !has_wal && !has_journal && length < expected {
        let message = format!(
            "store file {} has {length} of its {expected} bytes: it was copied or written in part; \
             restore it from a backup",
            quoted(path)
        );
        return Err(Failure::new(ErrorKind::Corrupt, message));
    }
    Ok(())
}

/// A schema that this release does not know.
pub(super) fn newer_is_refused(path: &Path, version: u32) -> Result<(), Failure> {
    if version <= migration::LATEST {
        return Ok(());
    }
    let message = format!(
        "store file {} has schema version {version}, this release knows up to {}: it was written by a newer release; \
         upgrade this one",
        quoted(path),
        migration::LATEST
    );
    Err(Failure::new(ErrorKind::Misconfigured, message))
}

/// The first bytes of a SQLite file.
struct Header([u8; HEADER_BYTES]);

impl Header {
    fn number(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// How long the file says it is; a page size of 1 stands for 65,536.
    fn bytes(&self) -> u64 {
        let page = match u16::from_be_bytes([self.0[16], self.0[17]]) {
            1 => 65_536,
            bytes => u64::from(bytes),
        };
        page * u64::from(self.number(28))
    }
}

/// Makes names in the folder of `path` durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// What is created is readable by its owner only. SQLite gives `-wal` and `-shm` the mode of the database.
pub(super) fn for_owner_only(options: &mut OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    #[cfg(not(unix))]
    let _ = options;
}

/// The file beside the database that SQLite names after it.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-");
    name.push(ending);
    PathBuf::from(name)
}

/// A disk that is full or failing comes back; anything else is a matter of settings.
pub(super) fn kind_of(error: &io::Error) -> ErrorKind {
    let passes = matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ResourceBusy
    );
    if passes { ErrorKind::Unavailable } else { ErrorKind::Misconfigured }
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let message = format!(
        "store file {} cannot be read: {error}; allow this process to read and write it",
        quoted(path)
    );
    Failure::new(kind_of(error), message)
}

fn before_columns(path: &Path) -> Failure {
    let message = format!(
        "store file {} was made by a development build of Onlyonce whose records this release cannot read, and was left as \
         it is; finish its keys with that build, then name a new file",
        quoted(path)
    );
    Failure::new(ErrorKind::Misconfigured, message)
}

fn foreign(path: &Path, what: &str) -> Failure {
    let message = format!(
        "store file {} {what}, and was not changed; use another file, which Onlyonce creates",
        quoted(path)
    );
    Failure::new(ErrorKind::Misconfigured, message)
}
