//! The store fails.

use std::time::Duration;

use onlyonce::health::Health;
use onlyonce::policy::StoreDown;
use onlyonce::store::Store;
use onlyonce::{Effects, Policy};

use crate::world::{Fault, LATE, World, id, order, order_with, settle};

/// X01
#[tokio::test(start_paused = true)]
async fn without_a_reservation_nothing_runs() {
    let world = World::new(Policy::default());
    for fault in [Fault::Refused, Fault::Stalled, Fault::Corrupt] {
        world.store.always(Some(fault));
        let before = tokio::time::Instant::now();
        let answer = world.send(order("k")).await;
        assert_eq!(answer.summary(), "503 idempotency_store_unavailable", "{fault:?}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(before.elapsed() <= Policy::default().store_timeout, "{fault:?}");
        assert_eq!(world.handler.runs(), 0, "{fault:?}");
        world.store.always(None);
        world.pass(Duration::from_secs(60)).await;
    }
    assert_eq!(world.send(order("k")).await.summary(), "201 run 1");
}

/// X01: traffic without a key does not need the store.
#[tokio::test(start_paused = true)]
async fn requests_without_a_key_pass_while_the_store_is_away() {
    let world = World::new(Policy::default());
    world.store.always(Some(Fault::Refused));
    let request = http::Request::post("/orders").body(axum::body::Body::empty()).unwrap();
    assert_eq!(world.send(request).await.summary(), "201 run 1");
}

/// X01
#[tokio::test(start_paused = true)]
async fn where_the_policy_says_so_it_runs_unprotected_and_says_so() {
    let world = World::new(Policy { store_down: StoreDown::Run, ..Policy::default() });
    world.store.always(Some(Fault::Refused));
    let answer = world.send(order("k")).await;
    assert_eq!((answer.summary(), answer.header("idempotency-stored")), ("201 run 1".into(), Some("false")));
    // What cannot be read may be a completed payment: that is not the store being away.
    world.store.always(Some(Fault::Corrupt));
    assert_eq!(world.send(order("k")).await.summary(), "503 idempotency_store_unavailable");
}

/// X02
#[tokio::test(start_paused = true)]
async fn a_dead_store_is_not_hammered() {
    let world = World::new(Policy::default());
    world.store.always(Some(Fault::Stalled));
    for number in 0..5 {
        world.send(order(&format!("k{number}"))).await;
    }
    let asked = world.store.writes();
    let before = tokio::time::Instant::now();
    for number in 0..100 {
        assert_eq!(world.send(order(&format!("m{number}"))).await.status, 503);
    }
    assert!(before.elapsed() < Duration::from_millis(10), "refused at once");
    assert_eq!(world.store.writes(), asked, "and the store is left alone");
    world.store.always(None);
    world.pass(Duration::from_secs(10)).await;
    assert_eq!(world.send(order("after")).await.summary(), "201 run 1");
}

/// X01, X02: nor is one that refuses this node. That is not a store that is away: nothing runs over it, whatever the policy says.
#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_this_node_is_not_hammered_and_not_run_over() {
    let world = World::new(Policy { store_down: StoreDown::Run, ..Policy::default() });
    world.store.always(Some(Fault::LockedOut));
    for number in 0..5 {
        assert_eq!(world.send(order(&format!("k{number}"))).await.status, 503);
    }
    let asked = world.store.writes();
    for number in 0..100 {
        assert_eq!(world.send(order(&format!("m{number}"))).await.status, 503);
    }
    assert_eq!((world.store.writes(), world.handler.runs()), (asked, 0), "left alone, and nothing runs");
    world.store.always(None);
    world.pass(Duration::from_secs(10)).await;
    assert_eq!(world.send(order("after")).await.summary(), "201 run 1");
}

/// X02
#[tokio::test(start_paused = true)]
async fn contention_does_not_open_the_breaker() {
    let world = World::new(Policy::default());
    let _first = world.start(order_with("k", &[("x-gate", "1")])).await;
    let other = World::on(world.store.clone(), Policy::default());
    for _ in 0..50 {
        assert_eq!(other.send(order("k")).await.summary(), "409 idempotency_key_in_progress");
    }
    assert_eq!(other.send(order("free")).await.summary(), "201 run 1");
}

/// X02: what is damaged has been answered for. One record that cannot be read refuses its own key and no other.
#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_does_not_open_the_breaker() {
    let world = World::new(Policy::default());
    world.store.always(Some(Fault::Corrupt));
    for _ in 0..20 {
        assert_eq!(world.send(order("damaged")).await.summary(), "503 idempotency_store_unavailable");
    }
    world.store.always(None);
    assert_eq!(world.send(order("healthy")).await.summary(), "201 run 1");
}

