//! A locked record is not an outage.

use std::time::Duration;

use onlyonce_testkit::engines::server::Engine;
use tokio_postgres::NoTls;

use crate::client;
use crate::ledger::REFUSED;
use crate::world::{World, started, until};

/// So many in a row would open the breaker, were they failures.
const REFUSALS: usize = 8;

/// X02: PostgreSQL's, since it needs a transaction of somebody else: a record that an operator's transaction holds is refused, its neighbours are served at once, and nothing runs for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_somebody_holds_is_no_outage() {
    // Longer than a write waits for whoever holds its record.
    let world = World::with(started(Engine::Postgres), Duration::from_secs(5)).await;
    let to = world.gateway.address;
    let key = format!("{REFUSED}k");
    assert_eq!(client::pay(to, &key).await.status, 500);
    until("it may be tried again", async || world.stored(&key, "retryable") == 1).await;

    let url = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", world.server().port());
    let (mut operator, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let held = operator.transaction().await.unwrap();
    let sql = "SELECT 1 FROM gateway.onlyonce_record WHERE key = $1 FOR UPDATE";
    assert_eq!(held.query(sql, &[&key]).await.unwrap().len(), 1);
    for _ in 0..REFUSALS {
        let refused = client::pay(to, &key).await;
        assert!(refused.is_unavailable(), "{refused:?}");
    }
    let neighbour = client::pay(to, "neighbour").await;
    assert!(neighbour.is_stored(), "the breaker has opened: {neighbour:?}");
    assert!(world.gateway.readiness().await.0, "the store is well");
    assert_eq!(world.ledger.charges(&key), 1, "only the first, which was refused");

    held.rollback().await.unwrap();
    let answer = client::retry(to, &key, crate::gateway::PATIENCE).await;
    assert!(answer.is_stored(), "{answer:?}");
    assert_eq!(world.ledger.charges(&key), 2);
}
