//! The body of a verdict: what a person says, and everything that is wrong with it.
//!
//! ```json
//! {"verdict":"happened","response":{"status":201,"headers":{"content-type":"application/json"},"body":"{}"},"reason":"…"}
//! {"verdict":"did-not-happen","final":true,"reason":"…"}
//! {"verdict":"unknown","reason":"…"}
//! ```

use std::sync::Arc;

use onlyonce::record::{Handle, Verdict};
use serde_json::{Map, Value};

use super::json;
use super::parameter::{Fault, no_reason, reason, unknown};
use crate::saying::{self, MADE_BY_THE_GATEWAY};

/// What may stand in the body.
const MEMBERS: [&str; 6] = ["verdict", "final", "response", "token", "ask", "reason"];

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
        json::parse(body).map_err(|error| vec![Fault::new("body", format!("is not JSON: {error}"))])?;
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
        for name in members.keys().filter(|name| !MEMBERS.contains(&name.as_str())) {
            self.fault(&format!("body.{name}"), unknown(name, MEMBERS.iter().copied()));
        }
        let verdict = self.verdict(members);
        self.refuse_our_headers(members);
        let ask = self.flag(members, "ask");
        if ask && !matches!(verdict, Some(Verdict::Happened(_)) | None) {
            self.fault("body.ask", "belongs to the verdict happened; leave it out");
        }
        let attempt = self.attempt(members);
        let reason = self.reason(members);
        Some(Said { verdict: verdict?, attempt, ask, reason: reason? })
    }

    fn verdict(&mut self, members: &Map<String, Value>) -> Option<Verdict> {
        let told = |fault: saying::Fault| Fault::new(format!("body.{}", fault.path), fault.detail);
        saying::verdict(members).map_err(|faults| self.faults.extend(faults.into_iter().map(told))).ok()
    }

    /// Elsewhere they are left out in silence; a person is told.
    fn refuse_our_headers(&mut self, members: &Map<String, Value>) {
        let headers = members.get("response").and_then(|response| response["headers"].as_object());
        for name in headers.into_iter().flat_map(Map::keys) {
            if MADE_BY_THE_GATEWAY.contains(&name.to_ascii_lowercase().as_str()) {
                let path = format!("body.response.headers.{name}");
                self.fault(&path, "is set by the gateway on every answer; leave it out");
            }
        }
    }

    fn fault(&mut self, path: &str, detail: impl Into<String>) {
        self.faults.push(Fault::new(path, detail));
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
