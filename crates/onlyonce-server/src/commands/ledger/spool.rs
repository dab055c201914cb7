//! Findings of one group, as lines of JSON: a little in memory, the rest in a file that is nowhere to be seen.
//!
//! An export of another provider differs in every row, so findings may be as many as there are rows and records.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Seek, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// How much is kept in memory.
const MEMORY_BYTES_MAX: usize = 256 << 10;

/// Findings in the order in which they were found.
#[derive(Debug, Default)]
pub(super) struct Spool {
    memory: Vec<u8>,
    file: Option<BufWriter<File>>,
    pub(super) count: u64,
}

impl Spool {
    pub(super) fn push(&mut self, finding: &Value) -> io::Result<()> {
        serde_json::to_writer(&mut self.memory, finding)?;
        self.memory.push(b'\n');
        self.count += 1;
        if self.memory.len() > MEMORY_BYTES_MAX {
            let file = match &mut self.file {
                Some(file) => file,
                None => self.file.insert(BufWriter::new(unnamed()?)),
            };
            file.write_all(&self.memory)?;
            self.memory.clear();
        }
        Ok(())
    }

    /// Every finding, from the first.
    pub(super) fn findings(self) -> io::Result<impl Iterator<Item = io::Result<Value>>> {
        let mut file =
            self.file.map(BufWriter::into_inner).transpose().map_err(io::IntoInnerError::into_error)?;
        if let Some(file) = &mut file {
            file.rewind()?;
        }
        let spilled = file.map(|file| BufReader::new(file).lines()).into_iter().flatten();
        let kept = BufReader::new(Cursor::new(self.memory)).lines();
        Ok(spilled.chain(kept).map(|line| Ok(serde_json::from_str(&line?)?)))
    }
}

/// A file without a name, for its owner alone: it holds keys, and it goes with the process.
fn unnamed() -> io::Result<File> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let random: u64 = rand_name();
    let path =
        std::env::temp_dir().join(format!("onlyonce-ledger-{}-{number}-{random:016x}", std::process::id()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let named = |error: io::Error| {
        let told =
            format!("\"{}\" cannot be written: {error}; set TMPDIR to a folder with room", path.display());
        io::Error::new(error.kind(), told)
    };
    let file = options.open(&path).map_err(named)?;
    remove_file(&path)?;
    Ok(file)
}

/// So that nobody else's file stands in the way.
fn rand_name() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_come_back_in_order_and_memory_stays_small() {
        let mut spool = Spool::default();
        for number in 0..20_000 {
            spool.push(&json!({ "row": number, "key": "a key with\na line break and \u{1f600}" })).unwrap();
            assert!(spool.memory.len() <= MEMORY_BYTES_MAX);
        }
        assert!(spool.file.is_some() && spool.count == 20_000);
        let mut expected = 0;
        for finding in spool.findings().unwrap() {
            assert_eq!(finding.unwrap()["row"], expected);
            expected += 1;
        }
        assert_eq!(expected, 20_000);
        assert_eq!(Spool::default().findings().unwrap().count(), 0);
    }
}
