//! The grants in docs/engines.md are sufficient and necessary.

use std::time::Duration;

use onlyonce_core::record::{Effects, Revision, StateSet, Token};
use onlyonce_core::time::When;
use onlyonce_store::audit::{self, Entry};
use onlyonce_store::outbox::{self, Failed, Settled};
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Count, ErrorKind, Expired, Outbox, Query, Search, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;

use crate::sqlite::world::{completed, draft, message, put, wanted};

const PAGE: &str = include_str!("../../../../../docs/engines.md");

/// The statements on the page between these words and the end of their block.
fn documented(after: &str, owner: &str, user: &str) -> String {
    let (_, rest) = PAGE.split_once(after).expect("the page has the block");
    let (_, rest) = rest.split_once("```sql\n").expect("a block of SQL follows");
    let (block, _) = rest.split_once("```").expect("the block ends");
    block
        .replace("onlyonce_owner", owner)
        .replace("onlyonce_user", user)
        .replace(" onlyonce;", &format!(" {owner};"))
        .replace("SCHEMA onlyonce ", &format!("SCHEMA {owner} "))
        .replace("onlyonce.", &format!("{owner}."))
        .replace("'…'", "'s3cret'")
}

async fn open(login: &str, schema: &str) -> Postgres {
    let url = Server::shared().url_of(&format!("{login}:s3cret"), "postgres");
    let options = Options { expired: Expired::Keep, ..Options::default() };
    Postgres::open(&format!("{url}?schema={schema}"), options).await.unwrap()
}

/// S04, E02
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_migrates_and_the_user_only_reads_and_writes() {
    let server = Server::shared();
    let owner = server.fresh_name();
    let user = format!("{owner}_user");
    server.sql(&documented("before the first start", &owner, &user));
    let nodes = open(&user, &owner).await;
    let error = nodes.prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let told = format!("lacks migration \"0001-first\", and role \"{user}\" may not apply it");
    assert!(error.to_string().contains(&told), "{error}");

    open(&owner, &owner).await.prepare().await.unwrap();
    let error = nodes.prepare().await.unwrap_err();
    assert!(error.to_string().contains(&format!("grant role \"{user}\"")), "{error}");
    server.sql(&documented("after the migrations", &owner, &user));
    nodes.prepare().await.unwrap();
    everything_works(&nodes).await;
    for forbidden in [
        "CREATE TABLE x ()",
        "DROP TABLE onlyonce_record",
        "DELETE FROM onlyonce_migration",
        "DELETE FROM onlyonce_store",
        "UPDATE onlyonce_archive SET key = 'x'",
        "UPDATE onlyonce_audit SET who = 'x'",
    ] {
        let sql = format!("SET ROLE {user}; SET search_path = {owner}; {forbidden}");
        let denied = std::panic::catch_unwind(|| server.sql(&sql));
        assert!(denied.is_err(), "{forbidden} must be denied");
    }
}

async fn everything_works(store: &Postgres) {
    let seen = put(store, "k").await;
    let (id, next) = draft("k", Effects::Opaque, completed(When::WRITE));
    let entry =
        |id: &str| Entry { id: id.into(), scope: Some([1; 32]), key: Some("k".into()), ..Entry::default() };
    let change = Change::new(Some(seen.revision), Revision(9), next).with_messages(vec![message("m")]);
    let change = change.with_audit(Some(entry("e1")));
    assert!(matches!(store.swap(id, change).await.unwrap(), Swapped::Applied(_)));
    assert_eq!(store.load(id).await.unwrap().unwrap().revision, Revision(9));
    let due = Query::due(StateSet::ALL, 10);
    assert_eq!(store.scan(due).await.unwrap().records.len(), 1);
    assert_eq!(store.scan(Query::unknown_since(10)).await.unwrap().records.len(), 0);
    assert_eq!(store.reap(10).await.unwrap(), 1);
    assert_eq!(store.archived(id, 10).await.unwrap().unwrap().len(), 1);
    store.audit().write(entry("e2")).await.unwrap();
    put(store, "again").await;
    let search = Query { search: Some(Search::new("again")), ..Query::all(10) };
    assert_eq!(store.scan(search).await.unwrap().records.len(), 1);
    let (id, next) = draft("again", Effects::Opaque, completed(When::WRITE));
    let expired = Change::new(Some(Revision(1)), Revision(2), next);
    assert!(matches!(store.swap(id, expired).await.unwrap(), Swapped::Applied(_)));
    assert_eq!(store.erase([1; 32], 10).await.unwrap(), 2, "a record, and one in the archive");
    let log = store.audit().list(audit::Query { limit: 9, ..audit::Query::default() }).await.unwrap().entries;
    assert_eq!(log.iter().map(|written| &written.entry.key).collect::<Vec<_>>(), [&None, &None]);
    assert_eq!(store.audit().prune(Duration::ZERO, 9).await.unwrap(), 2);
    let token = Token([1; 16]);
    let claimed = store.claim(token, &[wanted(Duration::from_secs(9))]).await.unwrap().claimed.remove(0);
    let failed = Failed { status: None, error: "gone".into() };
    assert!(store.settle(&claimed, Settled::Dead { failed }).await.unwrap());
    let dead = outbox::Query { state: Some(outbox::State::Dead), limit: 9, ..<_>::default() };
    assert_eq!(Outbox::list(store, dead).await.unwrap().items.len(), 1);
    assert_eq!(store.redrive(claimed.number, entry("e3")).await.unwrap(), outbox::Changed::Applied);
    assert_eq!(store.discard(claimed.number, entry("e4")).await.unwrap(), outbox::Changed::Applied);
    store.pass_dead("billing").await.unwrap();
    assert_eq!(Outbox::prune(store, Duration::ZERO, 9).await.unwrap(), 0);
    assert_eq!(store.census().await.unwrap().oldest, None);
    let before = store.epoch().await.unwrap();
    store.raise_epoch().await.unwrap();
    assert!(store.epoch().await.unwrap().epoch > before.epoch);
    assert!(store.count().await.unwrap().iter().all(|(_, count)| *count == Count::Exact(0)));
    assert_eq!(store.examine().await.unwrap(), []);
}
