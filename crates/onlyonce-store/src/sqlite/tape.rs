//! Two files beside the database, written in turn: what is on them is durable, and not yet in the database.
//!
//! ```text
//!   onlyonce.db-tape0   │ head: round 7 │ batch │ batch │ batch │ what is left of round 5 …
//!   onlyonce.db-tape1   │ head: round 6 │ batch │ batch │ what is left of round 4 …
//! ```
//!
//! 1. A tape holds one *round*: a head that names it, and batches one after another. While the round on one tape is
//!    carried over into the database, the next goes to the other.
//! 2. A batch is a length, a digest and bytes. The digest covers the store's identity, the round and the place as well: what
//!    is left of an earlier round, of another store or of half a write is no batch, and there the round ends.
//! 3. A batch that could not be written is written over by the next. Until then a crash may find it, whole: nobody was
//!    told that it was written, and nobody that it was not.
//! 4. Tapes are written over from their start and not cut short: writing over blocks that exist is faster than growing a
//!    file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::file::{beside, for_owner_only, sync_folder};

/// Whose tapes they are; see the migration `0004-intake`.
pub(super) type Identity = [u8; 16];

const MAGIC: &[u8; 8] = b"OnOtape1";
const DIGEST_BYTES: usize = 16;
/// Magic, identity, round, digest.
const HEAD_BYTES: usize = 8 + 16 + 8 + DIGEST_BYTES;
/// Length, digest.
const BATCH_HEAD_BYTES: usize = 4 + DIGEST_BYTES;

/// The tapes of the store that this process has.
pub(super) struct Tapes {
    paths: [PathBuf; 2],
    files: [File; 2],
    identity: Identity,
    /// The one under way. It is on the tape of its parity.
    round: u64,
    /// Where the next batch goes; 0 while even the head is not written.
    end: u64,
    /// What is written next: made ready here, and kept to be used again.
    buffer: Vec<u8>,
}

impl Tapes {
    /// Opens or creates both, to begin with `round`.
    pub(super) fn open(path: &Path, identity: Identity, round: u64) -> io::Result<Self> {
        let paths = paths(path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        for_owner_only(&mut options);
        let files = [options.open(&paths[0])?, options.open(&paths[1])?];
        sync_folder(path)?;
        Ok(Self { paths, files, identity, round, end: 0, buffer: Vec::new() })
    }

    /// The round under way.
    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// Writes a batch that `fill` makes, and answers once it is durable.
    pub(super) fn append(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.buffer.clear();
        if self.end == 0 {
            self.buffer.extend_from_slice(&head(&self.identity, self.round));
        }
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; BATCH_HEAD_BYTES]);
        fill(&mut self.buffer);
        let (at, bytes) = (self.end + start as u64, self.buffer.len() - start - BATCH_HEAD_BYTES);
        let length = u32::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let digest = digest(&self.identity, self.round, at, &self.buffer[start + BATCH_HEAD_BYTES..]);
        self.buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.buffer[start + 4..start + BATCH_HEAD_BYTES].copy_from_slice(&digest);
        let mut file = &self.files[tape(self.round)];
        file.seek(SeekFrom::Start(self.end))?;
        file.write_all(&self.buffer)?;
        file.sync_data()?;
        self.end += self.buffer.len() as u64;
        Ok(())
    }

    /// Begins the next round, on the other tape: the round that was on it has been carried over.
    pub(super) fn turn(&mut self) {
        self.round += 1;
        self.end = 0;
    }

    /// Takes them away: everything has been carried over, and the database says that nobody has it.
    pub(super) fn remove(self) {
        for path in self.paths {
            // One that stays says nothing that the database does not know.
            let _ = fs::remove_file(path);
        }
    }
}

/// A round as it was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) round: u64,
    /// Its batches, in order.
    pub(super) batches: Vec<Vec<u8>>,
}

/// What lies beside a database.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// Not both tapes.
    Missing,
    /// A tape of another store.
    Foreign(PathBuf),
    /// The rounds on the tapes, the earlier first.
    Rounds(Vec<Found>),
}

/// How often tapes are read that their owner writes over meanwhile.
const READS_MAX: usize = 100;

