//! How an operators' command ends that could not do what it was told.
//!
//! A failure has the code of the admin API where that refused it, and one of ours otherwise. It is told once, on stderr: as a
//! line, or as JSON where the command was to print JSON.

use std::fmt;
use std::io;

use onlyonce::store::{self, ErrorKind};
use serde_json::{Map, Value, json};

use crate::Ended;

/// What went wrong, or why the answer is no.
#[derive(Debug)]
pub(crate) struct Failure {
    code: String,
    detail: String,
    /// The status of the admin API's answer, also where a store itself was asked; none for what never came so far.
    status: Option<u16>,
    /// More that the API says, such as `earliest`.
    more: Map<String, Value>,
    /// Whoever read the output has gone: nothing is left to be told.
    is_unread: bool,
}

impl Failure {
    pub(crate) fn new(code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { code: code.into(), detail: detail.into(), status: None, more: Map::new(), is_unread: false }
    }

    /// Arguments that cannot be meant.
    pub(crate) fn arguments(detail: impl Into<String>) -> Self {
        Self::new("arguments_invalid", detail)
    }

    /// The record is not there.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new("record_not_found", detail).with_status(404)
    }

    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status: Some(status), ..self }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// The same with the members of an API's problem that are not told otherwise.
    pub(crate) fn with_all(mut self, problem: Map<String, Value>) -> Self {
        let is_told = |name: &str| matches!(name, "type" | "title" | "status" | "detail" | "code");
        self.more.extend(problem.into_iter().filter(|(name, _)| !is_told(name)));
        self
    }

    /// Whether the answer is no, rather than that there is none.
    fn is_no(&self) -> bool {
        match self.status {
            Some(404) => matches!(&*self.code, "record_not_found" | "message_not_found"),
            Some(409 | 412) => true,
            Some(_) | None => false,
        }
    }

    fn as_json(&self) -> Value {
        let mut error = self.more.clone();
        error.insert("code".to_owned(), self.code.as_str().into());
        error.insert("detail".to_owned(), self.detail.as_str().into());
        error.insert("status".to_owned(), self.status.into());
        json!({ "error": error })
    }

    /// Tells it, and says how the program ends.
    fn tell(&self, as_json: bool) -> Ended {
        if self.is_unread {
            return Ended::Yes;
        }
        if as_json {
            eprintln!("{}", self.as_json());
        } else {
            eprintln!("{}: {}", if self.is_no() { "no" } else { "error" }, super::text::clean(&self.detail));
        }
        if self.is_no() { Ended::No } else { Ended::Failed }
    }
}

/// Tells how a command failed, where it did.
pub(crate) fn told(ended: Result<Ended, Failure>, as_json: bool) -> Ended {
    ended.unwrap_or_else(|failure| failure.tell(as_json))
}

/// Tells what is wrong with the arguments of a command that was to print JSON.
pub(crate) fn tell_arguments(error: &clap::Error) -> Ended {
    let told = error.render().to_string();
    let told = told.split("\n\nUsage:").next().unwrap_or_default();
    let told = told.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
    Failure::arguments(told).tell(true)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        let code = code_of(&error);
        Self::new(code, format!("{:#}", anyhow::Error::from(error))).with_status_of(code)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let code = error.chain().find_map(|cause| cause.downcast_ref().map(code_of));
        let code = code.unwrap_or("arguments_invalid");
        Self::new(code, format!("{error:#}")).with_status_of(code)
    }
}

impl From<crate::config::Faults> for Failure {
    fn from(faults: crate::config::Faults) -> Self {
        Self::new("settings_invalid", faults.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let is_unread = error.kind() == io::ErrorKind::BrokenPipe;
        Self { is_unread, ..Self::new("output_failed", format!("the output cannot be written: {error}")) }
    }
}

impl Failure {
    fn with_status_of(self, code: &str) -> Self {
        if code == "store_unavailable" { self.with_status(503) } else { self }
    }
}

fn code_of(error: &store::Error) -> &'static str {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Busy => "store_unavailable",
        ErrorKind::Corrupt => "store_corrupt",
        ErrorKind::Undecryptable => "record_undecryptable",
        ErrorKind::Misconfigured => "store_unusable",
        ErrorKind::Other => "store_failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_or_not_allowed_now_is_a_no_and_all_else_an_error() {
        for (code, status, is_no) in [
            ("record_not_found", Some(404), true),
            ("verdict_too_early", Some(409), true),
            ("record_changed", Some(412), true),
            ("admin_not_found", Some(404), false),
            ("admin_unauthorized", Some(401), false),
            ("admin_forbidden", Some(403), false),
            ("admin_request_invalid", Some(400), false),
            ("store_unavailable", Some(503), false),
            ("gateway_unreachable", None, false),
        ] {
            let failure = Failure { status, ..Failure::new(code, "") };
            assert_eq!(failure.is_no(), is_no, "{code}");
        }
    }

    #[test]
    fn an_error_is_told_with_what_the_api_adds() {
        let problem = json!({ "type": "about:blank", "status": 409, "code": "x", "earliest": "then" });
        let Value::Object(problem) = problem else { unreachable!("it is an object") };
        let failure = Failure::new("verdict_too_early", "wait").with_status(409).with_all(problem);
        let expected = json!({ "error": { "code": "verdict_too_early", "detail": "wait", "status": 409, "earliest": "then" } });
        assert_eq!(failure.as_json(), expected);
        assert_eq!(Failure::arguments("no").as_json()["error"]["status"], Value::Null);
    }
}
