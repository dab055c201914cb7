//! Every answer that says why nothing ran, or that nobody knows whether it did.
//!
//! A refusal is an answer, not an error. Its [`Code`] is a contract: clients branch on it, and it never changes.

use std::fmt;
use std::time::Duration;

use crate::key::Invalid;

/// Why nothing ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The route demands a key and there is none.
    KeyMissing {
        /// The header it belongs in.
        header: http::HeaderName,
    },
    /// The key cannot be used.
    KeyInvalid(Invalid),
    /// The caller cannot be told apart from others.
    ScopeMissing {
        /// Which sources the `scope` setting asks for.
        sources: String,
    },
    /// The key was used for another request.
    KeyReused {
        /// On another endpoint, rather than with another body.
        other_endpoint: bool,
    },
    /// The first request with this key still runs.
    InProgress {
        /// When to come back.
        retry_after: Duration,
    },
    /// Nobody knows whether the first request ran.
    OutcomeUnknown {
        /// When to come back.
        retry_after: Duration,
    },
    /// The first request is done, but its answer was not kept.
    ResponseNotStored,
    /// The key has expired and is not used anew.
    Expired,
    /// The store cannot be reached; nothing was run.
    StoreUnavailable {
        /// When to come back.
        retry_after: Duration,
    },
    /// The caller has too much under way.
    LimitReached {
        /// When to come back.
        retry_after: Duration,
    },
    /// The request's body is larger than a keyed request may be.
    BodyTooLarge {
        /// The largest body.
        bytes_max: u64,
    },
    /// The request is older than allowed.
    RequestTooOld,
    /// The service behind was not reached; nothing was sent.
    UpstreamUnreachable,
    /// The service did not answer, or not whole; whether it ran is not known.
    UpstreamOutcomeUnknown(NoAnswer),
}

/// How a service failed to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It took too long.
    TimedOut,
    /// The answer was lost: the connection broke, or the handler panicked.
    Lost,
}

/// What a client branches on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// `idempotency_key_missing`
    KeyMissing,
    /// `idempotency_key_invalid`
    KeyInvalid,
    /// `idempotency_scope_missing`
    ScopeMissing,
    /// `idempotency_key_reused`
    KeyReused,
    /// `idempotency_key_in_progress`
    InProgress,
    /// `idempotency_outcome_unknown`
    OutcomeUnknown,
    /// `idempotency_response_not_stored`
    ResponseNotStored,
    /// `idempotency_key_expired`
    Expired,
    /// `idempotency_store_unavailable`
    StoreUnavailable,
    /// `idempotency_limit_reached`
    LimitReached,
    /// `idempotency_body_too_large`
    BodyTooLarge,
    /// `idempotency_request_too_old`
    RequestTooOld,
    /// `upstream_unreachable`
    UpstreamUnreachable,
    /// `upstream_outcome_unknown`, after a time-out
    UpstreamTimedOut,
    /// `upstream_outcome_unknown`, after a lost answer
    UpstreamLost,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::ScopeMissing,
        Self::KeyReused,
        Self::InProgress,
        Self::OutcomeUnknown,
        Self::ResponseNotStored,
        Self::Expired,
        Self::StoreUnavailable,
        Self::LimitReached,
        Self::BodyTooLarge,
        Self::RequestTooOld,
        Self::UpstreamUnreachable,
        Self::UpstreamTimedOut,
        Self::UpstreamLost,
    ];

    /// The stable text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyMissing => "idempotency_key_missing",
            Self::KeyInvalid => "idempotency_key_invalid",
            Self::ScopeMissing => "idempotency_scope_missing",
            Self::KeyReused => "idempotency_key_reused",
            Self::InProgress => "idempotency_key_in_progress",
            Self::OutcomeUnknown => "idempotency_outcome_unknown",
            Self::ResponseNotStored => "idempotency_response_not_stored",
            Self::Expired => "idempotency_key_expired",
            Self::StoreUnavailable => "idempotency_store_unavailable",
            Self::LimitReached => "idempotency_limit_reached",
            Self::BodyTooLarge => "idempotency_body_too_large",
            Self::RequestTooOld => "idempotency_request_too_old",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamTimedOut | Self::UpstreamLost => "upstream_outcome_unknown",
        }
    }

    /// The status where a dialect says nothing else.
    pub const fn status(self) -> u16 {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::RequestTooOld => 400,
            Self::ScopeMissing => 401,
            Self::InProgress | Self::OutcomeUnknown | Self::ResponseNotStored => 409,
            Self::Expired => 410,
            Self::BodyTooLarge => 413,
            Self::KeyReused => 422,
            Self::LimitReached => 429,
            Self::UpstreamUnreachable | Self::UpstreamLost => 502,
            Self::StoreUnavailable => 503,
            Self::UpstreamTimedOut => 504,
        }
    }

    /// Whether the same request with the same key may succeed later.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::InProgress
            | Self::OutcomeUnknown
            | Self::StoreUnavailable
            | Self::LimitReached
            | Self::UpstreamUnreachable
            | Self::UpstreamTimedOut
            | Self::UpstreamLost => true,
            Self::KeyMissing
            | Self::KeyInvalid
            | Self::ScopeMissing
            | Self::KeyReused
            | Self::ResponseNotStored
            | Self::Expired
            | Self::BodyTooLarge
            | Self::RequestTooOld => false,
        }
    }

    /// What it is, in a few words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::KeyMissing => "Idempotency key missing",
            Self::KeyInvalid => "Idempotency key invalid",
            Self::ScopeMissing => "Caller not identified",
            Self::KeyReused => "Idempotency key already used for another request",
            Self::InProgress => "Request with this idempotency key in progress",
            Self::OutcomeUnknown => "Outcome unknown",
            Self::ResponseNotStored => "Response not stored",
            Self::Expired => "Idempotency key expired",
            Self::StoreUnavailable => "Idempotency store unavailable",
            Self::LimitReached => "Limit reached",
            Self::BodyTooLarge => "Request body too large",
            Self::RequestTooOld => "Request too old",
            Self::UpstreamUnreachable => "Service unreachable",
            Self::UpstreamTimedOut => "Service did not answer in time",
            Self::UpstreamLost => "Answer of the service lost",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Refusal {
    /// What a client branches on.
    pub const fn code(&self) -> Code {
        match self {
            Self::KeyMissing { .. } => Code::KeyMissing,
            Self::KeyInvalid(_) => Code::KeyInvalid,
            Self::ScopeMissing { .. } => Code::ScopeMissing,
            Self::KeyReused { .. } => Code::KeyReused,
            Self::InProgress { .. } => Code::InProgress,
            Self::OutcomeUnknown { .. } => Code::OutcomeUnknown,
            Self::ResponseNotStored => Code::ResponseNotStored,
            Self::Expired => Code::Expired,
            Self::StoreUnavailable { .. } => Code::StoreUnavailable,
            Self::LimitReached { .. } => Code::LimitReached,
            Self::BodyTooLarge { .. } => Code::BodyTooLarge,
            Self::RequestTooOld => Code::RequestTooOld,
            Self::UpstreamUnreachable => Code::UpstreamUnreachable,
            Self::UpstreamOutcomeUnknown(NoAnswer::TimedOut) => Code::UpstreamTimedOut,
            Self::UpstreamOutcomeUnknown(NoAnswer::Lost) => Code::UpstreamLost,
        }
    }

    /// When to come back, where that helps.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InProgress { retry_after }
            | Self::OutcomeUnknown { retry_after }
            | Self::StoreUnavailable { retry_after }
            | Self::LimitReached { retry_after } => Some(*retry_after),
            Self::KeyMissing { .. }
            | Self::KeyInvalid(_)
            | Self::ScopeMissing { .. }
            | Self::KeyReused { .. }
            | Self::ResponseNotStored
            | Self::Expired
            | Self::BodyTooLarge { .. }
            | Self::RequestTooOld
            | Self::UpstreamUnreachable
            | Self::UpstreamOutcomeUnknown(_) => None,
        }
    }

    /// Whether it is the answer to an attempt that began: then the client is told that nothing was stored.
    pub const fn ends_an_attempt(&self) -> bool {
        matches!(self, Self::UpstreamUnreachable | Self::UpstreamOutcomeUnknown(_))
    }
}

