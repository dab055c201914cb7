//! What a handler is told about its attempt, and what it says of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::routing::post;
use onlyonce::scope::Source;
use onlyonce::{Attempt, Caller, Effects, Onlyonce, Policy, Verified};
use tower::ServiceExt;

use crate::world::{Answer, FaultyStore, order, order_with};

async fn send(app: &Router, request: Request<Body>) -> Answer {
    Answer::of(app.clone().oneshot(request).await.unwrap()).await
}

fn keyed() -> Onlyonce {
    let policy = Policy { effects: Effects::Keyed, ..Policy::default() };
    Onlyonce::new(FaultyStore::new()).with_policy(policy).unwrap()
}

/// W04
#[tokio::test]
async fn an_attempt_tells_its_number_and_one_downstream_key_for_all_attempts() {
    let handler = post(|attempt: Attempt| async move {
        let status = if attempt.number() < 3 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        (
            status,
            format!("{} {} {}", attempt.number(), attempt.key().as_str(), attempt.downstream_key("charge")),
        )
    });
    let app = Router::new().route("/orders", handler).layer(keyed().layer());
    let mut keys = Vec::new();
    for number in 1..=3 {
        let answer = send(&app, order("k")).await;
        let (told, downstream) = answer.text().rsplit_once(' ').unwrap();
        assert_eq!(told, format!("{number} k"));
        keys.push(downstream.to_owned());
    }
    keys.dedup();
    assert_eq!(keys.len(), 1, "the same on every attempt");
    let other = send(&app, order("k2")).await;
    assert_ne!(other.text().rsplit_once(' ').unwrap().1, keys[0], "and nobody else's");
}

/// R05
#[tokio::test]
async fn every_attempt_has_a_token_of_its_own() {
    let handler =
        post(
            |attempt: Attempt| async move { (StatusCode::SERVICE_UNAVAILABLE, attempt.handle().to_string()) },
        );
    let app = Router::new().route("/orders", handler).layer(keyed().layer());
    let first = send(&app, order("k")).await;
    let second = send(&app, order("k")).await;
    let (first_id, first_token) = first.text().split_once('.').unwrap();
    let (second_id, second_token) = second.text().split_once('.').unwrap();
    assert_eq!(first_id, second_id);
    assert_ne!(first_token, second_token);
}

/// C05, U02
#[tokio::test(start_paused = true)]
async fn a_handler_says_what_became_of_its_work() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let handler = post(move |attempt: Attempt| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match attempt.key().as_str() {
                "not-run" => attempt.did_not_run(),
                "unknown" => attempt.unknown(),
                "minute" => attempt.keep_for(Duration::from_secs(60)),
                "not-kept" => attempt.keep_for(Duration::ZERO),
                _ => {}
            }
            (StatusCode::CREATED, "done")
        }
    });
    let app = Router::new().route("/orders", handler).layer(Onlyonce::new(FaultyStore::new()).layer());
    let twice = async |key: &str| {
        let before = runs.load(Ordering::SeqCst);
        let first = send(&app, order(key)).await;
        assert_eq!(first.summary(), "201 done");
        let again = send(&app, order(key)).await;
        (first.is_stored(), again.summary(), runs.load(Ordering::SeqCst) - before)
    };
    assert_eq!(twice("not-run").await, (false, "201 done".into(), 2));
    assert_eq!(twice("unknown").await, (false, "409 idempotency_outcome_unknown".into(), 1));
    assert_eq!(twice("not-kept").await, (false, "409 idempotency_response_not_stored".into(), 1));
    assert_eq!(twice("minute").await, (true, "201 done".into(), 1));
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(twice("minute").await, (true, "201 done".into(), 1), "kept for a minute, then a new request");
}

