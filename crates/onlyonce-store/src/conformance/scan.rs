//! Listings: all, what is due, and what is unknown.

use std::collections::BTreeSet;
use std::time::Duration;

use onlyonce_core::record::{Id, State, StateName, StateSet};
use onlyonce_core::time::{Timestamp, When};

use super::world::{
    HOUR, MOMENT, Shared, before, completed, draft, draft_in, due, everything, ids, insert, list, look, now,
    of_state, pending, retryable, running, scope, unknown, wait_until, write,
};
use crate::{Count, Cursor, ErrorKind, Order, Page, Query, Search};

const LATER: When = When::AfterWrite(HOUR);

fn one_of_each(moment: When) -> [State<When>; 5] {
    [pending(moment), running(moment), completed(moment), retryable(moment), unknown(Some(moment))]
}

/// M01
pub async fn a_listing_by_state_shows_that_state_only(store: Shared) {
    for copy in 0..3 {
        for (number, state) in one_of_each(LATER).into_iter().enumerate() {
            insert(&store, draft(&format!("{copy} {number}"), state)).await;
        }
    }
    for state in StateName::ALL {
        let listed = list(&store, of_state(state, 2)).await;
        assert_eq!(listed.len(), 3, "{state}");
        assert!(listed.iter().all(|(_, seen)| seen.record.state.name() == state), "{state}");
    }
    // The state column follows the record.
    let (id, seen) = list(&store, of_state(StateName::Running, 9)).await.remove(0);
    write(&store, id, &seen, draft(seen.record.key.as_str(), completed(LATER)).1).await;
    assert_eq!(list(&store, of_state(StateName::Running, 9)).await.len(), 2);
    assert_eq!(list(&store, of_state(StateName::Completed, 9)).await.len(), 4);
}

/// O02
pub async fn records_are_counted_by_their_state(store: Shared) {
    let counted = async || store.count().await.expect("the engine counts");
    let none: Vec<_> = StateName::ALL.map(|state| (state, Count::Exact(0))).into();
    assert_eq!(counted().await, none);
    for (copies, state) in one_of_each(LATER).into_iter().enumerate() {
        for copy in 0..copies {
            insert(&store, draft(&format!("{copies} {copy}"), state.clone())).await;
        }
    }
    let expected: Vec<_> = StateName::ALL.into_iter().zip((0..).map(Count::Exact)).collect();
    assert_eq!(counted().await, expected, "in the order of the states");
}

/// S01
pub async fn a_listing_by_scope_shows_that_scope_only(store: Shared) {
    for number in 0..4 {
        insert(&store, draft_in(scope(1), &number.to_string(), running(LATER))).await;
        insert(&store, draft_in(scope(2), &number.to_string(), completed(LATER))).await;
    }
    let of_scope = |digest, states| Query { scope: Some(digest), states, ..everything(3) };
    let listed = list(&store, of_scope([2; 32], StateSet::ALL)).await;
    assert_eq!(listed.len(), 4);
    assert!(listed.iter().all(|(_, seen)| *seen.record.scope.digest() == [2; 32]));
    assert!(list(&store, of_scope([3; 32], StateSet::ALL)).await.is_empty());
    assert!(list(&store, of_scope([1; 32], StateName::Completed.into())).await.is_empty());
    assert_eq!(list(&store, of_scope([1; 32], StateName::Running.into())).await.len(), 4);
}

/// E07
pub async fn pages_show_each_record_once(store: Shared) {
    let mut expected = BTreeSet::new();
    for number in 0..23 {
        let draft = draft(&number.to_string(), running(LATER));
        expected.insert(draft.0);
        insert(&store, draft).await;
    }
    let expected: Vec<Id> = expected.into_iter().collect();
    for limit in [1, 2, 7, 23, 24, 1_000] {
        let mut listed = ids(&list(&store, everything(limit)).await);
        listed.sort_unstable();
        assert_eq!(listed, expected, "pages of {limit}");
    }
}

