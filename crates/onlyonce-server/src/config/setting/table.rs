//! The table itself. An entry has the setting's name, its meaning, what it takes (`kind.rs`: this also reads the value and
//! refuses one that is wrong in itself), and its default or an example. It stands where its field is filled, so that a field
//! without an entry does not compile. What is wrong only together with other settings is found in `cross.rs`.
//!
//! To add a setting, add its field to the struct in `config.rs` and its entry here. In the reference it is where its entry is.

pub(in crate::config) mod policy;
mod webhook;

use std::net::SocketAddr;
use std::time::Duration;

use http::HeaderName;
use onlyonce::store::sqlite::Expired;
use onlyonce::worker::Background;
use tracing_subscriber::filter::Targets;

use super::kind::{
    ADDRESS, CERTIFICATE, COUNT, FLAG, Kind, List, PATTERN, PRIVATE_KEY, SECRET, SECRETS, SERVICE, SPAN,
    STORE, TEXT, URL, Words,
};
use super::{Shape, TableOf};
use crate::config::policy::Draft;
use crate::config::reader::Section;
use crate::config::secret::{self, Environment};
use crate::config::tree::Node;
use crate::config::value::{self, Read, Wrong, wrong};
use crate::config::{
    AdminToken, Algorithm, Config, Jwt, Log, LogFormat, Probe, Probing, Protocol, Role, Route, Secret, Tls,
    Upstream,
};
use crate::{caller, store};

/// Every table, in the order of the reference.
pub(in crate::config) const TABLES: &[TableOf] = &[
    TableOf {
        path: "",
        shape: Shape::One,
        meaning: "Where requests come in and go, and where records are kept.",
    },
    TableOf { path: "policy", shape: Shape::One, meaning: "What holds where no route says otherwise." },
    TableOf { path: "policy.fingerprint", shape: Shape::One, meaning: "What counts as the same request." },
    TableOf {
        path: "route",
        shape: Shape::List,
        meaning: "Requests with a policy or a service of their own. The first in the file that matches wins. Every setting of `[policy]` and `[policy.fingerprint]` may stand here too.",
    },
    TableOf { path: "background", shape: Shape::One, meaning: "What goes on behind the requests." },
    TableOf { path: "tls", shape: Shape::One, meaning: "TLS for clients. Without it they come in clear." },
    TableOf {
        path: "jwt",
        shape: Shape::One,
        meaning: r#"How tokens are verified, for `scope = ["jwt:CLAIM"]`. Expired ones are refused, with 60 s of leeway."#,
    },
    TableOf {
        path: "admin_token",
        shape: Shape::List,
        meaning: "Who may use the admin port from elsewhere, with `Authorization: Bearer`.",
    },
    TableOf {
        path: "log",
        shape: Shape::One,
        meaning: "What is logged, on stderr. Keys are shown as a short digest, secrets never.",
    },
    TableOf { path: "limits", shape: Shape::One, meaning: "Limits by scope and in all." },
    TableOf { path: "encryption", shape: Shape::One, meaning: "Encryption of what is stored." },
    TableOf {
        path: "webhooks",
        shape: Shape::Named,
        meaning: "Who may tell what became of unknown records, by signed requests to `/v1/webhooks/NAME` of the admin port: see [webhooks](guide.md#stripe-webhooks).",
    },
    TableOf {
        path: "destinations",
        shape: Shape::Named,
        meaning: "Where messages of the outbox are delivered.",
    },
];

