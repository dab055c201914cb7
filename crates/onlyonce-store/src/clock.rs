//! The clocks of embedded engines.
//!
//! An engine with a server takes the time from the server. An engine in this process reads a [`Clock`], which keeps what
//! every engine promises of its time:
//!
//! 1. It never runs backwards, on any thread.
//! 2. It is never before an earlier stamp in the store ([`SystemClock::not_before`]).
//! 3. It follows the machine's monotonic clock, suspends included, from the wall clock's time at the start. Setting the wall
//!    clock while the process runs changes nothing: no lease lapses and nothing expires by it. The departure is logged, is
//!    the metric `onlyonce_clock_departure_seconds`, and is a finding of the store.
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
use std::time::{Duration, SystemTime};

use onlyonce_core::time::Timestamp;

use crate::{Finding, Level};

/// The clock of an embedded engine. It never runs backwards.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time, in microseconds.
    fn now(&self) -> Timestamp;

    /// A finding about the clock, if there is one.
    fn examine(&self) -> Option<Finding> {
        None
    }
}

/// The machine's clock: the wall clock's time at the start, plus the monotonic clock's time since.
#[derive(Debug)]
pub struct SystemClock {
    machine: Box<dyn Machine>,
    /// Added to the monotonic clock's microseconds.
    offset: i64,
    /// When the wall clock is compared next, by the monotonic clock.
    look_at: AtomicI64,
    /// The departure when it was last logged.
    logged: AtomicI64,
}

/// How often the wall clock is compared.
const LOOK_EVERY_MICROS: i64 = 1_000_000;
/// A departure that is logged; gradual adjustment of a clock stays below it.
const DEPARTURE_MICROS: i64 = 2_000_000;

impl SystemClock {
    /// The machine's clock, starting now.
    pub fn new() -> Self {
        Self::not_before(Timestamp::from_micros(i64::MIN))
    }

    /// The same, but not before `stamp`: for an engine that finds stamps of an earlier process in its file.
    pub fn not_before(stamp: Timestamp) -> Self {
        Self::on(Box::new(System), stamp)
    }

    fn on(machine: Box<dyn Machine>, stamp: Timestamp) -> Self {
        let steady = machine.steady();
        let offset = machine.wall().max(stamp.as_micros()).saturating_sub(steady);
        Self { machine, offset, look_at: AtomicI64::new(steady), logged: AtomicI64::new(0) }
    }

    /// How far ahead of this clock the wall clock is.
    fn departure_micros(&self) -> i64 {
        let now = self.machine.steady().saturating_add(self.offset);
        self.machine.wall().saturating_sub(now)
    }

    /// Logs the wall clock's departure if it has changed.
    fn look_at_wall(&self) {
        let departure = self.departure_micros();
        #[allow(clippy::cast_precision_loss, reason = "a gauge in seconds")]
        metrics::gauge!("onlyonce_clock_departure_seconds").set(departure as f64 / 1e6);
        let change = departure.saturating_sub(self.logged.load(Ordering::Relaxed));
        if change.saturating_abs() >= DEPARTURE_MICROS {
            self.logged.store(departure, Ordering::Relaxed);
            tracing::warn!(
                ahead_seconds = departure / 1_000_000,
                "the wall clock has departed from this process's clock; records lapse and expire by the latter"
            );
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let steady = self.machine.steady();
        let due = self.look_at.load(Ordering::Relaxed);
        if due <= steady {
            let next = steady.saturating_add(LOOK_EVERY_MICROS);
            // Of the callers that find it due, one compares.
            if self.look_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.look_at_wall();
            }
        }
        Timestamp::from_micros(steady.saturating_add(self.offset))
    }

