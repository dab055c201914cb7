//! The endpoints of the admin port: the one table from which requests are routed, judged and described.
//!
//! A path that is not in the table is not served, and what the table says of an endpoint (who may ask, which parameters it
//! takes, which refusals it knows) is what OpenAPI says of it.

use http::Method;

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
    Audit,
    Events,
    Overview,
    OpenApi,
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
            Self::Audit => "listAudit",
            Self::Events => "watchEvents",
            Self::Overview => "showOverview",
            Self::OpenApi => "describe",
        }
    }

    /// What the audit log calls it, where it is in there.
    pub(super) const fn action(self) -> Option<&'static str> {
        match self {
            Self::Response => Some("read_response"),
            Self::Verdict => Some("verdict"),
            Self::Forget => Some("forget"),
            Self::Purge => Some("purge"),
            Self::Healthz
            | Self::Readyz
            | Self::Metrics
            | Self::Keys
            | Self::Key
            | Self::Audit
            | Self::Events
            | Self::Overview
            | Self::OpenApi => None,
        }
    }
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everybody.
    Open,
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
}

impl Endpoint {
    /// Whether it changes something: then the origin of a request counts.
    pub(super) fn is_change(&self) -> bool {
        self.method != Method::GET
    }

    /// Every refusal it knows.
    pub(super) fn codes(&self) -> Vec<Code> {
        let mut codes = Vec::new();
        if let Access::Needs(role) = self.access {
            codes.extend([Code::RequestInvalid, Code::Unauthorized, Code::HostRefused]);
            match role {
                Role::Read => {}
                Role::Operate => codes.push(Code::Forbidden),
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
    says: "Where to go on: `next` of the page before, asked for with the same filters. Good for an hour.",
};
const LIMIT: Parameter =
    Parameter { name: "limit", kind: Kind::Limit, says: "How many items a page has at most." };
const FORCE: Parameter = Parameter {
    name: "force",
    kind: Kind::Flag,
    says: "Insist: against a lease that lives, an early hour, or doubt.",
};
const DRY_RUN: Parameter = Parameter {
    name: "dry_run",
    kind: Kind::Flag,
    says: "Answer as the change itself would, with the result `would-apply`, and write nothing, not even an audit entry.",
};
const REASON: Parameter =
    Parameter { name: "reason", kind: Kind::Reason, says: "Why, for the audit log. Mandatory." };
const STATE: Parameter = Parameter {
    name: "state",
    kind: Kind::Word(&["pending", "running", "completed", "retryable", "unknown"]),
    says: "Only records in this state. `unknown` comes with the oldest first.",
};

const AS: Header = Header {
    name: "Onlyonce-As",
    says: "What the person calls itself. It is in the audit log beside the token's name; nobody verifies it.",
};
const IF_MATCH: Header = Header {
    name: "If-Match",
    says: "The revision that the record must still have, in quotes: `revision` of the record, or its ETag.",
};
const LAST_EVENT_ID: Header = Header {
    name: "Last-Event-ID",
    says: "The id of the last event that was seen. The stream goes on after it, or begins with `resync`.",
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
        description: "A page may be shorter than its limit and still have a next one. Following `next` shows everything that was there from the first page to the last exactly once.",
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
                says: "What one has in hand: a whole key or the beginning of one (from 3 characters), a whole Onlyonce-Token, a scope or a record's id in hex or the beginning of one (from 8 digits), a whole label. Whole ones come first in a page.",
            },
            Parameter {
                name: "dead_letter",
                kind: Kind::Flag,
                says: "`true`: only records that the reconciler has given up on. `false`: only the others.",
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
        summary: "One record with its time line and what may be done about it",
        description: "`why` is a sentence for people, `actions` is what the server would say now to each order without force.",
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
        description: "Its status, headers and body, marked with `Idempotent-Replayed: true`. That somebody looked is in the audit log before the answer is sent.",
        query: &[],
        headers: &[AS],
        body: None,
        answer: Answer::Stored,
        refusals: &[Code::RecordNotFound, Code::StoreUnavailable],
    },
    Endpoint {
        name: Name::Verdict,
        method: Method::POST,
        path: "/v1/keys/{scope}/{key}/verdict",
        access: Access::Needs(Role::Operate),
        summary: "Say what became of a record's work",
        description: "`happened`: retries get the given response, and nothing runs again. `did-not-happen`: the next retry runs the work. `unknown`: the probe is asked at once.",
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
            Code::StoreUnavailable,
        ],
    },
    Endpoint {
        name: Name::Forget,
        method: Method::DELETE,
        path: "/v1/keys/{scope}/{key}",
        access: Access::Needs(Role::Operate),
        summary: "Forget a key: it is as if it had never been used",
        description: "Answered once no node can replay it any more, after some seconds. A retry runs the work again.",
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
        summary: "Forget every key of a scope, and erase what is left of them",
        description: "Records that run or whose outcome is unknown are kept unless forced. In older audit entries of the scope, key and label are erased. Cut off, it is ordered again and goes on.",
        query: &[REASON, FORCE, DRY_RUN],
        headers: &[AS],
        body: None,
        answer: Answer::Json("Purged"),
        refusals: &[Code::StoreUnavailable],
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
                says: "Only what this token, or `local`, ordered.",
            },
            Parameter {
                name: "action",
                kind: Kind::Word(&[
                    "verdict",
                    "forget",
                    "purge",
                    "redrive",
                    "discard",
                    "read_response",
                    "read_payload",
                    "reload",
                ]),
                says: "Only this action.",
            },
            Parameter { name: "scope", kind: Kind::Scope, says: "Only about this scope, in hex." },
            Parameter { name: "key", kind: Kind::Text(1_000), says: "Only about this key." },
            Parameter { name: "after", kind: Kind::Moment, says: "Only from this moment on." },
            Parameter { name: "before", kind: Kind::Moment, says: "Only before this moment." },
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
        description: "`hello` first; `record` when a record became unknown, was settled, forgotten or given up on; `change` for each entry of the audit log; `figures` every 5 s and soon after the others; `resync` where events were missed.",
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
];

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
