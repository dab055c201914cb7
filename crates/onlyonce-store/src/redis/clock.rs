//! The server's clock, as this node knows it.
//!
//! Every trip carries `TIME`. The server said so between the moment the trip was sent and the moment its answer was received:
//! each answer narrows the interval in which the difference between the server's clock and this node's steady one must lie.
//! A write is stamped before it is sent, by the lower bound: never later than the server's clock when it executes the write.
//! A server that has taken over from another has a clock of its own, and so has each master of a cluster.
//! An answer that contradicts the interval (a clock was set, another server took over) begins a new one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onlyonce_core::time::Timestamp;

use super::url::Host;
use crate::clock::steady;

/// The server's clock; see the module's documentation.
#[derive(Debug)]
pub(super) struct Clock {
    /// For tests: by so many microseconds it is taken to be later than the server says.
    ahead: Arc<AtomicI64>,
    known: Mutex<Known>,
    /// Of the masters of a cluster.
    others: Mutex<HashMap<Host, Arc<Clock>>>,
}

/// In microseconds: by how much the server's clock is ahead of this machine's steady one.
#[derive(Clone, Copy, Debug)]
struct Known {
    ahead_min: i64,
    ahead_max: i64,
    /// The latest time that was shown to anybody: nothing is stamped or shown before it.
    latest: i64,
}

impl Clock {
    pub(super) fn new(ahead: Arc<AtomicI64>) -> Self {
        let known = Known { ahead_min: i64::MIN, ahead_max: i64::MAX, latest: 0 };
        Self { ahead, known: Mutex::new(known), others: Mutex::default() }
    }

    /// The clock of a master of the cluster.
    pub(super) fn of(&self, host: &Host) -> Arc<Self> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.entry(host.clone()).or_insert_with(|| Arc::new(Self::new(self.ahead.clone()))).clone()
    }

    /// Whether the server has told its time: else nothing may be stamped.
    pub(super) fn is_told(&self) -> bool {
        self.known().ahead_min != i64::MIN
    }

    /// Another server has taken over. What was shown stays: the time does not run backwards.
    pub(super) fn forget(&self) {
        let mut known = self.known();
        (known.ahead_min, known.ahead_max) = (i64::MIN, i64::MAX);
    }

    /// The server has told its time in a trip that was sent and received at these moments of the steady clock. Returns the store's now: that time, and never before one that was shown.
    pub(super) fn told(&self, sent: i64, received: i64, time: Timestamp) -> Timestamp {
        let time = time.as_micros();
        let (min, max) = (time.saturating_sub(received), time.saturating_sub(sent));
        let mut known = self.known();
        let narrowed = (known.ahead_min.max(min), known.ahead_max.min(max));
        (known.ahead_min, known.ahead_max) = if narrowed.0 <= narrowed.1 { narrowed } else { (min, max) };
        known.latest = known.latest.max(time);
        self.shown(known.latest)
    }

    /// The stamp of a write that is about to be sent; `floor` is the stamp that it must not be before.
    pub(super) fn stamp(&self, floor: Timestamp) -> Timestamp {
        let known = self.known();
        let now = steady().saturating_add(known.ahead_min);
        self.shown(now.max(known.latest)).max(floor)
    }

    fn shown(&self, micros: i64) -> Timestamp {
        Timestamp::from_micros(micros.saturating_add(self.ahead.load(Ordering::Acquire)))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: Timestamp = Timestamp::from_micros(0);

    /// All in milliseconds.
    fn tell(clock: &Clock, sent: i64, received: i64, time: i64) -> i64 {
        let time = Timestamp::from_micros(time * 1_000);
        clock.told(sent * 1_000, received * 1_000, time).as_micros() / 1_000
    }

    fn ahead(clock: &Clock) -> (i64, i64) {
        let known = clock.known();
        (known.ahead_min / 1_000, known.ahead_max / 1_000)
    }

    /// R08
    #[test]
    fn each_answer_narrows_what_is_known() {
        let clock = Clock::new(Arc::default());
        tell(&clock, 0, 10, 1_000_000);
        assert_eq!(ahead(&clock), (999_990, 1_000_000));
        tell(&clock, 20, 24, 1_000_016);
        assert_eq!(ahead(&clock), (999_992, 999_996));
        tell(&clock, 30, 130, 1_000_070);
        assert_eq!(ahead(&clock), (999_992, 999_996), "a slow answer says nothing new");
    }

    /// R08
    #[test]
    fn a_clock_that_was_set_is_believed_and_the_time_does_not_run_backwards() {
        let clock = Clock::new(Arc::default());
        assert_eq!(tell(&clock, 0, 10, 1_000_000), 1_000_000);
        assert_eq!(tell(&clock, 20, 30, 500_000), 1_000_000);
        assert_eq!(ahead(&clock), (499_970, 499_980));
        assert_eq!(tell(&clock, 40, 50, 2_000_000), 2_000_000);
        assert_eq!(ahead(&clock), (1_999_950, 1_999_960));
    }

    /// R08, X01
    #[test]
    fn a_server_that_took_over_is_asked_anew_and_the_time_does_not_run_backwards() {
        let clock = Clock::new(Arc::default());
        assert!(!clock.is_told());
        tell(&clock, 0, 10, 1_000_000);
        assert!(clock.is_told());
        clock.forget();
        assert!(!clock.is_told());
        assert_eq!(tell(&clock, 20, 40, 1_000_025), 1_000_025);
        assert_eq!(ahead(&clock), (999_985, 1_000_005), "nothing of the first one is left");
        let host = Host { name: "a".to_owned(), port: 1 };
        assert!(!clock.of(&host).is_told() && Arc::ptr_eq(&clock.of(&host), &clock.of(&host)));
    }

    /// R08
    #[test]
    fn a_stamp_is_by_the_lower_bound_and_never_before_what_was_shown() {
        let clock = Clock::new(Arc::default());
        let sent = steady();
        clock.told(sent, sent + 3_600_000_000, Timestamp::from_micros(9_000_000_000));
        assert_eq!(clock.stamp(FLOOR).as_micros(), 9_000_000_000, "the bound is an hour earlier");
        assert_eq!(clock.stamp(Timestamp::from_micros(9_500_000_000)).as_micros(), 9_500_000_000);
    }
}
