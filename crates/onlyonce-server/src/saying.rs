//! What somebody says became of work, read from JSON: a probe's answer, an operator's verdict, the answer in a webhook.
//!
//! ```json
//! {"verdict": "happened", "response": {"status": 201, "headers": {"content-type": "application/json"}, "body": "…"}}
//! {"verdict": "did-not-happen", "final": true}
//! {"verdict": "unknown"}
//! ```
//!
//! 1. `response` belongs to `happened`, and `final` to `did-not-happen`. Elsewhere they are faults: who says both says nothing.
//! 2. A header's value is a text or a list of texts. Headers that the gateway makes for each answer are left out.
//! 3. A body is `body`, a text, or `body_base64`.
//! 4. Every fault is told, each with its path.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce::record::{Response, Verdict};
use serde_json::{Map, Value};

/// A member that cannot stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// `response.status`
    pub(crate) path: String,
    /// What is wrong with it, and what to do.
    pub(crate) detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.detail)
    }
}

/// What is collected while members are read.
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, path: impl Into<String>, detail: impl Into<String>) {
        self.0.push(Fault { path: path.into(), detail: detail.into() });
    }

    /// The value, unless anything was wrong.
    fn or<T>(self, value: Option<T>) -> Result<T, Vec<Fault>> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            Some(_) | None => Err(self.0),
        }
    }
}

/// The verdict of an object with `verdict`, `response` and `final`. Other members are the caller's to judge.
pub(crate) fn verdict(members: &Map<String, Value>) -> Result<Verdict, Vec<Fault>> {
    let mut faults = Faults(Vec::new());
    let response = match members.get("response") {
        None | Some(Value::Null) => None,
        Some(value) => read_response(value, "response", &mut faults).map(Arc::new),
    };
    let never_will = match members.get("final") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(never_will)) => *never_will,
        Some(Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            faults.add("final", "is not true or false");
            false
        }
    };
    let has_response = members.get("response").is_some_and(|response| !response.is_null());
    let word = match members.get("verdict") {
        Some(Value::String(word)) => word.as_str(),
        Some(_) => {
            faults.add("verdict", "is not a string; use happened, did-not-happen or unknown");
            return faults.or(None);
        }
        None => {
            faults.add("verdict", "is missing; use happened, did-not-happen or unknown");
            return faults.or(None);
        }
    };
    let verdict = match word {
        "happened" => Some(Verdict::Happened(response)),
        "did-not-happen" => Some(Verdict::DidNotHappen { never_will }),
        "unknown" => Some(Verdict::StillUnknown),
        other => {
            faults.add(
                "verdict",
                format!("\"{}\" is not a verdict; use happened, did-not-happen or unknown", short(other)),
            );
            None
        }
    };
    if has_response && word != "happened" {
        faults.add("response", "belongs to the verdict happened; remove it");
    }
    if never_will && word != "did-not-happen" {
        faults.add("final", "belongs to the verdict did-not-happen; remove it");
    }
    faults.or(verdict)
}

/// The answer for a client. `path` is what faults call it.
pub(crate) fn response(value: &Value, path: &str) -> Result<Response, Vec<Fault>> {
    let mut faults = Faults(Vec::new());
    let response = read_response(value, path, &mut faults);
    faults.or(response)
}

fn read_response(value: &Value, path: &str, faults: &mut Faults) -> Option<Response> {
    let Value::Object(members) = value else {
        faults.add(path, "is not an object; write it like {\"status\": 201, \"body\": \"…\"}");
        return None;
    };
    for name in
        members.keys().filter(|name| !["status", "headers", "body", "body_base64"].contains(&name.as_str()))
    {
        faults
            .add(format!("{path}.{}", short(name)), "is unknown; use status, headers, body and body_base64");
    }
    let status = read_status(members.get("status"), path, faults);
    let headers = read_headers(members.get("headers"), path, faults);
    let body = read_body(members, path, faults);
    if let (Some(status @ (204 | 205 | 304)), Some(body)) = (status, &body)
        && !body.is_empty()
    {
        faults.add(
            format!("{path}.body"),
            format!("must be left out: an answer with status {status} has no body"),
        );
    }
    Some(Response { status: status?, headers, body: body? })
}

fn read_status(value: Option<&Value>, path: &str, faults: &mut Faults) -> Option<u16> {
    let status = value.and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
    let status = status.filter(|status| (200..=599).contains(status));
    if status.is_none() {
        faults.add(format!("{path}.status"), "is not a final HTTP status; use 200 to 599");
    }
    status
}

fn read_headers(value: Option<&Value>, path: &str, faults: &mut Faults) -> Vec<(HeaderName, HeaderValue)> {
    let members = match value {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::Object(members)) => members,
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            faults.add(format!("{path}.headers"), "is not an object of names and values");
            return Vec::new();
        }
    };
    let mut headers = Vec::with_capacity(members.len());
    for (name, value) in members {
        let path = format!("{path}.headers.{}", short(name));
        let Ok(name) = name.parse::<HeaderName>() else {
            faults.add(path, "is not a header name");
            continue;
        };
        let values = match value {
            Value::String(_) => std::slice::from_ref(value),
            Value::Array(values) => values,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => &[Value::Null],
        };
        for value in values {
            match value.as_str().and_then(|text| HeaderValue::from_str(text).ok()) {
                Some(_) if MADE_BY_THE_GATEWAY.contains(&name.as_str()) => {}
                Some(value) => headers.push((name.clone(), value)),
                None => faults.add(
                    path.clone(),
                    "has a value that is not allowed in a header; write a string, or a list of strings",
                ),
            }
        }
    }
    headers
}

