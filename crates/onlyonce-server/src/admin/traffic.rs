//! The last minute's traffic, from looks at the engine's tally once a second.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onlyonce::scope::Scope;
use onlyonce::traffic::Traffic;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// What is shown as "per minute".
const WINDOW: Duration = Duration::from_secs(60);
/// How many scopes are named: metrics must not grow with the callers.
const BUSIEST_MAX: usize = 10;

/// Looks at the tally, the oldest first; the first one is a minute old, or as old as the process.
#[derive(Debug, Default)]
pub(super) struct Minute(Mutex<VecDeque<(Instant, Traffic)>>);

impl Minute {
    /// Keeps a look.
    pub(super) fn look(&self, traffic: Traffic, now: Instant) {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.push_back((now, traffic));
        // The first one that is a minute old or older stays: the window begins there.
        while looks.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            looks.pop_front();
        }
    }

    /// What was decided within the last minute, by word; without what was not.
    pub(super) fn decisions(&self, now: &Traffic) -> Value {
        let before = self.first();
        let of_before = |word: &str| {
            let found = before.decisions.iter().find(|(name, _)| *name == word);
            found.map_or(0, |(_, count)| *count)
        };
        let grown = now.decisions.iter().map(|(word, count)| (*word, count.saturating_sub(of_before(word))));
        let grown = grown.filter(|(_, count)| *count > 0);
        Value::Object(grown.map(|(word, count)| (word.to_owned(), count.into())).collect::<Map<_, _>>())
    }

    /// What was added to the time the work itself took, within the last minute; null where nothing was.
    pub(super) fn added(&self, now: &Traffic) -> Value {
        let before = self.first();
        let of_before = |place: usize| before.added.get(place).map_or(0, |(_, count)| *count);
        let grown = now.added.iter().enumerate();
        let grown: Vec<_> =
            grown.map(|(place, (span, count))| (*span, count.saturating_sub(of_before(place)))).collect();
        json!({ "p50": quantile(&grown, 50), "p99": quantile(&grown, 99) })
    }

    /// The scopes that sent most duplicates within the last minute, and how many each; at most [`BUSIEST_MAX`].
    pub(super) fn busiest(&self, now: &Traffic) -> Vec<(Scope, u64)> {
        let before = self.first();
        let of_before = |scope: &Scope, count: u64| {
            let found = before.duplicates.iter().find(|(own, _)| own.digest() == scope.digest());
            // One that is counted anew has a lower count.
            found.map_or(0, |(_, before)| *before).min(count)
        };
        let grown = now.duplicates.iter();
        let grown = grown.map(|(scope, count)| (scope.clone(), count - of_before(scope, *count)));
        let mut grown: Vec<_> = grown.filter(|(_, count)| *count > 0).collect();
        grown.sort_unstable_by_key(|(scope, count)| (Reverse(*count), *scope.digest()));
        grown.truncate(BUSIEST_MAX);
        grown
    }

    fn first(&self) -> Traffic {
        let looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.front().map_or_else(Traffic::default, |(_, traffic)| traffic.clone())
    }
}

/// In seconds, between the bounds of the place where it lies; none of no requests.
fn quantile(grown: &[(Duration, u64)], percent: u64) -> Option<f64> {
    let total: u64 = grown.iter().map(|(_, count)| count).sum();
    let wanted = (total * percent).div_ceil(100).max(1);
    let (mut below, mut from) = (0, Duration::ZERO);
    for (until, count) in grown {
        if *count > 0 && below + count >= wanted {
            let part = (wanted - below) as f64 / *count as f64;
            return Some(from.as_secs_f64() + (*until - from).as_secs_f64() * part);
        }
        below += count;
        from = *until;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(executed: u64, added: &[u64]) -> Traffic {
        let spans = (0..).map(|place| Duration::from_micros(1 << place));
        Traffic {
            decisions: vec![("executed", executed), ("replayed", 0)],
            added: spans.zip(added.iter().copied()).collect(),
            duplicates: Vec::new(),
        }
    }

    /// O02
    #[tokio::test(start_paused = true)]
    async fn what_is_shown_is_the_last_minute() {
        let minute = Minute::default();
        for second in 0..200 {
            minute.look(traffic(second, &[]), Instant::now());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(minute.decisions(&traffic(200, &[])), json!({ "executed": 61 }));
        assert!(minute.0.lock().unwrap().len() <= 61);
        assert_eq!(Minute::default().decisions(&traffic(7, &[])), json!({ "executed": 7 }));
    }

    /// O01
    #[test]
    fn the_busiest_scopes_are_those_of_the_last_minute() {
        let scope = |number: u8| Scope::stored([number; 32], None);
        let with = |duplicates: Vec<(Scope, u64)>| Traffic { duplicates, ..Traffic::default() };
        let minute = Minute::default();
        minute.look(with(vec![(scope(1), 1_000), (scope(2), 5), (scope(3), 7)]), Instant::now());
        let now = with(vec![(scope(1), 1_001), (scope(2), 9), (scope(3), 7), (scope(4), 2)]);
        assert_eq!(minute.busiest(&now), [(scope(2), 4), (scope(4), 2), (scope(1), 1)]);
        let many = with((0..100).map(|number| (scope(number), 1)).collect());
        assert_eq!(Minute::default().busiest(&many).len(), BUSIEST_MAX);
    }

    #[test]
    fn a_quantile_lies_in_the_span_of_the_request_it_is_about() {
        let of = |added: &[u64], percent| quantile(&traffic(0, added).added, percent);
        assert_eq!(of(&[], 50), None);
        assert_eq!(of(&[0, 0], 99), None);
        assert_eq!(of(&[0, 0, 1], 50), Some(0.000_004));
        let many = of(&[0, 0, 98, 0, 0, 2], 50).unwrap();
        assert!((0.000_002..0.000_004).contains(&many), "{many}");
        let slow = of(&[0, 0, 98, 0, 0, 2], 99).unwrap();
        assert!((0.000_016..=0.000_032).contains(&slow), "{slow}");
    }
}
