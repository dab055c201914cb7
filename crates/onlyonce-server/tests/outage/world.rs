//! The setup of an outage test: a database, a proxy in front of it, the gateway, the ledger.

use std::sync::Arc;
use std::time::Duration;

use onlyonce_testkit::engines::postgres::{Owned, Server};
use onlyonce_testkit::wire::Wire;
use tokio::time::{Instant, sleep};

use crate::gateway::{Gateway, PATIENCE};
use crate::ledger::Ledger;

/// Short, so that outages can be short too.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) struct World {
    // Before the server: it is gone when the server goes.
    pub(crate) gateway: Gateway,
    pub(crate) wire: Wire,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) server: Owned,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(&[], STORE_TIMEOUT, |_| {}).await.0
    }

    /// With these settings of the server, and something done to it before the gateway starts.
    pub(crate) async fn with<T>(
        settings: &[(&str, &str)],
        store_timeout: Duration,
        prepare: impl FnOnce(&Server) -> T,
    ) -> (Self, T) {
        let server = Server::start(settings).unwrap_or_else(|reason| panic!("no PostgreSQL: {reason}"));
        // Nobody special: a superuser could use the connections that are kept for emergencies.
        server
            .sql("CREATE ROLE gateway LOGIN PASSWORD 'gateway'; CREATE SCHEMA gateway AUTHORIZATION gateway");
        let prepared = prepare(&server);
        let wire = Wire::to(server.port()).unwrap();
        let store = format!("postgres://gateway:gateway@{}/postgres?schema=gateway", wire.address());
        let ledger = Ledger::open().await;
        let gateway = Gateway::start(&ledger, &store, store_timeout).await;
        (Self { gateway, wire, ledger, server }, prepared)
    }

    /// How many records with this key are in this state, as the database says.
    pub(crate) fn stored(&self, key: &str, state: &str) -> usize {
        let sql =
            format!("SELECT count(*) FROM gateway.onlyonce_record WHERE key = '{key}' AND state = '{state}'");
        self.server.sql(&sql).parse().unwrap()
    }
}

/// Polls until it holds; past the bound the test has failed.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let over = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < over, "within {PATIENCE:?} it never came to this: {what}");
        sleep(LOOK_EVERY).await;
    }
}
