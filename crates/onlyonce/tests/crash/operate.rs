//! What operators and providers ask of a victim, as routes of its own; and the probe that asks the ledger.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use onlyonce::operate::{Forgotten, Heard, Judged, Operator, Order, Refusal, Saying, Statement, Subject};
use onlyonce::probe::{Answer, Failure, Probes, Question, asking};
use onlyonce::store::{Query, Search, audit};
use onlyonce::{Engine, Force};
use onlyonce_core::record::{Handle, Id, Response, Seen, Verdict};

use crate::order::send;

/// When a probe is first asked.
pub(crate) const ASK_FIRST: Duration = Duration::from_millis(50);
/// A question is claimed for twice as long, and a life that follows a death waits for that.
const PROBE_TIME_OUT: Duration = Duration::from_secs(1);

/// The ledger is asked for the receipt of a run.
pub(crate) fn probes(ledger: SocketAddr) -> Probes {
    let probe = asking(move |question: Question| async move {
        let request = Request::get(format!("/probe/{}", question.key.as_str()));
        let request = request.body(Full::<Bytes>::default()).expect("a question is a valid request");
        let answer = send(ledger, request).await.map_err(|_| Failure::new("the ledger does not answer"))?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(Answer::new(Verdict::DidNotHappen { never_will: false }));
        }
        let response = Response { status: 201, headers: Vec::new(), body: answer.body };
        Ok(Answer::new(Verdict::Happened(Some(Arc::new(response)))))
    });
    let mut probes = Probes::default().with_route("POST /queryable", Arc::new(probe));
    probes.first = ASK_FIRST;
    probes.time_out = PROBE_TIME_OUT;
    probes
}

/// `POST /operate/{what}/{key}` does it and says what came of it.
pub(crate) fn routes(engine: &Arc<Engine>) -> Router {
    Router::new().route("/operate/{what}/{key}", post(operate)).with_state(engine.clone())
}

async fn operate(State(engine): State<Arc<Engine>>, Path((what, key)): Path<(String, String)>) -> String {
    let found = find(&engine, &key).await;
    let id = found.as_ref().map_or(Id([0; 32]), |(id, _)| *id);
    match what.as_str() {
        "verdict" => verdict(&engine, id).await,
        "forget" => forget(&engine, id).await,
        "webhook" => webhook(&engine, found).await,
        "purge" => purge(&engine, found).await,
        "log" => log(&engine).await,
        other => panic!("the driver asks for {other}"),
    }
}

/// The record of a key. The one whose outcome is unknown tells the scope where that of the key is gone.
async fn find(engine: &Engine, key: &str) -> Option<(Id, Seen)> {
    let query = Query { search: Some(Search::new(key)), ..Query::all(100) };
    let records = engine.list(query).await.expect("the store answers").records;
    records.into_iter().find(|(_, seen)| seen.record.key.as_str() == key)
}

fn ordered() -> Order {
    let operator =
        Operator { who: "local".into(), role: "operate".into(), claims: None, from: None, via: "api".into() };
    Order { operator, reason: "on order".into(), force: Force::No, expected: None, dry_run: false }
}

fn settled() -> Verdict {
    let response = Response { status: 202, headers: Vec::new(), body: Bytes::from_static(b"settled") };
    Verdict::Happened(Some(Arc::new(response)))
}

async fn verdict(engine: &Engine, id: Id) -> String {
    let saying = Saying { verdict: settled(), token: None, ask: false };
    match engine.verdict(id, saying, &ordered()).await.expect("the store answers") {
        Judged::Applied(_) => "applied".to_owned(),
        Judged::Noted(_) => "noted".to_owned(),
        Judged::Refused(refusal) => refusal.code().to_owned(),
    }
}

async fn forget(engine: &Engine, id: Id) -> String {
    match engine.forget(id, &ordered()).await.expect("the store answers") {
        Forgotten::Done(_) => "applied".to_owned(),
        Forgotten::Refused(refusal @ (Refusal::Absent | Refusal::Changed(_) | Refusal::Refused(..))) => {
            refusal.code().to_owned()
        }
    }
}

async fn webhook(engine: &Engine, found: Option<(Id, Seen)>) -> String {
    let (id, seen) = found.expect("a webhook is about a record");
    let statement = Statement {
        verdict: settled(),
        about: Subject::Attempt(Handle { id, token: seen.record.token }),
        at: seen.now,
        source: "bank".into(),
        detail: "charge.succeeded".into(),
    };
    match engine.hear(statement).await.expect("the store answers") {
        Heard::Applied(_) => "applied",
        Heard::Evidence => "evidence",
        Heard::Noted(..) => "noted",
        Heard::Already(_) => "already",
        Heard::Contradiction(_) => "contradiction",
        Heard::Ignored(_) => "ignored",
    }
    .to_owned()
}

async fn purge(engine: &Engine, found: Option<(Id, Seen)>) -> String {
    let scope = match found {
        Some((_, seen)) => *seen.record.scope.digest(),
        // The key is gone already, and every record here is of one caller.
        None => {
            let left = engine.list(Query::all(100)).await.expect("the store answers").records;
            *left[0].1.record.scope.digest()
        }
    };
    let purged = engine.purge(scope, &ordered()).await.expect("the store answers");
    let kept = purged.kept;
    format!("forgotten {}, kept {} running, {} unknown", purged.forgotten, kept.running, kept.unknown)
}

async fn log(engine: &Engine) -> String {
    let query = audit::Query { limit: 100, ..audit::Query::default() };
    let entries = engine.read_audit(query).await.expect("the store answers").entries;
    let line = |written: audit::Written| {
        let audit::Entry { action, result, key, .. } = written.entry;
        format!("{action} {result} {}\n", key.unwrap_or_default())
    };
    entries.into_iter().map(line).collect()
}
