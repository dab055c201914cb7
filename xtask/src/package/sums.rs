//! Checksums, by the tool that also checks them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::output;

/// What `sha256sum --check` reads, beside the files.
pub(super) fn write(files: &[&Path], out: &Path) -> Result<PathBuf> {
    let mut names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    names.sort();
    let sums = output(Command::new("sha256sum").args(names).current_dir(out))?;
    let path = out.join("SHA256SUMS");
    fs::write(&path, sums)?;
    Ok(path)
}

/// The digest of a file.
pub(super) fn sha256(file: &Path) -> Result<[u8; 32]> {
    let line = output(Command::new("sha256sum").arg("--").arg(file))?;
    // A name with a backslash would put one in front of the digest.
    let hex = line.trim_start_matches('\\');
    digest(hex).with_context(|| format!("sha256sum says \"{line}\""))
}

fn digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::super::{does, fresh};
    use super::*;

    #[test]
    fn a_file_that_has_changed_is_found() {
        let out = fresh(&std::env::temp_dir().join(format!("onlyonce-sums-{}", std::process::id()))).unwrap();
        let file = out.join("a");
        fs::write(&file, "abc").unwrap();
        let sums = write(&[&file], &out).unwrap();
        let check =
            || does(Command::new("sha256sum").args(["--check", "--quiet"]).arg(&sums).current_dir(&out));
        check().unwrap();
        assert_eq!(sha256(&file).unwrap()[..4], [0xba, 0x78, 0x16, 0xbf]);
        fs::write(&file, "abd").unwrap();
        assert!(check().is_err());
        fs::remove_dir_all(out).unwrap();
    }
}
