//! The dialects that come with the library: one entry each, and no code. What each follows, and what stays ours, is in
//! `docs/presets.md`.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};

use super::{Dialect, Preset, PresetScope, ResultHeader};
use crate::fingerprint::BodyForm;
use crate::key::Syntax;
use crate::policy::{Anonymous, On5xx, OnExpired};
use crate::refusal::Code;

/// A dialect as it is written in the table: texts where [`Dialect`] has types.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    version: &'static str,
    content_type: &'static str,
    body: &'static str,
    replayed: &'static str,
    replayed_member: Option<&'static str>,
    echo: Option<&'static str>,
    /// Name, accepted, rejected.
    result: Option<(&'static str, &'static str, &'static str)>,
    statuses: &'static [(Code, u16)],
    codes: &'static [(Code, &'static str)],
    kind: &'static str,
    kinds: &'static [(Code, &'static str)],
    settings: Settings,
}

/// [`Preset`], as texts.
#[derive(Clone, Copy)]
struct Settings {
    key_from: Option<&'static [&'static str]>,
    syntax: Option<Syntax>,
    key_chars_min: Option<usize>,
    key_chars_max: Option<usize>,
    methods: Option<&'static [Method]>,
    required: Option<&'static [Method]>,
    scope: Option<Scope>,
    anonymous: Option<Anonymous>,
    retention: Option<Duration>,
    on_expired: Option<OnExpired>,
    release: Option<&'static [u16]>,
    unknown: Option<&'static [u16]>,
    on_5xx: Option<On5xx>,
    request_time_header: Option<&'static str>,
    request_age_max: Option<Duration>,
    body: Option<BodyForm>,
    ignore: Option<&'static [&'static str]>,
    headers: Option<&'static [&'static str]>,
}

#[derive(Clone, Copy)]
enum Scope {
    Only(&'static [&'static str]),
    Also(&'static [&'static str]),
}

pub(super) const TABLE: &[Entry] = &[
    IETF,
    STRIPE,
    CONFLICT,
    ACP,
    UCP,
    ADCP,
    SQUARE,
    PAYPAL,
    AIP155,
    AZURE,
    STANDARD_WEBHOOKS,
    GITHUB_WEBHOOKS,
    SHOPIFY_WEBHOOKS,
    STRIPE_WEBHOOKS,
];

const NOTHING: Settings = Settings {
    key_from: None,
    syntax: None,
    key_chars_min: None,
    key_chars_max: None,
    methods: None,
    required: None,
    scope: None,
    anonymous: None,
    retention: None,
    on_expired: None,
    release: None,
    unknown: None,
    on_5xx: None,
    request_time_header: None,
    request_age_max: None,
    body: None,
    ignore: None,
    headers: None,
};

const POST: &[Method] = &[Method::POST];
const HOUR: u64 = 3600;
/// Longer than any of the providers delivers an event again.
const EVENT_RETENTION: Duration = Duration::from_secs(7 * 24 * HOUR);
/// Answers of a receiver that has not processed an event: the provider delivers it again.
const EVENT_NOT_PROCESSED: &[u16] = &[400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 425, 429];

const JSON: &str = "application/json";

pub(super) const IETF: Entry = Entry {
    name: "ietf",
    version: "draft-ietf-httpapi-idempotency-key-header-07",
    content_type: "application/problem+json",
    body: r#"{"type":{type},"title":{title},"status":{status},"detail":{detail},"code":{code},"retryable":{retryable}{more}}"#,
    replayed: "idempotent-replayed",
    replayed_member: None,
    echo: None,
    result: None,
    statuses: &[],
    codes: &[],
    kind: "idempotency_error",
    kinds: &[],
    settings: NOTHING,
};

pub(super) const STRIPE: Entry = Entry {
    name: "stripe",
    version: "API v1",
    content_type: JSON,
    body: r#"{"error":{"type":{kind},"code":{code},"message":{detail}}}"#,
    statuses: &[(Code::KeyReused, 400)],
    settings: Settings {
        syntax: Some(Syntax::Bare),
        key_chars_max: Some(255),
        unknown: Some(&[]),
        on_5xx: Some(On5xx::Store),
        ..NOTHING
    },
    ..IETF
};

