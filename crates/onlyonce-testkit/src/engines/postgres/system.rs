//! The machine that a server runs on: its folders, its users, its ports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{REMEDY, USER};
use crate::process::free_address;

/// Beside what was built, where the user of the server gets there; else among the temporary files.
pub(super) fn place() -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
    let built = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    let candidates = built
        .into_iter()
        .map(|folder| folder.join("postgres"))
        .chain([std::env::temp_dir().join("onlyonce-postgres")]);
    let mut reason = String::new();
    for folder in candidates {
        match fs::create_dir_all(&folder) {
            Ok(()) if can_reach(&folder) => return Ok(folder),
            Ok(()) => reason = format!("user \"{USER}\" cannot reach {}", folder.display()),
            Err(error) => reason = format!("{}: {error}", folder.display()),
        }
    }
    Err(reason)
}

fn can_reach(folder: &Path) -> bool {
    let looked = as_user(Path::new("ls"))
        .arg(folder)
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    looked.is_ok_and(|status| status.success())
}

/// A command as a user that PostgreSQL runs as: ourselves, unless we are root.
pub(super) fn as_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]).arg(program);
    command
}

pub(super) fn give_away(folder: &Path) -> Result<(), String> {
    if !is_root() {
        return Ok(());
    }
    let status = Command::new("chown").args(["-R", USER]).arg(folder).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("chown to user \"{USER}\": {status}; {REMEDY}")),
        Err(error) => Err(format!("chown: {error}")),
    }
}

pub(super) fn is_root() -> bool {
    let asked = Command::new("id").arg("-u").output();
    asked.is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}

pub(super) fn free_port() -> Result<u16, String> {
    free_address().map(|address| address.port()).map_err(|error| format!("no port is free: {error}"))
}
