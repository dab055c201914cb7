//! A keyed request, from its body to its answer.
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
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, poll};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Uri, response};
use http_body::Body as HttpBody;
use onlyonce_core::fingerprint::{Candidates, Subject};
use onlyonce_core::key::Key;
use onlyonce_core::machine::{self, Admission};
use onlyonce_core::outcome::{Meaning, Outcome, Said, meaning};
use onlyonce_core::policy::{InFlight, Policy, StoreDown};
use onlyonce_core::record::{Id, Reason, Record, Revision};
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

/// A request that is ours: it has a key and a caller. One allocation, shared by the future that answers it, by the task that
/// carries it on when its client hangs up, and by the attempt that its handler is given.
pub(crate) struct Keyed {
    pub(crate) settings: Arc<Settings>,
    pub(crate) hold: Hold,
    pub(crate) id: Id,
    pub(crate) scope: Scope,
    pub(crate) key: Key,
    pub(crate) route: Arc<str>,
    pub(crate) counts: Arc<Counts>,
    /// What the handler has said of its attempt.
    pub(crate) said: Mutex<Said>,
}

/// The request itself, and the service that would run it. Boxed: it is several hundred bytes, and is moved often.
pub(crate) struct Call<S> {
    pub(crate) inner: S,
    pub(crate) parts: Parts,
    /// Empty until it has been read.
    pub(crate) body: Bytes,
}

impl<S> Call<S> {
    /// Makes the call. It is made once, and takes the request with it.
    fn made<B, R>(self) -> S::Future
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
    {
        let Self { mut inner, parts, body } = self;
        inner.call(Request::from_parts(parts, Body::whole(body)))
    }
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
/// Futures that are large or seldom needed are boxed on their own (begin, wait, run): of ten thousand duplicates that wait,
/// none reserves space for the other two, and each box is small enough for an allocator's fast path.
#[expect(clippy::manual_async_fn, reason = "an async fn stores each of its arguments twice")]
pub(crate) fn answer<S, B, R>(
    keyed: Arc<Keyed>,
    mut call: Box<Call<S>>,
    body: B,
) -> impl Future<Output = Result<Response<Body<R>>, S::Error>>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes> + Unpin,
    R: HttpBody<Data = Bytes> + Unpin,
{
    async move {
        let bytes_max = keyed.policy().request_bytes_max;
        call.body = match read_request(body, bytes_max).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                keyed.tally(Decision::Limited);
                let answer = keyed.refuse(&Refusal::BodyTooLarge { bytes_max });
                keyed.log(Decision::Limited, Duration::ZERO, None, answer.status());
                return Ok(answer);
            }
            Err(_) => return Ok(answer::unreadable()),
        };
        let began = Instant::now();
        let mut asked_at = began;
        // Begins, and waits and begins again, until there is an answer.
        let way = loop {
            // From here on a reservation may be on its way to the store: it is not left alone there.
            keyed.hold.set(true);
            let (refusal, refused_on) = match Box::pin(keyed.begin(&call.parts, &call.body, asked_at)).await {
                Ok(Begun::Run(lease)) => break Way::Run(lease),
                Ok(Begun::Replay(record)) => break Way::Replay(record),
                Ok(Begun::Refuse(refusal, refused_on)) => (refusal, refused_on),
                Err(error) => break keyed.without_store(&error),
            };
            keyed.hold.set(false);
            let patience = patience(&refusal, &call.parts.headers, keyed.policy());
            let until = patience.map(|patience| began + patience).filter(|until| Instant::now() < *until);
            let Some(until) = until else { break keyed.given_up(refusal) };
            match Box::pin(keyed.wait(&mut call.parts.headers, refused_on, until)).await {
                Waited::Changed => asked_at = Instant::now(),
                Waited::Over => break keyed.given_up(refusal),
            }
        };
        match way {
            Way::Replay(record) => {
                let answer = answer::replay(&record, keyed.policy());
                keyed.decided(Decision::Replayed, began.elapsed(), Some(record.attempt), answer.status());
                Ok(answer)
            }
            Way::Refuse(refusal) => {
                let answer = keyed.refuse(&refusal);
                keyed.decided(Decision::from(&refusal), began.elapsed(), None, answer.status());
                Ok(answer)
            }
            Way::Accepted(refusal) => {
                let answer = Box::pin(keyed.accepted(&refusal)).await;
                keyed.decided(Decision::InProgress, began.elapsed(), None, answer.status());
                Ok(answer)
            }
            Way::Run(lease) => Box::pin(keyed.run(lease, began, call)).await,
            Way::Unprotected => {
                let added = began.elapsed();
                let answer = Box::pin(keyed.run_unprotected(call)).await?;
                keyed.decided(Decision::StoreUnavailable, added, None, answer.status());
                Ok(answer)
            }
        }
    }
}

