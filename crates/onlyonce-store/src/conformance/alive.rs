//! Counting what has not expired, by scope and in all.

use onlyonce_core::record::State;
use onlyonce_core::time::When;

use super::world::{
    HOUR, MOMENT, Shared, before, completed, draft_in, insert, now, pending, retryable, running, scope,
    unknown, wait_until,
};
use crate::Alive;

/// More than any case stores.
const ALL: u64 = 1_000;
const LATER: When = When::AfterWrite(HOUR);

async fn alive(store: &Shared, number: Option<u8>, limit: u64) -> Alive {
    let scope = number.map(|number| [number; 32]);
    store.count_alive(scope, limit).await.expect("the store answers a count")
}

async fn count(store: &Shared, number: Option<u8>) -> u64 {
    alive(store, number, ALL).await.count
}

async fn insert_all(store: &Shared, number: u8, states: impl IntoIterator<Item = State<When>>) {
    for (key, state) in states.into_iter().enumerate() {
        insert(store, draft_in(scope(number), &key.to_string(), state)).await;
    }
}

/// L02: with and without what makes it fast.
pub async fn records_that_have_not_expired_are_counted_by_scope_and_in_all(store: Shared) {
    assert_eq!(alive(&store, Some(1), ALL).await, Alive { count: 0, next_expiry: None });
    assert_eq!(count(&store, None).await, 0);
    let hour_ago = When::At(before(now(&store).await, HOUR));
    let of_one = [
        pending(LATER),
        running(LATER),
        completed(LATER),
        retryable(LATER),
        unknown(None),
        completed(hour_ago),
        retryable(hour_ago),
    ];
    insert_all(&store, 1, of_one).await;
    insert_all(&store, 2, [completed(hour_ago), completed(LATER)]).await;
    for is_prepared in [false, true] {
        if is_prepared {
            store.prepare_counting().await.expect("an answer");
        }
        assert_eq!(count(&store, Some(1)).await, 5, "prepared: {is_prepared}");
        assert_eq!(count(&store, Some(2)).await, 1, "prepared: {is_prepared}");
        assert_eq!(count(&store, Some(3)).await, 0, "prepared: {is_prepared}");
        // With the record that the clock was read from.
        assert_eq!(count(&store, None).await, 7, "prepared: {is_prepared}");
    }
    let next_expiry = alive(&store, Some(2), ALL).await.next_expiry;
    assert!(next_expiry.is_none_or(|left| left <= HOUR && left > HOUR / 2), "{next_expiry:?}");
}

/// L02
pub async fn records_are_counted_up_to_the_limit(store: Shared) {
    insert_all(&store, 1, (0..5).map(|_| completed(LATER))).await;
    insert_all(&store, 2, [running(LATER), running(LATER)]).await;
    for (limit, of_one, in_all) in [(0, 0, 0), (3, 3, 3), (5, 5, 5), (6, 5, 6), (8, 5, 7)] {
        assert_eq!(alive(&store, Some(1), limit).await.count, of_one);
        assert_eq!(alive(&store, None, limit).await.count, in_all);
    }
}

/// L02: by the store's own clock, before anybody has deleted it.
pub async fn a_record_that_expires_is_no_longer_counted(store: Shared) {
    store.prepare_counting().await.expect("an answer");
    insert_all(&store, 1, [completed(LATER)]).await;
    let (id, short) = draft_in(scope(1), "short", completed(When::AfterWrite(MOMENT)));
    let written = insert(&store, (id, short)).await;
    wait_until(&store, id, written.now.plus(2 * MOMENT)).await;
    assert_eq!(count(&store, Some(1)).await, 1);
    assert_eq!(count(&store, None).await, 1);
}

/// L02
pub async fn preparing_to_count_again_and_at_once_changes_nothing(store: Shared) {
    insert_all(&store, 1, [completed(LATER), running(LATER)]).await;
    let (first, second) = tokio::join!(store.prepare_counting(), store.prepare_counting());
    first.and(second).expect("an answer");
    store.prepare_counting().await.expect("an answer");
    assert_eq!(count(&store, Some(1)).await, 2);
}
