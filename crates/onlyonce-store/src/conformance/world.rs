//! Helpers of the cases: make records, write them, and wait for the store's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::History;
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Asking, Draft, Effects, Id, Progress, Reason, Record, Response, Revision, Seen, Source, State, StateName,
    StateSet, Terms, Token,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::{Timestamp, When};

use super::PATIENCE;
use super::random::Random;
use crate::outbox::Message;
use crate::{Change, Query, Store, Swapped};

/// Long enough never to pass while a case runs.
pub(super) const HOUR: Duration = Duration::from_secs(3600);
/// Short enough to wait for, long enough to show on a clock of milliseconds.
pub(super) const MOMENT: Duration = Duration::from_millis(20);
/// How many swaps a loop may lose before the case fails.
const SWAPS_MAX: usize = 10_000;
/// The pause between two reads of the clock.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

pub(super) type Shared = Arc<dyn Store>;

/// The seed of a case's random input, which is printed.
pub(super) fn seed() -> u64 {
    let seed = std::env::var("ONLYONCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| u64::from(since.subsec_nanos()))
    });
    println!("repeat with ONLYONCE_SEED={seed}");
    seed
}

/// A revision that this process has not used before.
pub(super) fn mint() -> Revision {
    static MINTED: AtomicU64 = AtomicU64::new(0);
    Revision(Random::new(MINTED.fetch_add(1, Ordering::Relaxed)).number())
}

