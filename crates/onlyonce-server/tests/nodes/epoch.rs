//! Copies of completed records in several processes, and a record that is forgotten.

use std::sync::Arc;

use onlyonce::operate::{Forgotten, Operator, Order};
use onlyonce::store::Query;
use onlyonce::store::postgres::{Options, Postgres};
use onlyonce::{Engine, Force};
use onlyonce_core::record::Id;

use crate::client::{Answer, pay, until};
use crate::node::{Node, Site};
use crate::service::Service;

/// An operator's process: an engine of its own on the same store.
async fn operator(site: &Site<'_>) -> Arc<Engine> {
    Engine::new(Arc::new(Postgres::open(&site.store, Options::default()).await.unwrap()))
}

async fn only(engine: &Engine) -> Id {
    let query = Query::all(2);
    let page = engine.store().scan(query).await.unwrap();
    assert_eq!(page.records.len(), 1);
    page.records[0].0
}

/// Replays until it comes from a copy: without a trip to the store.
async fn has_a_copy(node: &Node, first: &Answer) {
    until("it replays from a copy", async || {
        let before = node.trips().await;
        let again = pay(node.address, "k").await.unwrap();
        assert!(again.is_replay() && again.body == first.body, "{first:?}, then {again:?}");
        node.trips().await == before
    })
    .await;
}

fn ordered() -> Order {
    let operator = Operator {
        who: "local".into(),
        role: "operate".into(),
        claims: None,
        from: None,
        via: "store".into(),
    };
    Order {
        operator,
        reason: "asked by the customer".into(),
        force: Force::No,
        expected: None,
        dry_run: false,
    }
}

/// X04: once forgetting is reported, no other process replays its copy.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_forgotten_is_replayed_by_no_process_once_that_is_reported() {
    let service = Service::open().await;
    let site = Site::new(&service, &[]);
    let [one, two] = site.nodes().await;
    let first = pay(one.address, "k").await.unwrap();
    has_a_copy(&one, &first).await;
    has_a_copy(&two, &first).await;
    let engine = operator(&site).await;
    let forgotten = engine.forget(only(&engine).await, &ordered()).await.unwrap();
    assert!(matches!(forgotten, Forgotten::Done(_)));
    let again = pay(two.address, "k").await.unwrap();
    assert!(again.status == 201 && !again.is_replay(), "{again:?}");
    assert_eq!(service.calls("k"), 2);
    let replayed = pay(one.address, "k").await.unwrap();
    assert!(replayed.is_replay() && replayed.body == again.body, "{again:?}, then {replayed:?}");
}

/// X04: nor does one that stood still meanwhile, and so has not heard of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stood_still_does_not_replay_what_was_forgotten_meanwhile() {
    let service = Service::open().await;
    let site = Site::new(&service, &[]);
    let [one, two] = site.nodes().await;
    let first = pay(one.address, "k").await.unwrap();
    has_a_copy(&two, &first).await;
    let engine = operator(&site).await;
    let id = only(&engine).await;
    two.signal("STOP").await;
    assert!(matches!(engine.forget(id, &ordered()).await.unwrap(), Forgotten::Done(_)));
    two.signal("CONT").await;
    let again = pay(two.address, "k").await.unwrap();
    assert!(again.status == 201 && !again.is_replay(), "{again:?}");
    assert_eq!(service.calls("k"), 2);
}

/// X04: a node that has lost its copies, or never had any, decides alike.
#[tokio::test(flavor = "multi_thread")]
async fn losing_every_copy_changes_no_decision() {
    let service = Service::open().await;
    let site = Site::new(&service, &[]);
    let [one, two] = site.nodes().await;
    let first = pay(one.address, "k").await.unwrap();
    has_a_copy(&two, &first).await;
    let engine = operator(&site).await;
    // Every copy is let go of, and nothing has changed.
    engine.store().raise_epoch().await.unwrap();
    until("it asks the store", async || {
        let before = two.trips().await;
        let again = pay(two.address, "k").await.unwrap();
        assert!(again.is_replay() && again.body == first.body, "{first:?}, then {again:?}");
        two.trips().await > before
    })
    .await;
    has_a_copy(&two, &first).await;
    assert_eq!(service.calls("k"), 1);
}
