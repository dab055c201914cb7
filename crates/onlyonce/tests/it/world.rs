//! One small world for every test: a handler that counts its runs, the layer, and a store that fails on order.
//!
//! Its clocks are tokio's: paused, so that a test waits for nothing and moves through hours at once, the store's
//! clock with it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use onlyonce::operate::{Operator, Order};
use onlyonce::store::audit::Entry;
use onlyonce::store::clock::Clock;
use onlyonce::store::memory::Memory;
use onlyonce::store::{
    Alive, Audit, Change, Count, EpochSeen, Error, ErrorKind, Outbox, Page, Promises, Query, Store, Swapped,
    outbox,
};
use onlyonce::{Force, Limits, Onlyonce, Policy};
use onlyonce_core::key::Key;
use onlyonce_core::record::{Id, Seen, StateName, Token};
use onlyonce_core::scope::{Scope, Source};
use onlyonce_core::time::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::ServiceExt;

/// A store whose clock is tokio's and that fails on order.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    below: Arc<dyn Store>,
    faults: Mutex<VecDeque<Fault>>,
    always: Mutex<Option<Fault>>,
    pub(crate) loads: AtomicUsize,
    pub(crate) swaps: AtomicUsize,
    /// Looks for accepted work.
    pub(crate) requests: AtomicUsize,
    /// Looks at the epoch.
    pub(crate) epochs: AtomicUsize,
    /// Whether they fail.
    is_blind: AtomicBool,
}

/// What happens to a store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It works.
    None,
    /// It fails before anything is written.
    Refused,
    /// It is written, and the answer is lost.
    AnswerLost,
    /// It never answers, and nothing is written.
    Stalled,
    /// It never answers, and is written after [`LATE`].
    Late,
    /// A write is sent twice, and the answer is that of the second: as by a client library that repeats what it had no
    /// answer to.
    Repeated,
    /// It works, and is answered after [`SLOW`].
    Slow,
    /// Somebody else holds the row.
    Busy,
    /// It works where it only reads.
    ReadOnly,
    /// What is stored cannot be read.
    Corrupt,
    /// It refuses this node, as by a password that was changed.
    LockedOut,
}

/// How late a late write is.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// How late an answer is that is slow; less than a store may take.
pub(crate) const SLOW: Duration = Duration::from_millis(1_500);

#[derive(Debug)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_790_000_000_000_000).plus(self.0.elapsed())
    }
}

impl FaultyStore {
    pub(crate) fn new() -> Arc<Self> {
        Self::over(Arc::new(Memory::with_clock(TokioClock(Instant::now()))))
    }

    /// The same over another store.
    pub(crate) fn over(below: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            below,
            faults: Mutex::default(),
            always: Mutex::default(),
            loads: AtomicUsize::new(0),
            swaps: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            epochs: AtomicUsize::new(0),
            is_blind: AtomicBool::new(false),
        })
    }

    /// The next calls, in order.
    pub(crate) fn next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().unwrap().extend(faults);
    }

    /// Every call from now on, or none.
    pub(crate) fn always(&self, fault: Option<Fault>) {
        *self.always.lock().unwrap() = fault;
    }

    pub(crate) fn looks(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }

    /// Whether the epoch, and nothing else, cannot be looked at.
    pub(crate) fn blind(&self, is_blind: bool) {
        self.is_blind.store(is_blind, Ordering::SeqCst);
    }

    pub(crate) fn writes(&self) -> usize {
        self.swaps.load(Ordering::SeqCst)
    }

    fn outbox_below(&self) -> &dyn Outbox {
        self.below.outbox().expect("every store that is tested with messages has an outbox")
    }

    /// What happens to the next call.
    fn planned(&self) -> Fault {
        let planned = self.faults.lock().unwrap().pop_front();
        planned.or(*self.always.lock().unwrap()).unwrap_or(Fault::None)
    }

    /// What goes wrong before a call reaches the store.
    async fn before(fault: Fault) -> Result<(), Error> {
        match fault {
            Fault::None | Fault::Repeated | Fault::AnswerLost | Fault::Slow => Ok(()),
            Fault::Busy => Err(Error::new(ErrorKind::Busy, "somebody holds it on order")),
            Fault::Refused | Fault::ReadOnly => Err(Error::new(ErrorKind::Unavailable, "refused on order")),
            Fault::Corrupt => Err(Error::new(ErrorKind::Corrupt, "unreadable on order")),
            Fault::LockedOut => Err(Error::new(ErrorKind::Misconfigured, "locked out on order")),
            Fault::Stalled | Fault::Late => std::future::pending().await,
        }
    }

    /// What goes wrong on its answer's way back.
    async fn after<T>(fault: Fault, answer: T) -> Result<T, Error> {
        match fault {
            Fault::AnswerLost => return Err(lost()),
            Fault::Slow => tokio::time::sleep(SLOW).await,
            Fault::None
            | Fault::Repeated
            | Fault::Busy
            | Fault::Refused
            | Fault::ReadOnly
            | Fault::Corrupt
            | Fault::LockedOut
            | Fault::Stalled
            | Fault::Late => {}
        }
        Ok(answer)
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Unavailable, "the answer was lost on order")
}

