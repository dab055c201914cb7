//! A disk whose syncs can be made to fail, for a process that is started on it.
//!
//! A library (`shim/sync.c`) is compiled and preloaded. It lets syncs fail while a switch is on, and keeps beside every file an
//! image of what a power cut would leave of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../shim/sync.c");

/// The files whose paths begin alike, and the switch.
#[derive(Debug)]
pub struct Disk {
    file: PathBuf,
    library: PathBuf,
    switch: PathBuf,
}

impl Disk {
    /// Of the database at `file` and what lies beside it, with what it needs in `folder`.
    ///
    /// # Panics
    ///
    /// Where the library cannot be compiled. SQLite needs a C compiler too, so there is one.
    pub fn new(folder: &Path, file: &Path) -> Self {
        let (source, library) = (folder.join("sync.c"), folder.join("libsync.so"));
        fs::write(&source, SOURCE).expect("the folder can be written");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        let compiled = compile.arg("-ldl").output().expect("cc can be started");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Self { file: file.to_owned(), library, switch: folder.join("switch") }
    }

    /// What a process on this disk is started with.
    pub fn environment(&self) -> [(&'static str, &Path); 3] {
        [("LD_PRELOAD", &self.library), ("SYNC_SHIM_FILE", &self.file), ("SYNC_SHIM_SWITCH", &self.switch)]
    }

    /// From now on syncs of files whose names end so fail.
    ///
    /// # Panics
    ///
    /// Where the switch cannot be written.
    pub fn fail(&self, ending: &str) {
        fs::write(&self.switch, ending).expect("the folder can be written");
    }

    /// From now on they succeed again. Whether it failed before does not matter.
    pub fn recover(&self) {
        drop(fs::remove_file(&self.switch));
    }

    /// Copies what a power cut would leave to `to` and beside it.
    ///
    /// # Panics
    ///
    /// Where it cannot be written.
    pub fn cut_power(&self, to: &Path) {
        for ending in ["", "-wal"] {
            let named = |path: &Path, more: &str| {
                let mut name = path.as_os_str().to_owned();
                name.push(ending);
                name.push(more);
                PathBuf::from(name)
            };
            let image = named(&self.file, ".disk");
            if image.exists() {
                fs::copy(image, named(to, "")).expect("the image can be copied");
            }
        }
    }
}
