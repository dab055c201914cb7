//! A circuit breaker: stops hammering a store that does not answer, or refuses this node.
//!
//! Only those failures count. Losing a swap, a key that is in progress or reused: those are answers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onlyonce_store::ErrorKind;
use tokio::time::Instant;

/// So many failures in a row open that of a store.
const FAILURES_MAX: u32 = 5;
/// How long it stays open before one call may try.
const OPEN_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Breaker {
    /// So many failures in a row open it.
    failures_max: u32,
    /// Failures in a row. All that a healthy store costs is a look at this.
    failures: AtomicU32,
    /// When one call may try, and what the last one met; meaningful while the circuit is open.
    open: Mutex<Option<Open>>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    try_at: Instant,
    met: ErrorKind,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::after(FAILURES_MAX)
    }
}

impl Breaker {
    /// One that opens after so many failures in a row.
    pub(crate) fn after(failures_max: u32) -> Self {
        Self { failures_max, failures: AtomicU32::new(0), open: Mutex::default() }
    }

    /// Whether every caller is let through.
    pub(crate) fn is_closed(&self) -> bool {
        self.failures.load(Ordering::Relaxed) < self.failures_max
    }

    /// How long to stay away and what the last caller met, where the circuit is open. Past that, one caller is let through and
    /// the others stay away until it has come back.
    pub(crate) fn check(&self) -> Result<(), (Duration, ErrorKind)> {
        if self.is_closed() {
            return Ok(());
        }
        let now = Instant::now();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.as_mut() {
            Some(open) if now < open.try_at => Err((open.try_at - now, open.met)),
            Some(open) => {
                open.try_at = now + OPEN_FOR;
                Ok(())
            }
            // Who opens it is about to say so.
            None => Ok(()),
        }
    }

    /// The store answered.
    pub(crate) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// The store did not answer, or cannot be used by this node.
    pub(crate) fn failed(&self, met: ErrorKind) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures >= self.failures_max {
            let open = Open { try_at: Instant::now() + OPEN_FOR, met };
            *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
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
            breaker.failed(ErrorKind::Misconfigured);
        }
        assert_eq!(breaker.check(), Err((OPEN_FOR, ErrorKind::Misconfigured)), "as the last caller was told");
        tokio::time::advance(OPEN_FOR).await;
        assert_eq!(breaker.check(), Ok(()), "one caller tries");
        assert!(breaker.check().is_err(), "the others stay away");
        breaker.succeeded();
        assert_eq!(breaker.check(), Ok(()));
    }

    /// X02
    #[tokio::test(start_paused = true)]
    async fn an_answer_between_failures_keeps_it_closed() {
        let breaker = Breaker::default();
        for _ in 0..10 * FAILURES_MAX {
            breaker.failed(ErrorKind::Misconfigured);
            breaker.succeeded();
        }
        assert_eq!(breaker.check(), Ok(()));
    }
}
