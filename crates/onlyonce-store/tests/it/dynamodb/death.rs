//! A process dies at each durable step of a large write and of a deletion: what stands is whole, and what is left is found.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onlyonce_core::record::{Effects, Revision, State};
use onlyonce_core::time::When;
use onlyonce_store::{Change, Store};

use super::large::{LARGE, body, completed, parts, response};
use super::left::Node;
use crate::sqlite::world::{draft, id, running};

const TABLE: &str = "ONLYONCE_TEST_DEATH_TABLE";
const DEED: &str = "ONLYONCE_TEST_DEATH_DEED";
const SIGKILL: i32 = 9;
/// Longer than the reaper is watched.
const MONTH: Duration = Duration::from_secs(30 * 24 * 3_600);

/// What a process does when it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Accepts work with a large request.
    Accept,
    /// Completes a record with a large answer.
    Complete,
    /// Replaces a large record by a small one.
    Shrink,
    /// Deletes a large record that has expired, and its large request.
    Reap,
}

/// Where it dies, and which items there are when the reaper has come round a day later.
const STEPS: [(Deed, &str, usize); 9] = [
    (Deed::Accept, "dynamodb.pieces.after", 0),
    (Deed::Accept, "dynamodb.write.before", 0),
    // The record, its request, three pieces and their note.
    (Deed::Accept, "dynamodb.write.after", 6),
    (Deed::Complete, "dynamodb.pieces.after", 1),
    (Deed::Complete, "dynamodb.write.before", 1),
    (Deed::Complete, "dynamodb.write.after", 5),
    (Deed::Shrink, "dynamodb.write.before", 5),
    (Deed::Shrink, "dynamodb.write.after", 1),
    (Deed::Reap, "dynamodb.reap.between", 0),
];

/// A record whose handler has found a large answer: it does not expire.
async fn large(node: &Node) {
    let mut next = draft("k", Effects::Opaque, running()).1;
    next.progress.found = Some(Arc::new(response(LARGE)));
    node.write(Change::new(None, Revision(1), next)).await.unwrap();
}

async fn before(node: &Node, deed: Deed) {
    match deed {
        Deed::Accept => {}
        Deed::Complete => {
            let next = draft("k", Effects::Opaque, running()).1;
            node.write(Change::new(None, Revision(1), next)).await.unwrap();
        }
        Deed::Shrink => large(node).await,
        Deed::Reap => {
            let seen = node.accept(None, 1, LARGE).await.unwrap();
            let mut next = seen.record.draft();
            next.progress.found = Some(Arc::new(response(LARGE)));
            next.state = completed(LARGE, When::WRITE);
            node.write(Change::new(Some(Revision(1)), Revision(2), next)).await.unwrap();
        }
    }
}

async fn act(node: &Node, deed: Deed) {
    let replaced = |state: State<When>| {
        Change::new(Some(Revision(1)), Revision(2), draft("k", Effects::Opaque, state).1)
    };
    match deed {
        Deed::Accept => drop(node.accept(None, 2, LARGE).await),
        Deed::Complete => drop(node.write(replaced(completed(LARGE, When::AfterWrite(MONTH)))).await),
        Deed::Shrink => drop(node.write(replaced(running())).await),
        Deed::Reap => drop(node.store.reap(9).await),
    }
}

/// What the process does that dies.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a child of the test below"]
async fn acts_until_it_dies() {
    let (Ok(table), Ok(deed)) = (std::env::var(TABLE), std::env::var(DEED)) else { return };
    let deed = STEPS.iter().map(|(deed, ..)| *deed).find(|known| format!("{known:?}") == deed);
    act(&Node::on(table).await, deed.unwrap()).await;
}

/// M02, W07, P05, E05
#[tokio::test(flavor = "multi_thread")]
async fn what_a_death_leaves_is_whole_or_found() {
    for (deed, step, left) in STEPS {
        let node = Node::new().await;
        // Behind the process that dies, so that its first stamp is late enough: nodes differ by up to two seconds.
        node.ahead.store(-5_000_000, Ordering::Release);
        before(&node, deed).await;
        let died = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "dynamodb::death::acts_until_it_dies", "--ignored"])
            .env(TABLE, &node.url)
            .env(DEED, format!("{deed:?}"))
            .env("ONLYONCE_FAILPOINT", step)
            .output()
            .unwrap();
        assert_eq!(died.status.signal(), Some(SIGKILL), "{deed:?}: {step} was not reached: {died:?}");
        for _ in 0..2 {
            let all = node.left().await;
            assert_eq!(all.len(), left, "{deed:?} at {step}: {all:?}");
        }
        let seen = node.store.load(id("k")).await.unwrap();
        assert_eq!(seen.is_some(), left > 0, "{deed:?} at {step}");
        let revision = seen.as_ref().map(|seen| seen.revision.0);
        if deed == Deed::Accept && left > 0 {
            assert_eq!(node.request(&seen.unwrap()).await, Some(body(LARGE)), "{step}");
        }
        // Whoever tries it again is not disturbed by what was left.
        node.accept(revision, 7, LARGE).await.unwrap();
        assert!(parts(&node.url).contains(&"with.request".to_owned()));
    }
}
