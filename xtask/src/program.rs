//! Commands that are packages of their own: `cargo xtask` builds and runs them when they are asked for.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, anyhow};
use onlyonce_testkit::repository::cargo;
use onlyonce_testkit::verdict::Verdict;

pub(crate) const BENCH: &str = "onlyonce-bench";
pub(crate) const CHAOS: &str = "onlyonce-chaos";

/// Builds the program where that is needed, and runs it with these arguments.
pub(crate) fn command(package: &str, arguments: &[String]) -> Command {
    let mut command = cargo(&["run", "--quiet", "--package", package, "--"]);
    command.args(arguments);
    command
}

/// Replaces this process by the program, whose exit code and signals are then ours. Returns only where that fails.
pub(crate) fn become_program(package: &str, arguments: &[String]) -> Result<Verdict> {
    let error = command(package, arguments).exec();
    Err(anyhow!(error).context(format!("cannot start cargo for {package}")))
}