/// A token that this process has not used before.
pub(super) fn mint_token() -> Token {
    let (high, low) = (mint().0, mint().0);
    Token(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
}

pub(super) fn scope(number: u8) -> Scope {
    Scope::stored([number; 32], None)
}

pub(super) fn terms() -> Terms {
    Terms {
        effects: Effects::Opaque,
        lease: HOUR,
        deadline: 2 * HOUR,
        horizon: HOUR,
        retention: HOUR,
        downstream_retention: HOUR,
        reconcile_first: None,
    }
}

/// A record of scope 1.
pub(super) fn draft(key: &str, state: State<When>) -> (Id, Box<Draft>) {
    draft_in(scope(1), key, state)
}

pub(super) fn draft_in(scope: Scope, key: &str, state: State<When>) -> (Id, Box<Draft>) {
    let key = Key::stored(key);
    let id = Id::of(&scope, &key);
    let draft = Box::new(Record {
        scope,
        key,
        route: Some("POST /payments".into()),
        fingerprint: Fingerprint { version: 1, raw: [9; 32], canonical: None },
        terms: terms(),
        attempt: 1,
        token: mint_token(),
        relies_on_memory: false,
        created_at: When::WRITE,
        began_at: When::WRITE,
        written_at: When::WRITE,
        progress: Progress::default(),
        evidence: None,
        accepted: None,
        history: History::default(),
        trace: None,
        state,
    });
    (id, draft)
}

pub(super) fn pending(expires_at: When) -> State<When> {
    State::Pending { expires_at }
}

pub(super) fn running(lapses_at: When) -> State<When> {
    State::Running { lapses_at }
}

pub(super) fn completed(expires_at: When) -> State<When> {
    State::Completed { response: Some(response("done")), by: Source::Attempt, expires_at }
}

pub(super) fn retryable(expires_at: When) -> State<When> {
    State::Retryable { retry_after: None, expires_at, stuck_since: None }
}

pub(super) fn unknown(ask_at: Option<When>) -> State<When> {
    let asking = Asking::default();
    State::Unknown { reason: Reason::Lapsed, since: When::WRITE, asking, ask_at, dead_letter: false }
}

pub(super) fn response(body: &'static str) -> Arc<Response> {
    Arc::new(Response { status: 201, headers: Vec::new(), body: Bytes::from_static(body.as_bytes()) })
}

pub(super) fn message(key: &str) -> Message {
    Message::new(key, "billing", Bytes::from_static(b"\x00\xff paid"))
}

pub(super) fn change(expected: Option<Revision>, next: Box<Draft>) -> Change {
    Change::new(expected, mint(), next)
}

pub(super) async fn swap(store: &Shared, id: Id, change: Change) -> Swapped {
    store.swap(id, change).await.expect("the store answers a swap")
}

pub(super) async fn load(store: &Shared, id: Id) -> Option<Seen> {
    store.load(id).await.expect("the store answers a look")
}

/// The record, which must exist.
pub(super) async fn look(store: &Shared, id: Id) -> Seen {
    load(store, id).await.expect("the record is there")
}

/// Writes a record that must not exist yet.
pub(super) async fn insert(store: &Shared, (id, draft): (Id, Box<Draft>)) -> Seen {
    applied(swap(store, id, change(None, draft)).await)
}

/// Writes over the record that was read, which must not have changed.
pub(super) async fn write(store: &Shared, id: Id, seen: &Seen, next: Box<Draft>) -> Seen {
    applied(swap(store, id, change(Some(seen.revision), next)).await)
}

#[track_caller]
pub(super) fn applied(swapped: Swapped) -> Seen {
    match swapped {
        Swapped::Applied(seen) => seen,
        Swapped::Lost(seen) => panic!("the swap must apply, and was lost to {seen:?}"),
    }
}

#[track_caller]
pub(super) fn lost(swapped: Swapped) -> Option<Seen> {
    match swapped {
        Swapped::Lost(seen) => seen,
        Swapped::Applied(seen) => panic!("the swap must be lost, and applied as {seen:?}"),
    }
}

/// What the engine does with a rule: load, apply the rule, swap, and repeat if the swap was lost. `None` from the rule
/// ends it.
pub(super) async fn drive(
    store: &Shared,
    id: Id,
    mut rule: impl FnMut(Option<&Seen>) -> Option<Box<Draft>>,
) -> Option<Seen> {
    let mut seen = load(store, id).await;
    for _ in 0..SWAPS_MAX {
        let next = rule(seen.as_ref())?;
        give_way().await;
        match swap(store, id, change(seen.map(|seen| seen.revision), next)).await {
            Swapped::Applied(seen) => return Some(seen),
            Swapped::Lost(current) => seen = current,
        }
    }
    panic!("lost {SWAPS_MAX} swaps in a row");
}

/// Yields between two steps: on a store that never waits, tasks would otherwise not interleave.
pub(super) async fn give_way() {
    const TURNS: usize = 3;
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}

/// Reads a record until the store's own clock has reached `at`.
pub(super) async fn wait_until(store: &Shared, id: Id, at: Timestamp) -> Seen {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let seen = look(store, id).await;
        if seen.now >= at {
            return seen;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    panic!("the store's clock did not reach {at:?} within {PATIENCE:?}");
}

/// The store's now, read from a record in a scope of its own that is never due.
pub(super) async fn now(store: &Shared) -> Timestamp {
    insert(store, draft_in(scope(0xcc), &format!("clock {}", mint().0), unknown(None))).await.now
}

pub(super) fn everything(limit: usize) -> Query {
    Query::all(limit)
}

pub(super) fn of_state(state: StateName, limit: usize) -> Query {
    Query { states: state.into(), ..everything(limit) }
}

pub(super) fn due(limit: usize) -> Query {
    Query::due(StateSet::ALL, limit)
}

/// Every record of a listing, page by page. Asserts that no page exceeds the limit.
pub(super) async fn list(store: &Shared, mut query: Query) -> Vec<(Id, Seen)> {
    let mut records = Vec::new();
    for _ in 0..SWAPS_MAX {
        let page = store.scan(query.clone()).await.expect("the store answers a listing");
        assert!(page.records.len() <= query.limit, "a page of {} for {}", page.records.len(), query.limit);
        records.extend(page.records);
        let Some(next) = page.next else { return records };
        query.after = Some(next);
    }
    panic!("a listing of {SWAPS_MAX} pages did not end");
}

pub(super) fn ids(records: &[(Id, Seen)]) -> Vec<Id> {
    records.iter().map(|(id, _)| *id).collect()
}

/// The moment `span` before `moment`.
pub(super) fn before(moment: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).expect("a span of a test");
    Timestamp::from_micros(moment.as_micros() - micros)
}
