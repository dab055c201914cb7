//! The way of a keyed request.
//!
//! ```text
//!  body, bounded
//!      ▼
//!  begin ── refuse │ wait and begin again │ replay
//!      │ run
//!      ▼
//!  the handler, under a lease: ends at its deadline, outlives its client, may panic
//!      │ what its answer means
//!      ▼
//!  finish: durable before the first byte goes to the client
//! ```

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, poll};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Request, Response, Uri, response};
use http_body::Body as HttpBody;
use onlyonce_core::fingerprint::{Candidates, Subject};
use onlyonce_core::key::Key;
use onlyonce_core::machine::{self, Admission};
use onlyonce_core::outcome::{Meaning, Outcome, Said, meaning};
use onlyonce_core::policy::{InFlight, Policy, StoreDown};
use onlyonce_core::record::{Handle, Id, Reason, Record};
use onlyonce_core::refusal::{NoAnswer, Refusal};
use onlyonce_core::scope::Scope;
use onlyonce_store::{Error, ErrorKind, failpoint};
use tokio::time::Instant;
use tower_service::Service;

use crate::attempt::Attempt;
use crate::body::{Body, Read, read, read_request};
use crate::counts::{Counts, Decision};
use crate::engine::{Begun, Engine, chain, fresh_token, store_unavailable};
use crate::future::Hold;
use crate::layer::Settings;
use crate::lease::Lease;
use crate::status::Question;
use crate::wait::Waited;
use crate::{answer, headers, problem, status};

/// A request that is ours: it has a key and a caller.
pub(crate) struct Keyed {
    pub(crate) engine: Arc<Engine>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) hold: Hold,
    pub(crate) scope: Scope,
    pub(crate) key: Key,
    pub(crate) route: Arc<str>,
    pub(crate) counts: Arc<Counts>,
}

/// What is to be done with a request, once the store has been asked.
enum Way {
    Run(Box<Lease>),
    Replay(Arc<Record>),
    Refuse(Refusal),
    /// 202: it is under way.
    Accepted(Refusal),
    /// The store is down and the policy says to run all the same.
    Unprotected,
}

/// Answers a keyed request.
///
/// What is seldom used or large is boxed apart (the beginning, the wait, the run): of ten thousand duplicates that wait,
/// none holds the room for the others, and each box is small enough for an allocator's fastest path.
#[expect(clippy::manual_async_fn, reason = "an async fn has room for each of its arguments twice")]
pub(crate) fn answer<S, B, R>(
    keyed: Keyed,
    parts: Parts,
    body: B,
    inner: S,
) -> impl Future<Output = Result<Response<Body<R>>, S::Error>>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes> + Unpin,
    R: HttpBody<Data = Bytes> + Unpin,
{
    async move {
        let bytes_max = keyed.policy().request_bytes_max;
        let body = match read_request(body, bytes_max).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                keyed.counts.request(Decision::Limited);
                return Ok(keyed.refuse(&Refusal::BodyTooLarge { bytes_max }));
            }
            Err(_) => return Ok(answer::unreadable()),
        };
        let began = Instant::now();
        match keyed.way(&parts, &body).await {
            Way::Replay(record) => {
                keyed.count(Decision::Replayed, began.elapsed());
                Ok(answer::replay(&record, keyed.policy()))
            }
            Way::Refuse(refusal) => {
                keyed.count(Decision::from(&refusal), began.elapsed());
                Ok(keyed.refuse(&refusal))
            }
            Way::Accepted(refusal) => {
                keyed.count(Decision::InProgress, began.elapsed());
                Ok(Box::pin(keyed.accepted(&refusal)).await)
            }
            Way::Run(lease) => {
                let call = Call { inner, request: Request::from_parts(parts, Body::whole(body)) };
                Box::pin(keyed.run(lease, began, call)).await
            }
            Way::Unprotected => {
                keyed.count(Decision::StoreUnavailable, began.elapsed());
                let call = Call { inner, request: Request::from_parts(parts, Body::whole(body)) };
                Box::pin(keyed.run_unprotected(call)).await
            }
        }
    }
}

/// The handler, and what it is called with.
struct Call<S, B> {
    inner: S,
    request: Request<Body<B>>,
}

impl<S, B> Call<S, B> {
    /// Makes the call. It is made once, and takes the request with it.
    fn made<R>(&mut self) -> S::Future
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
    {
        let nothing = Request::new(Body::whole(Bytes::new()));
        self.inner.call(std::mem::replace(&mut self.request, nothing))
    }
}

