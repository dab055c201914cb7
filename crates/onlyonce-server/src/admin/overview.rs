//! Whether anything is stuck, since when, and how the node is doing: the first thing an operator asks.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use onlyonce::Engine;
use onlyonce::machine;
use onlyonce::operate::CONTRADICTION;
use onlyonce::probe::Failing;
use onlyonce::record::{Seen, StateName};
use onlyonce::scope::Scope;
use onlyonce::store::audit::{self, Written};
use onlyonce::store::outbox::{self, Census, Item, State};
use onlyonce::store::{Count, Error, ErrorKind, Query};
use onlyonce::time::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use super::Admin;
use super::call::Call;
use super::health;
use super::refusal::Refusal;
use crate::view;

/// How long the store may take.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How many dead letters are read at once.
const DEAD_LETTERS_PAGE: usize = 500;
/// How long dead letters are counted: with more than that many, "at least so many" is enough to act on.
const COUNT_WITHIN: Duration = Duration::from_millis(40);
/// How long a contradiction is shown.
const CONTRADICTIONS_FOR_MICROS: i64 = 24 * 3600 * 1_000_000;
/// How many contradictions are counted, and how many are named.
const CONTRADICTIONS_PAGE: usize = 500;
const CONTRADICTIONS_NAMED: usize = 10;

/// `GET /v1/overview`
pub(super) async fn show(call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let kept = Kept::look(&call.admin.engine).await?;
    let mut told = told(&call.admin, Some(&kept), Age::Told).await;
    told["you"] = call.caller.told();
    Ok(Json(told).into_response())
}

/// The same for the event stream, which goes on while the store does not answer: then what it keeps is null.
pub(super) async fn figures(admin: &Admin) -> Value {
    let kept = Kept::look(&admin.engine).await;
    told(admin, kept.ok().as_ref(), Age::Left).await
}

/// Whether the oldest unknown record is told with its age: in a stream that would change with every event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Told,
    Left,
}

/// What only the store knows.
struct Kept {
    records: Vec<(StateName, Count)>,
    oldest_unknown: Option<Seen>,
    oldest_pending: Option<Duration>,
    dead_letters: DeadLetters,
    contradictions: audit::Page,
    failing_probes: Vec<Failing>,
    /// None where the store keeps no messages.
    messages: Option<Census>,
    /// The oldest dead letter among the messages.
    dead_message: Option<Item>,
}

impl Kept {
    async fn look(engine: &Engine) -> Result<Self, Error> {
        let looked = timeout(LOOK_WITHIN, Self::look_at(engine)).await;
        looked.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the store did not answer in time")))
    }

    async fn look_at(engine: &Engine) -> Result<Self, Error> {
        let records = engine.store().count().await?;
        let oldest_unknown = oldest_unknown_of(engine).await?;
        let dead_letters = DeadLetters::count(engine).await?;
        let oldest_pending = engine.list(Query::pending_since(1)).await?.records;
        let oldest_pending = oldest_pending
            .first()
            .and_then(|(_, seen)| machine::pending_since(&seen.record).map(|since| seen.now.since(since)));
        let contradictions = contradictions(engine).await?;
        let failing_probes = engine.failing_probes_of_all().await?;
        let messages = engine.message_census().await?;
        let dead_message = match messages.as_ref().map(dead_messages) {
            Some(Some(0)) | None => None,
            Some(_) => {
                let dead = outbox::Query { state: Some(State::Dead), limit: 1, ..outbox::Query::default() };
                engine.messages(dead).await?.items.into_iter().next()
            }
        };
        Ok(Self {
            records,
            oldest_unknown,
            oldest_pending,
            dead_letters,
            contradictions,
            failing_probes,
            messages,
            dead_message,
        })
    }

    /// How many records are unknown: at least the one that was seen.
    fn unknown(&self) -> u64 {
        let counted = self.records.iter().find(|(state, _)| state.as_str() == "unknown");
        let counted = counted.and_then(|(_, count)| count.number()).unwrap_or(0);
        counted.max(u64::from(self.oldest_unknown.is_some()))
    }
}

