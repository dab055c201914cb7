//! A server with a synchronous standby that takes over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onlyonce_core::record::Effects;
use onlyonce_core::time::When;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{ErrorKind, Store};
use onlyonce_testkit::engines::postgres::{Owned, Server};

use crate::sqlite::world::{HOUR, completed, draft, id, insert, put};

/// How long anything may take before the test is over: a bound, never a pause.
const PATIENCE: Duration = Duration::from_secs(60);

fn servers() -> (Owned, Owned) {
    let primary = Server::start(&[]).unwrap();
    let standby = primary.start_standby().unwrap();
    (primary, standby)
}

async fn opened(url: &str) -> Arc<Postgres> {
    let options = Options { statement_timeout: Duration::from_secs(1), ..Options::default() };
    let store = Postgres::open(url, options).await.unwrap();
    store.prepare().await.unwrap();
    Arc::new(store)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let over = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < over, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// X05: an operator ends the wait for the standby. The server commits, alone, and says so in a warning.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_the_standby_did_not_confirm_is_in_doubt_and_not_shown() {
    const WAITS: &str = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let (primary, standby) = servers();
    let store = opened(&primary.url("postgres")).await;
    put(&*store, "before").await;
    standby.freeze();
    let writing = tokio::spawn({
        let store = store.clone();
        let draft = draft("k", Effects::Opaque, completed(When::AfterWrite(HOUR)));
        async move { insert(&*store, draft, 1).await }
    });
    until("the commit waits", async || primary.sql(&format!("SELECT count(*) {WAITS}")) == "1").await;
    primary.sql(&format!("SELECT pg_cancel_backend(pid) {WAITS}"));
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the standby did not confirm the commit"), "{error}");
    assert!(!error.wrote_nothing(), "it is not known");
    let rows = "SELECT count(*) FROM onlyonce_record WHERE key = 'k'";
    assert_eq!(primary.sql(rows), "1", "it stands on the primary, for everybody to see");
    // Also to none of many who look at once, whose looks would otherwise go together.
    let look = |store: Arc<Postgres>| tokio::spawn(async move { store.load(id("k")).await });
    for look in [(); 20].map(|()| look(store.clone())) {
        let shown = look.await.unwrap();
        assert!(shown.is_err(), "the standby does not have it: {shown:?}");
    }
    standby.thaw();
    until("it is confirmed, and shown", async || matches!(store.load(id("k")).await, Ok(Some(_)))).await;
    assert_eq!(standby.sql(rows), "1");
}

/// X05: the server's time-out for statements does not end that wait; ours does, and the commit is confirmed later.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_for_the_standby_is_given_up_here_and_goes_on_there() {
    let (primary, standby) = servers();
    let store = opened(&primary.url("postgres")).await;
    put(&*store, "before").await;
    standby.freeze();
    let began = Instant::now();
    let draft = draft("k", Effects::Opaque, completed(When::AfterWrite(HOUR)));
    let error = insert(&*store, draft, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.wrote_nothing(), "{error}");
    assert!(began.elapsed() > Duration::from_secs(1), "the server had time to end it, and did not");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    assert_eq!(primary.sql(waiting), "1", "it goes on there");
    standby.thaw();
    until("it is confirmed, and shown", async || matches!(store.load(id("k")).await, Ok(Some(_)))).await;
}

/// X01: of several hosts the one that takes writes is found, also where the first stands still and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_hosts_the_one_that_takes_writes_is_used() {
    let (primary, standby) = servers();
    let both = format!("127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
    let store = opened(&format!("postgres://postgres@{both}/postgres")).await;
    put(&*store, "before").await;
    primary.freeze();
    standby.promote();
    until("the other one is found", async || matches!(store.load(id("before")).await, Ok(Some(_)))).await;
    // The connections for writes are to the old one, and find out by themselves.
    let after = || draft("after", Effects::Opaque, completed(When::AfterWrite(HOUR)));
    until("it takes writes", async || insert(&*store, after(), 1).await.is_ok()).await;
    assert_eq!(standby.sql("SELECT count(*) FROM onlyonce_record WHERE key = 'after'"), "1");
}
