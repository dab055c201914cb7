//! A real process, killed while it writes. (Killed at every named step: the crash driver.)

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use onlyonce_store::Store;

use super::folder::Folder;
use super::world::{id, open, put};

const FILE: &str = "ONLYONCE_TEST_KILL_FILE";

/// What the process does that is killed.
#[test]
#[ignore = "a child of the test below"]
fn writes_until_it_is_killed() {
    let Ok(file) = std::env::var(FILE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = std::sync::Arc::new(open(file).await);
        let writers: Vec<_> = (0..16)
            .map(|writer| {
                let store = store.clone();
                tokio::spawn(async move {
                    for number in 0.. {
                        let key = format!("{writer}-{number}");
                        put(&store, &key).await;
                        let mut out = std::io::stdout().lock();
                        writeln!(out, "wrote {key}").unwrap();
                        out.flush().unwrap();
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
    let folder = Folder::new();
    let mut written = Vec::new();
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite::kill::writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(FILE, folder.path().join(format!("{round}.db")))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut keys = lines.filter_map(|line| line.split_once("wrote ").map(|(_, key)| key.to_owned()));
        written.extend(keys.by_ref().take(200 * round));
        child.kill().unwrap();
        // What it had said before it died counts as well.
        written.extend(keys);
        child.wait().unwrap();
        let store = open(folder.path().join(format!("{round}.db"))).await;
        for key in written.drain(..) {
            assert!(store.load(id(&key)).await.unwrap().is_some(), "{key} is lost");
        }
        assert_eq!(store.check().await.unwrap().faults, Vec::<String>::new());
    }
}
