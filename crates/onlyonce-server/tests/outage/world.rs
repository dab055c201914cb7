//! The setup of an outage test: a server, a proxy in front of it, the gateway, the ledger.

use std::sync::Arc;
use std::time::Duration;

use onlyonce_testkit::engines::postgres;
use onlyonce_testkit::engines::server::{Engine, Owned, Server};
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
    /// The store's URL, past the proxy.
    store: String,
    server: Held,
}

enum Held {
    /// For a test that breaks it.
    Own(Owned),
    /// That of this test run, for a test that breaks only the line to it.
    Shared(Server<'static>),
}

impl World {
    pub(crate) async fn new(engine: Engine) -> Self {
        Self::with(started(engine), STORE_TIMEOUT).await
    }

    pub(crate) async fn with(server: Owned, store_timeout: Duration) -> Self {
        let store = prepared(server.server());
        Self::on(server, store, store_timeout).await
    }

    /// On a store of this URL, past the proxy.
    pub(crate) async fn on(server: Owned, store: String, store_timeout: Duration) -> Self {
        Self::of(Held::Own(server), store, store_timeout).await
    }

    /// On a server that is not the test's own.
    pub(crate) async fn shared(engine: Engine, store_timeout: Duration) -> Self {
        let server = engine.shared();
        Self::of(Held::Shared(server), server.fresh_store(), store_timeout).await
    }

    async fn of(server: Held, store: String, store_timeout: Duration) -> Self {
        let port = server.server().port();
        let wire = Wire::to(port).unwrap();
        let ledger = Ledger::open().await;
        let by_wire = store.replace(&format!("127.0.0.1:{port}"), &wire.address().to_string());
        let gateway = Gateway::start(&ledger, &by_wire, store_timeout).await;
        Self { gateway, wire, ledger, store, server }
    }

    pub(crate) fn server(&self) -> Server<'_> {
        self.server.server()
    }

    /// The store's URL, past the proxy.
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// For what only PostgreSQL can do.
    pub(crate) fn postgres(&self) -> &postgres::Server {
        let Server::Postgres(server) = self.server() else { panic!("this test is PostgreSQL's") };
        server
    }

    /// How many records with this key are in this state, as the server says.
    pub(crate) fn stored(&self, key: &str, state: &str) -> usize {
        self.server().records(&self.store, key, state)
    }
}

impl Held {
    fn server(&self) -> Server<'_> {
        match self {
            Self::Own(server) => server.server(),
            Self::Shared(server) => *server,
        }
    }
}

pub(crate) fn started(engine: Engine) -> Owned {
    engine.start().unwrap_or_else(|reason| panic!("no {}: {reason}", engine.name()))
}

/// A store for a user that is nobody special, by its URL. A superuser could use connections that are kept for emergencies, and write
/// where it is read-only.
pub(crate) fn prepared(server: Server<'_>) -> String {
    match server {
        Server::Postgres(server) => {
            server.sql(
                "CREATE ROLE gateway LOGIN PASSWORD 'gateway'; CREATE SCHEMA gateway AUTHORIZATION gateway",
            );
            format!("{}?schema=gateway", server.url_of("gateway:gateway", "postgres"))
        }
        Server::Mysql(server) => {
            server.sql("", "CREATE DATABASE gateway");
            server.sql("", "CREATE USER gateway IDENTIFIED BY 'gateway'");
            server.sql("", "GRANT ALL ON gateway.* TO gateway");
            server.url_of("gateway:gateway", "gateway")
        }
        // A user would be gone with a restart: Redis keeps users only in a file.
        Server::Redis(server) => format!("{}?prefix=gateway", server.url()),
        Server::Dynamodb(server) => server.made_table(),
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

/// Makes tests of cases: of each, one on every server.
macro_rules! on_every_server {
    // What DynamoDB's emulator cannot do is left out by name.
    ({ $($case:ident,)* }, and not on DynamoDB: { $($other:ident,)* }) => {
        crate::world::on_sql_and_redis!({ $($case,)* $($other,)* });
        #[cfg(feature = "dynamodb")]
        crate::world::cases!(on_dynamodb Dynamodb { $($case,)* });
    };
}

macro_rules! on_sql_and_redis {
    ($cases:tt) => {
        crate::world::cases!(on_postgres Postgres $cases);
        #[cfg(feature = "mysql")]
        crate::world::cases!(on_mysql Mysql $cases);
        #[cfg(feature = "redis")]
        crate::world::cases!(on_redis Redis $cases);
    };
}

macro_rules! cases {
    ($module:ident $engine:ident { $($name:ident,)* }) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name(onlyonce_testkit::engines::server::Engine::$engine).await;
                }
            )*
        }
    };
}

pub(crate) use {cases, on_every_server, on_sql_and_redis};
