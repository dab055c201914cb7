//! The server is stopped, killed, frozen and filled: nothing that was acknowledged is lost, and nothing hangs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onlyonce_core::record::{Effects, Revision};
use onlyonce_core::time::When;
use onlyonce_store::redis::{Options, Redis};
use onlyonce_store::{Change, ErrorKind, Query, Store, Swapped};
use onlyonce_testkit::engines::redis::{Owned, Server};

use crate::sqlite::world::{HOUR, completed, draft, id, insert, put, running};

/// How long anything may take before the test is over: a bound, never a pause.
const PATIENCE: Duration = Duration::from_secs(60);

async fn opened(server: &Server) -> Arc<Redis> {
    let options = Options { request_timeout: Duration::from_secs(1), ..Options::default() };
    let store = Redis::open(&format!("{}?connect_timeout=1", server.url()), options).await.unwrap();
    store.prepare().await.unwrap();
    Arc::new(store)
}

pub(super) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let over = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < over, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// X05: killed again and again while many write; each record that was acknowledged is there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_killed_server() {
    const ROUNDS: usize = 5;
    const WRITERS: usize = 16;
    let server = Arc::new(Server::start(&[]).unwrap());
    let store = opened(&server).await;
    let mut kept = Vec::new();
    for round in 0..ROUNDS {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::spawn(write(store.clone(), format!("{round} {writer}"))))
            .collect();
        until("something was written", async || {
            store.scan(Query::all(50)).await.is_ok_and(|page| page.records.len() > 40)
        })
        .await;
        kill(&server).await;
        for writer in writers {
            let acknowledged = writer.await.unwrap();
            assert!(!acknowledged.is_empty(), "a writer that was told nothing proves nothing");
            kept.extend(acknowledged);
        }
        let again = server.clone();
        tokio::task::spawn_blocking(move || again.start_again()).await.unwrap();
        for key in &kept {
            until("it answers", async || store.load(id(key)).await.is_ok()).await;
            assert!(store.load(id(key)).await.unwrap().is_some(), "{key} was acknowledged, and is lost");
        }
    }
}

async fn kill(server: &Arc<Owned>) {
    let server = server.clone();
    tokio::task::spawn_blocking(move || server.kill()).await.unwrap();
}

/// Writes until the server is gone, and gives the keys that were acknowledged.
pub(super) async fn write(store: Arc<Redis>, name: String) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        let key = format!("{name} {number}");
        let draft = draft(&key, Effects::Opaque, completed(When::AfterWrite(HOUR)));
        match insert(&*store, draft, 1).await {
            Ok(_) => acknowledged.push(key),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                break;
            }
        }
    }
    acknowledged
}

/// X01: what is away is `Unavailable`, and is used again when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_stopped_is_used_again() {
    let server = Server::start(&[]).unwrap();
    let store = opened(&server).await;
    put(&*store, "before").await;
    server.stop();
    for _ in 0..3 {
        let error = store.load(id("before")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("check that it runs"), "{error}");
    }
    let late = || draft("late", Effects::Opaque, running());
    // The connection for writes finds out at its first use; after that nothing is sent.
    insert(&*store, late(), 1).await.unwrap_err();
    let error = insert(&*store, late(), 1).await.unwrap_err();
    assert!(error.wrote_nothing(), "it was never sent: {error}");
    server.start_again();
    assert!(store.load(id("before")).await.unwrap().is_some());
    assert!(store.load(id("late")).await.unwrap().is_none());
    insert(&*store, late(), 1).await.unwrap();
}

/// X01: what does not answer is given up in time, and a write is then in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_is_given_up_in_time() {
    let server = Server::start(&[]).unwrap();
    let store = opened(&server).await;
    put(&*store, "before").await;
    server.freeze();
    let began = Instant::now();
    let error = store.load(id("before")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no answer within 1000 ms"), "{error}");
    let error = insert(&*store, draft("k", Effects::Opaque, running()), 7).await.unwrap_err();
    assert!(!error.wrote_nothing(), "it may still be executed: {error}");
    // Connecting is given up as well, also by many who wait at once.
    let looks: Vec<_> = (0..50)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.load(id("before")).await })
        })
        .collect();
    for look in looks {
        assert_eq!(look.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    server.thaw();
    until("it answers", async || store.load(id("before")).await.is_ok()).await;
    // What was in doubt was executed, and is recognised by its revision.
    let again = Change::new(None, Revision(7), draft("k", Effects::Opaque, running()).1);
    let swapped = store.swap(id("k"), again).await.unwrap();
    assert!(matches!(&swapped, Swapped::Lost(Some(seen)) if seen.revision == Revision(7)), "{swapped:?}");
}

/// X01: a full memory refuses reservations, and lets what was reserved complete.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_memory_refuses_what_is_new_and_completes_what_was_reserved() {
    let server = Server::start(&[]).unwrap();
    let store = opened(&server).await;
    for key in ["reserved", "soon"] {
        insert(&*store, draft(key, Effects::Opaque, running()), 1).await.unwrap();
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = insert(&*store, draft("new", Effects::Opaque, running()), 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.wrote_nothing() && error.to_string().contains("raise maxmemory"), "{error}");
    for (key, expires_at) in [("reserved", When::AfterWrite(24 * HOUR)), ("soon", When::WRITE)] {
        let done = draft(key, Effects::Opaque, completed(expires_at)).1;
        let swapped = store.swap(id(key), Change::new(Some(Revision(1)), Revision(2), done)).await.unwrap();
        assert!(matches!(swapped, Swapped::Applied(_)), "{swapped:?}");
    }
    assert_eq!(
        store.reap(10).await.unwrap(),
        1,
        "what completed is listed, and expired records can be deleted"
    );
    assert!(store.load(id("new")).await.unwrap().is_none());
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    insert(&*store, draft("new", Effects::Opaque, running()), 1).await.unwrap();
}

/// X01: scripts are not replicated, and can be flushed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_lost_the_scripts_is_given_them_again() {
    let server = Server::start(&[]).unwrap();
    let store = opened(&server).await;
    let seen = insert(&*store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    server.command(&["SCRIPT", "FLUSH"]);
    let done = draft("k", Effects::Opaque, completed(When::AfterWrite(HOUR))).1;
    let swapped = store.swap(id("k"), Change::new(Some(seen.revision), Revision(2), done)).await.unwrap();
    assert!(matches!(swapped, Swapped::Applied(_)), "{swapped:?}");
}
