//! Copies of completed records in several processes, and a record that is forgotten.

use std::sync::Arc;

use onlyonce::Force;
use onlyonce::operate::{Forgotten, Operator, Order};
use onlyonce::store::postgres::{Options, Postgres};
use onlyonce::store::{Query, Store};
use onlyonce_core::record::Id;
use onlyonce_testkit::engines::server::Engine;

use crate::client::{Answer, pay, until};
use crate::node::{Node, Site, on_every_server};
use crate::service::Service;

/// An operator's process: an engine of its own on the same store.
async fn operator(engine: Engine, site: &Site<'_>) -> Arc<onlyonce::Engine> {
    let store: Arc<dyn Store> = match engine {
        Engine::Postgres => Arc::new(Postgres::open(&site.store, Options::default()).await.unwrap()),
        #[cfg(feature = "mysql")]
        Engine::Mysql => {
            use onlyonce::store::mysql::{Mysql, Options};
            Arc::new(Mysql::open(&site.store, Options::default()).await.unwrap())
        }
        #[cfg(feature = "redis")]
        Engine::Redis => {
            use onlyonce::store::redis::{Options, Redis};
            Arc::new(Redis::open(&site.store, Options::default()).await.unwrap())
        }
        #[cfg(feature = "dynamodb")]
        Engine::Dynamodb => {
            use onlyonce::store::dynamodb::{DynamoDb, Options};
            Arc::new(DynamoDb::open(&site.store, Options::default()).await.unwrap())
        }
        #[cfg(not(all(feature = "mysql", feature = "redis", feature = "dynamodb")))]
        _ => unreachable!("it is not in this build, and nor are its tests"),
    };
    onlyonce::Engine::new(store)
}

async fn only(operator: &onlyonce::Engine) -> Id {
    let query = Query::all(2);
    let page = operator.store().scan(query).await.unwrap();
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

/// X04, E03, E04, E08: once forgetting is reported, no other process replays its copy.
async fn what_was_forgotten_is_replayed_by_no_process_once_that_is_reported(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &[]);
    let [one, two] = site.nodes().await;
    let first = pay(one.address, "k").await.unwrap();
    has_a_copy(&one, &first).await;
    has_a_copy(&two, &first).await;
    let operator = operator(engine, &site).await;
    let forgotten = operator.forget(only(&operator).await, &ordered()).await.unwrap();
    assert!(matches!(forgotten, Forgotten::Done(_)));
    let again = pay(two.address, "k").await.unwrap();
    assert!(again.status == 201 && !again.is_replay(), "{again:?}");
    assert_eq!(service.calls("k"), 2);
    let replayed = pay(one.address, "k").await.unwrap();
    assert!(replayed.is_replay() && replayed.body == again.body, "{again:?}, then {replayed:?}");
}

/// X04, E03, E04, E08: nor does one that stood still meanwhile, and so has not heard of it.
async fn a_process_that_stood_still_does_not_replay_what_was_forgotten_meanwhile(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &[]);
    let [one, two] = site.nodes().await;
    let first = pay(one.address, "k").await.unwrap();
    has_a_copy(&two, &first).await;
    let operator = operator(engine, &site).await;
    let id = only(&operator).await;
    two.signal("STOP").await;
    assert!(matches!(operator.forget(id, &ordered()).await.unwrap(), Forgotten::Done(_)));
    two.signal("CONT").await;
    let again = pay(two.address, "k").await.unwrap();
    assert!(again.status == 201 && !again.is_replay(), "{again:?}");
    assert_eq!(service.calls("k"), 2);
}

/// X04, E03, E04, E08: a node that has lost its copies, or never had any, decides alike.
async fn losing_every_copy_changes_no_decision(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &[]);
    let [one, two] = site.nodes().await;
    let first = pay(one.address, "k").await.unwrap();
    has_a_copy(&two, &first).await;
    let operator = operator(engine, &site).await;
    // Every copy is let go of, and nothing has changed.
    operator.store().raise_epoch().await.unwrap();
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

on_every_server!({
    what_was_forgotten_is_replayed_by_no_process_once_that_is_reported,
    a_process_that_stood_still_does_not_replay_what_was_forgotten_meanwhile,
    losing_every_copy_changes_no_decision,
});
