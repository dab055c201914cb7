//! Results of phases: written with their recovery point or not at all, and gone with the use of their key.

use onlyonce_core::record::{Id, Seen};
use onlyonce_core::time::When;

use super::world::{
    HOUR, Shared, applied, before, change, completed, draft, insert, load, look, lost, mint, now, retryable,
    running, swap,
};
use crate::result::{PhaseResult, Results};

const ALL: usize = 1_000;
const LATER: When = When::AfterWrite(HOUR);

fn result(number: u32, phase: &str) -> PhaseResult {
    PhaseResult { number, phase: phase.into(), json: format!(r#"{{"é\\u0000":{number}}}"#).into() }
}

async fn results(store: &Shared, id: Id, seen: &Seen) -> Vec<PhaseResult> {
    store.results(id, seen.record.created_at).await.expect("the store answers a question for results")
}

/// Commits a phase of a record that runs.
async fn commit(store: &Shared, id: Id, seen: &Seen, result: &PhaseResult) -> Seen {
    let mut next = seen.record.draft();
    next.progress.recovery_point = Some(result.phase.clone());
    let change = change(Some(seen.revision), next).with_results(Results::Add(result.clone()));
    applied(swap(store, id, change).await)
}

/// W03
pub async fn a_result_is_written_with_its_recovery_point(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let mut seen = insert(&store, (id, first)).await;
    assert_eq!(results(&store, id, &seen).await, []);
    for number in [1, 2, 10] {
        seen = commit(&store, id, &seen, &result(number, "phase")).await;
        assert_eq!(look(&store, id).await.record.progress.recovery_point.as_deref(), Some("phase"));
    }
    let expected = [1, 2, 10].map(|number| result(number, "phase"));
    assert_eq!(results(&store, id, &seen).await, expected, "in the order of the handler");
    let seen = commit(&store, id, &seen, &result(2, "other")).await;
    assert_eq!(results(&store, id, &seen).await[1], result(2, "other"), "one of its number is replaced");
    let (other, first) = draft("other", running(LATER));
    let seen = insert(&store, (other, first)).await;
    assert_eq!(results(&store, other, &seen).await, [], "another key's");
}

/// W03: a fenced attempt leaves no result behind.
pub async fn a_result_of_a_lost_swap_is_not_written(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let seen = insert(&store, (id, first)).await;
    let added = change(Some(mint()), seen.record.draft()).with_results(Results::Add(result(1, "a")));
    lost(swap(&store, id, added).await);
    assert_eq!(results(&store, id, &seen).await, []);
    let seen = commit(&store, id, &seen, &result(1, "a")).await;
    let dropped = change(Some(mint()), seen.record.draft()).with_results(Results::Drop);
    lost(swap(&store, id, dropped).await);
    assert_eq!(results(&store, id, &seen).await, [result(1, "a")]);
}

/// W03: no use of a key sees the results of another.
pub async fn results_belong_to_one_use_of_a_key(store: Shared) {
    let (id, first) = draft("k", running(LATER));
    let seen = insert(&store, (id, first)).await;
    let used = commit(&store, id, &seen, &result(1, "a")).await;
    let (_, mut next) = draft("k", running(LATER));
    next.created_at = LATER;
    let anew = change(Some(used.revision), next).with_results(Results::Drop);
    let anew = applied(swap(&store, id, anew).await);
    assert_eq!(results(&store, id, &anew).await, []);
    assert_eq!(results(&store, id, &used).await, [], "they are gone, and not only hidden");
    let anew = commit(&store, id, &anew, &result(1, "b")).await;
    assert_eq!(results(&store, id, &anew).await, [result(1, "b")]);
    assert_eq!(results(&store, id, &used).await, []);
}

/// W03, M02: results go with their record, reaped or erased.
pub async fn results_go_with_their_record(store: Shared) {
    for is_erased in [false, true] {
        let (id, first) = draft("k", running(LATER));
        let seen = insert(&store, (id, first)).await;
        let seen = commit(&store, id, &seen, &result(1, "a")).await;
        let mut done = seen.record.draft();
        done.state = completed(When::WRITE);
        applied(swap(&store, id, change(Some(seen.revision), done)).await);
        assert_eq!(results(&store, id, &seen).await.len(), 1, "kept while the record is");
        let deleted = if is_erased { store.erase([1; 32], ALL).await } else { store.reap(ALL).await };
        // An erasure also takes what a store has archived of the first.
        assert!(deleted.expect("the store deletes") >= 1);
        assert_eq!(load(&store, id).await, None);
        assert_eq!(results(&store, id, &seen).await, []);
    }
}

/// W10, T03: work that stopped at a recovery point is not deleted by age, and its results are not either.
pub async fn half_done_work_is_never_deleted(store: Shared) {
    let hour_ago = When::At(before(now(&store).await, HOUR));
    let (id, first) = draft("k", running(LATER));
    let seen = insert(&store, (id, first)).await;
    let seen = commit(&store, id, &seen, &result(1, "a")).await;
    let mut stopped = seen.record.draft();
    stopped.state = retryable(hour_ago);
    applied(swap(&store, id, change(Some(seen.revision), stopped)).await);
    assert_eq!(store.reap(ALL).await.expect("the store answers a reap"), 0);
    assert_eq!(store.erase([1; 32], ALL).await.expect("the store answers an erasure"), 0);
    look(&store, id).await;
    assert_eq!(results(&store, id, &seen).await, [result(1, "a")]);
}
