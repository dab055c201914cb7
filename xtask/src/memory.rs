//! A folder in memory for what tests write: their servers' data and their temporary files.
//!
//! Syncs cost nothing there, and they are most of the time of tests with a server. Nothing is proven less: tests kill processes, which
//! loses nothing that was written, and those about power cuts and failing syncs bring a disk of their own (`testkit/src/disk.rs`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use onlyonce_testkit::engines::DATA_VARIABLE;

/// Where Linux has a file system in memory.
const MEMORY: &str = "/dev/shm";
const NAME: &str = "onlyonce-test-";
/// What a run may take, with room for the compiler. With less, tests use the disk.
const FREE_MB_MIN: u64 = 10_000;
/// Servers end some moments after the run, and write until then.
const REMOVALS_MAX: u32 = 40;

/// It is removed when this is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// None where there is no such file system, or not enough of it.
    pub(crate) fn new() -> Option<Self> {
        remove_abandoned();
        if free_mb()? < FREE_MB_MIN {
            return None;
        }
        let folder = Path::new(MEMORY).join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        // As `/tmp`: servers run as users of their own.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).ok()?;
        Some(Self(folder))
    }

    /// Has a command that runs tests use it.
    pub(crate) fn name_to(&self, command: &mut Command) {
        command.env("TMPDIR", &self.0).env(DATA_VARIABLE, &self.0);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            if fs::remove_dir_all(&self.0).is_ok() {
                return;
            }
            sleep(Duration::from_millis(250));
        }
        eprintln!("{} cannot be removed; remove it by hand", self.0.display());
    }
}

/// Folders of runs that were killed.
fn remove_abandoned() {
    for entry in fs::read_dir(MEMORY).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(NAME)).map(str::to_owned);
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// What can be written there: as much as the file system takes, and as there is memory.
fn free_mb() -> Option<u64> {
    let df = Command::new("df").args(["--output=avail", "--block-size=1000000", MEMORY]).output().ok()?;
    let room: u64 = String::from_utf8_lossy(&df.stdout).lines().nth(1)?.trim().parse().ok()?;
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available_kb: u64 = available.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(room.min(available_kb / 1000))
}
