//! The admin port: liveness, readiness and metrics.
//!
//! `/healthz` and `/readyz` are for orchestrators and say nothing worth hiding. `/metrics` names routes: from another
//! machine it requires a token.

mod figures;
mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use onlyonce::Engine;
use onlyonce::health::Health;
use serde_json::json;
use tokio::net::TcpListener;

pub(crate) use figures::Figures;

use crate::config::AdminToken;
use crate::problem;
use crate::webhook::{self, Webhooks};

/// The state of the admin port.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) engine: Arc<Engine>,
    pub(crate) figures: Figures,
    pub(crate) tokens: Vec<AdminToken>,
    /// How long `/readyz` waits for the store.
    pub(crate) store_timeout: Duration,
}

/// Serves until the task is dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    admin: Arc<Admin>,
    webhooks: Arc<Webhooks>,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(not_found)
        .with_state(admin)
        .merge(webhook::router(webhooks));
    axum::serve(listener, routes.into_make_service_with_connect_info::<SocketAddr>()).await
}

/// The process is alive: nothing else is checked.
async fn healthz() -> Response {
    answer(StatusCode::OK, json!({ "status": "alive", "version": env!("CARGO_PKG_VERSION") }))
}

/// Whether keyed requests can be served. A failed store is distinguished from a slow one.
async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let health = admin.engine.health(admin.store_timeout).await;
    let status = if health.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let store = match health {
        Health::Well { took } => json!({ "state": "ok", "millis": millis(took) }),
        Health::Slow { took } => json!({ "state": "slow", "millis": millis(took) }),
        Health::Stalled { waited } => {
            let detail = format!("no answer within {} ms", waited.as_millis());
            json!({ "state": "stalled", "millis": millis(waited), "detail": detail })
        }
        Health::Unfit { code, says, remedy } => {
            tracing::warn!(code, remedy, "not ready: {says}");
            json!({ "state": "failed", "code": code, "detail": format!("{remedy}; the log has more") })
        }
        // The store's error may name hosts and files: it is in the log, not in the answer.
        Health::Failed { error } => {
            tracing::warn!(%error, "not ready: the store failed");
            json!({ "state": "failed", "detail": "the store answered with an error; the log has it" })
        }
    };
    let told = if status == StatusCode::OK { "ready" } else { "not ready" };
    answer(status, json!({ "status": told, "store": store }))
}

async fn metrics(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    if !token::may_read(&admin.tokens, peer.ip(), &headers) {
        return refused();
    }
    let text = admin.figures.render(&admin.engine).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn refused() -> Response {
    let mut response =
        problem(StatusCode::UNAUTHORIZED, "From elsewhere than this machine it takes a token.");
    let bearer = header::HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    response
}

async fn not_found() -> Response {
    problem(StatusCode::NOT_FOUND, "There is /healthz, /readyz and /metrics.")
}

fn problem(status: StatusCode, detail: &str) -> Response {
    problem::plain(status, detail).map(Body::from)
}

fn answer(status: StatusCode, body: serde_json::Value) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}
