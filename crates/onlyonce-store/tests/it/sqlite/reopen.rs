//! What one process leaves is what the next one finds.

use std::fs;
use std::time::{Duration, Instant};

use onlyonce_core::record::{Effects, Reason, Revision, State, Token};
use onlyonce_core::time::When;
use onlyonce_store::clock::ManualClock;
use onlyonce_store::outbox::Settled;
use onlyonce_store::sqlite::{Expired, Guest, Options, Sqlite};
use onlyonce_store::{Change, ErrorKind, Outbox, Store};

use super::folder::Folder;
use super::world::{HOUR, completed, draft, id, insert, message, open, put, running, try_open};

/// After so long a round is carried over, however small it is.
const ROUND_AGE: Duration = Duration::from_millis(500);

/// P05
#[tokio::test]
async fn what_was_stored_is_there_after_reopening() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let seen = put(&store, "k").await;
    let (other, next) = draft("other", Effects::Opaque, completed(When::AfterWrite(HOUR)));
    let messages = vec![message("m1"), message("m2")];
    let change = Change { expected: None, revision: Revision(u64::MAX), next, messages };
    store.swap(other, change).await.unwrap();
    let token = Token([1; 16]);
    assert_eq!(store.claim(token, HOUR, 9).await.unwrap().len(), 2);
    store.settle("m1", token, Settled::Dead { error: "gone".into() }).await.unwrap();
    drop(store);
    let store = open(folder.file()).await;
    let found = store.load(id("k")).await.unwrap().unwrap();
    assert_eq!((&found.record, found.revision), (&seen.record, seen.revision));
    assert_eq!(store.load(other).await.unwrap().unwrap().revision, Revision(u64::MAX));
    assert_eq!(store.dead_letters(9).await.unwrap(), [(message("m1"), vec!["gone".into()])]);
    assert!(store.settle("m2", token, Settled::Delivered { provider_id: None }).await.unwrap());
}

/// R08: the clock of the second process was set back by a day.
#[tokio::test]
async fn a_clock_that_was_set_back_goes_on_from_the_latest_stamp() {
    let folder = Folder::new();
    let clock = ManualClock::new();
    clock.advance(24 * HOUR);
    let with = |clock| Options { clock: Some(Box::new(clock)), ..Options::default() };
    let store = Sqlite::open(folder.file(), with(clock)).await.unwrap();
    let written_at = put(&store, "k").await.record.written_at;
    drop(store);
    let clock = ManualClock::new();
    let store = Sqlite::open(folder.file(), with(clock.clone())).await.unwrap();
    assert_eq!(store.load(id("k")).await.unwrap().unwrap().now, written_at);
    clock.advance(Duration::from_secs(1));
    let now = store.load(id("k")).await.unwrap().unwrap().now;
    assert_eq!(now, written_at.plus(Duration::from_secs(1)), "it must not stand still either");
}

/// R08, with the machine's own clock.
#[tokio::test]
async fn the_machines_clock_begins_no_earlier_than_the_latest_stamp() {
    let folder = Folder::new();
    let ahead = ManualClock::new();
    ahead.advance(100 * 365 * 24 * HOUR);
    let options = Options { clock: Some(Box::new(ahead)), ..Options::default() };
    let store = Sqlite::open(folder.file(), options).await.unwrap();
    let written_at = put(&store, "k").await.record.written_at;
    drop(store);
    let store = open(folder.file()).await;
    assert!(store.load(id("k")).await.unwrap().unwrap().now >= written_at);
    assert!(put(&store, "later").await.record.written_at >= written_at);
}

