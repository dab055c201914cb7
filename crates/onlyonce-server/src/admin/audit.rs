//! The audit log: its list, its entries that change no record, and every entry in the log of the process.

use std::time::SystemTime;

use axum::response::Response;
use http::request::Parts;
use onlyonce::operate::{Operator, entry_id};
use onlyonce::record::Record;
use onlyonce::store::audit::{Entry, Query, Written};
use serde_json::{Map, Value};

use super::Admin;
use super::call::{Call, Target};
use super::endpoint::Endpoint;
use super::keys;
use super::parameter::Parameters;
use super::refusal::{Code, Refusal};
use super::who::Caller;
use crate::view;

/// Every action that an entry can have, for the filters of the API and of `onlyonce log`.
pub(crate) const ACTIONS: [&str; 9] = [
    "verdict",
    "forget",
    "purge",
    "redrive",
    "discard",
    "read_response",
    "read_payload",
    "reload",
    "contradiction",
];

/// `GET /v1/audit`
pub(super) async fn list(mut call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let list = keys::list_of(&call).await?;
    let after = keys::opened(&mut call, &list)?;
    let query = Query {
        who: call.query.text("who"),
        action: call.query.word("action").map(Into::into),
        scope: call.query.scope(),
        key: call.query.text("key"),
        from: call.query.moment("after"),
        until: call.query.moment("before"),
        after,
        limit: call.query.limit(),
    };
    let page = call.admin.engine.read_audit(query).await?;
    let next = page.next.map(|next| list.seal(&next, SystemTime::now()));
    let entries: Vec<_> = page.entries.iter().map(told).collect();
    Ok(keys::page(&entries, next.as_deref()))
}

/// An entry as the API tells it.
pub(super) fn told(written: &Written) -> Map<String, Value> {
    match view::audit(&written.entry, Some(written.at)) {
        Value::Object(members) => members,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}

/// Puts an entry into the log of the process, for whoever ships that elsewhere.
pub(super) fn log(written: &Written) {
    let entry = Value::Object(told(written));
    tracing::info!(target: "onlyonce::audit", "{entry}");
}

/// Somebody looks at a stored answer.
pub(super) fn looked(call: &Call, record: &Record, answer: &Value) -> Entry {
    Entry {
        scope: Some(*record.scope.digest()),
        scope_label: record.scope.label().map(Into::into),
        key: Some(record.key.as_str().into()),
        record: Some(call.id()),
        after: Some(answer.to_string().into()),
        ..entry(call.caller.operator(&call.head.headers), "read_response", "applied")
    }
}

/// The settings were read anew, and hold; each side is a digest of them.
pub(super) fn reloaded(before: &str, after: &str) -> Entry {
    let side = |digest: &str| Some(serde_json::json!({ "settings": digest }).to_string().into());
    let operator = Operator {
        who: "local".into(),
        role: "operate".into(),
        claims: None,
        from: None,
        via: "signal".into(),
    };
    Entry { before: side(before), after: side(after), ..entry(operator, "reload", "applied") }
}

/// Keeps that a known token asked for what it may not have. The request is refused, whether or not that can be kept.
pub(super) async fn keep_refusal(
    admin: &Admin,
    endpoint: &Endpoint,
    caller: &Caller,
    head: &Parts,
    code: Code,
) {
    let Some(action) = endpoint.name.action().filter(|_| caller.is_known()) else { return };
    let target = Target::of(endpoint.path, head.uri.path(), &mut Vec::new());
    let query = Parameters::read(endpoint.query, head.uri.query().unwrap_or_default(), &mut Vec::new());
    let refused = Entry {
        scope: target.scope,
        key: target.key.as_ref().map(|key| key.as_str().into()),
        record: target.id(),
        reason: query.text("reason"),
        forced: query.flag("force") == Some(true),
        code: Some(code.as_str().into()),
        ..entry(caller.operator(&head.headers), action, "refused")
    };
    if let Err(error) = admin.engine.write_audit(refused).await {
        tracing::warn!(%error, code = code.as_str(), "a request was refused, but the audit entry could not be written");
    }
}

pub(super) fn entry(operator: Operator, action: &str, result: &str) -> Entry {
    let Operator { who, role, claims, from, via } = operator;
    Entry {
        id: entry_id(),
        who,
        role,
        claims,
        from,
        via,
        action: action.into(),
        result: result.into(),
        ..Entry::default()
    }
}
