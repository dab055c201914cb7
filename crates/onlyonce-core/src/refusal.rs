//! Every answer that says why nothing ran, or that nobody knows whether it did.
//!
//! A refusal is an answer, not an error. Its [`Code`] is a contract: clients branch on it, and it never changes.

use std::fmt;
use std::time::Duration;

use http::HeaderName;
use http::header::AUTHORIZATION;

use crate::age::Untimely;
use crate::key::{self, Invalid};
use crate::limits::Limit;
use crate::record::Effects;
use crate::scope::Source;

/// Why nothing ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The route demands a key and there is none.
    KeyMissing {
        /// The places it may stand in.
        sources: Vec<key::Source>,
    },
    /// The key cannot be used.
    KeyInvalid(Invalid),
    /// The caller cannot be told apart from others.
    ScopeMissing {
        /// Which sources the `scope` setting asks for.
        sources: Vec<Source>,
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
    /// The caller, or all of them together, ask for too much.
    LimitReached {
        /// What they have reached.
        limit: Limit,
        /// When to come back.
        retry_after: Duration,
    },
    /// The request's body is larger than a keyed request may be.
    BodyTooLarge {
        /// The largest body.
        bytes_max: u64,
    },
    /// The request is older than allowed, or does not say how old it is.
    RequestTooOld(Untimely),
    /// The service behind was not reached; nothing was sent.
    UpstreamUnreachable(Resend),
    /// The service did not answer, or not whole; whether it ran is not known.
    UpstreamOutcomeUnknown(NoAnswer, Resend),
}

/// What sending a request again does, where the service did not answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// It has no key and reads only.
    Reads,
    /// It has no key, so nothing is promised.
    Unkeyed,
    /// It is not run again before its outcome is known.
    Held,
    /// It may be run again, which is safe by what the work touches.
    Rerun,
}

impl Resend {
    /// Of a request with a key whose work touches this.
    pub fn of(effects: Effects) -> Self {
        match effects {
            Effects::Local | Effects::Keyed => Self::Rerun,
            Effects::Queryable | Effects::Opaque => Self::Held,
        }
    }
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
            Self::UpstreamLost => "The service's answer was lost",
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
            Self::RequestTooOld(_) => Code::RequestTooOld,
            Self::UpstreamUnreachable(_) => Code::UpstreamUnreachable,
            Self::UpstreamOutcomeUnknown(NoAnswer::TimedOut, _) => Code::UpstreamTimedOut,
            Self::UpstreamOutcomeUnknown(NoAnswer::Lost, _) => Code::UpstreamLost,
        }
    }

    /// When to come back, where that helps.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InProgress { retry_after }
            | Self::OutcomeUnknown { retry_after }
            | Self::StoreUnavailable { retry_after }
            | Self::LimitReached { retry_after, .. } => Some(*retry_after),
            Self::KeyMissing { .. }
            | Self::KeyInvalid(_)
            | Self::ScopeMissing { .. }
            | Self::KeyReused { .. }
            | Self::ResponseNotStored
            | Self::Expired
            | Self::BodyTooLarge { .. }
            | Self::RequestTooOld(_)
            | Self::UpstreamUnreachable(_)
            | Self::UpstreamOutcomeUnknown(..) => None,
        }
    }

    /// Whether it is the answer to an attempt that began: then the client is told that nothing was stored.
    pub const fn ends_an_attempt(&self) -> bool {
        matches!(self, Self::UpstreamUnreachable(_) | Self::UpstreamOutcomeUnknown(..))
    }

    /// How a caller that was not identified authenticates, as `WWW-Authenticate` has it.
    pub fn challenge(&self) -> Option<String> {
        let Self::ScopeMissing { sources } = self else { return None };
        let challenge = |source: &Source| match source {
            Source::Header(name) | Source::Trusted(name) if *name != AUTHORIZATION => {
                Some(format!("ApiKey header=\"{name}\""))
            }
            Source::Header(_) | Source::Trusted(_) | Source::Jwt(_) => Some("Bearer".to_owned()),
            Source::Certificate => Some("Certificate".to_owned()),
            Source::Route => None,
        };
        Some(sources.iter().find_map(challenge).unwrap_or_else(|| "Bearer".to_owned()))
    }
}

