//! A disk whose syncs can be made to fail, for a process that is started on it.
//!
//! A library (`shim/sync.c`) is compiled and preloaded. It lets syncs fail while a switch is on, and keeps beside every file an
//! image of what a power cut would leave of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../shim/sync.c");

/// A database file, the files beside it, and the switch.
#[derive(Debug)]
pub struct Disk {
    file: PathBuf,
    library: PathBuf,
    switch: PathBuf,
}

impl Disk {
    /// The disk of the database at `file` and of the files beside it. The library and the switch are put into `folder`.
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

    /// The environment of a process that uses this disk.
    pub fn environment(&self) -> [(&'static str, &Path); 3] {
        [("LD_PRELOAD", &self.library), ("SYNC_SHIM_FILE", &self.file), ("SYNC_SHIM_SWITCH", &self.switch)]
    }

    /// From now on syncs fail for files whose names end with `ending`.
    ///
    /// # Panics
    ///
    /// Where the switch cannot be written.
    pub fn fail(&self, ending: &str) {
        fs::write(&self.switch, ending).expect("the folder can be written");
    }

    /// From now on syncs succeed again, if they failed at all.
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
