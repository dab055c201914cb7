//! One `call`: which requests are ours, and what becomes of those that are not.
//!
//! The order of checks: accepted work, which was judged before; a question about a key; the method; the key; the caller;
//! the size. Only then is the body read, and only with the body is the store asked ([`crate::keyed`]).
//!
//! A key that may stand in the body is the exception: there the size comes first, then the body, which is bounded, then the key.
//! Where there must be one, or the head has one already, the caller comes before the body all the same.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body as HttpBody;
use onlyonce_core::key::{self, Invalid, Key, Parsed, Source};
use onlyonce_core::policy::{Anonymous, Mode, Policy};
use onlyonce_core::refusal::Refusal;
use onlyonce_core::scope::Scope;

use crate::accepted::Work;
use crate::body::{self, Body, Incoming, Read, read_request};
use crate::buffered::Held;
use crate::counts::{ByRoute, Counts, Decision};
use crate::future::ResponseFuture;
use crate::gate::Gate;
#[cfg(any(feature = "_driver", feature = "sqlite"))]
use crate::in_transaction;
use crate::keyed::{Call, Keyed};
use crate::layer::Settings;
use crate::status::Question;
use crate::trace::Decided;
use crate::{answer, counts, headers, keyed, observe, problem, status};

/// A service whose writes are safe to retry. Made by [`crate::Layer`].
#[derive(Clone, Debug)]
pub struct Service<S> {
    inner: S,
    settings: Arc<Settings>,
}

/// The name of the route a request matched, where the router in front puts it into the request's extensions. It is part
/// of the record, and of the scope where `policy.scope` names `route`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route(pub Arc<str>);

/// A request that could have had a key and has none; how its route would say so.
#[derive(Clone, Debug)]
pub(crate) struct Keyless(pub(crate) Arc<Settings>);

impl<S> Service<S> {
    pub(crate) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }

    fn refuse<F, R, E>(&self, refusal: &Refusal, key: Option<&Key>) -> ResponseFuture<F, R, E> {
        let response = problem::answer(refusal, &self.settings.policy.dialect, key);
        ResponseFuture::answered(response.map(Body::whole))
    }
}

impl<S, B, R> tower_service::Service<Request<B>> for Service<S>
where
    S: tower_service::Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    R::Error: Send,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        headers::strip_ours(request.headers_mut());
        // Whatever the policy says now: its record has the key and the scope, and nothing runs without a claim.
        if let Some(work) = request.extensions_mut().remove::<Work>() {
            return self.run_for_app(work, request.into_parts().0);
        }
        let policy = &self.settings.policy;
        if let Some(question) = status::question(request.method(), request.uri().path()) {
            return self.answer_question(question, &request.into_parts().0);
        }
        if !policy.methods.contains(request.method()) {
            return ResponseFuture::passing(self.inner.call(request.map(Body::passed)));
        }
        let key = key_in_head(request.headers(), request.uri().query(), policy);
        let (parts, body) = request.into_parts();
        match key {
            Ok(key) if policy.has_key_in_body() => self.read_first(key, parts, body),
            key => self.decide(key, parts, Incoming::Coming(body)),
        }
    }
}

