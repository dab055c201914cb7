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
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, poll};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, response};
use http_body::Body as HttpBody;
use onlyonce_core::fingerprint::{Candidates, Digested, Subject};
use onlyonce_core::key::Key;
use onlyonce_core::limits::Limit;
use onlyonce_core::machine::{self, Admission};
use onlyonce_core::outcome::{Meaning, Outcome, Said, meaning};
use onlyonce_core::policy::{Accept, InFlight, Policy, StoreDown};
use onlyonce_core::record::{Effects, Id, Reason, Record, Revision, Seen, Token, TraceId};
use onlyonce_core::refusal::{NoAnswer, Refusal, Resend};
use onlyonce_core::scope::Scope;
use onlyonce_store::{Error, ErrorKind, failpoint};
use tokio::time::Instant;
use tower_service::Service;

use crate::accepted::{Cancelled, Stored, Work};
use crate::attempt::Attempt;
use crate::body::{self, Body, Incoming, Read, read, read_request};
use crate::buffered::Share;
use crate::counts::{Counts, Decision};
use crate::engine::{Begun, Engine, Finished, Renewed, chain, fresh_token, store_unavailable};
use crate::future::Hold;
use crate::gate::Gate;
use crate::layer::Settings;
use crate::lease::{Lease, Over};
use crate::phase::Phases;
use crate::status::{Asks, Question};
use crate::trace::{Began, Decided, SpanId, Trace};
use crate::wait::Waited;
use crate::{answer, counts, headers, problem, status};

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
    /// Whether it has taken its look-up.
    looked_up: AtomicBool,
    /// What the handler has said of its attempt.
    pub(crate) said: Mutex<Said>,
    /// How far a handler of phases has come; none where it has none.
    pub(crate) phases: Mutex<Option<Box<Phases>>>,
    /// What is held of its bodies.
    buffered: Share,
    /// Who waits for its end.
    pub(crate) waits: Waits,
    /// Its trace; none where nobody wants spans.
    pub(crate) trace: Option<Box<Trace>>,
}

impl Drop for Keyed {
    fn drop(&mut self) {
        self.buffered.give_back(&self.settings.engine.buffered);
    }
}

/// A body of at least so many bytes is read on another thread.
const LARGE_BYTES: usize = 64 * 1024;
/// When a request may come back that there was no room for.
const ROOM_RETRY_AFTER: Duration = Duration::from_secs(1);

/// As many bytes are held as there may be.
pub(crate) fn no_room() -> Refusal {
    Refusal::LimitReached { limit: Limit::BufferedBytesMax, retry_after: ROOM_RETRY_AFTER }
}

