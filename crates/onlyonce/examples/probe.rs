//! A service in Rust that can be asked whether a payment happened: its handler dies after the charge, and the reconciler
//! finds out. `cargo run --example probe`

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use onlyonce::probe::{Answer, Probes, Question, asking};
use onlyonce::record::{Response, Verdict};
use onlyonce::store::memory::Memory;
use onlyonce::worker::{Background, Workers};
use onlyonce::{Attempt, Effects, Onlyonce, Policy};
use tower::ServiceExt;

/// The bank's ledger: the token of an attempt, and the payment it made. `None`: the attempt was given up, and may not pay.
type Ledger = Arc<Mutex<HashMap<String, Option<String>>>>;

async fn pay(Extension(ledger): Extension<Ledger>, attempt: Attempt) -> StatusCode {
    let mut ledger = ledger.lock().expect("nobody panics with the lock");
    if ledger.contains_key(&attempt.handle().to_string()) {
        attempt.did_not_run();
        return StatusCode::CONFLICT;
    }
    ledger.insert(attempt.handle().to_string(), Some("paid 12.00".to_owned()));
    // The answer gets lost, as answers do.
    StatusCode::GATEWAY_TIMEOUT
}

/// Whether the payment of an attempt happened. Where it did not, it never will: the token is taken.
fn verdict(ledger: &Ledger, question: &Question) -> Verdict {
    let mut ledger = ledger.lock().expect("nobody panics with the lock");
    match ledger.entry(question.handle.to_string()).or_insert(None) {
        None => Verdict::DidNotHappen { never_will: true },
        Some(payment) => {
            let body = Bytes::from(payment.clone());
            Verdict::Happened(Some(Arc::new(Response { status: 201, headers: Vec::new(), body })))
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ledger = Ledger::default();
    let asked = ledger.clone();
    let probe = asking(move |question: Question| {
        let answer = Answer::new(verdict(&asked, &question));
        async move { Ok(answer) }
    });

    // Queryable: in doubt, ask. The first question comes a second after the doubt.
    let policy = Policy {
        effects: Effects::Queryable,
        reconcile_first: Some(Duration::from_secs(1)),
        ..Policy::default()
    };
    let onlyonce = Onlyonce::new(Arc::new(Memory::new())).with_policy(policy)?;
    onlyonce.engine().use_probes(Probes::default().with_route("POST /payments", Arc::new(probe)));
    let workers = Workers::start(onlyonce.engine(), &Background::default());
    let app =
        Router::new().route("/payments", post(pay)).layer(onlyonce.layer()).layer(Extension(ledger.clone()));

    let request = || {
        let request = Request::post("/payments").header("authorization", "Bearer ann");
        request.header("idempotency-key", "k-1").body(Body::empty())
    };
    println!("first: {}", app.clone().oneshot(request()?).await?.status());
    loop {
        let retry = app.clone().oneshot(request()?).await?;
        println!("retry: {}", retry.status());
        if retry.status() == StatusCode::CREATED {
            break;
        }
        assert_eq!(retry.status(), StatusCode::CONFLICT, "refused until it is known");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(ledger.lock().expect("nobody panics with the lock").len(), 1, "charged once");
    drop(workers);
    Ok(())
}
