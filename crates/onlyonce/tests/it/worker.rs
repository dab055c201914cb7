//! The sweeper and the reaper.

use std::time::Duration;

use onlyonce::worker::{Background, Workers};
use onlyonce::{Effects, Policy};

use crate::world::{Fault, World, order, order_with};

/// A node that dies while its handler runs: the task is gone and nobody renews.
async fn dies_while_running(world: &World, key: &str) {
    let first = world.start(order_with(key, &[("x-gate", "1")])).await;
    world.store.always(Some(Fault::Refused));
    first.abort();
    world.pass(Duration::from_secs(400)).await;
    world.store.always(None);
    world.pass(Duration::from_secs(5)).await;
}

/// M01, U03
#[tokio::test(start_paused = true)]
async fn the_sweeper_finds_what_lapsed_and_applies_what_its_effects_say() {
    for (effects, told) in [
        (Effects::Opaque, "409 idempotency_outcome_unknown"),
        (Effects::Queryable, "409 idempotency_outcome_unknown"),
        (Effects::Keyed, "201 run 2"),
        (Effects::Local, "201 run 2"),
    ] {
        let policy = Policy { effects, ..Policy::default() };
        let world = World::new(policy.clone());
        dies_while_running(&world, "k").await;
        let other = World::on(world.store.clone(), policy);
        assert_eq!(other.onlyonce.engine().sweep().await.unwrap(), 1, "{effects:?}");
        assert_eq!(other.onlyonce.engine().sweep().await.unwrap(), 0, "{effects:?}: each lapse once");
        let runs_before = other.handler.runs();
        let again = other.send(order("k")).await.summary();
        assert_eq!(again, told.replace("run 2", &format!("run {}", runs_before + 1)), "{effects:?}");
    }
}

/// M01, M04
#[tokio::test(start_paused = true)]
async fn many_sweepers_share_the_work_and_none_is_done_twice() {
    let world = World::new(Policy::default());
    for number in 0..250 {
        drop(world.start(order_with(&format!("k{number}"), &[("x-gate", "1")])).await);
    }
    world.store.always(Some(Fault::Refused));
    world.pass(Duration::from_secs(400)).await;
    world.store.always(None);
    world.pass(Duration::from_secs(5)).await;
    let sweepers: Vec<_> = (0..4).map(|_| World::on(world.store.clone(), Policy::default())).collect();
    let sweeps = sweepers.iter().map(|node| node.onlyonce.engine().sweep());
    let swept: usize = futures_util::future::join_all(sweeps).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(swept, 250);
}

/// M02, T03
#[tokio::test(start_paused = true)]
async fn the_reaper_deletes_what_has_expired_and_nothing_else() {
    let world = World::new(Policy { retention: Duration::from_secs(100), ..Policy::default() });
    for number in 0..1000 {
        world.send(order(&format!("old{number}"))).await;
    }
    world.send(order_with("unknown", &[("x-status", "504")])).await;
    world.pass(Duration::from_secs(60)).await;
    world.send(order("young")).await;
    world.pass(Duration::from_secs(50)).await;
    assert_eq!(world.onlyonce.engine().reap(64).await.unwrap(), 1000);
    assert_eq!(world.onlyonce.engine().reap(64).await.unwrap(), 0);
    assert!(world.send(order("young")).await.is_replay());
    world.pass(Duration::from_secs(1_000_000)).await;
    world.onlyonce.engine().reap(64).await.unwrap();
    assert_eq!(world.send(order("unknown")).await.summary(), "409 idempotency_outcome_unknown");
}

/// M01, M02
#[tokio::test(start_paused = true)]
async fn the_workers_come_round_and_survive_a_store_that_fails() {
    let world = World::new(Policy { retention: Duration::from_secs(10), ..Policy::default() });
    let workers = Workers::start(world.onlyonce.engine(), &Background::default());
    world.send(order("k")).await;
    world.store.always(Some(Fault::Refused));
    world.pass(Duration::from_secs(100)).await;
    world.store.always(None);
    world.pass(Duration::from_secs(100)).await;
    assert_eq!(world.onlyonce.engine().reap(10).await.unwrap(), 0, "already done");
    drop(workers);
    world.send(order("k")).await;
    world.pass(Duration::from_secs(100)).await;
    assert_eq!(world.onlyonce.engine().reap(10).await.unwrap(), 1, "nobody works any more");
}
