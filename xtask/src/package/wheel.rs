//! The wheel for pip (PEP 427): `pip install onlyonce`, `uvx onlyonce`.
//!
//! The binary is a script of the wheel, so pip puts it on the path with its mode, and no Python runs when it is started. It needs
//! no library, so both families of tags hold: manylinux for glibc, of any version from 2.17, and musllinux.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::links::absolute;
use super::sums::sha256;
use super::zip::zip;
use super::{About, Release, files_below, fresh, put, write};

const NAME: &str = "onlyonce";
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

impl Release {
    /// `onlyonce-VERSION-py3-none-PLATFORMS.whl`
    pub(super) fn wheel(&self, bill: &Path, out: &Path) -> Result<PathBuf> {
        ensure!(
            matches!(ARCH, "x86_64" | "aarch64"),
            "no wheel is made for \"{ARCH}\"; build the program with cargo"
        );
        let version = version(&self.about.version)?;
        let platforms = [format!("manylinux_2_17_{ARCH}"), format!("musllinux_1_1_{ARCH}")];
        let folder = fresh(&out.join("wheel"))?;
        put(&self.built, &folder.join(format!("{NAME}-{version}.data/scripts/onlyonce")), 0o755)?;
        let info = folder.join(format!("{NAME}-{version}.dist-info"));
        let readme = fs::read_to_string(self.root.join("README.md"))?;
        write(&info.join("METADATA"), &metadata(&self.about, &version, &readme), 0o644)?;
        write(&info.join("WHEEL"), &tags(&platforms), 0o644)?;
        for file in LICENCES {
            put(&self.root.join(file), &info.join("licenses").join(file), 0o644)?;
        }
        // Where PEP 770 has it.
        put(bill, &info.join("sboms/onlyonce.cdx.json"), 0o644)?;
        write(&info.join("RECORD"), &record(&folder, &info)?, 0o644)?;
        let wheel = out.join(format!("{NAME}-{version}-py3-none-{}.whl", platforms.join(".")));
        zip(&folder, &wheel, self.effort)?;
        Ok(wheel)
    }
}

/// What PEP 440 calls a version: `1.2.3-rc.1` is `1.2.3rc1`.
fn version(version: &str) -> Result<String> {
    let Some((release, early)) = version.split_once('-') else { return Ok(version.to_owned()) };
    let Some((kind, number)) = early.split_once('.').filter(|(_, number)| number.parse::<u32>().is_ok())
    else {
        bail!("version \"{version}\" has no form for Python; write it like 1.2.3-rc.1");
    };
    let kind = match kind {
        "alpha" => "a",
        "beta" => "b",
        "rc" => "rc",
        _ => bail!("version \"{version}\" has no form for Python; write it like 1.2.3-rc.1"),
    };
    Ok(format!("{release}{kind}{number}"))
}

fn metadata(about: &About, version: &str, readme: &str) -> String {
    let About { description, licence, repository, keywords, .. } = about;
    let licences: String = LICENCES.iter().map(|file| format!("License-File: {file}\n")).collect();
    format!(
        "Metadata-Version: 2.4\nName: {NAME}\nVersion: {version}\nSummary: {description}\n\
         License-Expression: {licence}\n{licences}Keywords: {}\nProject-URL: Repository, {repository}\n\
         Classifier: Operating System :: POSIX :: Linux\nDescription-Content-Type: text/markdown\n\n{}",
        keywords.join(","),
        absolute(readme, about)
    )
}

fn tags(platforms: &[String]) -> String {
    let tags: String = platforms.iter().map(|platform| format!("Tag: py3-none-{platform}\n")).collect();
    format!("Wheel-Version: 1.0\nGenerator: cargo xtask package\nRoot-Is-Purelib: false\n{tags}")
}

/// Every file with its digest and size, and the record itself without.
fn record(folder: &Path, info: &Path) -> Result<String> {
    let mut record = String::new();
    for file in files_below(folder)? {
        let name = file.strip_prefix(folder)?.to_str().context("the name of a file is not text")?;
        let size = fs::metadata(&file)?.len();
        record.push_str(&format!("{name},sha256={},{size}\n", base64(&sha256(&file)?)));
    }
    let own = info.strip_prefix(folder)?.join("RECORD");
    record.push_str(&format!("{},,\n", own.display()));
    Ok(record)
}

/// As it stands in URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let three = |bytes: &[u8]| {
        let bits = bytes.iter().chain(&[0, 0]).take(3).fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        let digits = [18, 12, 6, 0].map(|shift| char::from(DIGITS[bits >> shift & 63]));
        digits[..bytes.len() + 1].iter().collect::<String>()
    };
    bytes.chunks(3).map(three).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::about;
    use super::*;

    #[test]
    fn versions_are_written_as_python_has_them() {
        assert_eq!(version("0.1.0").unwrap(), "0.1.0");
        assert_eq!(version("1.2.3-rc.1").unwrap(), "1.2.3rc1");
        assert_eq!(version("1.2.3-beta.2").unwrap(), "1.2.3b2");
        for wrong in ["1.2.3-rc", "1.2.3-rc.x", "1.2.3-nightly.1"] {
            assert!(version(wrong).is_err(), "{wrong}");
        }
    }

    /// RFC 4648, with its alphabet for URLs.
    #[test]
    fn base64_is_that_of_the_rfc_without_padding() {
        for (bytes, expected) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("fooba", "Zm9vYmE")]
        {
            assert_eq!(base64(bytes.as_bytes()), expected);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn the_metadata_is_a_header_and_the_readme() {
        let metadata = metadata(&about(), "1.2.3rc1", "# Onlyonce\n\nSee [a](docs/a.md).\n");
        let (head, body) = metadata.split_once("\n\n").unwrap();
        for line in [
            "Name: onlyonce",
            "Version: 1.2.3rc1",
            "License-Expression: MIT OR Apache-2.0",
            "License-File: LICENSE-MIT",
        ] {
            assert!(head.lines().any(|other| other == line), "{line}: {head}");
        }
        assert!(head.lines().all(|line| line.contains(": ")), "{head}");
        assert_eq!(body, "# Onlyonce\n\nSee [a](https://example.org/o/blob/v1.2.3-rc.1/docs/a.md).\n");
    }
}
