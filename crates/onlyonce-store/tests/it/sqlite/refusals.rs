//! A file that is not a store is refused with a remedy, and left unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use onlyonce_core::record::{Effects, StateSet};
use onlyonce_core::time::When;
use onlyonce_store::{ErrorKind, Query, Store};
use rusqlite::Connection;

use super::folder::Folder;
use super::world::{completed, draft, id, insert, open, put, try_open};

/// What is in a folder, byte by byte. Not what SQLite has beside a database while it is open and has nothing in it: its
/// shared memory, and a WAL that is empty.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let named =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()));
    let says_something = |name: &str, bytes: &[u8]| match name.rsplit_once(['.', '-']) {
        Some((_, "shm")) => false,
        Some((_, "wal")) => !bytes.is_empty(),
        _ => true,
    };
    named.filter(|(name, bytes)| says_something(name, bytes)).collect()
}

/// Refused with this kind and these words, and nothing in the folder has changed.
async fn refused(folder: &Folder, kind: ErrorKind, words: &[&str]) {
    let before = contents(folder.path());
    let error = try_open(folder.file()).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words.iter().chain(&["onlyonce.db\"", "; "]) {
        assert!(error.to_string().contains(word), "{error} has no \"{word}\"");
    }
    let after = contents(folder.path());
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert!(before == after, "the file was changed");
}

/// A file with some records, closed.
async fn closed_with(folder: &Folder, records: usize) {
    let store = open(folder.file()).await;
    for number in 0..records {
        put(&store, &number.to_string()).await;
    }
}

/// E01
#[tokio::test]
async fn a_folder_is_refused() {
    let folder = Folder::new();
    let error = try_open(folder.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("is a folder; use a file in it, such as"), "{error}");
    assert!(contents(folder.path()).is_empty());
}

/// E01
#[tokio::test]
async fn a_folder_that_is_missing_or_cannot_be_written_is_refused() {
    let folder = Folder::new();
    let error = try_open(folder.path().join("missing/onlyonce.db")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("create it first"), "{error}");
    // Nobody can create a file there, not even root.
    let error = try_open("/proc/onlyonce.db").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("\"/proc/onlyonce.db\" cannot be created"), "{error}");
}

/// E01
#[tokio::test]
async fn a_file_that_is_no_database_is_refused_untouched() {
    for text in ["x", "SQLite format 3", &"a,b,c\n".repeat(1_000)] {
        let folder = Folder::new();
        fs::write(folder.file(), text).unwrap();
        refused(&folder, ErrorKind::Misconfigured, &["is not an SQLite database", "use another file"]).await;
    }
}

/// E01
#[tokio::test]
async fn another_programs_database_is_refused_untouched() {
    for application_id in [0, 0x1234] {
        let folder = Folder::new();
        let theirs = Connection::open(folder.file()).unwrap();
        theirs.pragma_update(None, "application_id", application_id).unwrap();
        theirs.execute_batch("CREATE TABLE record (theirs); INSERT INTO record VALUES (1);").unwrap();
        drop(theirs);
        refused(&folder, ErrorKind::Misconfigured, &["of another program"]).await;
    }
}

/// P07
#[tokio::test]
async fn a_newer_releases_file_is_refused_untouched() {
    let folder = Folder::new();
    closed_with(&folder, 3).await;
    let newer = Connection::open(folder.file()).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    refused(&folder, ErrorKind::Misconfigured, &["schema version 99", "upgrade this one"]).await;
}

/// P07: the newer release was killed, and only its WAL says so.
#[tokio::test]
async fn a_newer_releases_wal_is_refused_untouched() {
    let folder = Folder::new();
    closed_with(&folder, 3).await;
    let newer = Connection::open(folder.file()).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    let killed = Folder::new();
    for (name, bytes) in contents(folder.path()) {
        fs::write(killed.path().join(name), bytes).unwrap();
    }
    refused(&killed, ErrorKind::Misconfigured, &["schema version 99"]).await;
}

/// P07
#[tokio::test]
async fn a_file_of_other_migrations_is_refused_untouched() {
    let folder = Folder::new();
    closed_with(&folder, 3).await;
    let other = Connection::open(folder.file()).unwrap();
    other.execute("UPDATE onlyonce_migration SET checksum = x'00' WHERE number = 1", []).unwrap();
    drop(other);
    refused(&folder, ErrorKind::Misconfigured, &["was not made by migration \"0001-first\""]).await;
}

/// P07
#[tokio::test]
async fn half_a_file_is_refused_untouched() {
    let folder = Folder::new();
    closed_with(&folder, 200).await;
    let whole = fs::read(folder.file()).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 4096, 101] {
        fs::write(folder.file(), &whole[..length]).unwrap();
        refused(&folder, ErrorKind::Corrupt, &["in part", "restore it from a backup"]).await;
    }
    for length in [1, 99] {
        fs::write(folder.file(), &whole[..length]).unwrap();
        refused(&folder, ErrorKind::Misconfigured, &["is not an SQLite database"]).await;
    }
}