#[async_trait::async_trait]
impl Store for FaultyStore {
    async fn prepare(&self) -> Result<(), Error> {
        self.below.prepare().await
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let is_read_only = *self.always.lock().unwrap() == Some(Fault::ReadOnly);
        let fault = if is_read_only { Fault::None } else { self.planned() };
        Self::before(fault).await?;
        Self::after(fault, self.below.load(id).await?).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.swaps.fetch_add(1, Ordering::SeqCst);
        let fault = self.planned();
        if fault == Fault::Late {
            let (below, change) = (self.below.clone(), change.clone());
            tokio::spawn(async move {
                tokio::time::sleep(LATE).await;
                below.swap(id, change).await
            });
        }
        Self::before(fault).await?;
        if fault == Fault::Repeated {
            self.below.swap(id, change.clone()).await?;
        }
        Self::after(fault, self.below.swap(id, change).await?).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.below.scan(query).await
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        let fault = self.planned();
        Self::before(fault).await?;
        Self::after(fault, self.below.count_alive(scope, limit).await?).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.below.reap(limit).await
    }

    async fn results(
        &self,
        id: Id,
        used_at: Timestamp,
    ) -> Result<Vec<onlyonce::store::result::PhaseResult>, Error> {
        self.below.results(id, used_at).await
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        self.below.request(id, used_at).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.below.requests(limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.below.count().await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        self.epochs.fetch_add(1, Ordering::SeqCst);
        let fault = *self.always.lock().unwrap();
        match fault {
            None if self.is_blind.load(Ordering::SeqCst) => Err(lost()),
            None | Some(Fault::None | Fault::Repeated | Fault::Slow | Fault::ReadOnly) => {
                self.below.epoch().await
            }
            Some(Fault::Refused | Fault::AnswerLost | Fault::Busy | Fault::Corrupt | Fault::LockedOut) => {
                Err(lost())
            }
            Some(Fault::Stalled | Fault::Late) => std::future::pending().await,
        }
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        let fault = self.planned();
        Self::before(fault).await?;
        Self::after(fault, self.below.raise_epoch().await?).await
    }

    fn promises(&self) -> Promises {
        self.below.promises()
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.below.erase(scope, limit).await
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        Some(self)
    }

    fn audit(&self) -> &dyn Audit {
        self.below.audit()
    }
}

/// Claims and settlements fail on order.
#[async_trait::async_trait]
impl Outbox for FaultyStore {
    async fn claim(&self, token: Token, wanted: &[outbox::Wanted]) -> Result<outbox::Claims, Error> {
        let fault = self.planned();
        Self::before(fault).await?;
        Self::after(fault, self.outbox_below().claim(token, wanted).await?).await
    }

    async fn settle(&self, claimed: &outbox::Claimed, settled: outbox::Settled) -> Result<bool, Error> {
        let fault = self.planned();
        Self::before(fault).await?;
        Self::after(fault, self.outbox_below().settle(claimed, settled).await?).await
    }

    async fn pass_dead(&self, destination: &str) -> Result<(), Error> {
        self.outbox_below().pass_dead(destination).await
    }

    async fn list(&self, query: outbox::Query) -> Result<outbox::Page, Error> {
        self.outbox_below().list(query).await
    }

    async fn item(&self, number: u64) -> Result<Option<outbox::Item>, Error> {
        self.outbox_below().item(number).await
    }

    async fn payload(&self, number: u64) -> Result<Option<outbox::Payload>, Error> {
        self.outbox_below().payload(number).await
    }

    async fn redrive(&self, number: u64, entry: Entry) -> Result<outbox::Changed, Error> {
        self.outbox_below().redrive(number, entry).await
    }

    async fn discard(&self, number: u64, entry: Entry) -> Result<outbox::Changed, Error> {
        self.outbox_below().discard(number, entry).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        self.outbox_below().prune(age, limit).await
    }

