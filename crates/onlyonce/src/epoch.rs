//! Whether copies of completed records may be believed.
//!
//! A completed record does not change while it is kept, so a node may keep a copy and replay it without asking. Unless an
//! operator has it forgotten, or judged anew: then every node must let go of its copy, and the operator must know when
//! they have.
//!
//! ```text
//!  operator   write ── raise the epoch ──────── SEEN_AFTER ────────► done
//!  node A       look ─────── look (new: copies from before it are dropped)
//!  node B     look ── cannot look ─────────┤ TRUSTED_FOR: asks the store for each
//! ```
//!
//! 1. The record is written first and the epoch raised after it: who sees the epoch and then asks for the record sees it as
//!    it is now.
//! 2. While there are requests, the epoch is looked at every `LOOK_EVERY`, beside them. Nobody waits for it.
//! 3. A look is good for `TRUSTED_FOR`, by this node's clock from before it was asked. Where no look is that young, copies
//!    are not used and the store is asked: a node that is cut off falls back on the truth.
//! 4. At another epoch, what came from looks asked before that was known is dropped; also what is only now on its way.
//! 5. So `SEEN_AFTER` the epoch was raised, no node replays a copy from before. It is longer than `TRUSTED_FOR`, for clocks
//!    that do not run alike.
//! 6. A copy that another node has left in a cache in front of the store (`front.rs`) carries the epoch which that node knew
//!    before it asked for the record. It is used where that is the epoch of this node's last look, and that look is good.
//! 7. The same holds for what a node knows of an attempt that runs on it: a forced verdict may have ended that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use onlyonce_core::time::Timestamp;
use onlyonce_store::{Epoch, EpochSeen, Error};
use tokio::time::{Instant, sleep};

use crate::counts::Operation;
use crate::engine::{Engine, chain};

/// How often the epoch is looked at while there are requests.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a look is good for.
const TRUSTED_FOR: Duration = Duration::from_secs(2);
/// After so long every node has seen an epoch, or uses no copies.
const SEEN_AFTER: Duration = Duration::from_millis(2_500);
/// How long the store may take to begin an epoch that an operator orders.
const RAISED_WITHIN: Duration = Duration::from_secs(5);

/// What this node knows of the epoch. Moments are nanoseconds since it began: one of them is looked at on each replay.
#[derive(Debug)]
pub(crate) struct Trust {
    began: Instant,
    /// Whoever writes this or `since` holds the lock: together they are of one epoch.
    known: Mutex<Option<Told>>,
    /// When the next look is due.
    look_at: AtomicU64,
    /// Until when copies may be used.
    until: AtomicU64,
    /// Copies from looks that were asked before this are of an earlier epoch, for all that is known.
    since: AtomicU64,
    /// When this node last heard that the epoch was raised.
    raised_at: AtomicU64,
}

/// The epoch that was last seen, and of which store: another one behind the same address is as good as a new epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    epoch: Epoch,
    store: [u8; 16],
}

/// What the last look told.
#[derive(Clone, Copy, Debug)]
struct Told {
    known: Known,
    /// The store's clock at some moment after `asked_at`.
    now: Timestamp,
    asked_at: Instant,
}

/// What copies of other nodes are judged by, and copies for them are marked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) epoch: Epoch,
    /// The store's name.
    pub(crate) store: [u8; 16],
    /// The store's clock as this node reckons it, never behind the store's own.
    pub(crate) now: Timestamp,
}

impl Trust {
    /// Nothing is known: the first look is due, and no copy may be used.
    pub(crate) fn none() -> Self {
        Self {
            began: Instant::now(),
            known: Mutex::default(),
            look_at: AtomicU64::new(0),
            until: AtomicU64::new(0),
            since: AtomicU64::new(u64::MAX),
            raised_at: AtomicU64::new(0),
        }
    }

    fn is_unknown(&self) -> bool {
        self.since.load(Ordering::Relaxed) == u64::MAX
    }

    /// Whether a copy from a look that was asked at `asked_at` may be used now.
    fn holds(&self, asked_at: Instant, now: Instant) -> bool {
        self.moment(asked_at) >= self.since.load(Ordering::Acquire) && self.is_fresh(now)
    }

    /// The epoch that was known at `asked_at` and is still the last one heard of, where a look is young enough; with the store's
    /// clock at `asked_at`.
    fn standing(&self, asked_at: Instant, now: Instant) -> Option<Standing> {
        let told = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Told { known: Known { epoch, store }, now: told_at, asked_at: told_since } = (*told)?;
        let passed = asked_at.saturating_duration_since(told_since);
        self.holds(asked_at, now).then(|| Standing { epoch, store, now: told_at.plus(passed) })
    }

    fn was_raised_since(&self, asked_at: Instant) -> bool {
        self.moment(asked_at) < self.raised_at.load(Ordering::Acquire)
    }

    /// Whether a look is young enough that what it showed holds.
    fn is_fresh(&self, now: Instant) -> bool {
        self.moment(now) < self.until.load(Ordering::Acquire)
    }

