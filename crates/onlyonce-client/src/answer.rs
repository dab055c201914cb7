//! What an answer asks for: nothing more, or another try.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Either, Full, Limited};
use serde_json::Value;

use crate::BoxError;

/// A problem document that is longer is not read. Ours have some hundred bytes.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Done,
    /// After this pause, where the server says one.
    Again(Option<Duration>),
}

/// Reads a problem document, and nothing else: all other bodies are passed on unread.
pub(crate) async fn judged<B>(answer: Response<B>) -> (Response<Either<B, Full<Bytes>>>, Next)
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (head, body) = answer.into_parts();
    let pause = retry_after(&head.headers, SystemTime::now());
    if !is_short_problem(&head.headers) {
        let next = by_status(head.status, pause);
        return (Response::from_parts(head, Either::Left(body)), next);
    }
    match Limited::new(body, PROBLEM_BYTES_MAX).collect().await {
        Ok(read) => {
            let bytes = read.to_bytes();
            let next = match is_retryable(&bytes) {
                Some(true) => Next::Again(pause),
                Some(false) => Next::Done,
                None => by_status(head.status, pause),
            };
            (Response::from_parts(head, Either::Right(Full::new(bytes))), next)
        }
        // It broke in the middle of saying why: what it began to say is lost.
        Err(_) => (Response::from_parts(head, Either::Right(Full::default())), Next::Again(pause)),
    }
}

fn is_short_problem(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let media = text(CONTENT_TYPE).and_then(|value| value.split(';').next()).unwrap_or_default();
    let length = text(CONTENT_LENGTH).and_then(|value| value.parse::<usize>().ok());
    media.trim().eq_ignore_ascii_case("application/problem+json")
        && length.is_some_and(|length| length <= PROBLEM_BYTES_MAX)
}

fn is_retryable(problem: &[u8]) -> Option<bool> {
    serde_json::from_slice::<Value>(problem).ok()?.get("retryable")?.as_bool()
}

/// Where the answer does not say whether it may be tried again. The key makes each of these safe.
fn by_status(status: StatusCode, pause: Option<Duration>) -> Next {
    match status.as_u16() {
        // In progress, or too early: both tell when to come back. Without that it is the last word.
        409 | 425 if pause.is_some() => Next::Again(pause),
        429 | 500 | 502 | 503 | 504 => Next::Again(pause),
        _ => Next::Done,
    }
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    // A date that has passed is now.
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        fields.collect()
    }

    #[test]
    fn a_pause_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let pause = |text| retry_after(&headers(&[("retry-after", text)]), now);
        assert_eq!(pause("3"), Some(Duration::from_secs(3)));
        assert_eq!(pause("Sun, 06 Nov 1994 08:49:40 GMT"), Some(Duration::from_secs(3)));
        assert_eq!(pause("Sun, 06 Nov 1994 08:49:30 GMT"), Some(Duration::ZERO));
        for text in ["soon", "-1", "1.5", "99999999999999999999"] {
            assert_eq!(pause(text), None, "{text}");
        }
    }

    #[test]
    fn a_status_alone_is_judged_by_what_it_means_under_a_key() {
        let second = Some(Duration::from_secs(1));
        for status in [429, 500, 502, 503, 504] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(by_status(status, None), Next::Again(None), "{status}");
        }
        assert_eq!(by_status(StatusCode::CONFLICT, second), Next::Again(second));
        for status in [200, 201, 400, 401, 402, 404, 409, 422, 425, 501] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(by_status(status, None), Next::Done, "{status}");
        }
    }

    #[test]
    fn only_a_short_problem_document_is_read() {
        let is_read = |media, length| {
            is_short_problem(&headers(&[("content-type", media), ("content-length", length)]))
        };
        assert!(is_read("application/problem+json", "300"));
        assert!(is_read("Application/Problem+JSON; charset=utf-8", "300"));
        assert!(!is_read("application/json", "300"));
        assert!(!is_read("application/problem+json", "65537"));
        assert!(!is_short_problem(&headers(&[("content-type", "application/problem+json")])));
    }

    #[test]
    fn whether_to_retry_is_a_member_of_the_problem() {
        assert_eq!(is_retryable(br#"{"retryable":true}"#), Some(true));
        assert_eq!(is_retryable(br#"{"retryable":false}"#), Some(false));
        for problem in [&b"{}"[..], br#"{"retryable":"yes"}"#, b"[", b"", b"[true]"] {
            assert_eq!(is_retryable(problem), None);
        }
    }
}
