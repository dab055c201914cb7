//! The Debian package.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{Effort, Release, does, fresh, put, write};

impl Release {
    /// `onlyonce_VERSION_ARCHITECTURE.deb`
    pub(super) fn debian(&self, out: &Path) -> Result<PathBuf> {
        let architecture = architecture(ARCH)?;
        // To Debian "1.0-rc.1" is later than "1.0", and "1.0~rc.1" earlier.
        let version = self.about.version.replace('-', "~");
        let folder = fresh(&out.join("deb"))?;
        let papers = folder.join("usr/share/doc/onlyonce");
        put(&self.built, &folder.join("usr/bin/onlyonce"), 0o755)?;
        let unit = fs::read_to_string(self.root.join("packaging/onlyonce.service"))?;
        let unit = unit.replace("/usr/local/bin/", "/usr/bin/");
        write(&folder.join("usr/lib/systemd/system/onlyonce.service"), &unit, 0o644)?;
        put(&self.root.join("onlyonce.example.toml"), &folder.join("etc/onlyonce/onlyonce.toml"), 0o644)?;
        for file in
            ["CHANGELOG.md", "packaging/prometheus/onlyonce.rules.yml", "packaging/grafana/onlyonce.json"]
        {
            let name = Path::new(file).file_name().context("a file has a name")?;
            put(&self.root.join(file), &papers.join(name), 0o644)?;
        }
        let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|file| fs::read_to_string(self.root.join(file)));
        let [mit, apache] = licences;
        write(
            &papers.join("copyright"),
            &format!("MIT or Apache-2.0, at your choice.\n\n{}\n\n{}", mit?, apache?),
            0o644,
        )?;
        let schema = folder.join("usr/share/onlyonce/onlyonce.schema.json");
        put(&self.root.join("onlyonce.schema.json"), &schema, 0o644)?;
        self.write_manual(&folder.join("usr/share/man/man1"))?;
        let bash = Command::new(&self.built).args(["completions", "bash"]).output()?;
        ensure!(bash.status.success(), "{} completions bash: {}", self.built.display(), bash.status);
        let completions = folder.join("usr/share/bash-completion/completions/onlyonce");
        write(&completions, &String::from_utf8(bash.stdout)?, 0o644)?;
        let installed_kib = size(&folder)?.div_ceil(1024);
        write(&folder.join("DEBIAN/control"), &control(&version, architecture, installed_kib), 0o644)?;
        write(&folder.join("DEBIAN/conffiles"), "/etc/onlyonce/onlyonce.toml\n", 0o644)?;
        write(&folder.join("DEBIAN/postinst"), POSTINST, 0o755)?;
        let package = out.join(format!("onlyonce_{version}_{architecture}.deb"));
        let mut build = Command::new("dpkg-deb");
        build.args(match self.effort {
            Effort::Release => &["-Zxz"][..],
            Effort::Test => &["-Zgzip", "-z1"],
        });
        build.args(["--build", "--root-owner-group"]).arg(&folder).arg(&package);
        does(build.env("SOURCE_DATE_EPOCH", self.made_at.to_string()))?;
        Ok(package)
    }

    /// The manual pages of every command, compressed as Debian wants them.
    fn write_manual(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        does(Command::new(&self.built).args(["man", "--dir"]).arg(folder))?;
        for page in fs::read_dir(folder)? {
            does(Command::new("gzip").args(["--best", "--no-name"]).arg(page?.path()))?;
        }
        Ok(())
    }
}

/// It is not started by itself: its settings must name a service first.
const POSTINST: &str = "#!/bin/sh\nset -e\nif [ \"$1\" = configure ] && [ -d /run/systemd/system ]; then\n    systemctl daemon-reload\nfi\n";

fn control(version: &str, architecture: &str, installed_kib: u64) -> String {
    format!(
        "Package: onlyonce\nVersion: {version}\nArchitecture: {architecture}\nInstalled-Size: {installed_kib}\n\
         Maintainer: Onlyonce <packages@onlyonce.dev>\nSection: net\nPriority: optional\nRecommends: ca-certificates\n\
         Homepage: https://github.com/onlyonce-dev/onlyonce\n\
         Description: gateway that makes any HTTP write safe to retry\n \
         A request with an Idempotency-Key runs at most once, its answer is replayed byte for\n \
         byte, and when nobody can know whether it ran, the gateway says so and finds out.\n"
    )
}

/// Debian's word for it.
fn architecture(arch: &str) -> Result<&'static str> {
    match arch {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no package is made for \"{other}\"; build it with cargo"),
    }
}

/// The bytes of all files below a folder.
fn size(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        sum += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use onlyonce_testkit::install::{succeeds, with_apt};

    use super::super::{output, tests::release, trial};
    use super::*;

    /// Debian's own tool must understand it, and find the files where they belong.
    #[test]
    fn debian_understands_the_package() {
        with_apt("dpkg-deb", &["dpkg"], || succeeds("dpkg-deb", &["--version"])).unwrap();
        let (release, out) = release("debian");
        let package = release.debian(&out).unwrap();
        let said = |argument: &str| output(Command::new("dpkg-deb").arg(argument).arg(&package)).unwrap();
        assert!(said("--info").contains("Version: 1.2.3~rc.1"), "{}", said("--info"));
        let contents = said("--contents");
        for file in [
            "./usr/bin/onlyonce",
            "./etc/onlyonce/onlyonce.toml",
            "./usr/lib/systemd/system/onlyonce.service",
            "./usr/share/man/man1/onlyonce.1.gz",
            "./usr/share/doc/onlyonce/onlyonce.rules.yml",
            "./usr/share/onlyonce/onlyonce.schema.json",
        ] {
            assert!(
                contents.lines().any(|line| line.ends_with(file) && line.contains("root/root")),
                "{contents}"
            );
        }
        let installed = out.join("installed");
        trial::debian(&package, &installed).unwrap();
        let unit = fs::read_to_string(installed.join("usr/lib/systemd/system/onlyonce.service")).unwrap();
        assert!(unit.contains("ExecStart=/usr/bin/onlyonce serve"));
        fs::remove_dir_all(out).unwrap();
    }
}
