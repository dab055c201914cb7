//! The text files of the repository, as the checks read them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use onlyonce_testkit::repository::root;

/// Folders that are never ours, for a copy without git.
const NOT_OURS: [&str; 3] = [".git", "target", "node_modules"];

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

/// None for what is gone from the working tree, and for what is not text.
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
    let inner = |path: &PathBuf| {
        let inner = path.strip_prefix(root).expect("every path below the root begins with it");
        inner.to_string_lossy().replace('\\', "/")
    };
    Ok(under(root)?.iter().map(inner).collect())
}

/// Every file below a folder, without those in [`NOT_OURS`].
pub(crate) fn under(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
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
                files.push(path);
            }
        }
    }
    Ok(files)
}
