//! The table itself, in the order of the reference.

use std::collections::BTreeMap;

use super::Kind::*;
use super::Shape::*;
use super::Standing::{self, Refused, Unused, Used};
use super::{Kind, Setting, TableOf};
use crate::config::secret;
use crate::config::tree::Node;
use crate::config::value::{self, Read};

/// Every table, in the order of the reference.
pub(in crate::config) const TABLES: &[TableOf] = &[
    TableOf { path: "", shape: One, meaning: "Where requests come in and go, and where records are kept." },
    TableOf { path: "policy", shape: One, meaning: "What holds where no route says otherwise." },
    TableOf { path: "policy.fingerprint", shape: One, meaning: "What counts as the same request." },
    TableOf {
        path: "route",
        shape: List,
        meaning: "Requests with a policy or a service of their own. The first in the file that matches wins. Every setting of `[policy]` and `[policy.fingerprint]` may stand here too.",
    },
    TableOf { path: "background", shape: One, meaning: "What goes on behind the requests." },
    TableOf { path: "tls", shape: One, meaning: "TLS for clients. Without it they come in clear." },
    TableOf {
        path: "jwt",
        shape: One,
        meaning: r#"How tokens are verified, for `scope = ["jwt:CLAIM"]`. Expired ones are refused, with 60 s of leeway."#,
    },
    TableOf {
        path: "admin_token",
        shape: List,
        meaning: "Who may use the admin port from elsewhere, with `Authorization: Bearer`.",
    },
    TableOf {
        path: "log",
        shape: One,
        meaning: "What is logged, on stderr. Keys are shown as a short digest, secrets never.",
    },
    TableOf { path: "limits", shape: One, meaning: "Limits by scope and in all." },
    TableOf { path: "encryption", shape: One, meaning: "Encryption of what is stored." },
    TableOf {
        path: "webhooks",
        shape: Named,
        meaning: "Who may tell what became of unknown records, by signed requests to the admin port.",
    },
    TableOf { path: "destinations", shape: Named, meaning: "Where messages of the outbox are delivered." },
];

