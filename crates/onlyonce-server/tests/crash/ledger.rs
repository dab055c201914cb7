//! The service behind the gateway, and its ledger: kept outside the process that dies.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Effects;

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) address: SocketAddr,
    effects: Effects,
    calls: Mutex<Vec<Call>>,
    /// How many calls there were: what a test waits on.
    count: watch::Sender<usize>,
    /// Whether calls are answered.
    answers: watch::Sender<bool>,
}

#[derive(Clone, Debug)]
struct Call {
    key: String,
    charge: usize,
    /// Which delivery of a message it says it is.
    delivery: Option<u32>,
}

impl Ledger {
    pub(crate) async fn open(effects: Effects) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ledger = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            effects,
            calls: Mutex::default(),
            count: watch::Sender::new(0),
            answers: watch::Sender::new(true),
        });
        let app = Router::new().route("/payments", post(charge)).with_state(ledger.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        ledger
    }

    /// From now on calls are booked and not answered.
    pub(crate) fn hold(&self) {
        self.answers.send_replace(false);
    }

    pub(crate) fn go_on(&self) {
        self.answers.send_replace(true);
    }

    /// Ready once a call with this key has been booked.
    pub(crate) async fn called(&self, key: &str) {
        let mut count = self.count.subscribe();
        count.wait_for(|_| self.calls(key) > 0).await.unwrap();
    }

    pub(crate) fn calls(&self, key: &str) -> usize {
        self.booked().iter().filter(|call| call.key == key).count()
    }

    /// Ready once there were so many calls with this key.
    pub(crate) async fn called_times(&self, key: &str, times: usize) {
        let mut count = self.count.subscribe();
        count.wait_for(|_| self.calls(key) >= times).await.unwrap();
    }

    /// Which deliveries of a message there were.
    pub(crate) fn deliveries(&self, key: &str) -> Vec<u32> {
        self.booked().iter().filter(|call| call.key == key).filter_map(|call| call.delivery).collect()
    }

    /// How often money moved.
    pub(crate) fn charges(&self, key: &str) -> usize {
        let mut charges: Vec<_> =
            self.booked().iter().filter(|call| call.key == key).map(|call| call.charge).collect();
        charges.dedup();
        charges.len()
    }

    /// Opaque: every call is a charge. Keyed: the first call with a key is, and later ones find it.
    fn book(&self, key: &str, delivery: Option<u32>) -> usize {
        let mut calls = self.booked();
        let known = calls.iter().find(|call| call.key == key).map(|call| call.charge);
        let next = calls.len() + 1;
        let charge = match self.effects {
            Effects::Opaque => next,
            Effects::Keyed => known.unwrap_or(next),
        };
        calls.push(Call { key: key.to_owned(), charge, delivery });
        let count = calls.len();
        drop(calls);
        self.count.send_replace(count);
        charge
    }

    fn booked(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn charge(State(ledger): State<Arc<Ledger>>, headers: HeaderMap) -> (StatusCode, String) {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or("none").to_owned();
    let delivery = headers.get("onlyonce-delivery").and_then(|number| number.to_str().ok()?.parse().ok());
    let charge = ledger.book(&key, delivery);
    ledger.answers.subscribe().wait_for(|answers| *answers).await.unwrap();
    (StatusCode::CREATED, format!(r#"{{"order":"{key}","charge":{charge}}}"#))
}