    async fn census(&self) -> Result<outbox::Census, Error> {
        self.outbox_below().census().await
    }
}

/// What the handler does: obeys the request's own orders, counts, and waits at the gate where it is told to.
#[derive(Debug)]
pub(crate) struct Handler {
    runs: AtomicUsize,
    gate: Semaphore,
}

impl Handler {
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Lets so many waiting runs go on.
    pub(crate) fn open(&self, runs: usize) {
        self.gate.add_permits(runs);
    }

    async fn run(&self, headers: HeaderMap) -> axum::response::Response {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        let order = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        if order("x-gate").is_some() {
            self.gate.acquire().await.unwrap().forget();
        }
        if order("x-panic").is_some() {
            panic!("the handler panics on order");
        }
        let status = order("x-status").and_then(|status| status.parse().ok()).unwrap_or(StatusCode::CREATED);
        let mut response = (status, format!("run {run}")).into_response();
        for (name, value) in &headers {
            if let Some(name) = name.as_str().strip_prefix("x-answer-") {
                response
                    .headers_mut()
                    .append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.clone());
            }
        }
        response
    }
}

pub(crate) struct World {
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) onlyonce: Onlyonce,
    pub(crate) handler: Arc<Handler>,
    pub(crate) app: Router,
}

impl World {
    pub(crate) fn new(policy: Policy) -> Self {
        Self::on(FaultyStore::new(), policy)
    }

    /// Another node on the same store.
    pub(crate) fn on(store: Arc<FaultyStore>, policy: Policy) -> Self {
        Self::within(store, policy, Limits::default())
    }

    /// The same within limits.
    pub(crate) fn within(store: Arc<FaultyStore>, policy: Policy, limits: Limits) -> Self {
        let onlyonce = Onlyonce::new(store.clone()).with_policy(policy).unwrap().with_limits(limits).unwrap();
        let handler = Arc::new(Handler { runs: AtomicUsize::new(0), gate: Semaphore::new(0) });
        let works = handler.clone();
        let route = any(move |headers: HeaderMap, _body: Bytes| {
            let works = works.clone();
            async move { works.run(headers).await }
        });
        let app =
            Router::new().route("/orders", route.clone()).route("/refunds", route).layer(onlyonce.layer());
        Self { store, onlyonce, handler, app }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        Answer::of(self.app.clone().oneshot(request).await.unwrap()).await
    }

    /// Sends it in a task, and returns once the handler has it or it has been answered or waits.
    pub(crate) async fn start(&self, request: Request<Body>) -> tokio::task::JoinHandle<Answer> {
        let app = self.app.clone();
        let task = tokio::spawn(async move { Answer::of(app.oneshot(request).await.unwrap()).await });
        settle().await;
        task
    }

    /// Moves every clock.
    pub(crate) async fn pass(&self, span: Duration) {
        settle().await;
        tokio::time::sleep(span).await;
        settle().await;
    }
}

/// The record of a key that [`post`] sends.
pub(crate) fn id(key: &str) -> Id {
    let credentials = Source::Header(http::header::AUTHORIZATION);
    let scope = Scope::of("", [credentials.part(b"Bearer t1")]).unwrap();
    Id::of(&scope, &Key::stored(key))
}

/// Lets every task run that can.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// `POST /orders` with a key and a body.
pub(crate) fn post(key: &str) -> http::request::Builder {
    Request::post("/orders")
        .header("authorization", "Bearer t1")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
}

pub(crate) fn order(key: &str) -> Request<Body> {
    post(key).body(Body::from(r#"{"amount":5}"#)).unwrap()
}

/// The same, with orders for the handler.
pub(crate) fn order_with(key: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut builder = post(key);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::from(r#"{"amount":5}"#)).unwrap()
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn of(response: Response<Body>) -> Self {
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self { status: head.status.as_u16(), headers: head.headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.header("idempotency-stored").is_none() && self.header("idempotency-key-expires").is_some()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The `code` of a refusal.
    pub(crate) fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).expect("a refusal is JSON");
        problem["code"].as_str().expect("a refusal has a code").to_owned()
    }

    /// Status and code, or status and body.
    pub(crate) fn summary(&self) -> String {
        match self.header("content-type") {
            Some("application/problem+json") => format!("{} {}", self.status, self.code()),
            _ => format!("{} {}", self.status, self.text()),
        }
    }
}

/// An order by a person, for reasons of its own.
pub(crate) fn ordered(force: Force) -> Order {
    let operator =
        Operator { who: "local".into(), role: "operate".into(), claims: None, from: None, via: "api".into() };
    Order { operator, reason: "asked by the customer".into(), force, expected: None, dry_run: false }
}
