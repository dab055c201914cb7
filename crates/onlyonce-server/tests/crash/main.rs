//! The gateway is killed with SIGKILL around every step of a keyed request, started again on the same store, and its
//! clients retry. The service behind it keeps the ledger: what it counts is what really happened.
//!
//! ```text
//!   clients ──► onlyonce serve, a process on its store    ──► the service, with its ledger, in this process
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
//! `relay.rs` does the same to whoever delivers messages, with the ledger as the destination.
//!
//! Nothing sleeps for luck: the driver waits for a ready line, a death, a call of the ledger.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on says where")]

mod client;
mod ledger;
mod process;
mod relay;

use std::time::Duration;

use client::{Answer, Lost};
use ledger::Ledger;
use onlyonce_testkit::engines::server;
use onlyonce_testkit::wire::Direction;
use process::{Gateway, Store};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// What the gateway keeps its records in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Server(server::Engine),
}

/// Those of this build.
const ENGINES: &[Engine] = &[
    Engine::Sqlite,
    Engine::Server(server::Engine::Postgres),
    #[cfg(feature = "mysql")]
    Engine::Server(server::Engine::Mysql),
    #[cfg(feature = "redis")]
    Engine::Server(server::Engine::Redis),
    #[cfg(feature = "dynamodb")]
    Engine::Server(server::Engine::Dynamodb),
];

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
        dies_at(Engine::Sqlite, Effects::Opaque, step, left).await;
    }
}

/// P05, R01, R05, U04
#[tokio::test]
async fn keyed_work_is_done_exactly_once_wherever_the_gateway_is_killed() {
    for (step, left) in STEPS {
        dies_at(Engine::Sqlite, Effects::Keyed, step, left).await;
    }
}

/// P05, R01, R05, U03, U04, X03, E02
#[tokio::test]
async fn opaque_work_is_done_at_most_once_on_postgres_wherever_the_gateway_is_killed() {
    dies_everywhere(server::Engine::Postgres, Effects::Opaque).await;
}

/// P05, R01, R05, U04, E02
#[tokio::test]
async fn keyed_work_is_done_exactly_once_on_postgres_wherever_the_gateway_is_killed() {
    dies_everywhere(server::Engine::Postgres, Effects::Keyed).await;
}

/// P05, R01, R05, U03, U04, X03, E03
#[cfg(feature = "mysql")]
#[tokio::test]
async fn opaque_work_is_done_at_most_once_on_mysql_wherever_the_gateway_is_killed() {
    dies_everywhere(server::Engine::Mysql, Effects::Opaque).await;
}

/// P05, R01, R05, U04, E03
#[cfg(feature = "mysql")]
#[tokio::test]
async fn keyed_work_is_done_exactly_once_on_mysql_wherever_the_gateway_is_killed() {
    dies_everywhere(server::Engine::Mysql, Effects::Keyed).await;
}

/// P05, R01, R05, U03, U04, X03, E04
#[cfg(feature = "redis")]
#[tokio::test]
async fn opaque_work_is_done_at_most_once_on_redis_wherever_the_gateway_is_killed() {
    dies_everywhere(server::Engine::Redis, Effects::Opaque).await;
}

/// P05, R01, R05, U04, E04
#[cfg(feature = "redis")]
#[tokio::test]
async fn keyed_work_is_done_exactly_once_on_redis_wherever_the_gateway_is_killed() {
    dies_everywhere(server::Engine::Redis, Effects::Keyed).await;
}

/// X05, R01, U04, E02
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_between_a_commit_on_postgres_and_its_answer_leaves_what_was_committed() {
    die_unanswered(server::Engine::Postgres).await;
}

/// X05, R01, U04, E03
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_between_a_commit_on_mysql_and_its_answer_leaves_what_was_committed() {
    die_unanswered(server::Engine::Mysql).await;
}

/// X05, R01, U04, E04
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_between_a_commit_on_redis_and_its_answer_leaves_what_was_committed() {
    die_unanswered(server::Engine::Redis).await;
}

/// X05, R01, U04, E05
#[cfg(feature = "dynamodb")]
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_between_a_commit_on_dynamodb_and_its_answer_leaves_what_was_committed() {
    die_unanswered(server::Engine::Dynamodb).await;
}

/// R01, U03, U04: killed from outside, while the service is at work.
#[tokio::test]
async fn a_gateway_that_is_killed_while_the_service_works_leaves_the_truth_behind() {
    let worlds =
        ENGINES.iter().copied().flat_map(|engine| [(engine, Effects::Opaque), (engine, Effects::Keyed)]);
    for (engine, effects) in worlds {
        let (store, ledger) = (Store::new(engine), Ledger::open(effects).await);
        let gateway = Gateway::start(&store, &ledger, effects, None).await;
        let address = gateway.address;
        ledger.hold();
        let paying = tokio::spawn(async move { client::pay(address, "held").await });
        ledger.called("held").await;
        gateway.kill().await;
        assert!(matches!(paying.await.unwrap(), Err(Lost)), "nobody answers for a dead process");
        ledger.go_on();
        judge(&store, &ledger, effects, "held", Left::Charged).await;
    }
}

/// P05: what a client was told before is told again after any number of deaths.
#[tokio::test]
async fn an_answer_that_was_given_outlives_every_death() {
    for engine in ENGINES.iter().copied() {
        let (store, ledger) = (Store::new(engine), Ledger::open(Effects::Opaque).await);
        let gateway = Gateway::start(&store, &ledger, Effects::Opaque, None).await;
        let first = client::pay(gateway.address, "paid").await.unwrap();
        gateway.kill().await;
        for _ in 0..3 {
            let gateway = Gateway::start(&store, &ledger, Effects::Opaque, None).await;
            let again = client::pay(gateway.address, "paid").await.unwrap();
            assert!(again.is_replay() && again.body == first.body, "{first:?}, then {again:?}");
            gateway.kill().await;
        }
        assert_eq!(ledger.charges("paid"), 1);
    }
}

