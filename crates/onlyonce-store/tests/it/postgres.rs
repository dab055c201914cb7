//! Tests of PostgreSQL alone. What all engines share is in the conformance suite.

mod audit;
mod batches;
mod due;
mod expired;
mod listing;
mod lone;
mod looks;
mod migrations;
mod outbox;
mod pipeline;
mod refusals;
mod roles;
mod rows;
mod standby;
mod tls;
mod transaction;
mod user;
mod write_first;

use std::time::Duration;

use onlyonce_store::Expired;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_testkit::engines::postgres::Server;

/// E02, E07
mod default {
    use super::fresh;

    onlyonce_store::conformance!(async { fresh(super::Options::default()).await });
}

/// E02, T05
mod archive {
    use super::{Expired, Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { expired: Expired::Keep, ..Options::default() }).await
    });
}

/// E02: one connection, and rows that are waited for as good as not at all: nothing relies on being roomy.
mod cramped {
    use super::{Duration, Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { connections: 1, lock_wait: Duration::from_millis(500), ..Options::default() }).await
    });
}

/// E02, L05
mod encrypted {
    use super::{Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { keyring: Some(crate::sealed::keyring(&[1, 2])), ..Options::default() }).await
    });
}

async fn fresh(options: Options) -> Postgres {
    Postgres::open(&Server::shared().fresh_schema(), options).await.unwrap()
}
