//! What one process stored, the next one finds.

use std::fs;
use std::time::Duration;

use onlyonce_core::record::{Effects, Reason, Revision, State, Token};
use onlyonce_core::time::When;
use onlyonce_store::clock::ManualClock;
use onlyonce_store::outbox::{self, Failed, Settled};
use onlyonce_store::sqlite::{Expired, Guest, Options, Sqlite, Transaction};
use onlyonce_store::{Change, Error, ErrorKind, Outbox, Query, Store, Swapped};

use super::folder::Folder;
use super::world::{HOUR, completed, draft, id, insert, message, open, put, running, wanted};

/// P05
#[tokio::test]
async fn what_was_stored_is_there_after_reopening() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let seen = put(&store, "k").await;
    let (other, next) = draft("other", Effects::Opaque, completed(When::AfterWrite(HOUR)));
    let messages = vec![message("m1"), message("m2")];
    let change = Change::new(None, Revision(u64::MAX), next).with_messages(messages);
    store.swap(other, change).await.unwrap();
    store.raise_epoch().await.unwrap();
    let epoch = store.epoch().await.unwrap();
    let token = Token([1; 16]);
    let claimed = store.claim(token, &[wanted(HOUR)]).await.unwrap().claimed;
    let failed = Failed { status: None, error: "gone".into() };
    store.settle(&claimed[0], Settled::Dead { failed }).await.unwrap();
    drop(store);
    let store = open(folder.file()).await;
    let found = store.load(id("k")).await.unwrap().unwrap();
    assert_eq!((&found.record, found.revision), (&seen.record, seen.revision));
    assert_eq!(store.load(other).await.unwrap().unwrap().revision, Revision(u64::MAX));
    let query = outbox::Query { state: Some(outbox::State::Dead), limit: 9, ..<_>::default() };
    let dead = Outbox::list(&store, query).await.unwrap().items;
    assert_eq!(
        dead.iter().map(|dead| (&*dead.key, &*dead.errors[0].error)).collect::<Vec<_>>(),
        [("m1", "gone")]
    );
    let kept = store.epoch().await.unwrap();
    assert_eq!((kept.epoch, kept.store), (epoch.epoch, epoch.store), "X04");
    assert!(store.settle(&claimed[1], Settled::Delivered { provider_id: None }).await.unwrap());
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
async fn what_a_dead_process_left_running_is_settled_at_open() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let effects = [Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque];
    for effects in effects {
        insert(&store, draft(&format!("{effects:?}"), effects, running()), 1).await.unwrap();
    }
    put(&store, "done").await;
    drop(store);
    let store = open(folder.file()).await;
    assert_eq!(store.figures().abandoned, 4);
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
    assert_eq!(open(folder.file()).await.figures().abandoned, 0, "once");
}

/// R02, M01: more than go into one transaction.
#[tokio::test]
async fn every_attempt_that_was_left_running_is_settled_at_open() {
    const ATTEMPTS: usize = 2_345;
    let folder = Folder::new();
    let store = std::sync::Arc::new(open(folder.file()).await);
    let mut inserts = tokio::task::JoinSet::new();
    for number in 0..ATTEMPTS {
        let store = store.clone();
        inserts.spawn(async move {
            let running = draft(&number.to_string(), Effects::Opaque, running());
            insert(&*store, running, 1).await.unwrap();
        });
    }
    while let Some(inserted) = inserts.join_next().await {
        inserted.unwrap();
    }
    drop(store);
    let store = open(folder.file()).await;
    assert_eq!(store.figures().abandoned, ATTEMPTS);
    let query = Query { states: onlyonce_core::machine::ABANDONED, ..Query::all(1) };
    assert_eq!(store.scan(query).await.unwrap().records, []);
}

/// P05, X05: a power failure may tear the end of the WAL. What is left is what was written first, and nothing else.
#[tokio::test]
async fn a_torn_wal_leaves_what_was_committed_before_the_tear() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let wal = folder.path().join("onlyonce.db-wal");
    let mut ends = Vec::new();
    for number in 0..RECORDS {
        put(&store, &number.to_string()).await;
        ends.push(usize::try_from(fs::metadata(&wal).unwrap().len()).unwrap());
    }
    let dead = Files::copy(&folder);
    for number in [1, 7, RECORDS - 1] {
        for tear in [Tear::Cut, Tear::Garbled] {
            let torn = Files { wal: tear.apply(&dead.wal, ends[number]), ..dead.clone() };
            assert_eq!(records_after_crash(&torn).await, (0..number).collect::<Vec<_>>(), "{tear:?}");
        }
        let whole = Files { wal: dead.wal[..ends[number]].to_vec(), ..dead.clone() };
        assert_eq!(records_after_crash(&whole).await, (0..=number).collect::<Vec<_>>());
    }
}

const RECORDS: usize = 20;

/// P05: what a dead process left is copied and counted with what is only in its WAL, and that stays as it is.
#[tokio::test]
async fn a_guest_finds_what_is_only_in_the_wal() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    for number in 0..RECORDS {
        put(&store, &number.to_string()).await;
    }
    let dead = Files::copy(&folder);
    let folder = Folder::new();
    dead.write(&folder);
    let guest = Guest::open(folder.file()).unwrap();
    let health = guest.check().await.unwrap();
    assert_eq!((health.records, health.faults), (RECORDS, Vec::new()));
    let copy = folder.path().join("copy.db");
    guest.backup(&copy, |_| ()).await.unwrap();
    assert_eq!(Files::copy(&folder), dead);
    let copied = open(&copy).await;
    let original = open(folder.file()).await;
    for number in 0..RECORDS {
        let id = id(&number.to_string());
        let [copied, original] = [copied.load(id).await.unwrap(), original.load(id).await.unwrap()];
        assert_eq!(copied.unwrap().record, original.unwrap().record);
    }
}

