//! Sweepers and reapers of three nodes on one store.

use std::collections::BTreeSet;

use onlyonce_testkit::engines::server::Engine;
use serde_json::Value;

use crate::client::{pay, paying, until};
use crate::node::{Node, Site, on_every_server};
use crate::service::Service;
use crate::settling::{ask, read};

const KEYS: usize = 60;
/// How often the sweepers come round once everything is settled.
const ROUNDS: u64 = 5;

async fn sum(nodes: &[Node], name: &str) -> u64 {
    let mut sum = 0;
    for node in nodes {
        sum += node.figure(name, "").await;
    }
    sum
}

/// Every sweeper has come round some more times.
async fn rounds_later(nodes: &[Node]) {
    for node in nodes {
        let scans = async || node.figure("onlyonce_store_seconds_count", "operation=\"scan\"").await;
        let before = scans().await;
        until("the sweeper comes round", async || scans().await > before + 3 * ROUNDS).await;
    }
}

/// M01, M04, U03, E03, E04, E08: what a killed node left running is settled once, by whoever comes first, and told once.
async fn what_a_killed_node_left_is_settled_and_told_once_by_those_that_are_left(engine: Engine) {
    let service = Service::open().await;
    let settings = [
        "policy.lease=1s",
        "policy.store_timeout=500ms",
        "policy.deadline=10s",
        "background.sweep_every=50ms",
    ];
    let site = Site::new(engine, &service, &settings);
    let dies = site.node().await;
    let others = site.nodes::<3>().await;
    service.hold();
    let key = |number: usize| format!("left-{number}");
    let lost: Vec<_> = (0..KEYS).map(|number| paying(dies.address, &key(number), "")).collect();
    service.called((0..KEYS).map(key)).await;
    dies.kill().await;
    for lost in lost {
        assert!(lost.await.unwrap().is_none(), "nobody answers for a dead process");
    }
    let keys = KEYS as u64;
    until("all are settled", async || sum(&others, "onlyonce_lapsed_total").await >= keys).await;
    rounds_later(&others).await;
    assert_eq!(sum(&others, "onlyonce_lapsed_total").await, keys, "each lapse is counted once");
    assert_eq!(sum(&others, "onlyonce_unknown_opened_total").await, keys);
    let told: Vec<Value> = others
        .iter()
        .flat_map(Node::logged)
        .filter(|line| line.contains("it is unknown whether this request did its work"))
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect();
    let records: BTreeSet<_> = told.iter().map(|line| line["record"].as_str().unwrap()).collect();
    assert_eq!((told.len(), records.len()), (KEYS, KEYS), "each lapse is told once");
    service.go_on();
    for number in 0..KEYS {
        let answer = pay(others[number % 3].address, &key(number)).await.unwrap();
        assert!(answer.is(409, "idempotency_outcome_unknown"), "{answer:?}");
        assert_eq!(service.calls(&key(number)), 1, "in doubt nothing runs again");
    }
}

/// M02, M04, E03, E04, E08: three reapers delete each expired record once, and what has not expired stays.
async fn three_reapers_share_what_has_expired(engine: Engine) {
    let service = Service::open().await;
    let settings = ["policy.retention=2s", "background.reap_every=50ms", "background.reap_batch=7"];
    let site = Site::new(engine, &service, &settings);
    let nodes = site.nodes::<3>().await;
    let key = |number: usize| format!("expires-{number}");
    for number in 0..KEYS {
        assert_eq!(pay(nodes[number % 3].address, &key(number)).await.unwrap().status, 201);
    }
    let keys = KEYS as u64;
    until("all are deleted", async || sum(&nodes, "onlyonce_reaped_total").await >= keys).await;
    let left = read(&ask(&nodes[0], "GET", "/v1/keys", "", "").await);
    assert_eq!(left["items"], serde_json::json!([]));
    assert_eq!(sum(&nodes, "onlyonce_reaped_total").await, keys, "each is counted once");
    let again = pay(nodes[0].address, &key(0)).await.unwrap();
    assert!(again.status == 201 && !again.is_replay(), "its key is free: {again:?}");
}

on_every_server!({
    what_a_killed_node_left_is_settled_and_told_once_by_those_that_are_left,
    three_reapers_share_what_has_expired,
});
