//! The list of failpoints against the source: a step without a test is a hole in the proof.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use onlyonce::store::sqlite;

use crate::accepted;
use crate::failpoints::ALL;
use crate::settling::STEPS;

/// Steps whose deaths the program's own crash tests bring about: they need destinations, or an admin port.
const OF_THE_PROGRAM: [&str; 6] = [
    "relay.claim.before",
    "relay.claim.after",
    "relay.settle.before",
    "relay.settle.after",
    "message.change.before",
    "message.change.after",
];

/// Steps of handlers of several phases, whose deaths `tests/rides` brings about.
const OF_HANDLERS: [&str; 11] = [
    "phase.begun",
    "phase.commit.before",
    "phase.commit.after",
    "foreign.calling.before",
    "foreign.calling.after",
    "foreign.called",
    "foreign.result.before",
    "foreign.result.after",
    "complete.before",
    "complete.after",
    "commit.after",
];

/// Steps of DynamoDB, whose deaths its own tests bring about (`onlyonce-store/tests/it/dynamodb/death.rs`).
const OF_DYNAMODB: [&str; 4] =
    ["dynamodb.pieces.after", "dynamodb.write.before", "dynamodb.write.after", "dynamodb.reap.between"];

/// Every step in the source is in the list, and every step of the list is in the source.
pub(crate) fn every_failpoint_in_the_source_is_listed() {
    let settling = STEPS.iter().map(|(step, _)| *step);
    let accepted =
        accepted::STEPS.iter().map(|(step, _)| step.split_once(':').map_or(*step, |(step, _)| step));
    let served = ALL.iter().map(|failpoint| failpoint.step()).chain(accepted);
    let listed = served.chain(settling).chain(OF_THE_PROGRAM).chain(OF_DYNAMODB).chain(OF_HANDLERS);
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    let crates = package().parent().expect("the package lies in a folder of packages").to_owned();
    let mut found = BTreeSet::new();
    for folder in ["onlyonce/src", "onlyonce-store/src"] {
        read_all(&crates.join(folder), &mut found);
    }
    // The example in the documentation of the mechanism itself.
    found.remove("demo.write.before");
    assert_eq!(found, listed, "left: in the source, right: in the list");
    assert!(sqlite::FAILPOINTS.iter().all(|step| listed.contains(*step)), "the engine's own list");
}

/// Each migration is two steps of its own.
pub(crate) fn every_migration_is_listed() {
    let crates = package().parent().expect("the package lies in a folder of packages").to_owned();
    for engine in ["sqlite", "postgres", "mysql"] {
        let folder = std::fs::read_dir(crates.join("onlyonce-store/src/migrations").join(engine));
        for number in 1..=folder.expect("the migrations are there").count() {
            for side in ["before", "after"] {
                let name = format!("{engine}.migrate.{side}:{number}");
                assert!(ALL.iter().any(|failpoint| failpoint.name == name), "{name} is not in the list");
            }
        }
    }
}

/// Cargo says at run time where we are: build products may be shared with another clone.
fn package() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

fn read_all(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the source is there") {
        let path = entry.expect("the source can be listed").path();
        if path.is_dir() {
            read_all(&path, found);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            let names = text.split("failpoint!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            found.extend(names.map(str::to_owned));
        }
    }
}
