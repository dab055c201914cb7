//! Reaping deletes finished records that have expired, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Seen, State};
use onlyonce_core::time::{Timestamp, When};
use tokio::sync::watch;

use super::world::{
    HOUR, MOMENT, Shared, applied, before, change, completed, draft, give_way, insert, load, look, lost, now,
    pending, retryable, running, swap, unknown, wait_until,
};
use crate::Swapped;

/// More than any case stores.
const ALL: usize = 1_000;
/// How many reapers run while a key is used again, how many deletions are needed, and how long that may take.
const REAPERS: usize = 2;
const REAPED_MIN: usize = 30;
/// A store whose reapers look for long is raced for this long, until they have deleted a few.
const RACED_FOR: Duration = Duration::from_secs(3);
const REAPED_FEW: usize = 3;
const USES_MAX: usize = 100_000;

async fn reap(store: &Shared, limit: usize) -> usize {
    store.reap(limit).await.expect("the store answers a reap")
}

/// T03, M02
pub async fn what_has_finished_and_expired_is_deleted(store: Shared) {
    let hour_ago = When::At(before(now(&store).await, HOUR));
    for (key, state) in
        [("c", completed(hour_ago)), ("r", retryable(hour_ago)), ("w", completed(When::WRITE))]
    {
        insert(&store, draft(key, state)).await;
    }
    let soon = draft("soon", completed(When::AfterWrite(MOMENT)));
    let id = soon.0;
    let seen = insert(&store, soon).await;
    wait_until(&store, id, seen.record.written_at.plus(MOMENT)).await;
    assert_eq!(reap(&store, ALL).await, 4);
    for key in ["c", "r", "w", "soon"] {
        assert_eq!(load(&store, draft(key, pending(When::WRITE)).0).await, None, "{key}");
    }
    assert_eq!(reap(&store, ALL).await, 0);
}

/// T03
pub async fn what_has_not_expired_is_kept(store: Shared) {
    let later = When::AfterWrite(HOUR);
    for (key, state) in [("c", completed(later)), ("r", retryable(later))] {
        insert(&store, draft(key, state)).await;
    }
    assert_eq!(reap(&store, ALL).await, 0);
    look(&store, draft("c", completed(later)).0).await;
    look(&store, draft("r", completed(later)).0).await;
}

/// T03
pub async fn running_pending_and_unknown_records_are_never_deleted(store: Shared) {
    let long_ago = When::At(Timestamp::from_micros(1));
    let states = [running(long_ago), pending(long_ago), unknown(Some(long_ago)), unknown(None)];
    let mut ids = Vec::new();
    for (number, state) in states.into_iter().enumerate() {
        let (id, mut draft) = draft(&number.to_string(), state);
        draft.created_at = long_ago;
        draft.began_at = long_ago;
        draft.terms.retention = Duration::ZERO;
        insert(&store, (id, draft)).await;
        ids.push(id);
    }
    assert_eq!(reap(&store, ALL).await, 0);
    for id in ids {
        look(&store, id).await;
    }
}

/// T03: it is due for the sweeper, since downstream may have forgotten it, but not expired.
pub async fn a_retryable_record_that_is_due_but_not_expired_is_kept(store: Shared) {
    let (id, mut first) = draft("k", retryable(When::AfterWrite(HOUR)));
    first.relies_on_memory = true;
    first.created_at = When::At(Timestamp::from_micros(1));
    insert(&store, (id, first)).await;
    assert_eq!(reap(&store, ALL).await, 0);
    look(&store, id).await;
}

/// M02
pub async fn no_more_than_the_limit_is_deleted(store: Shared) {
    for number in 0..7 {
        insert(&store, draft(&number.to_string(), completed(When::WRITE))).await;
    }
    assert_eq!(reap(&store, 0).await, 0);
    assert_eq!(reap(&store, 3).await, 3);
    assert_eq!(reap(&store, 3).await, 3);
    assert_eq!(reap(&store, 3).await, 1);
    assert_eq!(reap(&store, 3).await, 0);
}

