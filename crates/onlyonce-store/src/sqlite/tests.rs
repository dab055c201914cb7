//! What can only be shown from inside: disks that are full, files that break, work that fails among other work.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};

use bytes::Bytes;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::History;
use onlyonce_core::key::Key;
use onlyonce_core::record::{Draft, Effects, Progress, Response, Revision, Source, State, Terms};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::When;
use rusqlite::Connection;

use super::writer::Refused;
use super::*;
use crate::outbox::Message;

const HOUR: Duration = Duration::from_secs(3_600);
const MANY: Size = Size { rows: 1, bytes: 0, statements: Statements::Many };

pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let name = format!("onlyonce-unit-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join("onlyonce.db")
    }

    pub(super) async fn open(&self) -> Arc<Sqlite> {
        Arc::new(Sqlite::open(self.file(), Options::default()).await.unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn draft(key: &str, body_bytes: usize) -> (Id, Box<Draft>) {
    let (scope, key) = (Scope::stored([1; 32], None), Key::stored(key));
    let id = Id::of(&scope, &key);
    let body = Bytes::from(vec![7; body_bytes]);
    let response = Some(Arc::new(Response { status: 201, headers: Vec::new(), body }));
    let terms = Terms {
        effects: Effects::Opaque,
        lease: HOUR,
        deadline: HOUR,
        horizon: HOUR,
        retention: HOUR,
        downstream_retention: HOUR,
        reconcile_first: None,
    };
    let draft = Box::new(Record {
        scope,
        key,
        route: None,
        fingerprint: Fingerprint { version: 1, raw: [9; 32], canonical: None },
        terms,
        attempt: 1,
        token: Token([5; 16]),
        relies_on_memory: false,
        created_at: When::WRITE,
        began_at: When::WRITE,
        written_at: When::WRITE,
        progress: Progress::default(),
        evidence: None,
        accepted: None,
        history: History::default(),
        trace: None,
        state: State::Completed { response, by: Source::Attempt, expires_at: When::AfterWrite(HOUR) },
    });
    (id, draft)
}

async fn put(store: &Sqlite, key: &str, body_bytes: usize) -> Result<Swapped, Error> {
    let (id, next) = draft(key, body_bytes);
    let message = Message::new(key, "billing", Bytes::new());
    store.swap(id, Change::new(None, Revision(1), next).with_messages(vec![message])).await
}

async fn is_there(store: &Sqlite, key: &str) -> bool {
    store.load(draft(key, 0).0).await.unwrap().is_some()
}

/// Lets the file grow by so many pages and no further: what a full disk is to SQLite.
async fn limit(store: &Sqlite, pages: i64) {
    let set = move |connection: &Connection, _| {
        let count: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
        let sql = format!("PRAGMA max_page_count = {}", count + pages);
        connection.query_row(&sql, [], |_| Ok(()))?;
        Ok::<_, Refused>(())
    };
    store.writer.submit(MANY, set).await.unwrap();
}

/// X01: what was said to be written is kept, nothing more is taken, and writes go on once there is space.
#[tokio::test]
async fn a_full_disk_fails_closed_and_recovers() {
    let folder = Folder::new();
    let store = folder.open().await;
    put(&store, "before", 1_000).await.unwrap();
    limit(&store, 5).await;
    let error = put(&store, "large", 100_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("full; free some space"), "{error}");
    assert!(is_there(&store, "before").await && !is_there(&store, "large").await);
    limit(&store, 1_000).await;
    put(&store, "large", 100_000).await.unwrap();
    let messages = sent(&store).await;
    assert_eq!(messages.len(), 2, "each with its message, and none without");
    assert_eq!(store.examine().await.unwrap(), [], "a full disk is not the end");
}

/// X01, R01, P05: among many at once, what was said to be written is there, also after the process is gone, and what was
/// not is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_among_many_callers_tells_each_the_truth() {
    let folder = Folder::new();
    let store = folder.open().await;
    limit(&store, 50).await;
    let callers = |store: &Arc<Sqlite>, numbers: std::ops::Range<usize>| {
        let store = store.clone();
        numbers.map(move |number| {
            let store = store.clone();
            tokio::spawn(async move {
                let is_written = put(&store, &number.to_string(), number * 300).await.is_ok();
                (number, is_written)
            })
        })
    };
    let mut first = Vec::new();
    // A few by themselves, which fit: all at once may share one transaction, and fail together.
    for caller in callers(&store, 0..5) {
        first.push(caller.await.unwrap());
    }
    for caller in callers(&store, 5..200).collect::<Vec<_>>() {
        first.push(caller.await.unwrap());
    }
    let refused = first.iter().filter(|(_, is_written)| !is_written).count();
    assert!((1..200).contains(&refused), "{refused}");
    for (number, is_written) in &first {
        assert_eq!(is_there(&store, &number.to_string()).await, *is_written, "{number}");
    }
    drop(store);
    let store = folder.open().await;
    for (number, is_written) in &first {
        assert_eq!(is_there(&store, &number.to_string()).await, *is_written, "{number} afterwards");
    }
    assert!(store.check().await.unwrap().faults.is_empty());
}

/// Keeps the writer busy until it is told to go on, so that what is handed in meanwhile goes together.
fn hold(store: &Arc<Sqlite>) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), Error>>) {
    let (go_on, wait) = mpsc::channel();
    let (held, is_held) = mpsc::channel();
    let store = store.clone();
    let holding = tokio::spawn(async move {
        let work = move |_: &Connection, _| {
            held.send(()).unwrap();
            wait.recv().map_err(|_| Error::new(ErrorKind::Other, "nobody goes on"))?;
            Ok::<_, Refused>(())
        };
        store.writer.submit(MANY, work).await
    });
    is_held.recv().unwrap();
    (go_on, holding)
}

