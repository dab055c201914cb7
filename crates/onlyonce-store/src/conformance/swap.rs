//! The one write operation: compare and swap.

use std::collections::HashSet;

use onlyonce_core::record::Id;
use onlyonce_core::time::When;

use super::world::{
    HOUR, Shared, applied, change, completed, draft, draft_in, drive, insert, load, look, lost, running,
    scope, swap, write,
};
use crate::Swapped;

/// How many callers compete for one record.
const CALLERS: usize = 64;
/// How many writers increment, and how often each.
const WRITERS: u32 = 8;
const COUNTS_EACH: u32 = 20;

const LATER: When = When::AfterWrite(HOUR);

/// R01
pub async fn an_absent_record_is_inserted(store: Shared) {
    let (id, draft) = draft("k", running(LATER));
    assert_eq!(load(&store, id).await, None);
    let seen = insert(&store, (id, draft.clone())).await;
    assert_eq!(*seen.record, draft.stamp(seen.record.written_at));
    let looked = look(&store, id).await;
    assert_eq!((looked.record, looked.revision), (seen.record, seen.revision));
}

/// R01, R02
pub async fn an_insert_over_an_existing_record_is_lost_and_shows_it(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let seen = insert(&store, (id, first)).await;
    let (_, second) = draft("k", completed(LATER));
    let current = lost(swap(&store, id, change(None, second)).await).expect("what is there is shown");
    assert_eq!((current.record, current.revision), (seen.record, seen.revision));
}

/// R05
pub async fn a_swap_that_expects_an_old_revision_is_lost(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let old = insert(&store, (id, first.clone())).await;
    let new = write(&store, id, &old, first.clone()).await;
    let current = lost(swap(&store, id, change(Some(old.revision), first)).await).expect("it still exists");
    assert_eq!(current.revision, new.revision);
}

/// R05
pub async fn a_swap_of_a_record_that_is_gone_is_lost(store: Shared) {
    let (id, draft) = draft("k", running(LATER));
    let change = change(Some(super::world::mint()), draft);
    assert_eq!(lost(swap(&store, id, change).await), None);
    assert_eq!(load(&store, id).await, None);
}

/// R05
pub async fn a_lost_swap_changes_nothing(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let old = insert(&store, (id, first.clone())).await;
    let seen = write(&store, id, &old, first).await;
    let (_, other) = draft("k", completed(LATER));
    lost(swap(&store, id, change(Some(old.revision), other.clone())).await);
    lost(swap(&store, id, change(None, other)).await);
    let looked = look(&store, id).await;
    assert_eq!((looked.record, looked.revision), (seen.record, seen.revision));
}

/// X05
pub async fn the_revision_is_the_one_the_caller_minted(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    // The whole range: a signed column, or a conversion to a float, would show.
    let mut expected = None;
    for revision in
        [u64::MAX, 0, i64::MAX.cast_unsigned() + 1, (1 << 53) + 1, 1].map(onlyonce_core::record::Revision)
    {
        let mut change = change(expected, first.clone());
        change.revision = revision;
        assert_eq!(applied(swap(&store, id, change).await).revision, revision);
        assert_eq!(look(&store, id).await.revision, revision);
        expected = Some(revision);
    }
}

/// X05: the answer was lost; the caller sends the swap again and recognises its own write.
pub async fn a_swap_that_is_sent_twice_is_recognised_by_its_revision(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let change = change(None, first);
    let seen = applied(swap(&store, id, change.clone()).await);
    let again = lost(swap(&store, id, change.clone()).await).expect("the first one stands");
    assert_eq!(again.revision, change.revision);
    assert_eq!(again.record, seen.record);
}

/// R01, R02
pub async fn of_many_concurrent_inserts_exactly_one_applies(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let changes = (0..CALLERS).map(|_| change(None, first.clone())).collect();
    exactly_one_applies(&store, id, changes).await;
}

/// R02, R05
pub async fn of_many_concurrent_swaps_exactly_one_applies(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let seen = insert(&store, (id, first.clone())).await;
    let changes = (0..CALLERS).map(|_| change(Some(seen.revision), first.clone())).collect();
    exactly_one_applies(&store, id, changes).await;
}

