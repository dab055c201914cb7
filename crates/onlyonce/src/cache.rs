//! Completed records, kept in the process so that a replay costs no trip.
//!
//! Never the truth: only completed records are here, which do not change while they are kept, and none is used past
//! its expiry, nor after an operator had it changed (`epoch.rs`). Losing the cache, or never filling it, changes no
//! decision.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use onlyonce_core::history::Entry;
use onlyonce_core::machine;
use onlyonce_core::record::{Evidence, Id, Progress, Record, Response, Seen, Token, Verdict};
use onlyonce_store::hash::ById;
use quick_cache::Weighter;
use quick_cache::sync::Cache as Entries;
use quick_cache::sync::DefaultLifecycle;
use tokio::time::Instant;

/// What the cache takes at most, in bytes.
const BYTES_MAX: u64 = 64 << 20;
/// What a record takes that holds nothing: itself, and its place in the table.
const RECORD_BYTES: usize = size_of::<Id>() + size_of::<Cached>() + size_of::<Record>() + OVERHEAD_BYTES;
/// What the allocator and the table add to a record: counters, links and padding of half a dozen pieces of memory.
const OVERHEAD_BYTES: usize = 256;

#[derive(Debug)]
pub(crate) struct Cache(Entries<Id, Cached, Weight, ById>);

#[derive(Clone, Debug)]
struct Cached {
    seen: Seen,
    /// When this node asked for it.
    asked_at: Instant,
}

/// A copy of a completed record.
pub(crate) struct Copied {
    /// What the store showed, with its clock as this node reckons it now.
    pub(crate) seen: Seen,
    /// When this node asked for it.
    pub(crate) asked_at: Instant,
}

impl Cache {
    pub(crate) fn new() -> Self {
        let items = usize::try_from(BYTES_MAX / RECORD_BYTES as u64).expect("fits every address space");
        Self(Entries::with(items, BYTES_MAX, Weight, ById::default(), DefaultLifecycle::default()))
    }

    /// Keeps what may be replayed. `asked_at` is when this node asked for it.
    pub(crate) fn keep(&self, id: Id, seen: &Seen, asked_at: Instant) {
        if machine::is_replayable(seen) {
            self.0.insert(id, Cached { seen: seen.clone(), asked_at });
        }
    }

    /// The copy of a record that may still be replayed.
    pub(crate) fn find(&self, id: &Id, now: Instant) -> Option<Copied> {
        let Cached { seen, asked_at } = self.0.get(id)?;
        let seen = reckoned(seen, asked_at, now);
        if machine::is_replayable(&seen) {
            return Some(Copied { seen, asked_at });
        }
        self.0.remove(id);
        None
    }

    /// Lets go of everything.
    pub(crate) fn clear(&self) {
        self.0.clear();
    }
}

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Id, Cached> for Weight {
    fn weight(&self, _id: &Id, cached: &Cached) -> u64 {
        (RECORD_BYTES + bytes(&cached.seen.record)) as u64
    }
}

/// All that a record holds beside itself.
fn bytes(record: &Record) -> usize {
    let text = |text: &Option<Arc<str>>| text.as_deref().map_or(0, str::len);
    let Progress { recovery_point, calling, found } = &record.progress;
    let evidence = record.evidence.as_deref().map_or(0, |evidence| match &evidence.verdict {
        Verdict::Happened(found) => size_of::<Evidence>() + found.as_deref().map_or(0, response_bytes),
        Verdict::DidNotHappen { .. } | Verdict::StillUnknown => size_of::<Evidence>(),
    });
    let entries = record.history.entries.iter();
    let told =
        entries.map(|entry| text(&entry.who) + text(&entry.source) + text(&entry.detail)).sum::<usize>();
    let history = record.history.entries.capacity() * size_of::<Entry>()
        + record.history.tokens.capacity() * size_of::<Token>()
        + told;
    record.key.as_str().len()
        + record.scope.label().map_or(0, str::len)
        + text(&record.route)
        + text(recovery_point)
        + calling.as_ref().map_or(0, |calling| calling.phase.len())
        + found.as_deref().map_or(0, response_bytes)
        + evidence
        + history
        + machine::stored(record).map_or(0, |(response, _)| response_bytes(response))
}

