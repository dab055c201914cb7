//! The `sqlite3` program: what an operator has at hand, and so what tests look at a store with.

use std::path::Path;
use std::process::Command;

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
    let ran = Command::new("sqlite3").arg("-batch").arg("-bail").arg(path).arg(commands).output();
    let ran = ran.unwrap_or_else(|error| panic!("sqlite3: {error}; {REMEDY}"));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "sqlite3 {commands:?}: {said}");
    String::from_utf8(ran.stdout).expect("sqlite3 prints text")
}
