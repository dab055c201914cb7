//! The epoch: when it has risen, nodes no longer use their copies of completed records.

use onlyonce_core::time::When;

use super::world::{HOUR, Shared, completed, draft, everything, insert, list, look};
use crate::{Epoch, EpochSeen};

/// How many tasks raise it concurrently, and how often each.
const RAISERS: usize = 6;
const RAISES_EACH: usize = 10;

async fn seen(store: &Shared) -> EpochSeen {
    store.epoch().await.expect("the store answers what epoch it is")
}

async fn epoch(store: &Shared) -> Epoch {
    seen(store).await.epoch
}

async fn raise(store: &Shared) {
    store.raise_epoch().await.expect("the store begins a new epoch");
}

/// X04
pub async fn the_epoch_stays_until_it_is_raised(store: Shared) {
    let before = epoch(&store).await;
    let (id, first) = draft("k", completed(When::AfterWrite(HOUR)));
    insert(&store, (id, first)).await;
    look(&store, id).await;
    list(&store, everything(10)).await;
    store.reap(10).await.expect("the store reaps");
    store.prepare().await.expect("the store can be prepared again");
    assert_eq!(epoch(&store).await, before, "nobody raised it");
}

/// X04
pub async fn an_epoch_that_was_raised_is_seen_by_the_next_look(store: Shared) {
    let before = epoch(&store).await;
    raise(&store).await;
    let after = epoch(&store).await;
    assert!(after > before, "{after:?} came after {before:?}");
    assert_eq!(epoch(&store).await, after);
}

/// X04
pub async fn of_many_who_raise_it_each_sees_a_higher_one(store: Shared) {
    let raisers: Vec<_> = (0..RAISERS).map(|_| tokio::spawn(raise_often(store.clone()))).collect();
    for raiser in raisers {
        raiser.await.expect("each sees a higher one");
    }
}

/// X04: an epoch lost in a failover or a restored backup must not be used again, so epochs follow the clock.
pub async fn an_epoch_is_never_behind_the_clock_it_was_raised_at(store: Shared) {
    let before = seen(&store).await;
    raise(&store).await;
    let after = seen(&store).await;
    assert!(after.epoch.0 >= before.now.as_micros().cast_unsigned(), "{after:?} came after {before:?}");
    assert!(after.now >= before.now);
}

/// X04
pub async fn a_store_keeps_its_name(store: Shared) {
    let name = seen(&store).await.store;
    raise(&store).await;
    store.prepare().await.expect("the store can be prepared again");
    assert_eq!(seen(&store).await.store, name);
    assert_ne!(name, [0; 16], "a name is drawn at random");
}

async fn raise_often(store: Shared) {
    for _ in 0..RAISES_EACH {
        let before = epoch(&store).await;
        raise(&store).await;
        let after = epoch(&store).await;
        assert!(after > before, "{after:?} came after {before:?}");
    }
}