/// C05
#[tokio::test]
async fn a_handler_says_so_by_header_too_and_the_client_does_not_see_it() {
    let world = crate::world::World::new(Policy::default());
    for (value, again) in [
        ("did-not-run", "201 run 2"),
        ("unknown", "409 idempotency_outcome_unknown"),
        ("nonsense", "409 idempotency_outcome_unknown"),
    ] {
        let world = crate::world::World::new(Policy::default());
        let first = world.send(order_with("k", &[("x-answer-onlyonce-outcome", value)])).await;
        assert_eq!((first.status, first.header("onlyonce-outcome")), (201, None), "{value}");
        assert_eq!(world.send(order("k")).await.summary(), again, "{value}");
    }
    let kept = world.send(order_with("k", &[("x-answer-onlyonce-retention", "7200")])).await;
    let day = world.send(order("day")).await;
    assert_eq!(kept.header("onlyonce-retention"), None);
    assert_ne!(kept.header("idempotency-key-expires"), day.header("idempotency-key-expires"));
}

/// C05: a handler that passes on what another service said has the last word itself.
#[tokio::test]
async fn what_a_handler_says_by_its_attempt_beats_the_headers_of_its_answer() {
    let handler = post(|attempt: Attempt| async move {
        attempt.unknown();
        attempt.keep_for(Duration::from_secs(60));
        [("onlyonce-outcome", "did-not-run"), ("onlyonce-retention", "0")]
    });
    let app = Router::new().route("/orders", handler).layer(Onlyonce::new(FaultyStore::new()).layer());
    assert_eq!(send(&app, order("k")).await.status, 200);
    assert_eq!(send(&app, order("k")).await.summary(), "409 idempotency_outcome_unknown");

    let handler = post(|attempt: Attempt| async move {
        attempt.keep_for(Duration::from_secs(60));
        [("onlyonce-retention", "0")]
    });
    let app = Router::new().route("/orders", handler).layer(Onlyonce::new(FaultyStore::new()).layer());
    assert!(send(&app, order("k")).await.is_stored());
    assert!(send(&app, order("k")).await.is_replay());
}

/// K03
#[tokio::test]
async fn a_handler_that_needs_an_attempt_refuses_a_request_without_a_key() {
    let app = Router::new()
        .route("/orders", post(|attempt: Attempt| async move { attempt.number().to_string() }))
        .route("/notes", post(|attempt: Option<Attempt>| async move { attempt.is_some().to_string() }))
        .layer(Onlyonce::new(FaultyStore::new()).layer());
    let bare = |path: &str| Request::post(path).body(Body::empty()).unwrap();
    assert_eq!(send(&app, bare("/orders")).await.summary(), "400 idempotency_key_missing");
    assert_eq!(send(&app, bare("/notes")).await.text(), "false");
}

/// X01: where the policy says to run without the store, a handler still has its attempt to go by.
#[tokio::test]
async fn a_handler_that_runs_unprotected_has_an_attempt_too() {
    let store = FaultyStore::new();
    store.always(Some(crate::world::Fault::Refused));
    let policy = Policy { store_down: onlyonce::policy::StoreDown::Run, ..Policy::default() };
    let onlyonce = Onlyonce::new(store).with_policy(policy).unwrap();
    let handler = post(|attempt: Attempt| async move { attempt.downstream_key("charge") });
    let app = Router::new().route("/orders", handler).layer(onlyonce.layer());
    let first = send(&app, order("k")).await;
    assert_eq!((first.status, first.text()), (200, send(&app, order("k")).await.text()));
}

/// K03, D02
#[tokio::test]
async fn it_refuses_in_the_words_of_its_route() {
    let policy =
        Policy { key_from: vec!["header:x-key".parse().unwrap()], ..Policy::of(onlyonce::Dialect::stripe()) };
    let onlyonce = Onlyonce::new(FaultyStore::new()).with_policy(policy).unwrap();
    let handler = post(|attempt: Attempt| async move { attempt.number().to_string() });
    let app = Router::new().route("/orders", handler).layer(onlyonce.layer());
    let answer = send(&app, Request::post("/orders").body(Body::empty()).unwrap()).await;
    let error: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, &error["error"]["type"]), (400, &"idempotency_error".into()));
    assert!(answer.text().contains("x-key"), "{}", answer.text());
}