impl<S> Service<S> {
    /// What becomes of a covered request, once its key is known.
    fn decide<B, R>(
        &mut self,
        key: Result<Option<Parsed>, Invalid>,
        mut parts: Parts,
        body: Incoming<B>,
    ) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: tower_service::Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Send,
    {
        let policy = &self.settings.policy;
        let parsed = match key {
            Ok(Some(parsed)) => Ok(parsed),
            Ok(None) if policy.required.contains(&parts.method) => Err(key_missing(policy)),
            Ok(None) => {
                // A handler that demands an attempt refuses in this route's own words.
                parts.extensions.insert(Keyless(self.settings.clone()));
                return self.pass(parts, body);
            }
            Err(invalid) => Err(Refusal::KeyInvalid(invalid)),
        };
        let (route, counts) = endpoint(&parts, &self.settings.counts);
        let admitted = parsed.and_then(|parsed| Ok((parsed, self.admit(&parts, &route)?)));
        let (parsed, scope) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => return self.turn_away(&refusal, &counts, parts, body),
        };
        if let Some(looks_like) = parsed.looks_like {
            let key = parsed.key.digest_short();
            tracing::warn!(%key, ?looks_like, "an idempotency key looks like personal data; clients should send random values");
        }
        // The clone takes the place of the one that was polled ready, and that one is called.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let trace = self.settings.engine.trace(&parts);
        let call = Box::new(Call { inner, parts, body: Bytes::new() });
        let keyed = |scope| Keyed::new(self.settings.clone(), scope, parsed.key, route, counts);
        match self.settings.policy.mode {
            #[cfg(any(feature = "_driver", feature = "sqlite"))]
            Mode::Enforce if self.settings.in_transaction => {
                let keyed = Arc::new(keyed(scope).traced(trace));
                ResponseFuture::keyed(in_transaction::answer(keyed.clone(), call, body), keyed)
            }
            Mode::Enforce => {
                let keyed = Arc::new(keyed(scope).traced(trace));
                ResponseFuture::keyed(keyed::answer(keyed.clone(), call, body), keyed)
            }
            Mode::Observe => {
                let keyed = Arc::new(keyed(scope.observed()));
                ResponseFuture::keyed(observe::answer(keyed.clone(), call, body), keyed)
            }
        }
    }

    /// Reads the body, since the key may stand in it, and then decides. What can be refused without the body is refused
    /// before it is read; a request that may turn out to have no key need not name its caller.
    #[expect(clippy::async_yields_async, reason = "the body is read first; what answers depends on it")]
    fn read_first<B, R>(
        &mut self,
        key: Option<Parsed>,
        parts: Parts,
        body: B,
    ) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: tower_service::Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Send,
    {
        let policy = &self.settings.policy;
        let (route, counts) = endpoint(&parts, &self.settings.counts);
        let is_keyed = key.is_some() || policy.required.contains(&parts.method);
        let admitted = if is_keyed { self.admit(&parts, &route).map(drop) } else { fits(&parts, policy) };
        if let Err(refusal) = admitted {
            return self.turn_away(&refusal, &counts, parts, Incoming::Coming(body));
        }
        // As for any other: the clone takes the place of the one that was polled ready.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let mut service = Self { inner, settings: self.settings.clone() };
        ResponseFuture::reading(async move {
            let settings = service.settings.clone();
            let held = Held::nothing(settings.engine.clone());
            let bytes_max = settings.policy.request_bytes_max;
            let bytes = match settings.policy.mode {
                Mode::Enforce => match read_request(body, bytes_max, |bytes| held.take(bytes)).await {
                    Ok(body::Request::Whole(bytes)) => bytes,
                    Ok(body::Request::TooLarge) => {
                        return service.refuse_counted(&Refusal::BodyTooLarge { bytes_max }, &counts, &parts);
                    }
                    Ok(body::Request::NoRoom) => {
                        return service.refuse_counted(&keyed::no_room(), &counts, &parts);
                    }
                    Err(_) => return ResponseFuture::answered(answer::unreadable()),
                },
                // Whatever it is, it is passed on.
                Mode::Observe => match body::read(body, bytes_max, |bytes| held.take(bytes)).await {
                    Ok(Read::Whole(bytes)) => bytes,
                    Ok(Read::Beyond(body)) => {
                        counts.observed(Decision::Limited);
                        settings.engine.times.tally.decided(Decision::Observed);
                        let passed = service.inner.call(Request::from_parts(parts, body));
                        return ResponseFuture::passing_with(passed, Some(held));
                    }
                    Err(_) => return ResponseFuture::answered(answer::unreadable()),
                },
            };
            let key = key_in_body(&settings, key, &parts.headers, &bytes).await;
            service.decide(key, parts, Incoming::Read(bytes, held))
        })
    }

    /// Passes a request on as if we were not there.
    fn pass<B, R>(&mut self, parts: Parts, body: Incoming<B>) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: tower_service::Service<Request<Body<B>>, Response = Response<R>>,
    {
        let (body, held) = body.passed();
        ResponseFuture::passing_with(self.inner.call(Request::from_parts(parts, body)), held)
    }

    /// Refuses a request before anything is looked up; in `observe` it is counted and passes.
    fn turn_away<B, R>(
        &mut self,
        refusal: &Refusal,
        counts: &Counts,
        parts: Parts,
        body: Incoming<B>,
    ) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: tower_service::Service<Request<Body<B>>, Response = Response<R>>,
    {
        match self.settings.policy.mode {
            Mode::Enforce => self.refuse_counted(refusal, counts, &parts),
            Mode::Observe => {
                counts.observed(Decision::from(refusal));
                self.settings.engine.times.tally.decided(Decision::Observed);
                self.pass(parts, body)
            }
        }
    }

    /// The answer to a request that is refused before anything is looked up, counted.
    fn refuse_counted<F, R, E>(
        &self,
        refusal: &Refusal,
        counts: &Counts,
        parts: &Parts,
    ) -> ResponseFuture<F, R, E> {
        let Settings { engine, policy, .. } = &*self.settings;
        let decision = Decision::from(refusal);
        counts.request(decision);
        counts::limited(refusal);
        engine.times.tally.decided(decision);
        let answer = problem::answer(refusal, &policy.dialect, None).map(Body::whole);
        if let Some(trace) = engine.trace(parts) {
            let status = answer.status();
            let decided = Decided { route: &counts.route, id: None, decision, attempt: None, status };
            trace.decided(engine, &decided);
        }
        ResponseFuture::answered(answer)
    }
}

