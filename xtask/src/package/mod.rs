//! `cargo xtask package`: what is released for Linux, in `target/dist`: a static binary, and packages around it with its papers. An
//! archive, a Debian package, a wheel for pip, a package for npm; a list of what was built in (SBOM), and checksums of all of them.
//!
//! 1. Each package is installed into an empty folder by the tool of its users, without network, and started there, before it
//!    counts (`trial.rs`). The tour (`onlyonce demo --tour`) ends with 0 only if every promise held.
//! 2. The same binary makes the same packages: files have one time, `SOURCE_DATE_EPOCH` or a constant, one owner, one order.
//! 3. With `--program=FILE` the packages are made around a program that is built already, in `target/packages`: that is how
//!    `cargo xtask test` tests them. They are not released: that program is as it is, perhaps not static.
//!
//! The toolchain's target, the C compiler for musl, and the tools that install packages are installed where they are missing.

mod archive;
mod debian;
mod links;
mod npm;
mod sbom;
mod sums;
mod trial;
mod wheel;
mod zip;

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use onlyonce_testkit::install::{succeeds, with_apt};
use onlyonce_testkit::repository::{self, cargo};
use onlyonce_testkit::verdict::Verdict;
use serde_json::Value;

use crate::arguments::Arguments;

/// How releases are built; `Cargo.toml` says how that differs from `--release`.
const PROFILE: &str = "dist";
/// The package whose program is released, and the features it is built with.
const PACKAGE: &str = "onlyonce-server";
const FEATURES: &str = "all-stores";
/// The time of all files where `SOURCE_DATE_EPOCH` gives none: 1980-01-01, the earliest that a zip can say.
const MADE_AT: u64 = 315_532_800;

pub(crate) fn run(mut arguments: Arguments) -> Result<Verdict> {
    let program = arguments.value("--program")?.map(PathBuf::from);
    arguments.words(0)?;
    match program {
        Some(program) => around(&program),
        None => released(),
    }
}

fn released() -> Result<Verdict> {
    let target = target();
    install(&target)?;
    let built = build(&target)?;
    ensure!(is_static(&built)?, "{} needs libraries of the machine it runs on", built.display());
    make(built, "dist", Effort::Release)
}

/// Packages around a program that is built already, each tried.
pub(crate) fn around(program: &Path) -> Result<Verdict> {
    with_apt("strip", &["binutils"], || succeeds("strip", &["--version"]))?;
    let folder = fresh(&repository::target()?.join("packages"))?;
    let stripped = folder.join("onlyonce");
    // Most of a debug build is what debuggers read.
    does(Command::new("strip").arg("-o").arg(&stripped).arg(program))?;
    make(stripped, "packages", Effort::Test)
}

fn make(built: PathBuf, folder: &str, effort: Effort) -> Result<Verdict> {
    with_apt("dpkg-deb", &["dpkg"], || succeeds("dpkg-deb", &["--version"]))?;
    let out = repository::target()?.join(folder);
    fs::create_dir_all(&out)?;
    let release = Release {
        about: About::of(&repository::metadata()?)?,
        target: target(),
        built,
        root: repository::root(),
        made_at: made_at()?,
        effort,
    };
    let bill = release.bill(&out)?;
    let files = Files {
        archive: release.archive(&bill, &out)?,
        debian: release.debian(&out)?,
        wheel: release.wheel(&bill, &out)?,
        npm: release.npm(&out)?,
        bill,
    };
    let sums = sums::write(&files.all(), &out)?;
    trial::all(&files, &sums, &release, &out)?;
    for file in files.all().into_iter().chain([sums.as_path()]) {
        println!("{} ({} KiB)", file.display(), fs::metadata(file)?.len().div_ceil(1024));
    }
    Ok(Verdict::Yes)
}

/// What is released.
struct Release {
    about: About,
    target: String,
    /// The binary.
    built: PathBuf,
    /// The repository.
    root: PathBuf,
    /// The time that all files have, in unix seconds.
    made_at: u64,
    effort: Effort,
}

/// What `Cargo.toml` says of the program.
struct About {
    version: String,
    description: String,
    licence: String,
    repository: String,
    keywords: Vec<String>,
}

/// What was made.
struct Files {
    archive: PathBuf,
    debian: PathBuf,
    wheel: PathBuf,
    npm: PathBuf,
    bill: PathBuf,
}

impl Files {
    fn all(&self) -> [&Path; 5] {
        let Self { archive, debian, wheel, npm, bill } = self;
        [archive, debian, wheel, npm, bill]
    }
}

/// How much time is spent on making packages small.
#[derive(Clone, Copy)]
enum Effort {
    Release,
    Test,
}

impl Effort {
    /// As a flag of gzip.
    fn level(self) -> &'static str {
        match self {
            Self::Release => "-9",
            Self::Test => "-1",
        }
    }
}

impl About {
    fn of(metadata: &Value) -> Result<Self> {
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let ours = packages.into_iter().find(|package| package["name"] == PACKAGE);
        let ours = ours.with_context(|| format!("cargo metadata does not know {PACKAGE}"))?;
        let text = |name: &str| {
            let text = ours[name].as_str().with_context(|| format!("{PACKAGE} has no {name}"))?;
            anyhow::Ok(text.to_owned())
        };
        let keywords = ours["keywords"].as_array().into_iter().flatten();
        Ok(Self {
            version: text("version")?,
            description: text("description")?,
            licence: text("license")?,
            repository: text("repository")?,
            keywords: keywords.filter_map(|keyword| Some(keyword.as_str()?.to_owned())).collect(),
        })
    }
}

