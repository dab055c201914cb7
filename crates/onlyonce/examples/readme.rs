//! The service of the README: the least that is complete.

use std::sync::Arc;

use axum::{Router, routing::post};
use onlyonce::store::sqlite::{Options, Sqlite};
use onlyonce::worker::{Background, Workers};
use onlyonce::{Attempt, Effects, Onlyonce, Policy};

async fn charge(attempt: Attempt) -> &'static str {
    // The same on every attempt of this request: give it to the bank.
    let _bank_key = attempt.downstream_key("charge");
    "charged"
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Sqlite::open("onlyonce.db", Options::default()).await?;
    let policy = Policy { effects: Effects::Keyed, ..Policy::default() };
    let onlyonce = Onlyonce::new(Arc::new(store)).with_policy(policy)?;
    let _workers = Workers::start(onlyonce.engine(), &Background::default());
    let app = Router::new().route("/payments", post(charge)).layer(onlyonce.layer());

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app).with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) }).await?;
    onlyonce.engine().idle().await; // work whose client hung up
    Ok(())
}