pub(super) const CONFLICT: Entry = Entry {
    name: "conflict",
    version: "1",
    replayed: "idempotent-replay",
    statuses: &[(Code::KeyReused, 409)],
    settings: Settings {
        key_chars_max: Some(128),
        release: Some(&[]),
        unknown: Some(&[502, 504]),
        ..NOTHING
    },
    ..IETF
};

const ACP: Entry = Entry {
    name: "acp",
    version: "2026-04-17",
    content_type: JSON,
    body: r#"{"type":{kind},"code":{code},"message":{detail}}"#,
    echo: Some("idempotency-key"),
    codes: &[
        (Code::KeyMissing, "idempotency_key_required"),
        (Code::KeyReused, "idempotency_conflict"),
        (Code::InProgress, "idempotency_in_flight"),
        (Code::ScopeMissing, "unauthorized"),
        (Code::LimitReached, "rate_limit_exceeded"),
        (Code::StoreUnavailable, "service_unavailable"),
    ],
    // The checkout API knows three words for it.
    kind: "invalid_request",
    kinds: &[
        (Code::LimitReached, "service_unavailable"),
        (Code::StoreUnavailable, "service_unavailable"),
        (Code::UpstreamUnreachable, "service_unavailable"),
        (Code::UpstreamTimedOut, "processing_error"),
        (Code::UpstreamLost, "processing_error"),
    ],
    settings: Settings {
        syntax: Some(Syntax::Bare),
        key_chars_max: Some(255),
        methods: Some(POST),
        required: Some(POST),
        scope: Some(Scope::Also(&["route"])),
        unknown: Some(&[408]),
        on_5xx: Some(On5xx::Retry),
        body: Some(BodyForm::Auto),
        headers: Some(&[]),
        ..NOTHING
    },
    ..IETF
};

const UCP: Entry = Entry {
    name: "ucp",
    version: "2026-01-11",
    content_type: JSON,
    body: r#"{"code":{code},"content":{detail}}"#,
    statuses: &[(Code::KeyReused, 409)],
    settings: Settings {
        syntax: Some(Syntax::Bare),
        retention: Some(Duration::from_secs(48 * HOUR)),
        body: Some(BodyForm::Bytes),
        ..NOTHING
    },
    ..IETF
};

const ADCP: Entry = Entry {
    name: "adcp",
    version: "3.1",
    content_type: JSON,
    body: r#"{"status":"failed","adcp_error":{"code":{code},"message":{detail},"recovery":{kind}},"errors":[{"code":{code},"message":{detail},"recovery":{kind}}]}"#,
    replayed_member: Some("replayed"),
    codes: &[
        (Code::KeyMissing, "INVALID_REQUEST"),
        (Code::KeyInvalid, "INVALID_REQUEST"),
        (Code::ScopeMissing, "AUTH_REQUIRED"),
        (Code::KeyReused, "IDEMPOTENCY_CONFLICT"),
        (Code::InProgress, "IDEMPOTENCY_IN_FLIGHT"),
        (Code::Expired, "IDEMPOTENCY_EXPIRED"),
        (Code::StoreUnavailable, "SERVICE_UNAVAILABLE"),
        (Code::LimitReached, "RATE_LIMITED"),
    ],
    kind: "correctable",
    kinds: &[
        (Code::InProgress, "transient"),
        (Code::OutcomeUnknown, "transient"),
        (Code::ResponseNotStored, "terminal"),
        (Code::StoreUnavailable, "transient"),
        (Code::LimitReached, "transient"),
        (Code::UpstreamUnreachable, "transient"),
        (Code::UpstreamTimedOut, "transient"),
        (Code::UpstreamLost, "transient"),
    ],
    settings: Settings {
        key_from: Some(&["json:/idempotency_key"]),
        key_chars_min: Some(16),
        key_chars_max: Some(255),
        methods: Some(POST),
        required: Some(POST),
        on_expired: Some(OnExpired::Gone),
        release: Some(&[400, 401, 402, 403, 404, 405, 409, 410, 412, 413, 415, 422, 425, 429]),
        body: Some(BodyForm::Auto),
        ignore: Some(&[
            "/context",
            "/governance_context",
            "/push_notification_config/authentication/credentials",
        ]),
        ..NOTHING
    },
    ..IETF
};

