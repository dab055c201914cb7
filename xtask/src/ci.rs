//! `cargo xtask ci`: what a change must pass before review; and what it adds to `cargo xtask test`, by itself.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use onlyonce_testkit::repository::{self, cargo};
use onlyonce_testkit::verdict::Verdict;

use crate::arguments::Arguments;
use crate::steps::{Ending, Steps, has_cargo, pass};
use crate::test::{self, Count};

/// The release of cargo-deny that is installed where there is none.
const CARGO_DENY: &str = "0.20.2";
/// What `cargo publish` is told in any case: what is published is what is here, and nothing is.
const PUBLISH: [&str; 5] = ["publish", "--workspace", "--dry-run", "--allow-dirty", "--quiet"];

pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    arguments.words(0)?;
    let mut steps = Steps::default();
    let mut count = Count::default();
    test::all(&mut steps, &mut count);
    steps.run("build", build_crates);
    steps.run("advisories", || deny(&["advisories"]));
    let verdict = steps.summary();
    println!("{count}");
    Ok(verdict)
}

/// `cargo xtask crates`: whether the crates could be published as they are.
pub(crate) fn run_crates(arguments: Arguments) -> Result<Verdict> {
    arguments.words(0)?;
    let mut steps = Steps::default();
    steps.run("crates", build_crates);
    Ok(steps.summary())
}

/// `cargo xtask deny`: the whole dependency audit.
pub(crate) fn run_deny(arguments: Arguments) -> Result<Verdict> {
    arguments.words(0)?;
    let mut steps = Steps::default();
    steps.run("deny", || deny(&[]));
    Ok(steps.summary())
}

/// Packs every crate that is published: its manifest, its files, and that its dependencies are in the registry.
pub(crate) fn pack_crates() -> Result<Ending> {
    pass(cargo(&PUBLISH).arg("--no-verify"))
}

/// The same, and builds each from what was packed.
fn build_crates() -> Result<Ending> {
    pass(&mut cargo(&PUBLISH))
}

/// What needs no network: bans, licences and sources. Advisories are downloaded.
pub(crate) fn deny_offline() -> Result<Ending> {
    deny(&["bans", "licenses", "sources"])
}

/// Runs these checks of cargo-deny; all of them where none is named.
fn deny(checks: &[&str]) -> Result<Ending> {
    let mut command = cargo_deny()?;
    pass(command.args(["check", "--hide-inclusion-graph"]).args(checks))
}

/// cargo-deny, installed below the target folder where this machine has none. A debug build is made in a minute and takes
/// seconds to check.
fn cargo_deny() -> Result<Command> {
    if has_cargo("deny") {
        return Ok(cargo(&["deny"]));
    }
    let folder = repository::target()?.join("tools");
    let program = folder.join("bin/cargo-deny");
    if !program.exists() {
        eprintln!("cargo-deny is missing; installing {CARGO_DENY} in {}", folder.display());
        let mut install = cargo(&["install", "--quiet", "--locked", "--debug", "cargo-deny"]);
        install.args(["--version", CARGO_DENY, "--root"]).arg(&folder).env("CARGO_PROFILE_DEV_DEBUG", "0");
        let status = install.status().context("cannot start cargo")?;
        ensure!(
            status.success(),
            "cargo-deny could not be installed; run: cargo install --locked cargo-deny"
        );
    }
    let mut command = Command::new(program);
    command.current_dir(repository::root());
    Ok(command)
}