/// X03
#[tokio::test(start_paused = true)]
async fn a_completion_that_cannot_be_written_is_tried_on_until_it_is() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.store.always(Some(Fault::Refused));
    world.handler.open(1);
    let first = first.await.unwrap();
    assert_eq!((first.summary(), first.header("idempotency-stored")), ("201 run 1".into(), Some("false")));
    assert_eq!(
        world.send(order("k")).await.summary(),
        "409 idempotency_key_in_progress",
        "the reservation stays"
    );
    world.store.always(None);
    world.onlyonce.engine().idle().await;
    let again = world.send(order("k")).await;
    assert!(again.is_replay());
    assert_eq!((again.summary(), world.handler.runs()), ("201 run 1".into(), 1));
}

/// X02: a store that is late for completions is late for reservations too.
#[tokio::test(start_paused = true)]
async fn completions_that_are_not_answered_open_the_breaker() {
    let world = World::new(Policy::default());
    let keys: Vec<String> = (0..5).map(|number| format!("k{number}")).collect();
    let mut running = Vec::new();
    for key in &keys {
        running.push(world.start(order_with(key, &[("x-gate", "1")])).await);
    }
    world.store.always(Some(Fault::Stalled));
    world.handler.open(keys.len());
    for answer in running {
        assert_eq!(answer.await.unwrap().header("idempotency-stored"), Some("false"));
    }
    let before = tokio::time::Instant::now();
    assert_eq!(world.send(order("next")).await.summary(), "503 idempotency_store_unavailable");
    assert!(before.elapsed() < Duration::from_millis(10), "refused at once");
}

/// X03
#[tokio::test(start_paused = true)]
async fn a_completion_that_could_never_be_written_is_unknown_and_never_a_second_run() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.store.always(Some(Fault::Stalled));
    world.handler.open(1);
    assert_eq!(first.await.unwrap().status, 201);
    world.pass(Duration::from_secs(400)).await;
    world.store.always(None);
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(world.send(order("k")).await.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(world.handler.runs(), 1);
}

/// X05, U02
#[tokio::test(start_paused = true)]
async fn a_reservation_whose_answer_was_lost_is_given_back() {
    let world = World::new(Policy::default());
    world.store.next([Fault::AnswerLost]);
    assert_eq!(world.send(order("k")).await.summary(), "503 idempotency_store_unavailable");
    world.onlyonce.engine().idle().await;
    let again = world.send(order("k")).await;
    assert_eq!(
        (again.summary(), world.handler.runs()),
        ("201 run 1".into(), 1),
        "it knows that nothing was sent"
    );
}

/// X05, U02: a write that waits for a row that somebody holds is carried out long after its caller has given up.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_written_late_is_given_back() {
    let world = World::new(Policy::default());
    assert_eq!(world.send(order_with("k", &[("x-status", "500")])).await.status, 500);
    // The first write finds the record, the second reserves the next attempt.
    world.store.next([Fault::None, Fault::Late]);
    assert_eq!(world.send(order("k")).await.summary(), "503 idempotency_store_unavailable");
    let before = world.store.load(id("k")).await.unwrap().unwrap();
    world.pass(2 * LATE).await;
    let after = world.store.load(id("k")).await.unwrap().unwrap();
    assert_eq!(after.record.attempt, before.record.attempt + 1, "it was written in the end");
    let again = world.send(order("k")).await;
    assert_eq!((again.summary(), world.handler.runs()), ("201 run 2".into(), 2));
}

/// X02: what was never sent is not looked for; an outage must not be followed by a look for each request it refused.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_was_never_sent_is_not_looked_for() {
    let world = World::new(Policy::default());
    world.store.always(Some(Fault::Stalled));
    for number in 0..5 {
        world.send(order(&format!("k{number}"))).await;
    }
    for number in 0..100 {
        assert_eq!(world.send(order(&format!("m{number}"))).await.status, 503);
    }
    world.store.always(None);
    world.pass(Duration::from_secs(10)).await;
    assert!(world.store.looks() < 50, "{} looks for the five that were sent", world.store.looks());
}

/// X02: a store that can be read and takes no writes is not hammered with them.
#[tokio::test(start_paused = true)]
async fn looks_that_are_answered_do_not_close_the_breaker_for_writes() {
    let world = World::new(Policy::default());
    world.store.always(Some(Fault::ReadOnly));
    for number in 0..100 {
        assert_eq!(world.send(order(&format!("k{number}"))).await.status, 503);
        settle().await;
    }
    assert!(world.store.looks() > 0, "what became of the writes is looked for");
    assert!(world.store.writes() < 20, "{} writes", world.store.writes());
}