/// M02, T03: reapers run while a key is used again and again. They may delete an expired use, never one that has begun
/// and is not yet completed. The test runs until the reapers have deleted enough records: without deletions there was no
/// race. Where they are slower than the key is used again, some uses wait for them.
pub async fn a_key_that_is_used_again_is_never_deleted(store: Shared) {
    let id = draft("k", running(When::WRITE)).0;
    let (is_over, reaped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (told, mut rounds) = watch::channel(0);
    let told = Arc::new(told);
    let reapers: Vec<_> = (0..REAPERS)
        .map(|_| tokio::spawn(keep_reaping(store.clone(), is_over.clone(), reaped.clone(), told.clone())))
        .collect();
    let (mut uses, began) = (0, Instant::now());
    loop {
        let wanted = if began.elapsed() < RACED_FOR { REAPED_MIN } else { REAPED_FEW };
        if reaped.load(Ordering::Acquire) >= wanted {
            break;
        }
        assert!(uses < USES_MAX, "of {uses} expired uses fewer than {wanted} were deleted");
        use_once(&store, id, uses).await;
        if began.elapsed() >= RACED_FOR && uses % 5 == 4 {
            // Until one of them has ended a round that began after that use.
            let ended = *rounds.borrow() + 2 * REAPERS;
            rounds.wait_for(|rounds| *rounds >= ended).await.expect("the reapers go on");
        }
        uses += 1;
    }
    is_over.store(true, Ordering::Release);
    for reaper in reapers {
        reaper.await.expect("a reaper ends");
    }
}

/// Begins, runs for a moment, completes and expires.
async fn use_once(store: &Shared, id: Id, number: usize) {
    let begun = begin_anew(store, id).await;
    give_way().await;
    let seen = load(store, id).await;
    assert_eq!(seen.map(|seen| seen.revision), Some(begun.revision), "use {number} was deleted while it ran");
    let mut done = begun.record.draft();
    done.state = completed(When::WRITE);
    applied(swap(store, id, change(Some(begun.revision), done)).await);
    // Varies when the key is used again: before, while or after the reapers find it.
    for _ in 0..number % 5 {
        give_way().await;
    }
}

async fn keep_reaping(
    store: Shared,
    is_over: Arc<AtomicBool>,
    reaped: Arc<AtomicUsize>,
    rounds: Arc<watch::Sender<usize>>,
) {
    while !is_over.load(Ordering::Acquire) {
        reaped.fetch_add(reap(&store, ALL).await, Ordering::AcqRel);
        rounds.send_modify(|rounds| *rounds += 1);
        tokio::task::yield_now().await;
    }
}

/// Begins a new use of the key, over the expired record or after the reapers deleted it.
async fn begin_anew(store: &Shared, id: Id) -> Seen {
    let mut seen = load(store, id).await;
    for _ in 0..ALL {
        if let Some(seen) = &seen {
            assert!(machine::may_reap(&seen.record, seen.now), "the last use has ended");
        }
        let next = draft("k", running(When::AfterWrite(HOUR))).1;
        match swap(store, id, change(seen.map(|seen| seen.revision), next)).await {
            Swapped::Applied(seen) => return seen,
            Swapped::Lost(current) => seen = current,
        }
    }
    panic!("a key could not be used again in {ALL} tries");
}

/// R05: an attempt of an earlier use never writes into a later one.
pub async fn a_revision_never_comes_back(store: Shared) {
    let (id, first) = draft("k", completed(When::WRITE));
    let mut old = vec![insert(&store, (id, first.clone())).await];
    for _ in 0..3 {
        assert_eq!(reap(&store, ALL).await, 1);
        for seen in &old {
            assert_eq!(lost(swap(&store, id, change(Some(seen.revision), first.clone())).await), None);
        }
        let again = insert(&store, (id, first.clone())).await;
        for seen in &old {
            let current = lost(swap(&store, id, change(Some(seen.revision), first.clone())).await);
            assert_eq!(current.map(|current| current.revision), Some(again.revision));
        }
        assert!(matches!(again.record.state, State::Completed { .. }));
        old.push(again);
    }
}
