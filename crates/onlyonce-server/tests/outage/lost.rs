//! Answers of the database that are lost: the commit has happened, but the gateway does not learn it.

use std::time::Duration;

use onlyonce_testkit::wire::Direction;

use crate::client;
use crate::gateway::PATIENCE;
use crate::ledger::HELD;
use crate::world::{STORE_TIMEOUT, World, until};

/// X05, U02: nothing was sent, and the gateway knows it: it looks, finds its own reservation, and gives it back.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_whose_answer_is_lost_is_given_back_and_runs_once() {
    let world = World::new().await;
    let to = world.gateway.address;
    assert!(client::pay(to, "before").await.is_stored());
    world.wire.hold(Direction::ToClient);
    let refused = client::pay(to, "k").await;
    assert!(refused.is_unavailable(), "{refused:?}");
    until("the reservation is committed", async || world.stored("k", "running") == 1).await;
    assert_eq!(world.ledger.charges("k"), 0, "no reservation, no work");
    assert!(world.wire.cut() > 0);
    world.wire.mend();
    let answer = client::retry(to, "k", PATIENCE).await;
    assert!(answer.is_stored() && !answer.is_replay(), "{answer:?}");
    assert_eq!(world.ledger.charges("k"), 1);
}

/// X05: the completion is recognised by looking, while its client still waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_whose_answer_is_lost_is_recognised() {
    const LONG: Duration = Duration::from_secs(15);
    let (world, ()) = World::with(&[], LONG, |_| {}).await;
    let to = world.gateway.address;
    // Its connection is there, and its statements known to it: what it says next takes no other question.
    assert!(client::pay(to, "before").await.is_stored());
    let key = format!("{HELD}k");
    let paying = tokio::spawn({
        let key = key.clone();
        async move { client::pay(to, &key).await }
    });
    world.ledger.charged(&key).await;
    world.wire.hold(Direction::ToClient);
    world.ledger.release();
    until("the completion is committed", async || world.stored(&key, "completed") == 1).await;
    assert!(!paying.is_finished(), "nobody is answered before the gateway knows");
    assert!(world.wire.cut() > 0);
    world.wire.mend();
    let first = paying.await.unwrap();
    assert!(first.is_stored(), "{first:?}");
    let again = client::pay(to, &key).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    assert_eq!(world.ledger.charges(&key), 1);
}

/// X05, X03: found out when the line is there again, long after its client had its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_whose_answer_is_lost_for_long_is_recognised_later() {
    let world = World::new().await;
    let to = world.gateway.address;
    // Its connection is there, and its statements known to it: what it says next takes no other question.
    assert!(client::pay(to, "before").await.is_stored());
    let key = format!("{HELD}k");
    let paying = tokio::spawn({
        let key = key.clone();
        async move { client::pay(to, &key).await }
    });
    world.ledger.charged(&key).await;
    world.wire.hold(Direction::ToClient);
    world.ledger.release();
    let first = paying.await.unwrap();
    assert!(first.status == 201 && !first.is_stored(), "{first:?}");
    assert!(first.took >= STORE_TIMEOUT, "it was tried for that long: {first:?}");
    assert_eq!(world.stored(&key, "completed"), 1, "and had been committed");
    world.wire.cut();
    world.wire.mend();
    let again = client::retry(to, &key, PATIENCE).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    assert_eq!(world.ledger.charges(&key), 1);
}
