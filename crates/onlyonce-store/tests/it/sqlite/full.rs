//! A disk that is really full. Mounting a small one needs root; without it these tests say so and fail.

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
