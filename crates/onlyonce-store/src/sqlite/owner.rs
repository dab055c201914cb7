//! One process has the file. A second one is told which.
//!
//! The lock is the system's, on a file beside the database: it goes with the process, however that ends, and does not
//! get in the way of SQLite's own locks on the database. What stands in the lock file is for people.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::failure::{Failure, quoted};
use super::file::beside;
use crate::ErrorKind;

/// The right to the file, until it is dropped.
#[derive(Debug)]
pub(super) struct Owner {
    lock: File,
}

impl Owner {
    /// Takes the file at `path`, or says who has it.
    pub(super) fn take(path: &Path) -> Result<Self, Failure> {
        let lock_path = beside(path, "lock");
        let mut lock = open(&lock_path).map_err(|error| unusable(&lock_path, &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(path, &mut lock)),
            Err(TryLockError::Error(error)) => return Err(unusable(&lock_path, &error)),
        }
        let mut owner = Self { lock };
        owner.sign().map_err(|error| unusable(&lock_path, &error))?;
        Ok(owner)
    }

    /// Whether somebody has, or had, the file at `path`.
    pub(super) fn has_been_here(path: &Path) -> bool {
        beside(path, "lock").exists()
    }

    fn sign(&mut self) -> std::io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        writeln!(self.lock, "process {} since {}", std::process::id(), date(SystemTime::now()))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // The next owner writes its own name; until then nobody should read ours. Failing that is harmless.
        let _ = self.lock.set_len(0);
        let _ = self.lock.unlock();
    }
}

fn open(path: &PathBuf) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    super::file::for_owner_only(&mut options);
    options.open(path)
}

fn taken(path: &Path, lock: &mut File) -> Failure {
    let mut name = String::new();
    let is_signed = lock.read_to_string(&mut name).is_ok() && !name.trim().is_empty();
    let name = if is_signed { name.trim() } else { "another process" };
    let message = format!(
        "store file {} belongs to {name}; stop that process, or give this one a file of its own",
        quoted(path)
    );
    Failure::new(ErrorKind::Misconfigured, message)
}

fn unusable(lock_path: &Path, error: &std::io::Error) -> Failure {
    let message = format!(
        "lock file {} cannot be used: {error}; let this process write in its folder",
        quoted(lock_path)
    );
    Failure::new(super::file::kind_of(error), message)
}

/// RFC 3339 in UTC, to the second. (Days to a date by Howard Hinnant's `civil_from_days`.)
fn date(moment: SystemTime) -> String {
    let seconds = moment.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_told_as_people_read_them() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!(date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