impl<S> Service<S> {
    /// Runs accepted work with this layer and its service, if this node is the one that claims it. The layer is that of its
    /// route; middleware in front of the layer does not see the request.
    pub fn run<B, R>(&self, work: Work) -> impl Future<Output = ()> + Send + 'static
    where
        S: tower_service::Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Send,
    {
        let mut inner = self.inner.clone();
        let parts = work.parts();
        let keyed = self.accepted(&parts, &work);
        async move {
            if poll_fn(|cx| inner.poll_ready(cx)).await.is_ok() {
                let call = Box::new(Call { inner, parts, body: work.body() });
                drop(keyed::run_accepted(keyed, call, work).await);
            }
        }
    }

    /// The same for a request of accepted work that came through the whole service: the service has made its own of it since,
    /// and it is called with what that is. Middleware in front that gives up on it does not end the attempt.
    fn run_for_app<B, R>(&mut self, work: Work, parts: Parts) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: tower_service::Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Send,
    {
        // As for any other: the clone takes the place of the one that was polled ready.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let keyed = self.accepted(&parts, &work);
        let held = keyed.clone();
        let answering = async move {
            // From here on a claim may be on its way to the store.
            held.hold.set(true);
            let call = Box::new(Call { inner, parts, body: work.body() });
            let ran = keyed::run_accepted(held, call, work).await;
            ran.unwrap_or_else(|| Ok(answer::no_content()))
        };
        ResponseFuture::keyed(answering, keyed)
    }

    /// Accepted work, by the key and the scope of its record.
    fn accepted(&self, parts: &Parts, work: &Work) -> Arc<Keyed> {
        let (route, counts) = endpoint(parts, &self.settings.counts);
        let record = &work.seen().record;
        let (scope, key) = (record.scope.clone(), record.key.clone());
        let trace = self.settings.engine.trace(parts);
        let keyed = Keyed::new(self.settings.clone(), scope, key, route, counts);
        Arc::new(keyed.in_background().traced(trace))
    }

