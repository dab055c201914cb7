//! axum-idempotent as its documentation sets it up: the layer with the `Idempotency-Key` header, on sessions in memory.
//!
//! It keeps answers in the caller's session, so the tester sends a session cookie for each caller.

use std::env;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, SessionLayer};
use serde_json::{Value, json};
use tower_cookies::CookieManagerLayer;

static PAYMENTS: AtomicU64 = AtomicU64::new(0);
const RETENTION_SECONDS: i64 = 24 * 60 * 60;

async fn pay(headers: HeaderMap, Json(body): Json<Value>) -> Response {
    if !headers.contains_key(header::AUTHORIZATION) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let id = PAYMENTS.fetch_add(1, Ordering::Relaxed) + 1;
    (StatusCode::CREATED, Json(json!({ "id": id, "amount": body["amount"] }))).into_response()
}

async fn count() -> Json<Value> {
    Json(json!({ "count": PAYMENTS.load(Ordering::Relaxed) }))
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("Idempotency-Key"), true)
        .expire_after(RETENTION_SECONDS);
    let sessions = SessionLayer::new(Arc::new(MokaStore::builder().build()))
        .with_cookie_options(CookieOptions::build().name("session"));
    let router = Router::new()
        .route("/payments", post(pay))
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(sessions)
        .layer(CookieManagerLayer::new())
        .route("/count", get(count));
    let port = env::var("PORT").expect("PORT is set");
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    axum::serve(listener, router).await
}
