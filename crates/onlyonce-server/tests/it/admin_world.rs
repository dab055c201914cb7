//! An admin port on a store in this process, whose clock a test moves, with records in every state; and a client that can
//! send what no client library would.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce::probe::{Answer as Said, Failure, Probes, Question, asking};
use onlyonce::store::audit::{Audit, Entry};
use onlyonce::store::clock::ManualClock;
use onlyonce::store::memory::Memory;
use onlyonce::store::{
    Change, Count, EpochSeen, Error, ErrorKind, Outbox, Page, Promises, Query, Store, Swapped, audit,
};
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::key::Key;
use onlyonce_core::machine::{
    self, About, Admission, Backoff, Decision, Finish, Force, Request, Ruled, Ruling, Statement,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{
    Draft, Effects, Handle, Id, Reason, Response, Revision, Seen, Source, StateName, Token, Verdict,
};
use onlyonce_core::scope::{Part, Scope};
use onlyonce_server::testing::Admin;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::program::Folder;

pub(crate) const SOON: Duration = Duration::from_secs(20);
/// The route of every record that the world makes, unless a test says otherwise.
pub(crate) const ROUTE: &str = "POST /payments/*";
pub(crate) const READER: &str = "Bearer a-token-that-may-read";
pub(crate) const OPERATOR: &str = "Bearer a-token-that-may-operate";

/// An admin port and its store.
pub(crate) struct World {
    pub(crate) admin: Admin,
    pub(crate) store: Arc<Switched>,
    pub(crate) clock: ManualClock,
    policy: Policy,
    _folder: Folder,
}

impl World {
    /// Without tokens: this machine is trusted.
    pub(crate) async fn new() -> Self {
        Self::with("").await
    }

    /// With a token of each role, `ann` who operates and `rob` who reads.
    pub(crate) async fn with_tokens() -> Self {
        Self::with(
            "[[admin_token]]\nname = \"ann\"\ntoken = \"file:ann\"\nrole = \"operate\"\n\
             [[admin_token]]\nname = \"rob\"\ntoken = \"file:rob\"\nrole = \"read\"\n",
        )
        .await
    }

    async fn with(more: &str) -> Self {
        let folder = Folder::new();
        let path = |name: &str| folder.path().join(name);
        for (name, token) in [("ann", OPERATOR), ("rob", READER)] {
            fs::write(path(name), token.trim_start_matches("Bearer ")).expect("the folder can be written");
        }
        let more = more.replace("file:", &format!("file:{}/", folder.path().display()));
        let settings = format!("upstream = \"http://127.0.0.1:1\"\nstore = \"memory:\"\n{more}");
        fs::write(path("onlyonce.toml"), settings).expect("the folder can be written");
        let clock = ManualClock::new();
        let store = Switched::on(Memory::with_clock(clock.clone()));
        let admin = Admin::start(&path("onlyonce.toml"), store.clone()).await.expect("it starts");
        let policy = Policy { effects: Effects::Opaque, ..Policy::default() };
        Self { admin, store, clock, policy, _folder: folder }
    }

    /// A record that the reconciler has given up on.
    pub(crate) async fn dead_letter(&self, caller: &str, key: &str) -> Made {
        let made = self.record(caller, key, StateName::Unknown).await;
        let ruling = Ruling {
            verdict: Verdict::StillUnknown,
            about: About::Work,
            statement: Statement::by(Source::Probe),
            force: Force::No,
            token: Token([0; 16]),
            probe: Some(Backoff { first: SOON, max: SOON, tries_max: 1, jitter_permille: 1000 }),
        };
        let Ruled::Notes(draft, _) = machine::verdict(&made.seen, &ruling) else { panic!("it is unknown") };
        self.swap(made.id, Some(made.seen.revision), draft).await
    }

    /// The probe of every record gives no usable answer.
    pub(crate) fn broken_probe(&self) {
        let probe = asking(|_: Question| async { Err(Failure::new("the bank answered 503")) });
        self.admin.engine().use_probes(Probes::default().with_route(ROUTE, Arc::new(probe)));
    }

    /// Every record of this route has a probe that answers so.
    pub(crate) fn probe(&self, verdict: Verdict) {
        let probe = asking(move |_: Question| {
            let verdict = verdict.clone();
            async move { Ok::<_, Failure>(Said::new(verdict)) }
        });
        self.admin.engine().use_probes(Probes::default().with_route(ROUTE, Arc::new(probe)));
    }

    /// The record of a caller's key, in this state.
    pub(crate) async fn record(&self, caller: &str, key: &str, state: StateName) -> Made {
        match state {
            StateName::Pending => self.begin(caller, key, Admission::Accept).await,
            StateName::Running => self.begin(caller, key, Admission::Run).await,
            StateName::Completed => {
                let headers = vec![
                    (http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain")),
                    (http::header::CACHE_CONTROL, http::HeaderValue::from_static("max-age=60")),
                ];
                let body = Bytes::from(format!("the answer to {key}"));
                let response = Some(Arc::new(Response { status: 201, headers, body }));
                self.finish(caller, key, Outcome::Completed { response, keep_for: None }).await
            }
            StateName::Retryable => {
                self.finish(caller, key, Outcome::DidNotRun { retry_after: None, keep_for: None }).await
            }
            StateName::Unknown => self.finish(caller, key, Outcome::Unknown(Reason::ConnectionLost)).await,
        }
    }

    async fn begin(&self, caller: &str, key: &str, admission: Admission) -> Made {
        let (scope, key) = (scope(caller), Key::stored(key));
        let route: Arc<str> = ROUTE.into();
        let request = Request {
            scope: &scope,
            key: &key,
            route: Some(&route),
            fingerprint: &Fingerprint { version: 1, raw: [2; 32], canonical: None },
            policy: &self.policy,
            token: Token(rand::random()),
            admission,
        };
        let Decision::Begin(draft) = machine::decide(None, &request) else { panic!("an absent key runs") };
        self.swap(Id::of(&scope, &key), None, draft).await
    }

    async fn finish(&self, caller: &str, key: &str, outcome: Outcome) -> Made {
        let made = self.begin(caller, key, Admission::Run).await;
        let finish = machine::finish(Some(&made.seen), made.seen.record.token, &outcome);
        let Finish::Write(draft) = finish else { panic!("an attempt that runs may end") };
        self.swap(made.id, Some(made.seen.revision), draft).await
    }

    async fn swap(&self, id: Id, expected: Option<Revision>, draft: Box<Draft>) -> Made {
        let change = Change::new(expected, Revision(rand::random()), draft);
        match self.store.swap(id, change).await.expect("it answers") {
            Swapped::Applied(seen) => Made { id, seen },
            Swapped::Lost(_) => panic!("nobody else writes"),
        }
    }

    /// The record as the store has it.
    pub(crate) async fn seen(&self, made: &Made) -> Option<Seen> {
        self.store.load(made.id).await.expect("it answers")
    }

    /// Every entry of the audit log, oldest first.
    pub(crate) async fn audit(&self) -> Vec<Entry> {
        let query = audit::Query { limit: 1_000, ..audit::Query::default() };
        let page = self.store.memory.audit().list(query).await.expect("it answers");
        page.entries.into_iter().rev().map(|written| written.entry).collect()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.admin.address()
    }

    pub(crate) fn ask<'a>(&self, method: &'a str, target: impl Into<String>) -> Ask<'a> {
        Ask {
            address: self.address(),
            method,
            target: target.into(),
            headers: Vec::new(),
            body: String::new(),
        }
    }

    pub(crate) async fn get(&self, target: impl Into<String>) -> Answer {
        self.ask("GET", target).send().await
    }

    /// A verdict with this body, a JSON object.
    pub(crate) async fn verdict(&self, made: &Made, query: &str, body: &Value) -> Answer {
        self.ask("POST", format!("{}/verdict{query}", made.path())).json(body).send().await
    }
}