/// M01
pub async fn what_is_due_comes_in_the_order_it_fell_due(store: Shared) {
    let expected = fall_due(&store).await;
    assert_eq!(ids(&list(&store, due(1_000)).await), expected);
    let (id, draft) = draft("soon", running(When::AfterWrite(MOMENT)));
    let seen = insert(&store, (id, draft)).await;
    let due_at = seen.record.written_at.plus(MOMENT);
    let mut listed = list(&store, due(1_000)).await;
    // On a busy machine it may have become due by now, by the store's own clock.
    listed.retain(|(listed, seen)| *listed != id || seen.now < due_at);
    assert_eq!(ids(&listed), expected);
    wait_until(&store, id, due_at).await;
    let with_soon: Vec<Id> = expected.into_iter().chain([id]).collect();
    assert_eq!(ids(&list(&store, due(1_000)).await), with_soon);
}

/// M01
pub async fn pages_of_what_is_due_show_each_record_once(store: Shared) {
    let expected = fall_due(&store).await;
    for limit in [1, 2, 7, 20, 21] {
        assert_eq!(ids(&list(&store, due(limit)).await), expected, "pages of {limit}");
    }
    let running = Query { states: StateName::Running.into(), ..due(1) };
    assert_eq!(list(&store, running).await.len(), 4);
}

/// Writes twenty due records, some with the same due time, and some that are not due. Returns the due ones in order.
async fn fall_due(store: &Shared) -> Vec<Id> {
    let now = now(store).await;
    let mut due = Vec::new();
    for number in 0..20_u64 {
        let at = before(now, HOUR + Duration::from_micros((number * 7) % 10));
        let state = one_of_each(When::At(at))[usize::try_from(number).expect("small") % 5].clone();
        let draft = draft(&number.to_string(), state);
        due.push((at, draft.0));
        insert(store, draft).await;
        insert(store, draft_in(scope(2), &number.to_string(), running(LATER))).await;
    }
    due.sort_unstable();
    due.into_iter().map(|(_, id)| id).collect()
}

/// M01
pub async fn what_is_not_due_is_not_shown(store: Shared) {
    for (number, state) in one_of_each(LATER).into_iter().chain([unknown(None)]).enumerate() {
        insert(&store, draft(&number.to_string(), state)).await;
    }
    assert!(list(&store, due(10)).await.is_empty());
}

/// M01: also if the deadline or the downstream retention comes before the lease or the expiry.
pub async fn what_is_due_follows_the_last_write(store: Shared) {
    let long_ago = When::At(Timestamp::from_micros(1));
    let (id, mut first) = draft("k", running(long_ago));
    let mut seen = insert(&store, (id, first.clone())).await;
    let mut deadline = first.clone();
    (deadline.state, deadline.began_at) = (running(LATER), long_ago);
    let mut forgotten = first.clone();
    (forgotten.state, forgotten.created_at, forgotten.relies_on_memory) = (retryable(LATER), long_ago, true);
    first.state = running(LATER);
    let never = draft("k", unknown(None)).1;
    for (next, is_due) in [(first, false), (deadline, true), (never, false), (forgotten, true)] {
        seen = write(&store, id, &seen, next).await;
        assert_eq!(list(&store, due(10)).await.len(), usize::from(is_due), "{:?}", seen.record.state);
    }
}

/// O02: records with an unknown outcome, the oldest first, in whatever order they were written.
pub async fn unknown_records_come_oldest_first(store: Shared) {
    let now = now(&store).await;
    let since = |seconds| When::At(before(now, Duration::from_secs(seconds)));
    let mut expected = Vec::new();
    for (number, seconds) in [30_u64, 10, 20, 20, 40].into_iter().enumerate() {
        let (id, mut draft) = draft(&number.to_string(), unknown(Some(LATER)));
        let State::Unknown { since: moment, .. } = &mut draft.state else { unreachable!("made unknown") };
        *moment = since(seconds);
        expected.push((before(now, Duration::from_secs(seconds)), id));
        insert(&store, (id, draft)).await;
        insert(&store, draft_in(scope(2), &number.to_string(), completed(LATER))).await;
    }
    expected.sort_unstable();
    let expected: Vec<Id> = expected.into_iter().map(|(_, id)| id).collect();
    for limit in [1, 2, 100] {
        let query = Query { scope: Some([1; 32]), ..Query::unknown_since(limit) };
        assert_eq!(ids(&list(&store, query).await), expected, "pages of {limit}");
    }
    let seen = look(&store, expected[0]).await;
    write(&store, expected[0], &seen, draft("4", completed(LATER)).1).await;
    let first = Query { scope: Some([1; 32]), ..Query::unknown_since(1) };
    assert_eq!(ids(&store.scan(first).await.expect("a page").records), expected[1..2]);
}

