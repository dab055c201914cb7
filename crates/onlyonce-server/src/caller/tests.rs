//! The values that a route's sources find in a request, and the layer's answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use onlyonce::scope::Scope;
use onlyonce::store::memory::Memory;
use onlyonce::{Onlyonce, Policy};
use proptest::prelude::*;
use ring::hmac;
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::*;
use crate::config::{Algorithm, Jwt, Log, LogFormat, Network, Protocol, Route, Secret, Tls, Upstream};

const SECRET: &[u8] = b"a secret of the tests, as long as it ought to be";
const PROXY: &str = "10.0.0.7";
const STRANGER: &str = "203.0.113.9";

/// Settings with one route of this scope.
fn config(scope: &[&str]) -> Config {
    let scope = scope.iter().map(|text| text.parse().expect("a source")).collect();
    let upstream =
        Upstream { uri: "http://127.0.0.1:3000".parse().expect("a URI"), protocol: Protocol::Auto };
    let route =
        |policy| Route { name: "*".into(), pattern: None, upstream: upstream.clone(), policy, probe: None };
    Config {
        listen: "127.0.0.1:0".parse().expect("an address"),
        admin: "127.0.0.1:0".parse().expect("an address"),
        store: "memory:".parse().expect("a store"),
        expired: onlyonce::store::sqlite::Expired::Delete,
        encryption: None,
        cache: None,
        service: "shop".into(),
        stop_after: Duration::from_secs(25),
        trusted_from: vec![Network { address: "10.0.0.0".parse().expect("an address"), prefix_bits: 8 }],
        listener: Default::default(),
        path_case: Default::default(),
        ambiguous_paths: Default::default(),
        tls: Some(Tls { cert: "c.pem".into(), key: "k.pem".into(), client_ca: Some("ca.pem".into()) }),
        upstream_ca: None,
        jwt: Some(Jwt {
            keys: vec![Secret { source: "env:JWT".into(), bytes: SECRET.into() }],
            algorithms: vec![Algorithm::Hs256],
            issuer: None,
            audience: None,
        }),
        routes: vec![route(Policy { scope, ..Policy::default() })],
        default: route(Policy::default()),
        background: onlyonce::worker::Background::default(),
        admin_tokens: Vec::new(),
        log: Log { filter: "info".into(), format: LogFormat::Text, decisions: true },
        telemetry: Default::default(),
        probing: Default::default(),
        webhooks: Vec::new(),
        destinations: Vec::new(),
        relay_every: Duration::from_secs(1),
        limits: onlyonce::Limits::default(),
    }
}

