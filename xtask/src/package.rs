//! `cargo xtask package`: what is released for Linux, in `target/dist`: a static binary, the same with its papers as an archive,
//! and a Debian package.
//!
//! Both are started before they count: each plays the tour (`onlyonce demo --tour`), which ends with 0 only if every promise held.
//! The toolchain's target and the C compiler for musl are installed where they are missing.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use onlyonce_testkit::install::{succeeds, with_apt};
use onlyonce_testkit::repository::{self, cargo};
use onlyonce_testkit::verdict::Verdict;

use crate::arguments::Arguments;

/// How releases are built; `Cargo.toml` says how that differs from `--release`.
const PROFILE: &str = "dist";

pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    arguments.words(0)?;
    let target = format!("{ARCH}-unknown-linux-musl");
    install(&target)?;
    let built = build(&target)?;
    ensure!(is_static(&built)?, "{} needs libraries of the machine it runs on", built.display());
    let out = repository::target()?.join("dist");
    fs::create_dir_all(&out)?;
    let release = Release { version: version()?, target, built, root: repository::root() };
    let archive = release.archive(&out)?;
    let package = release.debian(&out)?;
    play_tour(&release.built)?;
    play_tour(&unpacked(&package, &out)?.join("usr/bin/onlyonce"))?;
    for file in [archive, package] {
        println!("{} ({} KiB)", file.display(), fs::metadata(&file)?.len() / 1024);
    }
    Ok(Verdict::Yes)
}

/// What is released.
struct Release {
    version: String,
    target: String,
    /// The static binary.
    built: PathBuf,
    /// The repository.
    root: PathBuf,
}

/// The target of the toolchain, and a C compiler for it.
fn install(target: &str) -> Result<()> {
    if !has_target(target) {
        eprintln!("the target is missing; running: rustup target add {target}");
        // What it says, it says to whoever watches. Whether it helped is seen below.
        let _ =
            Command::new("rustup").args(["target", "add", target]).current_dir(repository::root()).status();
    }
    ensure!(has_target(target), "the toolchain cannot build for {target}; run: rustup target add {target}");
    with_apt("a C compiler for musl", &["musl-tools"], || succeeds("musl-gcc", &["--version"]))?;
    with_apt("dpkg-deb", &["dpkg"], || succeeds("dpkg-deb", &["--version"]))
}

/// Whether the standard library for this target is there.
fn has_target(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]).current_dir(repository::root());
    let asked = rustc.stderr(Stdio::null()).output();
    asked.is_ok_and(|said| Path::new(String::from_utf8_lossy(&said.stdout).trim()).is_dir())
}

fn build(target: &str) -> Result<PathBuf> {
    let program = ["--package", "onlyonce-server", "--features", "all-stores"];
    let arguments = [&["build", "--locked", "--profile", PROFILE, "--target", target], &program[..]].concat();
    let status = cargo(&arguments).status().context("cannot start cargo")?;
    ensure!(status.success(), "the program does not build; see above");
    Ok(repository::target()?.join(target).join(PROFILE).join("onlyonce"))
}

/// Whether the binary names neither a loader nor a library.
fn is_static(binary: &Path) -> Result<bool> {
    let mut readelf = Command::new("readelf");
    let said = readelf.args(["--program-headers", "--dynamic", "--wide"]).arg(binary).output();
    let said = said.context("cannot run readelf; it comes with the C compiler, in binutils")?;
    ensure!(said.status.success(), "readelf cannot read {}", binary.display());
    let said = String::from_utf8_lossy(&said.stdout);
    Ok(!said.contains("INTERP") && !said.contains("(NEEDED)"))
}

fn version() -> Result<String> {
    let metadata = repository::metadata()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let ours = packages.into_iter().find(|package| package["name"] == "onlyonce-server");
    let version = ours.and_then(|package| package["version"].as_str());
    Ok(version.context("cargo metadata does not know onlyonce-server")?.to_owned())
}

