//! What a webhook's body says, found by the pointers of its source.
//!
//! 1. A body that is not a JSON object, or has something else where a pointer leads than what belongs there, is malformed.
//! 2. A record is named by a token, or by a scope and a key. A key alone names nobody's record, whoever has used it.
//! 3. A word that means nothing here is ignored: a provider has more to say than what became of our requests.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use onlyonce::Handle;
use onlyonce::fingerprint::Pointer;
use onlyonce::key::Key;
use onlyonce::operate::Subject;
use onlyonce::record::{Id, Response, Verdict};
use onlyonce::scope::Scope;
use onlyonce::time::Timestamp;
use serde_json::{Value, json};

use super::signature::Signed;
use crate::config::{Webhook, Word};
use crate::saying;

/// An event about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) about: Subject,
    /// What the body names besides the token, to be compared with the record of the token.
    pub(crate) beside: Beside,
    pub(crate) says: Says,
    /// When it happened, by the provider's clock.
    pub(crate) at: Timestamp,
    pub(crate) id: Option<String>,
    /// The event, for people.
    pub(crate) detail: Arc<str>,
}

/// A scope or a key beside a token. Both together have been compared already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    Scope(Scope),
    Key(Key),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Verdict(Verdict),
    /// Nothing about the outcome, for this reason.
    Nothing(String),
}

/// What a body cannot be used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Its shape is wrong.
    Malformed(String),
    /// It names no record, or two.
    Ambiguous(&'static str),
    /// It is about something else, which is what most of a provider's events are.
    Foreign,
}

type Read<T> = Result<T, Unusable>;

/// Reads a body whose signature is right.
pub(crate) fn read(source: &Webhook, signed: Signed<'_>, body: &[u8]) -> Read<Event> {
    let body: Value = serde_json::from_slice(body).map_err(|_| malformed("the body is not JSON"))?;
    if !body.is_object() {
        return Err(malformed("the body is not a JSON object"));
    }
    let named = Named::read(source, &body)?;
    let (word, says) = says(source, &body)?;
    let id = scalar(&body, &source.pointers.id)?.or_else(|| signed.id.map(str::to_owned));
    let at = time(source, &body)?;
    let at = match (&named.token, at) {
        (_, Some(at)) => at,
        (Some(_), None) => signed.at,
        (None, None) if source.pointers.time.is_none() => signed.at,
        (None, None) => {
            return Err(malformed(
                "there is no time at time_pointer, and without it an event may be about an earlier use of the key",
            ));
        }
    };
    let detail = match &id {
        Some(id) => format!("{word} {id}"),
        None => word,
    };
    let (about, beside) = named.subject()?;
    Ok(Event { about, beside, says, at, id, detail: detail.into() })
}

/// How a body names a record.
struct Named {
    token: Option<Handle>,
    scope: Option<Scope>,
    key: Option<Key>,
}

impl Named {
    fn read(source: &Webhook, body: &Value) -> Read<Self> {
        let pointers = &source.pointers;
        let token = text(body, &pointers.token)?.map(str::parse::<Handle>).transpose();
        let token = token.map_err(|error| malformed(format!("the token is {error}")))?;
        let scope = match text(body, &pointers.scope)? {
            Some(text) => Some(
                scope(text)
                    .ok_or_else(|| malformed("the scope is not 64 hex digits, as sent in Onlyonce-Scope"))?,
            ),
            None => None,
        };
        let key = text(body, &pointers.key)?.map(Key::stored);
        if token.is_some() || scope.is_some() || key.is_some() {
            return Ok(Self { token, scope, key });
        }
        if source.preset.sends_other_things {
            return Err(Unusable::Foreign);
        }
        Err(malformed("the body has neither a token nor a scope and a key where the settings' pointers lead"))
    }

    fn subject(self) -> Read<(Subject, Beside)> {
        let Self { token, scope, key } = self;
        match (token, scope, key) {
            (Some(handle), Some(scope), Some(key)) if handle.id != Id::of(&scope, &key) => {
                Err(Unusable::Ambiguous("The token and the scope and key name different records."))
            }
            (Some(handle), Some(_), Some(_)) | (Some(handle), None, None) => {
                Ok((Subject::Attempt(handle), Beside::Nothing))
            }
            (Some(handle), Some(scope), None) => Ok((Subject::Attempt(handle), Beside::Scope(scope))),
            (Some(handle), None, Some(key)) => Ok((Subject::Attempt(handle), Beside::Key(key))),
            (None, Some(scope), Some(key)) => Ok((Subject::Work(Id::of(&scope, &key)), Beside::Nothing)),
            (None, None, _) => Err(Unusable::Ambiguous(
                "A key without a scope does not identify a record: other callers may use the same key. Send the token, or also the scope.",
            )),
            (None, Some(_), None) => Err(Unusable::Ambiguous(
                "A scope without a key does not identify a record. Send the token, or also the key.",
            )),
        }
    }
}