    /// Whose request this is, where that can be told and the request may be looked at.
    fn admit(&self, parts: &Parts, route: &str) -> Result<Scope, Refusal> {
        let policy = &self.settings.policy;
        let scope = self.scope(parts, route).ok_or_else(|| scope_missing(policy))?;
        fits(parts, policy)?;
        Ok(scope)
    }

    fn scope(&self, parts: &Parts, route: &str) -> Option<Scope> {
        let scope = self.settings.scope(parts, route);
        match self.settings.policy.anonymous {
            Anonymous::Refuse => scope,
            Anonymous::Shared => Some(scope.unwrap_or_else(|| self.settings.shared(route))),
        }
    }

    /// Whether the caller may ask about a key now. It takes a look-up, found or not.
    fn may_ask(&self, parts: &Parts, scope: &Scope) -> Result<(), Refusal> {
        let Settings { engine, policy, limits, .. } = &*self.settings;
        let gate = Gate {
            limiter: &engine.limiter,
            limits: limits.as_ref(),
            scope: scope.digest(),
            policy,
            headers: &parts.headers,
            looked_up: &AtomicBool::new(false),
            accepted: &self.settings.engine.accepted,
            accepting: None,
        };
        match policy.mode {
            Mode::Enforce => gate.look_up(),
            // Counted, never refused.
            Mode::Observe => gate.look_up().or(Ok(())),
        }
    }

    fn answer_question<F, R, E>(&self, question: Question, parts: &Parts) -> ResponseFuture<F, R, E>
    where
        R: 'static,
        E: 'static,
    {
        let policy = &self.settings.policy;
        // Where a key's name is per route, the question says which one it means.
        let route = status::asked_route(&parts.method, &parts.uri).unwrap_or_default();
        let Some(scope) = self.scope(parts, &route) else { return self.refuse(&scope_missing(policy), None) };
        if let Err(refusal) = self.may_ask(parts, &scope) {
            counts::limited(&refusal);
            return self.refuse(&refusal, None);
        }
        let settings = self.settings.clone();
        ResponseFuture::told(async move { Ok(keyed::tell(&settings, &scope, &question).await) })
    }
}

/// The key that a request's head carries, if any.
fn key_in_head(headers: &HeaderMap, query: Option<&str>, policy: &Policy) -> Result<Option<Parsed>, Invalid> {
    let mut found = None;
    for source in &policy.key_from {
        let parsed = source.in_head(&policy.key, headers, query)?;
        let named = |name| headers::is_connection_named(headers, name);
        if parsed.is_some() && matches!(source, Source::Header(name) if named(name)) {
            return Err(Invalid::ConnectionNamed);
        }
        found = key::agreed(found, parsed)?;
    }
    Ok(found)
}

