//! The handler every measured server has, and the way each of them is started and stopped.
//!
//! `POST /payments` parses a payment and answers 201 with 150 bytes. `X-Delay-Ms` makes it take so long, `X-Status`
//! makes it answer so, and `GET /_count` tells how often it really ran: that is how a storm is judged.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

static RUNS: AtomicU64 = AtomicU64::new(0);

/// The work: what a layer is put around.
pub fn payments() -> Router {
    Router::new().route("/payments", post(pay))
}

/// `POST /upload` takes a body of any size, keeps none of it, and answers with how many bytes came.
pub fn uploads() -> Router {
    Router::new().route("/upload", post(upload))
}

/// Serves `router` on a free port, says which on the first line of stdout, and ends when stdin does. A server thus
/// never outlives the bench, also where that was killed.
pub async fn serve(router: Router) -> io::Result<()> {
    listen(router.route("/_count", get(|| async { RUNS.load(Ordering::Relaxed).to_string() }))).await
}

/// The same for a server that has no work of its own.
pub async fn listen(router: Router) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("ready {}", listener.local_addr()?);
    let server = axum::serve(listener.tap_io(|stream| drop(stream.set_nodelay(true))), router);
    tokio::select! {
        ended = server.into_future() => ended,
        _ = stdin_ended() => Ok(()),
    }
}

async fn stdin_ended() {
    let mut stdin = tokio::io::stdin();
    let mut scrap = [0; 64];
    while stdin.read(&mut scrap).await.is_ok_and(|count| count > 0) {}
}

#[derive(Deserialize)]
struct Order {
    amount: u64,
    currency: String,
    customer: String,
    #[serde(default, rename = "description")]
    _description: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde_json::Value,
}

#[derive(Serialize)]
struct Payment<'a> {
    id: String,
    object: &'a str,
    amount: u64,
    currency: &'a str,
    customer: &'a str,
    status: &'a str,
    created: u64,
}

async fn pay(headers: HeaderMap, body: Bytes) -> Response {
    let run = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(delay_ms) = number(&headers, "x-delay-ms") {
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
    }
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let payment = Payment {
        id: format!("pay_{run:020}"),
        object: "payment",
        amount: order.amount,
        currency: &order.currency,
        customer: &order.customer,
        status: "succeeded",
        created: 1_700_000_000 + run,
    };
    let json = serde_json::to_vec(&payment).expect("a payment has only strings and numbers");
    (status(&headers), [(header::CONTENT_TYPE, "application/json")], json).into_response()
}

async fn upload(mut body: Body) -> Response {
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes += frame.data_ref().map_or(0, Bytes::len),
            Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
        }
    }
    bytes.to_string().into_response()
}

fn status(headers: &HeaderMap) -> StatusCode {
    number(headers, "x-status")
        .and_then(|number| u16::try_from(number).ok())
        .and_then(|code| StatusCode::from_u16(code).ok())
        .unwrap_or(StatusCode::CREATED)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
