//! `mode = "observe"`: every request runs as if we were not there, and what enforcing would have decided is counted.
//!
//! Records are made as in earnest, under scopes of their own: none of them ever decides when the mode is `enforce`.
//! Nothing that goes wrong here is the client's to notice: a store that does not answer is counted and the request runs.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use onlyonce_core::outcome::{Meaning, Outcome, meaning};
use onlyonce_core::record::Reason;
use onlyonce_core::refusal::Refusal;
use tokio::time::Instant;
use tower_service::Service;

use crate::body::{Body, Incoming, Read, read};
use crate::counts::Decision;
use crate::engine::Begun;
use crate::keyed::{Call, Keyed, is_large};
use crate::lease::Lease;
use crate::{answer, headers};

/// Passes a keyed request on.
pub(crate) async fn answer<S, B, R>(
    keyed: Arc<Keyed>,
    call: Box<Call<S>>,
    body: Incoming<B>,
) -> Result<Response<Body<R>>, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes> + Unpin,
{
    let Call { mut inner, parts, .. } = *call;
    let (read, _held) = match body {
        // Counted by whoever read it, until this request ends.
        Incoming::Read(bytes, held) => (Read::Whole(bytes), Some(held)),
        Incoming::Coming(body) => {
            let bytes_max = keyed.policy().request_bytes_max;
            let Ok(read) = read(body, bytes_max, |bytes| keyed.holds(bytes)).await else {
                return Ok(answer::unreadable());
            };
            (read, None)
        }
    };
    let body = match read {
        Read::Whole(bytes) => bytes,
        Read::Beyond(body) => {
            keyed.observed(Decision::Limited);
            return Ok(passed(inner.call(Request::from_parts(parts, body)).await?));
        }
    };
    let (decision, lease) = keyed.would(&parts, &body).await;
    keyed.observed(decision);
    let called = inner.call(Request::from_parts(parts, Body::whole(body)));
    let Some(lease) = lease else { return Ok(passed(called.await?)) };
    let mut called = pin!(called);
    let response = tokio::select! {
        biased;
        response = &mut called => response,
        // Its record may be given up at the deadline, the request may not.
        _ = lease.keep(keyed.engine(), keyed.policy().store_timeout) => called.await,
    };
    let outcome = keyed.outcome(&lease, response.as_ref().ok());
    // Before its client is answered, or a retry at once would be counted as if it had come too early.
    keyed.engine().finish(lease, outcome, keyed.policy().store_timeout, Instant::now()).await;
    keyed.hold.set(false);
    Ok(passed(response?))
}

impl Keyed {
    /// What enforcing would decide; with the lease where it would run.
    async fn would(&self, parts: &Parts, body: &Bytes) -> (Decision, Option<Box<Lease>>) {
        let digested = if is_large(body) { Box::pin(self.digested(parts, body)).await } else { None };
        let candidates = self.candidates_with(parts, body, digested);
        let request = self.request(&candidates);
        self.hold.set(true);
        match self.engine().begin(&self.id, &request, &self.gate(parts), Instant::now()).await {
            Ok(Begun::Run(lease)) => (Decision::run(lease.attempt()), Some(lease)),
            // Answers are not kept here: in earnest this one would have been.
            Ok(Begun::Replay(_) | Begun::Refuse(Refusal::ResponseNotStored, _)) => (Decision::Replayed, None),
            // Nothing is stored here, so nothing is accepted.
            Ok(Begun::Accepted(_)) => (Decision::Accepted, None),
            Ok(Begun::Refuse(refusal, _)) => (Decision::from(&refusal), None),
            Err(_) => (Decision::StoreUnavailable, None),
        }
    }

    /// What became of the work.
    fn outcome<R>(&self, lease: &Lease, response: Option<&Response<R>>) -> Outcome {
        let number = lease.attempt();
        let means = response.map(|response| {
            let said = headers::said(response.headers());
            meaning(response.status().as_u16(), said, number, lease.effects(), self.policy())
        });
        match means {
            Some(Meaning::Completed) => Outcome::Completed { response: None, keep_for: None },
            Some(Meaning::DidNotRun { keep_for }) => Outcome::DidNotRun { retry_after: None, keep_for },
            Some(Meaning::Unknown(reason)) => Outcome::Unknown(reason),
            None => Outcome::Unknown(Reason::ConnectionLost),
        }
    }
}

fn passed<R>(mut response: Response<R>) -> Response<Body<R>> {
    headers::strip_control(response.headers_mut());
    response.map(Body::passed)
}
