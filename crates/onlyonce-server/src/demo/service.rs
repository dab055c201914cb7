//! The sample payments service: what a user would write, and the layer around it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use onlyonce::store::Store;
use onlyonce::worker::{Background, Workers};
use onlyonce::{Attempt, Onlyonce, Policy};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::bank::{Bank, Card, Charge, Payment};

/// The service and what the story wants to see of it.
#[derive(Debug)]
pub(crate) struct Sample {
    bank: Arc<Bank>,
    pub(crate) onlyonce: Onlyonce,
    /// The sweeper and the reaper.
    _workers: Workers,
    /// The server has noticed that a client hung up.
    pub(crate) hang_ups: Arc<Notify>,
}

impl Sample {
    pub(crate) fn new(bank: Arc<Bank>, store: Arc<dyn Store>, name: &str) -> Self {
        let policy = Policy { required: vec![Method::POST], ..Policy::default() };
        let onlyonce = Onlyonce::new(store)
            .for_service(name)
            .with_policy(policy)
            .expect("the defaults with a required key are a valid policy");
        let workers = Workers::start(onlyonce.engine(), &Background::default());
        Self { bank, onlyonce, _workers: workers, hang_ups: Arc::default() }
    }

    pub(crate) fn app(&self) -> Router {
        Router::new()
            .route("/payments", post(pay))
            .route("/ledger", get(ledger))
            .layer(self.onlyonce.layer())
            .layer(middleware::from_fn_with_state(self.hang_ups.clone(), notice_hang_ups))
            .with_state(self.bank.clone())
    }
}

async fn pay(State(bank): State<Arc<Bank>>, attempt: Attempt, Json(order): Json<Value>) -> Response {
    let Some(payment) = payment(&order) else {
        return (StatusCode::BAD_REQUEST, "send order, card and amount\n").into_response();
    };
    let is_crashing = payment.card == Card::Crashing;
    let Ok(charge) = bank.charge(payment, &attempt.downstream_key("charge")).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the bank is closed\n").into_response();
    };
    if is_crashing {
        // A panic all the same; this way no backtrace is printed into the middle of the story.
        std::panic::resume_unwind(Box::new("the handler panicked after it had charged"));
    }
    created(&charge)
}

fn payment(order: &Value) -> Option<Payment> {
    Some(Payment {
        order: order["order"].as_str()?.to_owned(),
        card: Card::named(order["card"].as_str()?)?,
        amount: order["amount"].as_u64()?,
    })
}

/// Names the charge, so that a second one could not have the same bytes.
fn created(charge: &Charge) -> Response {
    let location = format!("/payments/{}", charge.number);
    let body =
        json!({ "payment": charge.number, "order": charge.payment.order, "amount": charge.payment.amount });
    (StatusCode::CREATED, [(header::LOCATION, location)], Json(body)).into_response()
}

async fn ledger(State(bank): State<Arc<Bank>>) -> Json<Value> {
    let charges = bank.charges();
    let charges = charges.iter().map(|charge| {
        let Payment { order, card, amount } = &charge.payment;
        json!({ "payment": charge.number, "order": order, "card": card.name(), "amount": amount })
    });
    Json(charges.collect())
}

/// Around the layer: a request whose answer nobody waits for any more is dropped here.
async fn notice_hang_ups(State(hang_ups): State<Arc<Notify>>, request: Request, next: Next) -> Response {
    let unanswered = Unanswered(Some(hang_ups));
    let response = next.run(request).await;
    unanswered.answered();
    response
}

struct Unanswered(Option<Arc<Notify>>);

impl Unanswered {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(hang_ups) = &self.0 {
            hang_ups.notify_one();
        }
    }
}