/// What happened and what to do, for the client. Never the key, a host or a header's value.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyMissing { sources } => {
                let places: Vec<_> = sources.iter().map(place).collect();
                let places = places.join(" or ");
                write!(f, "This operation needs an idempotency key: send a new unique value, such as a UUID, {places}.")
            }
            Self::KeyInvalid(invalid) => write!(f, "Nothing was run: {invalid}."),
            Self::ScopeMissing { sources } => {
                let needs: Vec<_> = sources.iter().map(needed).collect();
                let needs = if needs.is_empty() { "credentials".to_owned() } else { needs.join(" and ") };
                write!(f, "The caller could not be identified, and a key counts within its caller's scope only. Nothing was run. Send {needs}.")
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
                "The first request with this key has completed, but its response was not stored. It will not be run again.",
            ),
            Self::Expired => f.write_str(
                "This key has been used and has expired. Nothing was run. Use a new key for a new operation.",
            ),
            Self::StoreUnavailable { .. } => f.write_str(
                "The request could not be protected against running twice, so it was not run. Send it again with the \
                 same key after the time in Retry-After.",
            ),
            Self::LimitReached { limit, .. } => {
                let what = match limit {
                    Limit::KeysPerSecond => "This caller sends too many new keys per second",
                    Limit::KeysPerSecondTotal => "Too many new keys per second",
                    Limit::LookupsPerSecond => "This caller sends too many requests with existing keys per second",
                    Limit::LookupsPerSecondTotal => "Too many requests with existing keys per second",
                    Limit::KeysAlive => "This caller has the maximum number of stored keys",
                    Limit::KeysAliveTotal => "The maximum number of stored keys is reached",
                    Limit::InFlight => "This caller has too many running requests",
                    Limit::InFlightTotal => "Too many requests are running",
                    Limit::BufferedBytesMax => "Too many bytes of request bodies are in memory",
                    Limit::Streams => "Too many requests of this connection are running",
                    Limit::PendingMax => "Too many accepted requests are waiting",
                };
                write!(
                    f,
                    "{what}. Nothing was run. Send the same request with the same key again after the time in Retry-After."
                )
            }
            Self::BodyTooLarge { bytes_max } => {
                write!(f, "The body of a request with an idempotency key may have at most {bytes_max} bytes. Nothing was run.")
            }
            Self::RequestTooOld(untimely) => write!(f, "{untimely} Nothing was run."),
            Self::UpstreamUnreachable(resend) => {
                let again = match resend {
                    Resend::Reads | Resend::Unkeyed => "It may be sent again.",
                    Resend::Held | Resend::Rerun => "Send it again with the same key.",
                };
                write!(f, "The service could not be reached and the request was not sent. {again}")
            }
            Self::UpstreamOutcomeUnknown(_, resend) => {
                let again = match resend {
                    Resend::Reads => "It may be sent again.",
                    Resend::Unkeyed => "It had no idempotency key, so sending it again may run it twice.",
                    Resend::Held => {
                        "Send it again with the same key: it is not run again before its outcome is known."
                    }
                    Resend::Rerun => "Send it again with the same key.",
                };
                write!(f, "The service did not answer, and whether the request took effect is not known. {again}")
            }
        }
    }
}

/// Where a key may stand.
fn place(source: &key::Source) -> String {
    match source {
        key::Source::Header(name) => format!("in the {name} header"),
        key::Source::Json(pointer) => format!("as the string at {pointer} of the JSON body"),
        key::Source::Query(name) => format!("as the query parameter {name}"),
    }
}

/// What a caller has to send for this source.
fn needed(source: &Source) -> String {
    match source {
        Source::Header(name) | Source::Trusted(name) => format!("one {} header", spelt(name)),
        Source::Jwt(_) => "a valid bearer token in the Authorization header".to_owned(),
        Source::Certificate => "a client certificate".to_owned(),
        Source::Route => "in questions about a key, ?route=".to_owned(),
    }
}

