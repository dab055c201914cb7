//! Callers ask about their own key.
//!
//! `GET /_onlyonce/keys/{key}` with the credentials of the request itself. Whoever asks for a key of another scope gets
//! what it would get for a key that never existed.
//!
//! | record | answer | with `/response` |
//! |---|---|---|
//! | pending, running | 202, `Retry-After`, the state | the same |
//! | completed | 200, the state | the stored answer, as a replay |
//! | completed, without a body | 200 | 409 `idempotency_response_not_stored` |
//! | retryable | 200 | 404 |
//! | unknown | 200 | 409 `idempotency_outcome_unknown` |
//! | expired, where `on_expired = "gone"` | 410 | 410 |
//! | none | 404 | 404 |
//!
//! Accepted work that waits for its next attempt is retryable, and answered like pending work: a worker runs it.
//!
//! `DELETE /_onlyonce/keys/{key}` cancels accepted work that has not begun, or did not run: 204, and its answer is a 408. What
//! runs, has ended or may have done something is not cancelled: 409 with its state.

use std::fmt::Write;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderValue, Method, Response, StatusCode, Uri};
use onlyonce_core::key::Key;
use onlyonce_core::machine::{self, Standing};
use onlyonce_core::percent::{self, Piece};
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{Record, Seen};
use onlyonce_core::refusal::Refusal;
use onlyonce_core::scope::Source;
use onlyonce_core::time::Timestamp;

use crate::problem::{self, seconds, status_path};

/// Where callers ask.
pub(crate) const PREFIX: &str = "/_onlyonce/keys/";

/// A question about a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The key, decoded. Not checked: one that cannot be finds nothing.
    pub(crate) key: Key,
    /// What is wanted.
    pub(crate) asks: Asks,
}

/// What a caller wants that asks about its own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// How it stands.
    State,
    /// The stored answer itself.
    Response,
    /// That accepted work is cancelled.
    Cancel,
}

/// The question in a request, if it is one.
pub(crate) fn question(method: &Method, path: &str) -> Option<Question> {
    let rest = path.strip_prefix(PREFIX)?;
    // A slash inside a key is percent-encoded, so the plain one divides.
    let (key, asks) = match (method.clone(), rest.split_once('/')) {
        (Method::GET | Method::HEAD, None) => (rest, Asks::State),
        (Method::GET | Method::HEAD, Some((key, "response"))) => (key, Asks::Response),
        (Method::DELETE, None) => (rest, Asks::Cancel),
        (_, _) => return None,
    };
    (!key.is_empty()).then(|| Question { key: Key::stored(&decoded(key, |byte| byte)), asks })
}

/// The route that a question about a key names, `?route=POST%20/orders`: empty where it names none, and none where the
/// request is no such question.
pub fn asked_route(method: &Method, uri: &Uri) -> Option<String> {
    question(method, uri.path())?;
    let mut pairs = uri.query().unwrap_or_default().split('&');
    let asked = pairs.find_map(|pair| pair.strip_prefix("route="));
    Some(asked.map(|route| decoded(route, space_for_plus)).unwrap_or_default())
}

/// In a query, a plus stands for a space.
fn space_for_plus(byte: u8) -> u8 {
    if byte == b'+' { b' ' } else { byte }
}

/// The text that was percent-encoded, with each plain byte as `plain` reads it. A `%` that begins no escape stands for
/// itself, and what is no UTF-8 matches nothing.
fn decoded(text: &str, plain: fn(u8) -> u8) -> String {
    let bytes: Vec<u8> = percent::pieces(text.as_bytes())
        .map(|piece| match piece {
            Piece::Plain(byte) => plain(byte),
            Piece::Escaped(byte) => byte,
            Piece::Malformed => b'%',
        })
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What the caller is told, where the answer is not a replay.
pub(crate) fn answer(
    seen: Option<&Seen>,
    key: &Key,
    wants_response: bool,
    policy: &Policy,
) -> Response<Bytes> {
    let refuse = |refusal: Refusal| problem::answer(&refusal, &policy.dialect, Some(key));
    let standing = machine::standing(seen, policy);
    match (standing, seen) {
        (Standing::Gone, _) => refuse(Refusal::Expired),
        (Standing::Absent, _) | (_, None) => not_found(),
        (Standing::InProgress(_), Some(seen)) => in_progress(seen, key, policy),
        (Standing::Ended(_), Some(seen)) if wants_response => match machine::withheld(seen) {
            Some(refusal) => refuse(refusal),
            None => not_found(),
        },
        (Standing::Ended(expires_at), Some(seen)) => state(StatusCode::OK, &seen.record, expires_at),
    }
}

/// 202: it is under way, and where to ask.
pub(crate) fn in_progress(seen: &Seen, key: &Key, policy: &Policy) -> Response<Bytes> {
    let mut response = state(StatusCode::ACCEPTED, &seen.record, None);
    let headers = response.headers_mut();
    if let Standing::InProgress(wait) = machine::standing(Some(seen), policy) {
        headers.insert(RETRY_AFTER, seconds(wait));
    }
    let mut location = status_path(key);
    // Where the scope has the route, a question names it.
    if let Some(route) = seen.record.route.as_deref().filter(|_| policy.scope.contains(&Source::Route)) {
        location.push_str("?route=");
        location.push_str(&problem::escaped(route));
    }
    let location = HeaderValue::try_from(location).expect("what is percent-encoded is visible ASCII");
    headers.insert(LOCATION, location);
    response
}

/// What a caller is told whose work is not cancelled: how it stands.
pub(crate) fn not_cancelled(seen: Option<&Seen>, key: &Key, policy: &Policy) -> Response<Bytes> {
    match (machine::standing(seen, policy), seen) {
        (Standing::Gone, _) => problem::answer(&Refusal::Expired, &policy.dialect, Some(key)),
        (Standing::Absent, _) | (_, None) => not_found(),
        (Standing::InProgress(wait), Some(seen)) => {
            let mut response = state(StatusCode::CONFLICT, &seen.record, None);
            response.headers_mut().insert(RETRY_AFTER, seconds(wait));
            response
        }
        (Standing::Ended(expires_at), Some(seen)) => state(StatusCode::CONFLICT, &seen.record, expires_at),
    }
}

fn not_found() -> Response<Bytes> {
    let body = r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"There is no such key for this caller."}"#;
    json(StatusCode::NOT_FOUND, "application/problem+json", body.into())
}