const SQUARE: Entry = Entry {
    name: "square",
    version: "Connect API v2",
    content_type: JSON,
    body: r#"{"errors":[{"category":{kind},"code":{code},"detail":{detail}}]}"#,
    statuses: &[(Code::KeyReused, 400)],
    codes: &[
        (Code::KeyMissing, "MISSING_REQUIRED_PARAMETER"),
        (Code::KeyInvalid, "INVALID_VALUE"),
        (Code::ScopeMissing, "UNAUTHORIZED"),
        (Code::KeyReused, "IDEMPOTENCY_KEY_REUSED"),
        (Code::InProgress, "CONFLICT"),
        (Code::StoreUnavailable, "SERVICE_UNAVAILABLE"),
        (Code::LimitReached, "RATE_LIMITED"),
        (Code::BodyTooLarge, "REQUEST_ENTITY_TOO_LARGE"),
        (Code::UpstreamTimedOut, "GATEWAY_TIMEOUT"),
    ],
    kind: "INVALID_REQUEST_ERROR",
    kinds: &[
        (Code::ScopeMissing, "AUTHENTICATION_ERROR"),
        (Code::LimitReached, "RATE_LIMIT_ERROR"),
        (Code::StoreUnavailable, "API_ERROR"),
        (Code::UpstreamUnreachable, "API_ERROR"),
        (Code::UpstreamTimedOut, "API_ERROR"),
        (Code::UpstreamLost, "API_ERROR"),
    ],
    settings: Settings { key_from: Some(&["json:/idempotency_key"]), ..NOTHING },
    ..IETF
};

const PAYPAL: Entry = Entry {
    name: "paypal",
    version: "REST APIs v2",
    content_type: JSON,
    body: r#"{"name":{kind},"message":{title},"details":[{"issue":{code},"description":{detail}}]}"#,
    codes: &[(Code::KeyReused, "PAYPAL_REQUEST_ID_PREVIOUSLY_USED")],
    kind: "INVALID_REQUEST",
    kinds: &[
        (Code::ScopeMissing, "AUTHENTICATION_FAILURE"),
        (Code::KeyReused, "UNPROCESSABLE_ENTITY"),
        (Code::InProgress, "RESOURCE_CONFLICT"),
        (Code::OutcomeUnknown, "RESOURCE_CONFLICT"),
        (Code::ResponseNotStored, "RESOURCE_CONFLICT"),
        (Code::LimitReached, "RATE_LIMIT_REACHED"),
        (Code::StoreUnavailable, "SERVICE_UNAVAILABLE"),
        (Code::UpstreamUnreachable, "INTERNAL_SERVER_ERROR"),
        (Code::UpstreamTimedOut, "INTERNAL_SERVER_ERROR"),
        (Code::UpstreamLost, "INTERNAL_SERVER_ERROR"),
    ],
    settings: Settings {
        key_from: Some(&["header:paypal-request-id"]),
        syntax: Some(Syntax::Bare),
        methods: Some(POST),
        ..NOTHING
    },
    ..IETF
};

const AIP155: Entry = Entry {
    name: "aip155",
    version: "AIP-155 with errors by AIP-193",
    content_type: JSON,
    body: r#"{"error":{"code":{status},"message":{detail},"status":{kind},"details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":{code},"domain":"onlyonce.dev"}]}}"#,
    statuses: &[(Code::KeyReused, 400)],
    kind: "INVALID_ARGUMENT",
    kinds: &[
        (Code::ScopeMissing, "UNAUTHENTICATED"),
        (Code::InProgress, "ABORTED"),
        (Code::OutcomeUnknown, "ABORTED"),
        (Code::ResponseNotStored, "ALREADY_EXISTS"),
        (Code::Expired, "FAILED_PRECONDITION"),
        (Code::LimitReached, "RESOURCE_EXHAUSTED"),
        (Code::StoreUnavailable, "UNAVAILABLE"),
        (Code::UpstreamUnreachable, "UNAVAILABLE"),
        (Code::UpstreamTimedOut, "DEADLINE_EXCEEDED"),
        (Code::UpstreamLost, "UNKNOWN"),
    ],
    settings: Settings {
        key_from: Some(&["query:requestId", "query:request_id", "json:/requestId", "json:/request_id"]),
        key_chars_max: Some(36),
        ..NOTHING
    },
    ..IETF
};

