//! Who may use the admin API, and how everybody else is refused.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use onlyonce_core::record::StateName;
use serde_json::json;

use crate::admin_world::{OPERATOR, READER, World, scope};
use crate::engines::{Engine, on_every_engine};

on_every_engine! {
    futures {
        a_token_may_what_its_role_says_and_no_token_may_nothing,
        refusals_of_known_tokens_are_in_the_audit_log,
        a_page_under_another_name_gets_nothing_and_changes_nothing,
        head_is_answered_like_get_and_other_methods_are_refused_with_those_there_are,
        a_store_that_does_not_answer_is_503_everywhere_and_its_name_is_not_told,
    }
}

/// Every endpoint, with what a request to it is answered: to a token that reads, and to one that operates.
fn endpoints(path: &str, scope: &str) -> Vec<(&'static str, String, u16, u16)> {
    vec![
        ("GET", "/metrics".to_owned(), 200, 200),
        ("GET", "/v1/keys".to_owned(), 200, 200),
        ("GET", path.to_owned(), 200, 200),
        ("GET", format!("{path}/response"), 403, 201),
        ("POST", format!("{path}/verdict"), 403, 409),
        ("DELETE", format!("{path}?reason=r&dry_run=true"), 403, 200),
        ("DELETE", format!("/v1/scopes/{scope}?reason=r&dry_run=true"), 403, 200),
        ("GET", "/v1/audit".to_owned(), 200, 200),
        ("GET", "/v1/overview".to_owned(), 200, 200),
        ("GET", "/v1/openapi.json".to_owned(), 200, 200),
        ("GET", "/nowhere".to_owned(), 404, 404),
        ("PUT", "/v1/keys".to_owned(), 405, 405),
        ("DELETE", "/v1/audit".to_owned(), 405, 405),
        ("OPTIONS", "/v1/keys".to_owned(), 405, 405),
    ]
}

/// L04
async fn a_token_may_what_its_role_says_and_no_token_may_nothing(engine: Engine) {
    let world = World::with_tokens(engine).await;
    let made = world.record("acme", "k", StateName::Completed).await;
    let happened = json!({ "verdict": "happened", "reason": "r" });
    for (method, target, read, operate) in endpoints(&made.path(), &scope("acme").to_string()) {
        for (token, expected) in
            [(Some(READER), read), (Some(OPERATOR), operate), (None, 401), (Some("Bearer x"), 401)]
        {
            let ask = world.ask(method, &*target).json(&happened);
            let answer = match token {
                Some(token) => ask.token(token).send().await,
                None => ask.send().await,
            };
            assert_eq!(answer.status, expected, "{method} {target} {token:?}: {}", answer.body);
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{method} {target}");
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{method} {target}");
            assert!(
                !answer.headers.iter().any(|(name, _)| name.starts_with("access-control-")),
                "{answer:?}"
            );
            if expected == 401 {
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                assert_eq!(answer.told(), (401, "admin_unauthorized".to_owned()));
            }
            if expected == 403 {
                assert_eq!(answer.told(), (403, "admin_forbidden".to_owned()));
                assert_eq!(answer.json()["needs"], "operate");
            }
        }
    }
    let twice = world.ask("GET", "/v1/keys").token(OPERATOR).token(OPERATOR).send().await;
    assert_eq!(twice.told(), (401, "admin_unauthorized".to_owned()));
    for open in ["/healthz", "/readyz"] {
        let answer = world.ask("GET", open).header("host", "evil.com").send().await;
        assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{open}");
    }
}

/// L04: what a known token is refused is in the audit log, what a stranger is refused is not.
async fn refusals_of_known_tokens_are_in_the_audit_log(engine: Engine) {
    let world = World::with_tokens(engine).await;
    let made = world.record("acme", "k/1", StateName::Completed).await;
    let path = made.path();
    for (method, target, action) in [
        ("GET", format!("{path}/response"), "read_response"),
        ("POST", format!("{path}/verdict"), "verdict"),
        ("DELETE", format!("{path}?reason=because"), "forget"),
        ("DELETE", format!("/v1/scopes/{}?reason=because&force=true", scope("acme")), "purge"),
    ] {
        assert_eq!(world.ask(method, &*target).send().await.status, 401);
        let before = world.audit().await.len();
        let refused = world.ask(method, &*target).token(READER).header("Onlyonce-As", "robert").send().await;
        assert_eq!(refused.status, 403);
        let log = world.audit().await;
        assert_eq!(log.len(), before + 1, "{action}");
        let entry = log.last().unwrap();
        assert_eq!(
            (&*entry.action, &*entry.result, entry.code.as_deref()),
            (action, "refused", Some("admin_forbidden"))
        );
        assert_eq!((&*entry.who, &*entry.role, entry.claims.as_deref()), ("rob", "read", Some("robert")));
        assert_eq!((entry.from.as_deref(), &*entry.via), (Some("127.0.0.1"), "api"));
        assert_eq!(entry.scope, Some(*scope("acme").digest()));
        assert_eq!(entry.key.as_deref(), (action != "purge").then_some("k/1"));
        assert_eq!(
            (entry.reason.as_deref() == Some("because"), entry.forced),
            (method == "DELETE", action == "purge")
        );
    }
    // A page of another origin that holds a token.
    let stolen =
        world.ask("DELETE", format!("{path}?reason=r")).token(OPERATOR).header("Origin", "http://evil.com");
    assert_eq!(stolen.send().await.told(), (403, "admin_origin_refused".to_owned()));
    let log = world.audit().await;
    assert_eq!(log.last().unwrap().code.as_deref(), Some("admin_origin_refused"));
    assert!(world.seen(&made).await.is_some());
}

