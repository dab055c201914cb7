//! What becomes of expired records.

use onlyonce_core::record::Effects;
use onlyonce_core::time::When;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Expired, Store};
use onlyonce_testkit::engines::postgres::Server;

use crate::sqlite::world::{completed, draft, id, insert};

/// T05: out of replay's reach, its key free, and there for audit where it is to be kept.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_record_goes_or_moves_to_the_archive_and_its_key_is_free() {
    for expired in [Expired::Delete, Expired::Keep] {
        let url = Server::shared().fresh_schema();
        let open = async || Postgres::open(&url, Options { expired, ..Options::default() }).await.unwrap();
        let store = open().await;
        store.prepare().await.unwrap();
        let mut written = Vec::new();
        for revision in 1..=2 {
            let used = draft("k", Effects::Opaque, completed(When::WRITE));
            written.insert(0, insert(&store, used, revision).await.unwrap().record);
            assert_eq!(store.reap(9).await.unwrap(), 1);
            assert_eq!(store.load(id("k")).await.unwrap(), None);
        }
        drop(store);
        let store = open().await;
        let archived = store.archived(id("k"), 9).await.unwrap().unwrap();
        let kept = if expired == Expired::Keep { written } else { Vec::new() };
        assert_eq!(
            archived.iter().collect::<Vec<_>>(),
            kept.iter().map(|record| &**record).collect::<Vec<_>>()
        );
        assert_eq!(store.archived(id("other"), 9).await.unwrap(), Some(Vec::new()));
    }
}
