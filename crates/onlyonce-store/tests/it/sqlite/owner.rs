//! One process owns the file, and only its owner may read it.

use std::fs;

use onlyonce_store::{ErrorKind, Store};

use super::folder::Folder;
use super::world::{id, open, put, try_open};

/// E01
#[tokio::test]
async fn a_second_opener_is_told_who_has_the_file() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    let error = try_open(folder.file()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("belongs to this process already; stop that"), "{error}");
    put(&store, "k").await;
    drop(store);
    assert!(open(folder.file()).await.load(id("k")).await.unwrap().is_some());
}

/// Every way to the file of this folder that is not its own path.
#[cfg(unix)]
fn other_ways(folder: &Folder) -> Vec<std::path::PathBuf> {
    let (soft, hard) = (folder.path().join("soft.db"), folder.path().join("hard.db"));
    std::os::unix::fs::symlink(folder.file(), &soft).unwrap();
    fs::hard_link(folder.file(), &hard).unwrap();
    let around = folder.path().join("../").join(folder.path().file_name().unwrap()).join("onlyonce.db");
    vec![soft, hard, around]
}

/// E01, R02: another path, a symbolic and a hard link lead to the same file.
#[cfg(unix)]
#[tokio::test]
async fn a_second_opener_by_another_path_is_told_too() {
    let folder = Folder::new();
    let store = open(folder.file()).await;
    for path in other_ways(&folder) {
        let error = try_open(path).await.unwrap_err();
        assert!(error.to_string().contains("belongs to this process already"), "{error}");
    }
    // To be refused has not cost the store SQLite's own locks: a foreign connection is not the last one to close.
    put(&store, "k").await;
    drop(rusqlite::Connection::open(folder.file()).unwrap());
    assert!(folder.path().join("onlyonce.db-wal").exists(), "the WAL of a store that is open was taken away");
    put(&store, "later").await;
    drop(store);
    assert!(open(folder.file()).await.load(id("later")).await.unwrap().is_some());
}

/// E01, R02: with whatever lies beside the file removed, another process still does not get it.
#[cfg(unix)]
#[tokio::test]
async fn another_process_is_told_who_has_the_file() {
    let folder = Folder::new();
    let mut child = super::kill::writer(&folder.file());
    let mut keys = super::kill::said(&mut child);
    assert!(keys.next().is_some(), "the process writes");
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let is_beside = path != folder.file() && !path.ends_with("onlyonce.db-wal");
        if is_beside && !path.ends_with("onlyonce.db-shm") {
            fs::remove_file(path).unwrap();
        }
    }
    let mut ways = other_ways(&folder);
    ways.push(folder.file());
    for path in ways {
        let error = try_open(path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        let name = format!("belongs to process {}; stop that process", child.id());
        assert!(error.to_string().contains(&name), "{error}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    open(folder.file()).await;
}

/// E01
#[cfg(unix)]
#[tokio::test]
async fn every_file_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    let store = open(folder.file()).await;
    put(&store, "k").await;
    store.backup(folder.path().join("backup.db"), |_| {}).await.unwrap();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["backup.db", "onlyonce.db", "onlyonce.db-shm", "onlyonce.db-wal"]);
    drop(store);
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.count(), 2, "closed, a store is one file; the other is the backup");
}
