//! Concurrent use: commits are shared, readers see acknowledged writes, backups are consistent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use onlyonce_core::record::{Effects, Revision, StateSet};
use onlyonce_store::sqlite::Sqlite;
use onlyonce_store::{Change, ErrorKind, Query, Store, Swapped};

use super::folder::Folder;
use super::world::{draft, id, insert, open, put, running};

const CALLERS: usize = 64;

/// E01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_come_at_once_share_commits() {
    const EACH: usize = 20;
    let folder = Folder::new();
    let store = Arc::new(open(folder.file()).await);
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    put(&*store, &format!("{caller} {number}")).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let figures = store.figures();
    assert_eq!(figures.works, (CALLERS * EACH) as u64);
    assert!(figures.commits * 4 < figures.works, "{figures:?}");
}

/// E01: one caller's write waits for nobody.
#[tokio::test]
async fn a_lone_write_is_a_commit_of_its_own() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    for number in 0..10 {
        put(&store, &number.to_string()).await;
    }
    assert_eq!((store.figures().works, store.figures().commits), (10, 10));
}

/// R01: many readers beside the writer. Nobody sees a record go back, and whoever was told of a write sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_never_see_a_record_go_back() {
    const WRITES: u64 = 300;
    const READERS: usize = 16;
    let folder = Folder::new();
    let store = Arc::new(open(folder.file()).await);
    insert(&*store, draft("k", Effects::Opaque, running()), 0).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..READERS).map(|_| tokio::spawn(watch(store.clone(), is_over.clone()))).collect();
    for revision in 1..=WRITES {
        let (id, next) = draft("k", Effects::Opaque, running());
        let expected = Some(Revision(revision - 1));
        let change = Change::new(expected, Revision(revision), next);
        assert!(matches!(store.swap(id, change).await.unwrap(), Swapped::Applied(_)));
        assert_eq!(store.load(id).await.unwrap().unwrap().revision, Revision(revision));
    }
    is_over.store(true, Ordering::Release);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
}

async fn watch(store: Arc<Sqlite>, is_over: Arc<AtomicBool>) -> usize {
    let (mut latest, mut now, mut looks) = (0, None, 0);
    while !is_over.load(Ordering::Acquire) {
        let seen = store.load(id("k")).await.unwrap().unwrap();
        assert!(seen.revision.0 >= latest && Some(seen.now) >= now);
        assert!(seen.now >= seen.record.written_at);
        (latest, now, looks) = (seen.revision.0, Some(seen.now), looks + 1);
    }
    looks
}

/// E01: the copy is of one moment: of records that are written in order, it has the first so many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_while_others_write_is_of_one_moment_and_can_be_opened() {
    const BEFORE: usize = 3_000;
    let folder = Folder::new();
    let store = Arc::new(open(folder.file()).await);
    let written = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, written, is_over) = (store.clone(), written.clone(), is_over.clone());
        async move {
            while !is_over.load(Ordering::Acquire) {
                put(&*store, &written.load(Ordering::Acquire).to_string()).await;
                written.fetch_add(1, Ordering::AcqRel);
            }
        }
    });
    while written.load(Ordering::Acquire) < BEFORE {
        tokio::task::yield_now().await;
    }
    let target = folder.path().join("backup.db");
    let steps = Arc::new(AtomicUsize::new(0));
    let told = steps.clone();
    store
        .backup(&target, move |progress| {
            assert!(progress.pages_done <= progress.pages);
            told.fetch_add(1, Ordering::AcqRel);
        })
        .await
        .unwrap();
    let until = written.load(Ordering::Acquire) + 1;
    is_over.store(true, Ordering::Release);
    writer.await.unwrap();
    assert!(steps.load(Ordering::Acquire) > 0);
    let copy = open(&target).await;
    let health = copy.check().await.unwrap();
    assert!(health.faults.is_empty() && (BEFORE..=until).contains(&health.records), "{health:?}");
    assert!(copy.load(id(&(health.records - 1).to_string())).await.unwrap().is_some());
    assert!(copy.load(id(&health.records.to_string())).await.unwrap().is_none());
    let error = store.backup(&target, |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("exists already; use a new file"), "{error}");
}

/// M02: listings and reaping take their turns with swaps, and none of them is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wal_is_checkpointed_while_others_write() {
    const EACH: usize = 300;
    let folder = Folder::new();
    let store = Arc::new(open(folder.file()).await);
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    put(&*store, &format!("{caller} {number}")).await;
                    if number % 50 == 0 {
                        assert!(store.scan(Query::due(StateSet::ALL, 10)).await.unwrap().records.is_empty());
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(store.figures().checkpoints > 0, "{:?}", store.figures());
    let health = store.check().await.unwrap();
    assert_eq!((health.records, health.faults), (CALLERS * EACH, Vec::new()));
}
