//! The archive, and how archives are made.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Release, does, fresh, put};

impl Release {
    /// `onlyonce-VERSION-TARGET.tar.gz`
    pub(super) fn archive(&self, bill: &Path, out: &Path) -> Result<PathBuf> {
        let name = format!("onlyonce-{}-{}", self.about.version, self.target);
        let folder = fresh(&out.join(&name))?;
        put(&self.built, &folder.join("onlyonce"), 0o755)?;
        put(bill, &folder.join("onlyonce.cdx.json"), 0o644)?;
        let papers = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];
        for file in papers.into_iter().chain(["onlyonce.example.toml", "onlyonce.schema.json"]) {
            put(&self.root.join(file), &folder.join(file), 0o644)?;
        }
        for file in ["onlyonce.service", "prometheus/onlyonce.rules.yml", "grafana/onlyonce.json"] {
            let name = Path::new(file).file_name().context("a file has a name")?;
            put(&self.root.join("packaging").join(file), &folder.join(name), 0o644)?;
        }
        let archive = out.join(format!("{name}.tar.gz"));
        self.pack(out, &name, &archive)?;
        Ok(archive)
    }

    /// The folder `name` in `out` as a compressed archive, the same each time.
    pub(super) fn pack(&self, out: &Path, name: &str, archive: &Path) -> Result<()> {
        let mut tar = Command::new("tar");
        tar.args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.arg("--mode=u=rwX,go=rX").arg(format!("--mtime=@{}", self.made_at));
        tar.arg(format!("--use-compress-program=gzip --no-name {}", self.effort.level()));
        does(tar.arg("--file").arg(archive).arg("--directory").arg(out).arg(name))
    }
}
