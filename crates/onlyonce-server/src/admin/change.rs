//! Changing records: verdicts, forgetting, purging. What may be changed is the engine's to say; here it is put into HTTP.
//!
//! An order that has begun is carried out to its end, also when whoever gave it hangs up.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::ETAG;
use onlyonce::machine::{self, Refused};
use onlyonce::operate::{self, Applied, Forgotten, Judged, Order, Saying};
use onlyonce::record::{Seen, Token};
use onlyonce::store::Error;
use serde_json::Value;

use super::call::Call;
use super::keys;
use super::refusal::{Code, Refusal};
use super::verdict::{self, Said};
use crate::view;

/// A token that no attempt has.
const NOBODYS: Token = Token([0; 16]);

/// `POST /v1/keys/{scope}/{key}/verdict`
pub(super) async fn verdict(mut call: Call, body: Body) -> Result<Response, Refusal> {
    let body = call.read(body).await?;
    let said = verdict::read(&body);
    let reason = said.as_ref().map_or_else(|_| Arc::default(), |said| said.reason.clone());
    let order = call.order(reason);
    let said = match said {
        Ok(said) => Some(said),
        Err(faults) => {
            call.blame(faults);
            None
        }
    };
    call.check()?;
    let Said { verdict, attempt, ask, .. } = said.expect("a body with faults was refused");
    let id = call.id();
    // The handle of another record is not that of the last attempt either.
    let token = attempt.map(|handle| if handle.id == id { handle.token } else { NOBODYS });
    let saying = Saying { verdict, token, ask };
    let (engine, ordered) = (call.admin.engine.clone(), order.clone());
    let judged = carried_out(async move { engine.verdict(id, saying, &ordered).await }).await?;
    match judged {
        Judged::Applied(applied) => Ok(judged_as("applied", &call, &order, &applied)),
        Judged::Noted(applied) => Ok(judged_as("noted", &call, &order, &applied)),
        Judged::Refused(refusal) => Err(refused(&call, &refusal)),
    }
}

fn judged_as(result: &str, call: &Call, order: &Order, applied: &Applied) -> Response {
    let mut response = Json(view::applied(&call.admin.engine, result, applied, order)).into_response();
    response.headers_mut().insert(ETAG, keys::revision(&applied.after));
    response
}

/// `DELETE /v1/keys/{scope}/{key}`
pub(super) async fn forget(mut call: Call) -> Result<Response, Refusal> {
    let order = order(&mut call)?;
    let (engine, id, ordered) = (call.admin.engine.clone(), call.id(), order.clone());
    match carried_out(async move { engine.forget(id, &ordered).await }).await? {
        Forgotten::Done(applied) => Ok(Json(view::forgotten(&applied, &order)).into_response()),
        Forgotten::Refused(refusal) => Err(refused(&call, &refusal)),
    }
}

/// `DELETE /v1/scopes/{scope}`
pub(super) async fn purge(mut call: Call) -> Result<Response, Refusal> {
    let order = order(&mut call)?;
    let (engine, scope, ordered) = (call.admin.engine.clone(), call.scope(), order.clone());
    let purged = carried_out(async move { engine.purge(scope, &ordered).await }).await?;
    Ok(Json(view::purged(&purged, &order)).into_response())
}

/// The order of a request that says its reason in the query.
pub(super) fn order(call: &mut Call) -> Result<Order, Refusal> {
    let reason = call.query.text("reason").unwrap_or_default();
    let order = call.order(reason);
    call.check()?;
    Ok(order)
}

/// Carries an order out in a task of its own.
pub(super) async fn carried_out<T: Send + 'static>(
    order: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::spawn(order).await {
        Ok(done) => Ok(done?),
        Err(error) => {
            tracing::error!(%error, "an operator's change was interrupted");
            let detail = "the node is being stopped; look at the record or the audit log before you send the change again";
            Err(Refusal::new(Code::StoreUnavailable, detail))
        }
    }
}

/// A refused order as an answer.
fn refused(call: &Call, refusal: &operate::Refusal) -> Refusal {
    match refusal {
        operate::Refusal::Absent => keys::not_found(call),
        operate::Refusal::Changed(seen) => {
            let detail = "the record no longer has the revision in If-Match; load it again".to_owned();
            Refusal::new(Code::RecordChanged, detail)
                .with("revision", view::revision(seen))
                .with_header(ETAG, keys::revision(seen))
        }
        operate::Refusal::Refused(refused, seen) => by_rules(call, *refused, seen),
    }
}

fn by_rules(call: &Call, refused: Refused, seen: &Seen) -> Refusal {
    let (record, facts) = (call.record_name(), machine::facts(&seen.record));
    match refused {
        Refused::StillRunning => {
            let detail = format!(
                "attempt {} of {record} is still running; wait until its lease lapses, or use force=true, which supersedes it",
                seen.record.attempt
            );
            let moment = |at: Option<_>| at.map_or(Value::Null, |at| view::moment(at).into());
            Refusal::new(Code::RecordRunning, detail)
                .with("lapses_at", moment(facts.lapses_at))
                .with("deadline_at", view::moment(seen.record.deadline_at()))
        }
        Refused::TooEarly(believed_at) => {
            let earliest = view::moment(believed_at);
            let detail = format!(
                "the work of {record} may still happen; did-not-happen is allowed from {earliest} on, or now with final, if it never can, or with force=true"
            );
            Refusal::new(Code::VerdictTooEarly, detail).with("earliest", earliest)
        }
        Refused::Settled => {
            let state = seen.record.state.name();
            let detail = format!(
                "the record of {record} is {state}: a retryable record accepts only happened, with the token of its last attempt; a pending or completed record accepts no verdict, but can be forgotten"
            );
            Refusal::new(Code::RecordSettled, detail)
                .with("state", state.as_str())
                .with("by", facts.by.map_or(Value::Null, |by| by.as_str().into()))
        }
        Refused::Unknown => Refusal::new(
            Code::RecordUnknown,
            format!(
                "the work of {record} may have been done, fully or in part, and a retry would run it again; give the verdict happened or did-not-happen instead, or use force=true"
            ),
        ),
        Refused::NothingToAsk => Refusal::new(
            Code::NothingToAsk,
            format!("the route of {record} has no probe; give the verdict happened or did-not-happen"),
        ),
    }
}
