//! The package for npm: `npx onlyonce`.
//!
//! The binary is in it, and npm's `bin` names it: no script runs when it is installed, and nothing is downloaded. `os` and `cpu`
//! keep it from machines it does not run on.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::links::absolute;
use super::{Release, fresh, put, write};

impl Release {
    /// `onlyonce-VERSION.tgz`, as `npm pack` names it.
    pub(super) fn npm(&self, out: &Path) -> Result<PathBuf> {
        // What npm unpacks is in a folder of this name.
        let work = fresh(&out.join("npm"))?;
        let folder = work.join("package");
        put(&self.built, &folder.join("bin/onlyonce"), 0o755)?;
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "onlyonce.schema.json"] {
            put(&self.root.join(file), &folder.join(file), 0o644)?;
        }
        let readme = std::fs::read_to_string(self.root.join("README.md"))?;
        write(&folder.join("README.md"), &absolute(&readme, &self.about), 0o644)?;
        write(&folder.join("package.json"), &format!("{:#}\n", self.manifest()?), 0o644)?;
        let package = out.join(format!("onlyonce-{}.tgz", self.about.version));
        self.pack(&work, "package", &package)?;
        Ok(package)
    }

    fn manifest(&self) -> Result<Value> {
        let about = &self.about;
        Ok(json!({
            "name": "onlyonce",
            "version": about.version,
            "description": about.description,
            "license": format!("({})", about.licence),
            "keywords": about.keywords,
            "repository": {"type": "git", "url": format!("git+{}.git", about.repository)},
            "bin": {"onlyonce": "bin/onlyonce"},
            "os": ["linux"],
            "cpu": [processor(ARCH)?],
        }))
    }
}

/// Node's word for it.
fn processor(arch: &str) -> Result<&'static str> {
    match arch {
        "x86_64" => Ok("x64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no package is made for \"{other}\"; build it with cargo"),
    }
}