/// Every setting, in the order of the reference.
pub(in crate::config) const SETTINGS: &[Setting] = &[
    // Outside any table.
    holds(
        "listen",
        Address,
        r#""127.0.0.1:8080""#,
        "Where clients come in. Port 0 picks a free one. HTTP/1.1 and HTTP/2.",
    ),
    holds(
        "admin",
        Address,
        r#""127.0.0.1:8081""#,
        "Where operators come in. An address that is not loopback needs an `[[admin_token]]`.",
    ),
    open(
        "upstream",
        Service,
        r#""http://127.0.0.1:3000""#,
        "The service behind the gateway. Its path, where it has one, goes in front of the request's.",
    ),
    holds(
        "upstream_protocol",
        Words(&["auto", "http1", "http2"]),
        r#""auto""#,
        "Which HTTP is spoken to upstreams. `auto`: HTTP/1.1 in clear, what both sides offer over TLS. `http2` in clear is with prior knowledge.",
    ),
    open(
        "upstream_ca",
        File,
        r#""/etc/onlyonce/upstream-ca.pem""#,
        "Certificates in PEM that upstreams' certificates are checked against, instead of the system's.",
    ),
    holds(
        "store",
        Store,
        r#""sqlite:onlyonce.db""#,
        "Where records are kept: `sqlite:PATH`, one file, or `memory:`, forgotten when the process ends.",
    ),
    holds(
        "expired",
        Words(&["delete", "keep"]),
        r#""delete""#,
        "What becomes of expired records: deleted, or kept in an archive out of replay's reach.",
    ),
    holds("service", Text, r#""""#, "Part of every scope: services that share a store do not share keys."),
    holds(
        "stop_after",
        Span,
        r#""25s""#,
        "How long a stop waits for what is under way before it is handed over as unknown or retryable, by its effects.",
    ),
    holds(
        "trusted_from",
        Networks,
        r#"["127.0.0.0/8", "::1"]"#,
        "The proxies whose `trusted:` headers are believed.",
    ),
    // [policy]
    holds(
        "policy.mode",
        Words(&["observe", "enforce"]),
        r#""enforce""#,
        "`observe`: every request goes upstream as if we were not there, and what would have been decided is counted. `enforce`: it happens.",
    ),
    holds(
        "policy.dialect",
        Words(&["ietf", "stripe", "conflict"]),
        r#""ietf""#,
        "The shape of refusals and markers, and a preset of settings: see [dialects](#dialects).",
    ),
    holds("policy.header", Header, r#""Idempotency-Key""#, "The header that carries the key."),
    holds(
        "policy.syntax",
        Words(&["either", "sf-string", "bare"]),
        r#""either""#,
        r#"`either`: `"abc"` and `abc` name one key. `sf-string`: only in double quotes. `bare`: a quote is a character like any other."#,
    ),
    holds(
        "policy.methods",
        Methods,
        r#"["POST", "PATCH", "PUT", "DELETE"]"#,
        "The methods that are covered. Safe methods cannot be.",
    ),
    holds(
        "policy.required",
        Required,
        "false",
        "The methods that must carry a key: 400 without. `true`: POST and PATCH.",
    ),
    holds("policy.key_chars_min", Count, "1", "The fewest characters of a key. 16 keeps counters out."),
    holds("policy.key_chars_max", Count, "255", "The most characters of a key."),
    holds(
        "policy.personal_data",
        Words(&["allow", "warn", "refuse"]),
        r#""warn""#,
        "What becomes of a key that looks like an e-mail address, a phone or card number: nobody looks, a log line with a short digest, or 400.",
    ),
    holds(
        "policy.scope",
        Sources,
        r#"["header:authorization"]"#,
        "What tells callers apart. `header:NAME`: a credential, kept only as a digest. `trusted:NAME`: a header set by a proxy of `trusted_from`. `jwt:CLAIM`: a claim of a token that `[jwt]` verified. `certificate`: the client's, verified by `tls.client_ca`. `route`: one key on two routes is two operations.",
    ),
    holds(
        "policy.anonymous",
        Words(&["refuse", "shared"]),
        r#""refuse""#,
        "What becomes of a caller that cannot be told apart: 401, or one scope for all of them.",
    ),
    holds(
        "policy.effects",
        Words(&["local", "keyed", "queryable", "opaque"]),
        r#""opaque""#,
        "What the work touches. Decides what may be done when an attempt is lost: see [choosing effects](guide.md#choosing-effects).",
    ),
    holds(
        "policy.downstream_retention",
        Span,
        r#""23h""#,
        "Keyed work: how long downstream surely remembers the key, from its first use.",
    ),
    holds(
        "policy.retention",
        Span,
        r#""24h""#,
        "How long a finished record is kept, from the end of its attempt. At least `1s`. Replays do not prolong it.",
    ),
    holds(
        "policy.on_expired",
        Words(&["run", "gone"]),
        r#""run""#,
        "What a key is after that: a new request, or 410 while the record is still there.",
    ),
    holds(
        "policy.lease",
        Span,
        r#""30s""#,
        "How long an attempt is presumed alive. Renewed at half. At least `1s`.",
    ),
    holds(
        "policy.deadline",
        Span,
        r#""5m""#,
        "When an attempt ends, renewed or not; also how long the upstream may take. At least the lease.",
    ),
    holds(
        "policy.horizon",
        Span,
        r#""30s""#,
        "How long after the deadline an effect may still turn up downstream. Counts for verdicts, which a later release brings.",
    ),
    holds(
        "policy.in_flight",
        Words(&["refuse", "accept", "wait"]),
        r#""refuse""#,
        "Duplicates of what still runs: 409, 202 with the place to ask, or they wait. A client may always ask to wait with `Prefer: wait=N`.",
    ),
    holds("policy.wait_max", Span, r#""10s""#, "The longest wait."),
    holds(
        "policy.accept",
        Words(&["never", "allowed", "always"]),
        r#""never""#,
        "Whether work is taken over and answered with 202 at once. Only `never` is in this release.",
    ),
    holds(
        "policy.release",
        Statuses,
        "[401, 403, 425, 429]",
        "Nothing was done: the answer is passed on and the key may be tried again. After 401 and 403 the record is kept for 5 minutes only.",
    ),
    holds(
        "policy.unknown",
        Statuses,
        "[408, 502, 504]",
        "Doubt: unknown, or retryable where running again is safe.",
    ),
    holds(
        "policy.on_5xx",
        Words(&["retry", "store", "unknown"]),
        r#""retry""#,
        "Any other 5xx: nothing was done, it is the answer, or doubt. Queryable work is in doubt under `retry` too.",
    ),
    holds(
        "policy.store_down",
        Words(&["refuse", "run"]),
        r#""refuse""#,
        "While the store cannot be reached: 503 and no work, or the work runs unprotected and its answer says so.",
    ),
    holds("policy.store_timeout", Span, r#""2s""#, "How long the store may take. At most half the lease."),
    holds(
        "policy.request_bytes_max",
        Bytes,
        r#""1MiB""#,
        "The largest body of a keyed request: 413 above. It is held in memory.",
    ),
    holds(
        "policy.response_bytes_max",
        Bytes,
        r#""1MiB""#,
        "The largest answer that is kept, body and headers. Larger ones are passed on whole and not replayed.",
    ),
    holds(
        "policy.not_replayed",
        Headers,
        r#"["date", "age", "set-cookie", "authorization", "authentication-info", "proxy-authentication-info", "www-authenticate", "retry-after", "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "server-timing"]"#,
        "Headers of the first answer that were true only then: a replay leaves them out. What is about one connection (`connection` and what it names, `keep-alive`, `te`, `trailer`, `transfer-encoding`, `upgrade` …) is never kept.",
    ),
    open(
        "policy.request_time_header",
        Header,
        r#""X-Request-Time""#,
        "The header that says when the client made the request.",
    )
    .is(Refused),
    open("policy.request_age_max", Span, r#""5m""#, "How old such a request may be.").is(Refused),
    // [policy.fingerprint]
    holds(
        "policy.fingerprint.body",
        Words(&["auto", "bytes"]),
        r#""auto""#,
        "`auto`: JSON, form and multipart bodies by what they say. `bytes`: always by their bytes.",
    ),
    holds(
        "policy.fingerprint.ignore",
        Pointers,
        "[]",
        "JSON Pointers to members that do not count, such as `/client_time`.",
    ),
    holds("policy.fingerprint.headers", Headers, r#"["if-match"]"#, "Headers that count."),
    holds(
        "policy.fingerprint.secrets",
        Secrets,
        "[]",
        "With one, fingerprints are HMACs. The first signs, all verify.",
    ),
    // [[route]]
    open(
        "route.match",
        Pattern,
        r#""POST /payments/*""#,
        "A method, or none for all, and a path: `*` is one segment, `**` at the end the rest. `/b/**` also matches `/b`.",
    ),
    open(
        "route.upstream",
        Service,
        r#""http://127.0.0.1:3001""#,
        "Where these requests go, instead of `upstream`.",
    ),
    open(
        "route.upstream_protocol",
        Words(&["auto", "http1", "http2"]),
        r#""http2""#,
        "Which HTTP is spoken there, instead of `upstream_protocol`.",
    ),
    open(
        "route.probe",
        Url,
        r#""http://127.0.0.1:3001/probe""#,
        "Where to ask whether queryable work happened.",
    )
    .is(Unused(url)),
    // [background]
    holds("background.sweep_every", Span, r#""5s""#, "How often lapsed leases are looked for."),
    holds("background.reap_every", Span, r#""30s""#, "How often expired records are deleted."),
    holds("background.reap_batch", Count, "200", "How many are deleted at once."),
    holds("background.reconcile_first", Span, r#""1s""#, "When an unknown record is asked about first.")
        .is(Unused(span)),
    holds("background.reconcile_max", Span, r#""5m""#, "The longest pause between two questions.")
        .is(Unused(span)),
    holds(
        "background.reconcile_tries_max",
        Count,
        "20",
        "After how many questions a record is flagged as a dead letter.",
    )
    .is(Unused(count)),
    holds("background.accepted_at_once", Count, "64", "How much accepted work runs at once.")
        .is(Unused(count)),
    // [tls]
    open(
        "tls.cert",
        File,
        r#""/etc/onlyonce/cert.pem""#,
        "The certificate and those between it and a root, in PEM.",
    ),
    open("tls.key", File, r#""/etc/onlyonce/key.pem""#, "Its private key, in PEM."),
    open(
        "tls.client_ca",
        File,
        r#""/etc/onlyonce/client-ca.pem""#,
        r#"Who issues clients' certificates, in PEM. With it a client may show one, for `scope = ["certificate"]`."#,
    ),
    // [jwt]
    open(
        "jwt.keys",
        Secrets,
        r#"["file:/etc/onlyonce/jwt.pem"]"#,
        "What tokens are signed with, tried in order: HS256 secrets as text, RS256 and ES256 public keys in PEM.",
    ),
    open(
        "jwt.algorithms",
        WordList(&["HS256", "RS256", "ES256"]),
        r#"["RS256"]"#,
        "The algorithms that are accepted; those that the keys are for, where this is not set. A secret in text verifies HS256 only, a key in PEM never does.",
    ),
    open(
        "jwt.issuer",
        Text,
        r#""https://login.example.com""#,
        "What `iss` must be; any, where this is not set.",
    ),
    open("jwt.audience", Text, r#""payments""#, "What `aud` must contain; any, where this is not set."),
    // [[admin_token]]
    open("admin_token.token", Secret, r#""env:ADMIN_TOKEN""#, "The token."),
    holds(
        "admin_token.role",
        Words(&["read", "operate"]),
        r#""read""#,
        "`read`: look. `operate`: look and change.",
    ),
    open("admin_token.name", Text, r#""on-call""#, "Whose it is, for logs and the audit."),
    // [log]
    holds("log.filter", Filter, r#""info""#, "A level, or levels by module: `info,onlyonce=debug`."),
    holds("log.format", Words(&["text", "json"]), r#""text""#, "For people, or a JSON object a line."),
    // [limits]
    open("limits.keys_per_second", Count, "100", "New keys a second, of one scope.").is(Refused),
    open("limits.keys_per_second_total", Count, "1000", "New keys a second, of all scopes.").is(Refused),
    open("limits.keys_alive", Count, "100", "Records that are kept, of one scope.").is(Refused),
    open("limits.keys_alive_total", Count, "1000", "Records that are kept, of all scopes.").is(Refused),
    open("limits.lookups_per_second", Count, "100", "Requests a second with keys that exist, of one scope.")
        .is(Refused),
    open(
        "limits.lookups_per_second_total",
        Count,
        "1000",
        "Requests a second with keys that exist, of all scopes.",
    )
    .is(Refused),
    open("limits.in_flight", Count, "100", "Keyed requests under way, of one scope.").is(Refused),
    open("limits.in_flight_total", Count, "1000", "Keyed requests under way, of all scopes.").is(Refused),
    // [encryption]
    open(
        "encryption.keys",
        Secrets,
        r#"["env:ENCRYPTION_KEY"]"#,
        "Base64 of 32 bytes each. The first encrypts, all decrypt.",
    )
    .is(Refused),
    // [webhooks.NAME]
    open(
        "webhooks.*.secrets",
        Secrets,
        r#"["env:WEBHOOK_SECRET"]"#,
        "What its requests are signed with; all verify.",
    )
    .is(Unused(secrets)),
    open("webhooks.*.token_pointer", Pointer, r#""/token""#, "Where its body has the token.")
        .is(Unused(pointer)),
    open("webhooks.*.scope_pointer", Pointer, r#""/scope""#, "Where its body has the scope.")
        .is(Unused(pointer)),
    open("webhooks.*.key_pointer", Pointer, r#""/key""#, "Where its body has the key.").is(Unused(pointer)),
    open("webhooks.*.verdict_pointer", Pointer, r#""/verdict""#, "Where its body has the verdict.")
        .is(Unused(pointer)),
    // [destinations.NAME]
    open("destinations.*.url", Url, r#""https://example.com/hook""#, "Where its messages are sent.")
        .is(Unused(url)),
    open(
        "destinations.*.secrets",
        Secrets,
        r#"["env:DESTINATION_SECRET"]"#,
        "What its messages are signed with; the first signs.",
    )
    .is(Unused(secrets)),
    open("destinations.*.timeout", Span, r#""10s""#, "How long a delivery may take.").is(Unused(span)),
    open("destinations.*.attempts_max", Count, "10", "After how many deliveries a message is a dead letter.")
        .is(Unused(count)),
];

/// A setting with a default.
const fn holds(path: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Setting {
    Setting { path, kind, default: Some(default), example: default, meaning, standing: Used }
}

/// A setting without one.
const fn open(path: &'static str, kind: Kind, example: &'static str, meaning: &'static str) -> Setting {
    Setting { path, kind, default: None, example, meaning, standing: Used }
}

impl Setting {
    const fn is(mut self, standing: Standing) -> Self {
        self.standing = standing;
        self
    }
}

type Environment<'a> = BTreeMap<&'a str, &'a str>;

fn url(node: &Node, _: &Environment<'_>) -> Read<()> {
    value::url(node).map(drop)
}

fn span(node: &Node, _: &Environment<'_>) -> Read<()> {
    value::span(node).map(drop)
}

fn count(node: &Node, _: &Environment<'_>) -> Read<()> {
    value::count(node).map(drop)
}

fn pointer(node: &Node, _: &Environment<'_>) -> Read<()> {
    value::parsed::<onlyonce::fingerprint::Pointer>(node).map(drop)
}

fn secrets(node: &Node, environment: &Environment<'_>) -> Read<()> {
    value::list(node, "[\"env:NAME\"]", |node| secret::read(node, environment)).map(drop)
}
