//! The examples do what they say.

#[expect(dead_code, reason = "an example's main is run by its users")]
#[path = "../../../onlyonce/examples/payments.rs"]
mod payments;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use onlyonce::Onlyonce;
use onlyonce::store::memory::Memory;
use serde_json::Value;
use tower::ServiceExt;

fn app() -> Router {
    let onlyonce = Onlyonce::new(Arc::new(Memory::new()));
    payments::app(&onlyonce, Arc::default()).expect("the example's policies are valid")
}

async fn send(app: &Router, credential: &str, key: &str, path: &str, body: &str) -> Response<Body> {
    let request = Request::post(path)
        .header("authorization", format!("Bearer {credential}"))
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()))
        .expect("a valid request");
    app.clone().oneshot(request).await.expect("the service answers")
}

async fn ask(app: &Router, credential: &str, path: &str) -> Response<Body> {
    let request = Request::get(path).header("authorization", format!("Bearer {credential}"));
    let request = request.body(Body::empty()).expect("a valid request");
    app.clone().oneshot(request).await.expect("the service answers")
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn is_replay(response: &Response<Body>) -> bool {
    response.headers().contains_key("idempotent-replayed")
}

const ORDER: &str = r#"{"card":"4242","amount":1200}"#;

/// S04
#[tokio::test]
async fn a_refreshed_credential_is_the_same_caller() {
    let app = app();
    let first = send(&app, "ann-1", "k", "/payments", ORDER).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let again = send(&app, "ann-2", "k", "/payments", ORDER).await;
    assert!(is_replay(&again));
    assert_eq!(text(first).await, text(again).await);
    let other = send(&app, "bob-1", "k", "/payments", ORDER).await;
    assert!(!is_replay(&other));
}

/// C05
#[tokio::test]
async fn a_declined_card_releases_the_key() {
    let app = app();
    let declined = r#"{"card":"0000","amount":1200}"#;
    for _ in 0..2 {
        let answer = send(&app, "ann-1", "k", "/payments", declined).await;
        assert_eq!(answer.status(), StatusCode::PAYMENT_REQUIRED);
        assert_eq!(answer.headers()["idempotency-stored"], "false");
        assert!(!is_replay(&answer));
    }
}

/// C05, T01
#[tokio::test]
async fn a_refund_is_kept_for_a_week() {
    let app = app();
    let expires = |response: &Response<Body>| response.headers()["idempotency-key-expires"].clone();
    let payment = send(&app, "ann-1", "p", "/payments", ORDER).await;
    let refund = send(&app, "ann-1", "r", "/refunds", r#"{"charge":1}"#).await;
    assert_eq!(refund.status(), StatusCode::ACCEPTED);
    assert_ne!(expires(&payment), expires(&refund));
}

/// K03
#[tokio::test]
async fn a_key_is_required_where_the_policy_says_so_and_optional_elsewhere() {
    let app = app();
    let send = async |path: &str| {
        let request = Request::post(path).header("authorization", "Bearer ann-1").body(Body::empty());
        app.clone().oneshot(request.expect("a valid request")).await.expect("the service answers")
    };
    assert_eq!(send("/payments").await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(text(send("/notes").await).await, "noted\n");
}

/// O05, S06
#[tokio::test]
async fn callers_ask_about_their_own_key_whatever_its_route() {
    let app = app();
    send(&app, "ann-1", "p", "/payments", ORDER).await;
    let state = ask(&app, "ann-2", "/_onlyonce/keys/p").await;
    assert_eq!(state.status(), StatusCode::OK);
    let state: Value = serde_json::from_str(&text(state).await).expect("JSON");
    assert_eq!(state["state"], "completed");
    let stored = ask(&app, "ann-1", "/_onlyonce/keys/p/response").await;
    assert_eq!(stored.status(), StatusCode::CREATED);
    assert!(is_replay(&stored));
    assert_eq!(ask(&app, "bob-1", "/_onlyonce/keys/p").await.status(), StatusCode::NOT_FOUND);
}
