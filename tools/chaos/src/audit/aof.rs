//! The writes of records in Redis's append-only file: every command that changed something, in order.
//!
//! 1. A record is the value of one key, and begins with text of a fixed width: its stamp, when it is due, and a letter for its state. See
//!    `redis/layout.rs` of the store.
//! 2. A write has the time of its own stamp, or of the latest before it in the file. A deletion has none: it was not before those
//!    stamps, nor before the record was due, nor before the second that Redis notes itself.
//! 3. For the same reason a deletion less than a second too early is not noticed.
//! 4. Redis cuts off what a kill left half written when it starts again. The end of the last file may be half written too.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Write;

const SECOND: u64 = 1_000_000;
/// A moment that never comes.
const NEVER: u64 = 9_999_999_999_999_999;
/// The states by their letters, from `a`.
const STATES: [&str; 5] = ["pending", "running", "completed", "retryable", "unknown"];
/// Who completed a record, as a text of five bytes behind the mark that there is one.
const BY_PROBE: &[u8] = b"\x01\x05probe";

/// Every write of a record, from the files in the folder of a server.
pub(super) fn writes(folder: &Path) -> Result<Vec<Write>> {
    let mut bytes = Vec::new();
    for file in files(&folder.join("appendonlydir"))? {
        bytes.extend(fs::read(&file).with_context(|| file.display().to_string())?);
    }
    let mut reading = Reading::default();
    let mut rest = bytes.as_slice();
    while let Some((entry, behind)) = entry(rest)? {
        reading.see(&entry)?;
        rest = behind;
    }
    Ok(reading.writes)
}

/// The files with commands, in order. The one they begin with is empty: the server was started without data.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for file in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = file?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_suffix(".incr.aof").and_then(|name| name.rsplit('.').next());
        if let Some(number) = number {
            files.push((number.parse::<u64>().with_context(|| name.to_owned())?, path));
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// An entry of a file.
#[derive(Debug, PartialEq, Eq)]
enum Entry<'a> {
    /// The second in which what follows was done.
    Second(u64),
    Command(Vec<&'a [u8]>),
}

/// The first entry, and what is behind it; none where there is no whole one.
fn entry(bytes: &[u8]) -> Result<Option<(Entry<'_>, &[u8])>> {
    let Some((line, mut rest)) = line(bytes) else { return Ok(None) };
    if let Some(second) = line.strip_prefix("#TS:") {
        return Ok(Some((Entry::Second(second.parse()?), rest)));
    }
    let Some(count) = line.strip_prefix('*') else { bail!("no command in the append-only file: {line:?}") };
    let mut words = Vec::new();
    for _ in 0..count.parse::<usize>()? {
        let Some((length, behind)) = self::line(rest) else { return Ok(None) };
        let length: usize = length.strip_prefix('$').context("no length of a word")?.parse()?;
        let Some(word) = behind.get(..length) else { return Ok(None) };
        words.push(word);
        rest = behind.get(length + 2..).unwrap_or_default();
    }
    Ok(Some((Entry::Command(words), rest)))
}

fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some((str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 2..]))
}

/// What is known at a place in the file.
#[derive(Default)]
struct Reading {
    /// The latest stamp so far, or second.
    now: u64,
    second: u64,
    /// How each record stands, and when it is due.
    stands: HashMap<String, (&'static str, u64)>,
    writes: Vec<Write>,
}

impl Reading {
    fn see(&mut self, entry: &Entry<'_>) -> Result<()> {
        match entry {
            Entry::Second(second) => {
                self.second = second * SECOND;
                self.now = self.now.max(self.second);
            }
            Entry::Command(words) => match words[..] {
                [command, key, value, ..] if command.eq_ignore_ascii_case(b"set") => {
                    if let Some(id) = record(key) {
                        self.written(id, value)?;
                    }
                }
                [command, ref keys @ ..]
                    if command.eq_ignore_ascii_case(b"unlink") || command.eq_ignore_ascii_case(b"del") =>
                {
                    keys.iter().filter_map(|key| record(key)).for_each(|id| self.deleted(id));
                }
                _ => {}
            },
        }
        Ok(())
    }

