//! Tests of Redis alone. What all engines share is in the conformance suite.

mod cluster;
mod lists;
mod outages;
mod refusals;
mod replicas;
mod tls;

use onlyonce_store::redis::{Options, Redis};
use onlyonce_testkit::engines::redis::Server;

/// E07
mod default {
    use super::fresh;

    onlyonce_store::conformance!(async { fresh(super::Options::default()).await });
}

/// L05
mod encrypted {
    use super::{Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { keyring: Some(crate::sealed::keyring(&[1, 2])), ..Options::default() }).await
    });
}

async fn fresh(options: Options) -> Redis {
    Redis::open(&Server::shared().fresh_prefix(), options).await.unwrap()
}
