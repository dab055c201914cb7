//! A disk that is really full, and one that takes what is written and does not keep it. Mounting a small one takes root; where
//! that cannot be had, these tests say so and fail.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use onlyonce_core::record::Effects;
use onlyonce_core::time::When;
use onlyonce_store::{ErrorKind, Store};

use super::folder::Folder;
use super::world::{HOUR, completed, draft, id, insert, open, put, try_open};

/// A disk of a few megabytes.
struct Disk {
    folder: Folder,
}

impl Disk {
    fn new() -> Self {
        let folder = Folder::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "onlyonce"]).arg(folder.path());
        let mounted = mount.output().expect("mount can be started");
        let why = String::from_utf8_lossy(&mounted.stderr);
        assert!(mounted.status.success(), "a small disk cannot be mounted: {why}; run the tests as root");
        Self { folder }
    }

    /// Takes all the space there is.
    fn fill(&self) -> PathBuf {
        let filler = self.folder.path().join("filler");
        assert!(fs::write(&filler, vec![1; 8 << 20]).is_err(), "it must not fit");
        filler
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).output();
    }
}

/// X01, E01
#[tokio::test]
async fn a_full_disk_refuses_writes_answers_looks_and_recovers_by_itself() {
    let disk = Disk::new();
    let store = open(disk.folder.file()).await;
    put(&store, "before").await;
    let filler = disk.fill();
    let mut refused = Vec::new();
    for number in 0..50 {
        let key = format!("while full {number}");
        let written =
            insert(&store, draft(&key, Effects::Opaque, completed(When::AfterWrite(HOUR))), 1).await;
        if let Err(error) = written {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("; "), "{error}");
            refused.push(key);
        }
    }
    assert!(!refused.is_empty(), "a disk that was not full proves nothing");
    assert!(store.load(id("before")).await.unwrap().is_some());
    for key in &refused {
        assert!(store.load(id(key)).await.unwrap().is_none(), "{key}");
    }
    fs::remove_file(filler).unwrap();
    put(&store, &refused[0]).await;
    drop(store);
    let store = open(disk.folder.file()).await;
    assert!(store.load(id(&refused[0])).await.unwrap().is_some());
    assert!(store.check().await.unwrap().faults.is_empty());
}

/// E01
#[tokio::test]
async fn a_store_is_not_created_on_a_full_disk_and_is_once_there_is_space() {
    let disk = Disk::new();
    let filler = disk.fill();
    let error = try_open(disk.folder.file()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    fs::remove_file(filler).unwrap();
    put(&open(disk.folder.file()).await, "k").await;
}

/// P05, E01: what could not be synced was not written, as far as anybody is told. `/dev/null` takes every byte and refuses the sync.
#[tokio::test]
async fn a_sync_that_fails_is_no_success() {
    let folder = Folder::new();
    let tapes = ["tape0", "tape1"].map(|tape| folder.path().join(format!("onlyonce.db-{tape}")));
    for tape in &tapes {
        std::os::unix::fs::symlink("/dev/null", tape).unwrap();
    }
    let store = open(folder.file()).await;
    for number in 0..3 {
        let draft = draft("k", Effects::Opaque, completed(When::AfterWrite(HOUR)));
        let error = insert(&store, draft, number).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("see what the system's log says about its disk"), "{error}");
        assert!(store.load(id("k")).await.unwrap().is_none());
    }
    drop(store);
    for tape in &tapes {
        assert!(!tape.exists(), "a store that was closed leaves no tapes");
    }
    let store = open(folder.file()).await;
    assert!(store.load(id("k")).await.unwrap().is_none());
    put(&store, "k").await;
}
