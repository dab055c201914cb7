//! What was decided, and what it added to requests, since the process began: for whoever shows it to operators.
//!
//! Metrics are for a system that collects them; this is for a page that has none. It costs a request two additions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::counts::{DECISIONS, Decision};
use crate::engine::Engine;

/// The last one holds everything from 8 s on.
const SPANS: usize = 25;

/// What was decided, and what it added to requests, since the process began. It only rises; of two looks, the difference
/// is what happened between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many requests were decided so, by the word that metrics have for it.
    pub decisions: Vec<(&'static str, u64)>,
    /// How many requests took less than so much longer than the work itself, and not less than the span before.
    pub added: Vec<(Duration, u64)>,
}

#[derive(Debug)]
pub(crate) struct Tally {
    decisions: [AtomicU64; DECISIONS],
    added: [AtomicU64; SPANS],
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            decisions: [const { AtomicU64::new(0) }; DECISIONS],
            added: [const { AtomicU64::new(0) }; SPANS],
        }
    }
}

impl Tally {
    pub(crate) fn decided(&self, decision: Decision) {
        self.decisions[decision as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn added(&self, span: Duration) {
        self.added[place(span)].fetch_add(1, Ordering::Relaxed);
    }
}

/// Spans double from one place to the next: below 1 µs, below 2 µs, below 4 µs …
fn place(span: Duration) -> usize {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    ((u64::BITS - micros.leading_zeros()) as usize).min(SPANS - 1)
}

impl Engine {
    /// What was decided on requests to this engine, and what that added to them.
    pub fn traffic(&self) -> Traffic {
        let tally = &self.times.tally;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let decisions =
            Decision::ALL.map(|decision| (decision.name(), read(&tally.decisions[decision as usize])));
        let spans = (0..SPANS).map(|place| Duration::from_micros(1 << place));
        Traffic { decisions: decisions.to_vec(), added: spans.zip(tally.added.iter().map(read)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_below_the_bound_of_its_place_and_not_below_the_one_before() {
        for micros in [0, 1, 2, 3, 4, 999, 1_000, 1_024, 4_194_303, 4_194_304] {
            let place = place(Duration::from_micros(micros));
            assert!(micros < 1 << place, "{micros} at {place}");
            assert!(place == 0 || micros >= 1 << (place - 1), "{micros} at {place}");
        }
        assert_eq!(place(Duration::MAX), SPANS - 1);
    }
}
