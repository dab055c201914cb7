//! Ordinary tools work on the store: the `sqlite3` program reads it, backs it up, and finds everything after a crash.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use onlyonce_core::record::{Effects, Revision};
use onlyonce_store::audit::Entry;
use onlyonce_store::{Change, Error, ErrorKind, Store, Swapped};
use onlyonce_testkit::engines::sqlite;

use super::folder::Folder;
use super::kill;
use super::world::{draft, id, insert, open, put, running};

const KEYS: &str =
    "SELECT key FROM onlyonce_record WHERE state = 'completed' AND status = 201 AND body IS NOT NULL";

fn lines(text: &str) -> HashSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// P05, E09: the files of a process that was killed, read by `sqlite3` alone before any process of ours.
#[tokio::test]
async fn sqlite3_alone_shows_every_acknowledged_answer_after_sigkill() {
    for round in 1..=3 {
        let folder = Folder::new();
        let mut child = kill::writer(&folder.file());
        let mut keys = kill::said(&mut child);
        let mut written: Vec<_> = keys.by_ref().take(300 * round).collect();
        child.kill().unwrap();
        written.extend(keys);
        child.wait().unwrap();
        let shown = lines(&sqlite::run(&folder.file(), KEYS));
        for key in &written {
            assert!(shown.contains(key), "{key} was acknowledged, and sqlite3 does not show it");
        }
        assert_eq!(sqlite::run(&folder.file(), "PRAGMA integrity_check"), "ok\n");
    }
}

/// E09: a backup by `sqlite3` of a store under load is of one moment, and opens and serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_by_sqlite3_under_load_opens_and_serves() {
    const BEFORE: usize = 500;
    let folder = Folder::new();
    let store = Arc::new(open(folder.file()).await);
    let (written, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
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
    let copy = folder.path().join("copy.db");
    let (from, to) = (folder.file(), copy.clone());
    let backup = move || sqlite::run(&from, &format!(".timeout 10000\n.backup '{}'\nSELECT 1", to.display()));
    tokio::task::spawn_blocking(backup).await.unwrap();
    let until = written.load(Ordering::Acquire) + 1;
    is_over.store(true, Ordering::Release);
    writer.await.unwrap();
    let store = open(&copy).await;
    let health = store.check().await.unwrap();
    assert!(health.faults.is_empty() && (BEFORE..=until).contains(&health.records), "{health:?}");
    let last = (health.records - 1).to_string();
    assert!(store.load(id(&last)).await.unwrap().is_some());
    put(&store, "served").await;
}

/// E09: closed, a store is one file, and a plain copy of that file is the store.
#[tokio::test]
async fn a_copy_of_a_closed_file_opens_and_serves() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    for number in 0..50 {
        put(&store, &number.to_string()).await;
    }
    drop(store);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "one file");
    let copy = Folder::new();
    fs::copy(folder.file(), copy.file()).unwrap();
    assert_eq!(lines(&sqlite::run(&copy.file(), KEYS)).len(), 50);
    let store = open(copy.file()).await;
    assert!(store.load(id("49")).await.unwrap().is_some());
    put(&store, "served").await;
}

/// E09: what an operator asks, answered by a row; while the store is open, and without a decoder of ours.
#[tokio::test]
async fn a_person_with_sqlite3_reads_what_stands_there() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    put(&store, "order-7").await;
    insert(&store, draft("order-8", Effects::Keyed, running()), 2).await.unwrap();
    let told = sqlite::run(
        &folder.file(),
        "SELECT key, state, attempt, status, instr(body, CAST('paid' AS BLOB)) > 0, expires_at > written_at
         FROM onlyonce_record ORDER BY key",
    );
    assert_eq!(told, "order-7|completed|1|201|1|1\norder-8|running|1|||\n");
    let told = sqlite::run(
        &folder.file(),
        "SELECT key, scope_label, route, effects, substr(updated_at, 1, 2), length(scope) FROM onlyonce_keys ORDER BY key",
    );
    assert_eq!(told, "order-7|acme|POST /payments|opaque|20|64\norder-8|acme|POST /payments|keyed|20|64\n");
}

/// O01, E09: who did what, and why, with dates; also while the store is open.
#[tokio::test]
async fn a_person_with_sqlite3_reads_the_log() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let entry = |id: &str, action: &str| Entry {
        id: id.into(),
        who: "ann".into(),
        role: "operate".into(),
        via: "cli".into(),
        action: action.into(),
        scope: Some([1; 32]),
        key: Some("order-7".into()),
        reason: Some("checked with the bank".into()),
        result: "applied".into(),
        ..Entry::default()
    };
    let (id, next) = draft("order-7", Effects::Opaque, running());
    store
        .swap(id, Change::new(None, Revision(1), next).with_audit(Some(entry("e1", "verdict"))))
        .await
        .unwrap();
    store.audit().write(entry("e2", "read_response")).await.unwrap();
    let told = sqlite::run(
        &folder.file(),
        "SELECT who, action, substr(scope, 1, 4), key, reason, forced, result, substr(at, 1, 2) FROM onlyonce_log",
    );
    assert_eq!(
        told,
        "ann|read_response|0101|order-7|checked with the bank|0|applied|20\n\
         ann|verdict|0101|order-7|checked with the bank|0|applied|20\n",
        "newest first"
    );
}

/// O01, W01: an entry is part of a transaction of the user's own, or not there at all.
#[tokio::test]
async fn an_entry_commits_with_rows_of_ones_own_or_not_at_all() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    for (key, fails) in [("kept", false), ("undone", true)] {
        let (id, next) = draft(key, Effects::Local, running());
        let entry = Entry { id: key.into(), ..Entry::default() };
        let change = Change::new(None, Revision(1), next).with_audit(Some(entry));
        let written = store.write(move |transaction| {
            assert!(matches!(transaction.swap(id, change)?, Swapped::Applied(_)));
            if fails { Err(Error::new(ErrorKind::Other, "on purpose")) } else { Ok(()) }
        });
        assert_eq!(written.await.is_err(), fails);
    }
    assert_eq!(sqlite::run(&folder.file(), "SELECT id FROM onlyonce_audit"), "kept\n");
}

/// O01: no entry, no change; and whoever writes beside it is not disturbed.
#[tokio::test]
async fn a_change_whose_entry_cannot_be_written_is_not_made() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    sqlite::run(
        &folder.file(),
        "CREATE TRIGGER refuse BEFORE INSERT ON onlyonce_audit BEGIN SELECT raise(ABORT, 'on purpose'); END",
    );
    let (id, next) = draft("refused", Effects::Local, running());
    let change = Change::new(None, Revision(1), next).with_audit(Some(Entry::default()));
    let (refused, _) = tokio::join!(store.swap(id, change), put(&store, "beside"));
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(store.load(id).await.unwrap(), None);
    assert_eq!(sqlite::run(&folder.file(), "SELECT count(*) FROM onlyonce_audit"), "0\n");
}
