//! Whether the process is alive, and whether it is ready.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use onlyonce::health::Health;
use serde_json::{Value, json};

use super::Admin;

/// The process is alive: nothing else is checked.
pub(super) fn healthz() -> Response {
    Json(json!({ "status": "alive", "version": env!("CARGO_PKG_VERSION") })).into_response()
}

/// Whether keyed requests can be served. A failed store is distinguished from a slow one.
pub(super) async fn readyz(admin: &Admin) -> Response {
    let health = admin.engine.health(admin.store_timeout).await;
    let is_ready = health.is_ready() && admin.is_serving();
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let told = if is_ready { "ready" } else { "not ready" };
    (status, Json(json!({ "status": told, "store": store(health) }))).into_response()
}

/// The same for metrics: nothing is logged.
pub(super) async fn is_ready(admin: &Admin) -> bool {
    admin.is_serving() && admin.engine.health(admin.store_timeout).await.is_ready()
}

/// How the store is doing. Its error may name hosts and files: it is in the log, not in the answer.
pub(super) fn store(health: Health) -> Value {
    match health {
        Health::Well { took } => json!({ "state": "ok", "millis": millis(took) }),
        Health::Slow { took } => json!({ "state": "slow", "millis": millis(took) }),
        Health::Stalled { waited } => {
            let detail = format!("no answer within {} ms", waited.as_millis());
            json!({ "state": "stalled", "millis": millis(waited), "detail": detail })
        }
        Health::Unfit { code, says, remedy } => {
            tracing::warn!(code, remedy, "not ready: {says}");
            json!({ "state": "failed", "code": code, "detail": format!("{remedy}; see the log") })
        }
        Health::Failed { error } => {
            tracing::warn!(%error, "not ready: the store failed");
            json!({ "state": "failed", "detail": "the store answered with an error; see the log" })
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
