//! The handler every measured server has, and the way each of them is started and stopped.
//!
//! `POST /payments` parses a payment and answers 201 with 150 bytes. `X-Delay-Ms` makes it take so long, `X-Status`
//! makes it answer so, `X-Answer-Bytes` makes the answer at least so long, and `GET /_count` says how often it really ran: that
//! is how a storm is judged. Handlers that keep payments in a database make theirs with [`pay`]. `GET /probe` never knows what
//! became of a payment.

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
    Router::new().route("/payments", post(handle))
}

/// `POST /upload` takes a body of any size, keeps none of it, and answers with how many bytes came.
pub fn uploads() -> Router {
    Router::new().route("/upload", post(upload))
}

/// `GET /probe` says that it does not know, and counts that it was asked.
pub fn probe() -> Router {
    Router::new().route("/probe", get(answer_question))
}

async fn answer_question() -> impl IntoResponse {
    RUNS.fetch_add(1, Ordering::Relaxed);
    ([(header::CONTENT_TYPE, "application/json")], r#"{"verdict":"unknown"}"#)
}

/// Serves `router` on a free port, says which on the first line of stdout, and ends when stdin does. A server thus
/// never outlives the bench, also where that was killed.
pub async fn serve(router: Router) -> io::Result<()> {
    serve_at("127.0.0.1", router).await
}

/// The same at another address of this machine.
pub async fn serve_at(address: &str, router: Router) -> io::Result<()> {
    let counting = get(|| async { RUNS.load(Ordering::Relaxed).to_string() });
    listen_at(address, router.route("/_count", counting)).await
}

/// The same for a server that has no work of its own.
pub async fn listen(router: Router) -> io::Result<()> {
    listen_at("127.0.0.1", router).await
}

async fn listen_at(address: &str, router: Router) -> io::Result<()> {
    let listener = TcpListener::bind((address, 0)).await?;
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

/// A payment that was made: its row, and the answer.
pub struct Paid {
    pub amount: i64,
    pub currency: String,
    pub customer: String,
    pub json: String,
}

/// Where payments are kept on PostgreSQL, and the statement that keeps one: amount, currency, customer.
pub const PAYMENT_TABLE: &str = "
    CREATE TABLE IF NOT EXISTS payment (
        id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        amount     bigint NOT NULL,
        currency   text NOT NULL,
        customer   text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    )";
pub const PAYMENT_INSERT: &str = "INSERT INTO payment (amount, currency, customer) VALUES ($1, $2, $3)";

/// Makes the payment that a body asks for.
pub fn pay(body: &[u8]) -> Result<Paid, serde_json::Error> {
    paid(body, RUNS.fetch_add(1, Ordering::Relaxed) + 1)
}

fn paid(body: &[u8], run: u64) -> Result<Paid, serde_json::Error> {
    let order: Order = serde_json::from_slice(body)?;
    let payment = Payment {
        id: format!("pay_{run:020}"),
        object: "payment",
        amount: order.amount,
        currency: &order.currency,
        customer: &order.customer,
        status: "succeeded",
        created: 1_700_000_000 + run,
    };
    let json = serde_json::to_string(&payment).expect("a payment has only strings and numbers");
    let amount = i64::try_from(order.amount).unwrap_or(i64::MAX);
    Ok(Paid { amount, currency: order.currency, customer: order.customer, json })
}

async fn handle(headers: HeaderMap, body: Bytes) -> Response {
    let run = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(delay_ms) = number(&headers, "x-delay-ms") {
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
    }
    match paid(&body, run) {
        Ok(Paid { mut json, .. }) => {
            if let Some(bytes) = number(&headers, "x-answer-bytes") {
                let missing = usize::try_from(bytes).unwrap_or(0).saturating_sub(json.len());
                // Spaces behind a JSON text are none of it.
                json.extend(std::iter::repeat_n(' ', missing));
            }
            (status(&headers), [(header::CONTENT_TYPE, "application/json")], json).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
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
