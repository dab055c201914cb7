//! What the bench needs besides itself: wrk, the built servers, and enough open files.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::folder;
use crate::repository;

/// Open files we ask for where nothing limits them.
const FILES_ENOUGH: u64 = 100_000;

pub(super) struct Tools {
    target: PathBuf,
    /// How many files a process may open, once it has raised its own limit.
    pub(super) files_max: u64,
    /// The unit of CPU time in /proc.
    pub(super) ticks_per_second: f64,
}

impl Tools {
    pub(super) fn prepare() -> Result<Self> {
        install_wrk()?;
        let metadata = repository::metadata()?;
        let target =
            metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
        let hard_limit = said(Command::new("sh").args(["-c", "ulimit -Hn"]))?;
        let ticks = said(Command::new("getconf").arg("CLK_TCK"))?;
        // Beside the product's own build, whose profiles and features differ.
        let target = PathBuf::from(target).join("bench");
        folder::remove_stale(&target.join("stores"))?;
        Ok(Self {
            target,
            files_max: hard_limit.parse().unwrap_or(FILES_ENOUGH).min(FILES_ENOUGH),
            ticks_per_second: ticks.parse().context("getconf CLK_TCK gave no number")?,
        })
    }

    /// Builds one package of the bench, for release.
    pub(super) fn build(&self, package: &str) -> Result<()> {
        eprintln!("building {package}");
        let status = Command::new(repository::cargo())
            .args(["build", "--release", "--quiet", "--package", package, "--target-dir"])
            .arg(&self.target)
            .current_dir(repository::root().join("bench"))
            .status()?;
        if !status.success() {
            bail!("{package} does not build; see above");
        }
        Ok(())
    }

    /// Where servers may keep files: on the disk that the project is built on, which a temporary folder may not be.
    pub(super) fn stores(&self) -> PathBuf {
        self.target.join("stores")
    }

    /// A command for a binary of the bench that may open as many files as the machine lets it.
    pub(super) fn command(&self, package: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &self.files_max.to_string()]);
        command.arg(self.target.join("release").join(package));
        command
    }
}

fn install_wrk() -> Result<()> {
    let has_wrk =
        || Command::new("wrk").arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if has_wrk() {
        return Ok(());
    }
    eprintln!("wrk is missing; running: apt-get install --yes wrk");
    let installed = Command::new("apt-get").args(["install", "--yes", "wrk"]).stdout(Stdio::null()).status();
    if !has_wrk() {
        let why = installed.map_or_else(|error| error.to_string(), |status| status.to_string());
        bail!(
            "wrk could not be installed (apt-get: {why}); install it by hand, e.g. `sudo apt-get install wrk`"
        );
    }
    Ok(())
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a load and gives its output. One that does not end in time is stopped: the bench always ends.
pub(super) fn output_within(command: &mut Command, time: Duration) -> Result<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().expect("stdout was piped");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > time {
            child.kill()?;
            child.wait()?;
            bail!("{:?} did not end within {time:?}", command.get_program());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = reader.join().expect("a reader of text does not panic")?;
    if !status.success() {
        bail!("{:?}: {status}: {text}", command.get_program());
    }
    Ok(text)
}
