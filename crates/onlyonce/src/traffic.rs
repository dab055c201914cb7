//! What was decided, what it added to requests, and who retries most, since the process began: for whoever shows it to
//! operators.
//!
//! Metrics are for a system that collects them; this is for a page that has none. It costs a request two additions, and a
//! duplicate a short lock besides.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onlyonce_core::scope::Scope;

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
    /// How many duplicates came from each scope that sends many. A scope that sends few may be missing, or be counted from a
    /// later duplicate on.
    pub duplicates: Vec<(Scope, u64)>,
}

#[derive(Debug)]
pub(crate) struct Tally {
    decisions: [AtomicU64; DECISIONS],
    added: [AtomicU64; SPANS],
    duplicates: Box<[Mutex<Option<Busy>>]>,
}

/// Scopes share this many places by their digest, so memory does not grow with their number.
const PLACES: usize = 256;
/// So many duplicates of others take a place from a scope that has stopped sending any.
const LEAD_MAX: u32 = 32;

/// The scope that most of the last duplicates of a place came from.
#[derive(Debug)]
struct Busy {
    scope: Scope,
    count: u64,
    /// Rises with each duplicate of this scope, falls with each of another: at zero the place is the other's.
    lead: u32,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            decisions: [const { AtomicU64::new(0) }; DECISIONS],
            added: [const { AtomicU64::new(0) }; SPANS],
            duplicates: (0..PLACES).map(|_| Mutex::default()).collect(),
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

    /// A request came again, and was answered without running anything.
    pub(crate) fn duplicate(&self, scope: &Scope) {
        let place = usize::from(scope.digest()[0]) % PLACES;
        let mut busy = self.duplicates[place].lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *busy {
            Some(busy) if busy.scope.digest() == scope.digest() => {
                busy.count += 1;
                busy.lead = (busy.lead + 1).min(LEAD_MAX);
            }
            Some(busy) if busy.lead > 1 => busy.lead -= 1,
            Some(_) | None => *busy = Some(Busy { scope: scope.clone(), count: 1, lead: 1 }),
        }
    }

    fn duplicates(&self) -> Vec<(Scope, u64)> {
        let places = self.duplicates.iter();
        let taken = places.filter_map(|place| {
            let busy = place.lock().unwrap_or_else(PoisonError::into_inner);
            busy.as_ref().map(|busy| (busy.scope.clone(), busy.count))
        });
        taken.collect()
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
        Traffic {
            decisions: decisions.to_vec(),
            added: spans.zip(tally.added.iter().map(read)).collect(),
            duplicates: tally.duplicates(),
        }
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

    /// A scope of the first place.
    fn scope(number: u8) -> Scope {
        let mut digest = [0; 32];
        digest[1] = number;
        Scope::stored(digest, None)
    }

    /// O01
    #[test]
    fn whoever_sends_most_duplicates_is_counted_exactly_and_memory_is_bounded() {
        let tally = Tally::default();
        for number in 0..u8::MAX {
            tally.duplicate(&Scope::stored([number; 32], None));
            tally.duplicate(&Scope::stored([number; 32], None));
        }
        assert_eq!(tally.duplicates().len(), 255);
        let tally = Tally::default();
        // Three of one for each of others, all of the same place.
        for number in 1..=100 {
            (0..3).for_each(|_| tally.duplicate(&scope(0)));
            tally.duplicate(&scope(number));
        }
        assert_eq!(tally.duplicates(), [(scope(0), 300)]);
    }

    /// O01
    #[test]
    fn whoever_has_stopped_gives_way_to_whoever_has_begun() {
        let tally = Tally::default();
        (0..10_000).for_each(|_| tally.duplicate(&scope(0)));
        (0..50).for_each(|_| tally.duplicate(&scope(1)));
        assert_eq!(tally.duplicates(), [(scope(1), 50 - u64::from(LEAD_MAX) + 1)]);
    }
}
