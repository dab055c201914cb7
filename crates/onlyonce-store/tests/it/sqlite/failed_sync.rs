//! Failed syncs followed by a power cut: every acknowledged write must survive.

use onlyonce_store::Store;
use onlyonce_testkit::disk::Disk;

use super::folder::Folder;
use super::kill;
use super::world::{id, open};

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
fn run(folder: &Folder, disk: &Disk, ending: &str) -> Victim {
    let mut child = kill::command(&folder.file())
        .envs(disk.environment())
        .env("ONLYONCE_TEST_KILL_REFUSED", "1")
        .spawn()
        .unwrap();
    let mut victim = Victim { acknowledged: Vec::new(), refused: None };
    for line in kill::lines(&mut child) {
        if let Some((_, key)) = line.split_once("wrote ") {
            victim.acknowledged.push(key.to_owned());
            match victim.acknowledged.len() {
                BEFORE => disk.fail(ending),
                count if count == BEFORE + MEANWHILE => disk.recover(),
                count if count == BEFORE + 2 * MEANWHILE => child.kill().unwrap(),
                _ => {}
            }
        } else if let Some((_, error)) = line.split_once("refused ") {
            // It goes on trying for a while, and must be refused each time.
            disk.recover();
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
async fn judge(disk: &Disk, victim: &Victim) {
    let after = Folder::new();
    disk.cut_power(&after.file());
    let store = open(after.file()).await;
    for key in &victim.acknowledged {
        assert!(
            store.load(id(key)).await.unwrap().is_some(),
            "{key} was acknowledged, and the power cut took it"
        );
    }
    assert_eq!(store.check().await.unwrap().faults, Vec::<String>::new());
}

/// X06: a sync of the database file, as checkpoints make it, fails; later ones would succeed.
#[tokio::test]
async fn a_failed_sync_of_the_database_file_loses_nothing_that_was_acknowledged() {
    let folder = Folder::new();
    let disk = Disk::new(folder.path(), &folder.file());
    let victim = run(&folder, &disk, "onlyonce.db");
    judge(&disk, &victim).await;
    is_told(&victim);
}

/// X06: a sync of the WAL, as commits make it, fails.
#[tokio::test]
async fn a_failed_sync_of_the_wal_loses_nothing_that_was_acknowledged() {
    let folder = Folder::new();
    let disk = Disk::new(folder.path(), &folder.file());
    let victim = run(&folder, &disk, "-wal");
    judge(&disk, &victim).await;
    is_told(&victim);
}

/// X06: without a power cut the next process recovers from the files as they are, and goes on.
#[tokio::test]
async fn a_restart_after_a_failed_sync_recovers_and_goes_on() {
    let folder = Folder::new();
    let disk = Disk::new(folder.path(), &folder.file());
    let victim = run(&folder, &disk, "onlyonce.db");
    let store = open(folder.file()).await;
    for key in &victim.acknowledged {
        assert!(store.load(id(key)).await.unwrap().is_some(), "{key} is lost");
    }
    super::world::put(&store, "afterwards").await;
}