/// F06: a router nested in another does not see its prefix; the fingerprint does.
#[tokio::test]
async fn one_key_on_two_nested_routers_is_a_reused_key() {
    let onlyonce = Onlyonce::new(FaultyStore::new());
    let items = |name: &'static str| {
        Router::new().route("/items", post(move || async move { name })).layer(onlyonce.layer())
    };
    let app = Router::new().nest("/a", items("a")).nest("/b", items("b"));
    let to = |path: &str| {
        let request = Request::post(path).header("authorization", "t").header("idempotency-key", "k");
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(send(&app, to("/a/items")).await.text(), "a");
    let other = send(&app, to("/b/items")).await;
    assert_eq!(other.summary(), "422 idempotency_key_reused");
    assert!(other.text().contains("another endpoint"), "{}", other.text());
}

/// S01, S05
#[tokio::test]
async fn a_service_tells_callers_apart_by_what_it_knows_of_them() {
    #[derive(Clone)]
    struct Account(&'static str);
    let onlyonce = Onlyonce::new(FaultyStore::new())
        .with_caller(|parts| parts.extensions.get::<Account>().map(|account| Caller::named(account.0)));
    let app = Router::new().route("/orders", post(|| async { "ran" })).layer(onlyonce.layer());
    let by = |account: Option<&'static str>, credential: &str| {
        let mut request =
            Request::post("/orders").header("idempotency-key", "k").header("authorization", credential);
        if let Some(account) = account {
            request = request.extension(Account(account));
        }
        request.body(Body::empty()).unwrap()
    };
    assert!(!send(&app, by(Some("acme"), "old")).await.is_replay());
    assert!(
        send(&app, by(Some("acme"), "refreshed")).await.is_replay(),
        "another credential of the same caller"
    );
    assert!(!send(&app, by(Some("other"), "old")).await.is_replay());
    assert_eq!(send(&app, by(None, "old")).await.summary(), "401 idempotency_scope_missing");
}

/// S01, S04: a layer alone cannot verify, so it takes no source that must be verified before it is believed.
#[test]
fn a_source_that_must_be_verified_is_refused_where_nobody_verifies() {
    for source in ["trusted:x-tenant", "jwt:sub", "certificate"] {
        let with = |onlyonce: Onlyonce| {
            let scope = vec!["header:authorization".parse().unwrap(), source.parse().unwrap()];
            onlyonce.with_policy(Policy { scope, ..Policy::default() })
        };
        let faults = with(Onlyonce::new(FaultyStore::new())).unwrap_err().to_string();
        assert!(faults.starts_with(&format!("policy.scope: {source:?} must be verified")), "{faults}");
        with(Onlyonce::new(FaultyStore::new()).with_verified()).unwrap();
    }
}

/// S01, S04: what a client sends under the name of a trusted header is not what was verified.
#[tokio::test]
async fn a_trusted_header_is_believed_only_where_somebody_has_verified_it() {
    let trusted: Source = "trusted:x-tenant".parse().unwrap();
    let policy =
        Policy { scope: vec!["header:authorization".parse().unwrap(), trusted.clone()], ..Policy::default() };
    let onlyonce = Onlyonce::new(FaultyStore::new()).with_verified().with_policy(policy).unwrap();
    let app = Router::new().route("/orders", post(|| async { "ran" })).layer(onlyonce.layer());
    let by = |verified: Option<&str>, claimed: Option<&str>| {
        let mut request =
            Request::post("/orders").header("idempotency-key", "k").header("authorization", "Bearer t1");
        if let Some(claimed) = claimed {
            request = request.header("x-tenant", claimed);
        }
        if let Some(verified) = verified {
            request = request.extension(Verified::default().with(trusted.clone(), verified));
        }
        request.body(Body::empty()).unwrap()
    };
    for claimed in [None, Some("acme")] {
        let refused = send(&app, by(None, claimed)).await;
        assert_eq!(refused.summary(), "401 idempotency_scope_missing", "{claimed:?}");
    }
    assert!(!send(&app, by(Some("acme"), None)).await.is_replay());
    assert!(send(&app, by(Some("acme"), Some("other"))).await.is_replay(), "what is claimed does not count");
    assert!(!send(&app, by(Some("other"), Some("acme"))).await.is_replay());
}