/// R02, U04: nobody waits for the lease of a process that is dead.
#[tokio::test]
async fn what_a_dead_process_left_running_lapses_at_open() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let effects = [Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque];
    for effects in effects {
        insert(&store, draft(&format!("{effects:?}"), effects, running()), 1).await.unwrap();
    }
    put(&store, "done").await;
    drop(store);
    let store = open(folder.file()).await;
    assert_eq!(store.figures().lapsed, 4);
    for effects in effects {
        let seen = store.load(id(&format!("{effects:?}"))).await.unwrap().unwrap();
        assert_ne!(seen.revision, Revision(1), "whoever held it must not find its revision");
        let is_right = match effects {
            Effects::Local | Effects::Keyed => matches!(seen.record.state, State::Retryable { .. }),
            Effects::Queryable | Effects::Opaque => {
                matches!(seen.record.state, State::Unknown { reason: Reason::Lapsed, .. })
            }
        };
        assert!(is_right, "{effects:?}: {:?}", seen.record.state);
    }
    let done = store.load(id("done")).await.unwrap().unwrap();
    assert!(matches!(done.record.state, State::Completed { .. }));
    drop(store);
    assert_eq!(open(folder.file()).await.figures().lapsed, 0, "once");
}

/// P05, X05: a power failure may tear the end of a tape. What is left is what was written first, and nothing else.
#[tokio::test]
async fn a_torn_tape_leaves_what_was_committed_before_the_tear() {
    let (dead, ends) = within_a_round().await;
    for number in [0, 7, RECORDS - 1] {
        let end = usize::try_from(ends[number]).unwrap();
        for tear in [Tear::Cut, Tear::Garbled] {
            let torn = dead.with_tape(tear.apply(&dead.tape, end));
            assert_eq!(records_after_crash(&torn).await, (0..number).collect::<Vec<_>>(), "{tear:?}");
        }
        let whole = records_after_crash(&dead.with_tape(dead.tape[..end].to_vec())).await;
        assert_eq!(whole, (0..=number).collect::<Vec<_>>());
    }
}

const RECORDS: usize = 20;

/// What a process leaves that has written so many records and carried none of them over, and where on the tape each ends.
async fn within_a_round() -> (Files, Vec<u64>) {
    for _ in 0..50 {
        let folder = Folder::new();
        let store = open(folder.file()).await;
        let began = Instant::now();
        let tape = folder.path().join("onlyonce.db-tape1");
        let mut ends = Vec::new();
        for number in 0..RECORDS {
            put(&store, &number.to_string()).await;
            ends.push(fs::metadata(&tape).unwrap().len());
        }
        let dead = Files::copy(&folder);
        if began.elapsed() < ROUND_AGE {
            return (dead, ends);
        }
    }
    panic!("this machine is too slow to write {RECORDS} records in {ROUND_AGE:?}");
}

/// P05: what a dead process left is copied and counted with what is only on its tapes, and they stay as they are.
#[tokio::test]
async fn a_guest_finds_what_is_only_on_the_tapes() {
    let (dead, _) = within_a_round().await;
    let folder = Folder::new();
    dead.write(&folder);
    let guest = Guest::open(folder.file()).unwrap();
    let health = guest.check().await.unwrap();
    assert_eq!((health.records, health.faults), (RECORDS, Vec::new()));
    let copy = folder.path().join("copy.db");
    guest.backup(&copy, |_| ()).await.unwrap();
    assert_eq!(fs::read(folder.path().join("onlyonce.db-tape1")).unwrap(), dead.tape);
    let copied = open(&copy).await;
    let original = open(folder.file()).await;
    for number in 0..RECORDS {
        let id = id(&number.to_string());
        let [copied, original] = [copied.load(id).await.unwrap(), original.load(id).await.unwrap()];
        assert_eq!(copied.unwrap().record, original.unwrap().record);
    }
}

/// P05, P07: without its tapes a file lacks what was written last, and is refused; with another's too. Nothing is changed.
#[tokio::test]
async fn a_file_that_was_in_use_is_not_opened_without_its_own_tapes() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    put(&store, "k").await;
    let dead = Files::copy(&folder);
    let other = Folder::new();
    dead.write(&other);
    fs::remove_file(other.path().join("onlyonce.db-tape0")).unwrap();
    let error = try_open(other.file()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "the file itself is whole");
    assert!(error.to_string().contains("put them back, or restore a backup"), "{error}");
    let checked = Guest::open(other.file()).unwrap().check().await.unwrap_err();
    assert_eq!(checked.to_string(), error.to_string());
    // A store that was closed has none, and gets its own.
    let third = Folder::new();
    put(&open(third.file()).await, "other").await;
    fs::write(third.path().join("onlyonce.db-tape0"), b"").unwrap();
    fs::write(third.path().join("onlyonce.db-tape1"), &dead.tape).unwrap();
    let error = try_open(third.file()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("belongs to another store file"), "{error}");
    fs::remove_file(third.path().join("onlyonce.db-tape1")).unwrap();
    let store = open(third.file()).await;
    assert!(store.load(id("other")).await.unwrap().is_some() && store.load(id("k")).await.unwrap().is_none());
}

