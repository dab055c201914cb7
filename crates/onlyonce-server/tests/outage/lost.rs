//! Answers of the database that are lost: the commit has happened, but the gateway does not learn it.

use std::time::Duration;

use onlyonce_testkit::engines::server::Engine;
use onlyonce_testkit::wire::Direction;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::client::{self, Answer};
use crate::gateway::PATIENCE;
use crate::ledger::HELD;
use crate::world::{STORE_TIMEOUT, World, on_every_server};

/// How often it is tried to lose the answer of a write: before the write, MySQL asks a connection that was idle for 100 ms whether it is
/// still there, and it is that answer which is lost then.
const TRIES_MAX: usize = 9;

/// X05, U02, E03, E04: nothing was sent, and the gateway knows it: it looks, finds its own reservation, and gives it back.
async fn a_reservation_whose_answer_is_lost_is_given_back_and_runs_once(engine: Engine) {
    let world = World::shared(engine, STORE_TIMEOUT).await;
    let to = world.gateway.address;
    for number in 0..TRIES_MAX {
        let key = format!("in-doubt-{number}");
        assert!(client::retry(to, &format!("before-{number}"), PATIENCE).await.is_stored());
        world.wire.hold(Direction::ToClient);
        let refused = client::pay(to, &key).await;
        assert!(refused.is_unavailable(), "{refused:?}");
        let is_committed = world.stored(&key, "running") == 1;
        assert_eq!(world.ledger.charges(&key), 0, "no reservation, no work");
        assert!(world.wire.cut() > 0);
        world.wire.mend();
        let answer = client::retry(to, &key, PATIENCE).await;
        assert!(answer.is_stored() && !answer.is_replay(), "{answer:?}");
        assert_eq!(world.ledger.charges(&key), 1);
        if is_committed {
            return;
        }
    }
    panic!("{TRIES_MAX} times no reservation was committed");
}

/// X05, E03, E04: the completion is recognised by looking, while its client still waits.
async fn a_completion_whose_answer_is_lost_is_recognised(engine: Engine) {
    const LONG: Duration = Duration::from_secs(15);
    let world = World::shared(engine, LONG).await;
    let to = world.gateway.address;
    for number in 0..TRIES_MAX {
        let (key, paying) = pay_unheard(&world, number).await;
        let is_committed = committed_within(&world, &key, Duration::from_secs(2)).await;
        assert!(!paying.is_finished(), "nobody is answered before the gateway knows");
        assert!(world.wire.cut() > 0);
        world.wire.mend();
        let first = paying.await.unwrap();
        assert!(first.is_stored(), "{first:?}");
        let again = client::pay(to, &key).await;
        assert!(again.is_replay() && again.body == first.body, "{again:?}");
        assert_eq!(world.ledger.charges(&key), 1);
        if is_committed {
            return;
        }
    }
    panic!("{TRIES_MAX} times no completion was committed");
}

/// X05, X03, E03, E04: found out when the line is there again, long after its client had its answer.
async fn a_completion_whose_answer_is_lost_for_long_is_recognised_later(engine: Engine) {
    let world = World::shared(engine, STORE_TIMEOUT).await;
    let to = world.gateway.address;
    for number in 0..TRIES_MAX {
        let (key, paying) = pay_unheard(&world, number).await;
        let first = paying.await.unwrap();
        assert!(first.status == 201 && !first.is_stored(), "{first:?}");
        assert!(first.took >= STORE_TIMEOUT, "it was tried for that long: {first:?}");
        let is_committed = world.stored(&key, "completed") == 1;
        world.wire.cut();
        world.wire.mend();
        let again = client::retry(to, &key, PATIENCE).await;
        assert!(again.is_replay() && again.body == first.body, "{again:?}");
        assert_eq!(world.ledger.charges(&key), 1);
        if is_committed {
            return;
        }
    }
    panic!("{TRIES_MAX} times no completion was committed");
}

/// A payment whose completion is written while answers of the server are held; its key.
async fn pay_unheard(world: &World, number: usize) -> (String, JoinHandle<Answer>) {
    let to = world.gateway.address;
    // Its connection is there, and its statements known to it: what it says next takes no other question.
    assert!(client::retry(to, &format!("before-{number}"), PATIENCE).await.is_stored());
    let key = format!("{HELD}{number}");
    world.ledger.hold();
    let paying = tokio::spawn({
        let key = key.clone();
        async move { client::pay(to, &key).await }
    });
    world.ledger.charged(&key).await;
    world.wire.hold(Direction::ToClient);
    world.ledger.release();
    (key, paying)
}

async fn committed_within(world: &World, key: &str, within: Duration) -> bool {
    let over = Instant::now() + within;
    while Instant::now() < over {
        if world.stored(key, "completed") == 1 {
            return true;
        }
        sleep(Duration::from_millis(20)).await;
    }
    false
}

on_every_server!({
    a_reservation_whose_answer_is_lost_is_given_back_and_runs_once,
    a_completion_whose_answer_is_lost_is_recognised,
    a_completion_whose_answer_is_lost_for_long_is_recognised_later,
}, and not on DynamoDB: {});
