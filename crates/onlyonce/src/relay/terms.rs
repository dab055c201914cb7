//! How patient the relay is with a destination, and what a delivery that ended leads to: rules without a clock.

use std::time::Duration;

use onlyonce_store::outbox::{Claimed, Failed, OnDead, Settled};

use super::{Delivered, Exchanged};

/// A claim is never shorter.
const LEASE_MIN: Duration = Duration::from_secs(5);
/// Each pause is so many times the one before.
const GROWTH: u32 = 3;
/// How much of what went wrong is kept, and of the provider's id.
const ERROR_CHARS_MAX: usize = 1_000;
const PROVIDER_ID_CHARS_MAX: usize = 255;

/// How patient the relay is with a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a whole delivery may take.
    pub timeout: Duration,
    /// After so many failed deliveries, since it was stored or redriven, a message is a dead letter.
    pub attempts_max: u32,
    /// A failure so long after it first fell due, or was redriven, is the last, whatever was counted.
    pub give_up_after: Duration,
    /// The pause before the second delivery.
    pub retry_first: Duration,
    /// The longest pause.
    pub retry_max: Duration,
    /// How many deliveries are under way at once, on this node.
    pub at_once: usize,
    /// What a dead letter does to its group.
    pub on_dead: OnDead,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            attempts_max: 15,
            give_up_after: Duration::from_secs(7 * 24 * 3600),
            retry_first: Duration::from_secs(5),
            retry_max: Duration::from_secs(12 * 3600),
            at_once: 8,
            on_dead: OnDead::Block,
        }
    }
}

impl Terms {
    /// How long a claim is held.
    pub(super) fn lease(&self) -> Duration {
        self.timeout.saturating_mul(2).max(LEASE_MIN)
    }

    /// What the end of a delivery leads to. `random` is from 0 to 1, `took` how long ago it was claimed.
    pub(super) fn settled(
        &self,
        claimed: &Claimed,
        took: Duration,
        exchanged: Exchanged,
        random: f64,
    ) -> Settled {
        let Exchanged { delivered, status, counts } = exchanged;
        let failed = |error: &str| Failed { status, error: cut(error, ERROR_CHARS_MAX).into() };
        match delivered {
            Delivered::Done { provider_id } => {
                let provider_id = provider_id.map(|id| cut(&id, PROVIDER_ID_CHARS_MAX).into());
                Settled::Delivered { provider_id }
            }
            Delivered::Dead { error } => Settled::Dead { failed: failed(&error) },
            Delivered::Again { error, .. } if self.gives_up(claimed, took, counts) => {
                Settled::Dead { failed: failed(&error) }
            }
            Delivered::Again { after, error } => {
                let after = self.pause(claimed.failures, after, counts, random);
                Settled::Again { after, counts, failed: failed(&error) }
            }
        }
    }

    fn gives_up(&self, claimed: &Claimed, took: Duration, counts: bool) -> bool {
        let failures = claimed.failures.saturating_add(u32::from(counts));
        (counts && failures >= self.attempts_max) || claimed.age.saturating_add(took) >= self.give_up_after
    }

    /// The pause before the next delivery: a fifth more or less at random; never before what the receiver asked for, as far as
    /// that is not beyond the longest pause.
    fn pause(&self, failures: u32, asked: Option<Duration>, counts: bool, random: f64) -> Duration {
        let asked = asked.map(|asked| asked.min(self.retry_max).mul_f64(1.0 + random / 5.0));
        match asked {
            Some(asked) if !counts => asked,
            Some(asked) => asked.max(self.backoff(failures, random)),
            None => self.backoff(failures, random),
        }
    }

    fn backoff(&self, failures: u32, random: f64) -> Duration {
        let grown = GROWTH.checked_pow(failures).and_then(|times| self.retry_first.checked_mul(times));
        grown.unwrap_or(self.retry_max).min(self.retry_max).mul_f64(0.8 + 0.4 * random)
    }
}

