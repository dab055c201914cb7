//! What is not there and can be had: Debian packages, where apt-get may bring them.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// How much of what apt-get said is told where it failed.
const LINES_TOLD: usize = 5;

/// Whether the program answers when it is asked for its version.
pub(crate) fn answers(program: &str, arguments: &[&str]) -> bool {
    let asked = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Installs the packages unless `is_there` already. What cannot be had is an error that says how to have it.
pub(crate) fn by_apt(name: &str, packages: &[&str], is_there: impl Fn() -> bool) -> Result<()> {
    if is_there() {
        return Ok(());
    }
    let packages_text = packages.join(" ");
    eprintln!("{name} is missing; running: apt-get install --yes {packages_text}");
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    let mut said = apt(&install);
    if !is_there() {
        // The lists may be old, or have never been fetched. Whether that worked shows in what comes next.
        apt(&["update"]);
        said = apt(&install);
    }
    if !is_there() {
        bail!(
            "{name} could not be installed: {said}; install it by hand: sudo apt-get install {packages_text}"
        );
    }
    Ok(())
}

/// Runs it and gives the end of what it said.
fn apt(arguments: &[&str]) -> String {
    let mut command = Command::new("apt-get");
    // A package that brings a service must not start it: we start our own, elsewhere.
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    match command.stdin(Stdio::null()).output() {
        Ok(output) => last_lines(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat())),
        Err(error) => format!("apt-get: {error}"),
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES_TOLD)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_installed() {
        assert!(by_apt("nothing", &["no-such-package-of-ours"], || true).is_ok());
    }

    #[test]
    fn the_end_of_what_was_said_is_told() {
        assert_eq!(last_lines("1\n2\n\n3\n4\n5\n6\n"), "2 | 3 | 4 | 5 | 6");
        assert_eq!(last_lines("1\n"), "1");
    }
}