/// P05: a store that is closed has everything in the file itself, and leaves no tapes.
#[tokio::test]
async fn a_closed_store_is_one_file() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    put(&store, "k").await;
    drop(store);
    let alone = Folder::new();
    fs::copy(folder.file(), alone.file()).unwrap();
    assert!(
        !folder.path().join("onlyonce.db-tape0").exists()
            && !folder.path().join("onlyonce.db-tape1").exists()
    );
    assert!(open(alone.file()).await.load(id("k")).await.unwrap().is_some());
}

/// The files of a store as a process that died right now would leave them.
struct Files {
    file: Vec<u8>,
    wal: Vec<u8>,
    /// The one that the first round is on; the other is empty.
    tape: Vec<u8>,
}

impl Files {
    fn copy(folder: &Folder) -> Self {
        let read = |ending: &str| fs::read(folder.path().join(format!("onlyonce.db{ending}"))).unwrap();
        // In this order: what leaves the tape meanwhile is in the file by then.
        let tape = read("-tape1");
        Self { tape, file: read(""), wal: read("-wal") }
    }

    fn with_tape(&self, tape: Vec<u8>) -> Self {
        Self { tape, file: self.file.clone(), wal: self.wal.clone() }
    }

    fn write(&self, folder: &Folder) {
        let files: [(&str, &[u8]); 4] =
            [("", &self.file), ("-wal", &self.wal), ("-tape0", b""), ("-tape1", &self.tape)];
        for (ending, bytes) in files {
            fs::write(folder.path().join(format!("onlyonce.db{ending}")), bytes).unwrap();
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Tear {
    Cut,
    Garbled,
}

impl Tear {
    /// The tape with what was written last before `end` torn.
    fn apply(self, tape: &[u8], end: usize) -> Vec<u8> {
        let mut tape = tape[..end].to_vec();
        match self {
            Self::Cut => tape.truncate(end - 1),
            Self::Garbled => tape[end - 100..].fill(0xa5),
        }
        tape
    }
}

/// The numbers of the records that a process finds which opens these files.
async fn records_after_crash(files: &Files) -> Vec<usize> {
    let folder = Folder::new();
    files.write(&folder);
    let store = open(folder.file()).await;
    let mut found = Vec::new();
    for number in 0..100 {
        if store.load(id(&number.to_string())).await.unwrap().is_some() {
            found.push(number);
        }
    }
    assert_eq!(store.check().await.unwrap().faults, Vec::<String>::new());
    put(&store, "another").await;
    found
}

/// T05: out of replay's reach, its key free, and there for audit.
#[tokio::test]
async fn an_expired_record_that_is_kept_moves_to_the_archive() {
    let folder = Folder::new();
    let options = || Options { expired: Expired::Keep, ..Options::default() };
    let store = Sqlite::open(folder.file(), options()).await.unwrap();
    let mut written = Vec::new();
    for revision in 1..=2 {
        let expired = draft("k", Effects::Opaque, completed(When::WRITE));
        written.insert(0, insert(&store, expired, revision).await.unwrap().record);
        assert_eq!(store.reap(9).await.unwrap(), 1);
        assert_eq!(store.load(id("k")).await.unwrap(), None);
    }
    drop(store);
    let store = Sqlite::open(folder.file(), options()).await.unwrap();
    let archived = store.archived(id("k"), 9).await.unwrap();
    assert_eq!(
        archived.iter().collect::<Vec<_>>(),
        written.iter().map(|record| &**record).collect::<Vec<_>>()
    );
    assert!(store.archived(id("other"), 9).await.unwrap().is_empty());
}