impl Keyed {
    pub(crate) fn policy(&self) -> &Policy {
        &self.settings.policy
    }

    /// A request counts once, with what it took beyond the work itself.
    fn count(&self, decision: Decision, added: Duration) {
        self.counts.request(decision);
        self.engine.times.added(decision, added);
    }

    fn refuse<R>(&self, refusal: &Refusal) -> Response<Body<R>> {
        problem::answer(refusal, &self.policy().dialect, Some(&self.key)).map(Body::whole)
    }

    /// The fingerprint of this request, in each way it may have been stored.
    pub(crate) fn candidates<'a>(&'a self, parts: &'a Parts, body: &'a Bytes) -> Candidates<'a> {
        let uri = whole_uri(parts);
        let subject = Subject {
            method: parts.method.as_str(),
            path: uri.path(),
            query: uri.query(),
            headers: &parts.headers,
            body,
        };
        self.policy().fingerprint.candidates(subject)
    }

    /// Begins, and waits and begins again, until there is an answer.
    async fn way(&self, parts: &Parts, body: &Bytes) -> Way {
        let id = Id::of(&self.scope, &self.key);
        let policy = self.policy();
        let candidates = self.candidates(parts, body);
        let patience = Patience::of(&parts.headers, policy);
        loop {
            // From here on a reservation may be on its way to the store: it is not left alone there.
            self.hold.set(true);
            let (refusal, refused_on) = match Box::pin(self.begin(&id, &candidates)).await {
                Ok(Begun::Run(lease)) => return Way::Run(lease),
                Ok(Begun::Replay(record)) => return Way::Replay(record),
                Ok(Begun::Refuse(refusal, refused_on)) => (refusal, refused_on),
                Err(error) => return self.without_store(&error),
            };
            self.hold.set(false);
            let Some(until) = patience.until(&refusal) else { return self.given_up(refusal) };
            match Box::pin(self.engine.wait(id, refused_on, until)).await {
                Waited::Changed => {}
                Waited::Over => return self.given_up(refusal),
            }
        }
    }

    async fn begin(&self, id: &Id, fingerprint: &Candidates<'_>) -> Result<Begun, Error> {
        let request = machine::Request {
            scope: &self.scope,
            key: &self.key,
            route: Some(&self.route),
            fingerprint,
            policy: self.policy(),
            token: fresh_token(),
            admission: Admission::Run,
        };
        self.engine.begin(*id, &request).await
    }

    fn given_up(&self, refusal: Refusal) -> Way {
        match (&refusal, self.policy().in_flight) {
            (Refusal::InProgress { .. }, InFlight::Accept) => Way::Accepted(refusal),
            (_, InFlight::Accept | InFlight::Refuse | InFlight::Wait) => Way::Refuse(refusal),
        }
    }

    /// Fail closed: no reservation, no work. Unless the policy says otherwise, and the store is only away: a record
    /// that cannot be read is never run over.
    fn without_store(&self, error: &Error) -> Way {
        tracing::error!(key = %self.key.digest_short(), error = %chain(error), "the store did not take the reservation");
        match (self.policy().store_down, error.kind()) {
            (StoreDown::Run, ErrorKind::Unavailable) => Way::Unprotected,
            (StoreDown::Run | StoreDown::Refuse, _) => Way::Refuse(store_unavailable()),
        }
    }

    async fn accepted<R>(&self, refusal: &Refusal) -> Response<Body<R>> {
        let id = Id::of(&self.scope, &self.key);
        match self.engine.load(id, self.policy().store_timeout).await {
            Ok(Some(seen)) => status::in_progress(&seen, &self.key, self.policy()).map(Body::whole),
            Ok(None) | Err(_) => self.refuse(refusal),
        }
    }

    /// Runs the handler under a lease and writes down what became of it.
    #[expect(clippy::manual_async_fn, reason = "an async fn has room for each of its arguments twice")]
    fn run<S, B, R>(
        &self,
        lease: Box<Lease>,
        began: Instant,
        mut call: Call<S, B>,
    ) -> impl Future<Output = Result<Response<Body<R>>, S::Error>>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Unpin,
    {
        async move {
            let store_timeout = self.policy().store_timeout;
            if lease.is_half_used() {
                let renewed = Box::pin(lease.renew(&self.engine, store_timeout)).await;
                if !matches!(renewed, Ok(true)) {
                    let outcome = Outcome::DidNotRun { retry_after: None, keep_for: None };
                    Box::pin(self.engine.finish(lease, outcome, store_timeout)).await;
                    self.count(Decision::StoreUnavailable, began.elapsed());
                    return Ok(self.refuse(&store_unavailable()));
                }
            }
            let number = lease.seen().record.attempt;
            let attempt = Attempt::new(number, lease.handle, self.scope.clone(), self.key.clone());
            headers::strip_upgrade(call.request.headers_mut());
            call.request.extensions_mut().insert(attempt.clone());
            let worked_since = Instant::now();
            let ended = Box::pin(self.under(&lease, &mut call, &attempt)).await;
            let worked = worked_since.elapsed();
            let (outcome, own) = self.ended(ended);
            let finished = Box::pin(self.engine.finish(lease, outcome, store_timeout)).await;
            self.hold.set(false);
            self.count(Decision::run(number), began.elapsed().saturating_sub(worked));
            match own {
                Ok(own) => Ok(answer::finished(own, &finished, self.policy())),
                Err(error) => Err(error),
            }
        }
    }

    /// The work, for as long as its lease is kept. The keeping begins where the work is not done at its first poll.
    async fn under<S, B, R>(
        &self,
        lease: &Lease,
        call: &mut Call<S, B>,
        attempt: &Attempt,
    ) -> Ended<R, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Unpin,
    {
        let mut work = pin!(AssertUnwindSafe(self.work(call, attempt, lease)).catch_unwind());
        let panicked = |_| Ended::NoAnswer(Reason::Panicked);
        if let Poll::Ready(ended) = poll!(work.as_mut()) {
            return ended.unwrap_or_else(panicked);
        }
        tokio::select! {
            biased;
            ended = work => ended.unwrap_or_else(panicked),
            () = Box::pin(lease.keep(&self.engine, self.policy().store_timeout)) => {
                Ended::NoAnswer(Reason::Deadline)
            }
        }
    }

    /// The store is down and the policy says to run all the same.
    async fn run_unprotected<S, B, R>(&self, mut call: Call<S, B>) -> Result<Response<Body<R>>, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Unpin,
    {
        // Nothing is on record, but a handler that counts on its attempt still has one downstream key to send.
        let handle = Handle { id: Id::of(&self.scope, &self.key), token: fresh_token() };
        let attempt = Attempt::new(1, handle, self.scope.clone(), self.key.clone());
        call.request.extensions_mut().insert(attempt);
        let mut response = call.made().await?;
        headers::clean(response.headers_mut(), self.policy());
        Ok(answer::own(response.map(Body::passed), None))
    }

    /// Calls the handler, and reads its answer as far as it is to be kept.
    async fn work<S, B, R>(
        &self,
        call: &mut Call<S, B>,
        attempt: &Attempt,
        lease: &Lease,
    ) -> Ended<R, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Unpin,
    {
        failpoint!("run.before");
        let called = call.made().await;
        failpoint!("run.after");
        let response = match called {
            Ok(response) => response,
            Err(error) => return Ended::Failed(error),
        };
        // An interim status ends nothing: whatever the handler did, this is not its answer.
        if response.status().is_informational() {
            return Ended::NoAnswer(Reason::AnswerBroken);
        }
        let (mut head, body) = response.into_parts();
        let said = both(attempt.heard(), headers::said(&head.headers));
        headers::clean(&mut head.headers, self.policy());
        let means =
            meaning(head.status.as_u16(), said, attempt.number(), lease.terms().effects, self.policy());
        let is_kept = matches!(means, Meaning::Completed) && said.keep_for != Some(Duration::ZERO);
        if !is_kept || is_stream(&head.headers) {
            return Ended::Answered { head, body: Read::Beyond(Body::passed(body)), means, said };
        }
        let spent = answer::header_bytes(&head.headers);
        let Some(room) = self.policy().response_bytes_max.checked_sub(spent) else {
            return Ended::Answered { head, body: Read::Beyond(Body::passed(body)), means, said };
        };
        match read(body, room).await {
            Ok(body) => Ended::Answered { head, body, means, said },
            Err(_) => Ended::NoAnswer(Reason::AnswerBroken),
        }
    }

    /// The outcome, and what the client of this attempt is told unless the record knows better.
    fn ended<R, E>(&self, ended: Ended<R, E>) -> (Outcome, Result<Response<Body<R>>, E>) {
        let lost = |reason, no_answer| {
            let refusal = Refusal::UpstreamOutcomeUnknown(no_answer);
            (Outcome::Unknown(reason), Ok(self.refuse(&refusal)))
        };
        let (head, body, means, said) = match ended {
            Ended::Failed(error) => return (Outcome::Unknown(Reason::ConnectionLost), Err(error)),
            Ended::NoAnswer(Reason::Deadline) => return lost(Reason::Deadline, NoAnswer::TimedOut),
            Ended::NoAnswer(reason) => return lost(reason, NoAnswer::Lost),
            Ended::Answered { head, body, means, said } => (head, body, means, said),
        };
        let keep_for = said.keep_for.filter(|span| !span.is_zero());
        let outcome = match (means, &body) {
            (Meaning::Completed, Read::Whole(bytes)) => {
                let headers = headers::kept(&head.headers, self.policy());
                let response = answer::compact(head.status, headers, bytes);
                Outcome::Completed { response: Some(Arc::new(response)), keep_for }
            }
            (Meaning::Completed, Read::Beyond(_)) => Outcome::Completed { response: None, keep_for },
            (Meaning::DidNotRun { keep_for }, _) => {
                Outcome::DidNotRun { retry_after: headers::retry_after(&head.headers), keep_for }
            }
            (Meaning::Unknown(reason), _) => Outcome::Unknown(reason),
        };
        let body = match body {
            Read::Whole(bytes) => Body::whole(bytes),
            Read::Beyond(body) => body,
        };
        (outcome, Ok(Response::from_parts(head, body)))
    }
}

