//! Every refusal of the admin API: a code to branch on, a text to read, and members that say what to do next.
//!
//! Towards clients of the gateway a refusal never names a key. Here it may: whoever reads it may see it.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use metrics::counter;
use onlyonce::store;
use serde_json::{Map, Value, json};

use super::parameter::Fault;

/// What a client is told to wait while the store does not answer, or no stream is free.
const RETRY_AFTER_SECONDS: u64 = 1;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $status:ident, $title:literal, [$($member:literal),*];)*) => {
        /// Why a request was refused. The words never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// All of them.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// The HTTP status.
            pub(crate) const fn status(self) -> StatusCode {
                match self {
                    $(Self::$variant => StatusCode::$status,)*
                }
            }

            /// What it means, for people.
            pub(crate) const fn title(self) -> &'static str {
                match self {
                    $(Self::$variant => $title,)*
                }
            }

            /// What its problem has beyond the members that every problem has.
            pub(crate) const fn members(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($member),*],)*
                }
            }
        }
    };
}

codes! {
    /// A parameter, a member or a header is not known, missing or malformed.
    RequestInvalid = "admin_request_invalid", BAD_REQUEST, "The request is invalid", ["faults"];
    /// A change without a reason, or with one that is too long.
    ReasonMissing = "reason_missing", BAD_REQUEST, "A change needs a reason", ["faults"];
    /// No token, or none that is known.
    Unauthorized = "admin_unauthorized", UNAUTHORIZED, "A token is needed", [];
    /// The token's role does not allow it.
    Forbidden = "admin_forbidden", FORBIDDEN, "This token may only read", ["needs"];
    /// A page of another origin sent it.
    OriginRefused = "admin_origin_refused", FORBIDDEN, "Changes from pages of another origin are refused", ["needs"];
    /// There is no such record, or it has no stored answer.
    RecordNotFound = "record_not_found", NOT_FOUND, "There is no such record", [];
    /// There is no such message, or its payload is gone.
    MessageNotFound = "message_not_found", NOT_FOUND, "There is no such message", [];
    /// There is no such path.
    NotFound = "admin_not_found", NOT_FOUND, "There is no such path", [];
    /// The path has no such method.
    Method = "admin_method", METHOD_NOT_ALLOWED, "The path has no such method", [];
    /// The body is too large.
    BodyTooLarge = "admin_body_too_large", PAYLOAD_TOO_LARGE, "The body is too large", ["bytes_max"];
    /// The body is not JSON.
    ContentType = "admin_content_type", UNSUPPORTED_MEDIA_TYPE, "The body must be JSON", [];
    /// The request relies on loopback and names another host.
    HostRefused = "admin_host_refused", MISDIRECTED_REQUEST, "The host is not a loopback address", [];
    /// The attempt is still running.
    RecordRunning = "record_running", CONFLICT, "The attempt is still running", ["lapses_at", "deadline_at"];
    /// "Did not happen" cannot be believed yet.
    VerdictTooEarly = "verdict_too_early", CONFLICT, "The work may still happen", ["earliest"];
    /// There is nothing to settle.
    RecordSettled = "record_settled", CONFLICT, "There is nothing to settle", ["state", "by"];
    /// Forgetting it would let a retry run it again.
    RecordUnknown = "record_unknown", CONFLICT, "The outcome is unknown", [];
    /// There is no probe.
    NothingToAsk = "nothing_to_ask", CONFLICT, "The route has no probe", [];
    /// The record is not at the revision of `If-Match`.
    RecordChanged = "record_changed", PRECONDITION_FAILED, "The record has changed", ["revision"];
    /// It is being delivered.
    MessageClaimed = "message_claimed", CONFLICT, "The message is being delivered", [];
    /// Only dead letters are redriven.
    MessageNotDead = "message_not_dead", CONFLICT, "The message is not a dead letter", [];
    /// As many streams are open as there may be.
    StreamsTaken = "admin_streams_taken", SERVICE_UNAVAILABLE, "Too many event streams are open", [];
    /// The record, or the payload, is encrypted with a key that this node does not have.
    Undecryptable = "record_undecryptable", SERVICE_UNAVAILABLE, "The encryption key is missing", [];
    /// The store did not answer.
    StoreUnavailable = "store_unavailable", SERVICE_UNAVAILABLE, "The store did not answer", [];
}

/// A refused request.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    detail: String,
    members: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let mut headers = Vec::new();
        match code.status() {
            StatusCode::UNAUTHORIZED => {
                headers.push((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.push((RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS)));
            }
            _ => {}
        }
        Self { code, detail: detail.into(), members: Map::new(), headers }
    }

    /// The same, with this member.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// The same, with this header.
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// What is wrong with a request, all of it.
    pub(crate) fn invalid(code: Code, faults: &[Fault]) -> Self {
        let told: Vec<_> = faults.iter().map(|fault| format!("{}: {}", fault.path, fault.detail)).collect();
        let faults: Vec<_> =
            faults.iter().map(|fault| json!({ "path": &fault.path, "detail": &fault.detail })).collect();
        Self::new(code, told.join("; ")).with("faults", faults)
    }

    /// The store failed. Its error may name hosts and files: it is in the log, not in the answer.
    pub(crate) fn store(error: &store::Error) -> Self {
        if error.kind() == store::ErrorKind::Undecryptable {
            return Self::new(Code::Undecryptable, error.to_string());
        }
        let mut told = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            told.push_str(&format!(": {error}"));
            cause = error.source();
        }
        tracing::warn!(error = told, "an operator's request failed: the store did not answer");
        Self::new(
            Code::StoreUnavailable,
            "the store did not answer; see the log. A change may have been made: look at the record or the audit log before you send it again",
        )
    }
}

impl From<store::Error> for Refusal {
    fn from(error: store::Error) -> Self {
        Self::store(&error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self { code, detail, members, headers } = self;
        counter!("onlyonce_admin_refused_total", "code" => code.as_str()).increment(1);
        let mut body = Map::new();
        body.insert("type".to_owned(), problem_type(code).into());
        body.insert("title".to_owned(), code.title().into());
        body.insert("status".to_owned(), code.status().as_u16().into());
        body.insert("detail".to_owned(), detail.into());
        body.insert("code".to_owned(), code.as_str().into());
        body.extend(members);
        let mut response = Response::new(Body::from(Value::Object(body).to_string()));
        *response.status_mut() = code.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        for (name, value) in headers {
            response.headers_mut().append(name, value);
        }
        response
    }
}

/// The URI that names a kind of problem.
pub(crate) fn problem_type(code: Code) -> String {
    format!("https://onlyonce.dev/problems/{}", code.as_str().replace('_', "-"))
}
