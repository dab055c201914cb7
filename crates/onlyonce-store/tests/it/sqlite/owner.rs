//! One process has the file, and only its owner may read it.

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
    let name = format!("belongs to process {} since 20", std::process::id());
    assert!(error.to_string().contains(&name), "{error}");
    assert!(error.to_string().contains("; stop that process"), "{error}");
    put(&store, "k").await;
    drop(store);
    assert!(open(folder.file()).await.load(id("k")).await.unwrap().is_some());
}

/// E01: another spelling of the path is the same file.
#[cfg(unix)]
#[tokio::test]
async fn a_second_opener_by_another_path_is_told_too() {
    let folder = Folder::new();
    let _store = open(folder.file()).await;
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.file(), &link).unwrap();
    for path in [link, folder.path().join("../").join(folder.path().file_name().unwrap()).join("onlyonce.db")]
    {
        let error = try_open(path).await.unwrap_err();
        assert!(error.to_string().contains("belongs to process"), "{error}");
    }
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
    let expected = [
        "backup.db",
        "onlyonce.db",
        "onlyonce.db-shm",
        "onlyonce.db-tape0",
        "onlyonce.db-tape1",
        "onlyonce.db-wal",
        "onlyonce.db.lock",
    ];
    assert_eq!(names, expected);
}
