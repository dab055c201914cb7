//! Messages: lists, one, its payload; redriving and discarding them.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use onlyonce::Engine;
use onlyonce::operate::Order;
use onlyonce::operate::message::{Action, Change};
use onlyonce::store::outbox::{Item, Query, State};
use onlyonce::store::{Error, audit};
use serde_json::{Map, Value, json};

use super::audit as log;
use super::call::Call;
use super::change::{self, carried_out};
use super::json;
use super::keys::{self, SANDBOX};
use super::parameter::{Fault, no_reason, reason, unknown};
use super::refusal::{Code, Refusal};
use crate::view;

/// How many messages are redriven by one order, where it does not say.
const MANY_DEFAULT: usize = 500;
pub(super) const MANY_MAX: usize = 10_000;
/// How many dead letters are read at once.
const PAGE: usize = 100;

/// `GET /v1/outbox`
pub(super) async fn list(mut call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let list = keys::list_of(&call).await?;
    let query = Query {
        state: call.query.word("state").and_then(State::parse),
        destination: call.query.text("destination"),
        after: keys::opened(&mut call, &list)?,
        limit: call.query.limit(),
    };
    let page = call.admin.engine.messages(query).await?;
    let next = page.next.map(|next| list.seal(&next, SystemTime::now()));
    let items: Vec<_> = page.items.iter().map(view::message).collect();
    Ok(keys::page(&items, next.as_deref()))
}

/// `GET /v1/outbox/{id}`
pub(super) async fn show(call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let item = call.admin.engine.message(call.number()).await?.ok_or_else(|| not_found(&call))?;
    Ok(Json(Value::Object(view::message(&item))).into_response())
}

/// `GET /v1/outbox/{id}/payload`: that somebody looks is in the audit log before anything is sent.
pub(super) async fn payload(call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let (engine, number) = (&call.admin.engine, call.number());
    let item = engine.message(number).await?.ok_or_else(|| not_found(&call))?;
    let payload = engine.message_payload(number).await?.ok_or_else(|| not_found(&call))?;
    let Some(bytes) = payload.bytes else {
        let detail = format!("message {number} was delivered, and its payload was deleted");
        return Err(Refusal::new(Code::MessageNotFound, detail));
    };
    engine.write_audit(looked(&call, &item, bytes.len())).await?;
    let mut response = Response::new(Body::from(bytes));
    // Text that no header can carry is shown as bytes.
    let media = HeaderValue::from_str(&payload.content_type);
    let media = media.unwrap_or(HeaderValue::from_static("application/octet-stream"));
    response.headers_mut().insert(CONTENT_TYPE, media);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, SANDBOX);
    Ok(response)
}

fn looked(call: &Call, item: &Item, bytes: usize) -> audit::Entry {
    audit::Entry {
        key: Some(item.key.clone()),
        record: item.record,
        after: Some(json!({ "message": item.number, "bytes": bytes }).to_string().into()),
        ..log::entry(call.caller.operator(&call.head.headers), "read_payload", "applied")
    }
}

/// `POST /v1/outbox/{id}/redrive`
pub(super) async fn redrive(mut call: Call, body: Body) -> Result<Response, Refusal> {
    let body = call.read(body).await?;
    let said = Said::read(&body, &["reason"]);
    let said = taken(&mut call, said);
    let order = call.order(said.reason);
    call.check()?;
    change(call, Action::Redrive, order).await
}

/// `DELETE /v1/outbox/{id}`
pub(super) async fn discard(mut call: Call) -> Result<Response, Refusal> {
    let order = change::order(&mut call)?;
    change(call, Action::Discard, order).await
}

async fn change(call: Call, action: Action, order: Order) -> Result<Response, Refusal> {
    let (engine, number, ordered) = (call.admin.engine.clone(), call.number(), order.clone());
    match carried_out(async move { engine.change_message(number, action, &ordered).await }).await? {
        Change::Done { before, audit } => Ok(Json(json!({
            "result": if order.dry_run { view::WOULD_APPLY } else { action.done() },
            "before": view::message(&before),
            "audit": audit.as_deref(),
        }))
        .into_response()),
        Change::Refused(item) => Err(refused(action, &item)),
        Change::Absent => Err(not_found(&call)),
    }
}

/// `POST /v1/outbox/redrive`
pub(super) async fn redrive_many(mut call: Call, body: Body) -> Result<Response, Refusal> {
    let body = call.read(body).await?;
    let said = Said::read(&body, &["destination", "reason", "limit", "dry_run"]);
    let said = taken(&mut call, said);
    let order = Order { dry_run: said.dry_run, ..call.order(said.reason.clone()) };
    if said.destination.is_none() {
        call.blame(vec![Fault::new("body.destination", "is missing; name the destination")]);
    }
    call.check()?;
    let (engine, limit) = (call.admin.engine.clone(), said.limit);
    let destination = said.destination.unwrap_or_default();
    let dry_run = order.dry_run;
    let (count, is_more) =
        carried_out(async move { redrive_all(&engine, destination, limit, &order).await }).await?;
    let result = if dry_run { view::WOULD_APPLY } else { Action::Redrive.done() };
    Ok(Json(json!({ "result": result, "count": count, "is_more": is_more })).into_response())
}