/// The key that a request carries, if any: in its body, or `found` in its head.
async fn key_in_body(
    settings: &Arc<Settings>,
    found: Option<Parsed>,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Option<Parsed>, Invalid> {
    let search = |policy: &Policy, headers: &HeaderMap, body: &Bytes| {
        let in_body = |source: &Source| source.in_body(&policy.key, headers, body);
        policy.key_from.iter().try_fold(found, |found, source| key::agreed(found, in_body(source)?))
    };
    if !keyed::is_large(body) {
        return search(&settings.policy, headers, body);
    }
    // On another thread, as the digests of such a body are made, so that other requests on this one need not wait.
    let _permit = settings.engine.large_bodies.acquire().await;
    let (settings, headers, body) = (settings.clone(), headers.clone(), body.clone());
    let searched = tokio::task::spawn_blocking(move || search(&settings.policy, &headers, &body)).await;
    searched.unwrap_or(Err(Invalid::BodyNotJson))
}

fn key_missing(policy: &Policy) -> Refusal {
    Refusal::KeyMissing { sources: policy.key_from.clone() }
}

/// Whether a request may be held, by what it says of its length.
fn fits(parts: &Parts, policy: &Policy) -> Result<(), Refusal> {
    let bytes_max = policy.request_bytes_max;
    match length(&parts.headers) {
        Some(length) if length > bytes_max => Err(Refusal::BodyTooLarge { bytes_max }),
        Some(_) | None => Ok(()),
    }
}

fn scope_missing(policy: &Policy) -> Refusal {
    Refusal::ScopeMissing { sources: policy.scope.clone() }
}

/// Which endpoint a request is for, and its counters: by what the router in front says, by axum's pattern, else by its
/// path. Of paths there is no end, so they are not counted apart.
fn endpoint(parts: &Parts, counts: &ByRoute) -> (Arc<str>, Arc<Counts>) {
    if let Some(route) = parts.extensions.get::<Route>() {
        return (route.0.clone(), counts.of(Some(&route.0)));
    }
    #[cfg(feature = "axum")]
    if let Some(matched) = parts.extensions.get::<axum::extract::MatchedPath>() {
        return counts.named(&parts.method, matched.as_str());
    }
    (format!("{} {}", parts.method, parts.uri.path()).into(), counts.of(None))
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;

    use http_body_util::{BodyExt, Full};
    use onlyonce_store::memory::Memory;
    use tower_layer::Layer as _;
    use tower_service::Service as _;

    use super::*;
    use crate::Onlyonce;

    /// Tells how many bytes it was given, once `gate` is open.
    #[derive(Clone)]
    struct Counting {
        gate: Arc<tokio::sync::Semaphore>,
    }

    impl tower_service::Service<Request<Body<Full<Bytes>>>> for Counting {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body<Full<Bytes>>>) -> Self::Future {
            let gate = self.gate.clone();
            Box::pin(async move {
                let length = request.into_body().collect().await.expect("infallible").to_bytes().len();
                drop(gate.acquire().await);
                Ok(Response::new(Full::from(length.to_string())))
            })
        }
    }

    fn request(body: &str) -> Request<Full<Bytes>> {
        let request =
            Request::post("/").header("authorization", "Bearer t").header("content-type", "application/json");
        request.body(Full::from(body.to_owned())).expect("a request")
    }

    /// K01, L06: what a request holds while its key is looked for is counted until its answer, with and without a key.
    #[tokio::test]
    async fn a_body_that_is_read_for_its_key_is_counted_until_the_answer_and_given_back() {
        let policy = Policy { key_from: vec!["json:/id".parse().expect("a source")], ..Policy::default() };
        let onlyonce = Onlyonce::new(Memory::new()).with_policy(policy).expect("a policy");
        let buffered = &onlyonce.engine().buffered;
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let mut service = onlyonce.layer().layer(Counting { gate: gate.clone() });
        for body in [r#"{"id":"a-key"}"#, r#"{"no":"key here"}"#] {
            let mut answering = pin!(service.call(request(body)));
            assert!(futures_util::poll!(answering.as_mut()).is_pending(), "the gate is closed");
            assert_eq!(buffered.held(), body.len() as u64, "{body}");
            gate.add_permits(1);
            let answer = answering.await.expect("infallible");
            let told = answer.into_body().collect().await.expect("infallible").to_bytes();
            assert_eq!(told, body.len().to_string().as_bytes());
            gate.forget_permits(1);
        }
        let refused = service.call(request(r#"{"id":1}"#)).await.expect("infallible");
        assert_eq!(refused.status(), 400);
        onlyonce.engine().bound_buffered_bytes(4);
        let refused = service.call(request(r#"{"id":"b-key"}"#)).await.expect("infallible");
        assert_eq!(refused.status(), 429);
        drop(service.call(request(r#"{"id":"c-key"}"#)));
        onlyonce.engine().idle().await;
        assert_eq!(buffered.held(), 0);
    }
}
