//! A synchronous standby of PostgreSQL: it has everything that was answered, and what it lacks was never answered.

use std::time::Duration;

use onlyonce_testkit::engines::postgres::{Owned, Stop};
use onlyonce_testkit::engines::server::{Engine, Server};
use tokio::time::{Instant, sleep};

use crate::client;
use crate::gateway::PATIENCE;
use crate::ledger::HELD;
use crate::outages::{Told, outage};
use crate::world::{STORE_TIMEOUT, World, prepared, started, until};

/// X01, X03, P05: the primary is gone for good, and the standby takes over behind the same address.
#[tokio::test(flavor = "multi_thread")]
async fn the_standby_takes_over() {
    let (world, standby) = with_standby().await;
    let breaks = async |world: &World| world.server().kill();
    let repair = async |world: &World| {
        standby.promote();
        world.wire.lead_to(standby.port());
    };
    outage("failed over", world, Told::Failed, breaks, repair).await;
}

async fn with_standby() -> (World, Owned) {
    let server = started(Engine::Postgres);
    let store = prepared(server.server());
    let Server::Postgres(primary) = server.server() else { unreachable!("it was started as one") };
    let standby = primary.start_standby().unwrap_or_else(|reason| panic!("no standby: {reason}"));
    (World::on(server, store, STORE_TIMEOUT).await, standby)
}

/// Long enough that the gateway has found the database again, and asked it: the breaker lets a caller through each second.
const LOOKS_FOR: Duration = Duration::from_secs(8);

/// X05: a commit that the standby has not confirmed is on the primary alone, and shows there after a restart. Nobody is
/// told of it: when the standby takes over, it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_standby_has_not_confirmed_is_not_done() {
    let (world, standby) = with_standby().await;
    let to = world.gateway.address;
    assert!(client::pay(to, "before").await.is_stored());
    let key = format!("{HELD}k");
    let paying = tokio::spawn({
        let key = key.clone();
        async move { client::pay(to, &key).await }
    });
    world.ledger.charged(&key).await;
    standby.freeze();
    world.ledger.release();
    let first = paying.await.unwrap();
    assert!(first.status == 201 && !first.is_stored(), "the standby did not confirm it: {first:?}");

    // A commit that waited for the standby is in the log of the primary: started again, it has it, alone.
    world.postgres().stop(Stop::Immediate);
    world.server().start_again();
    until("it stands on the primary alone", async || world.stored(&key, "completed") == 1).await;
    let restarted_at = Instant::now();
    while restarted_at.elapsed() < LOOKS_FOR {
        let again = client::pay(to, &key).await;
        assert!(!again.is_stored(), "told as done, and the standby does not have it: {again:?}");
        sleep(Duration::from_millis(100)).await;
    }

    world.server().kill();
    standby.thaw();
    standby.promote();
    world.wire.lead_to(standby.port());
    let again = client::retry(to, &key, PATIENCE).await;
    assert!(again.is_replay() && again.body == first.body, "{first:?}, then {again:?}");
    assert_eq!(world.ledger.charges(&key), 1);
    assert!(client::retry(to, "before", PATIENCE).await.is_replay());
}