fn token(subject: &str, seconds: f64) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let payload = serde_json::json!({ "sub": subject, "exp": unix_seconds() + seconds }).to_string();
    let signed =
        format!("{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#), URL_SAFE_NO_PAD.encode(payload));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed.as_bytes());
    format!("Bearer {signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn request(headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::post("/payments").header("idempotency-key", "k-1");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::from("{}")).expect("a request")
}

/// The values found for each source of `scope`.
fn found(scope: &[&str], headers: &[(&str, &str)], peer: &str) -> Vec<Option<String>> {
    let config = config(scope);
    let callers = Callers::new(&config).expect("the settings are good");
    let sources = &config.routes[0].policy.scope;
    let (parts, _) = request(headers).into_parts();
    let verified = callers.verified(&parts, peer.parse().expect("an address"), None, sources);
    let text = |value: &[u8]| String::from_utf8(value.into()).expect("text");
    sources
        .iter()
        .map(|source| verified.as_ref().and_then(|verified| verified.value(source)).map(text))
        .collect()
}

fn one(scope: &str, headers: &[(&str, &str)], peer: &str) -> Option<String> {
    found(&[scope], headers, peer).remove(0)
}

/// The real layer with the real verifier in front, and a service that counts what runs.
struct Stage {
    callers: Callers,
    policy: Policy,
    onlyonce: Onlyonce,
    runs: Arc<AtomicU32>,
}

impl Stage {
    fn new(scope: &[&str]) -> Self {
        let config = config(scope);
        let policy = config.routes[0].policy.clone();
        let onlyonce = Onlyonce::new(Arc::new(Memory::new())).with_verified();
        Self {
            callers: Callers::new(&config).expect("the settings are good"),
            onlyonce: onlyonce.with_policy(policy.clone()).expect("the policy is good"),
            policy,
            runs: Arc::default(),
        }
    }

    async fn send(&self, headers: &[(&str, &str)], peer: &str) -> (StatusCode, u32) {
        let runs = self.runs.clone();
        let service = self.onlyonce.layer().layer(service_fn(move |_| {
            let runs = runs.clone();
            async move {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid")))
            }
        }));
        let (mut parts, body) = request(headers).into_parts();
        let peer = peer.parse().expect("an address");
        if let Some(verified) = self.callers.verified(&parts, peer, None, &self.policy.scope) {
            parts.extensions.insert(verified);
        }
        let answer = service.oneshot(Request::from_parts(parts, body)).await.expect("an answer");
        (answer.status(), self.runs.load(Ordering::Relaxed))
    }
}

/// S04
#[tokio::test]
async fn a_refreshed_token_is_the_same_caller_and_another_subject_is_not() {
    let stage = Stage::new(&["jwt:sub"]);
    let [first, refreshed] = [300.0, 900.0].map(|seconds| token("ann", seconds));
    assert_ne!(first, refreshed);
    assert_eq!(stage.send(&[("authorization", &first)], STRANGER).await, (StatusCode::OK, 1));
    assert_eq!(stage.send(&[("authorization", &refreshed)], STRANGER).await, (StatusCode::OK, 1), "a replay");
    assert_eq!(stage.send(&[("authorization", &token("bob", 300.0))], STRANGER).await, (StatusCode::OK, 2));
}

/// S04, S05
#[tokio::test]
async fn a_caller_that_cannot_be_verified_is_refused_and_nothing_runs() {
    let stage = Stage::new(&["jwt:sub"]);
    for headers in [
        &[][..],
        &[("authorization", "Bearer x.y.z")],
        &[("authorization", &*token("ann", -61.0))],
        &[("authorization", &*token("", 300.0))],
    ] {
        assert_eq!(stage.send(headers, STRANGER).await, (StatusCode::UNAUTHORIZED, 0));
    }
    let stage = Stage::new(&["trusted:x-account"]);
    assert_eq!(stage.send(&[("x-account", "acme")], STRANGER).await, (StatusCode::UNAUTHORIZED, 0));
    assert_eq!(stage.send(&[("x-account", "acme")], PROXY).await, (StatusCode::OK, 1));
    let stage = Stage::new(&["certificate"]);
    assert_eq!(stage.send(&[], STRANGER).await, (StatusCode::UNAUTHORIZED, 0));
}

/// S04
#[tokio::test]
async fn of_several_sources_all_must_be_there() {
    let stage = Stage::new(&["trusted:x-account", "jwt:sub"]);
    let ann = token("ann", 300.0);
    assert_eq!(stage.send(&[("x-account", "acme")], PROXY).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(stage.send(&[("authorization", &ann)], PROXY).await.0, StatusCode::UNAUTHORIZED);
    let both = [("x-account", "acme"), ("authorization", &*ann)];
    assert_eq!(stage.send(&both, STRANGER).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(stage.send(&both, PROXY).await, (StatusCode::OK, 1));
}

/// S04
#[tokio::test]
async fn no_value_reads_as_another_combination() {
    let stage = Stage::new(&["trusted:x-account", "trusted:x-user"]);
    let pairs = [
        ("acme", "ann"),
        ("acmea", "nn"),
        ("acme · ann", "x"),
        ("ann", "acme"),
        ("acme\ttrusted:x-user\tann", "ann"),
    ];
    for (number, (account, user)) in (1..).zip(pairs) {
        assert_eq!(
            stage.send(&[("x-account", account), ("x-user", user)], PROXY).await,
            (StatusCode::OK, number)
        );
    }
}

/// S04
#[test]
fn a_trusted_header_counts_from_trusted_addresses_only() {
    let header = [("x-account", "acme")];
    for peer in [PROXY, "10.255.255.255", "::ffff:10.0.0.7"] {
        assert_eq!(one("trusted:x-account", &header, peer).as_deref(), Some("acme"), "{peer}");
    }
    for peer in [STRANGER, "11.0.0.7", "::1", "::ffff:203.0.113.9", "::10.0.0.7"] {
        assert_eq!(one("trusted:x-account", &header, peer), None, "{peer}");
    }
}

/// S04
#[test]
fn a_trusted_header_that_is_empty_or_comes_twice_is_none() {
    for headers in [
        &[][..],
        &[("x-account", "")],
        &[("x-account", "  ")],
        &[("x-account", "acme"), ("x-account", "acme")],
        &[("x-account", "acme"), ("X-Account", "evil")],
        &[("x_account", "acme")],
    ] {
        assert_eq!(one("trusted:x-account", headers, PROXY), None, "{headers:?}");
    }
}

/// S04
#[test]
fn trusted_headers_of_strangers_are_taken_off_on_every_route() {
    let callers = Callers::new(&config(&["trusted:x-account"])).expect("the settings are good");
    let sent = [
        ("x-account", "acme"),
        ("x-account", "evil"),
        ("x_account", "acme"),
        ("X-ACCOUNT", "a"),
        ("x-other", "kept"),
    ];
    let left = |peer: &str| {
        let (mut parts, _) = request(&sent).into_parts();
        callers.strip_untrusted(&mut parts.headers, peer.parse().expect("an address"));
        let mut names: Vec<String> = parts.headers.keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(left(STRANGER), ["idempotency-key", "x-other"]);
    assert_eq!(left("2001:db8::1"), ["idempotency-key", "x-other"]);
    assert!(
        callers.trusts(PROXY.parse().expect("an address"))
            && !callers.trusts(STRANGER.parse().expect("an address"))
    );
    assert_eq!(left(PROXY), ["idempotency-key", "x-account", "x-other", "x_account"]);
}

/// S04
#[test]
fn only_what_the_scope_names_is_looked_for() {
    let callers = Callers::new(&config(&["header:authorization", "route"])).expect("the settings are good");
    let (parts, _) = request(&[("authorization", "Bearer x"), ("x-account", "acme")]).into_parts();
    let peer = PROXY.parse().expect("an address");
    let sources = ["header:authorization", "route"].map(|text| text.parse().expect("a source"));
    assert!(callers.verified(&parts, peer, None, &sources).is_none());
    assert!(callers.verified(&parts, peer, None, &[]).is_none());
    assert_eq!(
        found(&["trusted:x-account", "jwt:sub"], &[("x-account", "acme")], PROXY),
        [Some("acme".into()), None],
        "what cannot be verified is left out"
    );
}

#[test]
fn no_secret_is_shown() {
    let config = config(&["jwt:sub"]);
    let callers = Callers::new(&config).expect("the settings are good");
    assert!(!format!("{callers:?} {config:?}").contains("a secret of the tests"));
}

fn sources() -> impl Strategy<Value = Vec<(Source, String)>> {
    let source = prop::sample::select(vec![
        Source::Jwt("sub".into()),
        Source::Jwt("s".into()),
        Source::Trusted("x-a".parse().expect("a name")),
        Source::Trusted("x-ab".parse().expect("a name")),
        Source::Certificate,
        Source::Route,
        Source::Header("authorization".parse().expect("a name")),
    ]);
    // Few letters, and the parts of names and separators, so that collisions would be found.
    let value = prop_oneof!["[ab]{1,3}", "(jwt:s|ub|trusted:x-a|b|certificate|\u{0}|\u{1}| · ){1,4}"];
    prop::collection::vec((source, value), 1..4)
}

proptest! {
    /// S04
    #[test]
    fn scopes_of_different_sources_or_values_never_meet(a in sources(), b in sources(), service in "[ab]{0,2}") {
        let scope = |service: &str, list: &[(Source, String)]| {
            let parts = list.iter().map(|(source, value)| source.part(value.as_bytes()));
            *Scope::of(service, parts).expect("no value is empty").digest()
        };
        prop_assert_eq!(scope(&service, &a), scope(&service, &a));
        prop_assert_eq!(scope(&service, &a) == scope(&service, &b), a == b);
        prop_assert_ne!(scope(&service, &a), scope("abc", &a));
    }
}
