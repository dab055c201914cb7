//! Programs that a test or a command needs, installed from Debian packages where they are missing.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// How many lines of apt-get's output an error repeats.
const LINES_REPEATED: usize = 5;

/// Whether the program runs with these arguments and exits with 0.
pub fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Installs the packages unless `is_installed` already.
///
/// # Errors
///
/// Where that fails, with the command to run by hand.
pub fn with_apt(name: &str, packages: &[&str], is_installed: impl Fn() -> bool) -> Result<()> {
    if is_installed() {
        return Ok(());
    }
    let packages_text = packages.join(" ");
    eprintln!("{name} is missing; running: apt-get install --yes {packages_text}");
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    let mut output = apt(&install);
    if !is_installed() {
        // The package lists may be old, or have never been fetched. If the update fails, so does the next install.
        apt(&["update"]);
        output = apt(&install);
    }
    if !is_installed() {
        bail!(
            "{name} could not be installed: {output}; install it by hand: sudo apt-get install {packages_text}"
        );
    }
    Ok(())
}

/// Runs apt-get and gives the end of its output.
fn apt(arguments: &[&str]) -> String {
    let mut command = Command::new("apt-get");
    // A package with a service must not start it: tests start their own, elsewhere.
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    match command.stdin(Stdio::null()).output() {
        Ok(output) => last_lines(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat())),
        Err(error) => format!("apt-get: {error}"),
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES_REPEATED)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_not_installed() {
        assert!(with_apt("nothing", &["no-such-package-of-ours"], || true).is_ok());
    }

    #[test]
    fn the_last_lines_of_the_output_are_repeated() {
        assert_eq!(last_lines("1\n2\n\n3\n4\n5\n6\n"), "2 | 3 | 4 | 5 | 6");
        assert_eq!(last_lines("1\n"), "1");
    }
}
