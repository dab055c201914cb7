//! The service behind the gateways: it keeps the ledger, and answers when it is told to.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::client::until;

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    calls: Mutex<HashMap<String, usize>>,
    /// The keys whose next call is answered with 503.
    refuses: Mutex<HashSet<String>>,
    answers: watch::Sender<bool>,
    /// How often it was asked about each key.
    asked: Mutex<HashMap<String, usize>>,
}

impl Service {
    pub(crate) async fn open() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            calls: Mutex::default(),
            refuses: Mutex::default(),
            answers: watch::Sender::new(true),
            asked: Mutex::default(),
        });
        let app = Router::new().route("/payments", post(charge)).route("/probe", get(probe));
        let app = app.with_state(service.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        service
    }

    /// From now on calls are booked and not answered.
    pub(crate) fn hold(&self) {
        self.answers.send_replace(false);
    }

    pub(crate) fn go_on(&self) {
        self.answers.send_replace(true);
    }

    pub(crate) fn refuse_once(&self, key: &str) {
        self.refuses.lock().unwrap().insert(key.to_owned());
    }

    /// How often the work was done.
    pub(crate) fn calls(&self, key: &str) -> usize {
        self.calls.lock().unwrap().get(key).copied().unwrap_or(0)
    }

    /// How often it was asked about a key.
    pub(crate) fn asked(&self, key: &str) -> usize {
        self.asked.lock().unwrap().get(key).copied().unwrap_or(0)
    }

    pub(crate) async fn called(&self, keys: impl IntoIterator<Item = String>) {
        for key in keys {
            until(&format!("{key} is called"), async || self.calls(&key) > 0).await;
        }
    }
}

async fn charge(State(service): State<Arc<Service>>, headers: HeaderMap) -> (StatusCode, String) {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or("none").to_owned();
    let call = {
        let mut calls = service.calls.lock().unwrap();
        let call = calls.entry(key.clone()).or_default();
        *call += 1;
        *call
    };
    service.answers.subscribe().wait_for(|answers| *answers).await.unwrap();
    if service.refuses.lock().unwrap().remove(&key) {
        return (StatusCode::SERVICE_UNAVAILABLE, "not done".to_owned());
    }
    (StatusCode::CREATED, format!(r#"{{"order":"{key}","call":{call}}}"#))
}

/// Whatever it is asked about has happened: it is booked before it is answered.
async fn probe(State(service): State<Arc<Service>>, uri: Uri) -> String {
    let key = uri.query().unwrap_or_default().split('&').find_map(|part| part.strip_prefix("key="));
    let key = key.unwrap_or_default().to_owned();
    *service.asked.lock().unwrap().entry(key.clone()).or_default() += 1;
    assert!(service.calls(&key) > 0, "{key} was never called");
    format!(r#"{{"verdict":"happened","response":{{"status":201,"body":"found {key}"}}}}"#)
}
