//! The sample payments service: what a user would write, in any language. It does not know about keys.
//!
//! It can be killed: its port closes and every connection breaks, whatever is in flight, as when a process dies.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::bank::{Bank, Card, Charge, Payment};
use super::client::{ASKED, PAYMENTS};

/// How many charges the dashboard shows.
const LAST_CHARGES: usize = 8;

/// The service while it runs.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    bank: Arc<Bank>,
    serving: JoinHandle<()>,
    killed: Arc<Notify>,
}

impl Service {
    pub(crate) async fn start(bank: Arc<Bank>, address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!(
                "the sample service cannot listen on \"{address}\"; choose another with --service 127.0.0.1:0"
            )
        })?;
        let address = listener.local_addr()?;
        let killed = Arc::new(Notify::new());
        let serving = tokio::spawn(serve(listener, bank.clone(), killed.clone()));
        Ok(Self { address, bank, serving, killed })
    }

    pub(crate) fn any_port() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    /// Kills it, as if its process died: its port and every connection are closed.
    pub(crate) async fn kill(&mut self) {
        self.killed.notify_one();
        // It ends, even if something in it panicked.
        drop((&mut self.serving).await);
    }

    /// Starts again on the same port.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        *self = Self::start(self.bank.clone(), self.address).await?;
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Accepts until it is killed, which closes its connections.
async fn serve(listener: TcpListener, bank: Arc<Bank>, killed: Arc<Notify>) {
    let dies = Arc::new(Notify::new());
    let app = Router::new()
        .route(PAYMENTS, post(pay))
        .route(ASKED, post(pay))
        .route("/probe", get(probe))
        .route("/ledger", get(ledger))
        .with_state(Served { bank, dies: dies.clone() });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let service = TowerToHyperService::new(app.clone());
                connections.spawn(async move {
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    // A broken connection does not affect the others.
                    drop::<Result<(), _>>(connection.await);
                });
            }
            // In the demo's own process, dying means that no request gets an answer.
            () = dies.notified() => connections.abort_all(),
            () = killed.notified() => break,
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    // Aborting alone closes them a moment later, and a request in between would be lost.
    connections.shutdown().await;
}

#[derive(Clone)]
struct Served {
    bank: Arc<Bank>,
    /// Breaks every connection.
    dies: Arc<Notify>,
}

async fn pay(State(served): State<Served>, headers: HeaderMap, Json(order): Json<Value>) -> Response {
    let token = headers.get("onlyonce-token").and_then(|token| token.to_str().ok());
    let Some(payment) = payment(&order, token) else {
        return (StatusCode::BAD_REQUEST, "send order, card and amount\n").into_response();
    };
    let is_crashing = payment.card == Card::Crashing;
    // The bank was called: it charges even if its caller is cancelled.
    let bank = served.bank.clone();
    let charging = tokio::spawn(async move { bank.charge(payment).await });
    let Ok(Ok(charge)) = charging.await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the bank is closed\n").into_response();
    };
    if is_crashing {
        served.dies.notify_one();
        return std::future::pending::<Response>().await;
    }
    created(&charge)
}

fn payment(order: &Value, token: Option<&str>) -> Option<Payment> {
    Some(Payment {
        order: order["order"].as_str()?.to_owned(),
        card: Card::named(order["card"].as_str()?)?,
        amount: order["amount"].as_u64()?,
        token: token.map(str::to_owned),
    })
}

fn created(charge: &Charge) -> Response {
    (StatusCode::CREATED, [(header::LOCATION, location(charge))], Json(receipt(charge))).into_response()
}

fn location(charge: &Charge) -> String {
    format!("{PAYMENTS}/{}", charge.number)
}

/// Includes the charge's number, so that a second charge would differ.
pub(crate) fn receipt(charge: &Charge) -> Value {
    json!({ "payment": charge.number, "order": charge.payment.order, "amount": charge.payment.amount })
}

/// What became of an attempt: the gateway asks this about payments whose answer was lost.
async fn probe(State(served): State<Served>, uri: Uri) -> Json<Value> {
    // A token needs no decoding: hex digits and a dot.
    let token = uri.query().unwrap_or_default().split('&').find_map(|part| part.strip_prefix("token="));
    let charge = token.and_then(|token| served.bank.charge_of(token));
    Json(match charge {
        Some(charge) => json!({
            "verdict": "happened",
            "response": {
                "status": 201,
                "headers": { "content-type": "application/json", "location": location(&charge) },
                "body": receipt(&charge).to_string(),
            },
        }),
        None => json!({ "verdict": "did-not-happen" }),
    })
}

async fn ledger(State(served): State<Served>) -> Result<Json<Value>, Infallible> {
    Ok(Json(served.bank.charges().iter().map(line).collect()))
}

/// How many charges there were, and the last of them, for the dashboard.
pub(crate) fn last_charges(bank: &Bank) -> Value {
    let charges = bank.charges();
    let last: Vec<_> = charges.iter().rev().take(LAST_CHARGES).map(line).collect();
    json!({ "count": charges.len(), "last": last })
}

/// A line of the ledger.
fn line(charge: &Charge) -> Value {
    let Payment { order, card, amount, token: _ } = &charge.payment;
    json!({ "payment": charge.number, "order": order, "card": card.name(), "amount": amount })
}