/// Who waits for the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    Client,
    /// Accepted work: it was counted when it was accepted.
    Nobody,
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
    pub(crate) fn made<B, R>(self) -> S::Future
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
    /// 202: it is accepted, as shown.
    Accepted(Seen),
    /// 202: it is under way.
    InProgress(Refusal),
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
    body: Incoming<B>,
) -> impl Future<Output = Result<Response<Body<R>>, S::Error>>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes> + Unpin,
    R: HttpBody<Data = Bytes> + Unpin,
{
    async move {
        let bytes_max = keyed.policy().request_bytes_max;
        call.body = match keyed.received(body).await {
            Ok(body::Request::Whole(bytes)) => bytes,
            Ok(body::Request::TooLarge) => return Ok(keyed.limited(&Refusal::BodyTooLarge { bytes_max })),
            Ok(body::Request::NoRoom) => return Ok(keyed.limited(&no_room())),
            Err(_) => return Ok(answer::unreadable()),
        };
        let began = Instant::now();
        let mut asked_at = began;
        let accepting = keyed.accepts(&call.parts.headers).then(|| keyed.encoded(&call));
        let (mut accepted, mut is_on_record) = (None, false);
        // Begins, and waits and begins again, until there is an answer.
        let way = loop {
            // From here on a reservation may be on its way to the store: it is not left alone there.
            keyed.hold.set(true);
            let span = keyed.begin_span();
            let begun = Box::pin(keyed.begin(&call.parts, &call.body, accepting.as_ref(), asked_at)).await;
            keyed.asked_store("onlyonce.reserve", span, begun.is_err());
            let (refusal, refused_on) = match begun {
                Ok(Begun::Run(lease)) => break Way::Run(lease),
                Ok(Begun::Accepted(seen)) => {
                    let in_progress = Refusal::InProgress { retry_after: Duration::ZERO };
                    let revision = seen.revision;
                    accepted = Some(seen);
                    (in_progress, Some(revision))
                }
                Ok(Begun::Replay(record)) => break Way::Replay(record),
                Ok(Begun::Refuse(refusal, refused_on)) => (refusal, refused_on),
                Err(error) => {
                    // An acceptance that may have been stored is run by a worker, and so is not run here.
                    is_on_record |= accepting.is_some() && !error.wrote_nothing();
                    break match accepted {
                        Some(seen) => Way::Accepted(seen),
                        None => keyed.without_store(&error, &call.parts, is_on_record),
                    };
                }
            };
            keyed.hold.set(false);
            is_on_record |= refused_on.is_some();
            let patience = match &accepted {
                None => patience(&refusal, &call.parts.headers, keyed.policy()),
                Some(_) => preferred(&call.parts.headers, keyed.policy()),
            };
            let until = patience.map(|patience| began + patience).filter(|until| Instant::now() < *until);
            let Some(until) = until else { break keyed.given_up(refusal, accepted, accepting.is_some()) };
            match Box::pin(keyed.wait(&mut call.parts.headers, refused_on, until)).await {
                Waited::Changed => asked_at = Instant::now(),
                Waited::Over => break keyed.given_up(refusal, accepted, accepting.is_some()),
            }
        };
        match way {
            Way::Replay(record) => {
                let answer = answer::replay(&record, keyed.policy());
                keyed.saw(&record);
                keyed.decided(Decision::Replayed, began.elapsed(), Some(record.attempt), answer.status());
                Ok(answer)
            }
            Way::Refuse(refusal) => {
                let answer = keyed.refuse(&refusal);
                if let (Some(trace), Some(state)) = (&keyed.trace, machine::state_refused(&refusal)) {
                    trace.left(state.as_str());
                }
                keyed.decided(Decision::from(&refusal), began.elapsed(), None, answer.status());
                Ok(answer)
            }
            Way::Accepted(seen) => {
                let answer = status::in_progress(&seen, &keyed.key, keyed.policy()).map(Body::whole);
                keyed.saw(&seen.record);
                keyed.decided(Decision::Accepted, began.elapsed(), None, answer.status());
                Ok(answer)
            }
            Way::InProgress(refusal) => {
                let answer = Box::pin(keyed.under_way(&refusal)).await;
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
        Self {
            settings,
            hold: Hold::default(),
            id,
            scope,
            key,
            route,
            counts,
            looked_up: AtomicBool::new(false),
            said: Mutex::default(),
            phases: Mutex::default(),
            buffered: Share::default(),
            waits: Waits::Client,
            trace: None,
        }
    }

    /// The same with a trace.
    pub(crate) fn traced(mut self, trace: Option<Box<Trace>>) -> Self {
        self.trace = trace;
        self
    }

    /// The same for accepted work.
    pub(crate) fn in_background(mut self) -> Self {
        self.waits = Waits::Nobody;
        self
    }

    /// Whether this request is to be accepted where it would run.
    fn accepts(&self, headers: &HeaderMap) -> bool {
        let is_wanted = match self.policy().accept {
            Accept::Never => false,
            Accept::Allowed => headers::prefers_async(headers),
            Accept::Always => true,
        };
        is_wanted && self.engine().accepted.has_runner()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.settings.engine
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.settings.policy
    }

    /// A request is counted once and logged once, with what it took beyond the work itself.
    pub(crate) fn decided(
        &self,
        decision: Decision,
        added: Duration,
        attempt: Option<u32>,
        status: StatusCode,
    ) {
        match self.waits {
            Waits::Client => {
                self.tally(decision);
                self.engine().times.added(decision, added);
            }
            Waits::Nobody => {}
        }
        self.log(decision, added, attempt, status);
        self.trace_decided(decision, attempt, status);
    }

    /// Its own span ends.
    fn trace_decided(&self, decision: Decision, attempt: Option<u32>, status: StatusCode) {
        if let Some(trace) = &self.trace {
            let (route, id) = (&self.counts.route, Some(&self.id));
            trace.decided(self.engine(), &Decided { route, id, decision, attempt, status });
        }
    }

    /// What its record keeps of its trace.
    pub(crate) fn stored_trace(&self) -> Option<TraceId> {
        self.trace.as_ref()?.stored()
    }

    /// A part of its trace begins.
    pub(crate) fn begin_span(&self) -> Option<Began> {
        self.trace.as_ref()?.begin()
    }

    /// The store was asked, which is a part of its trace.
    fn asked_store(&self, name: &'static str, began: Option<Began>, failed: bool) {
        if let Some(trace) = &self.trace {
            trace.asked_store(self.engine(), name, began, failed);
        }
    }

    /// The work has ended, which is a part of its trace.
    pub(crate) fn called(&self, token: Token, began: Option<Began>, status: Option<StatusCode>) {
        if let Some(trace) = &self.trace {
            trace.called(self.engine(), token, began, status);
        }
    }

    /// What its record is, for its trace.
    pub(crate) fn saw(&self, record: &Record) {
        if let Some(trace) = &self.trace {
            trace.saw(record);
        }
    }

    /// Passes its trace on to the work of this attempt.
    pub(crate) fn pass_trace_on(&self, headers: &mut HeaderMap, token: Token) {
        if let Some(trace) = &self.trace {
            trace.pass_on(headers, SpanId(token.span_id()));
        }
    }

    /// The request as it is accepted: what runs it later is part of the same trace.
    fn encoded<S>(&self, call: &Call<S>) -> Bytes {
        let Some(trace) = &self.trace else { return Stored::encoded(&call.parts, &call.body) };
        let mut parts = call.parts.clone();
        trace.pass_on_from_here(&mut parts.headers);
        Stored::encoded(&parts, &call.body)
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
        let tally = &self.engine().times.tally;
        tally.decided(decision);
        if decision.is_duplicate() {
            tally.duplicate(&self.scope);
        }
    }

    /// It passed, and would have been decided on so.
    pub(crate) fn observed(&self, decision: Decision) {
        self.counts.observed(decision);
        self.engine().times.tally.decided(Decision::Observed);
    }

    /// Whether so many more bytes of its body may be held.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        self.buffered.take(&self.engine().buffered, bytes)
    }

    /// Its whole body, as far as it may be held.
    pub(crate) async fn received<B>(&self, body: Incoming<B>) -> Result<body::Request, B::Error>
    where
        B: HttpBody<Data = Bytes> + Unpin,
    {
        match body {
            Incoming::Coming(body) => {
                read_request(body, self.policy().request_bytes_max, |bytes| self.holds(bytes)).await
            }
            Incoming::Read(bytes, held) => {
                self.buffered.add(held.into_share());
                Ok(body::Request::Whole(bytes))
            }
        }
    }

    /// So many more bytes of its answer are held: the work is done, so they are.
    pub(crate) fn holds_anyway(&self, bytes: u64) -> bool {
        self.buffered.take_anyway(&self.engine().buffered, bytes);
        true
    }

    /// Refuses a request before it was looked at.
    fn limited<R>(&self, refusal: &Refusal) -> Response<Body<R>> {
        self.tally(Decision::Limited);
        let answer = self.refuse(refusal);
        self.log(Decision::Limited, Duration::ZERO, None, answer.status());
        self.trace_decided(Decision::Limited, None, answer.status());
        answer
    }

    pub(crate) fn refuse<R>(&self, refusal: &Refusal) -> Response<Body<R>> {
        counts::limited(refusal);
        problem::answer(refusal, &self.policy().dialect, Some(&self.key)).map(Body::whole)
    }

    /// The fingerprint of this request, in each way it may have been stored.
    pub(crate) fn candidates<'a>(&'a self, parts: &'a Parts, body: &'a Bytes) -> Candidates<'a> {
        let subject = subject(&parts.method, whole_uri(parts), &parts.headers, body);
        self.policy().fingerprint.candidates(subject)
    }

    /// The same with digests that were made before.
    pub(crate) fn candidates_with<'a>(
        &'a self,
        parts: &'a Parts,
        body: &'a Bytes,
        digested: Option<Digested>,
    ) -> Candidates<'a> {
        let candidates = self.candidates(parts, body);
        match digested {
            Some(digested) => candidates.with(digested),
            None => candidates,
        }
    }

    /// The digests of a request with a large body, made on another thread, so that other requests on this one need not wait; on as
    /// many at once as there are cores.
    pub(crate) async fn digested(&self, parts: &Parts, body: &Bytes) -> Option<Digested> {
        let _permit = self.engine().large_bodies.acquire().await.ok()?;
        let (settings, uri, body) = (self.settings.clone(), whole_uri(parts).clone(), body.clone());
        let (method, headers) = (parts.method.clone(), parts.headers.clone());
        let digest = move || settings.policy.fingerprint.digested(subject(&method, &uri, &headers, &body));
        tokio::task::spawn_blocking(digest).await.ok()
    }

    /// This request as the rules see it, with a token of its own.
    pub(crate) fn request<'a>(&'a self, candidates: &'a Candidates<'a>) -> machine::Request<'a> {
        machine::Request {
            scope: &self.scope,
            key: &self.key,
            route: Some(&self.route),
            fingerprint: candidates,
            policy: self.policy(),
            token: fresh_token(),
            admission: Admission::Run,
            trace: self.stored_trace(),
        }
    }

    /// Asks whether it may run. The fingerprint is computed anew each time: most requests ask once, and those that wait hold
    /// no digest meanwhile.
    async fn begin(
        &self,
        parts: &Parts,
        body: &Bytes,
        accepting: Option<&Bytes>,
        asked_at: Instant,
    ) -> Result<Begun, Error> {
        let digested = if is_large(body) { Box::pin(self.digested(parts, body)).await } else { None };
        let candidates = self.candidates_with(parts, body, digested);
        let mut request = self.request(&candidates);
        if accepting.is_some() {
            request.admission = Admission::Accept;
        }
        let gate = Gate { accepting, ..self.gate(parts) };
        self.engine().begin(&self.id, &request, &gate, asked_at).await
    }

    /// What this request must pass before anything is reserved for it.
    pub(crate) fn gate<'a>(&'a self, parts: &'a Parts) -> Gate<'a> {
        Gate {
            limiter: &self.engine().limiter,
            limits: self.settings.limits.as_ref(),
            scope: self.scope.digest(),
            policy: self.policy(),
            headers: &parts.headers,
            looked_up: &self.looked_up,
            accepted: &self.engine().accepted,
            accepting: None,
        }
    }

    /// Waits for what it was refused on to change.
    async fn wait(&self, headers: &mut HeaderMap, refused_on: Option<Revision>, until: Instant) -> Waited {
        let folded = headers::fold(std::mem::take(headers));
        let waited = self.engine().wait(&self.id, refused_on, until).await;
        *headers = headers::unfold(folded);
        waited
    }

    /// What a request is answered with that waits no longer. One that was accepted, or asked to be, is told where to ask.
    fn given_up(&self, refusal: Refusal, accepted: Option<Seen>, is_accepting: bool) -> Way {
        match (&refusal, accepted, self.policy().in_flight) {
            (
                Refusal::InProgress { .. } | Refusal::LimitReached { .. } | Refusal::StoreUnavailable { .. },
                Some(seen),
                _,
            ) => Way::Accepted(seen),
            (Refusal::InProgress { .. }, None, InFlight::Accept) => Way::InProgress(refusal),
            (Refusal::InProgress { .. }, None, InFlight::Refuse | InFlight::Wait) if is_accepting => {
                Way::InProgress(refusal)
            }
            (_, _, InFlight::Accept | InFlight::Refuse | InFlight::Wait) => Way::Refuse(refusal),
        }
    }

    /// Fail closed: no reservation, no work. Unless the policy says otherwise, and the store is only away: a record
    /// that cannot be read is never run over, nor is one that is there. Nor does a request run that is too old: whether it ran
    /// before is not known.
    fn without_store(&self, error: &Error, parts: &Parts, is_on_record: bool) -> Way {
        tracing::error!(record = %self.id.short(), error = %chain(error), "the store did not accept the reservation");
        match (self.policy().store_down, error.kind()) {
            (StoreDown::Run, ErrorKind::Unavailable)
                if !is_on_record && self.gate(parts).judge_age().is_ok() =>
            {
                Way::Unprotected
            }
            (StoreDown::Run | StoreDown::Refuse, _) => Way::Refuse(store_unavailable()),
        }
    }

    async fn under_way<R>(&self, refusal: &Refusal) -> Response<Body<R>> {
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
                if !matches!(renewed, Ok(Renewed::Until(_))) {
                    return Ok(Box::pin(self.give_up(lease, began)).await);
                }
            }
            let number = lease.attempt();
            if number > 1
                && let Some(phases) = Phases::resumed(&lease.progress())
            {
                // Without what the earlier phases have left, nothing of it is run.
                if !Box::pin(self.has_readable_results(&lease)).await {
                    return Ok(Box::pin(self.give_up(lease, began)).await);
                }
                *self.phases() = Some(phases);
            }
            headers::strip_upgrade(&mut call.parts.headers);
            let token = lease.handle.token;
            self.pass_trace_on(&mut call.parts.headers, token);
            call.parts.extensions.insert(Attempt::new(self.clone(), token, number));
            let span = self.begin_span();
            let ended = self.under(&lease, call, number).await;
            let worked_until = Instant::now();
            self.called(token, span, ended.status());
            let (outcome, own) = self.ended(ended);
            let may_be_outside = lease.effects() == Effects::Local
                && matches!(outcome, Outcome::Completed { .. })
                && own.as_ref().is_ok_and(|own| own.status().is_success());
            let span = self.begin_span();
            let finished = self.engine().finish(lease, outcome, store_timeout, worked_until).await;
            self.hold.set(false);
            self.asked_store("onlyonce.finish", span, matches!(finished, Finished::NotWritten));
            if let Some(seen) = finished.seen() {
                self.saw(&seen.record);
            }
            if may_be_outside && matches!(finished, Finished::Written(_)) {
                self.counts.completed_outside();
            }
            let worked = worked_until.saturating_duration_since(worked_since);
            let added = began.elapsed().saturating_sub(worked);
            let answer = own.map(|own| answer::finished(own, &finished, self.policy(), &self.key));
            // A service of the layer's own that failed has no answer: its client is told by whoever called it.
            let status = answer.as_ref().map_or(StatusCode::INTERNAL_SERVER_ERROR, Response::status);
            self.decided(Decision::run(number), added, Some(number), status);
            answer
        }
    }

    /// It has begun and does not run, since the store does not say enough.
    async fn give_up<R>(&self, lease: Box<Lease>, began: Instant) -> Response<Body<R>> {
        let outcome = Outcome::DidNotRun { retry_after: None, keep_for: None };
        self.engine().finish(lease, outcome, self.policy().store_timeout, Instant::now()).await;
        let answer = self.refuse(&store_unavailable());
        self.decided(Decision::StoreUnavailable, began.elapsed(), None, answer.status());
        answer
    }

    /// Whether the results of the phases that have committed can be read: a key that they are encrypted with may be missing.
    async fn has_readable_results(&self, lease: &Lease) -> bool {
        let results = self.engine().store().results(self.id, lease.seen().record.created_at).await;
        if let Err(error) = &results {
            tracing::error!(record = %self.id.short(), error = %chain(error), "the stored results of its phases cannot be read; the request is not run");
        }
        results.is_ok()
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
            over = Box::pin(lease.keep(self.engine(), self.policy().store_timeout)) => match over {
                Over::Deadline => Ended::NoAnswer(Reason::Deadline),
                // Finishing finds the stored answer, and no doubt is written.
                Over::Completed => Ended::NoAnswer(Reason::AnswerBroken),
            },
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
        let token = fresh_token();
        self.pass_trace_on(&mut call.parts.headers, token);
        call.parts.extensions.insert(Attempt::new(self.clone(), token, 1));
        let span = self.begin_span();
        let called = call.made().await;
        self.called(token, span, called.as_ref().ok().map(Response::status));
        let mut response = called?;
        headers::clean(response.headers_mut(), self.policy());
        Ok(answer::own(response.map(Body::passed), None, self.policy(), &self.key))
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
        if matches!(means, Meaning::Completed) && self.has_missed_a_phase() {
            return Ended::NoAnswer(Reason::Changed);
        }
        let is_kept = matches!(means, Meaning::Completed) && said.keep_for != Some(Duration::ZERO);
        if !is_kept || is_stream(&head.headers) {
            return Ended::Answered { head, body: Read::Beyond(Body::passed(body)), means, said };
        }
        let spent = answer::header_bytes(&head.headers);
        let Some(room) = self.policy().response_bytes_max.checked_sub(spent) else {
            return Ended::Answered { head, body: Read::Beyond(Body::passed(body)), means, said };
        };
        match read(body, room, |bytes| self.holds_anyway(bytes)).await {
            Ok(body) => Ended::Answered { head, body, means, said },
            Err(_) => Ended::NoAnswer(Reason::AnswerBroken),
        }
    }

    /// Whether the handler would complete without a phase that an earlier attempt has committed or called. Told to whoever
    /// changed it.
    fn has_missed_a_phase(&self) -> bool {
        let phases = self.phases();
        let Some(phase) = phases.as_ref().and_then(|phases| phases.missing()) else { return false };
        tracing::error!(
            record = %self.id.short(),
            route = &*self.route,
            phase = &**phase,
            "the handler answered without reaching a phase that is on record; run the release that began the work, or settle the record"
        );
        true
    }

    /// How far a handler of phases has come.
    pub(crate) fn phases(&self) -> std::sync::MutexGuard<'_, Option<Box<Phases>>> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the handler said by its attempt.
    pub(crate) fn heard(&self) -> Said {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outcome, and what the client of this attempt is told unless the record knows better.
    fn ended<R, E>(&self, ended: Ended<R, E>) -> (Outcome, Result<Response<Body<R>>, E>) {
        let lost = |reason, no_answer| {
            let refusal = Refusal::UpstreamOutcomeUnknown(no_answer, Resend::of(self.policy().effects));
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

/// Whether reading it takes longer than others on its thread should wait.
pub(crate) fn is_large(body: &Bytes) -> bool {
    body.len() >= LARGE_BYTES
}

fn subject<'a>(method: &'a Method, uri: &'a Uri, headers: &'a HeaderMap, body: &'a [u8]) -> Subject<'a> {
    Subject { method: method.as_str(), path: uri.path(), query: uri.query(), headers, body }
}

/// The URI as the client sent it: a router nested in another sees only the end of it.
pub(crate) fn whole_uri(parts: &Parts) -> &Uri {
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

impl<R, E> Ended<R, E> {
    fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Answered { head, .. } => Some(head.status),
            Self::NoAnswer(_) | Self::Failed(_) => None,
        }
    }
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
    let preferred = || preferred(headers, policy);
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
        | Refusal::RequestTooOld(_)
        | Refusal::UpstreamUnreachable(_)
        | Refusal::UpstreamOutcomeUnknown(..) => None,
    }
}

/// How long the client asked to wait, up to the policy's bound.
fn preferred(headers: &HeaderMap, policy: &Policy) -> Option<Duration> {
    headers::prefers_wait(headers).map(|wait| wait.min(policy.wait_max))
}

/// Runs accepted work, if this node is the one that claims it.
pub(crate) async fn run_accepted<S, B, R>(
    keyed: Arc<Keyed>,
    call: Box<Call<S>>,
    work: Work,
) -> Option<Result<Response<Body<R>>, S::Error>>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Unpin,
{
    let began = Instant::now();
    let lease = Box::pin(keyed.engine().claim(&work, &keyed.gate(&call.parts), keyed.stored_trace())).await?;
    Some(Box::pin(keyed.run(lease, began, call)).await)
}

/// Cancels accepted work for its caller.
pub(crate) async fn cancel<R>(settings: &Settings, scope: &Scope, key: &Key) -> Response<Body<R>> {
    let (policy, id) = (&settings.policy, Id::of(scope, key));
    match settings.engine.cancel(&id, policy.store_timeout).await {
        Ok(Cancelled::Done) => answer::no_content(),
        Ok(Cancelled::Refused(seen)) => status::not_cancelled(seen.as_ref(), key, policy).map(Body::whole),
        Err(error) => {
            tracing::error!(record = %id.short(), error = %chain(&error), "accepted work was not cancelled");
            problem::answer(&store_unavailable(), &policy.dialect, Some(key)).map(Body::whole)
        }
    }
}

/// Tells a caller about its own key.
pub(crate) async fn tell<R>(settings: &Settings, scope: &Scope, question: &Question) -> Response<Body<R>> {
    let (policy, key) = (&settings.policy, &question.key);
    let wants_response = match question.asks {
        Asks::Cancel => return cancel(settings, scope, key).await,
        Asks::Response => true,
        Asks::State => false,
    };
    let id = Id::of(scope, key);
    let seen = match settings.engine.load(&id, policy.store_timeout).await {
        Ok(seen) => seen,
        Err(error) => {
            tracing::error!(record = %id.short(), error = %chain(&error), "the store did not answer a status request");
            return problem::answer(&store_unavailable(), &policy.dialect, Some(key)).map(Body::whole);
        }
    };
    let stored = seen.as_ref().filter(|_| wants_response).filter(|seen| machine::is_replayable(seen));
    match stored {
        Some(seen) => answer::replay(&seen.record, policy),
        None => status::answer(seen.as_ref(), key, wants_response, policy).map(Body::whole),
    }
}
