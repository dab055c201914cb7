//! Tests of SQLite alone. What all engines share is in the conformance suite.

mod failed_sync;
pub(crate) mod folder;
mod full;
mod guest;
mod kill;
mod load;
mod owner;
mod refusals;
mod reopen;
mod tools;
pub(crate) mod world;

use onlyonce_store::sqlite::{Expired, Options, Sqlite};

use self::folder::Folder;

/// E01, E07
mod default {
    use super::fresh;

    onlyonce_store::conformance!(async { fresh(super::Options::default()).await });
}

/// E01, T05
mod archive {
    use super::{Expired, Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { expired: Expired::Keep, ..Options::default() }).await
    });
}

/// E01: one reader, hardly any cache, small pages: nothing relies on being roomy.
mod cramped {
    use super::{Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { readers: 1, cache_bytes: 0, page_bytes: 512, ..Options::default() }).await
    });
}

/// E01, L05
mod encrypted {
    use super::{Options, fresh};

    onlyonce_store::conformance!(async {
        fresh(Options { keyring: Some(crate::sealed::keyring(&[1, 2])), ..Options::default() }).await
    });
}

async fn fresh(options: Options) -> folder::Kept {
    let folder = Folder::new();
    let store = Sqlite::open(folder.file(), options).await.unwrap();
    folder.keep_with(store)
}
