//! The table itself. An entry has the setting's name, its meaning, what it takes (`kind.rs`: this also reads the value and
//! refuses one that is wrong in itself), and its default or an example. It stands where its field is filled, so that a field
//! without an entry does not compile. What is wrong only together with other settings is found in `cross.rs`.
//!
//! To add a setting, add its field to the struct in `config.rs` and its entry here. In the reference it is where its entry is.

mod destination;
mod dialect;
pub(in crate::config) mod policy;
mod webhook;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderName;
use onlyonce::store::seal::{BadKeys, Keyring};
use onlyonce::store::sqlite::Expired;
use onlyonce::worker::Background;
use onlyonce::{Dialect, Limits, accepted};
use tracing_subscriber::filter::Targets;
use zeroize::{Zeroize, Zeroizing};

use super::form::{self, Form};
use super::kind::{
    ADDRESS, BYTES, CACHE, CERTIFICATE, COUNT, FLAG, Kind, List, PATTERN, PRIVATE_KEY, SECRET, SECRETS,
    SERVICE, SPAN, STORE, TEXT, URL, Whole, Words,
};
use super::{Shape, TableOf};
use crate::config::policy::Draft;
use crate::config::reader::Section;
use crate::config::secret::{self, Environment};
use crate::config::tree::Node;
use crate::config::value::{self, Read, Wrong, wrong};
use crate::config::{
    AdminToken, Algorithm, AmbiguousPaths, Config, Destination, Jwt, Listener, Log, LogFormat, PathCase,
    Probe, Probing, Protocol, Role, Route, Secret, Telemetry, Tls, Upstream, Webhook,
};
use crate::{caller, store};

/// Every table, in the order of the reference.
pub(in crate::config) const TABLES: &[TableOf] = &[
    TableOf { path: "", shape: Shape::One, meaning: "Addresses, the upstream and the store." },
    TableOf {
        path: "policy",
        shape: Shape::One,
        meaning: "The policy of all requests, unless a `[[route]]` overrides it.",
    },
    TableOf { path: "policy.fingerprint", shape: Shape::One, meaning: "What counts as the same request." },
    TableOf {
        path: "route",
        shape: Shape::List,
        meaning: "Requests with a different policy or upstream. The first route in the file that matches wins. Every setting of `[policy]` and `[policy.fingerprint]` may be used here too.",
    },
    TableOf {
        path: "dialects",
        shape: Shape::Named,
        meaning: "A dialect of your own, for `policy.dialect` and `route.dialect`: see [a dialect of your own](presets.md#a-dialect-of-your-own).",
    },
    TableOf { path: "background", shape: Shape::One, meaning: "The background workers." },
    TableOf {
        path: "listener",
        shape: Shape::One,
        meaning: "Limits for client connections: see [under attack](deploy.md#under-attack). A change needs a restart.",
    },
    TableOf {
        path: "tls",
        shape: Shape::One,
        meaning: "TLS for clients. Without it, connections are not encrypted.",
    },
    TableOf {
        path: "jwt",
        shape: Shape::One,
        meaning: r#"How tokens are verified, for `scope = ["jwt:CLAIM"]`. Expired tokens are refused, with 60 s of leeway."#,
    },
    TableOf {
        path: "admin_token",
        shape: Shape::List,
        meaning: "A token for the admin port, sent as `Authorization: Bearer`. Without any, only the machine itself may use the admin port.",
    },
    TableOf {
        path: "log",
        shape: Shape::One,
        meaning: "The log, on stderr. Keys are logged as a short digest, secrets never.",
    },
    TableOf {
        path: "telemetry",
        shape: Shape::One,
        meaning: "Traces and metrics for a collector: see [traces](deploy.md#traces). A change needs a restart.",
    },
    TableOf {
        path: "limits",
        shape: Shape::One,
        meaning: "Limits per scope, and with `_total` for all scopes together. Above a limit the answer is 429. None is set by default: see [limits](guide.md#limits).",
    },
    TableOf { path: "encryption", shape: Shape::One, meaning: "Encryption at rest." },
    TableOf {
        path: "webhooks",
        shape: Shape::Named,
        meaning: "A provider that settles unknown records by signed requests to `/v1/webhooks/NAME` on the admin port: see [webhooks](guide.md#stripe-webhooks).",
    },
    TableOf {
        path: "destinations",
        shape: Shape::Named,
        meaning: "Where messages of the outbox are delivered: see [messages that cannot be lost](guide.md#messages-that-cannot-be-lost).",
    },
];

