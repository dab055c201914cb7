//! Each package as a user gets it: installed into an empty folder by its own tool, and started there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use onlyonce_testkit::install::{succeeds, with_apt};

use super::{Files, Release, does, fresh, output};

/// A registry that nobody serves: what is installed must be in the package.
const NO_REGISTRY: &str = "http://127.0.0.1:9/";
const RECORD: &str = include_str!("record.py");

/// What is started after an installation.
#[derive(Clone, Copy)]
enum Start {
    /// It says its version.
    Version,
    /// It serves, is killed, and keeps its promises, or ends with another code than 0.
    Tour,
}

pub(super) fn all(files: &Files, sums: &Path, release: &Release, out: &Path) -> Result<()> {
    let folder = fresh(&out.join("trial"))?;
    let version = &release.about.version;
    let program = archive(files, sums, &folder.join("archive"))?;
    start(&program, version, Start::Tour)?;
    let program = debian(&files.debian, &folder.join("debian"))?;
    start(&program, version, Start::Version)?;
    let environment = wheel(&files.wheel, &folder.join("wheel"))?;
    let program = environment.join("bin/onlyonce");
    start(&program, version, Start::Tour)?;
    does(python(&environment).args(["-m", "pip", "uninstall", "--quiet", "--yes", "onlyonce"]))?;
    ensure!(!program.exists(), "pip does not remove {}", program.display());
    npm(&files.npm, version, &folder.join("npm"))?;
    Ok(fs::remove_dir_all(folder)?)
}

/// What was downloaded is checked, and the archive unpacked.
fn archive(files: &Files, sums: &Path, folder: &Path) -> Result<PathBuf> {
    eprintln!("-- {}", files.archive.display());
    fs::create_dir_all(folder)?;
    for file in files.all().into_iter().chain([sums]) {
        fs::copy(file, folder.join(name(file)?))?;
    }
    let check = ["--check", "--strict", "--quiet", "SHA256SUMS"];
    does(Command::new("sha256sum").args(check).current_dir(folder))?;
    let archive = name(&files.archive)?;
    does(Command::new("tar").args(["--extract", "--file", archive]).current_dir(folder))?;
    let unpacked = archive.strip_suffix(".tar.gz").context("the archive is a .tar.gz")?;
    Ok(folder.join(unpacked).join("onlyonce"))
}

/// The files of the package, as they would be installed.
pub(super) fn debian(package: &Path, folder: &Path) -> Result<PathBuf> {
    eprintln!("-- {}", package.display());
    does(Command::new("dpkg-deb").arg("--extract").arg(package).arg(folder))?;
    Ok(folder.join("usr/bin/onlyonce"))
}

/// Installs it into a virtual environment of its own.
fn wheel(wheel: &Path, folder: &Path) -> Result<PathBuf> {
    eprintln!("-- {}", wheel.display());
    // Debian has Python without what makes a virtual environment; importing both is how that shows.
    let has_venv = || succeeds("python3", &["-c", "import venv, ensurepip"]);
    with_apt("python3 with venv", &["python3", "python3-venv"], has_venv)?;
    fs::create_dir_all(folder)?;
    does(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(folder))?;
    let environment = folder.join("venv");
    does(python(&environment).args(["-c", RECORD]).arg(wheel))?;
    let install = ["-m", "pip", "install", "--no-index", "--quiet", "--disable-pip-version-check"];
    does(python(&environment).args(install).arg(wheel))?;
    Ok(environment)
}

/// Python of an environment, without the settings of whoever runs this.
fn python(environment: &Path) -> Command {
    let mut python = Command::new(environment.join("bin/python"));
    python.env("PIP_CONFIG_FILE", "/dev/null").arg("-I");
    python
}

/// Installs it into an empty folder, and starts it by its name.
fn npm(package: &Path, version: &str, folder: &Path) -> Result<()> {
    eprintln!("-- {}", package.display());
    with_apt("node and npm", &["nodejs", "npm"], || {
        succeeds("node", &["--version"]) && succeeds("npm", &["--version"])
    })?;
    fs::create_dir_all(folder)?;
    let npm = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).current_dir(folder).env("npm_config_registry", NO_REGISTRY);
        command.env("npm_config_cache", folder.join("cache")).env("npm_config_update_notifier", "false");
        command
    };
    let install = ["install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
    does(npm("npm", &install).args(["--prefix", "."]).arg(package))?;
    let said = output(&mut npm("npx", &["--no-install", "onlyonce", "--version"]))?;
    is_version(&said, version)
}

fn start(program: &Path, version: &str, start: Start) -> Result<()> {
    is_version(&output(Command::new(program).arg("--version"))?, version)?;
    match start {
        Start::Version => Ok(()),
        Start::Tour => {
            eprintln!("-- {} demo --tour", program.display());
            output(Command::new(program).args(["demo", "--tour"])).map(drop)
        }
    }
}

fn is_version(said: &str, version: &str) -> Result<()> {
    let expected = format!("onlyonce {version}");
    ensure!(said.trim_end() == expected, "it says that it is \"{}\", not \"{expected}\"", said.trim_end());
    Ok(())
}

fn name(file: &Path) -> Result<&str> {
    file.file_name().and_then(|name| name.to_str()).context("a package has a name")
}
