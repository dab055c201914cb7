//! Folders for the files of servers under measurement. Each is gone when its value is; what a bench that was killed
//! left behind, the next one removes.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::tools::Tools;

pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(tools: &Tools) -> Result<Self> {
        let parent = tools.stores();
        let made = std::fs::create_dir_all(&parent).and_then(|()| create(&parent));
        Ok(Self(made.with_context(|| format!("cannot make a folder in {}", parent.display()))?))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The store file in it.
    pub(crate) fn store(&self) -> PathBuf {
        self.0.join("store.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// The first number that is free in this process.
fn create(parent: &Path) -> Result<PathBuf, Error> {
    for number in 0_u32.. {
        let path = parent.join(format!("{}-{number}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Removes what belongs to processes that are gone.
pub(crate) fn remove_stale(parent: &Path) -> Result<()> {
    let Ok(folders) = std::fs::read_dir(parent) else { return Ok(()) };
    for folder in folders {
        let folder = folder?;
        let name = folder.file_name();
        let pid = name.to_str().and_then(|name| name.split_once('-')).map(|(pid, _)| pid);
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            std::fs::remove_dir_all(folder.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_belongs_to_the_living_stays() {
        let parent = std::env::temp_dir().join(format!("onlyonce-bench-stale-{}", std::process::id()));
        let [own, dead] = [std::process::id(), u32::MAX].map(|pid| parent.join(format!("{pid}-0")));
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir_all(&dead).unwrap();
        remove_stale(&parent).unwrap();
        assert!(own.exists() && !dead.exists());
        std::fs::remove_dir_all(&parent).unwrap();
    }
}