/// All settings. They may only be used if no fault was found.
pub(in crate::config) fn config(top: &Section<'_>) -> Config {
    let listen = top
        .setting("listen", "The address for clients. Port 0 picks a free port. HTTP/1.1 and HTTP/2.")
        .with_default(&ADDRESS, r#""127.0.0.1:8080""#);
    let admin = admin(top);
    let upstream = upstream(top);
    let dialects = dialect::all(top);
    let draft = policy::laid_over(Draft::default(), &top.inner("policy"), &dialects);
    let mut config = Config {
        listen,
        admin,
        upstream_ca: upstream_ca(top),
        store: store(top),
        cache: cache(top),
        expired: expired(top),
        encryption: encryption(&top.inner("encryption")),
        service: top
            .setting("service", "Part of every scope: services that share a store do not share keys.")
            .with_default(&TEXT, r#""""#)
            .into(),
        stop_after: stop_after(top),
        trusted_from: top
            .setting("trusted_from", "The addresses of the proxies whose `trusted:` headers are accepted.")
            .with_default(
                &List(form::NETWORKS, r#"["10.0.0.0/8"]"#, value::network),
                r#"["127.0.0.0/8", "::1"]"#,
            ),
        path_case: top
            .setting("path_case", "How paths are compared with routes. `keep`: `/Payments` and `/payments` are different paths. `fold`: they are the same, as for a service that ignores case. The path is passed on unchanged.")
            .with_default(&Words(&[("keep", PathCase::Keep), ("fold", PathCase::Fold)]), r#""keep""#),
        ambiguous_paths: top
            .setting("ambiguous_paths", "Paths that a lenient service may treat like a path of another route: `//payments`, `/payments;x`, `/payments/`, `/Payments`, `/a/..;/payments`. `allow`: passed on. `refuse`: 400.")
            .with_default(
                &Words(&[("allow", AmbiguousPaths::Allow), ("refuse", AmbiguousPaths::Refuse)]),
                r#""allow""#,
            ),
        listener: listener(&top.inner("listener")),
        routes: top
            .tables("route")
            .iter()
            .map(|section| route(section, &upstream, &draft, &dialects))
            .collect(),
        default: Route { name: "*".into(), pattern: None, upstream, policy: draft.finish(), probe: None },
        background: background(top),
        probing: probing(&top.inner("background")),
        tls: tls(&top.inner("tls")),
        jwt: jwt(&top.inner("jwt")),
        admin_tokens: admin_tokens(top),
        log: log(&top.inner("log")),
        telemetry: telemetry(&top.inner("telemetry")),
        webhooks: webhooks(top),
        destinations: destinations(top),
        relay_every: relay_every(top),
        limits: limits(&top.inner("limits")),
    };
    if !top.inner("listener").has("buffered_bytes_max") {
        let least = config.request_bytes_max().saturating_mul(4);
        config.listener.buffered_bytes_max = config.listener.buffered_bytes_max.max(least);
    }
    for route in &mut config.routes {
        route.policy.reconcile_first = route.probe.as_ref().map(|_| config.probing.first);
    }
    config.background.accepted.pause_max = config.probing.max;
    config
}

/// How long clients may take, and how many there may be.
pub(in crate::config) fn listener(section: &Section<'_>) -> Listener {
    Listener {
        head_timeout: section
            .setting("head_timeout", "How long the head of a request may take from its first byte, or the preface of HTTP/2. After that the connection is closed.")
            .with_default(&TIMEOUT, r#""30s""#),
        body_timeout: section
            .setting("body_timeout", "How long the body of a keyed request may stall (then 408), and how long a client may read nothing of its answer (then the connection is closed). Such a body must also arrive at 1 KiB a second or more.")
            .with_default(&TIMEOUT, r#""60s""#),
        idle_timeout: section
            .setting("idle_timeout", "How long a connection may be idle. Must be longer than the time for which proxies keep idle connections, often 60 s: if the proxy closes first, no request is lost.")
            .with_default(&TIMEOUT, r#""75s""#),
        connections_max: section
            .setting("connections_max", "The maximum number of client connections; fewer if the process may not open three file descriptors for each. Above it, the connection that has been idle longest is closed for each new one; if none is idle, the new one is closed.")
            .with_default(&Whole::new(1, 1_000_000, 10_000), "10000"),
        buffered_bytes_max: section
            .setting("buffered_bytes_max", "The maximum number of bytes of request bodies in memory, for all running keyed requests together. Above it: 429, and nothing runs. If not set, at least four times the largest `request_bytes_max`.")
            .given(&BYTES, r#""256MiB""#)
            .unwrap_or(Listener::default().buffered_bytes_max),
    }
}

const TIMEOUT: Kind<Duration> = Kind(form::SPAN, some_time);

fn some_time(node: &Node, _: &Environment<'_>) -> Read<Duration> {
    let span = value::span(node)?;
    if span.is_zero() { wrong(&node.value, "gives clients no time; set at least 1s") } else { Ok(span) }
}

/// Where operators come in.
pub(in crate::config) fn admin(top: &Section<'_>) -> SocketAddr {
    top.setting(
        "admin",
        "The address of the admin port. An address that is not loopback needs an `[[admin_token]]`.",
    )
    .with_default(&ADDRESS, r#""127.0.0.1:8081""#)
}

/// Who signs the certificates of services and destinations.
pub(in crate::config) fn upstream_ca(top: &Section<'_>) -> Option<PathBuf> {
    top.setting(
        "upstream_ca",
        "CA certificates in PEM for upstreams, probes and destinations, instead of the system's.",
    )
    .optional(&CERTIFICATE, r#""/etc/onlyonce/upstream-ca.pem""#)
}

/// How long a stop waits.
pub(in crate::config) fn stop_after(top: &Section<'_>) -> Duration {
    top.setting("stop_after", "How long a stop waits for running requests. After that they become unknown or retryable, by their effects.")
        .with_default(&SPAN, r#""25s""#)
}

/// How often messages that are due are looked for.
pub(in crate::config) fn relay_every(top: &Section<'_>) -> Duration {
    top.inner("background")
        .setting("relay_every", "How often the relay looks for messages that are due. It also looks at once after a delivery, while there are more, and after this node stored a message.")
        .with_default(&EVERY, r#""1s""#)
}

/// Who may tell what became of unknown records.
pub(in crate::config) fn webhooks(top: &Section<'_>) -> Vec<Webhook> {
    top.named_tables("webhooks").iter().filter_map(webhook::webhook).collect()
}

/// Where messages are delivered.
pub(in crate::config) fn destinations(top: &Section<'_>) -> Vec<Destination> {
    top.named_tables("destinations").iter().filter_map(destination::destination).collect()
}

/// What becomes of expired records.
pub(in crate::config) fn expired(top: &Section<'_>) -> Expired {
    top.setting(
        "expired",
        "What happens to expired records. `delete`: they are deleted. `keep`: they are moved to an archive, and are not replayed.",
    )
    .with_default(&Words(&[("delete", Expired::Delete), ("keep", Expired::Keep)]), r#""delete""#)
}

/// Where records are kept.
pub(in crate::config) fn store(top: &Section<'_>) -> store::Url {
    top.setting(
        "store",
        "Where records are stored. `sqlite:PATH` is one file. `postgres://…` is a database that any number of nodes share, and so are `mysql://…`, `redis://…` and `dynamodb://…` (in builds with the features of those names). `memory:` is lost when the process ends.",
    )
    .with_default(&STORE, r#""sqlite:onlyonce.db""#)
}

/// The cache in front of the store.
pub(in crate::config) fn cache(top: &Section<'_>) -> Option<store::Cache> {
    top.setting(
        "cache",
        "A Redis in front of an SQL store that all nodes share: copies of completed records, so that a node replays what another one has already replayed without asking the database. It decides nothing and may be lost. See [Redis in front](engines.md#redis-in-front). A change needs a restart. In builds with the feature `redis`.",
    )
    .optional(&CACHE, r#""redis://127.0.0.1:6379""#)
}

const PROTOCOL: Words<Protocol> =
    Words(&[("auto", Protocol::Auto), ("http1", Protocol::Http1), ("http2", Protocol::Http2)]);

fn upstream(top: &Section<'_>) -> Upstream {
    let uri = top
        .setting(
            "upstream",
            "The service behind the gateway. If the URL has a path, it is put in front of the request's path.",
        )
        .required(
            &SERVICE,
            r#""http://127.0.0.1:3000""#,
            "is missing; give --upstream http://HOST:PORT, or set it in the file",
        );
    Upstream {
        // Without one there is a fault, and the settings are not used.
        uri: uri.unwrap_or_default(),
        protocol: top
            .setting("upstream_protocol", "The HTTP version for upstreams. `auto`: HTTP/1.1 without TLS, and with TLS the version that both sides offer. `http2` without TLS uses prior knowledge.")
            .with_default(&PROTOCOL, r#""auto""#),
    }
}

/// `upstream` and `draft` are what holds where the route says nothing.
fn route(section: &Section<'_>, upstream: &Upstream, draft: &Draft, dialects: &[Dialect]) -> Route {
    let pattern = section
        .setting("match", "A method and a path; without a method, all methods. `*` is one segment, `**` at the end is the rest. `/b/**` also matches `/b`.")
        .required(
            &PATTERN,
            r#""POST /payments/*""#,
            "is missing; write it like match = \"POST /payments/*\"",
        );
    let uri = section
        .setting("upstream", "The service for these requests, instead of the top-level `upstream`.")
        .optional(&SERVICE, r#""http://127.0.0.1:3001""#);
    let protocol = section
        .setting(
            "upstream_protocol",
            "The HTTP version for this service, instead of the top-level `upstream_protocol`.",
        )
        .optional(&PROTOCOL, r#""http2""#);
    let probe = probe(section);
    Route {
        name: section.route.clone().unwrap_or_default().into(),
        pattern,
        upstream: Upstream {
            uri: uri.unwrap_or_else(|| upstream.uri.clone()),
            protocol: protocol.unwrap_or(upstream.protocol),
        },
        policy: policy::laid_over(draft.clone(), &section.as_policy(), dialects).finish(),
        probe,
    }
}

fn probe(section: &Section<'_>) -> Option<Probe> {
    let uri = section
        .setting("probe", "The URL that says whether work with an unknown outcome happened: `GET` with `scope`, `key`, `token`, `attempt` and `route` in the query. See [writing a probe](guide.md#writing-a-probe).")
        .optional(&URL, r#""http://127.0.0.1:3001/probe""#);
    let headers = section
        .setting("probe_headers", "Headers for requests to the probe. A value may be a secret, `env:NAME` or `file:PATH`. Values are never shown.")
        .optional(&Kind(form::HEADER_TABLE, probe_headers), r#"{ authorization = "env:PROBE_AUTH" }"#);
    if section.has("probe_headers") && !section.has("probe") {
        section.warn("probe_headers", None, "has no effect without a probe; set probe");
    }
    Some(Probe { uri: uri?, headers: headers.unwrap_or_default() })
}

/// Headers that every question has from us, or that a connection has.
const NOT_OF_A_PROBE: [&str; 11] = [
    "accept",
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

fn probe_headers(node: &Node, environment: &Environment<'_>) -> Read<Vec<(HeaderName, Secret)>> {
    let read = |name: &str, node: &Node| {
        let told = |remedy: String| vec![Wrong { value: None, remedy: format!("{name} {remedy}") }];
        let header = name.parse::<HeaderName>();
        let header = header.map_err(|_| told("is not a header name; write it like authorization".into()))?;
        if NOT_OF_A_PROBE.contains(&header.as_str()) {
            return Err(told("is set by the gateway on every request to a probe; remove it".into()));
        }
        let secret = secret::or_text(node, environment)
            .map_err(|wrongs| wrongs.into_iter().flat_map(|wrong| told(wrong.remedy)).collect::<Vec<_>>())?;
        match http::HeaderValue::from_bytes(&secret.bytes) {
            Ok(_) => Ok((header, secret)),
            Err(_) => Err(told("has a value that is not allowed in a header; put it on one line".into())),
        }
    };
    let headers = value::members(node, r#"{ authorization = "env:PROBE_AUTH" }"#, read)?;
    Ok(headers.into_iter().map(|(_, header)| header).collect())
}

const EVERY: Kind<Duration> = Kind(form::SPAN, above_zero);

/// How often what goes on behind the requests comes round.
pub(in crate::config) fn background(top: &Section<'_>) -> Background {
    let section = &top.inner("background");
    Background {
        sweep_every: section
            .setting("sweep_every", "How often the sweeper looks for lapsed leases.")
            .with_default(&EVERY, r#""5s""#),
        reap_every: section
            .setting("reap_every", "How often the reaper deletes expired records.")
            .with_default(&EVERY, r#""30s""#),
        reap_batch: section
            .setting("reap_batch", "How many records the reaper deletes in one batch.")
            .with_default(&Whole::new(1, 100_000, 200), "200"),
        audit_retention: top
            .setting(
                "audit_retention",
                "How long entries of the audit log are kept. At least `1d`. They are deleted by age only.",
            )
            .with_default(&Kind(form::SPAN, at_least_a_day), r#""400d""#),
        delivered_retention: section
            .setting("delivered_retention", "How long delivered messages are kept, with the receiver's id. Until then a message with the same key is a duplicate. Undelivered messages are never deleted by age.")
            .with_default(&EVERY, r#""7d""#),
        accepted: accepted::Terms {
            at_once: section
                .setting("accepted_at_once", "How many accepted requests a node runs at once. While other scopes wait, no scope has more than half of them.")
                .with_default(&Whole::new(1, 10_000, 64), "64"),
            pending_max: top
                .setting("pending_max", "How many accepted requests may wait, for all scopes together. Above it: 429.")
                .with_default(&Whole::new(1, 1_000_000, 10_000), "10000"),
            pause_max: accepted::Terms::default().pause_max,
        },
    }
}

fn probing(section: &Section<'_>) -> Probing {
    Probing {
        first: section
            .setting("reconcile_first", "How long after a record became unknown its probe is first called.")
            .with_default(&EVERY, r#""1s""#),
        max: section
            .setting("reconcile_max", "The longest pause between two calls of a probe, and between two attempts of accepted work. Each pause is twice the one before, plus or minus up to a fifth at random.")
            .with_default(&EVERY, r#""5m""#),
        tries_max: section
            .setting("reconcile_tries_max", "After how many answers of \"unknown\" a record is flagged as a dead letter. Without answers it is flagged after as many of the longest pauses.")
            .with_default(&Whole::new(1, 1_000_000, 20), "20"),
        at_once: section
            .setting("probes_at_once", "How many probes a node calls at once; at most 4 of them on one host.")
            .with_default(&Whole::new(1, 1_024, 16), "16"),
    }
}

fn above_zero(node: &Node, _: &Environment<'_>) -> Read<Duration> {
    let span = value::span(node)?;
    if span.is_zero() { wrong(&node.value, "would run without a pause; set at least 1s") } else { Ok(span) }
}

fn at_least_a_day(node: &Node, _: &Environment<'_>) -> Read<Duration> {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let span = value::span(node)?;
    if span < DAY {
        wrong(&node.value, "is shorter than 1d; keep entries at least that long")
    } else {
        Ok(span)
    }
}

fn tls(section: &Section<'_>) -> Option<Tls> {
    for (name, other) in [("cert", "key"), ("key", "cert")] {
        if !section.is_empty() && !section.has(name) {
            let remedy = if section.has(other) {
                format!("is missing beside tls.{other}; set both")
            } else {
                "is missing; TLS needs tls.cert and tls.key".to_owned()
            };
            section.fault(name, None, remedy);
        }
    }
    let cert = section
        .setting("cert", "The server's certificate and its intermediate certificates, in PEM.")
        .optional(&CERTIFICATE, r#""/etc/onlyonce/cert.pem""#);
    let key = section
        .setting("key", "The certificate's private key, in PEM.")
        .optional(&PRIVATE_KEY, r#""/etc/onlyonce/key.pem""#);
    let client_ca = section
        .setting("client_ca", r#"The CA of clients' certificates, in PEM. With it a client may present a certificate, for `scope = ["certificate"]`."#)
        .optional(&CERTIFICATE, r#""/etc/onlyonce/client-ca.pem""#);
    Some(Tls { cert: cert?, key: key?, client_ca })
}

const ALGORITHM: [(&str, Algorithm); 3] =
    [("HS256", Algorithm::Hs256), ("RS256", Algorithm::Rs256), ("ES256", Algorithm::Es256)];

const ALGORITHMS: Form = Form("`HS256`, `RS256`, `ES256`", || form::words(ALGORITHM.map(|(name, _)| name)));

fn jwt(section: &Section<'_>) -> Option<Jwt> {
    let keys = section
        .setting("keys", "The keys that verify tokens, tried in order: HS256 secrets as text, RS256 and ES256 public keys in PEM.")
        .optional(&SECRETS, r#"["file:/etc/onlyonce/jwt.pem"]"#);
    if !section.is_empty() && (!section.has("keys") || keys.as_ref().is_some_and(Vec::is_empty)) {
        section.fault("keys", None, "has no key to verify tokens with; write keys = [\"file:PATH\"]");
    }
    let keys = keys.unwrap_or_default();
    let algorithms = section
        .setting("algorithms", "The algorithms that are accepted; if not set, those of the keys. A secret in text verifies HS256 only, a key in PEM never does.")
        .optional(
            &List(ALGORITHMS, r#"["RS256"]"#, |node| value::word(node, &ALGORITHM)),
            r#"["RS256"]"#,
        );
    let jwt = Jwt {
        algorithms: algorithms.unwrap_or_else(|| caller::algorithms(&keys)),
        keys,
        issuer: section
            .setting("issuer", "The required `iss`; if not set, any.")
            .optional(&TEXT, r#""https://login.example.com""#),
        audience: section
            .setting("audience", "What `aud` must contain; if not set, anything.")
            .optional(&TEXT, r#""payments""#),
    };
    (!section.is_empty()).then_some(jwt)
}

/// Who may use the admin port from other machines.
pub(in crate::config) fn admin_tokens(top: &Section<'_>) -> Vec<AdminToken> {
    let mut tokens: Vec<AdminToken> = Vec::new();
    for section in top.tables("admin_token") {
        let Some(token) = admin_token(&section) else { continue };
        if let Some(other) = tokens.iter().find(|other| other.name == token.name) {
            let remedy =
                format!("is also the name of token {}; use a different name for each", other.token.source);
            section.fault("name", token.name.clone(), remedy);
        }
        if tokens.iter().any(|other| other.token.bytes == token.token.bytes) {
            let remedy = "is the same secret as another token's; use a different secret for each";
            section.fault("token", token.token.source.clone(), remedy);
        }
        tokens.push(token);
    }
    tokens
}

fn admin_token(section: &Section<'_>) -> Option<AdminToken> {
    let token = section.setting("token", "The token.").required(
        &SECRET,
        r#""env:ADMIN_TOKEN""#,
        "is missing; write token = \"env:NAME\" or \"file:PATH\"",
    );
    let role = section
        .setting("role", "`read`: may read, except stored answers and payloads. `operate`: may read everything and make changes.")
        .with_default(&Words(&[("read", Role::Read), ("operate", Role::Operate)]), r#""read""#);
    let name = section
        .setting("name", "The owner's name, for logs and the audit log.")
        .optional(&TEXT, r#""on-call""#);
    Some(AdminToken { name: name.unwrap_or_else(|| section.path.clone()), token: token?, role })
}

pub(in crate::config) fn log(section: &Section<'_>) -> Log {
    Log {
        filter: section
            .setting("filter", "A level, or levels by module: `info,onlyonce=debug`.")
            .with_default(&Kind(form::DIRECTIVES, filter), r#""info""#),
        format: section
            .setting("format", "`text`: for people. `json`: one JSON object per line.")
            .with_default(&Words(&[("text", LogFormat::Text), ("json", LogFormat::Json)]), r#""text""#),
        decisions: section
            .setting("decisions", "Whether every keyed request is logged at `info`: the decision, the route, the key's digest, the attempt, the status, the added latency. Lines are written together, up to 20 ms late; `false` saves about a tenth of the CPU time of a replay.")
            .with_default(&FLAG, "true"),
    }
}

fn filter(node: &Node, _: &Environment<'_>) -> Read<String> {
    let text = value::text(node)?;
    match text.parse::<Targets>() {
        Ok(_) => Ok(text),
        Err(_) => {
            wrong(text, "is not a log filter; write a level, or levels by module, like info,onlyonce=debug")
        }
    }
}

fn telemetry(section: &Section<'_>) -> Telemetry {
    let telemetry = Telemetry {
        otlp: section
            .setting("otlp", "The URL of a collector for traces and metrics, by OTLP over HTTP. `/v1/traces` and `/v1/metrics` are appended. Without it nothing is traced.")
            .optional(&SERVICE, r#""http://127.0.0.1:4318""#),
        service_name: section
            .setting("service_name", "The name of this service at the collector.")
            .with_default(&TEXT, r#""onlyonce""#),
        sample: section
            .setting("sample", "The share of traces beginning here that is recorded, from 0 to 1. A request with a `traceparent` is recorded if its flags say so.")
            .with_default(&Kind(form::PART, value::part), "1.0"),
    };
    for name in ["service_name", "sample"] {
        if section.has(name) && !section.has("otlp") {
            section.warn(name, None, "has no effect without a collector; set telemetry.otlp");
        }
    }
    telemetry
}

/// How much callers may ask for.
pub(in crate::config) fn limits(section: &Section<'_>) -> Limits {
    let limit = |name, meaning, example| section.setting(name, meaning).optional(&COUNT, example);
    Limits {
        keys_per_second: limit("keys_per_second", "New keys per second, of one scope.", "50"),
        keys_per_second_total: limit("keys_per_second_total", "New keys per second, of all scopes.", "500"),
        lookups_per_second: limit(
            "lookups_per_second",
            "Requests with keys that exist, and status requests for a key, per second, of one scope.",
            "100",
        ),
        lookups_per_second_total: limit("lookups_per_second_total", "The same, of all scopes.", "1000"),
        keys_alive: limit(
            "keys_alive",
            "Records that are kept and have not expired, of one scope. The store counts them at most once a second, with an index that is created for it.",
            "100000",
        ),
        keys_alive_total: limit("keys_alive_total", "The same, of all scopes.", "1000000"),
        in_flight: limit("in_flight", "Running attempts, of one scope.", "64"),
        in_flight_total: limit("in_flight_total", "Running attempts, of all scopes.", "1024"),
        nodes: section
            .setting("nodes", "How many gateways share the rates and `in_flight`; each allows its part. `keys_alive` is counted for all of them together.")
            .with_default(&COUNT, "1"),
    }
}

/// The keys that stored answers, requests, results and payloads are encrypted with.
pub(in crate::config) fn encryption(section: &Section<'_>) -> Option<Keyring> {
    let mut keys = section
        .setting("keys", "The encryption keys, each 32 bytes in base64. The first encrypts, all decrypt: see [encryption at rest](guide.md#encryption-at-rest).")
        .optional(&SECRETS, r#"["env:ENCRYPTION_KEY"]"#)?;
    let mut decoded = Vec::new();
    for key in &keys {
        match encryption_key(key) {
            Some(bytes) => decoded.push(bytes),
            None => section.fault("keys", key.source.clone(), NO_KEY),
        }
    }
    keys.iter_mut().for_each(|key| key.bytes.zeroize());
    if decoded.len() < keys.len() {
        return None;
    }
    match Keyring::new(decoded.iter().map(|key| **key)) {
        Ok(keyring) => Some(keyring),
        Err(BadKeys::Empty) => {
            section.fault(
                "keys",
                None,
                "has no key; write keys = [\"env:NAME\"], or remove the setting to store without encryption",
            );
            None
        }
        Err(BadKeys::Equal(one, other)) => {
            let remedy = format!("is the same key as {}; remove one of them", keys[one].source);
            section.fault("keys", keys[other].source.clone(), remedy);
            None
        }
    }
}

const NO_KEY: &str = "is not base64 of 32 bytes; make a key with `openssl rand -base64 32`";

/// The bytes are overwritten once the keyring has them.
fn encryption_key(key: &Secret) -> Option<Zeroizing<[u8; 32]>> {
    let decoded = Zeroizing::new(BASE64_STANDARD.decode(&key.bytes).ok()?);
    <[u8; 32]>::try_from(&decoded[..]).ok().map(Zeroizing::new)
}