/// Stores a message, by the writer.
async fn send(store: &Sqlite, key: &'static str) -> Result<(), Error> {
    let message = Message::new(key, "billing", Bytes::new());
    let store_it = move |connection: &Connection, now| {
        Ok(outbox::store(connection, Id([0; 32]), &[message], None, now)?)
    };
    store.writer.submit(MANY, store_it).await
}

async fn sent(store: &Sqlite) -> Vec<String> {
    let items = Outbox::list(store, crate::outbox::Query { limit: 9, ..<_>::default() }).await.unwrap().items;
    items.into_iter().map(|item| item.key.to_string()).collect()
}

/// Hands in good work, `bad` and more good work, which share a transaction; what became of them.
async fn among_others(
    store: &Arc<Sqlite>,
    bad: impl FnOnce(&Connection, Timestamp) -> Result<(), Refused> + Send + 'static,
) -> [Option<ErrorKind>; 3] {
    let (go_on, holding) = hold(store);
    let before = store.figures().commits;
    let mut first = pin!(send(store, "first"));
    let mut second = pin!(store.writer.submit(MANY, bad));
    let mut third = pin!(send(store, "third"));
    // Polled once, each has handed its work in.
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert!(third.as_mut().poll(&mut context).is_pending());
    go_on.send(()).unwrap();
    holding.await.unwrap().unwrap();
    let kind = |error: Error| error.kind();
    let ended = [first.await.err().map(kind), second.await.err().map(kind), third.await.err().map(kind)];
    assert!(store.figures().commits - before <= 1, "they went together");
    ended
}

/// X05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_work_fails_alone_and_leaves_nothing() {
    let folder = Folder::new();
    let store = folder.open().await;
    let ended = among_others(&store, |connection, now| {
        let message = Message::new("half", "x", Bytes::new());
        outbox::store(connection, Id([0; 32]), &[message], None, now)?;
        connection
            .execute("INSERT INTO onlyonce_store (one, name, epoch, latest) VALUES (2, x'', 0, 0)", [])?;
        Ok(())
    })
    .await;
    assert_eq!(ended, [None, Some(ErrorKind::Other), None]);
    assert_eq!(sent(&store).await, ["first", "third"]);
}

/// X05: nobody hangs, nobody is told that it was written, and the next one goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_panics_undoes_its_transaction() {
    let folder = Folder::new();
    let store = folder.open().await;
    let ended = among_others(&store, |_, _| panic!("on purpose")).await;
    assert_eq!(ended, [Some(ErrorKind::Unavailable); 3]);
    assert_eq!(sent(&store).await, Vec::<String>::new());
    put(&store, "next", 10).await.unwrap();
    assert_eq!(sent(&store).await, ["next"]);
}

