//! Syncs that fail, and what a power cut then leaves: a preloaded library (`tests/shim/sync.c`) lets them fail and keeps an image
//! of what is surely on the disk. What was acknowledged must be in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use onlyonce_store::Store;

use super::folder::Folder;
use super::kill;
use super::world::{id, open};

/// Compiles the library. SQLite needs a C compiler too, so there is one.
fn shim(folder: &Folder) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shim/sync.c");
    let library = folder.path().join("libsync.so");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
    let compiled = compile.arg("-ldl").output().expect("cc can be started");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

/// What became of a process on a disk whose syncs failed for a while.
struct Victim {
    acknowledged: Vec<String>,
    /// What it was refused with; none where it went on as if nothing had happened.
    refused: Option<String>,
}

/// So many are acknowledged before syncs begin to fail.
const BEFORE: usize = 500;
/// A process that was not refused after so many more goes on with a disk that has recovered; and after as many again is killed.
const MEANWHILE: usize = 3_000;

/// Lets a process write, lets the syncs of files whose names end so fail until it is refused, and then succeed again: the disk
/// got room, and a store that believed it would go on.
fn run(folder: &Folder, ending: &str) -> Victim {
    let switch = folder.path().join("switch");
    let mut child = kill::command(&folder.file())
        .env("LD_PRELOAD", shim(folder))
        .env("ONLYONCE_SHIM_FILE", folder.file())
        .env("ONLYONCE_SHIM_SWITCH", &switch)
        .env("ONLYONCE_TEST_KILL_REFUSED", "1")
        .spawn()
        .unwrap();
    let mut victim = Victim { acknowledged: Vec::new(), refused: None };
    for line in kill::lines(&mut child) {
        if let Some((_, key)) = line.split_once("wrote ") {
            victim.acknowledged.push(key.to_owned());
            match victim.acknowledged.len() {
                BEFORE => fs::write(&switch, ending).unwrap(),
                count if count == BEFORE + MEANWHILE => drop(fs::remove_file(&switch)),
                count if count == BEFORE + 2 * MEANWHILE => child.kill().unwrap(),
                _ => {}
            }
        } else if let Some((_, error)) = line.split_once("refused ") {
            // It goes on trying for a while, and must be refused each time.
            drop(fs::remove_file(&switch));
            victim.refused = Some(error.to_owned());
        }
    }
    child.wait().unwrap();
    assert!(victim.acknowledged.len() >= BEFORE);
    victim
}

/// It was told why, and what to do.
fn is_told(victim: &Victim) {
    let refused = victim.refused.as_deref().expect("a process whose syncs fail is refused");
    assert!(refused.contains("a sync of the store file failed"), "{refused}");
    assert!(refused.contains("restart this process"), "{refused}");
}

/// What a power cut leaves, and what a process of ours makes of it.
async fn judge(folder: &Folder, victim: &Victim) {
    let after = Folder::new();
    for ending in ["", "-wal"] {
        let image = folder.path().join(format!("onlyonce.db{ending}.disk"));
        if image.exists() {
            fs::copy(image, after.path().join(format!("onlyonce.db{ending}"))).unwrap();
        }
    }
    let store = open(after.file()).await;
    for key in &victim.acknowledged {
        assert!(store.load(id(key)).await.unwrap().is_some(), "{key} was acknowledged, and the power cut took it");
    }
    assert_eq!(store.check().await.unwrap().faults, Vec::<String>::new());
}

/// X06: a sync of the database file, as checkpoints make it, fails; later ones would succeed.
#[tokio::test]
async fn a_failed_sync_of_the_database_file_loses_nothing_that_was_acknowledged() {
    let folder = Folder::new();
    let victim = run(&folder, "onlyonce.db");
    judge(&folder, &victim).await;
    is_told(&victim);
}

/// X06: a sync of the WAL, as commits make it, fails.
#[tokio::test]
async fn a_failed_sync_of_the_wal_loses_nothing_that_was_acknowledged() {
    let folder = Folder::new();
    let victim = run(&folder, "-wal");
    judge(&folder, &victim).await;
    is_told(&victim);
}

/// X06: without a power cut the next process recovers from the files as they are, and goes on.
#[tokio::test]
async fn a_restart_after_a_failed_sync_recovers_and_goes_on() {
    let folder = Folder::new();
    let victim = run(&folder, "onlyonce.db");
    let store = open(folder.file()).await;
    for key in &victim.acknowledged {
        assert!(store.load(id(key)).await.unwrap().is_some(), "{key} is lost");
    }
    super::world::put(&store, "afterwards").await;
}
