//! The demo's store: from `--store`, or a temporary file.

use std::fs::{self, DirBuilder};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::store::Url;

/// A store and, where it is our own, the folder it is in.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) url: Url,
    folder: Option<Folder>,
}

impl Place {
    pub(crate) fn new(chosen: Option<&str>) -> Result<Self> {
        if let Some(chosen) = chosen {
            return Ok(Self { url: chosen.parse()?, folder: None });
        }
        let folder = Folder::create()?;
        Ok(Self { url: Url::Sqlite(folder.0.join("onlyonce.db")), folder: Some(folder) })
    }

    /// For people: where the records are, and whether they are kept.
    pub(crate) fn told(&self) -> String {
        let fate = match (&self.folder, self.url.is_durable()) {
            (Some(_), _) => ", removed when it ends",
            (None, true) => ", kept",
            (None, false) => ", forgotten when it ends",
        };
        format!("{}{fate}", self.url)
    }
}

/// A folder that only its owner can read, removed on drop.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("onlyonce-demo-{}", unique()));
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path).with_context(|| {
            format!("cannot create folder \"{}\"; choose a place with --store sqlite:PATH", path.display())
        })?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If it cannot be removed, it stays in the temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A name that no other run of the demo has.
pub(crate) fn unique() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), since.as_nanos())
}
