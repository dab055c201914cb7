//! One `call`: which requests are ours, and what becomes of those that are not.
//!
//! The order of checks: a question about a key; the method; the key; the caller; the size. Only then is the body read,
//! and only with the body is the store asked ([`crate::keyed`]).

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body as HttpBody;
use onlyonce_core::key::{Invalid, Key, Parsed};
use onlyonce_core::policy::{Anonymous, Mode, Policy};
use onlyonce_core::refusal::Refusal;
use onlyonce_core::scope::Scope;

use crate::body::Body;
use crate::counts::{ByRoute, Counts, Decision};
use crate::future::ResponseFuture;
use crate::keyed::{Call, Keyed};
use crate::layer::Settings;
use crate::status::Question;
use crate::{headers, keyed, observe, problem, status};

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
        let policy = &self.settings.policy;
        if let Some(question) = status::question(request.method(), request.uri().path()) {
            return self.answer_question(question, &request.into_parts().0);
        }
        if !policy.methods.contains(request.method()) {
            return ResponseFuture::passing(self.inner.call(request.map(Body::passed)));
        }
        let parsed = match key(request.headers(), policy) {
            Ok(Some(parsed)) => Ok(parsed),
            Ok(None) if policy.required.contains(request.method()) => {
                Err(Refusal::KeyMissing { header: policy.header.clone() })
            }
            Ok(None) => {
                // A handler that demands an attempt refuses in this route's own words.
                request.extensions_mut().insert(Keyless(self.settings.clone()));
                return ResponseFuture::passing(self.inner.call(request.map(Body::passed)));
            }
            Err(invalid) => Err(Refusal::KeyInvalid(invalid)),
        };
        let (parts, body) = request.into_parts();
        let (route, counts) = endpoint(&parts, &self.settings.counts);
        let admitted = parsed.and_then(|parsed| Ok((parsed.key, self.admit(&parts, &route)?)));
        let (key, scope) = match (admitted, policy.mode) {
            (Ok(admitted), _) => admitted,
            (Err(refusal), Mode::Enforce) => {
                counts.request(Decision::from(&refusal));
                self.settings.engine.times.tally.decided(Decision::from(&refusal));
                return self.refuse(&refusal, None);
            }
            (Err(refusal), Mode::Observe) => {
                counts.observed(Decision::from(&refusal));
                self.settings.engine.times.tally.decided(Decision::Observed);
                let request = Request::from_parts(parts, Body::passed(body));
                return ResponseFuture::passing(self.inner.call(request));
            }
        };
        // The clone takes the place of the one that was polled ready, and that one is called.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let call = Box::new(Call { inner, parts, body: Bytes::new() });
        let keyed = |scope| Arc::new(Keyed::new(self.settings.clone(), scope, key, route, counts));
        match policy.mode {
            Mode::Enforce => {
                let keyed = keyed(scope);
                ResponseFuture::keyed(keyed::answer(keyed.clone(), call, body), keyed)
            }
            Mode::Observe => {
                let keyed = keyed(scope.observed());
                ResponseFuture::keyed(observe::answer(keyed.clone(), call, body), keyed)
            }
        }
    }
}

impl<S> Service<S> {
    /// Whose request this is, where that can be told and the request may be looked at.
    fn admit(&self, parts: &Parts, route: &str) -> Result<Scope, Refusal> {
        let policy = &self.settings.policy;
        let scope = self.scope(parts, route).ok_or_else(|| scope_missing(policy))?;
        let bytes_max = policy.request_bytes_max;
        if length(&parts.headers).is_some_and(|length| length > bytes_max) {
            return Err(Refusal::BodyTooLarge { bytes_max });
        }
        Ok(scope)
    }

    fn scope(&self, parts: &Parts, route: &str) -> Option<Scope> {
        let scope = self.settings.scope(parts, route);
        match self.settings.policy.anonymous {
            Anonymous::Refuse => scope,
            Anonymous::Shared => Some(scope.unwrap_or_else(|| self.settings.shared(route))),
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
        let settings = self.settings.clone();
        ResponseFuture::told(async move { Ok(keyed::tell(&settings, &scope, &question).await) })
    }
}

/// The key a request carries, if any.
fn key(headers: &HeaderMap, policy: &Policy) -> Result<Option<Parsed>, Invalid> {
    let Some(parsed) = policy.key.parse(headers.get_all(&policy.header))? else { return Ok(None) };
    if headers::is_connection_named(headers, &policy.header) {
        return Err(Invalid::ConnectionNamed);
    }
    if let Some(looks_like) = parsed.looks_like {
        let key = parsed.key.digest_short();
        tracing::warn!(%key, ?looks_like, "an idempotency key looks like personal data; clients should send random values");
    }
    Ok(Some(parsed))
}

fn scope_missing(policy: &Policy) -> Refusal {
    let sources: Vec<_> = policy.scope.iter().map(ToString::to_string).collect();
    Refusal::ScopeMissing { sources: sources.join(", ") }
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
