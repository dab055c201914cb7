//! The repository that the running command belongs to: its top folder, cargo run there, and what cargo knows about it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The top of the repository: the nearest folder above the running package whose `Cargo.toml` has a workspace.
///
/// Cargo names the package at run time. The folder that was true at build time may be another clone's, which shares its
/// build products with this one.
///
/// # Panics
///
/// Outside a workspace.
pub fn root() -> PathBuf {
    let package = std::env::var("CARGO_MANIFEST_DIR");
    let package = package.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&package).ancestors().find(|folder| is_workspace(folder));
    root.unwrap_or_else(|| panic!("{package} is in no workspace")).to_path_buf()
}

fn is_workspace(folder: &Path) -> bool {
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml"));
    manifest.is_ok_and(|manifest| manifest.lines().any(|line| line.trim() == "[workspace]"))
}

/// The cargo that runs this command, so that a chosen toolchain stays chosen; at the top of the repository, coloured if
/// a person is watching.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(arguments).current_dir(root());
    if std::io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command
}

/// What `cargo metadata` says, with every dependency.
///
/// # Errors
///
/// Where cargo fails, or does not answer with JSON.
pub fn metadata() -> Result<Value> {
    let output = cargo(&["metadata", "--format-version", "1", "--quiet"]).output();
    let output = output.context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata did not answer with JSON")
}

/// The folder that cargo builds in, where the project's commands keep their files too.
///
/// # Errors
///
/// As [`metadata`].
pub fn target() -> Result<PathBuf> {
    let metadata = metadata()?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(PathBuf::from(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_workspace_above_the_package() {
        let root = root();
        assert!(root.join("ARCHITECTURE.md").is_file(), "{}", root.display());
        assert!(root.join("crates/onlyonce-testkit").is_dir(), "{}", root.display());
    }
}
