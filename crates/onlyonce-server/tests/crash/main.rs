//! The gateway is killed with SIGKILL around every step of a keyed request, started again on the same file, and its
//! clients retry. The service behind it keeps the ledger: what it counts is what really happened.
//!
//! ```text
//!   clients ──► onlyonce serve, a process on sqlite:FILE  ──► the service, with its ledger, in this process
//!                        ✝ at a failpoint, or by kill -9
//! ```
//!
//! | left of an order | opaque | keyed |
//! |---|---|---|
//! | nothing | runs: one charge | runs: one charge |
//! | its reservation | unknown, no charge | runs again: one charge |
//! | its reservation, and the service has charged | unknown, one charge | runs again: still one charge |
//! | its completion | replayed: one charge | replayed: one charge |
//!
//! Nothing sleeps for luck: the driver waits for a ready line, a death, a call of the ledger.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on says where")]

mod client;
mod ledger;
mod process;

use client::{Answer, Lost};
use ledger::Ledger;
use process::{Folder, Gateway};

/// What the work touches, and so what the service does with a key it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effects {
    Opaque,
    Keyed,
}

impl Effects {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Opaque => "opaque",
            Self::Keyed => "keyed",
        }
    }
}

/// What a killed gateway has left of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Reserved,
    Charged,
    Completed,
}

/// The steps at which it is killed, in their order, and what each leaves.
const STEPS: [(&str, Left); 8] = [
    ("begin.before", Left::Nothing),
    ("begin.after", Left::Reserved),
    ("run.before", Left::Reserved),
    ("forward.before", Left::Reserved),
    ("forward.after", Left::Charged),
    ("run.after", Left::Charged),
    ("finish.before", Left::Charged),
    ("finish.after", Left::Completed),
];

/// P05, R01, R05, U03, U04, X03
#[tokio::test]
async fn opaque_work_is_done_at_most_once_wherever_the_gateway_is_killed() {
    for (step, left) in STEPS {
        dies_at(Effects::Opaque, step, left).await;
    }
}

/// P05, R01, R05, U04
#[tokio::test]
async fn keyed_work_is_done_exactly_once_wherever_the_gateway_is_killed() {
    for (step, left) in STEPS {
        dies_at(Effects::Keyed, step, left).await;
    }
}

/// R01, U03, U04: killed from outside, while the service is at work.
#[tokio::test]
async fn a_gateway_that_is_killed_while_the_service_works_leaves_the_truth_behind() {
    for effects in [Effects::Opaque, Effects::Keyed] {
        let (folder, ledger) = (Folder::new(), Ledger::open(effects).await);
        let gateway = Gateway::start(&folder, &ledger, effects, None).await;
        let address = gateway.address;
        ledger.hold();
        let paying = tokio::spawn(async move { client::pay(address, "held").await });
        ledger.called("held").await;
        gateway.kill().await;
        assert!(matches!(paying.await.unwrap(), Err(Lost)), "nobody answers for a dead process");
        ledger.go_on();
        judge(&folder, &ledger, effects, "held", Left::Charged).await;
    }
}

/// P05: what a client was told before is told again after any number of deaths.
#[tokio::test]
async fn an_answer_that_was_given_outlives_every_death() {
    let (folder, ledger) = (Folder::new(), Ledger::open(Effects::Opaque).await);
    let gateway = Gateway::start(&folder, &ledger, Effects::Opaque, None).await;
    let first = client::pay(gateway.address, "paid").await.unwrap();
    gateway.kill().await;
    for _ in 0..3 {
        let gateway = Gateway::start(&folder, &ledger, Effects::Opaque, None).await;
        let again = client::pay(gateway.address, "paid").await.unwrap();
        assert!(again.is_replay() && again.body == first.body, "{first:?}, then {again:?}");
        gateway.kill().await;
    }
    assert_eq!(ledger.charges("paid"), 1);
}

async fn dies_at(effects: Effects, step: &'static str, left: Left) {
    let (folder, ledger) = (Folder::new(), Ledger::open(effects).await);
    // An order before it is on record whole.
    let gateway = Gateway::start(&folder, &ledger, effects, None).await;
    let before = client::pay(gateway.address, "before").await.unwrap();
    gateway.kill().await;

    let gateway = Gateway::start(&folder, &ledger, effects, Some(step)).await;
    let lost = client::pay(gateway.address, "lost").await;
    assert!(matches!(lost, Err(Lost)), "{step}: the failpoint was never reached: {lost:?}");
    gateway.died().await;

    judge(&folder, &ledger, effects, "lost", left).await;
    let gateway = Gateway::start(&folder, &ledger, effects, None).await;
    let again = client::pay(gateway.address, "before").await.unwrap();
    assert!(again.is_replay() && again.body == before.body, "{step}: {before:?}, then {again:?}");
    assert_eq!(ledger.charges("before"), 1, "{step}");
}

/// A gateway that takes over tells its clients the truth, and goes on telling it.
async fn judge(folder: &Folder, ledger: &Ledger, effects: Effects, key: &str, left: Left) {
    let gateway = Gateway::start(folder, ledger, effects, None).await;
    let answer = client::retry(gateway.address, key).await;
    let told = format!("{effects:?} {key}: {left:?} was left, then {answer:?}");
    match (left, effects) {
        (Left::Completed, _) => assert!(answer.status == 201 && answer.is_replay(), "{told}"),
        (Left::Nothing, _) | (_, Effects::Keyed) => {
            assert!(answer.status == 201 && !answer.is_replay(), "{told}");
        }
        (Left::Reserved | Left::Charged, Effects::Opaque) => assert!(is_unknown(&answer), "{told}"),
    }
    let expected = match (left, effects) {
        (Left::Reserved, Effects::Opaque) => 0,
        (Left::Nothing | Left::Reserved | Left::Charged | Left::Completed, _) => 1,
    };
    assert_eq!(ledger.charges(key), expected, "{told}");
    // What is settled stays settled, and runs nothing.
    let calls = ledger.calls(key);
    let again = client::retry(gateway.address, key).await;
    match is_unknown(&answer) {
        true => assert!(is_unknown(&again), "{told}, then {again:?}"),
        false => assert!(again.is_replay() && again.body == answer.body, "{told}, then {again:?}"),
    }
    assert_eq!(ledger.calls(key), calls, "{told}");
    gateway.kill().await;
}

fn is_unknown(answer: &Answer) -> bool {
    answer.status == 409 && answer.text().contains("idempotency_outcome_unknown")
}