/// The URI as the client sent it: a router nested in another sees only the end of it.
fn whole_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// How the handler's work ended.
enum Ended<R, E> {
    Answered { head: response::Parts, body: Read<R>, means: Meaning, said: Said },
    NoAnswer(Reason),
    Failed(E),
}

/// What the handler said by its attempt, and where that is silent, by its headers.
fn both(attempt: Said, headers: Said) -> Said {
    Said { outcome: attempt.outcome.or(headers.outcome), keep_for: attempt.keep_for.or(headers.keep_for) }
}

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// An event stream never ends, as far as anybody knows: it is not kept.
fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    let start = content_type.trim_ascii_start().get(..EVENT_STREAM.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM))
}

/// How long a duplicate waits.
struct Patience {
    since: Instant,
    /// `Prefer: wait=N`, up to the policy's bound.
    preferred: Option<Duration>,
    /// `in_flight = "wait"`.
    by_policy: Option<Duration>,
}

impl Patience {
    fn of(headers: &HeaderMap, policy: &Policy) -> Self {
        let preferred = headers::prefers_wait(headers).map(|wait| wait.min(policy.wait_max));
        let by_policy = (policy.in_flight == InFlight::Wait).then_some(policy.wait_max);
        Self { since: Instant::now(), preferred, by_policy }
    }

