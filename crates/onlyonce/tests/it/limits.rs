//! Limits and the age of requests, where things go wrong and where duplicates wait.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use http::{HeaderName, Request};
use onlyonce::policy::StoreDown;
use onlyonce::{Limits, Policy};

use crate::world::{Fault, FaultyStore, World, order, order_with, post, settle};

const HOUR: Duration = Duration::from_secs(3600);

/// One token a bucket, which comes back after an hour.
fn one_each() -> Limits {
    Limits { keys_per_second: Some(1), lookups_per_second: Some(1), nodes: 3600, ..Limits::default() }
}

fn world(limits: Limits) -> World {
    World::within(FaultyStore::new(), Policy::default(), limits)
}

fn timed() -> Policy {
    Policy {
        request_time_header: Some(HeaderName::from_static("x-time")),
        request_age_max: Some(Duration::from_secs(300)),
        ..Policy::default()
    }
}

fn now() -> String {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().to_string()
}

const LIMITED: &str = "429 idempotency_limit_reached";

/// L02, T06: limits and age cost no trip to the store. At the limit there is one look, since the key may exist.
#[tokio::test(start_paused = true)]
async fn a_new_key_within_its_limits_costs_no_look() {
    let world = World::within(FaultyStore::new(), timed(), one_each());
    let timely = |key: &str| order_with(key, &[("x-time", &now())]);
    assert_eq!(world.send(timely("first")).await.status, 201);
    assert_eq!((world.store.looks(), world.store.writes()), (0, 2));
    assert_eq!(world.send(timely("second")).await.summary(), LIMITED);
    assert_eq!((world.store.looks(), world.store.writes()), (1, 2));
    assert_eq!(world.send(order("third")).await.summary(), "400 idempotency_request_too_old");
    assert_eq!((world.store.looks(), world.store.writes()), (2, 2));
    assert_eq!(world.handler.runs(), 1);
}

/// L02: the first with a key is refused, and whoever waited for what became of it is judged for itself.
#[tokio::test(start_paused = true)]
async fn every_duplicate_of_a_refused_request_is_refused() {
    let world = world(one_each());
    assert_eq!(world.send(order("first")).await.status, 201);
    let mut storm = Vec::new();
    for _ in 0..20 {
        storm.push(world.start(order_with("second", &[("prefer", "wait=10")])).await);
    }
    for answer in storm {
        assert_eq!(answer.await.unwrap().summary(), LIMITED);
    }
    tokio::time::advance(HOUR).await;
    assert_eq!(world.send(order("second")).await.summary(), "201 run 2");
}

/// L03
#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waits_takes_its_look_up_once() {
    let world = world(one_each());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    let waiting = world.start(order_with("k", &[("prefer", "wait=10")])).await;
    let third = world.send(order("k")).await;
    assert_eq!(third.summary(), LIMITED, "the one that waits has the only token");
    world.handler.open(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert!(waiting.await.unwrap().is_replay());
}

/// L02, L03: this node takes it for a new key until the store says otherwise.
#[tokio::test(start_paused = true)]
async fn a_key_that_another_node_has_is_a_look_up_and_gives_its_token_back() {
    let first = world(Limits::default());
    let second = World::within(first.store.clone(), Policy::default(), one_each());
    assert_eq!(first.send(order("k")).await.status, 201);
    assert!(second.send(order("k")).await.is_replay());
    assert_eq!(second.send(order("k")).await.summary(), LIMITED);
    assert_eq!(second.send(order("new")).await.status, 201, "the token for new keys is still there");
}

/// L02: a reservation whose answer was lost may be on record.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_may_be_written_keeps_what_it_took() {
    let world = world(one_each());
    world.store.next([Fault::AnswerLost]);
    assert_eq!(world.send(order("k")).await.status, 503);
    assert_eq!(world.send(order("new")).await.summary(), LIMITED);
    assert_eq!(world.handler.runs(), 0);
}

/// L02: a client that hangs up frees no place.
#[tokio::test(start_paused = true)]
async fn an_attempt_is_under_way_until_it_has_ended() {
    let world = world(Limits { in_flight: Some(1), ..Limits::default() });
    let first = world.start(order_with("first", &[("x-gate", "1")])).await;
    first.abort();
    settle().await;
    assert_eq!(world.send(order("second")).await.summary(), LIMITED);
    world.handler.open(1);
    settle().await;
    assert_eq!(world.send(order("second")).await.status, 201);
    let retry = order_with("third", &[("x-status", "503")]);
    assert_eq!(world.send(retry).await.status, 503);
    let held = world.start(order_with("fourth", &[("x-gate", "1")])).await;
    assert_eq!(world.send(order("third")).await.summary(), LIMITED, "a rerun is an attempt");
    world.handler.open(1);
    assert_eq!(held.await.unwrap().status, 201);
    assert_eq!(world.send(order("third")).await.status, 201);
}

