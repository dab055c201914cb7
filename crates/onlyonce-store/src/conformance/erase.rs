//! Erasing a scope: its expired records and what was kept of them go, and the log no longer says who it was.

use onlyonce_core::record::{Id, State};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::When;

use super::world::{
    HOUR, Shared, applied, before, change, completed, draft_in, insert, load, look, now, pending, retryable,
    running, scope, swap, unknown,
};
use crate::audit::{Entry, Query};

/// More than any case stores.
const ALL: usize = 1_000;
const LATER: When = When::AfterWrite(HOUR);

async fn erase(store: &Shared, number: u8, limit: usize) -> usize {
    store.erase([number; 32], limit).await.expect("the store answers an erasure")
}

async fn expired(store: &Shared, number: u8, keys: &[&str]) -> Vec<Id> {
    let hour_ago = When::At(before(now(store).await, HOUR));
    let mut ids = Vec::new();
    for (key, state) in keys.iter().zip([completed(hour_ago), retryable(hour_ago)].into_iter().cycle()) {
        let draft = draft_in(scope(number), key, state);
        ids.push(draft.0);
        insert(store, draft).await;
    }
    ids
}

/// S06
pub async fn an_erased_scope_leaves_no_expired_record(store: Shared) {
    let mine = expired(&store, 1, &["a", "b", "c"]).await;
    let others = expired(&store, 2, &["a", "b"]).await;
    assert_eq!(erase(&store, 1, ALL).await, 3);
    for id in mine {
        assert_eq!(load(&store, id).await, None);
    }
    for id in others {
        look(&store, id).await;
    }
    assert_eq!(erase(&store, 1, ALL).await, 0);
    assert_eq!(erase(&store, 3, ALL).await, 0, "a scope of which there is nothing");
}

/// S06: what is still promised to somebody is not deleted.
pub async fn erasing_leaves_what_has_not_expired(store: Shared) {
    let states: [State<When>; 5] =
        [pending(LATER), running(LATER), completed(LATER), retryable(LATER), unknown(None)];
    let mut ids = Vec::new();
    for (number, state) in states.into_iter().enumerate() {
        let draft = draft_in(scope(1), &number.to_string(), state);
        ids.push(draft.0);
        insert(&store, draft).await;
    }
    assert_eq!(erase(&store, 1, ALL).await, 0);
    for id in ids {
        look(&store, id).await;
    }
}

/// S06
pub async fn erasing_deletes_no_more_than_the_limit(store: Shared) {
    expired(&store, 1, &["a", "b", "c", "d", "e", "f", "g"]).await;
    assert_eq!(erase(&store, 1, 0).await, 0);
    assert_eq!(erase(&store, 1, 3).await, 3);
    assert_eq!(erase(&store, 1, 3).await, 3);
    assert_eq!(erase(&store, 1, 3).await, 1);
    assert_eq!(erase(&store, 1, 3).await, 0);
}

/// S06: also what the reaper has put aside; and erasing puts nothing aside itself. Others' is kept.
pub async fn erasing_reaches_the_archive(store: Shared) {
    let mine = expired(&store, 1, &["a", "b"]).await;
    let others = expired(&store, 2, &["a"]).await;
    store.reap(ALL).await.expect("an answer");
    expired(&store, 1, &["a"]).await;
    let archived = async |id| store.archived(id, ALL).await.expect("an answer").unwrap_or_default();
    let before = archived(others[0]).await;
    while erase(&store, 1, 2).await > 0 {}
    for id in mine {
        assert_eq!(archived(id).await, []);
    }
    assert_eq!(archived(others[0]).await, before);
}

/// S06: that something was done, by whom and when, stays.
pub async fn erasing_takes_keys_and_labels_out_of_the_log(store: Shared) {
    let entry = |id: &str, number: u8| Entry {
        id: id.into(),
        who: "ann".into(),
        action: "forget".into(),
        scope: Some([number; 32]),
        scope_label: Some("acme".into()),
        key: Some("order-7".into()),
        record: Some(Id([number; 32])),
        reason: Some("a request of the customer".into()),
        ..Entry::default()
    };
    let labelled = Scope::stored([1; 32], Some("acme".into()));
    let (id, next) = draft_in(labelled, "order-7", completed(When::WRITE));
    applied(swap(&store, id, change(None, next).with_audit(Some(entry("with", 1)))).await);
    store.audit().write(entry("alone", 1)).await.expect("an answer");
    store.audit().write(entry("other", 2)).await.expect("an answer");
    store.audit().write(Entry { scope: None, ..entry("none", 1) }).await.expect("an answer");
    let log = async || {
        let page = store.audit().list(Query { limit: ALL, ..Query::default() }).await.expect("an answer");
        let mut entries: Vec<Entry> = page.entries.into_iter().map(|written| written.entry).collect();
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        entries
    };
    let before = log().await;
    assert_eq!(erase(&store, 1, 1).await, 1);
    assert_eq!(log().await, before, "there may be more of the scope");
    assert_eq!(erase(&store, 1, 1).await, 0);
    let blank = |id: &str| Entry { scope_label: None, key: None, ..entry(id, 1) };
    let other = Entry { scope: None, ..entry("none", 1) };
    assert_eq!(log().await, [blank("alone"), other, entry("other", 2), blank("with")]);
}
