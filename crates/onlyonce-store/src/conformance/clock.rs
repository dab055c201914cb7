//! The store's own clock: it stamps every write and accompanies every look.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onlyonce_core::record::State;
use onlyonce_core::time::{Timestamp, When};

use super::world::{
    HOUR, MOMENT, Shared, applied, change, completed, draft, everything, insert, list, look, lost, running,
    swap, unknown, wait_until, write,
};

/// How many callers look at the clock at once, and how often.
const LOOKERS: usize = 8;
const LOOKS_EACH: usize = 50;

/// R08
pub async fn moments_after_the_write_are_stamped_by_the_stores_clock(store: Shared) {
    let (id, first) = draft("k", running(When::AfterWrite(HOUR)));
    let seen = insert(&store, (id, first.clone())).await;
    let written_at = seen.record.written_at;
    assert_eq!(*seen.record, first.clone().stamp(written_at));
    assert_eq!(seen.record.began_at, written_at);
    assert_eq!(seen.record.state, State::Running { lapses_at: written_at.plus(HOUR) });
    assert!(seen.now >= written_at, "{:?} was seen before it was written at {written_at:?}", seen.now);
    assert!(seen.now.since(written_at) < super::PATIENCE, "the clock that stamps is the clock that is shown");
    let again = write(&store, id, &seen, first).await;
    assert!(again.record.written_at >= seen.now, "a write is not before what was seen before it");
}

/// R08
pub async fn known_moments_are_kept_to_the_microsecond(store: Shared) {
    for micros in [1_700_000_000_123_457, 1, 4_102_444_800_999_999] {
        let (id, mut first) = draft(&micros.to_string(), completed(When::At(Timestamp::from_micros(micros))));
        first.created_at = When::At(Timestamp::from_micros(micros));
        first.terms.lease = Duration::from_micros(1_000_001);
        let seen = insert(&store, (id, first.clone())).await;
        assert_eq!(*seen.record, first.clone().stamp(seen.record.written_at));
        assert_eq!(*look(&store, id).await.record, first.stamp(seen.record.written_at));
    }
}

/// R08
pub async fn now_never_runs_backwards(store: Shared) {
    let latest = Arc::new(Mutex::new(Timestamp::from_micros(i64::MIN)));
    let lookers: Vec<_> =
        (0..LOOKERS).map(|n| tokio::spawn(watch(store.clone(), n, latest.clone()))).collect();
    for looker in lookers {
        looker.await.expect("the clock ran backwards");
    }
}

/// Reads, writes, loses swaps and lists, and compares each `now` with the latest that any task had seen before.
async fn watch(store: Shared, number: usize, latest: Arc<Mutex<Timestamp>>) {
    let (id, first) = draft(&number.to_string(), unknown(None));
    let mut seen = insert(&store, (id, first)).await;
    for round in 0..LOOKS_EACH {
        let before = *latest.lock().unwrap_or_else(PoisonError::into_inner);
        let next = seen.record.draft();
        seen = match round % 4 {
            0 => look(&store, id).await,
            1 => applied(swap(&store, id, change(Some(seen.revision), next)).await),
            2 => lost(swap(&store, id, change(None, next)).await).expect("it is there"),
            _ => {
                list(&store, everything(LOOKERS))
                    .await
                    .into_iter()
                    .find(|(listed, _)| *listed == id)
                    .expect("it is")
                    .1
            }
        };
        assert!(seen.now >= before, "{:?} came after {before:?}", seen.now);
        assert!(seen.now >= seen.record.written_at, "{:?} is before the last write", seen.now);
        let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = seen.now.max(*latest);
    }
}

/// R08
pub async fn a_look_does_not_restamp(store: Shared) {
    let (id, first) = draft("k", running(When::AfterWrite(MOMENT)));
    let seen = insert(&store, (id, first)).await;
    let later = wait_until(&store, id, seen.now.plus(MOMENT)).await;
    assert_eq!(later.record, seen.record);
}
