//! A zip of a folder, the same each time.
//!
//! gzip compresses: its output is the deflate stream and the CRC that a zip needs too, between 10 bytes and 8 bytes of its own.
//! What remains is a few headers. A crate would be the largest dependency here, and Python's zipfile writes the time of the day
//! and whatever bits the files have.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Effort, files_below};

/// Midnight, 1980-01-01: the earliest moment a zip can say. `SOURCE_DATE_EPOCH` does not matter here: nobody reads it from a wheel.
const TIME: [u8; 4] = [0, 0, 0x21, 0];
/// Deflate, without a flag: all names are ASCII, and sizes are in front of the data.
const VERSION: u16 = 20;
const FLAGS: u16 = 0;
const DEFLATE: u16 = 8;
/// The file's mode is in the upper half of its attributes.
const MADE_ON_UNIX: u16 = 3 << 8;

/// All files below `folder` with their modes, in the order of their names.
pub(super) fn zip(folder: &Path, archive: &Path, effort: Effort) -> Result<()> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    let files = files_below(folder)?;
    for file in &files {
        let name = file.strip_prefix(folder)?.to_str().context("the name of a file is not text")?;
        let mode = fs::metadata(file)?.permissions().mode();
        let offset = size(out.len())?;
        let entry = entry(file, name, effort)?;
        out.extend([b"PK\x03\x04", &entry.head[..], name.as_bytes(), &entry.deflated].concat());
        directory.extend(b"PK\x01\x02");
        directory.extend((MADE_ON_UNIX | VERSION).to_le_bytes());
        directory.extend(entry.head);
        // No comment, on disk 0, no word about what it is.
        directory.extend([0; 6]);
        directory.extend((mode << 16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let count = u16::try_from(files.len())?.to_le_bytes();
    let (offset, length) = (size(out.len())?.to_le_bytes(), size(directory.len())?.to_le_bytes());
    out.append(&mut directory);
    out.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &length, &offset, &[0; 2]].concat());
    fs::write(archive, out).with_context(|| format!("cannot write {}", archive.display()))
}

/// A file in the archive.
struct Entry {
    /// What its header and the directory have in common: from the version to the length of the (missing) extra field.
    head: Vec<u8>,
    deflated: Vec<u8>,
}

fn entry(file: &Path, name: &str, effort: Effort) -> Result<Entry> {
    let mut gzip = Command::new("gzip");
    gzip.args(["--no-name", effort.level()]).stdin(File::open(file)?).stderr(Stdio::inherit());
    let output = gzip.output().context("cannot start gzip")?;
    ensure!(output.status.success(), "gzip of {}: {}", file.display(), output.status);
    let zipped = output.stdout;
    // RFC 1952: two magic bytes, deflate, and no flag, so no field follows the ten bytes.
    ensure!(
        zipped.len() >= 18 && zipped.starts_with(&[0x1f, 0x8b, 8, 0]),
        "gzip wrote a header that is not as expected"
    );
    let (crc_and_size, deflated) = (&zipped[zipped.len() - 8..], &zipped[10..zipped.len() - 8]);
    ensure!(crc_and_size[4..] == size(fs::metadata(file)?.len())?.to_le_bytes(), "{name} changed meanwhile");
    let name_length = u16::try_from(name.len())?;
    let mut head = Vec::new();
    for field in [VERSION, FLAGS, DEFLATE] {
        head.extend(field.to_le_bytes());
    }
    head.extend(TIME);
    head.extend(&crc_and_size[..4]);
    head.extend(size(deflated.len())?.to_le_bytes());
    head.extend(&crc_and_size[4..]);
    head.extend(name_length.to_le_bytes());
    head.extend([0; 2]);
    Ok(Entry { head, deflated: deflated.to_vec() })
}

/// A size or an offset, of which a zip without extensions can say four bytes.
fn size(bytes: impl TryInto<u32>) -> Result<u32> {
    bytes.try_into().ok().context("is too large for a zip: 4 GiB or more")
}

#[cfg(test)]
mod tests {
    use onlyonce_testkit::install::{succeeds, with_apt};

    use super::super::{fresh, output, write};
    use super::*;

    /// Python's reader finds what was written: names, bytes with their CRC, and the mode.
    #[test]
    fn python_reads_what_is_written() {
        with_apt("python3", &["python3"], || succeeds("python3", &["--version"])).unwrap();
        let out = fresh(&std::env::temp_dir().join(format!("onlyonce-zip-{}", std::process::id()))).unwrap();
        write(&out.join("in/b/run"), "#!/bin/sh\n", 0o755).unwrap();
        write(&out.join("in/a.txt"), &"aé\n".repeat(10_000), 0o644).unwrap();
        write(&out.join("in/empty"), "", 0o644).unwrap();
        let archive = out.join("a.zip");
        zip(&out.join("in"), &archive, Effort::Test).unwrap();
        let script = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\n\
                      for i in z.infolist(): print(i.filename, oct(i.external_attr >> 16), i.file_size, i.date_time[0], z.read(i)[:4])";
        let said = output(Command::new("python3").args(["-c", script]).arg(&archive)).unwrap();
        let expected = "a.txt 0o100644 40000 1980 b'a\\xc3\\xa9\\n'\nb/run 0o100755 10 1980 b'#!/b'\nempty 0o100644 0 1980 b''\n";
        assert_eq!(said, expected);
        let first = fs::read(&archive).unwrap();
        zip(&out.join("in"), &archive, Effort::Test).unwrap();
        assert!(first == fs::read(&archive).unwrap(), "the same files make the same bytes");
        let mut broken = first;
        broken[60] ^= 1;
        fs::write(&archive, broken).unwrap();
        assert!(output(Command::new("python3").args(["-c", script]).arg(&archive)).is_err());
        fs::remove_dir_all(out).unwrap();
    }
}