/// The word, and what it says.
fn says(source: &Webhook, body: &Value) -> Read<(String, Says)> {
    let Some(word) = scalar(body, &source.pointers.verdict)? else {
        return Err(malformed("there is no verdict at verdict_pointer"));
    };
    let meant = match &source.verdicts {
        Some(verdicts) => verdicts.get(&word).copied(),
        None => Word::written(&word),
    };
    let verdict = match meant {
        None => return Ok((word, Says::Nothing("the value is not mapped to a verdict".to_owned()))),
        Some(Word::Ignore) => return Ok((word, Says::Nothing("the value is mapped to ignore".to_owned()))),
        Some(Word::Happened) => Verdict::Happened(answer(source, body)?),
        Some(Word::Declined) => Verdict::Happened(Some(Arc::new(declined(source, body)))),
        Some(Word::DidNotHappen) => Verdict::DidNotHappen { never_will: never_will(source, body)? },
        Some(Word::DidNotHappenFinal) => Verdict::DidNotHappen { never_will: true },
        Some(Word::Unknown) => Verdict::StillUnknown,
    };
    Ok((word, Says::Verdict(verdict)))
}

fn answer(source: &Webhook, body: &Value) -> Read<Option<Arc<Response>>> {
    let value = source.pointers.response.as_ref().and_then(|pointer| there(body, pointer));
    let Some(value) = value else { return Ok(None) };
    match saying::response(value, "response") {
        Ok(response) => Ok(Some(Arc::new(response))),
        Err(faults) => {
            let told: Vec<_> = faults.iter().map(ToString::to_string).collect();
            Err(malformed(told.join("; ")))
        }
    }
}

fn never_will(source: &Webhook, body: &Value) -> Read<bool> {
    let value = source.pointers.never_will.as_ref().and_then(|pointer| there(body, pointer));
    match value {
        None => Ok(false),
        Some(value) => {
            value.as_bool().ok_or_else(|| malformed("the value at final_pointer is not true or false"))
        }
    }
}

/// The answer for clients whose request the provider refused: the work is done, and this is what came of it.
fn declined(source: &Webhook, body: &Value) -> Response {
    let status = source.declined_status;
    let mut problem = json!({
        "type": "https://onlyonce.dev/problems/downstream-declined",
        "title": "Declined by the provider",
        "status": status,
        "detail": "The provider behind this service declined the request. To try again, use a new key.",
        "code": "downstream_declined",
        "retryable": false,
    });
    let code = source.preset.decline_codes.iter().find_map(|pointer| body.pointer(pointer)?.as_str());
    if let Some(code) = code.filter(|code| is_code(code)) {
        problem["decline_code"] = code.into();
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::PAYMENT_REQUIRED);
    Response {
        status: status.as_u16(),
        headers: vec![(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))],
        body: Bytes::from(problem.to_string()),
    }
}

/// Whether it is a short word, as codes are.
fn is_code(text: &str) -> bool {
    const CHARS_MAX: usize = 64;
    !text.is_empty()
        && text.len() <= CHARS_MAX
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// When the event happened, where its body says so.
fn time(source: &Webhook, body: &Value) -> Read<Option<Timestamp>> {
    let value = source.pointers.time.as_ref().and_then(|pointer| there(body, pointer));
    let Some(value) = value else { return Ok(None) };
    let at = match value {
        Value::Number(seconds) => seconds.as_i64().and_then(|seconds| seconds.checked_mul(1_000_000)),
        Value::String(text) => match text.parse::<i64>() {
            Ok(seconds) => seconds.checked_mul(1_000_000),
            Err(_) => text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_microsecond),
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    match at {
        Some(micros) => Ok(Some(Timestamp::from_micros(micros))),
        None => Err(malformed("the value at time_pointer is neither unix seconds nor a time in RFC 3339")),
    }
}

/// What stands there; null is nothing.
fn there<'a>(body: &'a Value, pointer: &Pointer) -> Option<&'a Value> {
    body.pointer(pointer.as_str()).filter(|value| !value.is_null())
}

fn text<'a>(body: &'a Value, pointer: &Pointer) -> Read<Option<&'a str>> {
    match there(body, pointer) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Err(malformed(format!("the value at \"{pointer}\" is not a string")))
        }
    }
}

/// A text, or a number or flag as it is written.
fn scalar(body: &Value, pointer: &Pointer) -> Read<Option<String>> {
    match there(body, pointer) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => Ok(Some(value.to_string())),
        Some(Value::Null | Value::Array(_) | Value::Object(_)) => {
            Err(malformed(format!("the value at \"{pointer}\" is not a string")))
        }
    }
}

/// A scope as `Onlyonce-Scope` tells it.
fn scope(text: &str) -> Option<Scope> {
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| Scope::stored(digest, None))
}

fn malformed(detail: impl Into<String>) -> Unusable {
    Unusable::Malformed(detail.into())
}

#[cfg(test)]
mod tests;