/// All settings. They may only be used if no fault was found.
pub(in crate::config) fn config(top: &Section<'_>) -> Config {
    let listen = top
        .setting("listen", "Where clients come in. Port 0 picks a free one. HTTP/1.1 and HTTP/2.")
        .with_default(&ADDRESS, r#""127.0.0.1:8080""#);
    let admin = admin(top);
    let upstream = upstream(top);
    let draft = policy::laid_over(Draft::default(), &top.inner("policy"));
    let mut config = Config {
        listen,
        admin,
        upstream_ca: top
            .setting("upstream_ca", "Certificates in PEM that upstreams' certificates are checked against, instead of the system's.")
            .optional(&CERTIFICATE, r#""/etc/onlyonce/upstream-ca.pem""#),
        store: store(top),
        expired: expired(top),
        service: top
            .setting("service", "Part of every scope: services that share a store do not share keys.")
            .with_default(&TEXT, r#""""#)
            .into(),
        stop_after: top
            .setting("stop_after", "How long a stop waits for what is under way before it is handed over as unknown or retryable, by its effects.")
            .with_default(&SPAN, r#""25s""#),
        trusted_from: top
            .setting("trusted_from", "The proxies whose `trusted:` headers are believed.")
            .with_default(
                &List("addresses and networks", r#"["10.0.0.0/8"]"#, value::network),
                r#"["127.0.0.0/8", "::1"]"#,
            ),
        routes: top.tables("route").iter().map(|section| route(section, &upstream, &draft)).collect(),
        default: Route { name: "*".into(), pattern: None, upstream, policy: draft.finish(), probe: None },
        background: background(top),
        probing: probing(&top.inner("background")),
        tls: tls(&top.inner("tls")),
        jwt: jwt(&top.inner("jwt")),
        admin_tokens: admin_tokens(top),
        log: log(&top.inner("log")),
        webhooks: top.named_tables("webhooks").iter().filter_map(webhook::webhook).collect(),
    };
    for route in &mut config.routes {
        route.policy.reconcile_first = route.probe.as_ref().map(|_| config.probing.first);
    }
    limits(&top.inner("limits"));
    encryption(&top.inner("encryption"));
    top.named_tables("destinations").iter().for_each(destination);
    config
}

/// Where operators come in.
pub(in crate::config) fn admin(top: &Section<'_>) -> SocketAddr {
    top.setting(
        "admin",
        "Where operators come in. An address that is not loopback needs an `[[admin_token]]`.",
    )
    .with_default(&ADDRESS, r#""127.0.0.1:8081""#)
}

/// What becomes of expired records.
pub(in crate::config) fn expired(top: &Section<'_>) -> Expired {
    top.setting(
        "expired",
        "What becomes of expired records: deleted, or kept in an archive out of replay's reach.",
    )
    .with_default(&Words(&[("delete", Expired::Delete), ("keep", Expired::Keep)]), r#""delete""#)
}

/// Where records are kept.
pub(in crate::config) fn store(top: &Section<'_>) -> store::Url {
    top.setting(
        "store",
        "Where records are kept: `sqlite:PATH`, one file; `postgres://…`, a database that any number of nodes share; or `memory:`, forgotten when the process ends.",
    )
    .with_default(&STORE, r#""sqlite:onlyonce.db""#)
}

const PROTOCOL: Words<Protocol> =
    Words(&[("auto", Protocol::Auto), ("http1", Protocol::Http1), ("http2", Protocol::Http2)]);

fn upstream(top: &Section<'_>) -> Upstream {
    let uri = top
        .setting(
            "upstream",
            "The service behind the gateway. Its path, where it has one, goes in front of the request's.",
        )
        .required(
            &SERVICE,
            r#""http://127.0.0.1:3000""#,
            "names no service to stand in front of; give --upstream http://HOST:PORT, or set it in the file",
        );
    Upstream {
        // Without one there is a fault, and the settings are not used.
        uri: uri.unwrap_or_default(),
        protocol: top
            .setting("upstream_protocol", "Which HTTP is spoken to upstreams. `auto`: HTTP/1.1 in clear, what both sides offer over TLS. `http2` in clear is with prior knowledge.")
            .with_default(&PROTOCOL, r#""auto""#),
    }
}

const USES_NOTHING: &str = "has no effect yet: nothing in this release uses it";

/// `upstream` and `draft` are what holds where the route says nothing.
fn route(section: &Section<'_>, upstream: &Upstream, draft: &Draft) -> Route {
    let pattern = section
        .setting("match", "A method, or none for all, and a path: `*` is one segment, `**` at the end the rest. `/b/**` also matches `/b`.")
        .required(
            &PATTERN,
            r#""POST /payments/*""#,
            "says which requests it is about; write it like \"POST /payments/*\"",
        );
    let uri = section
        .setting("upstream", "Where these requests go, instead of `upstream`.")
        .optional(&SERVICE, r#""http://127.0.0.1:3001""#);
    let protocol = section
        .setting("upstream_protocol", "Which HTTP is spoken there, instead of `upstream_protocol`.")
        .optional(&PROTOCOL, r#""http2""#);
    let probe = probe(section);
    Route {
        name: section.route.clone().unwrap_or_default().into(),
        pattern,
        upstream: Upstream {
            uri: uri.unwrap_or_else(|| upstream.uri.clone()),
            protocol: protocol.unwrap_or(upstream.protocol),
        },
        policy: policy::laid_over(draft.clone(), &section.as_policy()).finish(),
        probe,
    }
}

fn probe(section: &Section<'_>) -> Option<Probe> {
    let uri = section
        .setting("probe", "Where to ask whether work happened whose outcome is unknown: `GET` with `scope`, `key`, `token`, `attempt` and `route` in the query. See [writing a probe](guide.md#writing-a-probe).")
        .optional(&URL, r#""http://127.0.0.1:3001/probe""#);
    let headers = section
        .setting("probe_headers", "Headers of these questions; a value may be a secret, `env:NAME` or `file:PATH`. They are never shown.")
        .optional(&Kind("table of headers", probe_headers), r#"{ authorization = "env:PROBE_AUTH" }"#);
    if section.has("probe_headers") && !section.has("probe") {
        section.warn("probe_headers", None, "has no effect, since nobody is asked; set probe");
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
        let header =
            header.map_err(|_| told("is no name of a header; write it like authorization".into()))?;
        if NOT_OF_A_PROBE.contains(&header.as_str()) {
            return Err(told("is a header that every question has from us; take it out".into()));
        }
        let secret = secret::or_text(node, environment)
            .map_err(|wrongs| wrongs.into_iter().flat_map(|wrong| told(wrong.remedy)).collect::<Vec<_>>())?;
        match http::HeaderValue::from_bytes(&secret.bytes) {
            Ok(_) => Ok((header, secret)),
            Err(_) => Err(told("has a value that no header can have; put it on one line".into())),
        }
    };
    let headers = value::members(node, r#"{ authorization = "env:PROBE_AUTH" }"#, read)?;
    Ok(headers.into_iter().map(|(_, header)| header).collect())
}

const EVERY: Kind<Duration> = Kind("span", above_zero);

/// How often what goes on behind the requests comes round.
pub(in crate::config) fn background(top: &Section<'_>) -> Background {
    let section = &top.inner("background");
    let background = Background {
        sweep_every: section
            .setting("sweep_every", "How often lapsed leases are looked for.")
            .with_default(&EVERY, r#""5s""#),
        reap_every: section
            .setting("reap_every", "How often expired records are deleted.")
            .with_default(&EVERY, r#""30s""#),
        reap_batch: section
            .setting("reap_batch", "How many are deleted at once.")
            .with_default(&Kind("number", batch), "200"),
        audit_retention: top
            .setting(
                "audit_retention",
                "How long entries of the audit log are kept. At least `1d`. Nothing else deletes them.",
            )
            .with_default(&Kind("span", at_least_a_day), r#""400d""#),
    };
    let unused = |name, meaning| section.setting(name, meaning).unused(USES_NOTHING);
    unused("accepted_at_once", "How much accepted work runs at once.").with_default(&COUNT, "64");
    background
}

fn probing(section: &Section<'_>) -> Probing {
    Probing {
        first: section
            .setting("reconcile_first", "How long after a record became unknown its probe is asked first.")
            .with_default(&EVERY, r#""1s""#),
        max: section
            .setting("reconcile_max", "The longest pause between two questions. Each pause is twice the one before, up to a fifth shorter or longer at random.")
            .with_default(&EVERY, r#""5m""#),
        tries_max: section
            .setting("reconcile_tries_max", "After how many answers that say unknown a record is flagged as a dead letter; and after as many of the longest pauses, also where no answer came.")
            .with_default(&Kind("number", tries), "20"),
        at_once: section
            .setting("probes_at_once", "How many questions a node asks at once; 4 of them to one host.")
            .with_default(&Kind("number", at_once), "16"),
    }
}

fn above_zero(node: &Node, _: &Environment<'_>) -> Read<Duration> {
    let span = value::span(node)?;
    if span.is_zero() { wrong(&node.value, "would never rest; set at least 1s") } else { Ok(span) }
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

fn tries(node: &Node, _: &Environment<'_>) -> Read<u32> {
    let count = value::count(node)?;
    match u32::try_from(count) {
        Ok(tries @ 1..=1_000_000) => Ok(tries),
        _ => wrong(count, "is not from 1 to 1000000; 20 is usual"),
    }
}

fn at_once(node: &Node, _: &Environment<'_>) -> Read<usize> {
    let count = value::count(node)?;
    match usize::try_from(count) {
        Ok(at_once @ 1..=1_024) => Ok(at_once),
        _ => wrong(count, "is not from 1 to 1024; 16 is usual"),
    }
}

fn batch(node: &Node, _: &Environment<'_>) -> Read<usize> {
    let count = value::count(node)?;
    match usize::try_from(count) {
        Ok(batch @ 1..=100_000) => Ok(batch),
        _ => wrong(count, "is not from 1 to 100000; 200 is a good size"),
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
        .setting("cert", "The certificate and those between it and a root, in PEM.")
        .optional(&CERTIFICATE, r#""/etc/onlyonce/cert.pem""#);
    let key = section
        .setting("key", "Its private key, in PEM.")
        .optional(&PRIVATE_KEY, r#""/etc/onlyonce/key.pem""#);
    let client_ca = section
        .setting("client_ca", r#"Who issues clients' certificates, in PEM. With it a client may show one, for `scope = ["certificate"]`."#)
        .optional(&CERTIFICATE, r#""/etc/onlyonce/client-ca.pem""#);
    Some(Tls { cert: cert?, key: key?, client_ca })
}

const ALGORITHM: [(&str, Algorithm); 3] =
    [("HS256", Algorithm::Hs256), ("RS256", Algorithm::Rs256), ("ES256", Algorithm::Es256)];

fn jwt(section: &Section<'_>) -> Option<Jwt> {
    let keys = section
        .setting("keys", "What tokens are signed with, tried in order: HS256 secrets as text, RS256 and ES256 public keys in PEM.")
        .optional(&SECRETS, r#"["file:/etc/onlyonce/jwt.pem"]"#);
    if !section.is_empty() && (!section.has("keys") || keys.as_ref().is_some_and(Vec::is_empty)) {
        section.fault("keys", None, "has no key to verify tokens with; write keys = [\"file:PATH\"]");
    }
    let keys = keys.unwrap_or_default();
    let algorithms = section
        .setting("algorithms", "The algorithms that are accepted; those that the keys are for, where this is not set. A secret in text verifies HS256 only, a key in PEM never does.")
        .optional(
            &List("`HS256`, `RS256`, `ES256`", r#"["RS256"]"#, |node| value::word(node, &ALGORITHM)),
            r#"["RS256"]"#,
        );
    let jwt = Jwt {
        algorithms: algorithms.unwrap_or_else(|| caller::algorithms(&keys)),
        keys,
        issuer: section
            .setting("issuer", "What `iss` must be; any, where this is not set.")
            .optional(&TEXT, r#""https://login.example.com""#),
        audience: section
            .setting("audience", "What `aud` must contain; any, where this is not set.")
            .optional(&TEXT, r#""payments""#),
    };
    (!section.is_empty()).then_some(jwt)
}

fn admin_tokens(top: &Section<'_>) -> Vec<AdminToken> {
    let mut tokens: Vec<AdminToken> = Vec::new();
    for section in top.tables("admin_token") {
        let Some(token) = admin_token(&section) else { continue };
        if let Some(other) = tokens.iter().find(|other| other.name == token.name) {
            let remedy = format!("is the name of the token {} too; give each its own", other.token.source);
            section.fault("name", token.name.clone(), remedy);
        }
        if tokens.iter().any(|other| other.token.bytes == token.token.bytes) {
            let remedy = "is the same secret as another's: nobody could tell who came; make one for each";
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
        .setting("role", "`read`: look. `operate`: look and change.")
        .with_default(&Words(&[("read", Role::Read), ("operate", Role::Operate)]), r#""read""#);
    let name =
        section.setting("name", "Whose it is, for logs and the audit.").optional(&TEXT, r#""on-call""#);
    Some(AdminToken { name: name.unwrap_or_else(|| section.path.clone()), token: token?, role })
}

fn log(section: &Section<'_>) -> Log {
    Log {
        filter: section
            .setting("filter", "A level, or levels by module: `info,onlyonce=debug`.")
            .with_default(&Kind("directives", filter), r#""info""#),
        format: section
            .setting("format", "For people, or a JSON object a line.")
            .with_default(&Words(&[("text", LogFormat::Text), ("json", LogFormat::Json)]), r#""text""#),
        decisions: section
            .setting("decisions", "Whether every keyed request leaves a line at `info`: what was decided, the route, the key's digest, the attempt, the status, the time added.")
            .with_default(&FLAG, "true"),
    }
}

fn filter(node: &Node, _: &Environment<'_>) -> Read<String> {
    let text = value::text(node)?;
    match text.parse::<Targets>() {
        Ok(_) => Ok(text),
        Err(_) => wrong(text, "is no filter; write a level, or levels by module, like info,onlyonce=debug"),
    }
}

fn limits(section: &Section<'_>) {
    let refused = |name, meaning| section.setting(name, meaning).refused();
    refused("keys_per_second", "New keys a second, of one scope.").optional(&COUNT, "100");
    refused("keys_per_second_total", "New keys a second, of all scopes.").optional(&COUNT, "1000");
    refused("keys_alive", "Records that are kept, of one scope.").optional(&COUNT, "100");
    refused("keys_alive_total", "Records that are kept, of all scopes.").optional(&COUNT, "1000");
    refused("lookups_per_second", "Requests a second with keys that exist, of one scope.")
        .optional(&COUNT, "100");
    refused("lookups_per_second_total", "Requests a second with keys that exist, of all scopes.")
        .optional(&COUNT, "1000");
    refused("in_flight", "Keyed requests under way, of one scope.").optional(&COUNT, "100");
    refused("in_flight_total", "Keyed requests under way, of all scopes.").optional(&COUNT, "1000");
}

fn encryption(section: &Section<'_>) {
    section
        .setting("keys", "Base64 of 32 bytes each. The first encrypts, all decrypt.")
        .refused()
        .optional(&SECRETS, r#"["env:ENCRYPTION_KEY"]"#);
}

fn destination(section: &Section<'_>) {
    let unused = |name, meaning| section.setting(name, meaning).unused(USES_NOTHING);
    unused("url", "Where its messages are sent.").optional(&URL, r#""https://example.com/hook""#);
    unused("secrets", "What its messages are signed with; the first signs.")
        .optional(&SECRETS, r#"["env:DESTINATION_SECRET"]"#);
    unused("timeout", "How long a delivery may take.").optional(&SPAN, r#""10s""#);
    unused("attempts_max", "After how many deliveries a message is a dead letter.").optional(&COUNT, "10");
}