async fn exactly_one_applies(store: &Shared, id: Id, changes: Vec<crate::Change>) {
    let callers: Vec<_> = changes
        .into_iter()
        .map(|change| {
            let store = store.clone();
            tokio::spawn(async move { swap(&store, id, change).await })
        })
        .collect();
    let mut winners = Vec::new();
    for caller in callers {
        if let Swapped::Applied(seen) = caller.await.expect("a caller ends") {
            winners.push(seen.revision);
        }
    }
    assert_eq!(winners.len(), 1, "of {CALLERS} swaps {} applied", winners.len());
    assert_eq!(look(store, id).await.revision, winners[0]);
}

/// R05
pub async fn no_update_is_lost_among_concurrent_writers(store: Shared) {
    let (id, mut first) = draft("k", running(LATER));
    first.attempt = 0;
    insert(&store, (id, first)).await;
    let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(count(store.clone(), id))).collect();
    for writer in writers {
        writer.await.expect("a writer ends");
    }
    assert_eq!(look(&store, id).await.record.attempt, WRITERS * COUNTS_EACH);
}

async fn count(store: Shared, id: Id) {
    for _ in 0..COUNTS_EACH {
        let next = |seen: Option<&onlyonce_core::record::Seen>| {
            let mut draft = seen.expect("nobody deletes it").record.draft();
            draft.attempt += 1;
            Some(draft)
        };
        drive(&store, id, next).await.expect("counted");
    }
}

/// Writes that an engine puts in one batch stay independent.
pub async fn records_of_different_keys_do_not_disturb_each_other(store: Shared) {
    let (taken, first) = draft("taken", running(LATER));
    insert(&store, (taken, first)).await;
    let callers: Vec<_> = (0..CALLERS).map(|n| tokio::spawn(insert_own(store.clone(), n))).collect();
    let (_, second) = draft("taken", running(LATER));
    lost(swap(&store, taken, change(None, second)).await);
    for caller in callers {
        let (id, revision) = caller.await.expect("a caller ends");
        assert_eq!(look(&store, id).await.revision, revision);
    }
}

async fn insert_own(store: Shared, number: usize) -> (Id, onlyonce_core::record::Revision) {
    let (id, draft) = draft(&format!("own {number}"), running(LATER));
    let seen = insert(&store, (id, draft.clone())).await;
    assert_eq!(seen.record.key, draft.key, "each caller is shown its own record");
    assert_eq!(seen.record.token, draft.token);
    (id, seen.revision)
}

/// S01: keys are opaque.
pub async fn keys_that_look_alike_stay_apart(store: Shared) {
    let keys = [
        "a",
        "A",
        "á",
        "a\u{301}",
        "a ",
        " a",
        "a%",
        "a_",
        "a'",
        "a\"",
        "a\\",
        "a;--",
        "%61",
        "a/b",
        "a:b",
        "{a}",
        "猫",
        "🔑",
        "a\u{200b}",
        "ß",
        "ss",
        "ı",
        "i",
        "I",
    ];
    let mut ids = HashSet::new();
    for key in keys {
        let seen = insert(&store, draft(key, running(LATER))).await;
        assert_eq!(seen.record.key.as_str(), key);
        assert!(ids.insert(draft(key, running(LATER)).0));
    }
    for key in keys {
        assert_eq!(look(&store, draft(key, running(LATER)).0).await.record.key.as_str(), key);
    }
}

/// S01
pub async fn keys_of_another_scope_stay_apart(store: Shared) {
    let (one, two) = (draft_in(scope(1), "k", running(LATER)), draft_in(scope(2), "k", completed(LATER)));
    let (one_id, two_id) = (one.0, two.0);
    insert(&store, one).await;
    insert(&store, two).await;
    assert_eq!(look(&store, one_id).await.record.scope, scope(1));
    assert_eq!(look(&store, two_id).await.record.scope, scope(2));
}

/// E07
pub async fn preparing_again_and_at_once_changes_nothing(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let seen = insert(&store, (id, first)).await;
    let again: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.prepare().await })
        })
        .collect();
    for prepared in again {
        prepared.await.expect("preparing ends").expect("preparing again succeeds");
    }
    assert_eq!(look(&store, id).await.record, seen.record);
}
