//! The bank, and its ledger: kept outside the process that dies.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::TcpListener;

use crate::Shared;

#[derive(Debug)]
pub(crate) struct Bank {
    address: SocketAddr,
    /// Keyed: the first call with a key is a charge, and later ones find it.
    is_keyed: bool,
    declines: AtomicBool,
    keys: Mutex<Vec<String>>,
}

impl Bank {
    pub(crate) async fn open(kind: &str) -> Shared<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bank = Shared::new(Self {
            address: listener.local_addr().unwrap(),
            is_keyed: kind == "keyed",
            declines: AtomicBool::new(false),
            keys: Mutex::default(),
        });
        let app = Router::new().route("/charges", post(charge)).with_state(bank.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        bank
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn decline(&self) {
        self.declines.store(true, Ordering::SeqCst);
    }

    /// The key of every call.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.keys.lock().unwrap().clone()
    }

    /// How often money moved.
    pub(crate) fn charges(&self) -> usize {
        let keys = self.calls();
        if self.is_keyed { keys.iter().collect::<HashSet<_>>().len() } else { keys.len() }
    }
}

async fn charge(State(bank): State<Shared<Bank>>, headers: HeaderMap) -> (StatusCode, String) {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    bank.keys.lock().unwrap().push(key);
    if bank.declines.load(Ordering::SeqCst) {
        return (StatusCode::PAYMENT_REQUIRED, String::new());
    }
    (StatusCode::CREATED, format!(r#"{{"charge":"ch_{}"}}"#, bank.charges()))
}
