//! Refusals as HTTP answers, in the words of a dialect.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LINK, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use onlyonce_core::dialect::Dialect;
use onlyonce_core::key::Key;
use onlyonce_core::percent;
use onlyonce_core::refusal::{Code, NoAnswer, Refusal, Resend};

use crate::engine::chain;
use crate::phase;

/// Says that this answer will not be replayed.
pub(crate) const STORED: HeaderName = HeaderName::from_static("idempotency-stored");
/// Until when the answer is replayed.
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");
/// When the key that is replayed was first used.
pub(crate) const CREATED: HeaderName = HeaderName::from_static("idempotency-key-created");

/// The answer to a refused request. `key` is named only in the status link, never in the body.
pub fn answer(refusal: &Refusal, dialect: &Dialect, key: Option<&Key>) -> Response<Bytes> {
    let code = refusal.code();
    let mut response = Response::new(Bytes::from(dialect.render(refusal)));
    *response.status_mut() = StatusCode::from_u16(dialect.status(code)).unwrap_or(StatusCode::BAD_REQUEST);
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_str(&dialect.content_type);
    headers.insert(CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static("application/json")));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(result) = &dialect.result {
        headers.insert(result.name.clone(), result.rejected.clone());
    }
    if let Some(wait) = refusal.retry_after() {
        headers.insert(RETRY_AFTER, seconds(wait));
    }
    if refusal.ends_an_attempt() {
        headers.insert(STORED, HeaderValue::from_static("false"));
    }
    if let Some(challenge) = refusal.challenge().and_then(|text| HeaderValue::try_from(text).ok()) {
        headers.insert(WWW_AUTHENTICATE, challenge);
    }
    if let (Code::OutcomeUnknown, Some(key)) = (code, key) {
        headers.insert(LINK, status_link(key));
    }
    response
}

/// An error of a handler as an answer, so that `?` is enough: 500, and what went wrong is in the log.
///
/// It is made of errors of phases and transactions, of the store, and of the drivers whose features are enabled. An attempt that was
/// superseded or completed is answered with what is stored, whatever the handler says.
///
/// ```
/// use onlyonce::{Problem, transaction};
///
/// fn handler(completed: Result<(), transaction::Error>) -> Result<&'static str, Problem> {
///     completed?;
///     Ok("done")
/// }
/// # assert!(handler(Ok(())).is_ok());
/// ```
#[derive(Debug)]
pub struct Problem {
    response: Response<Bytes>,
}

impl Problem {
    /// An answer of one's own.
    pub fn new(response: Response<Bytes>) -> Self {
        Self { response }
    }

    /// The answer.
    pub fn into_response(self) -> Response<Bytes> {
        self.response
    }

    /// What went wrong goes to the log, and not to the client.
    fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = %chain(error), "a handler failed");
        Self::failed("The request failed. It may be sent again with the same key.")
    }

    /// A handler takes an attempt and has none, since the layer is not there.
    #[cfg(feature = "axum")]
    pub(crate) fn without_layer() -> Self {
        Self::failed("The service is set up wrongly: nothing was run. Its log says more.")
    }

    fn failed(detail: &str) -> Self {
        let body = format!(
            r#"{{"type":"about:blank","title":"Internal Server Error","status":500,"detail":"{detail}"}}"#
        );
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Self::new(response)
    }

    fn refused(error: &(dyn std::error::Error + 'static), refusal: &Refusal) -> Self {
        tracing::warn!(error = %chain(error), "a foreign call failed");
        Self::new(answer(refusal, &Dialect::ietf(), None))
    }
}

impl<E: std::error::Error + 'static> From<phase::Error<E>> for Problem {
    fn from(error: phase::Error<E>) -> Self {
        match &error {
            phase::Error::DidNotRun(_) => Self::refused(&error, &Refusal::UpstreamUnreachable(Resend::Rerun)),
            phase::Error::Unknown(_) => {
                Self::refused(&error, &Refusal::UpstreamOutcomeUnknown(NoAnswer::Lost, Resend::Rerun))
            }
            phase::Error::Work(_)
            | phase::Error::Changed(_)
            | phase::Error::Superseded
            | phase::Error::Invalid(_)
            | phase::Error::Database(_)
            | phase::Error::Store(_) => Self::internal(&error),
        }
    }
}

macro_rules! internal {
    ($($(#[$cfg:meta])* $error:ty,)*) => {
        $(
            $(#[$cfg])*
            impl From<$error> for Problem {
                fn from(error: $error) -> Self {
                    Self::internal(&error)
                }
            }
        )*
    };
}

internal! {
    crate::transaction::Error,
    onlyonce_store::Error,
    serde_json::Error,
    #[cfg(feature = "tokio-postgres")]
    tokio_postgres::Error,
    #[cfg(feature = "deadpool-postgres")]
    deadpool_postgres::PoolError,
    #[cfg(feature = "sqlx")]
    sqlx::Error,
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        self.response.map(axum::body::Body::from)
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for crate::transaction::Error {
    fn into_response(self) -> axum::response::Response {
        axum::response::IntoResponse::into_response(Problem::from(self))
    }
}

#[cfg(feature = "axum")]
impl<E: std::error::Error + 'static> axum::response::IntoResponse for phase::Error<E> {
    fn into_response(self) -> axum::response::Response {
        axum::response::IntoResponse::into_response(Problem::from(self))
    }
}

/// A span in whole seconds, rounded up: too late is polite, too early is a hammer.
pub(crate) fn seconds(span: Duration) -> HeaderValue {
    HeaderValue::from(span.as_secs() + u64::from(span.subsec_nanos() > 0))
}

/// Where a caller asks about its own key.
pub(crate) fn status_path(key: &Key) -> String {
    format!("{}{}", crate::status::PREFIX, escaped(key.as_str()))
}

/// Percent-encoded, but for what never needs to be.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if percent::is_unreserved(byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

fn status_link(key: &Key) -> HeaderValue {
    HeaderValue::try_from(format!("<{}>; rel=\"status\"", status_path(key)))
        .expect("a percent-encoded key is visible ASCII")
}
