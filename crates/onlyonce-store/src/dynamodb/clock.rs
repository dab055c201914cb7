//! The server's clock, as this node knows it.
//!
//! DynamoDB has no clock in its expressions, but every answer of AWS is dated: `Date`, in whole seconds. When an answer with
//! the date D was made, the server's clock stood between D and D + 1 s, and that was between the moments when the call was sent
//! and when its answer came. Each answer narrows the interval in which the difference between the server's clock and this
//! node's steady one must lie. A write is stamped by the lower bound. An answer that contradicts the interval (a clock was set,
//! or two servers differ) begins a new one.
//!
//! Answers without a date (an emulator's) are taken to be dated by this machine's wall clock; a finding says so.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use onlyonce_core::time::Timestamp;

use crate::clock::steady;

/// A date has whole seconds.
const DATE_MICROS: i64 = 1_000_000;

/// The server's clock; see the module's documentation.
#[derive(Debug)]
pub(super) struct Clock {
    /// For tests: by so many microseconds it is taken to be later than the server says.
    ahead: Arc<AtomicI64>,
    /// Whether the last answer had no date.
    is_undated: AtomicBool,
    known: Mutex<Known>,
}

/// In microseconds: by how much the server's clock is ahead of this machine's steady one.
#[derive(Clone, Copy, Debug)]
struct Known {
    ahead_min: i64,
    ahead_max: i64,
    /// Whether the server has told its time.
    is_told: bool,
    /// The latest time that was shown to anybody: nothing is stamped or shown before it.
    latest: i64,
}

impl Clock {
    /// It begins with this machine's wall clock, which counts until the first answer.
    pub(super) fn new(ahead: Arc<AtomicI64>) -> Self {
        let offset = wall().saturating_sub(steady());
        let known = Known { ahead_min: offset, ahead_max: offset, is_told: false, latest: 0 };
        Self { ahead, is_undated: AtomicBool::new(false), known: Mutex::new(known) }
    }

    /// An answer to a call that was sent and received at these moments of the steady clock.
    pub(super) fn told(&self, sent: i64, received: i64, date: Option<&str>) {
        let date = date.and_then(|date| jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok());
        self.is_undated.store(date.is_none(), Ordering::Relaxed);
        match date {
            Some(date) => self.narrow(sent, received, date.as_microsecond(), DATE_MICROS),
            None => self.narrow(received, received, wall(), 0),
        }
    }

    /// The server's clock stood between `time` and `time + wide`, at some moment between `sent` and `received`.
    fn narrow(&self, sent: i64, received: i64, time: i64, wide: i64) {
        let (min, max) = (time.saturating_sub(received), time.saturating_add(wide).saturating_sub(sent));
        let mut known = self.known();
        let narrowed = (known.ahead_min.max(min), known.ahead_max.min(max));
        (known.ahead_min, known.ahead_max) =
            if known.is_told && narrowed.0 <= narrowed.1 { narrowed } else { (min, max) };
        known.is_told = true;
    }

    /// The store's now: never before one that was shown.
    pub(super) fn now(&self) -> Timestamp {
        let mut known = self.known();
        known.latest = known.latest.max(steady().saturating_add(known.ahead_min));
        Timestamp::from_micros(known.latest.saturating_add(self.ahead.load(Ordering::Acquire)))
    }

    /// The server's time, for signatures: it may be set back.
    pub(super) fn signing_time(&self) -> Timestamp {
        Timestamp::from_micros(steady().saturating_add(self.known().ahead_min))
    }

    /// Whether answers have no date, so that this machine's wall clock counts.
    pub(super) fn is_undated(&self) -> bool {
        self.is_undated.load(Ordering::Relaxed)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This machine's wall clock, in microseconds.
fn wall() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2015-10-21 07:28:00 UTC, in milliseconds.
    const DATE: &str = "Wed, 21 Oct 2015 07:28:00 GMT";
    const DATE_MILLIS: i64 = 1_445_412_480_000;

    /// All in milliseconds; by how much the server's clock is ahead of `DATE_MILLIS`.
    fn tell(clock: &Clock, sent: i64, received: i64, date: &str) -> (i64, i64) {
        clock.told(sent * 1_000, received * 1_000, Some(date));
        let known = clock.known();
        (known.ahead_min / 1_000 - DATE_MILLIS, known.ahead_max / 1_000 - DATE_MILLIS)
    }

    /// R08
    #[test]
    fn each_answer_narrows_what_is_known() {
        let clock = Clock::new(Arc::default());
        assert_eq!(tell(&clock, 0, 10, DATE), (-10, 1_000), "the wall clock of this machine does not count");
        assert_eq!(tell(&clock, 700, 710, DATE), (-10, 300), "it was still the same second");
        let next = "Wed, 21 Oct 2015 07:28:01 GMT";
        assert_eq!(tell(&clock, 800, 810, next), (190, 300), "the second has begun");
        assert_eq!(tell(&clock, 900, 2_000, next), (190, 300), "a slow answer says nothing new");
        assert!(!clock.is_undated());
    }

    /// R08
    #[test]
    fn a_clock_that_was_set_is_believed_and_the_time_does_not_run_backwards() {
        let clock = Clock::new(Arc::default());
        let sent = steady();
        let date = |date| clock.told(sent, steady(), Some(date));
        date("Sat, 21 Oct 2045 07:28:00 GMT");
        let late = clock.now();
        assert!(late.as_micros() / 1_000 > DATE_MILLIS + 900_000_000_000, "{late:?}");
        date(DATE);
        assert!(clock.now() >= late);
        assert!(clock.signing_time() < late, "a signature must have the server's own time");
        date("Thu, 21 Oct 2055 07:28:00 GMT");
        assert!(clock.now() > late);
    }

    /// R08
    #[test]
    fn without_a_date_the_wall_clock_of_this_machine_counts_and_that_is_known() {
        let clock = Clock::new(Arc::default());
        for date in [None, Some("yesterday")] {
            clock.told(0, steady(), Some(DATE));
            clock.told(0, steady(), date);
            assert!(clock.is_undated());
            assert!((clock.signing_time().as_micros() - wall()).abs() < 1_000_000);
        }
    }
}