/// P07: a store of a development build, whose records were blobs and whose last answers were in files beside it.
#[tokio::test]
async fn a_file_from_before_records_were_columns_is_refused_untouched() {
    let folder = Folder::new();
    let before = Connection::open(folder.file()).unwrap();
    before.pragma_update(None, "application_id", 0x4f6e_4f31).unwrap();
    before.pragma_update(None, "user_version", 4).unwrap();
    before.execute_batch("CREATE TABLE record (id, record); INSERT INTO record VALUES (1, 2);").unwrap();
    drop(before);
    fs::write(folder.path().join("onlyonce.db-tape0"), b"something").unwrap();
    refused(&folder, ErrorKind::Misconfigured, &["development build", "name a new file"]).await;
}

/// P07: an index that says otherwise than the rows.
#[tokio::test]
async fn a_file_whose_index_disagrees_is_refused_untouched() {
    let folder = Folder::new();
    closed_with(&folder, 20).await;
    let other = Connection::open(folder.file()).unwrap();
    // The index is told to be about another column: its entries stay as they are.
    other.pragma_update(None, "writable_schema", true).unwrap();
    let lie = "UPDATE sqlite_schema SET sql = replace(sql, '(state, due_at)', '(state, written_at)')
               WHERE name = 'onlyonce_record_by_due'";
    assert_eq!(other.execute(lie, []).unwrap(), 1);
    drop(other);
    refused(&folder, ErrorKind::Corrupt, &["onlyonce_record_by_due", "restore it from a backup"]).await;
}

/// P07: a row that another program wrote wrongly.
#[tokio::test]
async fn a_row_whose_columns_contradict_each_other_is_refused_untouched() {
    let folder = Folder::new();
    closed_with(&folder, 3).await;
    let other = Connection::open(folder.file()).unwrap();
    other.execute("UPDATE onlyonce_record SET state = 'running' WHERE key = '1'", []).unwrap();
    drop(other);
    let says = ["column \"state\" is \"running\"", "which no running record has", &id("1").to_string()];
    refused(&folder, ErrorKind::Corrupt, &says).await;
}

/// P07: a page in the middle, and the page that says what tables there are.
#[tokio::test]
async fn a_damaged_file_is_refused_untouched() {
    let folder = Folder::new();
    closed_with(&folder, 200).await;
    let whole = fs::read(folder.file()).unwrap();
    for page in 0..whole.len() / 4096 {
        let mut damaged = whole.clone();
        let start = if page == 0 { 100 } else { page * 4096 };
        damaged[start..(page + 1) * 4096].fill(0xa5);
        fs::write(folder.file(), damaged).unwrap();
        refused(&folder, ErrorKind::Corrupt, &["restore it from a backup"]).await;
    }
}

/// P07: an error, and never a wrong answer: absent would mean that the key may run.
#[tokio::test]
async fn a_record_that_cannot_be_read_is_an_error_and_the_others_are_served() {
    let folder = Folder::new();
    closed_with(&folder, 3).await;
    let other = Connection::open(folder.file()).unwrap();
    let damage = "UPDATE onlyonce_record SET rest = x'ff' WHERE key = '1'";
    other.execute(damage, []).unwrap();
    drop(other);
    let id = id("1").to_string();
    refused(&folder, ErrorKind::Corrupt, &["column \"rest\" has version 255", &id]).await;
    // Damaged while it is open, and found by whoever asks for it.
    let other = Connection::open(folder.file()).unwrap();
    other.execute("DELETE FROM onlyonce_record WHERE key = '1'", []).unwrap();
    drop(other);
    let store = open(folder.file()).await;
    put(&store, "1").await;
    let other = Connection::open(folder.file()).unwrap();
    other.execute(damage, []).unwrap();
    let error = store.load(super::world::id("1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(store.load(super::world::id("2")).await.unwrap().is_some());
    put(&store, "3").await;
    let health = store.check().await.unwrap();
    assert_eq!((health.records, health.faults.len()), (4, 1), "{health:?}");
    assert!(health.faults[0].contains(&id), "{health:?}");
}

/// M01: a damaged row keeps nobody else's from being swept.
#[tokio::test]
async fn a_record_that_cannot_be_read_is_left_out_of_what_workers_look_at() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    for key in ["1", "2"] {
        let expired = completed(When::WRITE);
        insert(&store, draft(key, Effects::Opaque, expired), 1).await.unwrap();
    }
    let other = Connection::open(folder.file()).unwrap();
    other.execute("UPDATE onlyonce_record SET effects = 'some' WHERE key = '1'", []).unwrap();
    let due = store.scan(Query::due(StateSet::ALL, 9)).await.unwrap();
    assert_eq!(due.records.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id("2")]);
    assert_eq!(store.scan(Query::all(9)).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.reap(9).await.unwrap(), 1, "and it is not reaped");
    assert_eq!(store.load(id("1")).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// An empty file is what `touch` or a killed process leaves: it is ours to fill.
#[tokio::test]
async fn an_empty_file_is_filled() {
    let folder = Folder::new();
    fs::write(folder.file(), "").unwrap();
    put(&open(folder.file()).await, "k").await;
    assert!(open(folder.file()).await.load(id("k")).await.unwrap().is_some());
}

/// A checkpoint beside a writer could damage the file before this release of SQLite.
#[test]
fn sqlite_is_new_enough() {
    assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
}
