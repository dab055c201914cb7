//! The repository as the checks see it: its files, and what cargo knows about its packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Folders that are never ours, for a copy without git.
const NOT_OURS: [&str; 3] = [".git", "target", "node_modules"];

/// The top of the repository. Cargo says at run time where we are; what was true when we were built may be the folder
/// of another clone that shares its build products with this one.
pub(crate) fn root() -> PathBuf {
    let xtask = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&xtask).parent().expect("xtask lies in the repository").to_path_buf()
}

/// A text file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// From the top of the repository, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn ends_with(&self, suffix: &str) -> bool {
        self.path.ends_with(suffix)
    }

    /// Its lines, counted from one.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// Every text file that is tracked, or would be once added.
pub(crate) fn files() -> Result<Vec<File>> {
    let root = root();
    let paths = match tracked(&root) {
        Some(paths) => paths,
        None => walked(&root)?,
    };
    let mut files: Vec<File> = paths.into_iter().filter_map(|path| read(&root, path)).collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// None for what is gone from the working tree, and for what is no text.
fn read(root: &Path, path: String) -> Option<File> {
    let text = std::fs::read_to_string(root.join(&path)).ok()?;
    Some(File { path, text })
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let list = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| list.lines().map(str::to_owned).collect())
}

/// For an archive without its history: everything but build products.
fn walked(root: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            let is_ours =
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| !NOT_OURS.contains(&name));
            if path.is_dir() && is_ours {
                folders.push(path);
            } else if path.is_file() {
                let inner = path.strip_prefix(root).expect("walked from the root");
                paths.push(inner.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    Ok(paths)
}

/// What `cargo metadata` says, with every dependency.
pub(crate) fn metadata() -> Result<Value> {
    let output = Command::new(cargo())
        .args(["metadata", "--format-version", "1", "--quiet"])
        .current_dir(root())
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata did not answer with JSON")
}

/// Where cargo builds, and where our commands have their files.
pub(crate) fn target() -> Result<PathBuf> {
    let metadata = metadata()?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(PathBuf::from(target))
}

/// The cargo that runs us, so that a chosen toolchain stays chosen.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
