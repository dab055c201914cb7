//! The `sqlite3` program: what an operator has at hand, and so what tests look at a store with.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::install;

const REMEDY: &str = "run: cargo xtask engines install (as root), or install the package sqlite3";

/// Installs the program unless it is there.
///
/// # Errors
///
/// Why it cannot be had, with the remedy.
pub fn install() -> Result<(), String> {
    let is_there = || install::succeeds("sqlite3", &["--version"]);
    install::with_apt("sqlite3", &["sqlite3"], is_there).map_err(|error| format!("{error:#}"))
}

/// Runs `commands` on the database at `path`, and gives what the program printed.
///
/// # Panics
///
/// Where the program is missing or fails: it says how.
pub fn run(path: &Path, commands: &str) -> String {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail"]).arg(path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("sqlite3: {error}; {REMEDY}"));
    let mut stdin = child.stdin.take().expect("it is a pipe");
    writeln!(stdin, "{commands};").expect("sqlite3 reads what it is told");
    drop(stdin);
    let ran = child.wait_with_output().expect("sqlite3 ends");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "sqlite3 {commands:?}: {said}");
    String::from_utf8(ran.stdout).expect("sqlite3 prints text")
}