/// Every step at once, also those of the engine's own writes, each in a store of its own: most of it is waiting for the leases of
/// the dead.
async fn dies_everywhere(engine: server::Engine, effects: Effects) {
    let own = [
        ("before:1", Left::Nothing),
        ("after:1", Left::Reserved),
        ("before:2", Left::Charged),
        ("after:2", Left::Completed),
    ];
    let own = own.map(|(step, left)| (format!("{}.write.{step}", engine.name()), left));
    let mut deaths = JoinSet::new();
    for (step, left) in STEPS.map(|(step, left)| (step.to_owned(), left)).into_iter().chain(own) {
        deaths.spawn(async move { dies_at(Engine::Server(engine), effects, &step, left).await });
    }
    while let Some(death) = deaths.join_next().await {
        death.unwrap();
    }
}

/// Which answer of the database the gateway does not live to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unheard {
    Reservation,
    Completion,
}

/// Killed while the server works on a write that was sent whole, before the gateway hears the answer.
async fn die_unanswered(engine: server::Engine) {
    let mut deaths = JoinSet::new();
    for effects in [Effects::Opaque, Effects::Keyed] {
        deaths.spawn(dies_unanswered(engine, effects, Unheard::Reservation));
        deaths.spawn(dies_unanswered(engine, effects, Unheard::Completion));
    }
    while let Some(death) = deaths.join_next().await {
        death.unwrap();
    }
}

/// How often it is tried to lose the answer of a write: before the write, MySQL asks a connection that was idle for 100 ms whether it is
/// still there, and it is that answer which is lost then.
const TRIES_MAX: usize = 9;

/// Answers are held on the line, and the gateway is killed once the record shows that the commit has happened.
async fn dies_unanswered(engine: server::Engine, effects: Effects, unheard: Unheard) {
    let (store, ledger) = (Store::new(Engine::Server(engine)), Ledger::open(effects).await);
    let Store::Server { server, url, wire } = &store else { unreachable!("it is on a server") };
    let (state, left) = match unheard {
        Unheard::Reservation => ("running", Left::Reserved),
        Unheard::Completion => ("completed", Left::Completed),
    };
    let gateway = Gateway::start(&store, &ledger, effects, None).await;
    let address = gateway.address;
    for number in 0..TRIES_MAX {
        // Its connections are there, and its statements known to them.
        client::retry(address, &format!("before-{number}")).await;
        let key = format!("lost-{number}");
        if unheard == Unheard::Completion {
            ledger.hold();
        } else {
            wire.hold(Direction::ToClient);
        }
        let paying = tokio::spawn({
            let key = key.clone();
            async move { client::pay(address, &key).await }
        });
        if unheard == Unheard::Completion {
            ledger.called(&key).await;
            wire.hold(Direction::ToClient);
            ledger.go_on();
        }
        if !committed_before(&paying, *server, url, &key, state).await {
            paying.await.unwrap().unwrap();
            wire.cut();
            wire.mend();
            continue;
        }
        gateway.kill().await;
        assert!(matches!(paying.await.unwrap(), Err(Lost)), "nobody answers for a dead process");
        wire.cut();
        wire.mend();
        return judge(&store, &ledger, effects, &key, left).await;
    }
    panic!("{engine:?}: {TRIES_MAX} times nothing was committed as {state}");
}

/// Whether the record is in this state while its client waits: past `store_timeout` it is answered.
async fn committed_before(
    paying: &tokio::task::JoinHandle<Result<Answer, Lost>>,
    server: server::Server<'static>,
    url: &str,
    key: &str,
    state: &'static str,
) -> bool {
    while !paying.is_finished() {
        let (url, key) = (url.to_owned(), key.to_owned());
        let looked = tokio::task::spawn_blocking(move || server.records(&url, &key, state)).await;
        if looked.unwrap() == 1 {
            return !paying.is_finished();
        }
        sleep(Duration::from_millis(10)).await;
    }
    false
}

async fn dies_at(engine: Engine, effects: Effects, step: &str, left: Left) {
    let (store, ledger) = (Store::new(engine), Ledger::open(effects).await);
    // An order before it is on record whole.
    let gateway = Gateway::start(&store, &ledger, effects, None).await;
    let before = client::pay(gateway.address, "before").await.unwrap();
    gateway.kill().await;

    let gateway = Gateway::start(&store, &ledger, effects, Some(step)).await;
    let lost = client::pay(gateway.address, "lost").await;
    assert!(matches!(lost, Err(Lost)), "{step}: the failpoint was never reached: {lost:?}");
    gateway.died().await;

    judge(&store, &ledger, effects, "lost", left).await;
    let gateway = Gateway::start(&store, &ledger, effects, None).await;
    let again = client::pay(gateway.address, "before").await.unwrap();
    assert!(again.is_replay() && again.body == before.body, "{step}: {before:?}, then {again:?}");
    assert_eq!(ledger.charges("before"), 1, "{step}");
}

/// A gateway that takes over tells its clients the truth, and goes on telling it.
async fn judge(store: &Store, ledger: &Ledger, effects: Effects, key: &str, left: Left) {
    let gateway = Gateway::start(store, ledger, effects, None).await;
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
