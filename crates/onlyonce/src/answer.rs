//! Answers: the handler's own, and replays of it.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, DATE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use onlyonce_core::dialect::Dialect;
use onlyonce_core::key::Key;
use onlyonce_core::machine;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{self, Record};
use onlyonce_core::time::Timestamp;

use crate::body::Body;
use crate::engine::Finished;
use crate::headers;
use crate::problem::{CREATED, EXPIRES, STORED};
use crate::status::{http_date, http_date_before};

/// The stored answer, marked as a replay.
pub(crate) fn replay<R>(record: &Record, policy: &Policy) -> Response<Body<R>> {
    let (stored, expires_at) = machine::stored(record).expect("only a record with an answer is replayed");
    let mut response = repeated(stored, expires_at);
    let headers = response.headers_mut();
    headers.insert(policy.dialect.replayed.clone(), HeaderValue::from_static("true"));
    // By one clock, the node's, and both rounded down: a key was never used after the answer's own date.
    let now = now();
    headers.insert(CREATED, http_date_before(record.created_at.min(now)));
    headers.insert(DATE, http_date_before(now));
    mark_body(&mut response, stored, policy);
    accepted(response, policy, &record.key)
}

/// The answer with what the dialect says on answers that are no refusals. No error repeats the key.
fn accepted<R>(mut response: Response<Body<R>>, policy: &Policy, key: &Key) -> Response<Body<R>> {
    let Dialect { echo, result, .. } = &policy.dialect;
    let is_error = response.status().as_u16() >= 400;
    let headers = response.headers_mut();
    if let Some(name) = echo.as_ref().filter(|_| !is_error)
        && let Ok(key) = HeaderValue::from_str(key.as_str())
    {
        headers.insert(name.clone(), key);
    }
    // What the gateway in the service's place has rejected stays so.
    if let Some(result) = result
        && headers.get(&result.name) != Some(&result.rejected)
    {
        headers.insert(result.name.clone(), result.accepted.clone());
    }
    response
}

/// Headers that speak of the very bytes of a body: with one of them a body is replayed as it is.
const OF_BYTES: [HeaderName; 8] = [
    CONTENT_ENCODING,
    CONTENT_RANGE,
    ETAG,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("signature"),
];

/// Marks a replay in its body too, where the dialect does that.
fn mark_body<R>(response: &mut Response<Body<R>>, stored: &record::Response, policy: &Policy) {
    if policy.dialect.replayed_member.is_none()
        || stored.headers.iter().any(|(name, _)| OF_BYTES.contains(name))
    {
        return;
    }
    if let Some(marked) = policy.dialect.marked(&stored.body) {
        *response.body_mut() = Body::whole(marked.into());
    }
}