/// What the gateway makes itself for each answer, or what is about one connection.
pub(crate) const MADE_BY_THE_GATEWAY: [&str; 13] = [
    "connection",
    "content-length",
    "idempotency-key-created",
    "idempotency-key-expires",
    "idempotency-stored",
    "idempotent-replayed",
    "keep-alive",
    "onlyonce-outcome",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn read_body(members: &Map<String, Value>, path: &str, faults: &mut Faults) -> Option<Bytes> {
    let given = |name: &str| members.get(name).filter(|value| !value.is_null());
    match (given("body"), given("body_base64")) {
        (None, None) => Some(Bytes::new()),
        (Some(_), Some(_)) => {
            faults.add(format!("{path}.body_base64"), "is given together with body; give only one of them");
            None
        }
        (Some(Value::String(text)), None) => Some(Bytes::copy_from_slice(text.as_bytes())),
        (Some(_), None) => {
            faults.add(format!("{path}.body"), "is not a string; write JSON as a string too");
            None
        }
        (None, Some(encoded)) => {
            let bytes = encoded.as_str().and_then(|text| STANDARD.decode(text).ok());
            if bytes.is_none() {
                faults.add(format!("{path}.body_base64"), "is not base64");
            }
            bytes.map(Bytes::from)
        }
    }
}

/// Somebody else's text, as much of it as belongs into a message.
fn short(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut short: String =
        text.chars().take(CHARS_MAX).map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Verdict, String> {
        let Value::Object(members) = value else { panic!("an object") };
        verdict(&members).map_err(|faults| faults.iter().map(|fault| format!("{fault}\n")).collect())
    }

    /// U05
    #[test]
    fn a_verdict_is_read_with_its_answer() {
        assert_eq!(read(json!({ "verdict": "happened" })), Ok(Verdict::Happened(None)));
        assert_eq!(
            read(json!({ "verdict": "happened", "response": null, "final": false })),
            Ok(Verdict::Happened(None))
        );
        assert_eq!(
            read(json!({ "verdict": "did-not-happen" })),
            Ok(Verdict::DidNotHappen { never_will: false })
        );
        assert_eq!(
            read(json!({ "verdict": "did-not-happen", "final": true })),
            Ok(Verdict::DidNotHappen { never_will: true })
        );
        assert_eq!(
            read(json!({ "verdict": "unknown", "reason": "the bank is closed" })),
            Ok(Verdict::StillUnknown)
        );
        let response = json!({
            "status": 201,
            "headers": { "Content-Type": "application/json", "link": ["</a>", "</b>"], "content-length": "99", "Connection": "close" },
            "body": "{\"id\":1}"
        });
        let Ok(Verdict::Happened(Some(response))) =
            read(json!({ "verdict": "happened", "response": response }))
        else {
            panic!("an answer")
        };
        let headers: Vec<_> =
            response.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(response.status, 201);
        assert_eq!(headers, [("content-type", "application/json"), ("link", "</a>"), ("link", "</b>")]);
        assert_eq!(response.body, "{\"id\":1}");
        let bytes = super::response(&json!({ "status": 200, "body_base64": "AP8=" }), "response").unwrap();
        assert_eq!(&bytes.body[..], [0, 255]);
    }

    #[test]
    fn whatever_else_is_said_is_a_fault_with_its_path() {
        for (value, expected) in [
            (json!({}), "verdict is missing"),
            (json!({ "verdict": true }), "verdict is not a string"),
            (json!({ "verdict": "Happened" }), "verdict \"Happened\" is not a verdict"),
            (json!({ "verdict": "declined" }), "verdict \"declined\" is not a verdict"),
            (json!({ "verdict": "did-not-happen", "final": "true" }), "final is not true or false"),
            (json!({ "verdict": "happened", "final": true }), "final belongs to"),
            (json!({ "verdict": "unknown", "response": { "status": 200 } }), "response belongs to"),
            (json!({ "verdict": "happened", "response": 201 }), "response is not an object"),
            (json!({ "verdict": "happened", "response": {} }), "response.status is not a final"),
            (
                json!({ "verdict": "happened", "response": { "status": 101 } }),
                "response.status is not a final",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": "201" } }),
                "response.status is not a final",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 65737 } }),
                "response.status is not a final",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 200, "text": "x" } }),
                "response.text is unknown",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 200, "body": {} } }),
                "response.body is not a string",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 204, "body": "x" } }),
                "response.body must be left out",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 200, "body": "x", "body_base64": "eA==" } }),
                "response.body_base64 is given together with",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 200, "body_base64": "%" } }),
                "is not base64",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 200, "headers": [] } }),
                "response.headers is not an object",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 200, "headers": { "a b": "x" } } }),
                "response.headers.a b is not a header name",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 200, "headers": { "a": "x\r\ny: z" } } }),
                "response.headers.a has a value",
            ),
            (
                json!({ "verdict": "happened", "response": { "status": 200, "headers": { "a": 1 } } }),
                "response.headers.a has",
            ),
        ] {
            let told = read(value.clone()).expect_err("a fault");
            assert!(told.contains(expected) && told.lines().count() == 1, "{value}: {told}");
        }
        let told = read(json!({ "verdict": "x", "final": 1, "response": { "status": 1, "headers": 2 } }))
            .unwrap_err();
        assert_eq!(told.lines().count(), 5, "all at once: {told}");
    }
}