/// L04: names that resolve to 127.0.0.1, and pages of other origins.
async fn a_page_under_another_name_gets_nothing_and_changes_nothing(engine: Engine) {
    let world = World::new(engine).await;
    let made = world.record("acme", "k", StateName::Completed).await;
    for path in ["/v1/keys", "/v1/overview", "/v1/events", "/metrics", "/nowhere", &made.path()] {
        for host in ["evil.com", "127.0.0.1.evil.com:8081", "localhost.evil.com", "-", ""] {
            let answer = world.ask("GET", path).header("host", host).send().await;
            assert_eq!(answer.told(), (421, "admin_host_refused".to_owned()), "{path} {host}");
        }
    }
    let both = world.ask("GET", "/v1/keys").header("host", "localhost").header("host", "evil.com");
    assert_eq!(both.send().await.status, 421);
    let target = format!("{}?reason=r&dry_run=true", made.path());
    for (name, value) in [
        ("Origin", "http://evil.com"),
        ("Origin", "null"),
        ("Origin", "https://localhost"),
        ("Origin", "http://localhost:1"),
        ("Sec-Fetch-Site", "cross-site"),
    ] {
        let answer = world.ask("DELETE", &*target).header(name, value).send().await;
        assert_eq!(answer.told(), (403, "admin_origin_refused".to_owned()), "{name}: {value}");
    }
    let own = world
        .ask("DELETE", &*target)
        .header("Origin", "http://localhost")
        .header("Sec-Fetch-Site", "same-origin");
    assert_eq!(own.send().await.told(), (200, "would-apply".to_owned()));
    let address = world.address().to_string();
    let own = world.ask("DELETE", &*target).header("host", &*address);
    let own = own.header("Origin", format!("http://{address}"));
    assert_eq!(own.send().await.status, 200);
    assert_eq!(world.audit().await, [], "anybody's page could fill it");
    // Reading is not a change: a browser sends no origin with it that could be judged.
    let read = world.ask("GET", "/v1/keys").header("Sec-Fetch-Site", "cross-site").send().await;
    assert_eq!((read.status, read.header("access-control-allow-origin")), (200, None));
}

/// O06
async fn head_is_answered_like_get_and_other_methods_are_refused_with_those_there_are(engine: Engine) {
    let world = World::new(engine).await;
    let made = world.record("acme", "k", StateName::Completed).await;
    for path in ["/healthz", "/readyz", "/v1/keys", "/v1/overview", "/v1/events", &made.path()] {
        let answer = world.ask("HEAD", path).send().await;
        assert_eq!((answer.status, &*answer.body), (200, ""), "{path}");
    }
    for (method, path, allow) in [
        ("OPTIONS", "/v1/keys", "GET, HEAD"),
        ("POST", "/v1/keys", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
        ("PUT", &*made.path(), "GET, DELETE, HEAD"),
        ("GET", &format!("{}/verdict", made.path()), "POST"),
        ("DELETE", "/v1/audit", "GET, HEAD"),
    ] {
        let answer = world.ask(method, path).send().await;
        assert_eq!(answer.told(), (405, "admin_method".to_owned()), "{method} {path}");
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
    for path in
        ["//", "/v1", "/v1/keys/", "/v1/outbox/", "/v1/keys/a/b/c", "/V1/keys", "/v1/keys/a/b/response/"]
    {
        assert_eq!(world.get(path).await.told(), (404, "admin_not_found".to_owned()), "{path}");
    }
}

/// O06, U09: no order is answered by an error of ours when the store does not answer.
async fn a_store_that_does_not_answer_is_503_everywhere_and_its_name_is_not_told(engine: Engine) {
    let world = World::new(engine).await;
    let made = world.record("acme", "k", StateName::Unknown).await;
    world.switch_off();
    let path = made.path();
    for (method, target) in [
        ("GET", "/v1/keys".to_owned()),
        ("GET", "/v1/keys?q=k".to_owned()),
        ("GET", path.clone()),
        ("GET", format!("{path}/response")),
        ("POST", format!("{path}/verdict")),
        ("DELETE", format!("{path}?reason=r")),
        ("DELETE", format!("/v1/scopes/{}?reason=r", scope("acme"))),
        ("GET", "/v1/audit".to_owned()),
        ("GET", "/v1/overview".to_owned()),
    ] {
        let verdict = json!({ "verdict": "happened", "reason": "r" });
        let answer = world.ask(method, &*target).json(&verdict).send().await;
        assert_eq!(answer.told(), (503, "store_unavailable".to_owned()), "{method} {target}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(!answer.body.contains("db.internal"), "{}", answer.body);
    }
    assert_eq!(world.get("/readyz").await.status, 503);
    assert_eq!(world.get("/healthz").await.status, 200);
    assert_eq!(world.get("/metrics").await.status, 200);
    world.switch_on();
    assert_eq!(world.seen(&made).await.unwrap().revision, made.seen.revision, "no entry, no change");
    assert_eq!(world.audit().await, []);
}