const AZURE: Entry = Entry {
    name: "azure",
    version: "OASIS Repeatable Requests 1.0",
    content_type: JSON,
    body: r#"{"error":{"code":{code},"message":{detail}}}"#,
    result: Some(("repeatability-result", "accepted", "rejected")),
    statuses: &[(Code::KeyReused, 400), (Code::RequestTooOld, 412)],
    settings: Settings {
        key_from: Some(&["header:repeatability-request-id"]),
        syntax: Some(Syntax::Bare),
        request_time_header: Some("repeatability-first-sent"),
        request_age_max: Some(Duration::from_secs(5 * 60)),
        ..NOTHING
    },
    ..IETF
};

/// Events that a provider delivers at least once, by the id it gives each.
const EVENTS: Settings = Settings {
    syntax: Some(Syntax::Bare),
    methods: Some(POST),
    required: Some(POST),
    // Whoever delivers is known by a signature that only the service can verify.
    scope: Some(Scope::Only(&["route"])),
    anonymous: Some(Anonymous::Shared),
    retention: Some(EVENT_RETENTION),
    release: Some(EVENT_NOT_PROCESSED),
    ..NOTHING
};

const STANDARD_WEBHOOKS: Entry = Entry {
    name: "standard-webhooks",
    version: "1.0",
    settings: Settings { key_from: Some(&["header:webhook-id"]), ..EVENTS },
    ..IETF
};

const GITHUB_WEBHOOKS: Entry = Entry {
    name: "github-webhooks",
    version: "REST API 2022-11-28",
    settings: Settings { key_from: Some(&["header:x-github-delivery"]), ..EVENTS },
    ..IETF
};

const SHOPIFY_WEBHOOKS: Entry = Entry {
    name: "shopify-webhooks",
    version: "Admin API 2025-10",
    settings: Settings { key_from: Some(&["header:x-shopify-webhook-id"]), ..EVENTS },
    ..IETF
};

const STRIPE_WEBHOOKS: Entry = Entry {
    name: "stripe-webhooks",
    version: "API v1",
    settings: Settings {
        key_from: Some(&["json:/id"]),
        // How many deliveries are outstanding, which differs from one to the next.
        ignore: Some(&["/pending_webhooks"]),
        ..EVENTS
    },
    ..IETF
};

impl Entry {
    /// The entry with its texts read. A test reads all of them.
    pub(super) fn dialect(&self) -> Dialect {
        let owned =
            |list: &[(Code, &'static str)]| list.iter().map(|(code, own)| (*code, (*own).into())).collect();
        Dialect {
            name: self.name.into(),
            version: self.version.into(),
            content_type: self.content_type.into(),
            body: self.body.into(),
            replayed: HeaderName::from_static(self.replayed),
            replayed_member: self.replayed_member.map(Into::into),
            echo: self.echo.map(HeaderName::from_static),
            result: self.result.map(|(name, accepted, rejected)| ResultHeader {
                name: HeaderName::from_static(name),
                accepted: HeaderValue::from_static(accepted),
                rejected: HeaderValue::from_static(rejected),
            }),
            statuses: self.statuses.to_vec(),
            codes: owned(self.codes),
            kind: self.kind.into(),
            kinds: owned(self.kinds),
            preset: self.settings.preset(),
        }
    }
}

impl Settings {
    fn preset(&self) -> Preset {
        Preset {
            key_from: self.key_from.map(read),
            syntax: self.syntax,
            key_chars_min: self.key_chars_min,
            key_chars_max: self.key_chars_max,
            methods: self.methods.map(<[_]>::to_vec),
            required: self.required.map(<[_]>::to_vec),
            scope: self.scope.map(|scope| match scope {
                Scope::Only(sources) => PresetScope::Only(read(sources)),
                Scope::Also(sources) => PresetScope::Also(read(sources)),
            }),
            anonymous: self.anonymous,
            retention: self.retention,
            on_expired: self.on_expired,
            release: self.release.map(<[_]>::to_vec),
            unknown: self.unknown.map(<[_]>::to_vec),
            on_5xx: self.on_5xx,
            request_time_header: self.request_time_header.map(HeaderName::from_static),
            request_age_max: self.request_age_max,
            body: self.body,
            ignore: self.ignore.map(read),
            headers: self.headers.map(read),
        }
    }
}

fn read<T: std::str::FromStr>(texts: &[&str]) -> Vec<T> {
    let read = |text: &&str| text.parse().ok().expect("a text of the table can be read");
    texts.iter().map(read).collect()
}