/// Redrives up to `limit` dead letters of a destination, each with its audit entry; how many, and whether there are more.
async fn redrive_all(
    engine: &Engine,
    destination: Arc<str>,
    limit: usize,
    order: &Order,
) -> Result<(usize, bool), Error> {
    let mut query =
        Query { state: Some(State::Dead), destination: Some(destination), after: None, limit: PAGE };
    let mut count = 0;
    loop {
        let page = engine.messages(query.clone()).await?;
        for item in &page.items {
            if count == limit {
                return Ok((count, true));
            }
            let changed = engine.change_message(item.number, Action::Redrive, order).await?;
            count += usize::from(matches!(changed, Change::Done { .. }));
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok((count, false));
        }
    }
}

fn refused(action: Action, item: &Item) -> Refusal {
    let (number, state) = (item.number, item.state.as_str());
    match action {
        Action::Redrive => Refusal::new(
            Code::MessageNotDead,
            format!("message {number} is {state}; only a dead letter can be redriven"),
        ),
        Action::Discard => Refusal::new(
            Code::MessageClaimed,
            format!("message {number} is being delivered; discard it after the delivery has ended"),
        ),
    }
}

fn not_found(call: &Call) -> Refusal {
    let detail = format!(
        "there is no message {}: it never existed, was discarded, or was delivered long ago",
        call.number()
    );
    Refusal::new(Code::MessageNotFound, detail)
}

/// What the body of an order says.
#[derive(Default)]
struct Said {
    destination: Option<Arc<str>>,
    reason: Arc<str>,
    limit: usize,
    dry_run: bool,
}

/// What was said, with the faults put to the call.
fn taken(call: &mut Call, said: Result<Said, Vec<Fault>>) -> Said {
    said.unwrap_or_else(|faults| {
        call.blame(faults);
        Said { destination: Some(Arc::default()), ..Said::default() }
    })
}

impl Said {
    /// What the body says, or everything that is wrong with it.
    fn read(body: &[u8], known: &[&str]) -> Result<Self, Vec<Fault>> {
        let value =
            json::parse(body).map_err(|error| vec![Fault::new("body", format!("is not JSON: {error}"))])?;
        let Value::Object(members) = value else {
            return Err(vec![Fault::new("body", "must be an object, like {\"reason\":\"…\"}")]);
        };
        let mut faults = Vec::new();
        for name in members.keys().filter(|name| !known.contains(&name.as_str())) {
            faults.push(Fault::new(format!("body.{name}"), unknown(name, known.iter().copied())));
        }
        let said = Self {
            destination: destination(&members, &mut faults),
            reason: reason_of(&members, &mut faults),
            limit: limit(&members, &mut faults),
            dry_run: dry_run(&members, &mut faults),
        };
        if faults.is_empty() { Ok(said) } else { Err(faults) }
    }
}

fn destination(members: &Map<String, Value>, faults: &mut Vec<Fault>) -> Option<Arc<str>> {
    let value = members.get("destination")?;
    let name = value.as_str().filter(|name| !name.is_empty());
    if name.is_none() {
        faults.push(Fault::new("body.destination", "must be the name of a destination"));
    }
    name.map(Arc::from)
}

fn reason_of(members: &Map<String, Value>, faults: &mut Vec<Fault>) -> Arc<str> {
    let told = match members.get("reason") {
        None => Err(no_reason("body.reason")),
        Some(Value::String(text)) => reason(text, "body.reason"),
        Some(_) => Err(Fault::new("body.reason", "must be a string")),
    };
    told.unwrap_or_else(|fault| {
        faults.push(fault);
        Arc::default()
    })
}

fn limit(members: &Map<String, Value>, faults: &mut Vec<Fault>) -> usize {
    let Some(value) = members.get("limit") else { return MANY_DEFAULT };
    let limit = value.as_u64().and_then(|limit| usize::try_from(limit).ok());
    limit.filter(|limit| (1..=MANY_MAX).contains(limit)).unwrap_or_else(|| {
        faults.push(Fault::new("body.limit", format!("must be a number from 1 to {MANY_MAX}")));
        MANY_DEFAULT
    })
}

fn dry_run(members: &Map<String, Value>, faults: &mut Vec<Fault>) -> bool {
    let Some(value) = members.get("dry_run") else { return false };
    value.as_bool().unwrap_or_else(|| {
        faults.push(Fault::new("body.dry_run", "must be true or false"));
        false
    })
}