fn target() -> String {
    format!("{ARCH}-unknown-linux-musl")
}

fn made_at() -> Result<u64> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => {
            text.parse().with_context(|| format!("SOURCE_DATE_EPOCH \"{text}\" is not a number of seconds"))
        }
        Err(_) => Ok(MADE_AT),
    }
}

/// The target of the toolchain, and a C compiler for it.
fn install(target: &str) -> Result<()> {
    if !has_target(target) {
        eprintln!("the target is missing; running: rustup target add {target}");
        // What it says, it says to whoever watches. Whether it helped is seen below.
        let _ =
            Command::new("rustup").args(["target", "add", target]).current_dir(repository::root()).status();
    }
    ensure!(has_target(target), "the toolchain cannot build for {target}; run: rustup target add {target}");
    with_apt("a C compiler for musl", &["musl-tools"], || succeeds("musl-gcc", &["--version"]))
}

/// Whether the standard library for this target is there.
fn has_target(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]).current_dir(repository::root());
    let asked = rustc.stderr(Stdio::null()).output();
    asked.is_ok_and(|said| Path::new(String::from_utf8_lossy(&said.stdout).trim()).is_dir())
}

fn build(target: &str) -> Result<PathBuf> {
    let program = ["--package", PACKAGE, "--features", FEATURES];
    let arguments = [&["build", "--locked", "--profile", PROFILE, "--target", target], &program[..]].concat();
    let status = cargo(&arguments).status().context("cannot start cargo")?;
    ensure!(status.success(), "the program does not build; see above");
    Ok(repository::target()?.join(target).join(PROFILE).join("onlyonce"))
}

/// Whether the binary names neither a loader nor a library.
fn is_static(binary: &Path) -> Result<bool> {
    let mut readelf = Command::new("readelf");
    let said = readelf.args(["--program-headers", "--dynamic", "--wide"]).arg(binary).output();
    let said = said.context("cannot run readelf; it comes with the C compiler, in binutils")?;
    ensure!(said.status.success(), "readelf cannot read {}", binary.display());
    let said = String::from_utf8_lossy(&said.stdout);
    Ok(!said.contains("INTERP") && !said.contains("(NEEDED)"))
}

fn does(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// What it prints.
fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// An empty folder of this name.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write_bytes(to, &bytes, mode)
}

fn write(to: &Path, text: &str, mode: u32) -> Result<()> {
    write_bytes(to, text.as_bytes(), mode)
}

fn write_bytes(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
    fs::write(to, bytes)?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// All files below a folder, in the order of their names.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(files_below(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn about() -> About {
        About {
            version: "1.2.3-rc.1".to_owned(),
            description: "A gateway.".to_owned(),
            licence: "MIT OR Apache-2.0".to_owned(),
            repository: "https://example.org/o".to_owned(),
            keywords: vec!["http".to_owned()],
        }
    }

    /// Packages around a small program instead of ours, in an empty folder.
    pub(super) fn release(name: &str) -> (Release, PathBuf) {
        let out = std::env::temp_dir().join(format!("onlyonce-package-{name}-{}", std::process::id()));
        let out = fresh(&out).unwrap();
        let program = out.join("program");
        let script = "#!/bin/sh\ncase \"$1\" in\n  man) echo manual > \"$3/onlyonce.1\" ;;\n  --version) echo onlyonce 1.2.3-rc.1 ;;\n  \
                      *) echo complete ;;\nesac\n";
        write(&program, script, 0o755).unwrap();
        let release = Release {
            about: about(),
            target: target(),
            built: program,
            root: repository::root(),
            made_at: MADE_AT,
            effort: Effort::Test,
        };
        (release, out)
    }

    fn made(release: &Release, out: &Path) -> Files {
        let bill = out.join("onlyonce.cdx.json");
        fs::write(&bill, "{}\n").unwrap();
        Files {
            archive: release.archive(&bill, out).unwrap(),
            debian: release.debian(out).unwrap(),
            wheel: release.wheel(&bill, out).unwrap(),
            npm: release.npm(out).unwrap(),
            bill,
        }
    }

    /// Every package, installed and started, around a small program.
    #[test]
    fn every_package_can_be_installed_and_started() {
        let (release, out) = release("all");
        let files = made(&release, &out);
        let sums = sums::write(&files.all(), &out).unwrap();
        trial::all(&files, &sums, &release, &out).unwrap();
        // A program that says another version is not what the packages are named for.
        let other = Release { about: About { version: "1.2.4".to_owned(), ..about() }, ..release };
        let files = made(&other, &out);
        let sums = sums::write(&files.all(), &out).unwrap();
        let error = trial::all(&files, &sums, &other, &out).unwrap_err().to_string();
        assert!(error.contains("1.2.3-rc.1"), "{error}");
        fs::remove_dir_all(out).unwrap();
    }

    #[test]
    fn the_same_program_makes_the_same_packages() {
        let (release, out) = release("same");
        let read = |files: Files| files.all().map(|file| fs::read(file).unwrap());
        let first = read(made(&release, &out));
        // The clock that a file could have must be another one.
        let program = fs::File::options().write(true).open(&release.built).unwrap();
        program.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        drop(program);
        let second = read(made(&release, &out));
        for (at, (first, second)) in first.iter().zip(&second).enumerate() {
            assert!(first == second, "package {at} is not the same");
        }
        fs::remove_dir_all(out).unwrap();
    }
}