/// A record that the world made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) id: Id,
    pub(crate) seen: Seen,
}

impl Made {
    pub(crate) fn path(&self) -> String {
        let record = &self.seen.record;
        format!("/v1/keys/{}/{}", record.scope, encoded(record.key.as_str()))
    }

    pub(crate) fn token(&self) -> String {
        Handle { id: self.id, token: self.seen.record.token }.to_string()
    }
}

pub(crate) fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// The scope of a caller, with the caller as its label.
pub(crate) fn scope(caller: &str) -> Scope {
    Scope::of("default", [Part::readable("trusted:x-caller", caller.as_bytes())]).expect("a caller is named")
}

/// A request.
pub(crate) struct Ask<'a> {
    address: SocketAddr,
    method: &'a str,
    target: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Ask<'_> {
    /// One more header; `host` replaces the usual one.
    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("Authorization", token)
    }

    pub(crate) fn body(mut self, content_type: &str, body: impl Into<String>) -> Self {
        self.body = body.into();
        self.header("Content-Type", content_type)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// JSON in chunks, which does not say how long it is.
    pub(crate) fn chunked(self, chunks: &str) -> Self {
        self.header("Transfer-Encoding", "chunked").body("application/json", chunks)
    }

    /// Sends it without reading the answer.
    pub(crate) async fn begin(self) -> TcpStream {
        let Self { address, method, target, headers, body } = self;
        let mut text = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name == "host") {
            text.push_str("host: localhost\r\n");
        }
        for (name, value) in headers.iter().filter(|(name, value)| name != "host" || value != "-") {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !headers.iter().any(|(name, _)| name == "Transfer-Encoding") {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        text.push_str(&format!("\r\n{body}"));
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        // One that refuses a large body may close before all of it is sent.
        let _ = stream.write_all(text.as_bytes()).await;
        stream
    }

    pub(crate) async fn send(self) -> Answer {
        let told = format!("{} {}", self.method, self.target);
        let is_head = self.method == "HEAD";
        let mut stream = self.begin().await;
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(SOON, stream.read_to_end(&mut bytes)).await;
        read.unwrap_or_else(|_| panic!("{told}: no answer")).expect("it can be read");
        Answer::parse(&bytes, is_head)
            .unwrap_or_else(|| panic!("{told}: {}", String::from_utf8_lossy(&bytes)))
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    fn parse(bytes: &[u8], is_head: bool) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        let body = match is_head {
            true => bytes[end + 4..].to_vec(),
            false => onlyonce_testkit::http::parse(bytes).ok()?.body,
        };
        Some(Self { status, headers, body: String::from_utf8(body).ok()? })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The status, and the code of a refusal or the result of an order.
    pub(crate) fn told(&self) -> (u16, String) {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let word = body["code"].as_str().or(body["result"].as_str()).unwrap_or_default();
        (self.status, word.to_owned())
    }

    /// The keys of a list.
    pub(crate) fn keys(&self) -> Vec<String> {
        let body = self.json();
        let items = body["items"].as_array().unwrap_or_else(|| panic!("{body}"));
        items.iter().map(|item| item["key"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// A store that can be switched off.
#[derive(Debug)]
pub(crate) struct Switched {
    memory: Memory,
    is_off: AtomicBool,
}

impl Switched {
    fn on(memory: Memory) -> Arc<Self> {
        Arc::new(Self { memory, is_off: AtomicBool::new(false) })
    }

    pub(crate) fn switch_off(&self) {
        self.is_off.store(true, Ordering::SeqCst);
    }

    pub(crate) fn switch_on(&self) {
        self.is_off.store(false, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), Error> {
        if self.is_off.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "db.internal:5432 does not answer"));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Switched {
    async fn prepare(&self) -> Result<(), Error> {
        self.check()
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.check()?;
        self.memory.load(id).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.check()?;
        self.memory.swap(id, change).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.check()?;
        self.memory.scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.check()?;
        Store::reap(&self.memory, limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.check()?;
        self.memory.count().await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        self.check()?;
        self.memory.epoch().await
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.check()?;
        self.memory.raise_epoch().await
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.check()?;
        self.memory.erase(scope, limit).await
    }

    fn promises(&self) -> Promises {
        self.memory.promises()
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        self.memory.outbox()
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

#[async_trait]
impl Audit for Switched {
    async fn write(&self, entry: Entry) -> Result<(), Error> {
        self.check()?;
        self.memory.write(entry).await
    }

    async fn list(&self, query: audit::Query) -> Result<audit::Page, Error> {
        self.check()?;
        self.memory.list(query).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        self.check()?;
        self.memory.prune(age, limit).await
    }
}