/// L02: what has expired makes room, and one node never exceeds it, however many come at once.
#[tokio::test(start_paused = true)]
async fn records_are_counted_before_a_new_key_is_reserved() {
    let policy = Policy { retention: HOUR, ..Policy::default() };
    let limits = Limits { keys_alive_total: Some(3), ..Limits::default() };
    let world = World::within(FaultyStore::new(), policy, limits);
    let mut storm = Vec::new();
    for number in 0..10 {
        storm.push(world.start(order(&number.to_string())).await);
    }
    let mut created = 0;
    for answer in storm {
        let answer = answer.await.unwrap();
        match answer.status {
            201 => created += 1,
            _ => assert_eq!((answer.summary().as_str(), answer.header("retry-after")), (LIMITED, Some("60"))),
        }
    }
    assert_eq!((created, world.handler.runs()), (3, 3));
    tokio::time::advance(HOUR * 2).await;
    assert_eq!(world.send(order("later")).await.status, 201);
}

/// L02: nothing is reserved that could not be counted.
#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_counted_is_unavailable() {
    let world = world(Limits { keys_alive: Some(3), ..Limits::default() });
    world.store.next([Fault::Stalled]);
    assert_eq!(world.send(order("k")).await.summary(), "503 idempotency_store_unavailable");
    assert_eq!((world.store.writes(), world.handler.runs()), (0, 0));
    assert_eq!(world.send(order("k")).await.status, 201);
}

/// L02: what exists is answered as ever, and nothing runs unprotected since a count failed.
#[tokio::test(start_paused = true)]
async fn what_exists_is_answered_also_where_records_cannot_be_counted() {
    let store = FaultyStore::new();
    let limits = Limits { keys_alive: Some(3), ..Limits::default() };
    let policy = Policy { store_down: StoreDown::Run, ..Policy::default() };
    let world = World::on(store.clone(), Policy::default());
    assert_eq!(world.send(order("k")).await.status, 201);
    // Another node, which has no copy. Its first call is the count.
    let other = World::within(store.clone(), policy, limits);
    store.next([Fault::Refused]);
    let answer = other.send(order("k")).await;
    assert!(answer.is_replay(), "{answer:?}");
    store.next([Fault::Refused]);
    assert_eq!(other.send(order("new")).await.summary(), "503 idempotency_store_unavailable");
    assert_eq!((world.handler.runs(), other.handler.runs()), (1, 0));
}

/// T06: whether it ran before is not known, and an old one is not run unprotected.
#[tokio::test(start_paused = true)]
async fn an_old_request_is_not_run_while_the_store_is_down() {
    let policy = Policy { store_down: StoreDown::Run, ..timed() };
    let world = World::within(FaultyStore::new(), policy, Limits::default());
    world.store.always(Some(Fault::Refused));
    let old = order_with("k", &[("x-time", "1763350000")]);
    assert_eq!(world.send(old).await.summary(), "503 idempotency_store_unavailable");
    assert_eq!(world.handler.runs(), 0);
    assert_eq!(world.send(order_with("k", &[("x-time", &now())])).await.status, 201);
}

/// T06: the time is no part of the request, unless the settings list it.
#[tokio::test(start_paused = true)]
async fn another_time_is_the_same_request_unless_it_is_listed() {
    let mut policy = timed();
    policy.fingerprint.headers.push(HeaderName::from_static("x-time"));
    for (policy, expected) in [(timed(), 201), (policy, 422)] {
        let world = World::within(FaultyStore::new(), policy, Limits::default());
        assert_eq!(world.send(order_with("k", &[("x-time", &now())])).await.status, 201);
        assert_eq!(world.send(order_with("k", &[("x-time", "1763350000")])).await.status, expected);
        assert_eq!(world.handler.runs(), 1);
    }
}

/// L02: requests without a key are none of ours.
#[tokio::test(start_paused = true)]
async fn unkeyed_requests_count_nowhere() {
    let world = world(Limits { in_flight_total: Some(1), ..one_each() });
    let held = world.start(order_with("k", &[("x-gate", "1")])).await;
    for _ in 0..5 {
        let unkeyed = Request::post("/orders").body(Body::empty()).unwrap();
        assert_eq!(world.send(unkeyed).await.status, 201);
    }
    world.handler.open(1);
    assert_eq!(held.await.unwrap().status, 201);
}

/// L02: layers of one engine share what is counted.
#[tokio::test(start_paused = true)]
async fn a_clone_of_the_layer_shares_its_limits() {
    let world = world(one_each());
    let other = Arc::new(world.onlyonce.clone());
    let app =
        axum::Router::new().route("/orders", axum::routing::post(|| async { "other" })).layer(other.layer());
    assert_eq!(world.send(order("first")).await.status, 201);
    let request = post("second").body(Body::empty()).unwrap();
    let answer = tower::ServiceExt::oneshot(app, request).await.unwrap();
    assert_eq!(answer.status(), 429);
}

/// L06: a megabyte of JSON that is slow to read delays nobody else, not even on the only thread.
#[tokio::test]
async fn a_large_body_is_digested_beside_other_requests() {
    let world = world(Limits::default());
    let slow = format!("[{}[]]", "[],".repeat(340_000));
    let large = world.send(post("large").body(Body::from(slow)).unwrap());
    let mut large = std::pin::pin!(large);
    // The first poll reaches its digest.
    assert!(futures_util::poll!(large.as_mut()).is_pending());
    assert_eq!(world.send(order("small")).await.status, 201);
    assert!(futures_util::poll!(large.as_mut()).is_pending(), "it is still being digested");
    assert_eq!(large.await.status, 201);
}
