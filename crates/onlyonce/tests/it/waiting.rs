//! Duplicates that come while the first still runs.

use std::time::Duration;

use onlyonce::Policy;
use onlyonce::policy::{InFlight, On5xx};

use crate::world::{World, order, order_with, settle};

const WAIT: (&str, &str) = ("prefer", "wait=10");

/// R02, R03
#[tokio::test(start_paused = true)]
async fn a_storm_on_one_key_runs_once_and_costs_one_reservation() {
    let world = World::new(Policy::default());
    let mut storm = Vec::new();
    for _ in 0..200 {
        storm.push(world.start(order_with("k", &[("x-gate", "1")])).await);
    }
    world.handler.open(1);
    let mut created = 0;
    for answer in storm {
        let answer = answer.await.unwrap();
        match answer.status {
            201 => created += 1,
            _ => {
                assert_eq!(answer.summary(), "409 idempotency_key_in_progress");
                assert_eq!(answer.header("retry-after"), Some("1"));
            }
        }
    }
    assert_eq!((created, world.handler.runs(), world.store.writes()), (1, 1, 2));
}

/// R02
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_on_two_nodes_and_many_threads_runs_once() {
    let first = World::new(Policy { in_flight: InFlight::Wait, ..Policy::default() });
    let second = World::on(first.store.clone(), Policy { in_flight: InFlight::Wait, ..Policy::default() });
    let mut storm = tokio::task::JoinSet::new();
    for number in 0..100 {
        let app = if number % 2 == 0 { first.app.clone() } else { second.app.clone() };
        storm.spawn(async move { tower::ServiceExt::oneshot(app, order("k")).await.unwrap().status() });
    }
    let statuses = storm.join_all().await;
    assert!(statuses.iter().all(|status| *status == 201), "{statuses:?}");
    assert_eq!(first.handler.runs() + second.handler.runs(), 1);
}

/// R04
#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waits_is_woken_with_the_same_answer() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(world.start(order_with("k", &[WAIT])).await);
    }
    let before = tokio::time::Instant::now();
    world.handler.open(1);
    let first = first.await.unwrap();
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert!(answer.is_replay());
        assert_eq!(answer.body, first.body);
    }
    assert_eq!(before.elapsed(), Duration::ZERO, "woken, not polling");
    assert_eq!(world.handler.runs(), 1);
}

/// R04
#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_no_longer_than_it_asked_nor_than_the_policy_allows() {
    let world = World::new(Policy { wait_max: Duration::from_secs(5), ..Policy::default() });
    let _first = world.start(order_with("k", &[("x-gate", "1")])).await;
    for (asked, waited) in [("wait=2", 2), ("wait=60", 5)] {
        let before = tokio::time::Instant::now();
        let answer = world.send(order_with("k", &[("prefer", asked)])).await;
        assert_eq!(answer.summary(), "409 idempotency_key_in_progress");
        assert_eq!(before.elapsed().as_secs(), waited, "{asked}");
    }
}

/// R04
#[tokio::test(start_paused = true)]
async fn where_the_run_is_released_one_who_waits_becomes_the_next_and_the_others_wait_on() {
    let world = World::new(Policy { in_flight: InFlight::Wait, ..Policy::default() });
    let first = world.start(order_with("k", &[("x-gate", "1"), ("x-status", "503")])).await;
    let mut waiting = Vec::new();
    for _ in 0..10 {
        waiting.push(world.start(order_with("k", &[("x-gate", "1")])).await);
    }
    world.handler.open(1);
    assert_eq!(first.await.unwrap().status, 503);
    settle().await;
    assert_eq!(world.handler.runs(), 2, "exactly one of them runs next");
    world.handler.open(1);
    let mut own = 0;
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert_eq!(answer.summary(), "201 run 2");
        own += usize::from(!answer.is_replay());
    }
    assert_eq!((own, world.handler.runs()), (1, 2));
}

/// R04
#[tokio::test(start_paused = true)]
async fn a_duplicate_of_what_runs_on_another_node_is_answered_soon_after_it_completes() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    let other = World::on(world.store.clone(), Policy::default());
    let waiting = [other.start(order_with("k", &[WAIT])).await, other.start(order_with("k", &[WAIT])).await];
    world.pass(Duration::from_secs(3)).await;
    let loads = world.store.loads.load(std::sync::atomic::Ordering::SeqCst);
    assert!(loads <= 3_000 / 25 + 4, "one task looks, however many wait: {loads}");
    world.handler.open(1);
    first.await.unwrap();
    let before = tokio::time::Instant::now();
    for answer in waiting {
        assert!(answer.await.unwrap().is_replay());
    }
    assert!(before.elapsed() <= Duration::from_millis(50));
    assert_eq!(other.handler.runs(), 0);
}

/// U03: one who prefers to wait waits for the truth about an unknown, too.
#[tokio::test(start_paused = true)]
async fn a_client_that_asks_to_waits_for_the_verdict_on_an_unknown() {
    let world = World::new(Policy { on_5xx: On5xx::Unknown, ..Policy::default() });
    assert_eq!(world.send(order_with("k", &[("x-status", "500")])).await.status, 500);
    let before = tokio::time::Instant::now();
    let answer = world.send(order_with("k", &[("prefer", "wait=3")])).await;
    assert_eq!(answer.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(before.elapsed().as_secs(), 3);
    let at_once = tokio::time::Instant::now();
    assert_eq!(world.send(order("k")).await.status, 409);
    assert_eq!(at_once.elapsed(), Duration::ZERO);
}

/// R03
#[tokio::test(start_paused = true)]
async fn a_duplicate_is_accepted_with_the_place_to_ask_where_the_policy_says_so() {
    let world = World::new(Policy { in_flight: InFlight::Accept, ..Policy::default() });
    let first = world.start(order_with("a/b", &[("x-gate", "1")])).await;
    let answer = world.send(order("a/b")).await;
    assert_eq!(answer.status, 202);
    assert_eq!(answer.header("location"), Some("/_onlyonce/keys/a%2Fb"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(answer.text().contains(r#""state":"running","attempt":1"#), "{}", answer.text());
    world.handler.open(1);
    first.await.unwrap();
    assert!(world.send(order("a/b")).await.is_replay());
}

/// R04: a client that waits and hangs up is forgotten, and does not run later.
#[tokio::test(start_paused = true)]
async fn one_who_waits_and_hangs_up_does_not_run_later() {
    let world = World::new(Policy { in_flight: InFlight::Wait, ..Policy::default() });
    let first = world.start(order_with("k", &[("x-gate", "1"), ("x-status", "503")])).await;
    let waiting = world.start(order("k")).await;
    waiting.abort();
    settle().await;
    world.handler.open(1);
    assert_eq!(first.await.unwrap().status, 503);
    settle().await;
    assert_eq!(world.handler.runs(), 1);
}
