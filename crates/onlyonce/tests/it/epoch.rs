//! Forgetting a key, and copies of completed records that must be forgotten with it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use onlyonce::operate::{Forgotten, Refusal};
use onlyonce::store::{Query, Store};
use onlyonce::{Force, Policy};
use onlyonce_core::record::Id;

use crate::world::{Fault, World, order, order_with, ordered, settle};

/// The only record there is.
async fn only(world: &World) -> Id {
    let query = Query::all(2);
    let page = world.store.scan(query).await.unwrap();
    assert_eq!(page.records.len(), 1);
    page.records[0].0
}

/// A second node that has a copy of what the first has answered.
async fn with_a_copy(world: &World) -> World {
    assert_eq!(world.send(order("k")).await.summary(), "201 run 1");
    let other = World::on(world.store.clone(), Policy::default());
    for _ in 0..2 {
        assert!(other.send(order("k")).await.is_replay());
    }
    let trips = trips(world);
    assert!(other.send(order("k")).await.is_replay());
    assert_eq!(self::trips(world), trips, "from its copy");
    other
}

fn trips(world: &World) -> usize {
    world.store.writes() + world.store.loads.load(Ordering::SeqCst)
}

/// X04
#[tokio::test(start_paused = true)]
async fn what_was_forgotten_is_replayed_by_no_node_once_that_is_reported() {
    let world = World::new(Policy::default());
    let other = with_a_copy(&world).await;
    let forgotten = world.onlyonce.engine().forget(only(&world).await, &ordered(Force::No)).await;
    assert!(matches!(forgotten.unwrap(), Forgotten::Done(_)));
    let again = other.send(order("k")).await;
    assert!(!again.is_replay());
    assert_eq!((again.summary(), other.handler.runs()), ("201 run 1".into(), 1));
    assert!(world.send(order("k")).await.is_replay(), "the new answer is replayed as ever");
}

/// X04: also by a node that was asked all the time.
#[tokio::test(start_paused = true)]
async fn a_node_lets_go_of_its_copies_while_it_replays_them() {
    let world = World::new(Policy::default());
    let other = with_a_copy(&world).await;
    let (engine, id) = (world.onlyonce.engine().clone(), only(&world).await);
    let forgetting = tokio::spawn(async move { engine.forget(id, &ordered(Force::No)).await });
    while !forgetting.is_finished() {
        let answer = other.send(order("k")).await;
        assert_eq!(answer.status, 201, "never in between");
        world.pass(Duration::from_millis(50)).await;
    }
    assert_eq!(other.handler.runs(), 1, "it ran anew, once");
}

/// X04: fails towards the truth.
#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_look_at_the_epoch_asks_the_store_for_each_replay() {
    let world = World::new(Policy::default());
    let other = with_a_copy(&world).await;
    world.store.blind(true);
    world.pass(Duration::from_millis(1_900)).await;
    let before = trips(&world);
    assert!(other.send(order("k")).await.is_replay());
    assert_eq!(trips(&world), before, "its last look is good for two seconds");
    world.pass(Duration::from_millis(200)).await;
    for number in 1..=3 {
        assert!(other.send(order("k")).await.is_replay(), "the truth is the same");
        assert_eq!(trips(&world), before + number, "and it was asked for");
    }
    // Forgetting does not wait for it, and it does not replay what was forgotten.
    world.onlyonce.engine().forget(only(&world).await, &ordered(Force::No)).await.unwrap();
    assert!(!other.send(order("k")).await.is_replay());
    world.store.blind(false);
    world.pass(Duration::from_secs(2)).await;
    for _ in 0..2 {
        assert!(other.send(order("k")).await.is_replay());
    }
    let before = trips(&world);
    assert!(other.send(order("k")).await.is_replay());
    assert_eq!(trips(&world), before, "and copies are used again");
}

/// X04: a look a second while copies are used, and none while nobody comes.
#[tokio::test(start_paused = true)]
async fn the_epoch_is_looked_at_once_a_second_at_most() {
    let world = World::new(Policy::default());
    world.send(order("k")).await;
    let looks = || world.store.epochs.load(Ordering::SeqCst);
    for _ in 0..500 {
        assert!(world.send(order("k")).await.is_replay());
        world.pass(Duration::from_millis(10)).await;
    }
    assert!((4..=7).contains(&looks()), "{} looks in five seconds", looks());
    let before = looks();
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(looks(), before);
}

/// X04: an order that was cut short is simply given again.
#[tokio::test(start_paused = true)]
async fn forgetting_that_failed_in_the_middle_is_ordered_again() {
    let world = World::new(Policy::default());
    let other = with_a_copy(&world).await;
    let (engine, id) = (world.onlyonce.engine(), only(&world).await);
    world.store.next([Fault::None, Fault::None, Fault::Refused]);
    engine.forget(id, &ordered(Force::No)).await.expect_err("the epoch was not raised");
    assert_eq!(world.store.reap(10).await.unwrap(), 1, "its record is gone all the same");
    let again = engine.forget(id, &ordered(Force::No)).await.unwrap();
    assert_eq!(again, Forgotten::Refused(Refusal::Absent));
    assert!(!other.send(order("k")).await.is_replay());
}

/// X04, R05: while it runs it is left alone; forced, what runs is superseded and the key is free on every node.
#[tokio::test(start_paused = true)]
async fn what_runs_is_forgotten_only_by_force() {
    let world = World::new(Policy::default());
    assert_eq!(world.send(order("before")).await.status, 201);
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    let engine = world.onlyonce.engine();
    let query = Query { states: onlyonce::StateName::Running.into(), ..Query::all(2) };
    let id = world.store.scan(query).await.unwrap().records[0].0;
    let Forgotten::Refused(refusal) = engine.forget(id, &ordered(Force::No)).await.unwrap() else {
        panic!("it runs")
    };
    assert_eq!(refusal.code(), "record_running");
    assert_eq!(world.send(order("k")).await.summary(), "409 idempotency_key_in_progress");
    let forced = engine.forget(id, &ordered(Force::Yes)).await.unwrap();
    assert!(matches!(forced, Forgotten::Done(_)));
    // Its attempt is still in progress on this node; here as elsewhere its key is free.
    assert_eq!(world.send(order("k")).await.summary(), "201 run 3");
    world.handler.open(1);
    settle().await;
    let late = first.await.unwrap();
    assert_eq!(late.summary(), "201 run 3", "a later attempt has an answer on record, and that is the one");
    assert!(world.send(order("k")).await.is_replay());
}

/// X04: the same on a node whose look at the epoch has not come through.
#[tokio::test(start_paused = true)]
async fn what_runs_is_forgotten_also_on_a_node_that_has_not_heard_of_it() {
    let world = World::new(Policy::default());
    assert_eq!(world.send(order("before")).await.status, 201);
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    let query = Query { states: onlyonce::StateName::Running.into(), ..Query::all(2) };
    let id = world.store.scan(query).await.unwrap().records[0].0;
    world.store.blind(true);
    let forced = world.onlyonce.engine().forget(id, &ordered(Force::Yes)).await.unwrap();
    assert!(matches!(forced, Forgotten::Done(_)));
    assert_eq!(world.send(order("k")).await.summary(), "201 run 3");
    world.handler.open(1);
    assert_eq!(first.await.unwrap().summary(), "201 run 3");
}
