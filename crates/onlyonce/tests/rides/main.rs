//! `examples/rides.rs` is killed with SIGKILL at every step of its handler, started again on the same store, and its client
//! retries. The bank keeps its ledger in this process: what it counts is what really happened.
//!
//! ```text
//!   client ──► the example, a process with its rows and records in one database ──► the bank, in this process
//!                        ✝ at a failpoint
//! ```
//!
//! | the service died | keyed | queryable, opaque |
//! |---|---|---|
//! | before "calling" was committed | one charge, one call | one charge, one call |
//! | "calling" committed, not called | one charge, one call | unknown, no charge |
//! | called, its result not committed | one charge, two calls with one key | unknown, one charge |
//! | its result committed | one charge, one call | one charge, one call |
//!
//! In every line: one ride, and one receipt where the ride was paid for.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on says where")]

mod bank;
#[path = "../../examples/rides.rs"]
mod rides;
mod service;

use std::sync::Arc;

use bank::Bank;
use libtest_mimic::{Arguments, Trial};
use service::{Service, Store};

/// Set where this program is the service.
const SERVES: &str = "ONLYONCE_RIDES";

/// What a killed service has left of a ride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Nothing that the next attempt would notice, or a part that it goes on behind.
    Resumes,
    /// The call under way, not made.
    Calling,
    /// The call under way, made.
    Called,
    /// All of it.
    Completed,
}

/// The steps at which it is killed, in their order.
const STEPS: [(&str, Left); 14] = [
    ("begin.before", Left::Resumes),
    ("begin.after", Left::Resumes),
    ("run.before", Left::Resumes),
    ("phase.begun", Left::Resumes),
    ("phase.commit.before", Left::Resumes),
    ("phase.commit.after", Left::Resumes),
    ("foreign.calling.before", Left::Resumes),
    ("foreign.calling.after", Left::Calling),
    ("foreign.called", Left::Called),
    ("foreign.result.before", Left::Called),
    ("foreign.result.after", Left::Resumes),
    ("complete.before", Left::Resumes),
    ("complete.after", Left::Resumes),
    ("run.after", Left::Completed),
];

/// The steps of a request that is one transaction, and whether it has committed by then. On PostgreSQL the record and COMMIT are one
/// step.
const AT_ONCE: [(&str, &str, bool); 8] = [
    ("sqlite", "run.before", false),
    ("sqlite", "complete.before", false),
    ("sqlite", "complete.after", false),
    ("sqlite", "run.after", true),
    ("postgres", "run.before", false),
    ("postgres", "complete.before", false),
    ("postgres", "commit.after", true),
    ("postgres", "run.after", true),
];

/// The kinds of calls, as the example is told of them.
const KINDS: [&str; 3] = ["keyed", "queryable", "opaque"];