impl Release {
    /// `onlyonce-VERSION-TARGET.tar.gz`
    fn archive(&self, out: &Path) -> Result<PathBuf> {
        let name = format!("onlyonce-{}-{}", self.version, self.target);
        let folder = fresh(&out.join(&name))?;
        put(&self.built, &folder.join("onlyonce"), 0o755)?;
        for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "onlyonce.example.toml"] {
            put(&self.root.join(file), &folder.join(file), 0o644)?;
        }
        for file in ["onlyonce.service", "prometheus/onlyonce.rules.yml", "grafana/onlyonce.json"] {
            let name = Path::new(file).file_name().context("a file has a name")?;
            put(&self.root.join("packaging").join(file), &folder.join(name), 0o644)?;
        }
        let archive = out.join(format!("{name}.tar.gz"));
        let mut tar = Command::new("tar");
        tar.args(["--create", "--gzip", "--owner=0", "--group=0", "--file"]).arg(&archive);
        does(tar.arg("--directory").arg(out).arg(&name))?;
        Ok(archive)
    }

    /// `onlyonce_VERSION_ARCHITECTURE.deb`
    fn debian(&self, out: &Path) -> Result<PathBuf> {
        let architecture = architecture(ARCH)?;
        // To Debian "1.0-rc.1" is later than "1.0", and "1.0~rc.1" earlier.
        let version = self.version.replace('-', "~");
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
        does(Command::new("dpkg-deb").args(["--build", "--root-owner-group"]).arg(&folder).arg(&package))?;
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

/// The files of a package, as they would be installed.
fn unpacked(package: &Path, out: &Path) -> Result<PathBuf> {
    let folder = fresh(&out.join("unpacked"))?;
    does(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&folder))?;
    Ok(folder)
}

/// Starts it: it serves, is killed, and keeps its promises, or ends with another code than 0.
fn play_tour(binary: &Path) -> Result<()> {
    eprintln!("-- {} demo --tour", binary.display());
    does(Command::new(binary).args(["demo", "--tour"]).stdin(Stdio::null()))
}

fn does(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// An empty folder of this name.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write_bytes(to, &bytes, mode)
}

fn write(to: &Path, text: &str, mode: u32) -> Result<()> {
    write_bytes(to, text.as_bytes(), mode)
}

fn write_bytes(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
    fs::write(to, bytes)?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
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
    use super::*;

    /// A package made of a small program instead of ours: Debian's own tool must understand it, and find the files where they belong.
    #[test]
    fn debian_understands_the_package() {
        with_apt("dpkg-deb", &["dpkg"], || succeeds("dpkg-deb", &["--version"])).unwrap();
        let out =
            fresh(&std::env::temp_dir().join(format!("onlyonce-package-{}", std::process::id()))).unwrap();
        let program = out.join("program");
        let script =
            "#!/bin/sh\nif [ \"$1\" = man ]; then echo manual > \"$3/onlyonce.1\"; else echo complete; fi\n";
        write(&program, script, 0o755).unwrap();
        let release = Release {
            version: "1.2.3-rc.1".to_owned(),
            target: "any".to_owned(),
            built: program,
            root: repository::root(),
        };
        let package = release.debian(&out).unwrap();
        let said = |arguments: &[&str]| {
            let output = Command::new("dpkg-deb").args(arguments).arg(&package).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(said(&["--info"]).contains("Version: 1.2.3~rc.1"), "{}", said(&["--info"]));
        let contents = said(&["--contents"]);
        for file in [
            "./usr/bin/onlyonce",
            "./etc/onlyonce/onlyonce.toml",
            "./usr/lib/systemd/system/onlyonce.service",
            "./usr/share/man/man1/onlyonce.1.gz",
            "./usr/share/doc/onlyonce/onlyonce.rules.yml",
        ] {
            assert!(
                contents.lines().any(|line| line.ends_with(file) && line.contains("root/root")),
                "{contents}"
            );
        }
        let unit = unpacked(&package, &out).unwrap().join("usr/lib/systemd/system/onlyonce.service");
        assert!(fs::read_to_string(unit).unwrap().contains("ExecStart=/usr/bin/onlyonce serve"));
        let archive = release.archive(&out).unwrap();
        assert!(succeeds("tar", &["--list", "--file", archive.to_str().unwrap()]));
        fs::remove_dir_all(out).unwrap();
    }
}
