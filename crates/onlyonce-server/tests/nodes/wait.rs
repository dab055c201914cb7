//! Duplicates that wait on other nodes than the one that runs the request.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use onlyonce_testkit::engines::postgres::Server;
use onlyonce_testkit::engines::server::Engine;

use crate::client::{Answer, WAIT, pay, paying, until};
use crate::node::{CONNECTIONS_MAX, Node, Site, on_every_server};
use crate::service::Service;

const KEYS: usize = 300;
/// How many looks go together at least, where hundreds of keys are looked at.
const LOOKS_A_TRIP_MIN: u64 = 4;
/// Only something stuck takes longer; the bench has the figures.
const STUCK: Duration = Duration::from_secs(10);

fn key(number: usize) -> String {
    format!("wait-{number}")
}

async fn looks(nodes: &[Node]) -> u64 {
    let mut looks = 0;
    for node in nodes {
        looks += node.figure("onlyonce_store_seconds_count", "operation=\"load\"").await;
    }
    looks
}

fn transactions(server: &Server) -> u64 {
    server.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'").parse().unwrap()
}

/// Prints how long after `completed` these were answered, in milliseconds.
fn tell(what: &str, mut late: Vec<Duration>) {
    late.sort();
    let at = |percent: usize| late[(late.len() - 1) * percent / 100].as_secs_f64() * 1_000.0;
    println!(
        "{what}: {} answered {:.1} ms (median), {:.1} ms (p99), {:.1} ms (last) after the completion",
        late.len(),
        at(50),
        at(99),
        at(100)
    );
    assert!(late[late.len() - 1] < STUCK, "{what}: {late:?}");
}

async fn answered(paying: Vec<tokio::task::JoinHandle<Option<Answer>>>) -> Vec<Answer> {
    join_all(paying).await.into_iter().map(|answer| answer.unwrap().unwrap()).collect()
}

/// R04: PostgreSQL counts its connections and transactions: hundreds wait for hundreds of keys on two other nodes. No connection each, looks share their trips, and everybody
/// gets the answer.
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_who_wait_on_other_nodes_take_few_connections_and_are_answered() {
    // One of its own: what it counts, this test did.
    let server = Server::start(&[]).unwrap();
    let service = Service::open().await;
    let settings = ["policy.wait_max=60s"];
    let store = server.fresh_schema();
    let site = Site { upstream: service.address, store, settings: &settings };
    let runs_here = site.node().await;
    let others = site.nodes::<2>().await;
    let earlier = pay(runs_here.address, "earlier").await.unwrap();
    service.hold();
    let running: Vec<_> = (0..KEYS).map(|number| paying(runs_here.address, &key(number), "")).collect();
    service.called((0..KEYS).map(key)).await;
    let waiting: Vec<_> =
        (0..2 * KEYS).map(|number| paying(others[number % 2].address, &key(number / 2), WAIT)).collect();
    // Each key has been looked at some times on each node, on average.
    until("they look", async || looks(&others).await > 6 * KEYS as u64).await;

    let before = (looks(&others).await, transactions(&server));
    until("they look on", async || looks(&others).await > before.0 + 100 * KEYS as u64).await;
    let after = (looks(&others).await, transactions(&server));
    let (looks, trips) = (after.0 - before.0, after.1 - before.1);
    println!("{looks} looks took at most {trips} round trips");
    assert!(looks > LOOKS_A_TRIP_MIN * trips, "{looks} looks took {trips} round trips");
    for node in others.iter().chain([&runs_here]) {
        let connections = node.connections(&server);
        println!("{connections} connections of a node");
        assert!(connections <= CONNECTIONS_MAX, "{connections} connections");
    }

    for node in &others {
        let (asked, again) = (Instant::now(), pay(node.address, "earlier").await.unwrap());
        assert!(again.is_replay() && again.body == earlier.body, "{earlier:?}, then {again:?}");
        println!("another client was answered within {:.1} ms", asked.elapsed().as_secs_f64() * 1_000.0);
    }

    service.go_on();
    let first = answered(running).await;
    let waited = answered(waiting).await;
    let mut late = Vec::new();
    for (number, answer) in waited.iter().enumerate() {
        let first = &first[number / 2];
        assert!(answer.is_replay() && answer.body == first.body, "{first:?}, then {answer:?}");
        late.push(answer.at.saturating_duration_since(first.at));
    }
    tell("hundreds at once", late);
    for number in 0..KEYS {
        assert_eq!(service.calls(&key(number)), 1);
    }
    for node in others.iter().chain([&runs_here]) {
        assert!(node.connections(&server) <= CONNECTIONS_MAX);
    }
}

/// R04, E03, E04, E08: one at a time, which shows what waiting on another node adds.
async fn one_who_waits_on_another_node_is_answered_soon_after_the_completion(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &[]);
    let [runs_here, other] = site.nodes().await;
    let mut late = Vec::new();
    for number in 0..20 {
        let key = key(number);
        service.hold();
        let running = paying(runs_here.address, &key, "");
        service.called([key.clone()]).await;
        let before = looks(std::slice::from_ref(&other)).await;
        let waiting = paying(other.address, &key, WAIT);
        until("it looks", async || looks(std::slice::from_ref(&other)).await > before).await;
        service.go_on();
        let (first, waited) = (running.await.unwrap().unwrap(), waiting.await.unwrap().unwrap());
        assert!(waited.is_replay() && waited.body == first.body, "{first:?}, then {waited:?}");
        late.push(waited.at.saturating_duration_since(first.at));
    }
    tell("one at a time", late);
}

/// R04, E03, E04, E08: where the run is released, one of those who wait is the next attempt, on whatever node, and the others wait on.
async fn where_the_run_is_released_one_who_waits_on_another_node_is_the_next(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &["policy.wait_max=60s"]);
    let nodes = site.nodes::<3>().await;
    service.hold();
    service.refuse_once("k");
    let first = paying(nodes[0].address, "k", "");
    service.called(["k".to_owned()]).await;
    let before = looks(&nodes[1..]).await;
    let waiting: Vec<_> = (0..40).map(|number| paying(nodes[1 + number % 2].address, "k", WAIT)).collect();
    until("they look", async || looks(&nodes[1..]).await > before + 10).await;
    service.go_on();
    assert_eq!(first.await.unwrap().unwrap().status, 503);
    let answers = answered(waiting).await;
    for answer in &answers {
        assert!(answer.status == 201 && answer.body.contains("\"call\":2"), "{answer:?}");
    }
    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1, "one ran");
    assert_eq!(service.calls("k"), 2);
    assert!(pay(nodes[0].address, "k").await.unwrap().is_replay());
}

on_every_server!({
    one_who_waits_on_another_node_is_answered_soon_after_the_completion,
    where_the_run_is_released_one_who_waits_on_another_node_is_the_next,
});