impl Keyed {
    pub(crate) fn new(
        settings: Arc<Settings>,
        scope: Scope,
        key: Key,
        route: Arc<str>,
        counts: Arc<Counts>,
    ) -> Self {
        let id = Id::of(&scope, &key);
        Self { settings, hold: Hold::default(), id, scope, key, route, counts, said: Mutex::default() }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.settings.engine
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.settings.policy
    }

    /// A request is counted once and logged once, with what it took beyond the work itself.
    fn decided(&self, decision: Decision, added: Duration, attempt: Option<u32>, status: StatusCode) {
        self.tally(decision);
        self.engine().times.added(decision, added);
        self.log(decision, added, attempt, status);
    }

    /// The line of this request in the decision log. Its key is in it only by the record's short digest.
    fn log(&self, decision: Decision, added: Duration, attempt: Option<u32>, status: StatusCode) {
        tracing::info!(
            target: "onlyonce::decisions",
            decision = decision.name(),
            route = &*self.route,
            record = %self.id.short(),
            attempt,
            status = status.as_u16(),
            added_us = u64::try_from(added.as_micros()).unwrap_or(u64::MAX),
        );
    }

    fn tally(&self, decision: Decision) {
        self.counts.request(decision);
        self.engine().times.tally.decided(decision);
    }

