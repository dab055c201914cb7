//! A real process, killed while it writes. (Killed at every named step: the crash driver.)

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use onlyonce_core::record::Effects;
use onlyonce_core::time::When;
use onlyonce_store::Store;

use super::folder::Folder;
use super::world::{HOUR, completed, draft, id, insert, open, put};

const FILE: &str = "ONLYONCE_TEST_KILL_FILE";
/// Whether a write that is refused is told, and tried on with for a while.
const REFUSED: &str = "ONLYONCE_TEST_KILL_REFUSED";
/// At a number that this divides, a writer that is refused ends.
const REFUSALS: u32 = 50;

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// What the process does that is killed.
#[test]
#[ignore = "a child of the test below"]
fn writes_until_it_is_killed() {
    let Ok(file) = std::env::var(FILE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = std::sync::Arc::new(open(file).await);
        let is_refused_to_the_end = std::env::var(REFUSED).is_ok();
        store.reap(10).await.unwrap();
        let writers: Vec<_> = (0..16)
            .map(|writer| {
                let store = store.clone();
                tokio::spawn(async move {
                    for number in 0.. {
                        let key = format!("{writer}-{number}");
                        let done = completed(When::AfterWrite(HOUR));
                        match insert(&*store, draft(&key, Effects::Opaque, done), 1).await {
                            Ok(_) => say(&format!("wrote {key}")),
                            Err(error) if is_refused_to_the_end => {
                                say(&format!("refused {error}"));
                                if number % REFUSALS == 0 {
                                    return;
                                }
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

/// P05, E01
#[tokio::test]
async fn what_was_said_to_be_written_is_there_after_sigkill() {
    for round in 1..=3 {
        let folder = Folder::new();
        let mut child = writer(&folder.file());
        let mut keys = said(&mut child);
        let mut written: Vec<_> = keys.by_ref().take(200 * round).collect();
        child.kill().unwrap();
        // What it had said before it died counts as well.
        written.extend(keys);
        child.wait().unwrap();
        is_kept(&folder.file(), &written).await;
    }
}

/// P05, E01: what a process leaves that died at a named step. The driver of crashes goes on from here.
#[cfg(feature = "failpoints")]
#[tokio::test]
async fn what_was_said_to_be_written_is_there_after_dying_at_any_step() {
    use onlyonce_store::sqlite::FAILPOINTS;
    use std::os::unix::process::ExitStatusExt;

    use super::world::running;

    const SIGKILL: i32 = 9;
    for step in FAILPOINTS {
        let folder = Folder::new();
        if !step.contains("create") && !step.contains("migrate") {
            let store = open(folder.file()).await;
            insert(&store, draft("ran", Effects::Opaque, running()), 1).await.unwrap();
            insert(&store, draft("expired", Effects::Opaque, completed(When::WRITE)), 1).await.unwrap();
        }
        let mut child = command(&folder.file()).env("ONLYONCE_FAILPOINT", step).spawn().unwrap();
        let written: Vec<_> = said(&mut child).collect();
        assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL), "{step} was not reached");
        is_kept(&folder.file(), &written).await;
    }
}

pub(super) fn command(file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sqlite::kill::writes_until_it_is_killed", "--ignored", "--nocapture"]);
    command.env(FILE, file).stdout(Stdio::piped());
    command
}

pub(super) fn writer(file: &Path) -> Child {
    command(file).spawn().unwrap()
}

/// The keys that the process says it has written, until it is dead.
pub(super) fn said(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    lines(child).filter_map(|line| line.split_once("wrote ").map(|(_, key)| key.to_owned()))
}

/// What the process says, line by line, until it is dead.
pub(super) fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok)
}

async fn is_kept(file: &Path, written: &[String]) {
    let store = open(file).await;
    for key in written {
        assert!(store.load(id(key)).await.unwrap().is_some(), "{key} is lost");
    }
    assert_eq!(store.check().await.unwrap().faults, Vec::<String>::new());
    put(&store, "afterwards").await;
}
