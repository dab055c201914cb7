//! Whether anything is stuck, since when, and how the node is doing: the first thing an operator asks.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use onlyonce::Engine;
use onlyonce::machine;
use onlyonce::record::{Seen, StateName};
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

/// `GET /v1/overview`
pub(super) async fn show(call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let kept = Kept::look(&call.admin.engine).await?;
    Ok(Json(told(&call.admin, Some(&kept), Age::Told).await).into_response())
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
    dead_letters: DeadLetters,
}

impl Kept {
    async fn look(engine: &Engine) -> Result<Self, Error> {
        let looked = timeout(LOOK_WITHIN, Self::look_at(engine)).await;
        looked.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the store did not answer in time")))
    }

    async fn look_at(engine: &Engine) -> Result<Self, Error> {
        let records = engine.store().count().await?;
        let oldest = engine.list(Query::unknown_since(1)).await?;
        let oldest_unknown = oldest.records.into_iter().next().map(|(_, seen)| seen);
        let dead_letters = match oldest_unknown {
            Some(_) => DeadLetters::count(engine).await?,
            None => DeadLetters::default(),
        };
        Ok(Self { records, oldest_unknown, dead_letters })
    }

    /// How many records are unknown: at least the one that was seen.
    fn unknown(&self) -> u64 {
        let counted = self.records.iter().find(|(state, _)| state.as_str() == "unknown");
        let counted = counted.and_then(|(_, count)| count.number()).unwrap_or(0);
        counted.max(u64::from(self.oldest_unknown.is_some()))
    }
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
        // Nothing in the gateway writes messages or accepts work yet.
        "dead_letters": { "keys": kept.map(|kept| kept.dead_letters.count), "messages": 0 },
        "oldest_message_seconds": null,
        "oldest_pending_seconds": null,
        "decisions_per_minute": admin.minute.decisions(&traffic),
        "added_latency_seconds": admin.minute.added(&traffic),
        "workers": workers(&admin.engine),
        // Counting duplicates by scope would cost every request.
        "busiest": [],
        "needs_you": needs_you(&admin.engine, kept),
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
    }
    let mut failing = engine.failing_probes();
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
