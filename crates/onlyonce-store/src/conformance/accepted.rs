//! Requests of accepted work: written with their record or not at all, and gone with the write that ends the work.

use bytes::Bytes;
use onlyonce_core::record::{Id, Seen};
use onlyonce_core::time::When;

use super::world::{
    HOUR, Shared, applied, change, completed, draft, insert, load, lost, mint, pending, retryable, running,
    swap,
};
use crate::accepted::Request;

const ALL: usize = 1_000;
const LATER: When = When::AfterWrite(HOUR);

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

async fn request(store: &Shared, id: Id, seen: &Seen) -> Option<Bytes> {
    store.request(id, seen.record.created_at).await.expect("the store answers a question for a request")
}

async fn count(store: &Shared, limit: usize) -> usize {
    store.requests(limit).await.expect("the store counts requests")
}

/// Accepts work with this request.
async fn accept(store: &Shared, key: &str, body: Bytes) -> (Id, Seen) {
    let (id, first) = draft(key, pending(LATER));
    let change = change(None, first).with_request(Request::Put(body));
    (id, applied(swap(store, id, change).await))
}

/// W07
pub async fn a_request_is_stored_with_its_record(store: Shared) {
    assert_eq!(count(&store, ALL).await, 0);
    let all: Bytes = (0..=u8::MAX).cycle().take(100_000).collect::<Vec<_>>().into();
    let (id, seen) = accept(&store, "k", all.clone()).await;
    assert_eq!(request(&store, id, &seen).await, Some(all.clone()), "byte for byte");
    let (other, first) = draft("other", pending(LATER));
    let other_seen = insert(&store, (other, first)).await;
    assert_eq!(request(&store, other, &other_seen).await, None, "another key's");
    let mut next = seen.record.draft();
    next.state = running(LATER);
    let seen = applied(swap(&store, id, change(Some(seen.revision), next)).await);
    assert_eq!(request(&store, id, &seen).await, Some(all), "kept while it runs");
    accept(&store, "third", bytes("x")).await;
    assert_eq!((count(&store, ALL).await, count(&store, 1).await), (2, 1));
}

/// W07
pub async fn a_request_goes_with_the_write_that_ends_the_work(store: Shared) {
    let (id, seen) = accept(&store, "k", bytes("a")).await;
    let mut done = seen.record.draft();
    done.state = completed(LATER);
    let done = change(Some(seen.revision), done).with_request(Request::Drop);
    let done = applied(swap(&store, id, done).await);
    assert_eq!(request(&store, id, &done).await, None);
    assert_eq!(count(&store, ALL).await, 0);
}

/// W07: what is told that it was not accepted left nothing behind.
pub async fn a_request_of_a_lost_swap_is_not_stored(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let seen = insert(&store, (id, first)).await;
    let put = change(Some(mint()), seen.record.draft()).with_request(Request::Put(bytes("a")));
    lost(swap(&store, id, put).await);
    assert_eq!(request(&store, id, &seen).await, None);
    let (id, seen) = accept(&store, "other", bytes("a")).await;
    let dropped = change(Some(mint()), seen.record.draft()).with_request(Request::Drop);
    lost(swap(&store, id, dropped).await);
    assert_eq!(request(&store, id, &seen).await, Some(bytes("a")));
}

/// W07: no use of a key is run with the request of another.
pub async fn a_request_belongs_to_one_use_of_a_key(store: Shared) {
    let (id, used) = accept(&store, "k", bytes("a")).await;
    let (_, mut next) = draft("k", pending(LATER));
    next.created_at = When::At(used.record.created_at.plus(HOUR));
    let anew = change(Some(used.revision), next).with_request(Request::Put(bytes("b")));
    let anew = applied(swap(&store, id, anew).await);
    assert_eq!(request(&store, id, &anew).await, Some(bytes("b")));
    assert_eq!(request(&store, id, &used).await, None);
    assert_eq!(count(&store, ALL).await, 1, "it is replaced, and not only hidden");
}

/// W07, M02: a request goes with its record, reaped or erased.
pub async fn a_request_goes_with_its_record(store: Shared) {
    for is_erased in [false, true] {
        let (id, seen) = accept(&store, "k", bytes("a")).await;
        let mut given_up = seen.record.draft();
        given_up.state = retryable(When::WRITE);
        applied(swap(&store, id, change(Some(seen.revision), given_up)).await);
        assert_eq!(count(&store, ALL).await, 1);
        let deleted = if is_erased { store.erase([1; 32], ALL).await } else { store.reap(ALL).await };
        assert!(deleted.expect("the store deletes") >= 1);
        assert_eq!((load(&store, id).await, count(&store, ALL).await), (None, 0));
    }
}