fn state(status: StatusCode, record: &Record, expires_at: Option<Timestamp>) -> Response<Bytes> {
    let mut body = format!(
        r#"{{"state":"{}","attempt":{},"created_at":"{}","expires_at":"#,
        record.state.name(),
        record.attempt,
        rfc3339(record.created_at)
    );
    match expires_at {
        Some(expires_at) => write!(body, "\"{}\"", rfc3339(expires_at)),
        None => write!(body, "null"),
    }
    .expect("writing to a string cannot fail");
    match machine::stored(record) {
        Some((response, _)) => write!(body, r#","status":{}}}"#, response.status),
        None => write!(body, r#","status":null}}"#),
    }
    .expect("writing to a string cannot fail");
    json(status, "application/json", body)
}

fn json(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn rfc3339(moment: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(moment.as_micros()).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// An HTTP-date; a fraction of a second counts as the next whole one, so that nobody is told too early an expiry.
pub(crate) fn http_date(moment: Timestamp) -> HeaderValue {
    written(moment.as_secs_ceil())
}

/// The same, the second before: for moments that have passed.
pub(crate) fn http_date_before(moment: Timestamp) -> HeaderValue {
    written(moment.as_micros().div_euclid(1_000_000))
}

fn written(second: i64) -> HeaderValue {
    let moment = jiff::Timestamp::from_second(second.max(0)).unwrap_or(jiff::Timestamp::MAX);
    let moment = jiff::tz::Offset::UTC.to_datetime(moment);
    // Written out, since every answer has one: the library's printer is for any date of any zone.
    let mut text = *b"Fri, 31 Dec 9999 23:59:59 GMT";
    let day = usize::from(moment.weekday().to_sunday_zero_offset().unsigned_abs());
    let month = usize::from(moment.month().unsigned_abs()) - 1;
    text[..3].copy_from_slice(&b"SunMonTueWedThuFriSat"[day * 3..][..3]);
    text[8..11].copy_from_slice(&b"JanFebMarAprMayJunJulAugSepOctNovDec"[month * 3..][..3]);
    let year = moment.year().unsigned_abs();
    let [hour, minute, second] = [moment.hour(), moment.minute(), moment.second()].map(i8::unsigned_abs);
    let places = [5, 12, 14, 17, 20, 23];
    let numbers = [u16::from(moment.day().unsigned_abs()), year / 100, year % 100]
        .into_iter()
        .chain([hour, minute, second].map(u16::from));
    for (place, number) in places.into_iter().zip(numbers) {
        let digits = [number / 10, number % 10].map(|digit| b'0' + u8::try_from(digit).unwrap_or(0));
        text[place..place + 2].copy_from_slice(&digits);
    }
    HeaderValue::from_bytes(&text).expect("letters, digits and spaces are a header's value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_a_percent_encoded_key() {
        let asked = question(&Method::GET, "/_onlyonce/keys/a%2Fb%20c").unwrap();
        assert_eq!(asked, Question { key: Key::stored("a/b c"), asks: Asks::State });
        let asked = question(&Method::GET, "/_onlyonce/keys/k1/response").unwrap();
        assert_eq!(asked, Question { key: Key::stored("k1"), asks: Asks::Response });
        for path in ["/_onlyonce/keys", "/_onlyonce/keys/k/other", "/orders"] {
            assert_eq!(question(&Method::GET, path), None, "{path}");
        }
        assert_eq!(question(&Method::POST, "/_onlyonce/keys/k1"), None);
        let asked = question(&Method::DELETE, "/_onlyonce/keys/k1").unwrap();
        assert_eq!(asked, Question { key: Key::stored("k1"), asks: Asks::Cancel });
        assert_eq!(question(&Method::DELETE, "/_onlyonce/keys/k1/response"), None);
    }

    #[test]
    fn an_expiry_is_told_in_whole_seconds_and_never_too_early() {
        let moment = Timestamp::from_micros(784_111_777_000_001);
        assert_eq!(http_date(moment), "Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(http_date(Timestamp::from_micros(i64::MAX)), "Thu, 30 Dec 9999 22:00:00 GMT");
    }

    #[test]
    fn a_date_is_what_the_printer_of_dates_makes_of_it() {
        let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
        // Every 11 days and some hours, from 1970 to 9999: every day of a week, a month and a leap year.
        for second in (0..253_402_207_200).step_by(11 * 86_400 + 45_296) {
            let printed = jiff::Timestamp::from_second(second).unwrap();
            let printed = printer.timestamp_to_rfc9110_string(&printed).unwrap();
            assert_eq!(http_date(Timestamp::from_micros(second * 1_000_000)), printed.as_str());
        }
    }
}