/// What happened and what to do, for the client. Never the key, a host or a header's value.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyMissing { header } => {
                write!(f, "This operation needs an idempotency key: send a new unique value, such as a UUID, in the {header} header.")
            }
            Self::KeyInvalid(invalid) => write!(f, "Nothing was run: {invalid}."),
            Self::ScopeMissing { sources } => {
                write!(f, "The caller could not be identified. The scope setting asks for: {sources}.")
            }
            Self::KeyReused { other_endpoint: true } => f.write_str(
                "This key was first used on another endpoint. Nothing was run. Use a new key for a new operation.",
            ),
            Self::KeyReused { other_endpoint: false } => f.write_str(
                "This key was first used with another request. Nothing was run. Use a new key for a new operation, \
                 or repeat the first request unchanged.",
            ),
            Self::InProgress { .. } => f.write_str(
                "The first request with this key is still running. Send the same request with the same key again \
                 after the time in Retry-After.",
            ),
            Self::OutcomeUnknown { .. } => f.write_str(
                "It is not known whether the first request with this key took effect; it will not be run again until \
                 that is known. Ask for its status, or send the same request again after the time in Retry-After. \
                 Do not use a new key.",
            ),
            Self::ResponseNotStored => f.write_str(
                "The first request with this key has completed, but its response was not kept. It will not be run again.",
            ),
            Self::Expired => f.write_str(
                "This key has been used and has expired. Nothing was run. Use a new key for a new operation.",
            ),
            Self::StoreUnavailable { .. } => f.write_str(
                "The request could not be protected against running twice, so it was not run. Send it again with the \
                 same key after the time in Retry-After.",
            ),
            Self::LimitReached { .. } => {
                f.write_str("Too many requests with idempotency keys. Nothing was run. Send it again with the same key after the time in Retry-After.")
            }
            Self::BodyTooLarge { bytes_max } => {
                write!(f, "The body of a request with an idempotency key may have at most {bytes_max} bytes. Nothing was run.")
            }
            Self::RequestTooOld => f.write_str("The request is older than allowed. Nothing was run."),
            Self::UpstreamUnreachable => f.write_str(
                "The service could not be reached and the request was not sent. Send it again with the same key.",
            ),
            Self::UpstreamOutcomeUnknown(_) => f.write_str(
                "The service did not answer, and whether the request took effect is not known. Send it again with \
                 the same key: it will not be run twice.",
            ),
        }
    }
}
