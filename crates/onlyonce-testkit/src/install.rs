//! Programs that a test or a command needs, installed from Debian packages, or from PyPI, where they are missing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// How many lines of apt-get's output an error repeats.
const LINES_REPEATED: usize = 5;
/// The file that says which Python packages were installed.
const INSTALLED: &str = "installed";

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

/// Installs Python packages into the folder `venv` in this one, unless the same ones are there already.
///
/// # Errors
///
/// Why it could not, and what to do.
pub fn with_pip(folder: &Path, packages: &[&str]) -> Result<(), String> {
    let has_venv = || succeeds("python3", &["-c", "import venv, ensurepip"]);
    let python = with_apt("python3 with venv", &["python3", "python3-venv"], has_venv);
    python.map_err(|error| format!("{error:#}"))?;
    if has_pip_packages(folder, packages) {
        return Ok(());
    }
    let wanted = packages.join(" ");
    eprintln!("running: pip install {wanted}");
    run(Command::new("python3").args(["-m", "venv", "--clear", "venv"]).current_dir(folder))?;
    let mut pip = Command::new(folder.join("venv/bin/pip"));
    run(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(packages))?;
    let done = folder.join(INSTALLED);
    fs::write(&done, wanted).map_err(|error| format!("{}: {error}", done.display()))
}

/// Whether these packages were installed into this folder.
pub fn has_pip_packages(folder: &Path, packages: &[&str]) -> bool {
    fs::read_to_string(folder.join(INSTALLED)).is_ok_and(|installed| installed == packages.join(" "))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}: {}", output.status, last_lines(&String::from_utf8_lossy(&output.stderr))))
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
