//! What a webhook's sender is answered.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use onlyonce::operate::Heard;
use onlyonce::time::Timestamp;
use serde_json::json;

use crate::view;

/// What became of a webhook that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) result: Result,
    /// The record's state, in our word for it.
    pub(crate) state: Option<&'static str>,
    pub(crate) why: Option<String>,
    /// From when on "did not happen" is believed.
    pub(crate) earliest: Option<Timestamp>,
}

/// The word for it, in answers and in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Result {
    Applied,
    Evidence,
    Noted,
    Already,
    Contradiction,
    Duplicate,
    Ignored,
    Refused,
}

impl Result {
    pub(crate) const ALL: [Self; 8] = [
        Self::Applied,
        Self::Evidence,
        Self::Noted,
        Self::Already,
        Self::Contradiction,
        Self::Duplicate,
        Self::Ignored,
        Self::Refused,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Evidence => "evidence",
            Self::Noted => "noted",
            Self::Already => "already",
            Self::Contradiction => "contradiction",
            Self::Duplicate => "duplicate",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
        }
    }
}

impl Told {
    pub(crate) fn new(result: Result) -> Self {
        Self { result, state: None, why: None, earliest: None }
    }

    pub(crate) fn ignored(why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..Self::new(Result::Ignored) }
    }

    pub(crate) fn heard(heard: Heard) -> Self {
        let (result, state) = match heard {
            Heard::Applied(state) => (Result::Applied, Some(state.as_str())),
            Heard::Evidence => (Result::Evidence, Some("running")),
            Heard::Noted(state, _) => (Result::Noted, Some(state.as_str())),
            Heard::Already(state) => (Result::Already, Some(state.as_str())),
            Heard::Contradiction(state) => (Result::Contradiction, Some(state.as_str())),
            Heard::Ignored(_) => (Result::Ignored, None),
        };
        let why = match heard {
            Heard::Ignored(why) => Some(why.to_owned()),
            Heard::Noted(_, Some(_)) => Some("too early: the work may still happen".to_owned()),
            Heard::Contradiction(_) => {
                Some("the record was settled differently; nothing was changed".to_owned())
            }
            Heard::Applied(_) | Heard::Evidence | Heard::Noted(_, None) | Heard::Already(_) => None,
        };
        let earliest = match heard {
            Heard::Noted(_, earliest) => earliest,
            Heard::Applied(_)
            | Heard::Evidence
            | Heard::Already(_)
            | Heard::Contradiction(_)
            | Heard::Ignored(_) => None,
        };
        Self { result, state, why, earliest }
    }

    pub(crate) fn response(&self) -> Response<Bytes> {
        let body = json!({
            "result": self.result.as_str(),
            "state": self.state,
            "why": self.why,
            "earliest": self.earliest.map(view::moment),
        });
        made(StatusCode::OK, "application/json", body.to_string())
    }
}

/// Why a webhook was not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    SourceUnknown,
    Method,
    TooLarge(u64),
    NoRoom,
    TooSlow,
    SignatureInvalid,
    TooOld,
    Malformed(String),
    Ambiguous(&'static str),
    StoreUnavailable,
}

impl Refusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::SourceUnknown => "webhook_source_unknown",
            Self::Method => "admin_method",
            Self::TooLarge(_) => "admin_body_too_large",
            Self::NoRoom => "webhook_limit_reached",
            Self::TooSlow => "webhook_too_slow",
            Self::SignatureInvalid => "webhook_signature_invalid",
            Self::TooOld => "webhook_too_old",
            Self::Malformed(_) => "webhook_malformed",
            Self::Ambiguous(_) => "webhook_ambiguous",
            Self::StoreUnavailable => "store_unavailable",
        }
    }

    fn told(&self) -> (StatusCode, &'static str, String) {
        match self {
            Self::SourceUnknown => (
                StatusCode::NOT_FOUND,
                "Unknown webhook source",
                "No [webhooks.NAME] of the settings has this name.".to_owned(),
            ),
            Self::Method => {
                (StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", "A webhook must be a POST.".to_owned())
            }
            Self::TooLarge(bytes_max) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "Body too large",
                format!("The body has more than {bytes_max} bytes."),
            ),
            Self::NoRoom => (
                StatusCode::TOO_MANY_REQUESTS,
                "Too many webhooks",
                "Too many bytes of webhooks are in memory. Send it again.".to_owned(),
            ),
            Self::TooSlow => {
                (StatusCode::REQUEST_TIMEOUT, "Body too slow", "The body did not arrive in time.".to_owned())
            }
            Self::SignatureInvalid => (
                StatusCode::UNAUTHORIZED,
                "Signature invalid",
                "The signature is missing, malformed, or made with another secret.".to_owned(),
            ),
            Self::TooOld => (
                StatusCode::UNAUTHORIZED,
                "Signature too old",
                "The time of the signature is further from now than the settings allow.".to_owned(),
            ),
            Self::Malformed(detail) => {
                (StatusCode::BAD_REQUEST, "Webhook malformed", format!("The body cannot be used: {detail}."))
            }
            Self::Ambiguous(detail) => {
                (StatusCode::UNPROCESSABLE_ENTITY, "Webhook ambiguous", (*detail).to_owned())
            }
            Self::StoreUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Store unavailable",
                "The store did not answer. Send it again.".to_owned(),
            ),
        }
    }

    fn header(&self) -> Option<(HeaderName, &'static str)> {
        match self {
            Self::Method => Some((ALLOW, "POST")),
            Self::StoreUnavailable => Some((RETRY_AFTER, "5")),
            Self::NoRoom => Some((RETRY_AFTER, "1")),
            Self::SourceUnknown
            | Self::TooLarge(_)
            | Self::TooSlow
            | Self::SignatureInvalid
            | Self::TooOld
            | Self::Malformed(_)
            | Self::Ambiguous(_) => None,
        }
    }

    pub(crate) fn response(&self) -> Response<Bytes> {
        let (status, title, detail) = self.told();
        let code = self.code();
        let body = json!({
            "type": format!("https://onlyonce.dev/problems/{}", code.replace('_', "-")),
            "title": title,
            "status": status.as_u16(),
            "detail": detail,
            "code": code,
        });
        let mut response = made(status, "application/problem+json", body.to_string());
        if let Some((name, value)) = self.header() {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn made(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}