fn response_bytes(response: &Response) -> usize {
    let headers = response.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    let places = response.headers.capacity() * size_of::<(HeaderName, HeaderValue)>();
    size_of::<Response>() + places + headers.sum::<usize>() + response.body.len()
}

/// What the store showed when it was asked at `asked_at`, with its clock as this node reckons it at `now`: counted from
/// before the question, it is never behind the store's own.
pub(crate) fn reckoned(seen: Seen, asked_at: Instant, now: Instant) -> Seen {
    // One more microsecond, which is what the store's clock may be past the moment it shows.
    let passed = now.saturating_duration_since(asked_at) + Duration::from_micros(1);
    Seen { now: seen.now.plus(passed), ..seen }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onlyonce_core::fingerprint::Fingerprint;
    use onlyonce_core::history::{History, What};
    use onlyonce_core::key::Key;
    use onlyonce_core::policy::Policy;
    use onlyonce_core::record::{Calling, Effects, Revision, Source, State};
    use onlyonce_core::scope::Scope;
    use onlyonce_core::time::Timestamp;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);
    const RETENTION: Duration = Duration::from_secs(3_600);

    fn answer(headers: Vec<(HeaderName, HeaderValue)>, body: &str) -> Arc<Response> {
        Arc::new(Response { status: 201, headers, body: Bytes::copy_from_slice(body.as_bytes()) })
    }

    fn id(number: u32) -> Id {
        let mut id = [7; 32];
        // Both ends: the table's shards and its hash go by different bytes.
        id[..4].copy_from_slice(&number.to_le_bytes());
        id[28..].copy_from_slice(&number.to_le_bytes());
        Id(id)
    }

    /// A completed record that holds next to nothing.
    fn completed(response: Arc<Response>) -> Record {
        Record {
            scope: Scope::stored([7; 32], None),
            key: Key::stored("k"),
            route: None,
            fingerprint: Fingerprint { version: 1, raw: [1; 32], canonical: None },
            terms: Policy::default().terms(),
            attempt: 1,
            token: Token([1; 16]),
            relies_on_memory: false,
            created_at: NOW,
            began_at: NOW,
            written_at: NOW,
            progress: Progress::default(),
            evidence: None,
            accepted: None,
            history: History::default(),
            trace: None,
            state: State::Completed {
                response: Some(response),
                by: Source::Attempt,
                expires_at: NOW.plus(RETENTION),
            },
        }
    }

    fn seen(record: Record) -> Seen {
        Seen { record: Arc::new(record), revision: Revision(1), now: NOW }
    }

    /// Records that hold much in one place and nothing in the others, by that place.
    fn large() -> Vec<(&'static str, Record)> {
        let text = "x".repeat(60_000);
        let empty = || completed(answer(Vec::new(), ""));
        let header = |name: &str, value: &str| {
            (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap())
        };
        let phase: Arc<str> = text.as_str().into();
        let many: Vec<_> = (0..600).map(|_| header("x-short", "1")).collect();
        let heard = Evidence {
            verdict: Verdict::Happened(Some(answer(Vec::new(), &text))),
            by: Source::Probe,
            at: NOW,
            attempt: 1,
            source: None,
        };
        let entry =
            Entry { detail: Some(text.as_str().into()), ..Entry::new(NOW, 1, What::Probe, Source::Probe) };
        vec![
            ("a header's value", completed(answer(vec![header("x-large", &text)], ""))),
            ("a header's name", completed(answer(vec![header(&text, "1")], ""))),
            ("many headers", completed(answer(many, ""))),
            ("the body", completed(answer(Vec::new(), &text))),
            ("the key", Record { key: Key::stored(&text), ..empty() }),
            ("the route", Record { route: Some(text.as_str().into()), ..empty() }),
            ("the label", Record { scope: Scope::stored([7; 32], Some(text.as_str().into())), ..empty() }),
            ("the evidence", Record { evidence: Some(Box::new(heard)), ..empty() }),
            (
                "the history",
                Record { history: History { entries: vec![entry], ..History::default() }, ..empty() },
            ),
            (
                "the recovery point",
                Record {
                    progress: Progress { recovery_point: Some(phase.clone()), ..Progress::default() },
                    ..empty()
                },
            ),
            (
                "the call under way",
                Record {
                    progress: Progress {
                        calling: Some(Calling { phase, effects: Effects::Opaque }),
                        ..Progress::default()
                    },
                    ..empty()
                },
            ),
            (
                "what a verdict found",
                Record {
                    progress: Progress { found: Some(answer(Vec::new(), &text)), ..Progress::default() },
                    ..empty()
                },
            ),
        ]
    }

    /// What is held of each record, and the records themselves.
    fn held(cache: &Cache) -> u64 {
        let response = |response: &Response| -> usize {
            let headers = response.headers.iter();
            let text: usize = headers.map(|(name, value)| name.as_str().len() + value.len()).sum();
            let slots = response.headers.capacity() * size_of::<(HeaderName, HeaderValue)>();
            size_of::<Response>() + slots + text + response.body.len()
        };
        let of_record = |record: &Record| -> usize {
            let Progress { recovery_point, calling, found } = &record.progress;
            let heard = record.evidence.as_ref().map_or(0, |evidence| match &evidence.verdict {
                Verdict::Happened(Some(found)) => response(found),
                Verdict::Happened(None) | Verdict::DidNotHappen { .. } | Verdict::StillUnknown => 0,
            });
            size_of::<Record>()
                + record.key.as_str().len()
                + record.route.as_deref().map_or(0, str::len)
                + record.scope.label().map_or(0, str::len)
                + recovery_point.as_deref().map_or(0, str::len)
                + calling.as_ref().map_or(0, |calling| calling.phase.len())
                + found.as_deref().map_or(0, response)
                + heard
                + record
                    .history
                    .entries
                    .iter()
                    .filter_map(|entry| entry.detail.as_deref())
                    .map(str::len)
                    .sum::<usize>()
                + machine::stored(record).map_or(0, |(stored, _)| response(stored))
        };
        cache
            .0
            .iter()
            .map(|(_, cached)| {
                (size_of::<Id>() + size_of::<Cached>() + of_record(&cached.seen.record)) as u64
            })
            .sum()
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_its_records_hold_the_cache_takes_no_more_than_its_bytes() {
        for (place, record) in large() {
            let cache = Cache::new();
            for number in 0..2_000 {
                cache.keep(id(number), &seen(record.clone()), Instant::now());
            }
            let held = held(&cache);
            assert!(held <= BYTES_MAX, "{place}: {held} bytes");
            assert!(held > BYTES_MAX / 2, "{place}: {held} bytes are no use of its room");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_records_are_counted_with_all_that_keeping_them_takes() {
        let cache = Cache::new();
        for number in 0..150_000 {
            cache.keep(id(number), &seen(completed(answer(Vec::new(), ""))), Instant::now());
        }
        let held = held(&cache);
        assert!(held <= BYTES_MAX, "{held} bytes");
        assert!(held > BYTES_MAX / 2, "{held} bytes are no use of its room");
    }

    /// X04, T02
    #[tokio::test(start_paused = true)]
    async fn a_copy_is_used_no_longer_than_its_record_is_kept_counted_from_before_it_was_asked_for() {
        let cache = Cache::new();
        let asked_at = Instant::now();
        let answered_after = Duration::from_secs(2);
        tokio::time::advance(answered_after).await;
        // The store's clock when it looked: any moment between question and answer.
        cache.keep(id(1), &seen(completed(answer(Vec::new(), ""))), asked_at);
        let just_before = asked_at + RETENTION - Duration::from_micros(2);
        assert!(cache.find(&id(1), just_before).is_some());
        assert!(cache.find(&id(1), asked_at + RETENTION).is_none());
        assert!(cache.find(&id(1), just_before).is_none(), "and is gone then");
    }
}
