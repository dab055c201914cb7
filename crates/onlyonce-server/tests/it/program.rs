//! Runs the program in a temporary folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// No test asks the metadata service of the machine it runs on for credentials.
pub(crate) fn onlyonce() -> Command {
    let mut onlyonce = Command::new(env!("CARGO_BIN_EXE_onlyonce"));
    onlyonce.env("AWS_EC2_METADATA_DISABLED", "true");
    onlyonce
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    onlyonce().args(arguments).output().expect("the program can be started")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the program writes text")
}

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("onlyonce-server-it-{}-{number}", std::process::id()));
        // A process of the same number may have left one when it was killed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the folder for temporary files can be written");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// `sqlite:PATH` of a file in it.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("sqlite:{}", self.0.join(name).display())
    }

    /// Runs the program in this folder.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        onlyonce().current_dir(&self.0).args(arguments).output().expect("the program can be started")
    }

    /// What is in it, byte by byte.
    pub(crate) fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(&self.0).expect("readable").map(|entry| entry.expect("readable"));
        let name = |entry: &fs::DirEntry| entry.file_name().into_string().expect("text");
        entries.map(|entry| (name(&entry), fs::read(entry.path()).unwrap_or_default())).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed lies in the folder for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}
