//! The endpoints of the admin port: the one table from which requests are routed, judged and described.
//!
//! A path that is not in the table is not served, and what the table says of an endpoint (who may ask, which parameters it
//! takes, which refusals it knows) is what OpenAPI says of it.

use http::Method;

use super::audit::ACTIONS;
use super::parameter::{Kind, Parameter};
use super::refusal::Code;
use crate::config::Role;

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) name: Name,
    pub(super) method: Method,
    /// Where it is, with its parameters in braces.
    pub(super) path: &'static str,
    pub(super) access: Access,
    /// What it does, in one line.
    pub(super) summary: &'static str,
    /// More about it.
    pub(super) description: &'static str,
    pub(super) query: &'static [Parameter],
    /// Headers it looks at, beside those that every request has.
    pub(super) headers: &'static [Header],
    /// The schema of the body it takes.
    pub(super) body: Option<&'static str>,
    pub(super) answer: Answer,
    /// Refusals of its own, beside those that follow from the rest of the entry.
    pub(super) refusals: &'static [Code],
}

/// Every endpoint, by name. Also its `operationId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Healthz,
    Readyz,
    Metrics,
    Keys,
    Key,
    Response,
    Verdict,
    Forget,
    Purge,
    Messages,
    Message,
    Payload,
    Redrive,
    RedriveMany,
    Discard,
    Audit,
    Events,
    Overview,
    OpenApi,
    Page,
    Script,
    Style,
    Icon,
}

impl Name {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Readyz => "readyz",
            Self::Metrics => "metrics",
            Self::Keys => "listKeys",
            Self::Key => "showKey",
            Self::Response => "showResponse",
            Self::Verdict => "giveVerdict",
            Self::Forget => "forgetKey",
            Self::Purge => "purgeScope",
            Self::Messages => "listMessages",
            Self::Message => "showMessage",
            Self::Payload => "showPayload",
            Self::Redrive => "redriveMessage",
            Self::RedriveMany => "redriveMessages",
            Self::Discard => "discardMessage",
            Self::Audit => "listAudit",
            Self::Events => "watchEvents",
            Self::Overview => "showOverview",
            Self::OpenApi => "describe",
            Self::Page => "showPage",
            Self::Script => "showScript",
            Self::Style => "showStyle",
            Self::Icon => "showIcon",
        }
    }

    /// What the audit log calls it, where it is in there.
    pub(super) const fn action(self) -> Option<&'static str> {
        match self {
            Self::Response => Some("read_response"),
            Self::Verdict => Some("verdict"),
            Self::Forget => Some("forget"),
            Self::Purge => Some("purge"),
            Self::Payload => Some("read_payload"),
            Self::Redrive | Self::RedriveMany => Some("redrive"),
            Self::Discard => Some("discard"),
            Self::Healthz
            | Self::Readyz
            | Self::Metrics
            | Self::Keys
            | Self::Key
            | Self::Messages
            | Self::Message
            | Self::Audit
            | Self::Events
            | Self::Overview
            | Self::OpenApi
            | Self::Page
            | Self::Script
            | Self::Style
            | Self::Icon => None,
        }
    }
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everybody.
    Open,
    /// Everybody once there are tokens: it holds no data, and asks for a token itself. Without tokens whoever may read.
    Page,
    /// Whoever has at least this role.
    Needs(Role),
}

/// A header that an endpoint looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) name: &'static str,
    pub(super) says: &'static str,
}

