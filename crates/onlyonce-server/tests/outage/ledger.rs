//! The service behind the gateway, and its ledger: what really happened. Its work is opaque: every call is a charge.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) address: SocketAddr,
    charges: Mutex<HashMap<String, usize>>,
    /// How many charges there were: what a test waits on.
    count: watch::Sender<usize>,
    /// Whether calls with the keys of [`HELD`] are answered.
    answers: watch::Sender<bool>,
}

/// What keys begin with whose calls are booked and not answered until [`Ledger::release`].
pub(crate) const HELD: &str = "held-";
/// What keys begin with whose work is refused the first time, so that they may be tried again.
pub(crate) const REFUSED: &str = "refused-";

impl Ledger {
    pub(crate) async fn open() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ledger = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            charges: Mutex::default(),
            count: watch::Sender::new(0),
            answers: watch::Sender::new(false),
        });
        let app = Router::new().route("/payments", post(charge)).with_state(ledger.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        ledger
    }

    /// Calls with the keys of [`HELD`] are not answered again.
    pub(crate) fn hold(&self) {
        self.answers.send_replace(false);
    }

    pub(crate) fn release(&self) {
        self.answers.send_replace(true);
    }

    /// Ready once this key has been charged.
    pub(crate) async fn charged(&self, key: &str) {
        self.count.subscribe().wait_for(|_| self.charges(key) > 0).await.unwrap();
    }

    /// How often money moved for a key.
    pub(crate) fn charges(&self, key: &str) -> usize {
        self.booked().get(key).copied().unwrap_or(0)
    }

    /// How often it moved in all.
    pub(crate) fn total(&self) -> usize {
        *self.count.borrow()
    }

    fn book(&self, key: &str) -> usize {
        *self.booked().entry(key.to_owned()).or_default() += 1;
        let mut number = 0;
        self.count.send_modify(|count| {
            *count += 1;
            number = *count;
        });
        number
    }

    fn booked(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.charges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn charge(State(ledger): State<Arc<Ledger>>, headers: HeaderMap) -> (StatusCode, String) {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or("none").to_owned();
    let charge = ledger.book(&key);
    if key.starts_with(REFUSED) && ledger.charges(&key) == 1 {
        return (StatusCode::INTERNAL_SERVER_ERROR, "not now".to_owned());
    }
    if key.starts_with(HELD) {
        ledger.answers.subscribe().wait_for(|answers| *answers).await.unwrap();
    }
    (StatusCode::CREATED, format!(r#"{{"order":"{key}","charge":{charge}}}"#))
}
