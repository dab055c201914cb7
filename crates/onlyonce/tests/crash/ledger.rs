//! The ledger: what really happened, kept outside the process that dies.
//!
//! The victim's handler calls it over HTTP, once for each run. By the kind of the order it is
//!
//! * opaque: a bank that charges at every call;
//! * queryable: the same, and it can be asked ([`Ledger::was_charged`]);
//! * keyed: a bank that knows the downstream key, and charges once for each;
//! * local: no bank. The work's effect would be rows in the victim's own transaction, which `complete_in` will carry;
//!   until that is there, the effect is the completion itself, and the ledger only notes which attempts ran.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::order::{Kind, Wish};

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) address: SocketAddr,
    calls: Mutex<Vec<Call>>,
    /// How many calls there were: what a test waits on.
    count: watch::Sender<usize>,
}

/// One run of a handler, as it was heard here.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    key: String,
    downstream_key: String,
    /// The charge that this call made, or found made; none where no money moves.
    charge: Option<usize>,
    /// What the handler is told, and passes on to its client byte for byte.
    pub(crate) receipt: String,
}

/// What the victim tells about a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) kind: Kind,
    pub(crate) key: String,
    pub(crate) downstream_key: String,
    pub(crate) token: String,
    pub(crate) wish: Wish,
}

impl Ledger {
    /// Listens on a free port until the runtime ends.
    pub(crate) async fn open() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (count, _) = watch::channel(0);
        let ledger = Arc::new(Self { address, calls: Mutex::default(), count });
        let app = Router::new().route("/charge", post(charge)).route("/probe/{key}", get(probe));
        let app = app.with_state(ledger.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        ledger
    }

    /// Every run with this key, in order.
    pub(crate) fn calls(&self, key: &str) -> Vec<Call> {
        self.locked().iter().filter(|call| call.key == key).cloned().collect()
    }

    /// How often this key was charged.
    pub(crate) fn charges(&self, key: &str) -> usize {
        let mut charges: Vec<_> = self.calls(key).iter().filter_map(|call| call.charge).collect();
        charges.sort_unstable();
        charges.dedup();
        charges.len()
    }

    /// What a queryable bank answers a probe: the receipt of the run that charged, where there was one.
    pub(crate) fn receipt(&self, key: &str) -> Option<String> {
        self.calls(key).into_iter().find(|call| call.charge.is_some()).map(|call| call.receipt)
    }

    /// Whether a queryable bank has charged.
    pub(crate) fn was_charged(&self, key: &str) -> bool {
        self.charges(key) > 0
    }

    /// Ready once a run with this key has been heard of.
    pub(crate) async fn called(&self, key: &str) {
        let mut count = self.count.subscribe();
        let heard = count.wait_for(|_| !self.calls(key).is_empty()).await;
        heard.expect("the ledger outlives its scenario");
    }

    fn book(&self, run: &Run) -> String {
        let mut calls = self.locked();
        let known = calls.iter().find(|call| call.downstream_key == run.downstream_key);
        let next = calls.len() + 1;
        let charge = match run.kind {
            Kind::Opaque | Kind::Queryable => Some(next),
            Kind::Keyed => known.map_or(Some(next), |call| call.charge),
            Kind::Local => None,
        };
        // The attempt's token is in it: two runs cannot have the same bytes.
        let receipt =
            serde_json::json!({ "order": run.key, "charge": charge, "attempt": run.token }).to_string();
        calls.push(Call {
            key: run.key.clone(),
            downstream_key: run.downstream_key.clone(),
            charge,
            receipt: receipt.clone(),
        });
        let count = calls.len();
        drop(calls);
        self.count.send_replace(count);
        receipt
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn read(headers: &HeaderMap) -> Option<Self> {
        let text = |name| headers.get(name)?.to_str().ok().map(str::to_owned);
        Some(Self {
            kind: Kind::named(&text("x-kind")?)?,
            key: text("x-key")?,
            downstream_key: text("x-downstream-key")?,
            token: text("x-token")?,
            wish: Wish::of(headers),
        })
    }
}

async fn charge(State(ledger): State<Arc<Ledger>>, headers: HeaderMap) -> String {
    let run = Run::read(&headers).expect("the victim tells all about a run");
    let receipt = ledger.book(&run);
    if run.wish == Wish::Held {
        // Until the victim's end of the connection is gone.
        std::future::pending::<()>().await;
    }
    receipt
}

async fn probe(State(ledger): State<Arc<Ledger>>, Path(key): Path<String>) -> Result<String, StatusCode> {
    ledger.receipt(&key).ok_or(StatusCode::NOT_FOUND)
}