/// Reads the tapes beside the database at `path`, without changing them; also while their owner writes them. What is read is
/// whole up to a moment: of the later round its first batches, of the earlier one all, for no tape has turned meanwhile. Rounds
/// before that are in the database by then, so whoever reads it afterwards finds them there.
pub(super) fn read(path: &Path, identity: &Identity) -> io::Result<Beside> {
    let paths = paths(path);
    while_none_turns(&paths, || read_once(&paths, identity))
}

fn while_none_turns<T>(paths: &[PathBuf; 2], mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..READS_MAX {
        let before = heads(paths)?;
        let found = read()?;
        if heads(paths)? == before {
            return Ok(found);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "they are written over faster than they can be read"))
}

fn read_once(paths: &[PathBuf; 2], identity: &Identity) -> io::Result<Beside> {
    let mut rounds = Vec::new();
    for path in paths {
        let Some(bytes) = if_there(fs::read(path))? else { return Ok(Beside::Missing) };
        match owner(&bytes) {
            Some((found, _)) if found != *identity => return Ok(Beside::Foreign(path.clone())),
            Some((_, round)) => rounds.push(Found { round, batches: batches(&bytes, identity, round) }),
            None => {}
        }
    }
    rounds.sort_unstable_by_key(|found| found.round);
    Ok(Beside::Rounds(rounds))
}

/// The first bytes of each that is there.
fn heads(paths: &[PathBuf; 2]) -> io::Result<[Option<Vec<u8>>; 2]> {
    let head = |path: &PathBuf| {
        let Some(file) = if_there(File::open(path))? else { return Ok(None) };
        let mut head = Vec::new();
        file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        Ok::<_, io::Error>(Some(head))
    };
    Ok([head(&paths[0])?, head(&paths[1])?])
}

fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Identity and round, where there is a whole head.
fn owner(bytes: &[u8]) -> Option<(Identity, u64)> {
    let found = bytes.get(..HEAD_BYTES)?;
    let identity: Identity = found[8..24].try_into().ok()?;
    let round = u64::from_le_bytes(found[24..32].try_into().ok()?);
    (found == head(&identity, round)).then_some((identity, round))
}

fn batches(bytes: &[u8], identity: &Identity, round: u64) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut at = HEAD_BYTES;
    while let Some(batch) = batch(bytes, at, identity, round) {
        at += BATCH_HEAD_BYTES + batch.len();
        found.push(batch.to_vec());
    }
    found
}

fn batch<'a>(bytes: &'a [u8], at: usize, identity: &Identity, round: u64) -> Option<&'a [u8]> {
    let (head, rest) = bytes.get(at..)?.split_at_checked(BATCH_HEAD_BYTES)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?);
    let batch = rest.get(..usize::try_from(length).ok()?)?;
    (head[4..] == digest(identity, round, at as u64, batch)).then_some(batch)
}

fn head(identity: &Identity, round: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..24].copy_from_slice(identity);
    head[24..32].copy_from_slice(&round.to_le_bytes());
    let digest = digest(identity, round, 0, MAGIC);
    head[32..].copy_from_slice(&digest);
    head
}

fn digest(identity: &Identity, round: u64, at: u64, bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let digest = Sha256::new()
        .chain_update(identity)
        .chain_update(round.to_le_bytes())
        .chain_update(at.to_le_bytes())
        .chain_update(bytes)
        .finalize();
    let mut first = [0; DIGEST_BYTES];
    first.copy_from_slice(&digest[..DIGEST_BYTES]);
    first
}

fn tape(round: u64) -> usize {
    usize::from(round % 2 == 1)
}