fn cut(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onlyonce_core::record::Token;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn claimed(failures: u32, age: Duration) -> Claimed {
        Claimed {
            number: 1,
            key: "m".into(),
            destination: "d".into(),
            payload: Ok(Bytes::new()),
            content_type: "application/json".into(),
            group: None,
            delivery: failures + 1,
            failures,
            age,
            token: Token([1; 16]),
        }
    }

    fn again(after: Option<Duration>, counts: bool) -> Exchanged {
        Exchanged { delivered: Delivered::Again { after, error: "busy".into() }, status: Some(503), counts }
    }

    fn pause(settled: &Settled) -> Option<Duration> {
        match settled {
            Settled::Again { after, .. } => Some(*after),
            Settled::Delivered { .. } | Settled::Dead { .. } => None,
        }
    }

    /// W06: 5 s, 15 s, 45 s … 12 h; fifteen deliveries last a little over three days.
    #[test]
    fn pauses_grow_by_three_up_to_the_longest_and_end_as_a_dead_letter() {
        let terms = Terms::default();
        let settled = |failures, random| {
            terms.settled(&claimed(failures, Duration::ZERO), SECOND, again(None, true), random)
        };
        let pauses: Vec<_> = (0..14).map(|failures| pause(&settled(failures, 0.5)).unwrap()).collect();
        assert_eq!(pauses[..4], [5, 15, 45, 135].map(Duration::from_secs));
        assert_eq!(pauses[13], Duration::from_secs(12 * 3600));
        let sum: Duration = pauses.iter().sum();
        assert!((72..90).contains(&(sum.as_secs() / 3600)), "{sum:?}");
        assert_eq!(pause(&settled(0, 0.0)), Some(4 * SECOND));
        assert_eq!(pause(&settled(0, 1.0)), Some(6 * SECOND));
        let failed = Failed { status: Some(503), error: "busy".into() };
        assert_eq!(settled(14, 0.5), Settled::Dead { failed });
    }

    /// W06: who asks to wait does not fail; it is not asked before, and not much later.
    #[test]
    fn a_wait_is_honoured_and_counts_for_nothing() {
        let terms = Terms::default();
        let settled =
            |failures, exchanged| terms.settled(&claimed(failures, Duration::ZERO), SECOND, exchanged, 0.0);
        assert_eq!(pause(&settled(14, again(Some(60 * SECOND), false))), Some(60 * SECOND));
        assert_eq!(pause(&settled(0, again(Some(60 * SECOND), true))), Some(60 * SECOND));
        assert_eq!(pause(&settled(9, again(Some(SECOND), true))), Some((12 * 3600 * SECOND).mul_f64(0.8)));
        assert_eq!(pause(&settled(0, again(Some(Duration::MAX), false))), Some(terms.retry_max));
        assert_eq!(pause(&settled(0, again(None, false))), Some(4 * SECOND));
    }

    /// W06
    #[test]
    fn a_failure_after_so_long_is_the_last_whatever_was_counted() {
        let terms = Terms::default();
        let aged = |age, took| pause(&terms.settled(&claimed(0, age), took, again(Some(SECOND), false), 0.5));
        assert!(aged(terms.give_up_after - 2 * SECOND, SECOND).is_some());
        assert_eq!(aged(terms.give_up_after - SECOND, SECOND), None);
    }

    /// W05
    #[test]
    fn a_claim_is_held_for_twice_the_timeout_and_at_least_five_seconds() {
        let lease = |timeout| Terms { timeout, ..Terms::default() }.lease();
        assert_eq!(lease(10 * SECOND), 20 * SECOND);
        assert_eq!(lease(SECOND), 5 * SECOND);
    }

    /// W05: what is kept is bounded, also in characters of several bytes.
    #[test]
    fn what_is_kept_is_cut() {
        let terms = Terms::default();
        let done = Delivered::Done { provider_id: Some("é".repeat(300)) };
        let settled = terms.settled(&claimed(0, SECOND), SECOND, done.into(), 0.5);
        assert_eq!(settled, Settled::Delivered { provider_id: Some("é".repeat(255).into()) });
    }
}