/// The node's wall clock.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// 204: it is done, and there is nothing to say.
pub(crate) fn no_content<R>() -> Response<Body<R>> {
    let mut response = Response::new(Body::whole(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The answer as it is stored, in one piece of memory of its own: what an HTTP library hands out are slices of buffers
/// many times as large, which a record would keep alive with them.
pub(crate) fn compact(
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
    policy: &Policy,
) -> record::Response {
    let mut kept = Vec::with_capacity(headers.len());
    kept.extend(headers::kept(headers, policy));
    let length = kept.iter().map(|(_, value)| value.len()).sum::<usize>() + body.len();
    let mut joined = BytesMut::with_capacity(length);
    for (_, value) in &kept {
        joined.extend_from_slice(value.as_bytes());
    }
    joined.extend_from_slice(body);
    let mut body = joined.freeze();
    let copied = kept.into_iter().map(|(name, value)| {
        let copy = HeaderValue::from_maybe_shared(body.split_to(value.len()));
        (name.clone(), copy.unwrap_or_else(|_| value.clone()))
    });
    let headers = copied.collect();
    record::Response { status: status.as_u16(), headers, body }
}

/// What the client of an attempt is told, once its outcome is on record or refused there.
pub(crate) fn finished<R>(
    own: Response<Body<R>>,
    finished: &Finished,
    policy: &Policy,
    key: &Key,
) -> Response<Body<R>> {
    let own_answer = |own, expires_at| self::own(own, expires_at, policy, key);
    match finished {
        Finished::Written(seen) => {
            let expires_at = machine::stored(&seen.record).map(|(_, expires_at)| expires_at);
            own_answer(own, expires_at)
        }
        // Its own transaction, or a verdict, completed it, or its write was found done: what is stored is what every
        // retry will get. Where that is this very answer, the first client gets all of it, cookies included.
        Finished::Already(seen) => match machine::stored(&seen.record) {
            Some((stored, expires_at)) if is_same(&own, stored) => own_answer(own, Some(expires_at)),
            Some((stored, expires_at)) => accepted(repeated(stored, expires_at), policy, key),
            None => own_answer(own, None),
        },
        Finished::Superseded(seen) => match seen.as_ref().filter(|seen| machine::is_replayable(seen)) {
            Some(seen) => replay(&seen.record, policy),
            None => own_answer(own, None),
        },
        Finished::NotWritten => own_answer(own, None),
    }
}

/// The handler's own answer, with until when it is replayed, or that it will not be.
pub(crate) fn own<R>(
    mut response: Response<Body<R>>,
    expires_at: Option<Timestamp>,
    policy: &Policy,
    key: &Key,
) -> Response<Body<R>> {
    match expires_at {
        Some(expires_at) => response.headers_mut().insert(EXPIRES, http_date(expires_at)),
        None => response.headers_mut().insert(STORED, HeaderValue::from_static("false")),
    };
    accepted(response, policy, key)
}

fn is_same<R>(own: &Response<Body<R>>, stored: &record::Response) -> bool {
    own.status().as_u16() == stored.status && own.body().held() == Some(&stored.body[..])
}

fn repeated<R>(stored: &record::Response, expires_at: Timestamp) -> Response<Body<R>> {
    let mut response = Response::new(Body::whole(stored.body.clone()));
    *response.status_mut() = StatusCode::from_u16(stored.status).expect("a stored status was a status once");
    let headers = response.headers_mut();
    headers.reserve(stored.headers.len() + 3);
    for (name, value) in &stored.headers {
        headers.append(name, value.clone());
    }
    headers.insert(EXPIRES, http_date(expires_at));
    response
}

/// What the headers of an answer cost to keep.
pub(crate) fn header_bytes(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| (name.as_str().len() + value.len()) as u64).sum()
}

/// A body that broke off: the client is gone, or did not speak HTTP. Nothing was reserved and nothing ran.
pub(crate) fn unreadable<R>() -> Response<Body<R>> {
    let body = r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"The request's body could not be read. Nothing was run."}"#;
    let mut response = Response::new(Body::whole(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_answer_keeps_no_buffer_alive() {
        let buffer = Bytes::from(vec![b'x'; 8192]);
        let of_buffer = |range| HeaderValue::from_maybe_shared(buffer.slice(range)).expect("visible");
        let headers = [(CONTENT_TYPE, of_buffer(0..10)), (CACHE_CONTROL, of_buffer(10..10))];
        let all = headers.iter().cloned().collect();
        let stored = compact(StatusCode::CREATED, &all, &buffer.slice(100..250), &Policy::default());
        assert_eq!(
            (stored.status, &stored.headers[..], &stored.body),
            (201, &headers[..], &buffer.slice(100..250))
        );
        drop((headers, all));
        assert!(buffer.try_into_mut().is_ok(), "nobody else holds the buffer");
    }

    /// D04: a body that somebody has signed or digested is never changed.
    #[test]
    fn a_body_is_marked_unless_a_header_speaks_of_its_bytes() {
        let policy = Policy::of(Dialect::named("adcp").expect("a preset"));
        let marked = |headers: &[(HeaderName, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            let stored = record::Response {
                status: 200,
                headers: headers.collect(),
                body: Bytes::from_static(br#"{"a":1}"#),
            };
            let mut response = Response::new(Body::<()>::whole(stored.body.clone()));
            mark_body(&mut response, &stored, &policy);
            String::from_utf8(response.body().held().expect("whole").to_vec()).expect("text")
        };
        assert_eq!(marked(&[(CONTENT_TYPE, "application/json")]), r#"{"replayed":true,"a":1}"#);
        for name in OF_BYTES {
            assert_eq!(marked(&[(name.clone(), "x")]), r#"{"a":1}"#, "{name}");
        }
    }
}