    fn written(&mut self, id: String, value: &[u8]) -> Result<()> {
        let head =
            value.get(..65).and_then(|head| str::from_utf8(head).ok()).context("a record has no head")?;
        let (stamp, due_at): (u64, u64) = (head[16..32].parse()?, head[32..48].parse()?);
        let place = usize::from(head.as_bytes()[64].saturating_sub(b'a'));
        let state = *STATES.get(place).with_context(|| format!("no state of a record: {head:?}"))?;
        self.now = self.now.max(stamp);
        let was = self.stands.insert(id.clone(), (state, due_at));
        let (was, was_due) = was.unwrap_or(("nothing", NEVER));
        let by_probe = value[65..].windows(BY_PROBE.len()).any(|bytes| bytes == BY_PROBE);
        self.writes.push(Write {
            id,
            at: self.now,
            was: was.to_owned(),
            state: state.to_owned(),
            is_due: was_due <= self.now,
            by_probe,
        });
        Ok(())
    }

    fn deleted(&mut self, id: String) {
        let Some((was, due_at)) = self.stands.remove(&id) else { return };
        let is_due = due_at <= self.now.max(self.second + SECOND);
        self.writes.push(Write {
            id,
            at: if is_due { self.now.max(due_at) } else { self.now },
            was: was.to_owned(),
            state: "nothing".to_owned(),
            is_due,
            by_probe: false,
        });
    }
}

/// The id of a record, in hex, where this is its key: `{onlyonce.bb}r` and 32 bytes.
fn record(key: &[u8]) -> Option<String> {
    let rest = key.strip_prefix(b"{onlyonce.")?;
    let id = rest.get(2..)?.strip_prefix(b"}r")?;
    (id.len() == 32).then(|| id.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 32] = [7; 32];

    fn command(words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).into_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    fn key() -> Vec<u8> {
        [b"{onlyonce.07}r".as_slice(), &ID].concat()
    }

    fn set(stamp: u64, due_at: u64, state: char, behind: &[u8]) -> Vec<u8> {
        let head = format!("{:016x}{stamp:016}{due_at:016}{NEVER:016}{state}", 1);
        command(&[b"SET", &key(), &[head.as_bytes(), &[9; 32], behind].concat()])
    }

    fn read(bytes: &[u8]) -> Vec<(u64, String, String, bool)> {
        let (mut reading, mut rest) = (Reading::default(), bytes);
        while let Some((entry, behind)) = entry(rest).unwrap() {
            reading.see(&entry).unwrap();
            rest = behind;
        }
        let told = |write: Write| (write.at, write.was, write.state, write.is_due);
        reading.writes.into_iter().map(told).collect()
    }

    fn told(at: u64, was: &str, state: &str, is_due: bool) -> (u64, String, String, bool) {
        (at, was.to_owned(), state.to_owned(), is_due)
    }

    #[test]
    fn writes_are_read_with_what_stood_there_before() {
        let life = [
            command(&[b"SELECT", b"0"]),
            command(&[b"ZADD", b"{onlyonce.07}d", b"9", &ID]),
            set(10, 20, 'b', b""),
            set(15, 30, 'c', b""),
            set(31, 50, 'b', b""),
        ];
        let expected = [
            told(10, "nothing", "running", false),
            told(15, "running", "completed", false),
            told(31, "completed", "running", true),
        ];
        assert_eq!(read(&life.concat()), expected);
    }

    #[test]
    fn a_deletion_is_placed_by_what_is_known_of_its_time_and_told_where_it_was_early() {
        let unlink = command(&[b"UNLINK", &key(), b"{onlyonce.07}p", b"{onlyonce.07}q"]);
        let at = |second: u64| format!("#TS:{second}\r\n").into_bytes();
        let due = 5 * SECOND + 500_000;
        let life = |second| [set(4 * SECOND, due, 'c', b""), at(second), unlink.clone()].concat();
        assert_eq!(read(&life(5))[1], told(due, "completed", "nothing", true));
        assert_eq!(read(&life(7))[1], told(7 * SECOND, "completed", "nothing", true));
        assert_eq!(read(&life(4))[1], told(4 * SECOND, "completed", "nothing", false));
    }

    #[test]
    fn who_completed_it_is_read() {
        let by_probe = |behind: &[u8]| {
            let bytes = set(10, 20, 'c', behind);
            let (entry, _) = entry(&bytes).unwrap().unwrap();
            let mut reading = Reading::default();
            reading.see(&entry).unwrap();
            reading.writes[0].by_probe
        };
        assert!(by_probe(b"\x00\x01\x05probe\x00"));
        assert!(!by_probe(b"\x00\x01\x07attempt\x00"));
    }

    #[test]
    fn what_is_half_written_is_the_end() {
        let whole = set(10, 20, 'b', b"");
        for end in 0..whole.len() - 2 {
            assert_eq!(entry(&whole[..end]).unwrap(), None, "{end}");
        }
        assert!(entry(b"nonsense\r\n").is_err());
    }
}
