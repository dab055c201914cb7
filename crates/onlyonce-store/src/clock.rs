//! The clocks of embedded engines.
//!
//! An engine with a server asks the server for the time. An engine that lives in this process reads a [`Clock`], and
//! what every engine promises of its time is promised here:
//!
//! 1. It never runs backwards, whoever asks, on any thread.
//! 2. It never stands behind a moment that was stamped before ([`SystemClock::not_before`]).
//! 3. It goes on while the machine's clock is set back: leases still lapse.
//!
//! Tests hand in a [`ManualClock`] and move it:
//!
//! ```
//! use std::time::Duration;
//!
//! use onlyonce_store::clock::{Clock, ManualClock};
//!
//! let clock = ManualClock::new();
//! let before = clock.now();
//! clock.clone().advance(Duration::from_secs(30));
//! assert_eq!(clock.now(), before.plus(Duration::from_secs(30)));
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use onlyonce_core::time::Timestamp;

/// Where an embedded engine has the time from. It never runs backwards.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time, in microseconds.
    fn now(&self) -> Timestamp;
}

/// The machine's clock, held monotonic.
///
/// It is the machine's steady clock plus an offset that only grows. Where the wall clock is set forward the offset
/// follows; where it is set back, time goes on at its usual pace instead of standing still until the wall catches up,
/// as the greater of the two readings would.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    /// What is added to the microseconds since `started`.
    offset: AtomicI64,
    /// When the wall clock is looked at next, in microseconds since `started`.
    look_at: AtomicI64,
}

/// How soon it is noticed that the wall clock was set forward: every reading asks the steady clock, but not each of them
/// both.
const LOOK_EVERY_MICROS: i64 = 1_000;

impl SystemClock {
    /// The machine's clock from now on.
    pub fn new() -> Self {
        Self { started: Instant::now(), offset: AtomicI64::new(i64::MIN), look_at: AtomicI64::new(0) }
    }

    /// From now on not before `stamp`: for an engine that finds stamps of an earlier process in its file.
    pub fn not_before(&self, stamp: Timestamp) {
        self.offset.fetch_max(stamp.as_micros().saturating_sub(self.steady()), Ordering::AcqRel);
    }

    fn steady(&self) -> i64 {
        micros(self.started.elapsed())
    }

    fn look_at_wall(&self) -> Timestamp {
        // The wall first: a pause between the two readings makes the offset too small, which the next reading mends,
        // and never too great, which nothing could.
        let wall = wall();
        let steady = self.steady();
        let offset = wall.saturating_sub(steady);
        let held = self.offset.fetch_max(offset, Ordering::AcqRel).max(offset);
        // After the offset: whoever sees that nothing is due sees an offset that has been set.
        self.look_at.store(steady.saturating_add(LOOK_EVERY_MICROS), Ordering::Release);
        Timestamp::from_micros(steady.saturating_add(held))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let steady = self.steady();
        if self.look_at.load(Ordering::Acquire) <= steady {
            return self.look_at_wall();
        }
        Timestamp::from_micros(steady.saturating_add(self.offset.load(Ordering::Acquire)))
    }
}

/// A clock that only moves when a test moves it. Clones show the same time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// 2026-01-01: any fixed moment would do, one that reads as a date is easier to debug.
    const START: i64 = 1_767_225_600_000_000;

    /// A clock that stands still.
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(Self::START)))
    }

    /// Lets `span` pass.
    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(micros(span), Ordering::AcqRel);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Acquire))
    }
}

/// Microseconds since the Unix epoch by the machine's wall clock; a clock set before the epoch reads as the epoch.
fn wall() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros)
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R08
    #[test]
    fn the_system_clock_never_runs_backwards_on_any_thread() {
        let clock = SystemClock::new();
        let latest = AtomicI64::new(i64::MIN);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let before = latest.load(Ordering::SeqCst);
                        let now = clock.now().as_micros();
                        assert!(now >= before, "{now} came after {before}");
                        latest.fetch_max(now, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    /// R08
    #[test]
    fn the_system_clock_goes_on_from_a_stamp_that_lies_ahead_of_the_wall() {
        let clock = SystemClock::new();
        let ahead = clock.now().plus(Duration::from_secs(600));
        clock.not_before(ahead);
        let first = clock.now();
        assert!(first >= ahead);
        let passes = Instant::now();
        while passes.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        assert!(clock.now() >= first.plus(Duration::from_millis(2)), "time must not stand still");
    }

    #[test]
    fn the_system_clock_shows_the_wall() {
        let now = SystemClock::new().now().as_micros();
        assert!((wall() - now).abs() < 1_000_000);
    }
}
