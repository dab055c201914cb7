//! A store file that another process owns, or nobody: read, and never changed.

use std::fs;
use std::time::Duration;

use onlyonce_core::record::{Effects, Revision, StateName, StateSet, Token};
use onlyonce_core::time::When;
use onlyonce_store::audit::{self, Entry};
use onlyonce_store::clock::ManualClock;
use onlyonce_store::outbox::Settled;
use onlyonce_store::sqlite::{Expired, GuestStore, Options, Sqlite};
use onlyonce_store::{Change, Count, Error, ErrorKind, Query, Search, Store};
use rusqlite::Connection;

use super::folder::Folder;
use super::kill;
use super::reopen::Files;
use super::world::{HOUR, claimed, completed, draft, id, insert, message, open, put, running, wanted};

async fn guest(folder: &Folder) -> GuestStore {
    GuestStore::open(folder.file(), None).await.unwrap()
}

fn entry(id: &str) -> Entry {
    Entry { id: id.into(), who: "ann".into(), action: "forget".into(), ..Entry::default() }
}

/// The files of a process that died: a running and a completed record, a message and an audit entry, all in the WAL.
async fn dead() -> (Folder, Files) {
    let folder = Folder::new();
    let options = Options { expired: Expired::Keep, ..Options::default() };
    let store = Sqlite::open(folder.file(), options).await.unwrap();
    insert(&store, draft("expired", Effects::Opaque, completed(When::WRITE)), 1).await.unwrap();
    assert_eq!(store.reap(9).await.unwrap(), 1);
    insert(&store, draft("runs", Effects::Opaque, running()), 1).await.unwrap();
    let (done, next) = draft("done", Effects::Opaque, completed(When::AfterWrite(HOUR)));
    let change = Change::new(None, Revision(2), next).with_messages(vec![message("m")]);
    store.swap(done, change.with_audit(Some(entry("e1")))).await.unwrap();
    let files = Files::copy(&folder);
    let dead = Folder::new();
    files.write(&dead);
    (dead, files)
}

/// O09: an operator looks while the gateway serves, and the gateway does not notice.
#[tokio::test]
async fn a_guest_reads_while_another_process_writes_and_after_it_was_killed() {
    const KEYS: usize = 200;
    let folder = Folder::new();
    let mut child = kill::writer(&folder.file());
    let mut said = kill::said(&mut child);
    let mut written: Vec<_> = said.by_ref().take(KEYS).collect();
    let store = guest(&folder).await;
    for round in 0..3 {
        for key in &written {
            let seen = store.load(id(key)).await.unwrap().expect("what was acknowledged is seen");
            assert!(seen.now >= seen.record.written_at, "{key}, round {round}");
        }
        let counted = store.count().await.unwrap();
        let completed = counted.iter().find(|(state, _)| *state == StateName::Completed).unwrap().1;
        assert!(matches!(completed, Count::Exact(count) if count >= written.len() as u64), "{completed:?}");
        assert_eq!(store.scan(Query::all(50)).await.unwrap().records.len(), 50);
        written.extend(said.by_ref().take(KEYS));
    }
    child.kill().unwrap();
    written.extend(said);
    child.wait().unwrap();
    let before = Files::copy(&folder);
    for store in [store, guest(&folder).await] {
        for key in &written {
            assert!(store.load(id(key)).await.unwrap().is_some(), "{key} is lost");
        }
    }
    assert_eq!(Files::copy(&folder), before, "a guest makes no checkpoint");
    assert!(open(folder.file()).await.check().await.unwrap().faults.is_empty());
}

/// O09: everything that is there can be read, and what a dead process left running is not settled by looking.
#[tokio::test]
async fn a_guest_reads_what_a_dead_process_left_and_leaves_it_so() {
    let (folder, files) = dead().await;
    let store = guest(&folder).await;
    assert_eq!(store.load(id("runs")).await.unwrap().unwrap().record.state.name(), StateName::Running);
    let running = Query { states: StateName::Running.into(), ..Query::all(9) };
    assert_eq!(store.scan(running).await.unwrap().records.len(), 1);
    let search = Query { search: Some(Search::new("done")), ..Query::all(9) };
    assert_eq!(store.scan(search).await.unwrap().records[0].0, id("done"));
    assert_eq!(store.scan(Query::due(StateSet::ALL, 9)).await.unwrap().records.len(), 0);
    assert_eq!(store.archived(id("expired"), 9).await.unwrap().unwrap().len(), 1);
    let log = store.audit().list(audit::Query { limit: 9, ..audit::Query::default() }).await.unwrap();
    assert_eq!(log.entries.iter().map(|written| &written.entry).collect::<Vec<_>>(), [&entry("e1")]);
    assert!(store.outbox().unwrap().census().await.unwrap().oldest.is_some());
    let epoch = store.epoch().await.unwrap();
    drop(store);
    assert_eq!(Files::copy(&folder), files);
    let owner = open(folder.file()).await;
    let seen = owner.epoch().await.unwrap();
    assert_eq!((seen.epoch, seen.store), (epoch.epoch, epoch.store));
    assert_eq!(owner.figures().abandoned, 1, "the owner settles it");
}