/// Half-done work is listed beside what is unknown, and nobody doubts what became of it.
async fn oldest_unknown_of(engine: &Engine) -> Result<Option<Seen>, Error> {
    let mut query = Query { states: machine::ASKED, ..Query::unknown_since(1) };
    loop {
        let page = engine.list(query.clone()).await?;
        if let Some((_, seen)) = page.records.into_iter().next() {
            return Ok(Some(seen));
        }
        let Some(next) = page.next else { return Ok(None) };
        query.after = Some(next);
    }
}

/// The last day's, by the store's clock: whichever node was told.
async fn contradictions(engine: &Engine) -> Result<audit::Page, Error> {
    let now = engine.store().epoch().await?.now;
    let query = audit::Query {
        action: Some(CONTRADICTION.into()),
        from: Some(Timestamp::from_micros(now.as_micros() - CONTRADICTIONS_FOR_MICROS)),
        limit: CONTRADICTIONS_PAGE,
        ..audit::Query::default()
    };
    engine.read_audit(query).await
}

/// How many messages were given up, where that is known.
pub(super) fn dead_messages(census: &Census) -> Option<u64> {
    census.counts.iter().find(|(state, _)| *state == State::Dead).and_then(|(_, count)| count.number())
}

/// Records that the reconciler has given up on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeadLetters {
    pub(super) count: u64,
    /// There are more.
    is_more: bool,
    /// Since when the oldest is unknown.
    since: Option<Timestamp>,
}

impl DeadLetters {
    pub(super) async fn count(engine: &Engine) -> Result<Self, Error> {
        let began = Instant::now();
        let mut counted = Self::default();
        let mut query = Query { dead_letter: true, ..Query::unknown_since(DEAD_LETTERS_PAGE) };
        loop {
            let page = engine.list(query.clone()).await?;
            let oldest = page.records.first().and_then(|(_, seen)| machine::unknown_since(&seen.record));
            counted.since = counted.since.or(oldest);
            counted.count += page.records.len() as u64;
            query.after = page.next;
            counted.is_more = query.after.is_some();
            if !counted.is_more || began.elapsed() >= COUNT_WITHIN {
                return Ok(counted);
            }
        }
    }
}

async fn told(admin: &Admin, kept: Option<&Kept>, age: Age) -> Value {
    let health = admin.engine.health(admin.store_timeout).await;
    let traffic = admin.engine.traffic();
    json!({
        "at": now(),
        "node": &*admin.node,
        "version": env!("CARGO_PKG_VERSION"),
        "store": health::store(health),
        "records": kept.map(records),
        "oldest_unknown": kept.and_then(|kept| oldest_unknown(kept, age)),
        "dead_letters": {
            "keys": kept.map(|kept| kept.dead_letters.count),
            "messages": kept.and_then(|kept| kept.messages.as_ref()).and_then(dead_messages),
        },
        "oldest_message_seconds": kept.and_then(|kept| oldest_message(kept, age)),
        "oldest_pending_seconds": kept.and_then(|kept| kept.oldest_pending).map(|age| age.as_secs_f64()),
        "decisions_per_minute": admin.minute.decisions(&traffic),
        "added_latency_seconds": admin.minute.added(&traffic),
        "workers": workers(&admin.engine),
        "busiest": busiest(&admin.minute.busiest(&traffic)),
        "needs_you": needs_you(&admin.engine, kept),
        "ledger": admin.ledger.get().map(|ledger| (ledger.0)()),
    })
}

fn records(kept: &Kept) -> Value {
    let counts = kept.records.iter().map(|(state, count)| {
        let count = count.number().map_or(Value::Null, Value::from);
        (state.as_str().to_owned(), count)
    });
    Value::Object(counts.collect())
}