/// P05, E09: a store that is closed has everything in one file.
#[tokio::test]
async fn a_closed_store_is_one_file() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    put(&store, "k").await;
    store.scan(Query::all(9)).await.unwrap();
    drop(store);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let alone = Folder::new();
    fs::copy(folder.file(), alone.file()).unwrap();
    assert!(open(alone.file()).await.load(id("k")).await.unwrap().is_some());
}

/// E09: a program of somebody else's that changes a row in the contract's way is seen at the next look.
#[tokio::test]
async fn a_row_that_another_program_changed_is_seen_at_the_next_look() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let (id, next) = draft("k", Effects::Local, running());
    let seen = insert(&store, (id, next.clone()), 1).await.unwrap();
    let other = rusqlite::Connection::open(folder.file()).unwrap();
    let complete = "
        UPDATE onlyonce_record
        SET revision = 77, written_at = written_at + 1, state = 'completed', completed_by = 'attempt', lapses_at = NULL,
            expires_at = written_at + retention_us, due_at = written_at + retention_us,
            status = 201, headers = CAST('content-type: text/plain' || char(10) AS BLOB), body = x'6f6b'
        WHERE id = ?1 AND token = ?2";
    assert_eq!(other.execute(complete, (id.0, next.token.0)).unwrap(), 1);
    let now = store.load(id).await.unwrap().unwrap();
    assert_eq!(now.revision, Revision(77));
    let State::Completed { response: Some(response), .. } = &now.record.state else { panic!("{now:?}") };
    assert_eq!((response.status, &response.body[..]), (201, &b"ok"[..]));
    // Nothing of ours is written without having compared its revision.
    let late = store.swap(id, Change::new(Some(seen.revision), Revision(2), next)).await.unwrap();
    let Swapped::Lost(Some(shown)) = late else { panic!("{late:?}") };
    assert_eq!(shown.revision, Revision(77));
    assert!(store.check().await.unwrap().faults.is_empty());
}

/// W01: rows of the user's own, the record and its messages are one transaction.
#[tokio::test]
async fn rows_of_ones_own_commit_with_the_record_or_not_at_all() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let created = |transaction: &Transaction<'_>| {
        let sql = "CREATE TABLE payment (amount INTEGER NOT NULL)";
        transaction
            .execute(sql, [])
            .map(drop)
            .map_err(|error| Error::new(ErrorKind::Other, error.to_string()))
    };
    store.write(created).await.unwrap();
    for (key, is_undone) in [("kept", false), ("undone", true)] {
        let (id, next) = draft(key, Effects::Local, completed(When::AfterWrite(HOUR)));
        let written = store.write(move |transaction| {
            transaction.connection().execute("INSERT INTO payment VALUES (7)", []).expect("a row is stored");
            let change = Change::new(None, Revision(5), next).with_messages(vec![message(key)]);
            assert!(matches!(transaction.swap(id, change)?, Swapped::Applied(_)));
            assert!(transaction.load(id)?.is_some(), "the transaction sees what it wrote");
            if is_undone { Err(Error::new(ErrorKind::Other, "on second thoughts")) } else { Ok(()) }
        });
        assert_eq!(written.await.is_err(), is_undone);
        assert_eq!(store.load(id).await.unwrap().is_some(), !is_undone);
    }
    let payments = rusqlite::Connection::open(folder.file()).unwrap();
    let count: i64 = payments.query_row("SELECT count(*) FROM payment", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 1);
    let claimed = store.claim(Token([1; 16]), &[wanted(HOUR)]).await.unwrap().claimed;
    assert_eq!(claimed.iter().map(|claimed| &*claimed.key).collect::<Vec<_>>(), ["kept"]);
}

/// The files of a store as a process that died right now would leave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    file: Vec<u8>,
    wal: Vec<u8>,
}

impl Files {
    pub(super) fn copy(folder: &Folder) -> Self {
        let read = |ending: &str| fs::read(folder.path().join(format!("onlyonce.db{ending}"))).unwrap();
        Self { file: read(""), wal: read("-wal") }
    }

    pub(super) fn write(&self, folder: &Folder) {
        fs::write(folder.file(), &self.file).unwrap();
        fs::write(folder.path().join("onlyonce.db-wal"), &self.wal).unwrap();
    }
}

#[derive(Clone, Copy, Debug)]
enum Tear {
    Cut,
    Garbled,
}

impl Tear {
    /// The WAL with what was written last before `end` torn.
    fn apply(self, wal: &[u8], end: usize) -> Vec<u8> {
        let mut wal = wal[..end].to_vec();
        match self {
            Self::Cut => wal.truncate(end - 1),
            Self::Garbled => wal[end - 100..].fill(0xa5),
        }
        wal
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
    let archived = store.archived(id("k"), 9).await.unwrap().expect("this engine keeps an archive");
    assert_eq!(
        archived.iter().collect::<Vec<_>>(),
        written.iter().map(|record| &**record).collect::<Vec<_>>()
    );
    assert_eq!(store.archived(id("other"), 9).await.unwrap(), Some(Vec::new()));
}