/// O09: a store that is closed is one file, and stays it.
#[tokio::test]
async fn a_guest_leaves_a_closed_store_one_file() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    put(&store, "k").await;
    drop(store);
    let before = fs::read(folder.file()).unwrap();
    let store = guest(&folder).await;
    assert!(store.load(id("k")).await.unwrap().is_some());
    drop(store);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(fs::read(folder.file()).unwrap(), before);
}

/// O09: whoever has the file may have a clock that is ahead.
#[tokio::test]
async fn a_guests_now_is_not_before_the_latest_stamp() {
    let folder = Folder::new();
    let clock = ManualClock::new();
    clock.advance(200 * 365 * 24 * HOUR);
    let options = Options { clock: Some(Box::new(clock)), ..Options::default() };
    let store = Sqlite::open(folder.file(), options).await.unwrap();
    let written_at = put(&store, "k").await.record.written_at;
    drop(store);
    let store = guest(&folder).await;
    assert_eq!(store.load(id("k")).await.unwrap().unwrap().now, written_at);
    assert_eq!(store.scan(Query::all(1)).await.unwrap().records[0].1.now, written_at);
    assert_eq!(store.epoch().await.unwrap().now, written_at);
}

/// O09: what a guest may not do is said with the way to do it.
#[tokio::test]
async fn a_guest_refuses_every_write() {
    let (folder, files) = dead().await;
    let store = guest(&folder).await;
    let (id, next) = draft("k", Effects::Opaque, running());
    let change = Change::new(None, Revision(1), next).with_audit(Some(entry("e2")));
    let token = Token([1; 16]);
    let settled = Settled::Delivered { provider_id: None };
    let outbox = store.outbox().unwrap();
    let refused: [Option<Error>; 12] = [
        store.swap(id, change).await.err(),
        store.reap(9).await.err(),
        store.erase([1; 32], 9).await.err(),
        store.raise_epoch().await.err(),
        store.audit().write(entry("e2")).await.err(),
        store.audit().prune(Duration::ZERO, 9).await.err(),
        outbox.claim(token, &[wanted(HOUR)]).await.err(),
        outbox.settle(&claimed("m", token), settled).await.err(),
        outbox.pass_dead("billing").await.err(),
        outbox.redrive(1, entry("e2")).await.err(),
        outbox.discard(1, entry("e2")).await.err(),
        outbox.prune(Duration::ZERO, 9).await.err(),
    ];
    for error in refused {
        let error = error.expect("it is refused");
        assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Misconfigured, true), "{error}");
        assert!(
            error.to_string().contains("belongs to another process, and can only be read here; use --admin"),
            "{error}"
        );
    }
    drop(store);
    assert_eq!(Files::copy(&folder), files);
}

/// O09, P07: what a guest cannot read it says, and does not repair.
#[tokio::test]
async fn a_guest_refuses_a_file_that_is_not_its_releases() {
    let refused = async |folder: &Folder, says: &str| {
        let error = GuestStore::open(folder.file(), None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    let folder = Folder::new();
    refused(&folder, "does not exist or is empty").await;
    let store = open(folder.file()).await;
    put(&store, "k").await;
    refused(&folder, "belongs to this process already").await;
    put(&store, "still served").await;
    drop(store);
    let other = Connection::open(folder.file()).unwrap();
    other.execute("UPDATE onlyonce_migration SET checksum = x'00' WHERE number = 1", []).unwrap();
    drop(other);
    refused(&folder, "was not made by migration \"0001-first\" of this release").await;
    let empty = Folder::new();
    let other = Connection::open(empty.file()).unwrap();
    other.pragma_update(None, "application_id", 0x4f6e_4f32).unwrap();
    drop(other);
    refused(&empty, "lacks migration \"0001-first\"; run \"onlyonce migrate\"").await;
}