fn paths(path: &Path) -> [PathBuf; 2] {
    [beside(path, "tape0"), beside(path, "tape1")]
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;

    const OURS: Identity = [7; 16];

    impl Folder {
        fn rounds(&self) -> Vec<Found> {
            let Beside::Rounds(rounds) = read(&self.file(), &OURS).unwrap() else { panic!("no rounds") };
            rounds
        }
    }

    fn append(tapes: &mut Tapes, bytes: &[u8]) {
        tapes.append(|out| out.extend_from_slice(bytes)).unwrap();
    }

    fn round(round: u64, batches: &[&[u8]]) -> Found {
        Found { round, batches: batches.iter().map(|batch| batch.to_vec()).collect() }
    }

    #[test]
    fn what_was_written_is_read_in_its_order_round_by_round() {
        let folder = Folder::new();
        let mut tapes = Tapes::open(&folder.file(), OURS, 6).unwrap();
        assert_eq!(folder.rounds(), []);
        append(&mut tapes, b"one");
        append(&mut tapes, b"");
        append(&mut tapes, b"two");
        tapes.turn();
        append(&mut tapes, b"three");
        assert_eq!(folder.rounds(), [round(6, &[b"one", b"", b"two"]), round(7, &[b"three"])]);
    }

    #[test]
    fn what_an_earlier_round_left_behind_is_no_part_of_a_later_one() {
        let folder = Folder::new();
        let mut tapes = Tapes::open(&folder.file(), OURS, 1).unwrap();
        for batch in [b"aaaa", b"bbbb", b"cccc"] {
            append(&mut tapes, batch);
        }
        tapes.turn();
        tapes.turn();
        // As long as the first batch of the round before: the rest stands exactly where it stood.
        append(&mut tapes, b"dddd");
        assert_eq!(folder.rounds(), [round(3, &[b"dddd"])]);
    }

    /// P05: wherever a write was cut off, what was durable before it is read, and nothing else.
    #[test]
    fn half_a_write_is_no_batch() {
        let folder = Folder::new();
        let mut tapes = Tapes::open(&folder.file(), OURS, 2).unwrap();
        append(&mut tapes, b"durable");
        let path = beside(&folder.file(), "tape0");
        let durable = fs::read(&path).unwrap();
        append(&mut tapes, b"and this was cut off");
        let whole = fs::read(&path).unwrap();
        for end in durable.len()..whole.len() {
            let mut torn = whole.clone();
            torn.truncate(end);
            fs::write(&path, &torn).unwrap();
            assert_eq!(folder.rounds(), [round(2, &[b"durable"])], "cut off at {end}");
            // Written over something that was there.
            torn.resize(whole.len(), 0xff);
            fs::write(&path, &torn).unwrap();
            assert_eq!(folder.rounds(), [round(2, &[b"durable"])], "torn at {end}");
        }
        for end in 0..HEAD_BYTES {
            fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(folder.rounds(), [], "cut off at {end}");
        }
    }

    #[test]
    fn a_byte_that_changed_ends_the_round() {
        let folder = Folder::new();
        let mut tapes = Tapes::open(&folder.file(), OURS, 2).unwrap();
        append(&mut tapes, b"first");
        let path = beside(&folder.file(), "tape0");
        let end = fs::read(&path).unwrap().len();
        append(&mut tapes, b"second");
        let whole = fs::read(&path).unwrap();
        for place in end..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert_eq!(folder.rounds(), [round(2, &[b"first"])], "byte {place}");
        }
    }

    #[test]
    fn tapes_of_another_store_and_missing_ones_are_told_apart() {
        let folder = Folder::new();
        assert_eq!(read(&folder.file(), &OURS).unwrap(), Beside::Missing);
        let mut tapes = Tapes::open(&folder.file(), [8; 16], 1).unwrap();
        assert_eq!(read(&folder.file(), &OURS).unwrap(), Beside::Rounds(Vec::new()), "they say nothing yet");
        append(&mut tapes, b"theirs");
        let tape = beside(&folder.file(), "tape1");
        assert_eq!(read(&folder.file(), &OURS).unwrap(), Beside::Foreign(tape.clone()));
        fs::remove_file(tape).unwrap();
        assert_eq!(read(&folder.file(), &OURS).unwrap(), Beside::Missing);
    }

    /// What a backup by another process relies on: otherwise it would lack what came before something that it has.
    #[test]
    fn tapes_that_turn_while_they_are_read_are_read_again() {
        let folder = Folder::new();
        let paths = paths(&folder.file());
        let mut tapes = Tapes::open(&folder.file(), OURS, 1).unwrap();
        append(&mut tapes, b"one");
        let mut reads = 0;
        let found = while_none_turns(&paths, || {
            reads += 1;
            if reads == 1 {
                append(&mut tapes, b"two");
                tapes.turn();
                append(&mut tapes, b"three");
            }
            read_once(&paths, &OURS)
        });
        let expected = Beside::Rounds(vec![round(1, &[b"one", b"two"]), round(2, &[b"three"])]);
        assert_eq!((found.unwrap(), reads), (expected, 2));
        let unending = while_none_turns(&paths, || {
            tapes.turn();
            append(&mut tapes, b"more");
            Ok(())
        });
        assert_eq!(unending.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    }
}