/// P07: what SQLite calls damaged is not written to any more, also not by those who come later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_to_a_file_that_turned_out_damaged() {
    let folder = Folder::new();
    let store = folder.open().await;
    let damage = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    let ended =
        among_others(&store, move |_, _| Err(rusqlite::Error::SqliteFailure(damage, None).into())).await;
    assert_eq!(ended, [Some(ErrorKind::Corrupt); 3]);
    let error = put(&store, "next", 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("restore it from a backup"), "{error}");
    assert!(!is_there(&store, "next").await, "looks are answered all the same");
}

/// X06: a commit whose sync failed is the last; looks are answered, and the next process finds what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_after_a_sync_that_failed() {
    let folder = Folder::new();
    let store = folder.open().await;
    put(&store, "before", 10).await.unwrap();
    let failed = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
    let ended =
        among_others(&store, move |_, _| Err(rusqlite::Error::SqliteFailure(failed, None).into())).await;
    assert_eq!(ended, [Some(ErrorKind::Unavailable); 3]);
    let error = put(&store, "next", 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("restart this process, which recovers from the WAL"), "{error}");
    let findings = store.examine().await.unwrap();
    assert_eq!(
        (findings.len(), findings[0].code, findings[0].level),
        (1, "sqlite.sync_failed", Level::Error)
    );
    assert!(is_there(&store, "before").await && !is_there(&store, "next").await);
    drop(store);
    assert!(folder.0.join("onlyonce.db-wal").exists(), "no checkpoint is made at the end either");
    let store = folder.open().await;
    assert!(is_there(&store, "before").await && !is_there(&store, "next").await);
    put(&store, "next", 10).await.unwrap();
    assert_eq!(store.examine().await.unwrap(), []);
}

/// R08, T01: half a second in which the wall clock is 25 hours ahead forgets no key, also not after a restart.
#[tokio::test]
async fn a_wall_clock_that_leaps_forward_forgets_no_key() {
    let folder = Folder::new();
    let machine = crate::clock::tests::TestMachine::default();
    let open = async || {
        let clock = machine.clock(Timestamp::from_micros(0));
        let options = Options { clock: Some(Box::new(clock)), ..Options::default() };
        Sqlite::open(folder.file(), options).await.unwrap()
    };
    let store = open().await;
    put(&store, "k", 10).await.unwrap();
    machine.set_wall(25 * 3_600);
    machine.pass(Duration::from_millis(500));
    put(&store, "meanwhile", 10).await.unwrap();
    assert_eq!(Store::reap(&store, 9).await.unwrap(), 0);
    assert_eq!(store.examine().await.unwrap()[0].code, "clock.departed");
    machine.set_wall(0);
    machine.pass(Duration::from_secs(5));
    drop(store);
    let store = open().await;
    assert_eq!(Store::reap(&store, 9).await.unwrap(), 0);
    let seen = store.load(draft("k", 0).0).await.unwrap().unwrap();
    assert!(onlyonce_core::machine::is_replayable(&seen));
}

/// M02: reaping judges the row that it deletes, and not the one that it found before.
#[tokio::test]
async fn a_record_that_was_written_anew_since_it_was_found_expired_is_not_deleted() {
    let folder = Folder::new();
    let store = folder.open().await;
    let (id, mut next) = draft("k", 10);
    let State::Completed { expires_at, .. } = &mut next.state else { unreachable!("made completed") };
    *expires_at = When::WRITE;
    store.swap(id, Change::new(None, Revision(1), next)).await.unwrap();
    let clock = store.clock.clone();
    let find = move |connection: &Connection| reap::candidates(connection, None, 9, clock.now());
    assert_eq!(store.lists().run(find).await.unwrap(), [id]);
    store.swap(id, Change::new(Some(Revision(1)), Revision(2), draft("k", 10).1)).await.unwrap();
    let delete = move |connection: &Connection, now| reap::delete(connection, &[id], Expired::Delete, now);
    assert_eq!(store.writer.submit(MANY, delete).await.unwrap(), 0);
    assert!(is_there(&store, "k").await);
}

/// X01: a writer that has ended keeps nobody waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_has_ended_refuses_writes() {
    let folder = Folder::new();
    let store = folder.open().await;
    put(&store, "before", 10).await.unwrap();
    drop(store.writer.close());
    assert_eq!(put(&store, "after", 10).await.unwrap_err().kind(), ErrorKind::Unavailable);
    drop(store);
    let store = folder.open().await;
    assert!(is_there(&store, "before").await && !is_there(&store, "after").await);
}

