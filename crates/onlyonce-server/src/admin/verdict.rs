//! The body of a verdict: what a person says, and everything that is wrong with it.
//!
//! ```json
//! {"verdict":"happened","response":{"status":201,"headers":{"content-type":"application/json"},"body":"{}"},"reason":"…"}
//! {"verdict":"did-not-happen","final":true,"reason":"…"}
//! {"verdict":"unknown","reason":"…"}
//! ```

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce::record::{Handle, Response, Verdict};
use serde_json::{Map, Value};

use super::json;
use super::parameter::{Fault, no_reason, reason, unknown};

/// What may stand in the body.
const MEMBERS: [&str; 6] = ["verdict", "final", "response", "token", "ask", "reason"];
const RESPONSE_MEMBERS: [&str; 4] = ["status", "headers", "body", "body_base64"];
/// What the gateway makes itself for each answer, or what is about one connection.
pub(crate) const OURS: [&str; 13] = [
    "connection",
    "content-length",
    "idempotency-key-created",
    "idempotency-key-expires",
    "idempotency-stored",
    "idempotent-replayed",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "onlyonce-outcome",
];

/// What a person says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) verdict: Verdict,
    /// The attempt that is meant, where one is named.
    pub(super) attempt: Option<Handle>,
    /// Whether the probe is asked for the answer first.
    pub(super) ask: bool,
    pub(super) reason: Arc<str>,
}

/// What the body says, or everything that is wrong with it.
pub(super) fn read(body: &[u8]) -> Result<Said, Vec<Fault>> {
    let value =
        json::parse(body).map_err(|error| vec![Fault::new("body", format!("is no JSON: {error}"))])?;
    let Value::Object(members) = value else {
        return Err(vec![Fault::new(
            "body",
            "must be an object, like {\"verdict\":\"happened\",\"reason\":\"…\"}",
        )]);
    };
    let mut reading = Reading { faults: Vec::new() };
    let said = reading.said(&members);
    match said {
        Some(said) if reading.faults.is_empty() => Ok(said),
        Some(_) | None => Err(reading.faults),
    }
}

/// Reads on after a fault, so that all are told.
struct Reading {
    faults: Vec<Fault>,
}

impl Reading {
    fn said(&mut self, members: &Map<String, Value>) -> Option<Said> {
        self.refuse_unknown("body", members, &MEMBERS);
        let word = self.text(members, "verdict").or_else(|| {
            if !members.contains_key("verdict") {
                self.fault("body.verdict", "is missing; say happened, did-not-happen or unknown");
            }
            None
        });
        let is_final = self.flag(members, "final");
        let ask = self.flag(members, "ask");
        let response = members.get("response").filter(|response| !response.is_null());
        let response = response.map(|response| self.response(response));
        let attempt = self.attempt(members);
        let reason = self.reason(members);
        let only = |reading: &mut Self, is_there: bool, member: &str, word: &str| {
            if is_there {
                reading.fault(&format!("body.{member}"), format!("goes with \"{word}\" alone; leave it out"));
            }
        };
        let verdict = match word? {
            "happened" => {
                only(self, is_final, "final", "did-not-happen");
                match response {
                    Some(response) => Verdict::Happened(Some(Arc::new(response?))),
                    None => Verdict::Happened(None),
                }
            }
            "did-not-happen" => {
                only(self, response.is_some(), "response", "happened");
                only(self, ask, "ask", "happened");
                Verdict::DidNotHappen { never_will: is_final }
            }
            "unknown" => {
                only(self, response.is_some(), "response", "happened");
                only(self, is_final, "final", "did-not-happen");
                only(self, ask, "ask", "happened");
                Verdict::StillUnknown
            }
            other => {
                self.fault(
                    "body.verdict",
                    format!("\"{other}\" is none of happened, did-not-happen, unknown"),
                );
                return None;
            }
        };
        Some(Said { verdict, attempt, ask, reason: reason? })
    }

    fn fault(&mut self, path: &str, detail: impl Into<String>) {
        self.faults.push(Fault::new(path, detail));
    }

    fn refuse_unknown(&mut self, path: &str, members: &Map<String, Value>, known: &[&'static str]) {
        for name in members.keys().filter(|name| !known.contains(&name.as_str())) {
            self.fault(&format!("{path}.{name}"), unknown(name, known.iter().copied()));
        }
    }

    /// A text, where the member is there and not null.
    fn text<'a>(&mut self, members: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
        match members.get(name)? {
            Value::String(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.fault(&format!("body.{name}"), "must be a string");
                None
            }
        }
    }