    /// Until when to wait on this refusal, if at all. Only a client that asked to waits for a verdict.
    fn until(&self, refusal: &Refusal) -> Option<Instant> {
        let wait = match refusal {
            Refusal::InProgress { .. } => self.preferred.or(self.by_policy),
            Refusal::OutcomeUnknown { .. } => self.preferred,
            Refusal::KeyMissing { .. }
            | Refusal::KeyInvalid(_)
            | Refusal::ScopeMissing { .. }
            | Refusal::KeyReused { .. }
            | Refusal::ResponseNotStored
            | Refusal::Expired
            | Refusal::StoreUnavailable { .. }
            | Refusal::LimitReached { .. }
            | Refusal::BodyTooLarge { .. }
            | Refusal::RequestTooOld
            | Refusal::UpstreamUnreachable
            | Refusal::UpstreamOutcomeUnknown(_) => None,
        };
        wait.map(|wait| self.since + wait).filter(|until| Instant::now() < *until)
    }
}

/// Tells a caller about its own key.
pub(crate) async fn tell<R>(
    engine: &Engine,
    settings: &Settings,
    scope: &Scope,
    question: &Question,
) -> Response<Body<R>> {
    let (policy, key, wants_response) = (&settings.policy, &question.key, question.wants_response);
    let seen = match engine.load(Id::of(scope, key), policy.store_timeout).await {
        Ok(seen) => seen,
        Err(error) => {
            tracing::error!(key = %key.digest_short(), error = %chain(&error), "the store did not answer a question");
            return problem::answer(&store_unavailable(), &policy.dialect, Some(key)).map(Body::whole);
        }
    };
    let stored = seen.as_ref().filter(|_| wants_response).filter(|seen| machine::is_replayable(seen));
    match stored {
        Some(seen) => answer::replay(&seen.record, policy),
        None => status::answer(seen.as_ref(), key, wants_response, policy).map(Body::whole),
    }
}
