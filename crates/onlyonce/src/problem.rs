//! Refusals as HTTP answers, in the words of a dialect.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use onlyonce_core::dialect::Dialect;
use onlyonce_core::key::Key;
use onlyonce_core::percent;
use onlyonce_core::refusal::{Code, Refusal};

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
    if let Some(wait) = refusal.retry_after() {
        headers.insert(RETRY_AFTER, seconds(wait));
    }
    if refusal.ends_an_attempt() {
        headers.insert(STORED, HeaderValue::from_static("false"));
    }
    if let (Code::OutcomeUnknown, Some(key)) = (code, key) {
        headers.insert(LINK, status_link(key));
    }
    response
}

/// A span in whole seconds, rounded up: too late is polite, too early is a hammer.
pub(crate) fn seconds(span: Duration) -> HeaderValue {
    HeaderValue::from(span.as_secs() + u64::from(span.subsec_nanos() > 0))
}

/// Where a caller asks about its own key.
pub(crate) fn status_path(key: &Key) -> String {
    let mut path = String::from(crate::status::PREFIX);
    for byte in key.as_str().bytes() {
        if percent::is_unreserved(byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

fn status_link(key: &Key) -> HeaderValue {
    HeaderValue::try_from(format!("<{}>; rel=\"status\"", status_path(key)))
        .expect("a percent-encoded key is visible ASCII")
}
