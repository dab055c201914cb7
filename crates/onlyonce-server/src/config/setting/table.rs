//! The table itself. An entry has the setting's name, its meaning, what it takes (`kind.rs`: this also reads the value and
//! refuses one that is wrong in itself), and its default or an example. It stands where its field is filled, so that a field
//! without an entry does not compile. What is wrong only together with other settings is found in `cross.rs`.
//!
//! To add a setting, add its field to the struct in `config.rs` and its entry here. In the reference it is where its entry is.

pub(in crate::config) mod policy;

use std::net::SocketAddr;
use std::time::Duration;

use onlyonce::store::sqlite::Expired;
use onlyonce::worker::Background;
use tracing_subscriber::filter::Targets;

use super::kind::{
    ADDRESS, CERTIFICATE, COUNT, Kind, List, PATTERN, POINTER, PRIVATE_KEY, SECRET, SECRETS, SERVICE, SPAN,
    STORE, TEXT, URL, Words,
};
use super::{Shape, TableOf};
use crate::config::policy::Draft;
use crate::config::reader::Section;
use crate::config::secret::Environment;
use crate::config::tree::Node;
use crate::config::value::{self, Read, wrong};
use crate::config::{
    AdminToken, Algorithm, Config, Jwt, Log, LogFormat, Protocol, Role, Route, Tls, Upstream,
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
        meaning: "Who may tell what became of unknown records, by signed requests to the admin port.",
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
    let config = Config {
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
        default: Route { name: "*".into(), pattern: None, upstream, policy: draft.finish() },
        background: background(&top.inner("background")),
        tls: tls(&top.inner("tls")),
        jwt: jwt(&top.inner("jwt")),
        admin_tokens: admin_tokens(top),
        log: log(&top.inner("log")),
    };
    limits(&top.inner("limits"));
    encryption(&top.inner("encryption"));
    top.named_tables("webhooks").iter().for_each(webhook);
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
        "Where records are kept: `sqlite:PATH`, one file, or `memory:`, forgotten when the process ends.",
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

const SETTLES_NOTHING: &str =
    "has no effect yet: nothing settles unknown outcomes in this release, they stay unknown";
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
    section
        .setting("probe", "Where to ask whether queryable work happened.")
        .unused(SETTLES_NOTHING)
        .optional(&URL, r#""http://127.0.0.1:3001/probe""#);
    Route {
        name: section.route.clone().unwrap_or_default().into(),
        pattern,
        upstream: Upstream {
            uri: uri.unwrap_or_else(|| upstream.uri.clone()),
            protocol: protocol.unwrap_or(upstream.protocol),
        },
        policy: policy::laid_over(draft.clone(), &section.as_policy()).finish(),
    }
}

/// How often what goes on behind the requests comes round.
pub(in crate::config) fn background(section: &Section<'_>) -> Background {
    const EVERY: Kind<Duration> = Kind("span", above_zero);
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
        audit_retention: Background::default().audit_retention,
    };
    let unused = |name, meaning| section.setting(name, meaning).unused(SETTLES_NOTHING);
    unused("reconcile_first", "When an unknown record is asked about first.").with_default(&SPAN, r#""1s""#);
    unused("reconcile_max", "The longest pause between two questions.").with_default(&SPAN, r#""5m""#);
    unused("reconcile_tries_max", "After how many questions a record is flagged as a dead letter.")
        .with_default(&COUNT, "20");
    let unused = |name, meaning| section.setting(name, meaning).unused(USES_NOTHING);
    unused("accepted_at_once", "How much accepted work runs at once.").with_default(&COUNT, "64");
    background
}

fn above_zero(node: &Node, _: &Environment<'_>) -> Read<Duration> {
    let span = value::span(node)?;
    if span.is_zero() { wrong(&node.value, "would never rest; set at least 1s") } else { Ok(span) }
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

fn webhook(section: &Section<'_>) {
    let unused = |name, meaning| section.setting(name, meaning).unused(SETTLES_NOTHING);
    unused("secrets", "What its requests are signed with; all verify.")
        .optional(&SECRETS, r#"["env:WEBHOOK_SECRET"]"#);
    unused("token_pointer", "Where its body has the token.").optional(&POINTER, r#""/token""#);
    unused("scope_pointer", "Where its body has the scope.").optional(&POINTER, r#""/scope""#);
    unused("key_pointer", "Where its body has the key.").optional(&POINTER, r#""/key""#);
    unused("verdict_pointer", "Where its body has the verdict.").optional(&POINTER, r#""/verdict""#);
}

fn destination(section: &Section<'_>) {
    let unused = |name, meaning| section.setting(name, meaning).unused(USES_NOTHING);
    unused("url", "Where its messages are sent.").optional(&URL, r#""https://example.com/hook""#);
    unused("secrets", "What its messages are signed with; the first signs.")
        .optional(&SECRETS, r#"["env:DESTINATION_SECRET"]"#);
    unused("timeout", "How long a delivery may take.").optional(&SPAN, r#""10s""#);
    unused("attempts_max", "After how many deliveries a message is a dead letter.").optional(&COUNT, "10");
}