    /// It passed, and would have been decided on so.
    pub(crate) fn observed(&self, decision: Decision) {
        self.counts.observed(decision);
        self.engine().times.tally.decided(Decision::Observed);
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

    /// Asks whether it may run. The fingerprint is computed anew each time: most requests ask once, and those that wait hold
    /// no digest meanwhile.
    async fn begin(&self, parts: &Parts, body: &Bytes, asked_at: Instant) -> Result<Begun, Error> {
        let request = machine::Request {
            scope: &self.scope,
            key: &self.key,
            route: Some(&self.route),
            fingerprint: &self.candidates(parts, body),
            policy: self.policy(),
            token: fresh_token(),
            admission: Admission::Run,
        };
        self.engine().begin(&self.id, &request, asked_at).await
    }

    /// Waits for what it was refused on to change.
    async fn wait(&self, headers: &mut HeaderMap, refused_on: Option<Revision>, until: Instant) -> Waited {
        let folded = headers::fold(std::mem::take(headers));
        let waited = self.engine().wait(&self.id, refused_on, until).await;
        *headers = headers::unfold(folded);
        waited
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
        tracing::error!(record = %self.id.short(), error = %chain(error), "the store did not take the reservation");
        match (self.policy().store_down, error.kind()) {
            (StoreDown::Run, ErrorKind::Unavailable) => Way::Unprotected,
            (StoreDown::Run | StoreDown::Refuse, _) => Way::Refuse(store_unavailable()),
        }
    }

    async fn accepted<R>(&self, refusal: &Refusal) -> Response<Body<R>> {
        match self.engine().load(&self.id, self.policy().store_timeout).await {
            Ok(Some(seen)) => status::in_progress(&seen, &self.key, self.policy()).map(Body::whole),
            Ok(None) | Err(_) => self.refuse(refusal),
        }
    }

    /// Runs the handler under a lease and writes down what became of it.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores each of its arguments twice")]
    fn run<S, B, R>(
        self: &Arc<Self>,
        lease: Box<Lease>,
        began: Instant,
        mut call: Box<Call<S>>,
    ) -> impl Future<Output = Result<Response<Body<R>>, S::Error>>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Unpin,
    {
        async move {
            let store_timeout = self.policy().store_timeout;
            let mut worked_since = Instant::now();
            if lease.is_half_used(worked_since) {
                let renewed = Box::pin(lease.renew(self.engine(), store_timeout)).await;
                worked_since = Instant::now();
                if !matches!(renewed, Ok(true)) {
                    let outcome = Outcome::DidNotRun { retry_after: None, keep_for: None };
                    Box::pin(self.engine().finish(lease, outcome, store_timeout, worked_since)).await;
                    let answer = self.refuse(&store_unavailable());
                    self.decided(Decision::StoreUnavailable, began.elapsed(), None, answer.status());
                    return Ok(answer);
                }
            }
            let number = lease.attempt();
            headers::strip_upgrade(&mut call.parts.headers);
            call.parts.extensions.insert(Attempt::new(self.clone(), lease.handle.token, number));
            let ended = self.under(&lease, call, number).await;
            let worked_until = Instant::now();
            let (outcome, own) = self.ended(ended);
            let finished = self.engine().finish(lease, outcome, store_timeout, worked_until).await;
            self.hold.set(false);
            let worked = worked_until.saturating_duration_since(worked_since);
            let added = began.elapsed().saturating_sub(worked);
            let answer = own.map(|own| answer::finished(own, &finished, self.policy()));
            // A service of the layer's own that failed has no answer: its client is told by whoever called it.
            let status = answer.as_ref().map_or(StatusCode::INTERNAL_SERVER_ERROR, Response::status);
            self.decided(Decision::run(number), added, Some(number), status);
            answer
        }
    }

    /// The work, for as long as its lease is kept. The keeping begins where the work is not done at its first poll.
    async fn under<S, B, R>(&self, lease: &Lease, call: Box<Call<S>>, number: u32) -> Ended<R, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Unpin,
    {
        let mut work = pin!(AssertUnwindSafe(self.work(call, number, lease)).catch_unwind());
        let panicked = |_| Ended::NoAnswer(Reason::Panicked);
        if let Poll::Ready(ended) = poll!(work.as_mut()) {
            return ended.unwrap_or_else(panicked);
        }
        tokio::select! {
            biased;
            ended = work => ended.unwrap_or_else(panicked),
            () = Box::pin(lease.keep(self.engine(), self.policy().store_timeout)) => {
                Ended::NoAnswer(Reason::Deadline)
            }
        }
    }

    /// The store is down and the policy says to run all the same.
    async fn run_unprotected<S, B, R>(
        self: &Arc<Self>,
        mut call: Box<Call<S>>,
    ) -> Result<Response<Body<R>>, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Unpin,
    {
        // Nothing is on record, but a handler that counts on its attempt still has one downstream key to send.
        call.parts.extensions.insert(Attempt::new(self.clone(), fresh_token(), 1));
        let mut response = call.made().await?;
        headers::clean(response.headers_mut(), self.policy());
        Ok(answer::own(response.map(Body::passed), None))
    }

    /// Calls the handler, and reads its answer as far as it is to be kept.
    async fn work<S, B, R>(&self, call: Box<Call<S>>, number: u32, lease: &Lease) -> Ended<R, S::Error>
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
        let said = both(self.heard(), headers::said(&head.headers));
        headers::clean(&mut head.headers, self.policy());
        let means = meaning(head.status.as_u16(), said, number, lease.effects(), self.policy());
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

    /// What the handler said by its attempt.
    fn heard(&self) -> Said {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner)
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
                let response = answer::compact(head.status, &head.headers, bytes, self.policy());
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

/// How long a duplicate waits on this refusal, if at all: `Prefer: wait=N` up to the policy's bound, else `in_flight =
/// "wait"`. Only a client that asked to waits for a verdict.
fn patience(refusal: &Refusal, headers: &HeaderMap, policy: &Policy) -> Option<Duration> {
    let preferred = || headers::prefers_wait(headers).map(|wait| wait.min(policy.wait_max));
    let by_policy = (policy.in_flight == InFlight::Wait).then_some(policy.wait_max);
    match refusal {
        Refusal::InProgress { .. } => preferred().or(by_policy),
        Refusal::OutcomeUnknown { .. } => preferred(),
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
    }
}

/// Tells a caller about its own key.
pub(crate) async fn tell<R>(settings: &Settings, scope: &Scope, question: &Question) -> Response<Body<R>> {
    let (policy, key, wants_response) = (&settings.policy, &question.key, question.wants_response);
    let id = Id::of(scope, key);
    let seen = match settings.engine.load(&id, policy.store_timeout).await {
        Ok(seen) => seen,
        Err(error) => {
            tracing::error!(record = %id.short(), error = %chain(&error), "the store did not answer a question");
            return problem::answer(&store_unavailable(), &policy.dialect, Some(key)).map(Body::whole);
        }
    };
    let stored = seen.as_ref().filter(|_| wants_response).filter(|seen| machine::is_replayable(seen));
    match stored {
        Some(seen) => answer::replay(&seen.record, policy),
        None => status::answer(seen.as_ref(), key, wants_response, policy).map(Body::whole),
    }
}
