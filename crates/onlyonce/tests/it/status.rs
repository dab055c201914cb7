//! Callers ask about their own key.

use axum::body::Body;
use http::Request;
use onlyonce::Policy;
use onlyonce::policy::{On5xx, OnExpired};
use std::time::Duration;

use crate::world::{Answer, World, order, order_with};

async fn ask(world: &World, path: &str, caller: Option<&str>) -> Answer {
    let mut request = Request::get(path);
    if let Some(caller) = caller {
        request = request.header("authorization", caller);
    }
    world.send(request.body(Body::empty()).unwrap()).await
}

const T1: Option<&str> = Some("Bearer t1");

/// O05
#[tokio::test(start_paused = true)]
async fn a_caller_learns_how_its_key_stands() {
    let world = World::new(Policy::default());
    assert_eq!(ask(&world, "/_onlyonce/keys/k", T1).await.status, 404);
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    let running = ask(&world, "/_onlyonce/keys/k", T1).await;
    assert_eq!((running.status, running.header("retry-after")), (202, Some("1")));
    assert_eq!(ask(&world, "/_onlyonce/keys/k/response", T1).await.status, 202);
    world.handler.open(1);
    let first = first.await.unwrap();
    let completed = ask(&world, "/_onlyonce/keys/k", T1).await;
    let told: serde_json::Value = serde_json::from_slice(&completed.body).unwrap();
    assert_eq!((completed.status, &told["state"], &told["status"]), (200, &"completed".into(), &201.into()));
    assert!(told["created_at"].is_string() && told["expires_at"].is_string(), "{told}");
    let response = ask(&world, "/_onlyonce/keys/k/response", T1).await;
    assert!(response.is_replay());
    assert_eq!((response.status, &response.body), (first.status, &first.body));
}

/// S06
#[tokio::test(start_paused = true)]
async fn a_key_of_another_caller_looks_like_one_that_never_existed() {
    let world = World::new(Policy::default());
    world.send(order("k")).await;
    let foreign = ask(&world, "/_onlyonce/keys/k", Some("Bearer t2")).await;
    let absent = ask(&world, "/_onlyonce/keys/never", T1).await;
    assert_eq!((foreign.status, &foreign.body, &foreign.headers), (404, &absent.body, &absent.headers));
    let response = ask(&world, "/_onlyonce/keys/k/response", Some("Bearer t2")).await;
    assert_eq!((response.status, response.body), (404, absent.body));
    assert_eq!(ask(&world, "/_onlyonce/keys/k", None).await.summary(), "401 idempotency_scope_missing");
}

/// O05
#[tokio::test(start_paused = true)]
async fn what_has_no_answer_to_give_says_why() {
    let policy = Policy {
        on_5xx: On5xx::Unknown,
        retention: Duration::from_secs(10),
        on_expired: OnExpired::Gone,
        ..Policy::default()
    };
    let world = World::new(policy);
    world.send(order_with("unknown", &[("x-status", "500")])).await;
    world.send(order_with("released", &[("x-status", "429")])).await;
    world.send(order("gone")).await;
    assert_eq!(ask(&world, "/_onlyonce/keys/unknown", T1).await.status, 200);
    let withheld = ask(&world, "/_onlyonce/keys/unknown/response", T1).await;
    assert_eq!(withheld.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(ask(&world, "/_onlyonce/keys/released", T1).await.status, 200);
    assert_eq!(ask(&world, "/_onlyonce/keys/released/response", T1).await.status, 404);
    world.pass(Duration::from_secs(11)).await;
    for path in ["/_onlyonce/keys/gone", "/_onlyonce/keys/gone/response"] {
        assert_eq!(ask(&world, path, T1).await.summary(), "410 idempotency_key_expired", "{path}");
    }
    assert_eq!(ask(&world, "/_onlyonce/keys/released", T1).await.status, 404);
}

/// S03, O05
#[tokio::test(start_paused = true)]
async fn where_the_scope_has_the_route_the_question_names_it() {
    let policy = Policy {
        scope: vec!["header:authorization".parse().unwrap(), "route".parse().unwrap()],
        ..Policy::default()
    };
    let world = World::new(policy);
    world.send(order("k")).await;
    let refund = Request::post("/refunds")
        .header("authorization", "Bearer t1")
        .header("idempotency-key", "k")
        .body(Body::from("{}"))
        .unwrap();
    assert_eq!(world.send(refund).await.summary(), "201 run 2", "one key on two endpoints is two operations");
    assert_eq!(ask(&world, "/_onlyonce/keys/k?route=POST%20/orders", T1).await.status, 200);
    assert_eq!(ask(&world, "/_onlyonce/keys/k?route=POST+/refunds", T1).await.status, 200);
    assert_eq!(ask(&world, "/_onlyonce/keys/k?route=POST%20/other", T1).await.status, 404);
}