/// O02: what was accepted and has not begun, the oldest first, in whatever order it was written.
pub async fn pending_records_come_oldest_first(store: Shared) {
    let now = now(&store).await;
    let mut expected = Vec::new();
    for (number, seconds) in [30_u64, 10, 20, 20, 40].into_iter().enumerate() {
        let (id, mut draft) = draft(&number.to_string(), pending(LATER));
        let created_at = before(now, Duration::from_secs(seconds));
        draft.created_at = When::At(created_at);
        expected.push((created_at, id));
        insert(&store, (id, draft)).await;
        insert(&store, draft_in(scope(2), &number.to_string(), running(LATER))).await;
    }
    expected.sort_unstable();
    let expected: Vec<Id> = expected.into_iter().map(|(_, id)| id).collect();
    for limit in [1, 2, 100] {
        for scope in [None, Some([1; 32])] {
            let query = Query { scope, ..Query::pending_since(limit) };
            assert_eq!(ids(&list(&store, query).await), expected, "pages of {limit} in {scope:?}");
        }
    }
    let seen = look(&store, expected[0]).await;
    write(&store, expected[0], &seen, draft("4", running(LATER)).1).await;
    assert_eq!(ids(&store.scan(Query::pending_since(1)).await.expect("a page").records), expected[1..2]);
}

/// E07
pub async fn a_listing_by_route_shows_that_route_only(store: Shared) {
    for (number, route) in [Some("POST /a"), Some("POST /b"), None].into_iter().enumerate() {
        let (id, mut draft) = draft(&number.to_string(), running(LATER));
        draft.route = route.map(Into::into);
        insert(&store, (id, draft)).await;
    }
    for (route, count) in [("POST /a", 1), ("POST /b", 1), ("POST /c", 0)] {
        let query = Query { route: Some(route.into()), ..everything(2) };
        let listed = list(&store, query).await;
        assert_eq!(listed.len(), count, "{route}");
        assert!(listed.iter().all(|(_, seen)| seen.record.route.as_deref() == Some(route)), "{route}");
    }
}

/// O01: what an engine keeps of expired records, by pages and with every filter; what stands in the store is not among it.
pub async fn the_archive_is_listed(store: Shared) {
    let keys = ["a", "b", "c"];
    let mut expected = Vec::new();
    for key in keys {
        let (id, draft) = draft(key, completed(When::WRITE));
        expected.push(id);
        insert(&store, (id, draft)).await;
    }
    insert(&store, draft_in(scope(2), "d", completed(When::WRITE))).await;
    store.reap(100).await.expect("an answer");
    insert(&store, draft("a", completed(LATER))).await;
    let is_kept = !store.archived(expected[0], 1).await.expect("an answer").unwrap_or_default().is_empty();
    let query = Query { order: Order::Archived, scope: Some([1; 32]), ..everything(2) };
    let mut found = ids(&list(&store, query.clone()).await);
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, if is_kept { expected } else { Vec::new() });
    let one = Query { search: Some(Search::new("b")), ..query };
    assert_eq!(list(&store, one).await.len(), usize::from(is_kept));
}

/// E07: also if it cannot have been made from a cursor of this engine.
pub async fn a_cursor_of_somebody_elses_is_refused(store: Shared) {
    for order in [Order::Any, Order::Due, Order::UnknownSince, Order::PendingSince, Order::Archived] {
        let after = Some(Cursor(Box::from(&b"?"[..])));
        let error = store.scan(Query { order, after, ..everything(1) }).await.expect_err("it is no cursor");
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
    }
}

/// E07
pub async fn an_empty_store_has_one_empty_page(store: Shared) {
    for query in [everything(10), due(10), of_state(StateName::Running, 10)] {
        assert_eq!(
            store.scan(query).await.expect("an answer"),
            Page { records: Vec::new(), unreadable: Vec::new(), next: None }
        );
    }
}