/// X05
#[tokio::test(start_paused = true)]
async fn a_completion_whose_answer_was_lost_is_recognised_by_looking() {
    let world = World::new(Policy::default());
    world.store.next([Fault::None, Fault::AnswerLost]);
    let first = world.send(order_with("k", &[("x-answer-set-cookie", "a=b")])).await;
    assert_eq!(first.summary(), "201 run 1");
    assert!(first.is_stored(), "it was, and the second look says so");
    assert_eq!(first.header("set-cookie"), Some("a=b"), "the first client loses nothing by it");
    assert!(world.send(order("k")).await.is_replay());
}

/// X05: a client library that lost an answer repeats the write, and then finds its own. Revisions are random, so a write
/// that finds the revision it was to make was applied.
#[tokio::test(start_paused = true)]
async fn a_write_that_is_sent_twice_was_applied() {
    let world = World::new(Policy { effects: Effects::Keyed, ..Policy::default() });
    world.store.always(Some(Fault::Repeated));
    let first = world.send(order_with("k", &[("x-status", "500")])).await;
    assert_eq!((first.status, world.handler.runs()), (500, 1), "the first attempt");
    assert_eq!(world.send(order("k")).await.summary(), "201 run 2", "the next, on a record that is there");
    assert!(world.send(order("k")).await.is_replay());

    // A lease that is renewed, and an attempt that ends at its deadline.
    let held = world.start(order_with("held", &[("x-gate", "1")])).await;
    world.pass(Policy::default().deadline + Duration::from_secs(1)).await;
    assert_eq!(held.await.unwrap().summary(), "504 upstream_outcome_unknown");
    assert_eq!(world.send(order("held")).await.summary(), "201 run 4");
}

/// X05, U03: of many sweepers one settles a record and tells of it, also where its write is sent twice.
#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_sent_twice_is_told_as_done() {
    let world = World::new(Policy::default());
    let _lost = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.store.always(Some(Fault::Refused));
    world.pass(Policy::default().lease + Duration::from_secs(1)).await;
    world.store.always(Some(Fault::Repeated));
    let other = World::on(world.store.clone(), Policy::default());
    assert_eq!(other.onlyonce.engine().sweep().await.unwrap(), 1);
    assert_eq!(other.send(order("k")).await.summary(), "409 idempotency_outcome_unknown");
}

/// X05: found out in the background, while another client already asks.
#[tokio::test(start_paused = true)]
async fn a_lost_reservation_on_one_node_does_not_run_on_another_before_it_is_given_back() {
    let world = World::new(Policy::default());
    world.store.next([Fault::AnswerLost, Fault::Refused, Fault::Refused]);
    assert_eq!(world.send(order("k")).await.status, 503);
    let other = World::on(world.store.clone(), Policy::default());
    settle().await;
    world.onlyonce.engine().idle().await;
    assert_eq!(other.send(order("k")).await.summary(), "201 run 1");
    assert_eq!(world.handler.runs(), 0);
}

/// O04
#[tokio::test(start_paused = true)]
async fn a_failed_store_is_told_from_a_slow_one_and_from_one_that_takes_no_writes() {
    let world = World::new(Policy::default());
    let engine = world.onlyonce.engine().clone();
    let patience = Duration::from_secs(2);
    let is_well = |health: &Health| matches!(health, Health::Well { .. });
    assert!(is_well(&engine.health(patience).await));
    world.store.always(Some(Fault::Refused));
    assert!(matches!(engine.health(patience).await, Health::Failed { .. }));
    world.store.always(Some(Fault::Stalled));
    assert_eq!(engine.health(patience).await, Health::Stalled { waited: patience });
    world.store.always(None);
    assert!(is_well(&engine.health(patience).await));

    // A row that somebody holds is contention, and says nothing of the store.
    world.store.next([Fault::Busy]);
    assert_eq!(world.send(order("held")).await.status, 503);
    assert!(is_well(&engine.health(patience).await));

    // It can be read, and takes no writes: as a full disk does.
    world.store.next([Fault::Refused]);
    assert_eq!(world.send(order("k")).await.status, 503);
    let health = engine.health(patience).await;
    assert!(!health.is_ready() && matches!(health, Health::Failed { .. }), "{health:?}");
    assert_eq!(world.send(order("m")).await.status, 201);
    assert!(is_well(&engine.health(patience).await));
}
