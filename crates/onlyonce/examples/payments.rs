//! A payments service on axum, with every part of the layer that a service of one's own needs.
//!
//! * Callers are told apart by their account, which a middleware finds, not by the bytes of their credential.
//! * Three groups of routes have three policies and share one engine.
//! * A handler forwards a key of its own to the bank, says when nothing was done, and says how long its answer is kept.
//! * Records are in one file, `payments.db`, and outlive a restart.
//! * The service stops cleanly: it waits for work whose client has hung up.
//!
//! ```text
//! cargo run --package onlyonce --example payments
//! curl -i http://127.0.0.1:3000/payments -H 'Authorization: Bearer ann-1' -H 'Idempotency-Key: 7f1c' \
//!   --json '{"card":"4242","amount":1200}'
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use onlyonce::store::sqlite::{Options, Sqlite};
use onlyonce::worker::{Background, Workers};
use onlyonce::{Attempt, Caller, Effects, Faults, Onlyonce, Policy};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Sqlite::open("payments.db", Options::default()).await?;
    let onlyonce = Onlyonce::new(Arc::new(store));
    let app = app(&onlyonce, Arc::new(Bank::default()))?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("payments on http://{}; Ctrl-C stops", listener.local_addr()?);

    let workers = Workers::start(onlyonce.engine(), &Background::default());
    let mut terminate = signal(SignalKind::terminate())?; // by Docker, Kubernetes, systemd
    let stop = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = tokio::signal::ctrl_c() => {} }
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    drop(workers);
    // Nobody is connected any more, but work may go on for clients that hung up.
    onlyonce.engine().idle().await;
    Ok(())
}

/// The routes, each group with the policy that suits its work.
pub(crate) fn app(onlyonce: &Onlyonce, bank: Arc<Bank>) -> Result<Router, Faults> {
    let onlyonce = onlyonce
        .clone()
        .for_service("payments")
        .with_caller(|parts| parts.extensions.get::<Account>().map(|account| Caller::named(&account.0)));
    // The bank knows the key we give it, so work that was lost may be sent again while the bank remembers.
    let keyed = Policy {
        effects: Effects::Keyed,
        downstream_retention: Duration::from_secs(23 * 3600),
        required: vec![Method::POST],
        ..Policy::default()
    };
    // The mail to the book-keeper knows no key: work that was lost waits for a person.
    let opaque = Policy { effects: Effects::Opaque, required: vec![Method::POST], ..Policy::default() };
    let payments = Router::new().route("/payments", post(pay));
    let refunds = Router::new().route("/refunds", post(refund));
    let notes = Router::new().route("/notes", post(note));
    Ok(Router::new()
        .merge(payments.layer(onlyonce.clone().with_policy(keyed)?.layer()))
        .merge(refunds.layer(onlyonce.clone().with_policy(opaque)?.layer()))
        .merge(notes.layer(onlyonce.layer()))
        // Added last, so outermost: the account is known before the layer asks for it.
        .layer(middleware::from_fn(authenticate))
        .with_state(bank))
}

/// Who calls. A refreshed credential is the same account, so a retry under it is still a retry.
#[derive(Clone, Debug)]
struct Account(String);

async fn authenticate(mut request: Request, next: Next) -> Response {
    let credential = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // A real service looks the credential up; here it is the account's name and a serial number.
    let account = credential.and_then(|value| value.strip_prefix("Bearer ")?.split_once('-'));
    let Some((account, _serial)) = account else { return StatusCode::UNAUTHORIZED.into_response() };
    let account = Account(account.to_owned());
    request.extensions_mut().insert(account);
    next.run(request).await
}

/// `POST /payments`: one charge at the bank.
async fn pay(State(bank): State<Arc<Bank>>, attempt: Attempt, Json(order): Json<Value>) -> Response {
    let (Some(card), Some(amount)) = (order["card"].as_str(), order["amount"].as_u64()) else {
        // Kept like any 4xx: the same key and body would be just as wrong tomorrow.
        return (StatusCode::BAD_REQUEST, "send card and amount").into_response();
    };
    // The same on every attempt of this request: the bank charges once, however often it is asked.
    match bank.charge(&attempt.downstream_key("charge"), card, amount) {
        Ok(charge) => {
            (StatusCode::CREATED, Json(json!({ "charge": charge, "amount": amount }))).into_response()
        }
        Err(Declined) => {
            // Nothing was charged, and the next try may find money: release the key instead of keeping the 402.
            attempt.did_not_run();
            (StatusCode::PAYMENT_REQUIRED, "declined").into_response()
        }
    }
}

/// `POST /refunds`: kept for a week, since refunds are retried by people.
async fn refund(attempt: Attempt, Json(order): Json<Value>) -> Response {
    attempt.keep_for(Duration::from_secs(7 * 24 * 3600));
    (StatusCode::ACCEPTED, Json(json!({ "refunded": order["charge"], "attempt": attempt.number() })))
        .into_response()
}

/// `POST /notes`: protected where the client sends a key, an ordinary write where it does not.
async fn note(attempt: Option<Attempt>) -> &'static str {
    if attempt.is_some() { "noted, safe to retry\n" } else { "noted\n" }
}

/// A bank that remembers the keys it is given.
#[derive(Debug, Default)]
pub(crate) struct Bank {
    charges: Mutex<HashMap<String, usize>>,
}

#[derive(Debug)]
struct Declined;

impl Bank {
    fn charge(&self, key: &str, card: &str, amount: u64) -> Result<usize, Declined> {
        if card == "0000" || amount == 0 {
            return Err(Declined);
        }
        let mut charges = self.charges.lock().expect("nothing panics while it holds the charges");
        let number = charges.len() + 1;
        Ok(*charges.entry(key.to_owned()).or_insert(number))
    }
}
