//! The shapes of what the admin API answers and takes, as JSON Schema.
//!
//! Each lists every member. Members may be added to answers; bodies of requests take no others.

use serde_json::{Map, Value, json};

use super::outbox::MANY_MAX;
use super::parameter::REASON_CHARS_MAX;

/// Every schema, by name.
pub(super) fn all() -> Map<String, Value> {
    let schemas = [
        ("Alive", object(&[("status", constant("alive")), ("version", text())])),
        ("Readiness", object(&[("status", words(&["ready", "not ready"])), ("store", store())])),
        ("Item", object(&item())),
        ("Keys", list("Item")),
        ("Record", record()),
        ("Verdict", verdict()),
        ("Judged", judged()),
        ("Forgotten", forgotten()),
        ("Purged", purged()),
        ("Message", message()),
        ("Messages", list("Message")),
        ("Reason", reason_alone()),
        ("Redriven", message_changed("redriven")),
        ("Discarded", message_changed("discarded")),
        ("RedriveMany", redrive_many()),
        ("RedrivenMany", redriven_many()),
        ("AuditEntry", audit_entry()),
        ("AuditLog", list("AuditEntry")),
        ("Overview", overview()),
        ("OpenApi", json!({ "type": "object", "required": ["openapi", "info", "paths"] })),
    ];
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

/// A member that only some refusals have.
pub(super) fn member(name: &str) -> Value {
    match name {
        "faults" => json!({
            "type": "array",
            "description": "Everything that is wrong, each with its place.",
            "items": object(&[("path", text()), ("detail", text())]),
        }),
        "needs" => constant("operate"),
        "bytes_max" => json!({ "type": "integer" }),
        "earliest" | "deadline_at" => moment(),
        "lapses_at" => or_null(moment()),
        "state" => state(),
        "by" => or_null(text()),
        "revision" => text(),
        _ => json!({}),
    }
}

/// An object that has all of these members.
fn object(members: &[(&str, Value)]) -> Value {
    optional(members, &[])
}

/// An object that has all of the first members, and perhaps the others.
fn optional(members: &[(&str, Value)], others: &[(&str, Value)]) -> Value {
    let required: Vec<_> = members.iter().map(|(name, _)| *name).collect();
    let properties = members.iter().chain(others).map(|(name, schema)| ((*name).to_owned(), schema.clone()));
    json!({ "type": "object", "required": required, "properties": Value::Object(properties.collect()) })
}

fn list(item: &str) -> Value {
    let items = json!({ "type": "array", "items": reference(item) });
    object(&[("items", items), ("next", or_null(text()))])
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn integer() -> Value {
    json!({ "type": "integer" })
}

fn number() -> Value {
    json!({ "type": "number" })
}

fn moment() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

fn constant(word: &str) -> Value {
    json!({ "const": word })
}

fn words(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

fn or_null(schema: impl Into<Value>) -> Value {
    json!({ "oneOf": [schema.into(), { "type": "null" }] })
}

fn state() -> Value {
    words(&["pending", "running", "completed", "retryable", "unknown"])
}

fn source() -> Value {
    words(&["attempt", "probe", "webhook", "operator", "sweeper"])
}

fn item() -> Vec<(&'static str, Value)> {
    vec![
        ("scope", text()),
        ("scope_label", or_null(text())),
        ("key", text()),
        ("id", text()),
        ("state", state()),
        ("attempt", integer()),
        ("route", or_null(text())),
        ("effects", words(&["local", "keyed", "queryable", "opaque"])),
        ("reason", or_null(text())),
        ("created_at", moment()),
        ("updated_at", moment()),
        ("expires_at", or_null(moment())),
        ("since", or_null(moment())),
        ("dead_letter", flag()),
        ("asked", integer()),
        ("ask_at", or_null(moment())),
        ("status", or_null(integer())),
        ("by", or_null(source())),
        ("unreadable", or_null(text())),
    ]
}

fn record() -> Value {
    let headers = json!({ "type": "array", "items": text() });
    let response = object(&[("status", integer()), ("bytes", integer()), ("headers", headers)]);
    let mut members = item();
    members.extend([
        ("revision", text()),
        ("token", text()),
        ("began_at", moment()),
        ("lapses_at", or_null(moment())),
        ("deadline_at", moment()),
        ("believed_at", or_null(moment())),
        ("fingerprint", text()),
        ("response", or_null(response)),
        ("recovery_point", or_null(text())),
        ("evidence", json!({ "type": "array", "items": evidence() })),
        ("evidence_left_out", integer()),
        ("why", text()),
        ("actions", json!({ "type": "array", "items": action() })),
    ]);
    object(&members)
}

fn evidence() -> Value {
    let what = words(&[
        "attempt",
        "lapsed",
        "unknown",
        "probe",
        "webhook",
        "verdict",
        "dead_letter",
        "completed",
        "retryable",
        "superseded",
        "forced",
    ]);
    object(&[
        ("at", moment()),
        ("what", what),
        ("attempt", integer()),
        ("by", source()),
        ("said", or_null(text())),
        ("contradicts", flag()),
        ("who", or_null(text())),
        ("source", or_null(text())),
        ("detail", or_null(text())),
    ])
}

fn action() -> Value {
    let name = words(&["happened", "did-not-happen", "ask", "forget"]);
    optional(&[("action", name), ("allowed", flag())], &[("code", text()), ("from", or_null(moment()))])
}

fn verdict() -> Value {
    let lines = json!({ "oneOf": [text(), { "type": "array", "items": text() }] });
    let headers = json!({ "type": "object", "additionalProperties": lines });
    let status = json!({ "type": "integer", "minimum": 200, "maximum": 599 });
    let mut response =
        optional(&[("status", status)], &[("headers", headers), ("body", text()), ("body_base64", text())]);
    response["additionalProperties"] = json!(false);
    let mut verdict = optional(
        &[("verdict", words(&["happened", "did-not-happen", "unknown"])), ("reason", reason())],
        &[("final", flag()), ("response", response), ("token", text()), ("ask", flag())],
    );
    verdict["additionalProperties"] = json!(false);
    verdict
}

fn judged() -> Value {
    object(&[
        ("result", words(&["applied", "noted", "would-apply"])),
        ("before", standing()),
        ("after", standing()),
        ("audit", or_null(text())),
        ("record", reference("Record")),
    ])
}

fn standing() -> Value {
    object(&[("state", state()), ("attempt", integer())])
}

fn forgotten() -> Value {
    object(&[
        ("result", words(&["forgotten", "would-apply"])),
        ("before", reference("Item")),
        ("audit", or_null(text())),
    ])
}

fn purged() -> Value {
    object(&[
        ("result", words(&["done", "partly", "would-apply"])),
        ("forgotten", integer()),
        ("kept", object(&[("running", integer()), ("unknown", integer())])),
        ("audit", or_null(text())),
    ])
}

fn message() -> Value {
    let error = object(&[
        ("at", moment()),
        ("delivery", integer()),
        ("status", or_null(integer())),
        ("error", text()),
    ]);
    object(&[
        ("id", integer()),
        ("key", text()),
        ("destination", text()),
        ("group", or_null(text())),
        ("state", words(&["waiting", "claimed", "delivered", "dead"])),
        ("deliveries", integer()),
        ("created_at", moment()),
        ("due_at", moment()),
        ("delivered_at", or_null(moment())),
        ("provider_id", or_null(text())),
        ("errors", json!({ "type": "array", "items": error })),
        ("record", or_null(text())),
    ])
}

fn reason() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": REASON_CHARS_MAX })
}

fn reason_alone() -> Value {
    let mut body = object(&[("reason", reason())]);
    body["additionalProperties"] = json!(false);
    body
}

fn redrive_many() -> Value {
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": MANY_MAX });
    let mut body = optional(
        &[("destination", json!({ "type": "string", "minLength": 1 })), ("reason", reason())],
        &[("limit", limit), ("dry_run", flag())],
    );
    body["additionalProperties"] = json!(false);
    body
}

fn message_changed(done: &str) -> Value {
    object(&[
        ("result", words(&[done, "would-apply"])),
        ("before", reference("Message")),
        ("audit", or_null(text())),
    ])
}

fn redriven_many() -> Value {
    let result = words(&["redriven", "would-apply"]);
    object(&[("result", result), ("count", integer()), ("is_more", flag())])
}

fn audit_entry() -> Value {
    let target = object(&[
        ("scope", or_null(text())),
        ("scope_label", or_null(text())),
        ("key", or_null(text())),
        ("id", or_null(text())),
    ]);
    let side = || or_null(json!({ "type": "object" }));
    object(&[
        ("id", text()),
        ("at", moment()),
        ("who", text()),
        ("role", text()),
        ("as", or_null(text())),
        ("from", or_null(text())),
        ("via", text()),
        ("action", text()),
        ("target", target),
        ("reason", or_null(text())),
        ("forced", flag()),
        ("before", side()),
        ("after", side()),
        ("result", words(&["applied", "noted", "refused"])),
        ("code", or_null(text())),
    ])
}

fn store() -> Value {
    optional(
        &[("state", words(&["ok", "slow", "stalled", "failed"]))],
        &[("millis", integer()), ("code", text()), ("detail", text())],
    )
}

fn overview() -> Value {
    let counts = json!({ "type": "object", "additionalProperties": or_null(integer()) });
    let round = object(&[("ran_at", moment()), ("took_seconds", number())]);
    let mut oldest = item();
    oldest.push(("age_seconds", number()));
    let contradicted = object(&[
        ("at", moment()),
        ("scope", or_null(text())),
        ("scope_label", or_null(text())),
        ("key", or_null(text())),
        ("source", text()),
    ]);
    let need = optional(
        &[
            ("what", words(&["unknown", "dead_letter", "dead_message", "contradiction", "probe_failing"])),
            ("count", integer()),
            ("since", moment()),
        ],
        &[
            ("is_more", flag()),
            ("route", text()),
            ("detail", text()),
            ("records", json!({ "type": "array", "items": contradicted })),
        ],
    );
    let charge =
        object(&[("payment", integer()), ("order", text()), ("card", text()), ("amount", integer())]);
    let ledger = object(&[("count", integer()), ("last", json!({ "type": "array", "items": charge }))]);
    let busy =
        object(&[("scope", text()), ("scope_label", or_null(text())), ("duplicates_per_minute", number())]);
    object(&[
        ("at", moment()),
        ("node", text()),
        ("version", text()),
        ("store", store()),
        ("records", or_null(counts)),
        ("oldest_unknown", or_null(object(&oldest))),
        ("dead_letters", object(&[("keys", or_null(integer())), ("messages", or_null(integer()))])),
        ("oldest_message_seconds", or_null(number())),
        ("oldest_pending_seconds", or_null(number())),
        ("decisions_per_minute", json!({ "type": "object", "additionalProperties": integer() })),
        ("added_latency_seconds", object(&[("p50", or_null(number())), ("p99", or_null(number()))])),
        ("workers", json!({ "type": "object", "additionalProperties": round })),
        ("busiest", json!({ "type": "array", "items": busy })),
        ("needs_you", json!({ "type": "array", "items": need })),
        ("ledger", or_null(ledger)),
        ("you", object(&[("who", text()), ("role", words(&["read", "operate"]))])),
    ])
}
