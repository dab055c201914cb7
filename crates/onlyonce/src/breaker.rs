//! A circuit breaker: stops hammering a store that does not answer.
//!
//! Only failures to answer count. Losing a swap, a key that is in progress or reused: those are answers.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// So many failures in a row open it.
const FAILURES_MAX: u32 = 5;
/// How long it stays open before one call may try.
const OPEN_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Breaker(Mutex<Circuit>);

#[derive(Debug, Default)]
struct Circuit {
    failures: u32,
    /// Open until then; afterwards one call at a time tries.
    open_until: Option<Instant>,
}

impl Breaker {
    /// How long to stay away, where the circuit is open. Past that, one caller is let through and the others stay
    /// away until it has come back.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Duration> {
        let mut circuit = self.lock();
        match circuit.open_until {
            None => Ok(()),
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                circuit.open_until = Some(now + OPEN_FOR);
                Ok(())
            }
        }
    }

    /// The store answered.
    pub(crate) fn succeeded(&self) {
        let mut circuit = self.lock();
        if circuit.failures > 0 {
            *circuit = Circuit::default();
        }
    }

    /// The store did not answer.
    pub(crate) fn failed(&self, now: Instant) {
        let mut circuit = self.lock();
        circuit.failures = circuit.failures.saturating_add(1);
        if circuit.failures >= FAILURES_MAX {
            circuit.open_until = Some(now + OPEN_FOR);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Circuit> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X02
    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_caller_try() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..FAILURES_MAX {
            assert_eq!(breaker.check(start), Ok(()));
            breaker.failed(start);
        }
        assert_eq!(breaker.check(start), Err(OPEN_FOR));
        let later = start + OPEN_FOR;
        assert_eq!(breaker.check(later), Ok(()), "one caller tries");
        assert_eq!(breaker.check(later), Err(OPEN_FOR), "the others stay away");
        breaker.succeeded();
        assert_eq!(breaker.check(later), Ok(()));
    }

    /// X02
    #[test]
    fn an_answer_between_failures_keeps_it_closed() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..10 * FAILURES_MAX {
            breaker.failed(now);
            breaker.succeeded();
        }
        assert_eq!(breaker.check(now), Ok(()));
    }
}
