//! Tests of DynamoDB alone. What all engines share is in the conformance suite.

mod cost;
#[cfg(all(feature = "failpoints", unix))]
mod death;
mod faults;
mod large;
mod left;
mod refusals;
mod ttl;

use onlyonce_store::dynamodb::{DynamoDb, Options};
use onlyonce_testkit::engines::dynamodb::Server;

/// E05, E07: with `reap=index`, so that what is deleted can be seen. DynamoDB does not count its records without reading them.
mod default {
    use super::{few_shards, fresh};

    onlyonce_store::conformance!(async { fresh(few_shards()).await }, without: [
        scan::records_are_counted_by_their_state,
    ]);
}

/// L05
mod encrypted {
    use super::{Options, few_shards, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { keyring: Some(crate::sealed::keyring(&[1, 2])), ..few_shards() }).await
    }, without: [
        scan::records_are_counted_by_their_state,
    ]);
}

/// The emulator is slow, and an index in sixteen parts is sixteen calls for it. Other tests here have them.
fn few_shards() -> Options {
    Options { shards: 2, ..Options::default() }
}

/// A table of its own.
async fn fresh(options: Options) -> DynamoDb {
    created(&Server::shared().fresh_table(), options).await
}

async fn created(url: &str, options: Options) -> DynamoDb {
    let store = DynamoDb::open(url, options).await.unwrap();
    store.create().await.unwrap();
    store
}
