//! Records and audit entries as JSON: what the admin API answers, and what commands print that read a store themselves.
//!
//! Moments are RFC 3339 in UTC with milliseconds; spans are seconds, in members that end in `_seconds`. A stored answer is
//! described and never shown.

use onlyonce::Engine;
use onlyonce::history::Entry;
use onlyonce::machine::{self, Action, ActionName, Refused};
use onlyonce::operate::{self, Applied, Purged};
use onlyonce::record::{Handle, Id, Record, Revision, Seen, StateName};
use onlyonce::store::seal::Unsealable;
use onlyonce::store::{Order, Unreadable, audit, outbox};
use onlyonce::time::Timestamp;
use serde_json::{Map, Value, json};

/// A moment, as the API tells it.
pub(crate) fn moment(at: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(at) => format!("{at:.3}"),
        // Beyond the years that have a date.
        Err(_) => String::from(if at.as_micros() < 0 {
            "-009999-01-01T00:00:00.000Z"
        } else {
            "9999-12-31T23:59:59.999Z"
        }),
    }
}

/// The order in which records of a state are listed: what has waited longest comes first. Dead letters are unknown records.
pub(crate) fn order(state: Option<&str>, is_dead_letter: bool) -> Order {
    match state {
        _ if is_dead_letter => Order::UnknownSince,
        Some("unknown") => Order::UnknownSince,
        Some("pending") => Order::PendingSince,
        Some(_) | None => Order::Any,
    }
}

/// A record in a listing.
pub(crate) fn item(record: &Record) -> Map<String, Value> {
    let facts = machine::facts(record);
    let item = json!({
        "scope": record.scope.to_string(),
        "scope_label": record.scope.label(),
        "key": record.key.as_str(),
        "id": Id::of(&record.scope, &record.key).to_string(),
        "state": record.state.name().as_str(),
        "attempt": record.attempt,
        "route": record.route.as_deref(),
        "effects": record.terms.effects.as_str(),
        "reason": facts.reason.map(|reason| reason.to_string()),
        "created_at": moment(record.created_at),
        "updated_at": moment(record.written_at),
        "expires_at": facts.expires_at.map(moment),
        "since": facts.since.map(moment),
        "dead_letter": facts.dead_letter,
        "asked": facts.asking.answers,
        "ask_at": facts.ask_at.map(moment),
        "status": facts.response.map(|response| response.status),
        "by": facts.by.map(|by| by.as_str()),
        "unreadable": Value::Null,
    });
    object(item)
}

/// The same of a record whose encryption key is missing: what stands in clear, and which key that is.
pub(crate) fn unreadable_item(unreadable: &Unreadable) -> Map<String, Value> {
    let mut item = item(&unreadable.record);
    item.insert("status".to_owned(), unreadable.status.into());
    item.insert("unreadable".to_owned(), missing(unreadable).into());
    item
}

fn missing(unreadable: &Unreadable) -> String {
    Unsealable::MissingKey(unreadable.key_id).to_string()
}

/// A message, without its payload.
pub(crate) fn message(item: &outbox::Item) -> Map<String, Value> {
    let errors = item.errors.iter().map(|error| {
        json!({
            "at": moment(error.at),
            "delivery": error.delivery,
            "status": error.status,
            "error": &*error.error,
        })
    });
    object(json!({
        "id": item.number,
        "key": &*item.key,
        "destination": &*item.destination,
        "group": item.group.as_deref(),
        "state": item.state.as_str(),
        "deliveries": item.deliveries,
        "created_at": moment(item.created_at),
        "due_at": moment(item.due_at),
        "delivered_at": item.delivered_at.map(moment),
        "provider_id": item.provider_id.as_deref(),
        "errors": errors.collect::<Vec<_>>(),
        "record": item.record.map(|record| record.to_string()),
    }))
}

/// One record with all that is known of it.
pub(crate) fn record(engine: &Engine, seen: &Seen) -> Map<String, Value> {
    let record = &*seen.record;
    let facts = machine::facts(record);
    let handle = Handle { id: Id::of(&record.scope, &record.key), token: record.token };
    let response = facts.response.map(|response| {
        let headers: Vec<_> = response.headers.iter().map(|(name, _)| name.as_str()).collect();
        json!({ "status": response.status, "bytes": response.body.len(), "headers": headers })
    });
    let fingerprint: String =
        record.fingerprint.raw.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let more = json!({
        "revision": revision(seen),
        "token": handle.to_string(),
        "began_at": moment(record.began_at),
        "lapses_at": facts.lapses_at.map(moment),
        "deadline_at": moment(record.deadline_at()),
        "believed_at": facts.believed_at.map(moment),
        "fingerprint": fingerprint,
        "response": response,
        "recovery_point": record.progress.recovery_point.as_deref(),
        "evidence": machine::time_line(record).iter().map(evidence).collect::<Vec<_>>(),
        "evidence_left_out": record.history.left_out,
        "why": machine::why(seen, moment),
        "actions": engine.actions(seen).iter().map(action).collect::<Vec<_>>(),
    });
    let mut told = item(record);
    told.extend(object(more));
    told
}