    fn examine(&self) -> Option<Finding> {
        let departure = self.departure_micros();
        (departure.saturating_abs() >= DEPARTURE_MICROS).then(|| Finding {
            level: Level::Warning,
            code: "clock.departed",
            says: format!(
                "the machine's wall clock is {} s {} of this process's clock, which counts from its start",
                departure.unsigned_abs() / 1_000_000,
                if departure > 0 { "ahead" } else { "behind" }
            ),
            remedy: "correct the wall clock before the next restart: the process starts from it".to_owned(),
        })
    }
}

/// What the machine's two clocks show, in microseconds.
trait Machine: fmt::Debug + Send + Sync + 'static {
    /// Since some moment before the process began; it includes suspends and cannot be set.
    fn steady(&self) -> i64;
    /// Since the Unix epoch.
    fn wall(&self) -> i64;
}

/// The machine's steady clock, in microseconds: it counts suspends.
#[cfg(any(feature = "dynamodb", feature = "redis"))]
pub(crate) fn steady() -> i64 {
    System.steady()
}

#[derive(Debug)]
struct System;

impl Machine for System {
    #[cfg(target_os = "linux")]
    fn steady(&self) -> i64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000)
    }

    /// The standard library's steady clock: on other systems it includes suspends, or there is none that does.
    #[cfg(not(target_os = "linux"))]
    fn steady(&self) -> i64 {
        static STARTED: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        micros(STARTED.get_or_init(std::time::Instant::now).elapsed())
    }

    /// A clock set before the epoch reads as the epoch.
    fn wall(&self) -> i64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros)
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

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine whose clocks are set by the test.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct TestMachine {
        steady: Arc<AtomicI64>,
        wall_ahead: Arc<AtomicI64>,
    }

    impl TestMachine {
        pub(crate) fn pass(&self, span: Duration) {
            self.steady.fetch_add(micros(span), Ordering::SeqCst);
        }

        /// Sets the wall clock, in seconds from where it would be.
        pub(crate) fn set_wall(&self, seconds: i64) {
            self.wall_ahead.store(seconds * 1_000_000, Ordering::SeqCst);
        }

        pub(crate) fn clock(&self, stamp: Timestamp) -> SystemClock {
            SystemClock::on(Box::new(self.clone()), stamp)
        }
    }

    impl Machine for TestMachine {
        fn steady(&self) -> i64 {
            self.steady.load(Ordering::SeqCst)
        }

        fn wall(&self) -> i64 {
            ManualClock::START + self.steady() + self.wall_ahead.load(Ordering::SeqCst)
        }
    }

    const DAY: Duration = Duration::from_secs(86_400);
    const NEVER: Timestamp = Timestamp::from_micros(i64::MIN);

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
    fn a_wall_clock_that_leaps_moves_nothing_and_is_told() {
        let machine = TestMachine::default();
        let clock = machine.clock(NEVER);
        let began = clock.now();
        for leap in [25 * 3_600, -25 * 3_600, 3] {
            assert_eq!(clock.examine(), None);
            machine.set_wall(leap);
            assert_eq!(clock.now(), began, "the wall leapt by {leap} s, and no time has passed");
            let finding = clock.examine().expect("the departure is found");
            assert!(finding.says.contains(&leap.abs().to_string()), "{finding:?}");
            machine.set_wall(0);
        }
        machine.pass(DAY);
        assert_eq!(clock.now(), began.plus(DAY), "time passes by the steady clock");
    }

    /// R08
    #[test]
    fn the_system_clock_goes_on_from_a_stamp_that_lies_ahead_of_the_wall() {
        let machine = TestMachine::default();
        let ahead = machine.clock(NEVER).now().plus(Duration::from_secs(600));
        let clock = machine.clock(ahead);
        assert_eq!(clock.now(), ahead);
        machine.pass(Duration::from_millis(2));
        assert_eq!(clock.now(), ahead.plus(Duration::from_millis(2)), "time does not stand still");
    }

    #[test]
    fn the_system_clock_shows_the_wall() {
        let now = SystemClock::new().now().as_micros();
        assert!((System.wall() - now).abs() < 1_000_000);
    }
}