/// D04
#[test]
fn a_setting_that_cannot_stand_is_an_error_that_names_it_and_the_remedy() {
    let policy = Policy { scope: vec!["jwt:sub".parse().unwrap()], ..Policy::default() };
    let faults =
        Onlyonce::new(Arc::new(onlyonce::store::memory::Memory::new())).with_policy(policy).unwrap_err();
    let text = faults.to_string();
    assert!(text.starts_with("policy.scope: \"jwt:sub\" must be verified"), "{text}");
    let policy = Policy { required: vec![Method::GET], ..Policy::default() };
    assert!(Onlyonce::new(Arc::new(onlyonce::store::memory::Memory::new())).with_policy(policy).is_err());
}

/// O06: the layer is missing, which no client can do anything about.
#[tokio::test]
async fn an_attempt_without_the_layer_is_the_services_fault() {
    let app: Router =
        Router::new().route("/orders", post(|attempt: Attempt| async move { attempt.number().to_string() }));
    for request in [order("k"), Request::post("/orders").body(Body::empty()).unwrap()] {
        let answer = send(&app, request).await;
        assert_eq!(answer.status, 500, "{}", answer.text());
        assert!(answer.text().contains("set up wrongly"), "{}", answer.text());
    }
}

/// It stands wherever a layer can, on a store of any kind.
#[tokio::test]
async fn any_store_will_do_and_it_is_a_layer_itself() {
    use onlyonce::store::Store;
    use onlyonce::store::memory::Memory;
    let shared: Arc<dyn Store> = Arc::new(Memory::new());
    for onlyonce in
        [Onlyonce::new(Memory::new()), Onlyonce::new(Arc::new(Memory::new())), Onlyonce::new(shared)]
    {
        let handler = post(|attempt: Attempt| async move { attempt.number().to_string() });
        let app = Router::new().route("/orders", handler).layer(onlyonce);
        assert_eq!(send(&app, order("k")).await.text(), "1");
        let replayed = send(&app, order("k")).await;
        assert_eq!(replayed.header("idempotent-replayed"), Some("true"));
    }
}

/// P05: a key was never used after the date of the answer that says so, whatever the store's clock is.
#[tokio::test]
async fn a_replay_is_never_older_than_its_own_date() {
    use onlyonce::store::clock::ManualClock;
    use onlyonce::store::memory::Memory;
    // Far ahead of this machine.
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(200 * 365 * 24 * 3600));
    for store in [Memory::new(), Memory::with_clock(clock)] {
        let app = Router::new().route("/orders", post(|| async { "done" })).layer(Onlyonce::new(store));
        send(&app, order("k")).await;
        let replayed = send(&app, order("k")).await;
        let moment = |name: &str| {
            let text = replayed.header(name).unwrap_or_else(|| panic!("no {name}"));
            jiff::fmt::rfc2822::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).timestamp()
        };
        assert!(moment("idempotency-key-created") <= moment("date"));
    }
}

/// S05: a caller that is not identified is told what to send.
#[tokio::test]
async fn who_is_not_identified_is_told_what_to_send() {
    for (source, challenge, detail) in [
        (Source::Header(http::header::AUTHORIZATION), "Bearer", "Send one Authorization header."),
        (
            Source::Header("x-api-key".parse().unwrap()),
            "ApiKey header=\"x-api-key\"",
            "Send one X-Api-Key header.",
        ),
    ] {
        let policy = Policy { scope: vec![source], ..Policy::default() };
        let onlyonce = Onlyonce::new(FaultyStore::new()).with_policy(policy).unwrap();
        let app = Router::new().route("/orders", post(|| async { "done" })).layer(onlyonce);
        let request = Request::post("/orders").header("idempotency-key", "k").body(Body::empty()).unwrap();
        let answer = send(&app, request).await;
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some(challenge)));
        assert!(answer.text().contains(detail), "{}", answer.text());
        assert!(!answer.text().contains("setting"), "{}", answer.text());
    }
}
