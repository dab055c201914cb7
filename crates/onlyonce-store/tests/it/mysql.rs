//! Tests of MySQL alone, on MariaDB. What all engines share is in the conformance suite.

mod batches;
mod faults;
mod galera;
mod migrations;
mod refusals;
mod tls;
mod user;
mod write_first;

use onlyonce_store::Expired;
use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_testkit::engines::mariadb::Server;

/// E03, E07
mod default {
    use super::fresh;

    onlyonce_store::conformance!(async { fresh(super::Options::default()).await });
}

/// E03, T05
mod archive {
    use super::{Expired, Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { expired: Expired::Keep, ..Options::default() }).await
    });
}

/// E03: one connection: nothing relies on being roomy.
mod cramped {
    use super::{Options, fresh};

    onlyonce_store::conformance!(async { fresh(Options { connections: 1, ..Options::default() }).await });
}

/// E03, L05
mod encrypted {
    use super::{Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { keyring: Some(crate::sealed::keyring(&[1, 2])), ..Options::default() }).await
    });
}

async fn fresh(options: Options) -> Mysql {
    Mysql::open(&fresh_url(), options).await.unwrap()
}

fn fresh_url() -> String {
    let server = Server::shared();
    server.url(&server.fresh_database())
}