fn main() {
    if std::env::var_os(SERVES).is_some() {
        return rides::main().unwrap();
    }
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for engine in ["sqlite", "postgres"] {
        for kind in KINDS {
            for (step, left) in STEPS {
                let name = format!("{engine}::{kind}::killed_at_{step}");
                trials.push(Trial::test(name, move || {
                    run(dies_at(engine, kind, step, left));
                    Ok(())
                }));
            }
        }
        for (_, step, is_done) in AT_ONCE.into_iter().filter(|(of, ..)| *of == engine) {
            trials.push(Trial::test(format!("{engine}::one_transaction::killed_at_{step}"), move || {
                run(dies_at_once(engine, step, is_done));
                Ok(())
            }));
        }
        trials.push(Trial::test(format!("{engine}::a_declined_card_is_a_completed_failure"), move || {
            run(declined(engine));
            Ok(())
        }));
        trials.push(Trial::test(format!("{engine}::a_bank_that_is_down_is_called_again"), move || {
            run(unreachable_bank(engine));
            Ok(())
        }));
    }
    libtest_mimic::run(&arguments, trials).exit()
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

/// W01, W02, W03, W04, W10, U04
async fn dies_at(engine: &str, kind: &'static str, step: &'static str, left: Left) {
    let (store, bank) = (Store::new(engine), Bank::open(kind).await);
    let service = Service::start(&store, &bank.url(), kind, Some(step)).await;
    let lost = service.order(7).await;
    assert!(lost.is_none(), "the failpoint was never reached: {lost:?}");
    service.died().await;

    let service = Service::start(&store, &bank.url(), kind, None).await;
    let answer = service.retry(7).await;
    let told = format!("{left:?}, then {answer:?}, {:?}", bank.calls());
    let is_doubt = kind != "keyed" && matches!(left, Left::Calling | Left::Called);
    let (calls, charges) = match left {
        Left::Resumes | Left::Completed => (1, 1),
        Left::Calling if is_doubt => (0, 0),
        Left::Calling => (1, 1),
        Left::Called if is_doubt => (1, 1),
        Left::Called => (2, 1),
    };
    assert_eq!((bank.calls().len(), bank.charges()), (calls, charges), "{told}");
    if is_doubt {
        assert!(answer.status == 409 && answer.body.contains("idempotency_outcome_unknown"), "{told}");
        assert_eq!((store.rides(), store.paid(), store.receipts()), (1, 0, 0), "{told}");
    } else {
        assert_eq!((answer.status, answer.is_replay), (201, left == Left::Completed), "{told}");
        assert_eq!((store.rides(), store.paid(), store.receipts()), (1, 1, 1), "{told}");
        assert_eq!(answer.body, format!(r#"{{"ride":{},"charge":"ch_1"}}"#, store.ride()), "{told}");
    }
    // What is settled stays settled, and runs nothing.
    let again = service.retry(7).await;
    assert_eq!((again.status, again.is_replay), (answer.status, !is_doubt), "{told}, then {again:?}");
    assert_eq!(
        (bank.calls().len(), store.rides(), store.receipts()),
        (calls, 1, usize::from(!is_doubt)),
        "{told}"
    );
    service.kill().await;
}

/// W01: before the commit it never was; after it, it is replayed.
async fn dies_at_once(engine: &str, step: &'static str, is_done: bool) {
    let (store, bank) = (Store::new(engine), Bank::open("keyed").await);
    let service = Service::start(&store, &bank.url(), "keyed", Some(step)).await;
    let lost = service.tip().await;
    assert!(lost.is_none(), "the failpoint was never reached: {lost:?}");
    service.died().await;
    let service = Service::start(&store, &bank.url(), "keyed", None).await;
    assert_eq!(store.records(), usize::from(is_done));
    for is_replay in [is_done, true] {
        let answer = service.tip().await.unwrap();
        assert_eq!((answer.status, answer.is_replay), (201, is_replay), "{answer:?}");
        assert_eq!((store.tips(), store.tips_told(), store.records()), (1, 1, 1));
    }
    service.kill().await;
}

/// U07, W04: a provider's "no" is a result, and replayed like any other.
async fn declined(engine: &str) {
    let (store, bank) = (Store::new(engine), Bank::open("keyed").await);
    bank.decline();
    let service = Service::start(&store, &bank.url(), "keyed", None).await;
    let answer = service.retry(7).await;
    assert_eq!((answer.status, answer.is_replay), (402, false), "{answer:?}");
    let again = service.retry(7).await;
    assert_eq!((again.status, again.is_replay), (402, true), "{again:?}");
    assert_eq!((bank.calls().len(), store.rides(), store.paid(), store.receipts()), (1, 1, 0, 0));
    service.kill().await;
}

/// U02, W03, W04: a call that was not made is retryable at once, and the ride is not stored again.
async fn unreachable_bank(engine: &str) {
    let (store, bank) = (Store::new(engine), Bank::open("opaque").await);
    let service = Service::start(&store, "http://127.0.0.1:1", "opaque", None).await;
    let answer = service.order(7).await.unwrap();
    assert_eq!((answer.status, answer.is_stored), (502, false), "{answer:?}");
    service.kill().await;
    let service = Service::start(&store, &bank.url(), "opaque", None).await;
    let answer = service.retry(7).await;
    assert_eq!((answer.status, answer.is_replay), (201, false), "{answer:?}");
    assert_eq!((bank.calls().len(), store.rides(), store.receipts()), (1, 1, 1));
    service.kill().await;
}

type Shared<T> = Arc<T>;