    fn flag(&mut self, members: &Map<String, Value>, name: &str) -> bool {
        match members.get(name) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
                self.fault(&format!("body.{name}"), "must be true or false");
                false
            }
        }
    }

    fn reason(&mut self, members: &Map<String, Value>) -> Option<Arc<str>> {
        if !members.contains_key("reason") {
            self.faults.push(no_reason("body.reason"));
        }
        let text = self.text(members, "reason")?;
        reason(text, "body.reason").map_err(|fault| self.faults.push(fault)).ok()
    }

    fn attempt(&mut self, members: &Map<String, Value>) -> Option<Handle> {
        let text = self.text(members, "token")?;
        text.parse().map_err(|error| self.fault("body.token", format!("\"{text}\" is {error}"))).ok()
    }

    fn response(&mut self, value: &Value) -> Option<Response> {
        let Value::Object(members) = value else {
            self.fault(
                "body.response",
                "must be an object, like {\"status\":201,\"headers\":{},\"body\":\"\"}",
            );
            return None;
        };
        self.refuse_unknown("body.response", members, &RESPONSE_MEMBERS);
        let status = self.status(members);
        let headers = self.headers(members);
        let body = self.body(members);
        let (status, headers, body) = (status?, headers?, body?);
        if matches!(status, 204 | 205 | 304) && !body.is_empty() {
            self.fault(
                "body.response.body",
                format!("an answer with the status {status} has no body; leave it out"),
            );
        }
        Some(Response { status, headers, body })
    }

    fn status(&mut self, members: &Map<String, Value>) -> Option<u16> {
        let status =
            members.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
        let status = status.filter(|status| (200..=599).contains(status));
        if status.is_none() {
            self.fault("body.response.status", "must be a number from 200 to 599");
        }
        status
    }

    fn headers(&mut self, members: &Map<String, Value>) -> Option<Vec<(HeaderName, HeaderValue)>> {
        let named = match members.get("headers") {
            None => return Some(Vec::new()),
            Some(Value::Object(named)) => named,
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                self.fault(
                    "body.response.headers",
                    "must be an object, like {\"content-type\":\"text/plain\"}",
                );
                return None;
            }
        };
        let before = self.faults.len();
        let headers = named.iter().flat_map(|(name, values)| self.header(name, values)).collect();
        (self.faults.len() == before).then_some(headers)
    }

    /// The lines of a header: one for each of its values.
    fn header(&mut self, text: &str, values: &Value) -> Vec<(HeaderName, HeaderValue)> {
        let path = format!("body.response.headers.{text}");
        let Ok(name) = text.parse::<HeaderName>() else {
            self.fault(&path, "is no name of a header");
            return Vec::new();
        };
        if OURS.contains(&name.as_str()) {
            self.fault(&path, "is made by the gateway for each answer; leave it out");
        }
        let values = match values {
            Value::Array(values) => values.as_slice(),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                std::slice::from_ref(values)
            }
        };
        let mut lines = Vec::new();
        for value in values {
            match value.as_str().and_then(|value| HeaderValue::from_str(value).ok()) {
                Some(value) => lines.push((name.clone(), value)),
                None => self.fault(&path, "must be a header's value as a string, or a list of such strings"),
            }
        }
        lines
    }

    fn body(&mut self, members: &Map<String, Value>) -> Option<Bytes> {
        match (members.get("body"), members.get("body_base64")) {
            (None, None) => Some(Bytes::new()),
            (Some(Value::String(text)), None) => Some(Bytes::from(text.clone())),
            (None, Some(Value::String(text))) => match STANDARD.decode(text) {
                Ok(bytes) => Some(bytes.into()),
                Err(error) => {
                    self.fault("body.response.body_base64", format!("is no base64: {error}"));
                    None
                }
            },
            (Some(_), Some(_)) => {
                self.fault("body.response.body_base64", "goes instead of body, not with it; leave one out");
                None
            }
            (Some(_), None) => {
                self.fault("body.response.body", "must be a string; JSON goes in as text");
                None
            }
            (None, Some(_)) => {
                self.fault("body.response.body_base64", "must be a string");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(body: &str) -> Vec<String> {
        let faults = read(body.as_bytes()).expect_err(body);
        faults.into_iter().map(|fault| fault.path).collect()
    }

    /// U06
    #[test]
    fn a_verdict_is_read_with_all_it_may_have() {
        let body = r#"{"verdict":"happened","reason":"r","ask":true,"token":null}"#;
        assert_eq!(faults(body), ["body.token"], "null is no string");
        let token = format!("{}.{}", "a".repeat(64), "b".repeat(32));
        let body = format!(
            r#"{{"verdict":"happened","reason":"bank says so","ask":false,"token":"{token}","response":
               {{"status":201,"headers":{{"content-type":"text/plain","x-a":["1","2"],"x-none":[]}},"body_base64":"AP8="}}}}"#
        );
        let said = read(body.as_bytes()).unwrap();
        let Verdict::Happened(Some(response)) = &said.verdict else { panic!("{said:?}") };
        let lines: Vec<_> = response
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        assert_eq!((response.status, &response.body[..]), (201, &[0, 255][..]));
        assert_eq!(lines, ["content-type: text/plain", "x-a: 1", "x-a: 2"]);
        assert_eq!(
            (said.attempt.unwrap().to_string(), &*said.reason, said.ask),
            (token, "bank says so", false)
        );
        let verdict = |body: &str| read(body.as_bytes()).unwrap().verdict;
        assert_eq!(verdict(r#"{"verdict":"happened","reason":"r"}"#), Verdict::Happened(None));
        assert_eq!(
            verdict(r#"{"verdict":"happened","reason":"r","response":null}"#),
            Verdict::Happened(None)
        );
        for (flag, never_will) in [("", false), (r#","final":false"#, false), (r#","final":true"#, true)] {
            let body = format!(r#"{{"verdict":"did-not-happen","reason":"r"{flag}}}"#);
            assert_eq!(verdict(&body), Verdict::DidNotHappen { never_will });
        }
        assert_eq!(verdict(r#"{"verdict":"unknown","reason":"r"}"#), Verdict::StillUnknown);
    }

    /// U06, O06
    #[test]
    fn everything_that_is_wrong_is_told_and_nothing_else_is_guessed() {
        let happened =
            |response: &str| format!(r#"{{"verdict":"happened","reason":"r","response":{response}}}"#);
        for (body, paths) in [
            ("", &["body"][..]),
            ("[]", &["body"]),
            (r#"{"verdict":"happened","verdict":"unknown","reason":"r"}"#, &["body"]),
            ("{}", &["body.verdict", "body.reason"]),
            (r#"{"verdict":"Happened","reason":"r"}"#, &["body.verdict"]),
            (r#"{"verdict":7,"reason":7}"#, &["body.verdict", "body.reason"]),
            (r#"{"verdict":"happened","reason":" "}"#, &["body.reason"]),
            (r#"{"verdict":"happened","reason":"r","finale":true}"#, &["body.finale"]),
            (r#"{"verdict":"happened","reason":"r","final":true}"#, &["body.final"]),
            (r#"{"verdict":"did-not-happen","reason":"r","final":"yes"}"#, &["body.final"]),
            (r#"{"verdict":"did-not-happen","reason":"r","ask":true}"#, &["body.ask"]),
            (
                r#"{"verdict":"unknown","reason":"r","final":true,"response":{"status":200}}"#,
                &["body.response", "body.final"],
            ),
            (r#"{"verdict":"happened","reason":"r","token":"x"}"#, &["body.token"]),
            (&happened("7"), &["body.response"]),
            (&happened("{}"), &["body.response.status"]),
            (&happened(r#"{"status":199}"#), &["body.response.status"]),
            (&happened(r#"{"status":600}"#), &["body.response.status"]),
            (&happened(r#"{"status":"200"}"#), &["body.response.status"]),
            (&happened(r#"{"status":200.5}"#), &["body.response.status"]),
            (&happened(r#"{"status":200,"body":{}}"#), &["body.response.body"]),
            (&happened(r#"{"status":200,"body":"a","body_base64":"YQ=="}"#), &["body.response.body_base64"]),
            (&happened(r#"{"status":200,"body_base64":"!"}"#), &["body.response.body_base64"]),
            (&happened(r#"{"status":200,"body_base64":1}"#), &["body.response.body_base64"]),
            (&happened(r#"{"status":204,"body":"a"}"#), &["body.response.body"]),
            (&happened(r#"{"status":200,"headers":[]}"#), &["body.response.headers"]),
            (&happened(r#"{"status":200,"headers":{"a b":"1"}}"#), &["body.response.headers.a b"]),
            (&happened(r#"{"status":200,"headers":{"a":"1\r\nb: 2"}}"#), &["body.response.headers.a"]),
            (&happened(r#"{"status":200,"headers":{"a":["1",2]}}"#), &["body.response.headers.a"]),
            (
                &happened(r#"{"status":200,"headers":{"Content-Length":"1"}}"#),
                &["body.response.headers.Content-Length"],
            ),
            (
                &happened(r#"{"status":0,"header":{},"headers":7,"body":7}"#),
                &[
                    "body.response.header",
                    "body.response.status",
                    "body.response.headers",
                    "body.response.body",
                ],
            ),
        ] {
            assert_eq!(faults(body), paths, "{body}");
        }
        let long = format!(r#"{{"verdict":"unknown","reason":"{}"}}"#, "ä".repeat(1_001));
        assert_eq!(faults(&long), ["body.reason"]);
        assert!(read(long.replacen('ä', "", 1).as_bytes()).is_ok());
    }
}