fn oldest_unknown(kept: &Kept, age: Age) -> Option<Map<String, Value>> {
    let seen = kept.oldest_unknown.as_ref()?;
    let mut item = view::item(&seen.record);
    let since = machine::unknown_since(&seen.record);
    if let (Age::Told, Some(since)) = (age, since) {
        item.insert("age_seconds".to_owned(), seen.now.since(since).as_secs_f64().into());
    }
    Some(item)
}

/// For how long the message has been due that has been so the longest.
fn oldest_message(kept: &Kept, age: Age) -> Option<f64> {
    let oldest = kept.messages.as_ref()?.oldest.as_ref()?;
    match age {
        Age::Told => Some(oldest.age.as_secs_f64()),
        Age::Left => None,
    }
}

/// What somebody has to do something about, the most urgent first.
fn needs_you(engine: &Engine, kept: Option<&Kept>) -> Vec<Value> {
    let mut needs = Vec::new();
    if let Some(kept) = kept {
        let since = kept.oldest_unknown.as_ref().and_then(|seen| machine::unknown_since(&seen.record));
        if let Some(since) = since {
            needs.push(json!({ "what": "unknown", "count": kept.unknown(), "since": view::moment(since) }));
        }
        let DeadLetters { count, is_more, since } = kept.dead_letters;
        if let Some(since) = since {
            let since = view::moment(since);
            needs.push(json!({ "what": "dead_letter", "count": count, "is_more": is_more, "since": since }));
        }
        if let Some(item) = &kept.dead_message {
            let since = item.errors.last().map_or(item.created_at, |error| error.at);
            let count = kept.messages.as_ref().and_then(dead_messages).unwrap_or(0).max(1);
            needs.push(json!({ "what": "dead_message", "count": count, "since": view::moment(since) }));
        }
        needs.extend(contradicted(&kept.contradictions));
    }
    let mut failing = kept.map_or_else(|| engine.failing_probes(), |kept| kept.failing_probes.clone());
    failing.sort_by_key(|failing| failing.since);
    needs.extend(failing.iter().map(|failing| {
        json!({
            "what": "probe_failing",
            "count": failing.failures,
            "since": view::moment(failing.since),
            "route": &*failing.route,
            "detail": &*failing.says,
        })
    }));
    needs
}

/// Two sources disagree about what became of some requests: how many, since when, and the last of them by key.
fn contradicted(page: &audit::Page) -> Option<Value> {
    let oldest = page.entries.last()?;
    let named = page.entries.iter().take(CONTRADICTIONS_NAMED).map(|Written { at, entry }| {
        json!({
            "at": view::moment(*at),
            "scope": entry.scope.map(|digest| Scope::stored(digest, None).to_string()),
            "scope_label": entry.scope_label.as_deref(),
            "key": entry.key.as_deref(),
            "source": &*entry.who,
        })
    });
    Some(json!({
        "what": CONTRADICTION,
        "count": page.entries.len(),
        "is_more": page.next.is_some(),
        "since": view::moment(oldest.at),
        "records": named.collect::<Vec<_>>(),
    }))
}

fn busiest(scopes: &[(Scope, u64)]) -> Vec<Value> {
    let told = scopes.iter().map(|(scope, count)| {
        json!({ "scope": short(scope), "scope_label": scope.label(), "duplicates_per_minute": count })
    });
    told.collect()
}

/// A scope as metrics and the overview name it: its first 16 hex digits.
pub(super) fn short(scope: &Scope) -> String {
    scope.to_string().chars().take(16).collect()
}

fn workers(engine: &Engine) -> Value {
    let rounds = engine.rounds().into_iter().map(|(worker, round)| {
        let ran_at = jiff::Timestamp::now() - round.ended_at.elapsed();
        (worker.to_owned(), json!({ "ran_at": rfc3339(ran_at), "took_seconds": round.took.as_secs_f64() }))
    });
    Value::Object(rounds.collect())
}

/// The time by this node's clock.
fn now() -> String {
    rfc3339(jiff::Timestamp::now())
}

fn rfc3339(at: jiff::Timestamp) -> String {
    view::moment(Timestamp::from_micros(at.as_microsecond()))
}
