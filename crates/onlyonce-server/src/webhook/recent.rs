//! Events that came lately, to say of a second delivery that it is one. Nothing relies on it: the record would say the same.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// How many events are remembered.
const EVENTS_MAX: usize = 10_000;

/// An event: its source, its id and its body. The id alone may be that of what the event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(source: &str, id: &str, body: &[u8]) -> Self {
        let mut digest = Sha256::new();
        for part in [source.as_bytes(), id.as_bytes(), body] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        Self(digest.finalize().into())
    }
}

/// The events that this process has seen lately.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<Events>);

#[derive(Debug, Default)]
struct Events {
    until: HashMap<Fingerprint, Instant>,
    order: VecDeque<Fingerprint>,
}

impl Recent {
    pub(crate) fn has(&self, event: &Fingerprint) -> bool {
        self.events().until.get(event).is_some_and(|until| Instant::now() < *until)
    }

    pub(crate) fn remember(&self, event: Fingerprint, span: Duration) {
        let now = Instant::now();
        let mut events = self.events();
        let Some(until) = now.checked_add(span) else { return };
        if events.until.insert(event, until).is_none() {
            events.order.push_back(event);
        }
        while let Some(first) = events.order.front().copied() {
            let is_over = events.until.get(&first).is_none_or(|until| *until <= now);
            if !is_over && events.order.len() <= EVENTS_MAX {
                break;
            }
            events.order.pop_front();
            events.until.remove(&first);
        }
    }

    fn events(&self) -> std::sync::MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounded in number and in time.
    #[tokio::test(start_paused = true)]
    async fn an_event_is_remembered_for_a_while_and_not_for_ever() {
        let recent = Recent::default();
        let event = |number: u32| Fingerprint::of("bank", &number.to_string(), b"{}");
        recent.remember(event(1), Duration::from_secs(600));
        assert!(recent.has(&event(1)));
        assert!(!recent.has(&event(2)));
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(!recent.has(&event(1)));
        for number in 0..20_000 {
            recent.remember(event(number), Duration::from_secs(600));
        }
        assert_eq!(recent.events().order.len(), EVENTS_MAX);
        assert_eq!(recent.events().until.len(), EVENTS_MAX);
        assert!(recent.has(&event(19_999)) && !recent.has(&event(1)));
    }

    #[test]
    fn another_body_under_the_same_id_is_another_event() {
        assert_ne!(Fingerprint::of("a", "1", b"{}"), Fingerprint::of("a", "1", b"{ }"));
        assert_ne!(Fingerprint::of("a", "1", b"{}"), Fingerprint::of("b", "1", b"{}"));
        assert_ne!(Fingerprint::of("a", "b", b"c"), Fingerprint::of("a", "", b"bc"));
    }
}