/// What an endpoint answers with 200.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// JSON of this schema.
    Json(&'static str),
    /// Text of this media type.
    Text(&'static str),
    /// Whatever was stored, with its own status and headers.
    Stored,
    /// The bytes of a message, with their media type.
    Payload,
}

impl Endpoint {
    /// Whether it changes something: then the origin of a request counts.
    pub(super) fn is_change(&self) -> bool {
        self.method != Method::GET
    }

    /// Every refusal it knows.
    pub(super) fn codes(&self) -> Vec<Code> {
        let mut codes = Vec::new();
        match self.access {
            Access::Open => {}
            Access::Page => codes.push(Code::HostRefused),
            Access::Needs(role) => {
                codes.extend([Code::RequestInvalid, Code::Unauthorized, Code::HostRefused]);
                match role {
                    Role::Read => {}
                    Role::Operate => codes.push(Code::Forbidden),
                }
            }
        }
        if self.is_change() {
            codes.extend([Code::OriginRefused, Code::ReasonMissing]);
        }
        if self.body.is_some() {
            codes.extend([Code::BodyTooLarge, Code::ContentType]);
        }
        codes.extend(self.refusals);
        codes
    }
}

const CURSOR: Parameter = Parameter {
    name: "cursor",
    kind: Kind::Text(1_000),
    says: "`next` of the previous page, with the same filters. Valid for an hour.",
};
const LIMIT: Parameter =
    Parameter { name: "limit", kind: Kind::Limit, says: "The maximum number of items on a page." };
const FORCE: Parameter = Parameter {
    name: "force",
    kind: Kind::Flag,
    says: "Override the refusals record_running, verdict_too_early and record_unknown.",
};
const DRY_RUN: Parameter = Parameter {
    name: "dry_run",
    kind: Kind::Flag,
    says: "Answer like the change itself, with the result `would-apply`, and write nothing, not even an audit entry.",
};
const REASON: Parameter =
    Parameter { name: "reason", kind: Kind::Reason, says: "Why, for the audit log. Required." };
const STATE: Parameter = Parameter {
    name: "state",
    kind: Kind::Word(&["pending", "running", "completed", "retryable", "unknown"]),
    says: "Only records in this state. `unknown` and `pending` are listed oldest first.",
};

const AS: Header = Header {
    name: "Onlyonce-As",
    says: "The person's name, for the audit log, beside the token's name. It is not verified.",
};
const IF_MATCH: Header = Header {
    name: "If-Match",
    says: "The revision that the record must still have, in quotes: `revision` of the record, or its ETag.",
};
const LAST_EVENT_ID: Header = Header {
    name: "Last-Event-ID",
    says: "The id of the last event that was received. The stream continues after it, or begins with `resync`.",
};

/// All endpoints.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        name: Name::Healthz,
        method: Method::GET,
        path: "/healthz",
        access: Access::Open,
        summary: "Whether the process is alive",
        description: "Nothing else is checked.",
        query: &[],
        headers: &[],
        body: None,
        answer: Answer::Json("Alive"),
        refusals: &[],
    },
    Endpoint {
        name: Name::Readyz,
        method: Method::GET,
        path: "/readyz",
        access: Access::Open,
        summary: "Whether keyed requests can be served",
        description: "503 with the same members while the store does not answer, or the node is being stopped.",
        query: &[],
        headers: &[],
        body: None,
        answer: Answer::Json("Readiness"),
        refusals: &[],
    },
    Endpoint {
        name: Name::Metrics,
        method: Method::GET,
        path: "/metrics",
        access: Access::Needs(Role::Read),
        summary: "Metrics in Prometheus' text format",
        description: "",
        query: &[],
        headers: &[],
        body: None,
        answer: Answer::Text("text/plain"),
        refusals: &[],
    },
    Endpoint {
        name: Name::Keys,
        method: Method::GET,
        path: "/v1/keys",
        access: Access::Needs(Role::Read),
        summary: "Records, filtered and searched",
        description: "A page may be shorter than its limit and still have a next one. Following `next` shows every record that exists from the first page to the last exactly once.",
        query: &[
            STATE,
            Parameter { name: "scope", kind: Kind::Scope, says: "Only records of this scope, in hex." },
            Parameter {
                name: "route",
                kind: Kind::Text(1_000),
                says: "Only records of this route, by its `match` text.",
            },
            Parameter {
                name: "q",
                kind: Kind::Text(1_000),
                says: "A search text: a key or its beginning (at least 3 characters), a whole Onlyonce-Token, a scope or a record's id in hex or its beginning (at least 8 digits), a whole label. Exact matches come first in a page.",
            },
            Parameter {
                name: "dead_letter",
                kind: Kind::Flag,
                says: "`true`: only records that the reconciler has given up on. `false`: only the others.",
            },
            Parameter {
                name: "expired",
                kind: Kind::Flag,
                says: "`true`: expired records instead, first those not deleted yet, then the archive, if the settings keep one.",
            },
            CURSOR,
            LIMIT,
        ],
        headers: &[],
        body: None,
        answer: Answer::Json("Keys"),
        refusals: &[Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Key,
        method: Method::GET,
        path: "/v1/keys/{scope}/{key}",
        access: Access::Needs(Role::Read),
        summary: "One record with its time line and the allowed actions",
        description: "`why` is a sentence for people, `actions` says for each change whether it would be allowed now, without force. `unreadable` names a missing encryption key: the record then has only its unencrypted parts.",
        query: &[],
        headers: &[],
        body: None,
        answer: Answer::Json("Record"),
        refusals: &[Code::RecordNotFound, Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Response,
        method: Method::GET,
        path: "/v1/keys/{scope}/{key}/response",
        access: Access::Needs(Role::Operate),
        summary: "The stored answer itself, as a replay",
        description: "Its status, headers and body, marked with `Idempotent-Replayed: true`. An audit entry is written before the answer is sent.",
        query: &[],
        headers: &[AS],
        body: None,
        answer: Answer::Stored,
        refusals: &[Code::RecordNotFound, Code::Undecryptable, Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Verdict,
        method: Method::POST,
        path: "/v1/keys/{scope}/{key}/verdict",
        access: Access::Needs(Role::Operate),
        summary: "Settle a record with a verdict",
        description: "`happened`: retries get the given response, and nothing runs again. `did-not-happen`: the next retry runs the work. `unknown`: the probe is called at once.",
        query: &[FORCE, DRY_RUN],
        headers: &[IF_MATCH, AS],
        body: Some("Verdict"),
        answer: Answer::Json("Judged"),
        refusals: &[
            Code::RecordNotFound,
            Code::RecordRunning,
            Code::VerdictTooEarly,
            Code::RecordSettled,
            Code::NothingToAsk,
            Code::RecordChanged,
            Code::Undecryptable,
            Code::StoreUnavailable,
        ],
    },
    Endpoint {
        name: Name::Forget,
        method: Method::DELETE,
        path: "/v1/keys/{scope}/{key}",
        access: Access::Needs(Role::Operate),
        summary: "Forget a key: it counts as never used",
        description: "The answer comes once no node can replay it any more, after some seconds. A retry runs the work again.",
        query: &[REASON, FORCE, DRY_RUN],
        headers: &[IF_MATCH, AS],
        body: None,
        answer: Answer::Json("Forgotten"),
        refusals: &[
            Code::RecordNotFound,
            Code::RecordRunning,
            Code::RecordUnknown,
            Code::RecordChanged,
            Code::StoreUnavailable,
        ],
    },
    Endpoint {
        name: Name::Purge,
        method: Method::DELETE,
        path: "/v1/scopes/{scope}",
        access: Access::Needs(Role::Operate),
        summary: "Forget every key of a scope, and erase archived records",
        description: "Running and unknown records are kept unless forced. In older audit entries of the scope, key and label are erased. If the request is cut off, send it again to continue.",
        query: &[REASON, FORCE, DRY_RUN],
        headers: &[AS],
        body: None,
        answer: Answer::Json("Purged"),
        refusals: &[Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Messages,
        method: Method::GET,
        path: "/v1/outbox",
        access: Access::Needs(Role::Read),
        summary: "Messages of the outbox",
        description: "Waiting and claimed messages are sorted by when they first fell due, delivered messages by when they were delivered, others by number. A page may be shorter than its limit and still have a next one.",
        query: &[
            Parameter {
                name: "state",
                kind: Kind::Word(&["waiting", "claimed", "delivered", "dead"]),
                says: "Only messages in this state.",
            },
            Parameter {
                name: "destination",
                kind: Kind::Text(1_000),
                says: "Only messages of this destination, by its name.",
            },
            CURSOR,
            LIMIT,
        ],
        headers: &[],
        body: None,
        answer: Answer::Json("Messages"),
        refusals: &[Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Message,
        method: Method::GET,
        path: "/v1/outbox/{id}",
        access: Access::Needs(Role::Read),
        summary: "One message with every failed delivery",
        description: "",
        query: &[],
        headers: &[],
        body: None,
        answer: Answer::Json("Message"),
        refusals: &[Code::MessageNotFound, Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Payload,
        method: Method::GET,
        path: "/v1/outbox/{id}/payload",
        access: Access::Needs(Role::Operate),
        summary: "The payload of a message",
        description: "The bytes, with their media type. An audit entry is written before they are sent. 404 once the message was delivered.",
        query: &[],
        headers: &[AS],
        body: None,
        answer: Answer::Payload,
        refusals: &[Code::MessageNotFound, Code::Undecryptable, Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Redrive,
        method: Method::POST,
        path: "/v1/outbox/{id}/redrive",
        access: Access::Needs(Role::Operate),
        summary: "Deliver a dead letter again",
        description: "It is due at once, with the same key, in its place within its group. The delivery number continues; `attempts_max` and `give_up_after` start again.",
        query: &[DRY_RUN],
        headers: &[AS],
        body: Some("Reason"),
        answer: Answer::Json("Redriven"),
        refusals: &[Code::MessageNotFound, Code::MessageNotDead, Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::RedriveMany,
        method: Method::POST,
        path: "/v1/outbox/redrive",
        access: Access::Needs(Role::Operate),
        summary: "Deliver the dead letters of a destination again",
        description: "The oldest first, each with its audit entry. With `dry_run` they are counted.",
        query: &[],
        headers: &[AS],
        body: Some("RedriveMany"),
        answer: Answer::Json("RedrivenMany"),
        refusals: &[Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Discard,
        method: Method::DELETE,
        path: "/v1/outbox/{id}",
        access: Access::Needs(Role::Operate),
        summary: "Delete a message",
        description: "It is not delivered any more, and its group continues.",
        query: &[REASON, DRY_RUN],
        headers: &[AS],
        body: None,
        answer: Answer::Json("Discarded"),
        refusals: &[Code::MessageNotFound, Code::MessageClaimed, Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Audit,
        method: Method::GET,
        path: "/v1/audit",
        access: Access::Needs(Role::Read),
        summary: "The audit log, newest first",
        description: "",
        query: &[
            Parameter {
                name: "who",
                kind: Kind::Text(1_000),
                says: "Only changes made with this token, or `local`.",
            },
            Parameter { name: "action", kind: Kind::Word(&ACTIONS), says: "Only this action." },
            Parameter { name: "scope", kind: Kind::Scope, says: "Only about this scope, in hex." },
            Parameter { name: "key", kind: Kind::Text(1_000), says: "Only about this key." },
            Parameter { name: "after", kind: Kind::Moment, says: "Only from this time on." },
            Parameter { name: "before", kind: Kind::Moment, says: "Only before this time." },
            CURSOR,
            LIMIT,
        ],
        headers: &[],
        body: None,
        answer: Answer::Json("AuditLog"),
        refusals: &[Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Events,
        method: Method::GET,
        path: "/v1/events",
        access: Access::Needs(Role::Read),
        summary: "What happens on this node, as server-sent events",
        description: "`hello` first; `record` when a record became unknown, was settled, forgotten or flagged as a dead letter; `change` for each entry of the audit log; `figures` every 5 s and soon after the others; `resync` if events were missed.",
        query: &[],
        headers: &[LAST_EVENT_ID],
        body: None,
        answer: Answer::Text("text/event-stream"),
        refusals: &[Code::StreamsTaken],
    },
    Endpoint {
        name: Name::Overview,
        method: Method::GET,
        path: "/v1/overview",
        access: Access::Needs(Role::Read),
        summary: "Whether anything is stuck, since when, and how the node is doing",
        description: "",
        query: &[],
        headers: &[],
        body: None,
        answer: Answer::Json("Overview"),
        refusals: &[Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::OpenApi,
        method: Method::GET,
        path: "/v1/openapi.json",
        access: Access::Needs(Role::Read),
        summary: "This description",
        description: "",
        query: &[],
        headers: &[],
        body: None,
        answer: Answer::Json("OpenApi"),
        refusals: &[],
    },
    of_the_page(Name::Page, "/", "text/html", "The dashboard"),
    of_the_page(Name::Script, "/assets/app.js", "text/javascript", "The dashboard's script"),
    of_the_page(Name::Style, "/assets/style.css", "text/css", "The dashboard's style sheet"),
    of_the_page(Name::Icon, "/assets/icon.svg", "image/svg+xml", "The dashboard's icon"),
];

/// A file of the dashboard.
const fn of_the_page(name: Name, path: &'static str, media: &'static str, summary: &'static str) -> Endpoint {
    Endpoint {
        name,
        method: Method::GET,
        path,
        access: Access::Page,
        summary,
        description: "",
        query: &[],
        headers: &[],
        body: None,
        answer: Answer::Text(media),
        refusals: &[],
    }
}

/// Every path, once.
pub(super) fn paths() -> Vec<&'static str> {
    let mut paths: Vec<_> = ENDPOINTS.iter().map(|endpoint| endpoint.path).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The endpoints of a path.
pub(super) fn at(path: &str) -> impl Iterator<Item = &'static Endpoint> {
    ENDPOINTS.iter().filter(move |endpoint| endpoint.path == path)
}

/// The methods of a path, as `Allow` has them.
pub(super) fn allowed(path: &str) -> String {
    let mut methods: Vec<_> = at(path).map(|endpoint| endpoint.method.as_str()).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods.join(", ")
}
