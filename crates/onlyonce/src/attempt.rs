//! What a handler is told about its attempt, and what it may say about it.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use onlyonce_core::key::Key;
use onlyonce_core::outcome::{Said, SaidOutcome};
use onlyonce_core::record::{Handle, Reason, Token, downstream_key};
use onlyonce_core::scope::Scope;

use crate::keyed::Keyed;
use crate::phase::Phases;

/// The attempt a handler runs as: which one it is, and what to tell others about it.
///
/// An axum handler takes it as an argument; any other finds it in the request's extensions. A request without a key has
/// none and is refused with a 400; a handler that serves both takes `Option<Attempt>`.
///
/// ```
/// use axum::{Router, http::StatusCode, routing::post};
/// use onlyonce::Attempt;
///
/// async fn charge(attempt: Attempt) -> StatusCode {
///     // The same on every attempt, so the bank that knows this key charges once.
///     let bank_key = attempt.downstream_key("charge");
///     if !bank_is_open(&bank_key) {
///         attempt.did_not_run();
///         return StatusCode::SERVICE_UNAVAILABLE;
///     }
///     StatusCode::CREATED
/// }
/// # fn bank_is_open(_: &str) -> bool { true }
/// # let _: Router = Router::new().route("/charges", post(charge));
/// ```
#[derive(Clone)]
pub struct Attempt {
    pub(crate) keyed: Arc<Keyed>,
    token: Token,
    number: u32,
}

impl Attempt {
    pub(crate) fn new(keyed: Arc<Keyed>, token: Token, number: u32) -> Self {
        Self { keyed, token, number }
    }

    /// Which attempt this is, from 1. Above 1, an earlier one was released or lost.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What identifies this attempt to a probe, a webhook or the SQL function.
    pub fn handle(&self) -> Handle {
        Handle { id: self.keyed.id, token: self.token }
    }

    /// Whose key it is.
    pub fn scope(&self) -> &Scope {
        &self.keyed.scope
    }

    /// The client's key.
    pub fn key(&self) -> &Key {
        &self.keyed.key
    }

    /// A key for a foreign call, the same on every attempt of this request: what makes effects `keyed`. Each call of a
    /// handler has a name of its own.
    pub fn downstream_key(&self, call: &str) -> String {
        downstream_key(&self.keyed.scope, &self.keyed.key, call)
    }

    /// Says that the work was not done, whatever the status: the key is released, and the next request with it runs.
    pub fn did_not_run(&self) {
        self.said().outcome = Some(SaidOutcome::DidNotRun);
    }

    /// Says that nobody knows whether the work was done, whatever the status: it will not run again before that is
    /// known.
    pub fn unknown(&self) {
        self.unknown_because(Reason::Said);
    }

    /// The same with the reason, for whoever passes the work on to another service and lost its answer.
    pub fn unknown_because(&self, reason: Reason) {
        self.said().outcome = Some(SaidOutcome::Unknown(reason));
    }

    /// Keeps the answer for so long, instead of the route's retention. Zero: it is not kept at all, and a retry is told
    /// so; the work does not run again either way.
    pub fn keep_for(&self, retention: Duration) {
        self.said().keep_for = Some(retention);
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Says what became of the work, and gives what was said before.
    pub(crate) fn say(&self, outcome: Option<SaidOutcome>) -> Option<SaidOutcome> {
        std::mem::replace(&mut self.said().outcome, outcome)
    }

    /// How far this attempt has come.
    pub(crate) fn phases<T>(&self, change: impl FnOnce(&mut Phases) -> T) -> T {
        change(self.keyed.phases().get_or_insert_default())
    }

    fn said(&self) -> std::sync::MutexGuard<'_, Said> {
        self.keyed.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("number", &self.number).field("id", &self.keyed.id).finish()
    }
}

#[cfg(feature = "axum")]
mod extract {
    use std::convert::Infallible;

    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::Response;
    use http::request::Parts;
    use onlyonce_core::refusal::Refusal;

    use super::Attempt;
    use crate::problem::{self, Problem};
    use crate::service::Keyless;

    /// A handler that takes an attempt needs a key: a request without one is refused as on a route that requires it.
    impl<S: Sync> FromRequestParts<S> for Attempt {
        type Rejection = Response;

        async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Response> {
            match parts.extensions.get::<Self>() {
                Some(attempt) => Ok(attempt.clone()),
                None => Err(missing(parts)),
            }
        }
    }

    /// Without a key: in the words of the route. Without the layer, which nobody but the programmer can do anything about: 500.
    fn missing(parts: &Parts) -> Response {
        let Some(Keyless(settings)) = parts.extensions.get::<Keyless>() else {
            tracing::error!(
                method = %parts.method,
                path = parts.uri.path(),
                "a handler takes an Attempt, and Onlyonce has not seen the request: put the layer around its route, and its method among the policy's methods"
            );
            return Problem::without_layer().into_response().map(axum::body::Body::from);
        };
        let refusal = Refusal::KeyMissing { sources: settings.policy.key_from.clone() };
        problem::answer(&refusal, &settings.policy.dialect, None).map(axum::body::Body::from)
    }

    impl<S: Sync> OptionalFromRequestParts<S> for Attempt {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
            Ok(parts.extensions.get::<Self>().cloned())
        }
    }
}
