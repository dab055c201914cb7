//! The machine that a server runs on: its folders, its users, its ports.

use std::fs;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::process::free_address;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Names a folder for the data of servers: `cargo xtask test` names one in memory, where syncs cost nothing. What tests do to
/// a server is to kill its process, and that loses nothing of what it has written there.
pub const DATA_VARIABLE: &str = "TESTKIT_DATA";

/// The folder for the data of servers of this kind, where [`DATA_VARIABLE`] names one.
pub(super) fn named_place(server: &str) -> Option<Result<PathBuf, String>> {
    let folder = PathBuf::from(std::env::var_os(DATA_VARIABLE)?).join(server);
    let created = fs::create_dir_all(&folder);
    Some(match created {
        Ok(()) => Ok(folder),
        Err(error) => Err(format!("{DATA_VARIABLE}: {}: {error}", folder.display())),
    })
}

/// Beside what was built, where the user of the server gets there; else among the temporary files.
pub(super) fn place(server: &str, user: &str) -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
    let built = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    let candidates = built
        .into_iter()
        .map(|folder| folder.join(server))
        .chain([std::env::temp_dir().join(format!("onlyonce-{server}"))]);
    let mut reason = String::new();
    for folder in candidates {
        match fs::create_dir_all(&folder) {
            Ok(()) if can_reach(&folder, user) => return Ok(folder),
            Ok(()) => reason = format!("user \"{user}\" cannot reach {}", folder.display()),
            Err(error) => reason = format!("{}: {error}", folder.display()),
        }
    }
    Err(reason)
}

fn can_reach(folder: &Path, user: &str) -> bool {
    let looked = as_user(user, Path::new("ls"))
        .arg(folder)
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    looked.is_ok_and(|status| status.success())
}

/// A command as a user that a server runs as: ourselves, unless we are root.
pub(super) fn as_user(user: &str, program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--init-groups", "--"]).arg(program);
    command
}

pub(super) fn give_away(folder: &Path, user: &str) -> Result<(), String> {
    if !is_root() {
        return Ok(());
    }
    let status = Command::new("chown").args(["-R", user]).arg(folder).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("chown to user \"{user}\": {status}; run `cargo xtask engines install`")),
        Err(error) => Err(format!("chown: {error}")),
    }
}

/// A small disk in this folder, which belongs to the user of the server. It takes root to mount it.
pub(super) fn mount_disk(disk: &Path, megabytes: u32, user: &str) {
    fs::create_dir_all(disk).unwrap_or_else(|error| panic!("{}: {error}", disk.display()));
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "onlyonce"]).arg(disk);
    let mounted = mount.output().unwrap_or_else(|error| panic!("mount can be started: {error}"));
    let why = String::from_utf8_lossy(&mounted.stderr);
    assert!(mounted.status.success(), "a small disk cannot be mounted: {why}; run the tests as root");
    give_away(disk, user).unwrap_or_else(|reason| panic!("{reason}"));
}

/// Fills that disk, and gives the file that does it, for the test to remove.
pub(super) fn fill_disk(disk: &Path) -> PathBuf {
    let filler = disk.join("filler");
    let mut file = fs::File::create(&filler).unwrap_or_else(|error| panic!("{}: {error}", filler.display()));
    let all = std::io::copy(&mut std::io::repeat(1), &mut file);
    assert!(all.is_err(), "a disk that takes everything is not full");
    filler
}

pub(super) fn take_disk_away(disk: &Path) {
    if disk.exists() {
        // Most servers have none.
        let _ = Command::new("umount").arg(disk).output();
    }
}

pub(super) fn is_root() -> bool {
    let asked = Command::new("id").arg("-u").output();
    asked.is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}

pub(super) fn free_port() -> Result<u16, String> {
    free_address().map(|address| address.port()).map_err(|error| format!("no port is free: {error}"))
}

/// The name of this test run, and the process that ends with it.
pub(super) fn run() -> (String, u32) {
    match std::env::var("NEXTEST_RUN_ID") {
        // Every test is a process, and nextest is the parent of all of them.
        Ok(run) => (run, parent_id()),
        Err(_) => (format!("process-{}", std::process::id()), std::process::id()),
    }
}

/// Waits until a process has ended, and forgets it then. Whether there is none any more.
pub(super) fn wait_until_gone(process: &mut Option<Child>, within: Duration) -> bool {
    let Some(child) = process else { return true };
    let began = Instant::now();
    while began.elapsed() < within {
        if matches!(child.try_wait(), Ok(Some(_))) {
            *process = None;
            return true;
        }
        sleep(LOOK_EVERY);
    }
    false
}

/// The end of a log, the last line first.
pub(super) fn last_lines(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    log.lines().rev().take(5).collect::<Vec<_>>().join("; ")
}

/// A name that no other test uses.
pub(super) fn fresh_name() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    static BEGAN: OnceLock<u128> = OnceLock::new();
    // A run is many processes, and the system uses their numbers again.
    let began = BEGAN.get_or_init(|| {
        std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() % 1_000_000_000_000)
    });
    format!("test_{}_{began}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}