/// R08: recovering what is older than the latest stamp does not set the clock back.
#[tokio::test]
async fn the_latest_stamp_never_goes_back() {
    let folder = Folder::new();
    let store = folder.open().await;
    let latest = move |connection: &Connection, now: Timestamp| {
        writer::keep_time(connection, now)?;
        writer::keep_time(connection, Timestamp::from_micros(1))?;
        let kept: i64 = connection.query_row("SELECT latest FROM onlyonce_store", [], |row| row.get(0))?;
        Ok::<_, Refused>((kept, now.as_micros()))
    };
    let (kept, now) = store.writer.submit(MANY, latest).await.unwrap();
    assert_eq!(kept, now);
}

/// A crash driver that goes by the list misses no step, and looks for none that is not there.
#[test]
fn every_step_is_on_the_list() {
    const SOURCES: [&str; 6] = [
        include_str!("abandon.rs"),
        include_str!("checkpoint.rs"),
        include_str!("migration.rs"),
        include_str!("open.rs"),
        include_str!("reap.rs"),
        include_str!("writer.rs"),
    ];
    let mut found: Vec<&str> = Vec::new();
    for source in SOURCES {
        let steps = source.split("failpoint!(\"").skip(1);
        found.extend(steps.filter_map(|step| step.split('"').next()));
    }
    let mut listed = FAILPOINTS.to_vec();
    found.sort_unstable();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Answers go by runtimes, and every caller gets its own; one whose runtime ends takes nobody's with it.
#[test]
fn callers_of_several_runtimes_are_each_answered_and_one_that_ends_disturbs_nobody() {
    const RUNTIMES: usize = 3;
    const EACH: usize = 50;
    let folder = Folder::new();
    let store = runtime().block_on(folder.open());
    let ends = runtime();
    // Handed in, and nobody is left who would take the answer.
    ends.block_on(async {
        let mut given_up = pin!(put(&store, "given-up", 10));
        assert!(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    });
    drop(ends);
    std::thread::scope(|scope| {
        for number in 0..RUNTIMES {
            let store = store.clone();
            scope.spawn(move || runtime().block_on(put_many(&store, number, EACH)));
        }
    });
    assert!(runtime().block_on(is_there(&store, "given-up")));
}

/// Many at once, each of which must be answered with its own record.
async fn put_many(store: &Arc<Sqlite>, number: usize, count: usize) {
    let mut puts = tokio::task::JoinSet::new();
    for index in 0..count {
        let store = store.clone();
        puts.spawn(async move {
            let key = format!("{number}-{index}");
            let Ok(Swapped::Applied(seen)) = put(&store, &key, index).await else { panic!("{key} was lost") };
            assert_eq!(seen.record.key.as_str(), key);
        });
    }
    while let Some(put) = puts.join_next().await {
        put.unwrap();
    }
}

/// A copy is the store at a moment: with what was written before it began, and nothing that came after something it lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_lacks_nothing_that_came_before_what_it_has() {
    const BACKUPS: u64 = 20;
    let folder = Folder::new();
    let store = folder.open().await;
    let written = Arc::new(AtomicU64::new(0));
    let (writing, counted) = (store.clone(), written.clone());
    let writer = tokio::spawn(async move {
        for number in 0.. {
            put(&writing, &format!("key-{number}"), 2_000).await.unwrap();
            counted.store(number + 1, Ordering::Release);
        }
    });
    for number in 0..BACKUPS {
        let to = folder.file().with_extension(format!("copy{number}"));
        let before = written.load(Ordering::Acquire);
        store.backup(&to, |_| {}).await.unwrap();
        let after = written.load(Ordering::Acquire);
        let copy = Sqlite::open(&to, Options::default()).await.unwrap();
        let mut there = 0;
        while is_there(&copy, &format!("key-{there}")).await {
            there += 1;
        }
        assert!(there >= before, "backup {number} has {there} of {before} that were written before it");
        for later in there..=after {
            assert!(
                !is_there(&copy, &format!("key-{later}")).await,
                "backup {number} lacks key-{there}, has key-{later}"
            );
        }
        drop(copy);
        std::fs::remove_file(to).unwrap();
    }
    writer.abort();
    assert!(written.load(Ordering::Acquire) > 200, "too little was written meanwhile");
}