    /// Whether a look is due; to one caller only.
    fn takes_look(&self, now: Instant) -> bool {
        let (now, due) = (self.moment(now), self.look_at.load(Ordering::Relaxed));
        let next = now.saturating_add(nanos(LOOK_EVERY));
        now >= due && self.look_at.compare_exchange(due, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The store has answered what epoch it is. Says whether that was not known.
    fn saw(&self, seen: EpochSeen, asked_at: Instant, answered_at: Instant) -> bool {
        let EpochSeen { epoch, store, now } = seen;
        let seen = Known { epoch, store };
        let mut told = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = told.map(|told| told.known);
        // Answers may overtake each other; it only rises.
        if known.is_some_and(|known| store == known.store && epoch < known.epoch) {
            return false;
        }
        let is_new = known != Some(seen);
        if is_new {
            // It was raised before it was answered: what was asked later shows what was written before it.
            let answered_at = self.moment(answered_at);
            self.since.store(answered_at, Ordering::Release);
            if known.is_some() {
                self.raised_at.store(answered_at, Ordering::Release);
            }
        }
        if is_new || told.is_none_or(|told| told.asked_at <= asked_at) {
            *told = Some(Told { known: seen, now, asked_at });
        }
        let until = self.moment(asked_at).saturating_add(nanos(TRUSTED_FOR));
        self.until.fetch_max(until, Ordering::AcqRel);
        is_new
    }

    fn moment(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.began))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Engine {
    /// Whether a copy from a look that was asked at `asked_at` may be used without asking again.
    pub(crate) fn may_trust(self: &Arc<Self>, asked_at: Instant, now: Instant) -> bool {
        self.look_at_epoch(now);
        self.trust.holds(asked_at, now)
    }

    /// What a copy of another node is judged by that is looked for at `asked_at`, or a copy for others is marked with whose record
    /// was asked for then; none where copies may not be used now.
    pub(crate) fn standing(&self, asked_at: Instant, now: Instant) -> Option<Standing> {
        self.trust.standing(asked_at, now)
    }

    /// The name of the store.
    pub(crate) async fn store_name(&self) -> Result<[u8; 16], Error> {
        let told = *self.trust.known.lock().unwrap_or_else(PoisonError::into_inner);
        match told {
            Some(told) => Ok(told.known.store),
            None => Ok(self.guarded(Operation::Epoch, LOOK_EVERY, self.store().epoch()).await?.store),
        }
    }

    /// Whether this node has heard since `asked_at` that some record was changed which nobody expected to change.
    pub(crate) fn was_raised_since(self: &Arc<Self>, asked_at: Instant) -> bool {
        self.look_at_epoch(Instant::now());
        self.trust.was_raised_since(asked_at)
    }

    /// Whether this node would have heard of an epoch that was raised [`SEEN_AFTER`] ago.
    pub(crate) fn knows_epoch(&self, now: Instant) -> bool {
        self.trust.is_fresh(now)
    }

    /// Learns the epoch before anything is copied: what came before the first look may be used by nobody, so whoever looks
    /// asks after it. Says since when is asked.
    pub(crate) fn learn_epoch(self: &Arc<Self>, asked_at: Instant) -> Instant {
        if !self.trust.is_unknown() {
            return asked_at;
        }
        self.look_at_epoch(asked_at);
        Instant::now()
    }

    /// Looks at the epoch where that is due. A store in this process answers at once, and any other in the background.
    pub(crate) fn look_at_epoch(self: &Arc<Self>, now: Instant) {
        if !self.trust.takes_look(now) {
            return;
        }
        let engine = self.clone();
        let mut look = Box::pin(async move {
            if let Err(error) = engine.see_epoch().await {
                tracing::warn!(error = %chain(&error), "the epoch could not be read; cached records are read from the store again");
            }
        });
        if look.as_mut().now_or_never().is_none() {
            self.tasks.spawn(look);
        }
    }

    async fn see_epoch(&self) -> Result<(), Error> {
        let asked_at = Instant::now();
        let seen = self.guarded(Operation::Epoch, LOOK_EVERY, self.store().epoch()).await?;
        if self.trust.saw(seen, asked_at, Instant::now()) {
            self.cache.clear();
        }
        Ok(())
    }

    /// Begins a new epoch: ready when no node uses a copy from before it, of its own or from a cache in front of the store. For
    /// a store that was restored from a backup.
    ///
    /// # Errors
    ///
    /// Where the store does not answer: order it again.
    pub async fn raise_epoch(&self) -> Result<(), Error> {
        self.tell_every_node(RAISED_WITHIN).await
    }

    /// A completed record was changed: ready when no node replays a copy from before that.
    ///
    /// # Errors
    ///
    /// Where the store does not answer: nobody knows who has heard of it, and it is to be told again.
    pub(crate) async fn tell_every_node(&self, store_timeout: Duration) -> Result<(), Error> {
        self.guarded(Operation::Epoch, store_timeout, self.store().raise_epoch()).await?;
        sleep(SEEN_AFTER).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: u64) -> EpochSeen {
        EpochSeen { epoch: Epoch(number), now: Timestamp::from_micros(0), store: [1; 16] }
    }

    fn after(trust: &Trust, millis: u64) -> Instant {
        trust.began + Duration::from_millis(millis)
    }

    /// X04
    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_before_a_new_epoch_was_known_is_not_used_whenever_it_comes() {
        let trust = Trust::none();
        assert!(!trust.holds(after(&trust, 5), after(&trust, 5)), "nothing is known yet");
        assert!(trust.saw(epoch(1), after(&trust, 10), after(&trust, 20)));
        assert!(
            !trust.holds(after(&trust, 19), after(&trust, 30)),
            "asked before the first look was answered"
        );
        assert!(trust.holds(after(&trust, 20), after(&trust, 30)));
        assert!(
            !trust.was_raised_since(after(&trust, 0)),
            "the first that is seen was not raised, for all we know"
        );
        assert!(trust.saw(epoch(2), after(&trust, 100), after(&trust, 200)));
        assert!(
            !trust.holds(after(&trust, 150), after(&trust, 300)),
            "on its way while the epoch was raised"
        );
        assert!(trust.holds(after(&trust, 200), after(&trust, 300)));
        assert!(trust.was_raised_since(after(&trust, 150)));
    }

    /// X04
    #[tokio::test(start_paused = true)]
    async fn a_look_is_good_for_two_seconds_from_when_it_was_asked() {
        let trust = Trust::none();
        trust.saw(epoch(1), after(&trust, 0), after(&trust, 900));
        let copy = after(&trust, 900);
        assert!(trust.holds(copy, after(&trust, 1_999)));
        assert!(!trust.holds(copy, after(&trust, 2_000)));
        assert!(!trust.saw(epoch(1), after(&trust, 1_000), after(&trust, 2_100)), "nothing new");
        assert!(trust.holds(copy, after(&trust, 2_999)));
        // An answer that was overtaken brings nothing: it may be older than what is known.
        trust.saw(epoch(2), after(&trust, 2_500), after(&trust, 2_600));
        assert!(!trust.saw(epoch(1), after(&trust, 2_550), after(&trust, 9_000)));
        assert!(!trust.holds(after(&trust, 2_600), after(&trust, 4_500)));
    }

    /// X04: a lower epoch of another store is no answer that was overtaken.
    #[tokio::test(start_paused = true)]
    async fn another_store_behind_the_address_is_a_new_epoch() {
        let trust = Trust::none();
        trust.saw(epoch(7), after(&trust, 0), after(&trust, 10));
        let other = EpochSeen { store: [2; 16], ..epoch(3) };
        assert!(trust.saw(other, after(&trust, 100), after(&trust, 110)));
        assert!(!trust.holds(after(&trust, 50), after(&trust, 120)), "a copy of the other store");
        assert!(trust.holds(after(&trust, 110), after(&trust, 120)));
    }

    /// X04, T02
    #[tokio::test(start_paused = true)]
    async fn what_others_left_is_judged_by_the_last_look_and_by_a_clock_that_is_not_behind() {
        let trust = Trust::none();
        assert_eq!(trust.standing(after(&trust, 5), after(&trust, 5)), None, "nothing is known yet");
        let at = |micros| Timestamp::from_micros(micros);
        trust.saw(EpochSeen { now: at(1_000_000), ..epoch(1) }, after(&trust, 10), after(&trust, 20));
        assert_eq!(trust.standing(after(&trust, 19), after(&trust, 30)), None, "asked before it was known");
        let standing = trust.standing(after(&trust, 30), after(&trust, 40)).unwrap();
        // Counted from before the question: the store may have answered at once.
        assert_eq!((standing.epoch, standing.now), (Epoch(1), at(1_020_000)));
        trust.saw(EpochSeen { now: at(2_000_000), ..epoch(1) }, after(&trust, 1_010), after(&trust, 1_020));
        let standing = trust.standing(after(&trust, 1_030), after(&trust, 1_030)).unwrap();
        assert_eq!(standing.now, at(2_020_000));
        trust.saw(epoch(2), after(&trust, 1_100), after(&trust, 1_200));
        assert_eq!(trust.standing(after(&trust, 1_150), after(&trust, 1_210)), None, "of the epoch before");
        assert_eq!(trust.standing(after(&trust, 1_200), after(&trust, 1_210)).unwrap().epoch, Epoch(2));
        assert_eq!(trust.standing(after(&trust, 3_099), after(&trust, 3_100)), None, "the look is too old");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_due_is_one_callers() {
        let trust = Trust::none();
        assert!(trust.takes_look(after(&trust, 0)));
        assert!(!trust.takes_look(after(&trust, 999)));
        assert!(trust.takes_look(after(&trust, 1_000)));
        assert!(!trust.takes_look(after(&trust, 1_000)));
    }
}