/// The same of a record whose encryption key is missing. All that can be done about it is to forget it.
pub(crate) fn unreadable(engine: &Engine, unreadable: &Unreadable) -> Map<String, Value> {
    let Unreadable { record: clear, revision, now, .. } = unreadable;
    let seen = Seen { record: clear.clone(), revision: *revision, now: *now };
    let mut told = record(engine, &seen);
    told.extend(unreadable_item(unreadable));
    if let (Some(status), Some(bytes)) = (unreadable.status, unreadable.body_bytes) {
        told.insert("response".to_owned(), json!({ "status": status, "bytes": bytes, "headers": [] }));
    }
    let why = format!("Requests with this key get 503 and nothing runs: {}.", missing(unreadable));
    told.insert("why".to_owned(), why.into());
    let can_be_done = |action: &Action| match action.name {
        ActionName::Forget => self::action(action),
        ActionName::Happened | ActionName::DidNotHappen | ActionName::Ask => {
            json!({ "action": action.name.as_str(), "allowed": false, "code": "record_undecryptable", "from": null })
        }
    };
    told.insert("actions".to_owned(), engine.actions(&seen).iter().map(can_be_done).collect());
    told
}

/// A revision, as `If-Match` names it.
pub(crate) fn revision(seen: &Seen) -> String {
    revision_text(seen.revision)
}

/// The same of a revision alone.
pub(crate) fn revision_text(revision: Revision) -> String {
    format!("{:016x}", revision.0)
}

fn evidence(entry: &Entry) -> Value {
    json!({
        "at": moment(entry.at),
        "what": entry.what.as_str(),
        "attempt": entry.attempt,
        "by": entry.by.as_str(),
        "said": entry.said.map(|said| said.as_str()),
        "contradicts": entry.contradicts,
        "who": entry.who.as_deref(),
        "source": entry.source.as_deref(),
        "detail": entry.detail.as_deref(),
    })
}

fn action(action: &Action) -> Value {
    let name = action.name.as_str();
    match action.refused {
        None => json!({ "action": name, "allowed": true }),
        Some(refused) => {
            let from = match refused {
                Refused::TooEarly(believed_at) => Some(moment(believed_at)),
                Refused::StillRunning | Refused::Settled | Refused::Unknown | Refused::NothingToAsk => None,
            };
            json!({ "action": name, "allowed": false, "code": refused.code(), "from": from })
        }
    }
}

/// The result of an order that was only asked about.
pub(crate) const WOULD_APPLY: &str = "would-apply";

/// What a verdict did, or would do, with the word for it.
pub(crate) fn applied(engine: &Engine, result: &str, applied: &Applied, order: &operate::Order) -> Value {
    json!({
        "result": if order.dry_run { WOULD_APPLY } else { result },
        "before": standing(applied.before.state.name(), applied.before.attempt),
        "after": standing(applied.becomes, applied.after.record.attempt),
        "audit": applied.audit.as_deref(),
        "record": record(engine, &applied.after),
    })
}

/// What forgetting a record did, or would do.
pub(crate) fn forgotten(applied: &Applied, order: &operate::Order) -> Value {
    json!({
        "result": if order.dry_run { WOULD_APPLY } else { "forgotten" },
        "before": item(&applied.before),
        "audit": applied.audit.as_deref(),
    })
}

/// What a purge did, or would do.
pub(crate) fn purged(purged: &Purged, order: &operate::Order) -> Value {
    let result = match (order.dry_run, purged.is_whole()) {
        (true, _) => WOULD_APPLY,
        (false, true) => "done",
        (false, false) => "partly",
    };
    json!({
        "result": result,
        "forgotten": purged.forgotten,
        "kept": { "running": purged.kept.running, "unknown": purged.kept.unknown },
        "audit": purged.audit.as_deref(),
    })
}

fn standing(state: StateName, attempt: u32) -> Value {
    json!({ "state": state.as_str(), "attempt": attempt })
}

/// An entry of the audit log; without its moment where the store has not told it.
pub(crate) fn audit(entry: &audit::Entry, at: Option<Timestamp>) -> Value {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parsed = |text: &Option<std::sync::Arc<str>>| {
        text.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok())
    };
    json!({
        "id": &*entry.id,
        "at": at.map(moment),
        "who": &*entry.who,
        "role": &*entry.role,
        "as": entry.claims.as_deref(),
        "from": entry.from.as_deref(),
        "via": &*entry.via,
        "action": &*entry.action,
        "target": {
            "scope": entry.scope.as_ref().map(|scope| hex(scope)),
            "scope_label": entry.scope_label.as_deref(),
            "key": entry.key.as_deref(),
            "id": entry.record.map(|id| id.to_string()),
        },
        "reason": entry.reason.as_deref(),
        "forced": entry.forced,
        "before": parsed(&entry.before),
        "after": parsed(&entry.after),
        "result": &*entry.result,
        "code": entry.code.as_deref(),
    })
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_told_in_utc_with_milliseconds() {
        assert_eq!(moment(Timestamp::from_micros(1_763_345_000_123_999)), "2025-11-17T02:03:20.123Z");
        assert_eq!(moment(Timestamp::from_micros(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(moment(Timestamp::from_micros(i64::MAX)), "9999-12-31T23:59:59.999Z");
    }
}
