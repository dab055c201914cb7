//! The service of the README: the least that is complete.

use axum::{Router, routing::post};
use onlyonce::store::sqlite::{Options, Sqlite};
use onlyonce::worker::{Background, Workers};
use onlyonce::{Attempt, Effects, Onlyonce, Policy};
use tokio::signal::unix::{SignalKind, signal};

async fn charge(attempt: Attempt) -> &'static str {
    // Give this key to the bank. It is the same on every attempt of this request.
    let _bank_key = attempt.downstream_key("charge");
    "charged"
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Sqlite::open("onlyonce.db", Options::default()).await?;
    let policy = Policy { effects: Effects::Keyed, ..Policy::default() };
    let onlyonce = Onlyonce::new(store).with_policy(policy)?;
    let _workers = Workers::start(onlyonce.engine(), &Background::default());
    let app = Router::new().route("/payments", post(charge)).layer(onlyonce.clone());

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let mut terminate = signal(SignalKind::terminate())?; // by Docker, Kubernetes, systemd
    let stop = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = tokio::signal::ctrl_c() => {} }
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    onlyonce.engine().idle().await; // work whose client hung up
    Ok(())
}