/// A header's name as people write it: `X-Api-Key`.
fn spelt(name: &HeaderName) -> String {
    let capital = |part: &str| {
        let mut chars = part.chars();
        chars
            .next()
            .map_or_else(String::new, |first| format!("{}{}", first.to_ascii_uppercase(), chars.as_str()))
    };
    name.as_str().split('-').map(capital).collect::<Vec<_>>().join("-")
}

/// A refusal of every code.
#[cfg(test)]
pub(crate) fn example(code: Code) -> Refusal {
    let retry_after = Duration::from_secs(1);
    match code {
        Code::KeyMissing => Refusal::KeyMissing { sources: vec![key::Source::Query("id".into())] },
        Code::KeyInvalid => Refusal::KeyInvalid(Invalid::MalformedString),
        Code::ScopeMissing => Refusal::ScopeMissing { sources: vec![Source::Route] },
        Code::KeyReused => Refusal::KeyReused { other_endpoint: false },
        Code::InProgress => Refusal::InProgress { retry_after },
        Code::OutcomeUnknown => Refusal::OutcomeUnknown { retry_after },
        Code::ResponseNotStored => Refusal::ResponseNotStored,
        Code::Expired => Refusal::Expired,
        Code::StoreUnavailable => Refusal::StoreUnavailable { retry_after },
        Code::LimitReached => Refusal::LimitReached { limit: Limit::InFlight, retry_after },
        Code::BodyTooLarge => Refusal::BodyTooLarge { bytes_max: 1 },
        Code::RequestTooOld => {
            Refusal::RequestTooOld(Untimely::Missing { header: HeaderName::from_static("x-time") })
        }
        Code::UpstreamUnreachable => Refusal::UpstreamUnreachable(Resend::Held),
        Code::UpstreamTimedOut => Refusal::UpstreamOutcomeUnknown(NoAnswer::TimedOut, Resend::Held),
        Code::UpstreamLost => Refusal::UpstreamOutcomeUnknown(NoAnswer::Lost, Resend::Held),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S05
    #[test]
    fn a_caller_is_told_what_to_send() {
        let header = |name: &'static str| Source::Header(HeaderName::from_static(name));
        for (sources, detail, challenge) in [
            (vec![header("authorization")], "Send one Authorization header.", "Bearer"),
            (vec![header("x-api-key")], "Send one X-Api-Key header.", "ApiKey header=\"x-api-key\""),
            (
                vec![Source::Jwt("sub".into())],
                "Send a valid bearer token in the Authorization header.",
                "Bearer",
            ),
            (vec![Source::Certificate], "Send a client certificate.", "Certificate"),
            (
                vec![header("authorization"), Source::Route],
                "and in questions about a key, ?route=.",
                "Bearer",
            ),
            (vec![], "Send credentials.", "Bearer"),
        ] {
            let refusal = Refusal::ScopeMissing { sources };
            assert!(refusal.to_string().ends_with(detail), "{refusal}");
            assert_eq!(refusal.challenge().as_deref(), Some(challenge));
        }
        assert_eq!(Refusal::Expired.challenge(), None);
    }

    /// K03
    #[test]
    fn a_missing_key_is_told_with_every_place_that_it_may_stand_in() {
        let told = |sources: &[&str]| {
            let sources = sources.iter().map(|source| source.parse().unwrap()).collect();
            Refusal::KeyMissing { sources }.to_string()
        };
        assert!(told(&["header:Idempotency-Key"]).ends_with("a UUID, in the idempotency-key header."));
        assert!(told(&["header:x-key", "json:/id", "query:id"]).ends_with(
            "a UUID, in the x-key header or as the string at /id of the JSON body or as the query parameter id."
        ));
    }

    /// G02
    #[test]
    fn sending_again_promises_what_the_effects_allow() {
        for (effects, resend) in [
            (Effects::Local, Resend::Rerun),
            (Effects::Keyed, Resend::Rerun),
            (Effects::Queryable, Resend::Held),
            (Effects::Opaque, Resend::Held),
        ] {
            assert_eq!(Resend::of(effects), resend);
            let told = Refusal::UpstreamOutcomeUnknown(NoAnswer::Lost, resend).to_string();
            assert_eq!(
                told.contains("it is not run again before its outcome is known"),
                resend == Resend::Held
            );
            assert!(told.contains("the same key"));
        }
    }
}
