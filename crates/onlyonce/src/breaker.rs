//! A circuit breaker: stops hammering a store that does not answer.
//!
//! Only failures to answer count. Losing a swap, a key that is in progress or reused: those are answers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row open it.
const FAILURES_MAX: u32 = 5;
/// How long it stays open before one call may try.
const OPEN_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// Failures in a row. All that a healthy store costs is a look at this.
    failures: AtomicU32,
    /// When one call may try; meaningful while the circuit is open.
    try_at: Mutex<Option<Instant>>,
}

impl Breaker {
    /// How long to stay away, where the circuit is open. Past that, one caller is let through and the others stay
    /// away until it has come back.
    pub(crate) fn check(&self) -> Result<(), Duration> {
        if self.failures.load(Ordering::Relaxed) < FAILURES_MAX {
            return Ok(());
        }
        let now = Instant::now();
        let mut try_at = self.try_at.lock().unwrap_or_else(PoisonError::into_inner);
        match *try_at {
            Some(at) if now < at => Err(at - now),
            Some(_) | None => {
                *try_at = Some(now + OPEN_FOR);
                Ok(())
            }
        }
    }

    /// The store answered.
    pub(crate) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// The store did not answer.
    pub(crate) fn failed(&self) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures >= FAILURES_MAX {
            let try_at = Some(Instant::now() + OPEN_FOR);
            *self.try_at.lock().unwrap_or_else(PoisonError::into_inner) = try_at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X02
    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_lets_one_caller_try() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            assert_eq!(breaker.check(), Ok(()));
            breaker.failed();
        }
        assert_eq!(breaker.check(), Err(OPEN_FOR));
        tokio::time::advance(OPEN_FOR).await;
        assert_eq!(breaker.check(), Ok(()), "one caller tries");
        assert_eq!(breaker.check(), Err(OPEN_FOR), "the others stay away");
        breaker.succeeded();
        assert_eq!(breaker.check(), Ok(()));
    }

    /// X02
    #[tokio::test(start_paused = true)]
    async fn an_answer_between_failures_keeps_it_closed() {
        let breaker = Breaker::default();
        for _ in 0..10 * FAILURES_MAX {
            breaker.failed();
            breaker.succeeded();
        }
        assert_eq!(breaker.check(), Ok(()));
    }
}
