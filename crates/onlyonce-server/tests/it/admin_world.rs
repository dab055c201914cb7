//! Admin ports on a store of any engine, with records in every state, in a time that passes when a test says so; and a client
//! that can send what no client library would.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce::operate;
use onlyonce::probe::{Answer as Said, Failure, Probe, Probes, Question, asking};
use onlyonce::store::audit::{Audit, Entry};
use onlyonce::store::clock::ManualClock;
use onlyonce::store::memory::Memory;
use onlyonce::store::postgres::{self, Postgres};
use onlyonce::store::sqlite::{self, Sqlite};
use onlyonce::store::{
    Change, Count, EpochSeen, Error, ErrorKind, Expired, Outbox, Page, Promises, Query, Store, Swapped,
    audit, outbox,
};
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::key::Key;
use onlyonce_core::machine::{
    self, About, Admission, Backoff, Decision, Finish, Force, Request, Ruled, Ruling, Statement,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{
    Draft, Effects, Handle, Id, Reason, Record, Response, Revision, Seen, Source, StateName, Token, Verdict,
};
use onlyonce_core::scope::{Part, Scope};
use onlyonce_core::time::Timestamp;
use onlyonce_server::testing::Admin;
use onlyonce_testkit::engines::postgres::Server;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::engines::Engine;
use crate::program::Folder;

pub(crate) const SOON: Duration = Duration::from_secs(20);
/// The route of every record that the world makes, unless a test says otherwise.
pub(crate) const ROUTE: &str = "POST /payments/*";
pub(crate) const READER: &str = "Bearer a-token-that-may-read";
pub(crate) const OPERATOR: &str = "Bearer a-token-that-may-operate";

/// Admin ports and their store.
pub(crate) struct World {
    pub(crate) engine: Engine,
    nodes: Vec<Admin>,
    /// Whose turn it is.
    turn: AtomicUsize,
    /// Every request goes to the first node.
    is_pinned: AtomicBool,
    /// The first node's.
    pub(crate) store: Arc<Switched>,
    is_off: Arc<AtomicBool>,
    has_lost_its_key: Arc<AtomicBool>,
    clocks: Clocks,
    url: String,
    policy: Policy,
    _folder: Folder,
}

impl World {
    /// Without tokens: this machine is trusted.
    pub(crate) async fn new(engine: Engine) -> Self {
        Self::with(engine, "").await
    }

    /// With a token of each role, `ann` who operates and `rob` who reads.
    pub(crate) async fn with_tokens(engine: Engine) -> Self {
        Self::with(
            engine,
            "[[admin_token]]\nname = \"ann\"\ntoken = \"file:ann\"\nrole = \"operate\"\n\
             [[admin_token]]\nname = \"rob\"\ntoken = \"file:rob\"\nrole = \"read\"\n",
        )
        .await
    }

    async fn with(engine: Engine, more: &str) -> Self {
        let folder = Folder::new();
        let path = |name: &str| folder.path().join(name);
        for (name, token) in [("ann", OPERATOR), ("rob", READER)] {
            fs::write(path(name), token.trim_start_matches("Bearer ")).expect("the folder can be written");
        }
        let more = more.replace("file:", &format!("file:{}/", folder.path().display()));
        let settings = format!("upstream = \"http://127.0.0.1:1\"\nstore = \"memory:\"\n{more}");
        fs::write(path("onlyonce.toml"), settings).expect("the folder can be written");
        let (clocks, url) = (Clocks::default(), engine.store(&folder));
        let is_off = Arc::new(AtomicBool::new(false));
        let has_lost_its_key = Arc::new(AtomicBool::new(false));
        let (mut nodes, mut stores) = (Vec::new(), Vec::new());
        for _ in 0..engine.nodes() {
            let store = open(engine, &url, &folder, &clocks).await;
            let store = Arc::new(Switched {
                store,
                is_off: is_off.clone(),
                has_lost_its_key: has_lost_its_key.clone(),
            });
            nodes.push(Admin::start(&path("onlyonce.toml"), store.clone()).await.expect("it starts"));
            stores.push(store);
        }
        Self {
            engine,
            nodes,
            turn: AtomicUsize::new(0),
            is_pinned: AtomicBool::new(false),
            store: stores.swap_remove(0),
            is_off,
            has_lost_its_key,
            clocks,
            url,
            policy: Policy { effects: Effects::Opaque, ..Policy::default() },
            _folder: folder,
        }
    }

    /// From now on every request goes to one node.
    pub(crate) fn keep_to_one_node(&self) {
        self.is_pinned.store(true, Ordering::SeqCst);
    }

    /// Lets time pass. Where the clock is the server's, everything that is stored becomes so much older instead.
    pub(crate) async fn pass(&self, span: Duration) {
        match self.engine {
            Engine::Memory | Engine::Sqlite => self.clocks.advance(span),
            Engine::Postgres | Engine::ThreeNodes => {
                let schema = self.url.split_once("schema=").expect("a URL with a schema").1.to_owned();
                let aged = tokio::task::spawn_blocking(move || age(&schema, span));
                aged.await.expect("the server answers");
            }
            #[cfg(feature = "mysql")]
            Engine::Mysql => self.clocks.advance(span),
            #[cfg(feature = "redis")]
            Engine::Redis => self.clocks.advance(span),
        }
    }

    /// From now on nothing that is stored can be decrypted.
    pub(crate) fn lose_key(&self) {
        self.has_lost_its_key.store(true, Ordering::SeqCst);
    }

    /// No node's store answers.
    pub(crate) fn switch_off(&self) {
        self.is_off.store(true, Ordering::SeqCst);
    }

    pub(crate) fn switch_on(&self) {
        self.is_off.store(false, Ordering::SeqCst);
    }

    /// Stops every node.
    pub(crate) async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
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

    /// Work that stopped half done and that nobody came back for: it is flagged. A day passes.
    pub(crate) async fn half_done(&self, caller: &str, key: &str) -> Made {
        let made = self.begin(caller, key, Admission::Run).await;
        let token = made.seen.record.token;
        let draft = machine::commit_phase(&made.seen, token, &"charged".into()).expect("it runs");
        let made = self.swap(made.id, Some(made.seen.revision), draft).await;
        let did_not_run = Outcome::DidNotRun { retry_after: None, keep_for: None };
        let Finish::Write(draft) = machine::finish(Some(&made.seen), token, &did_not_run) else {
            panic!("it runs")
        };
        let made = self.swap(made.id, Some(made.seen.revision), draft).await;
        self.pass(self.policy.retention).await;
        let seen = self.seen(&made).await.expect("it is kept");
        let draft = machine::sweep(&seen).expect("it is due");
        self.swap(made.id, Some(seen.revision), draft).await
    }

    /// A message that was given up; its number.
    pub(crate) async fn dead_message(&self, key: &str) -> u64 {
        let claimed = self.claim_message(key).await;
        let failed = outbox::Failed { status: Some(410), error: "it answered 410".into() };
        let settled = self.store.settle(&claimed, outbox::Settled::Dead { failed }).await;
        assert!(settled.expect("it answers"));
        claimed.number
    }

    /// A message that is being delivered; its number.
    pub(crate) async fn claimed_message(&self, key: &str) -> u64 {
        self.claim_message(key).await.number
    }

    async fn claim_message(&self, key: &str) -> outbox::Claimed {
        let made = self.record("mail", key, StateName::Completed).await;
        let message = outbox::Message::new(key, "mail", Bytes::from_static(b"{\"to\":7}"));
        let draft = made.seen.record.draft();
        let change = Change::new(Some(made.seen.revision), Revision(rand::random()), draft);
        self.store.swap(made.id, change.with_messages(vec![message])).await.expect("it answers");
        let wanted = outbox::Wanted {
            destination: "mail".into(),
            limit: 1,
            lease: Duration::from_secs(20),
            on_dead: outbox::OnDead::Skip,
        };
        let claims = self.store.claim(Token(rand::random()), &[wanted]).await.expect("it answers");
        claims.claimed.into_iter().next().expect("it is due")
    }

    /// The first node's engine.
    pub(crate) fn node(&self) -> &Arc<onlyonce::Engine> {
        self.nodes[0].engine()
    }

    /// The probe of every record gives no usable answer.
    pub(crate) fn broken_probe(&self) {
        let probe = asking(|_: Question| async { Err(Failure::new("the bank answered 503")) });
        self.use_probe(probe);
    }

    /// Every record of this route has a probe that answers so.
    pub(crate) fn probe(&self, verdict: Verdict) {
        let probe = asking(move |_: Question| {
            let verdict = verdict.clone();
            async move { Ok::<_, Failure>(Said::new(verdict)) }
        });
        self.use_probe(probe);
    }

    /// Asks about every unknown record once.
    pub(crate) async fn ask_probes(&self) {
        self.node().reconcile().await.expect("the store answers");
        self.pass(Duration::from_secs(60)).await;
        self.node().reconcile().await.expect("the store answers");
    }

    /// A webhook says that the work of a completed record did not happen.
    pub(crate) async fn contradict(&self, made: &Made) {
        let statement = operate::Statement {
            verdict: Verdict::DidNotHappen { never_will: false },
            about: operate::Subject::Work(made.id),
            at: made.seen.now,
            source: "bank".into(),
            detail: "the bank's event evt_1".into(),
        };
        let heard = self.node().hear(statement).await.expect("the store answers");
        assert!(matches!(heard, operate::Heard::Contradiction(_)), "{heard:?}");
    }

    fn use_probe(&self, probe: impl Probe) {
        let probe: Arc<dyn Probe> = Arc::new(probe);
        for node in &self.nodes {
            node.engine().use_probes(Probes::default().with_route(ROUTE, probe.clone()));
        }
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
            trace: None,
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
        let page = self.store.store.audit().list(query).await.expect("it answers");
        page.entries.into_iter().rev().map(|written| written.entry).collect()
    }

    /// The admin port of the node whose turn it is.
    pub(crate) fn address(&self) -> SocketAddr {
        let node = match self.is_pinned.load(Ordering::SeqCst) {
            true => 0,
            false => self.turn.fetch_add(1, Ordering::SeqCst) % self.nodes.len(),
        };
        self.nodes[node].address()
    }

    /// The admin ports of all nodes.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Admin::address).collect()
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

/// The store of a node.
async fn open(engine: Engine, url: &str, folder: &Folder, clocks: &Clocks) -> Arc<dyn Store> {
    let expired = Expired::Keep;
    match engine {
        Engine::Memory => Arc::new(Memory::with_clock(clocks.manual.clone())),
        Engine::Sqlite => {
            let clock = Some(Box::new(clocks.manual.clone()) as Box<_>);
            let options = sqlite::Options { expired, clock, ..sqlite::Options::default() };
            Arc::new(Sqlite::open(folder.path().join("onlyonce.db"), options).await.expect("it opens"))
        }
        Engine::Postgres | Engine::ThreeNodes => {
            let options = postgres::Options { expired, connections: 2, ..postgres::Options::default() };
            let store = Postgres::open(url, options).await.expect("it answers");
            store.prepare().await.expect("it can be migrated");
            Arc::new(store)
        }
        #[cfg(feature = "mysql")]
        Engine::Mysql => {
            use onlyonce::store::mysql::{Mysql, Options};
            let options =
                Options { expired, connections: 2, ahead: clocks.ahead.clone(), ..Options::default() };
            let store = Mysql::open(url, options).await.expect("it answers");
            store.prepare().await.expect("it can be migrated");
            Arc::new(store)
        }
        #[cfg(feature = "redis")]
        Engine::Redis => {
            use onlyonce::store::redis::{Options, Redis};
            let options = Options { ahead: clocks.ahead.clone(), ..Options::default() };
            let store = Redis::open(url, options).await.expect("it answers");
            store.prepare().await.expect("it can be prepared");
            Arc::new(store)
        }
    }
}

/// The clocks of engines that a test can move.
#[derive(Default)]
struct Clocks {
    manual: ManualClock,
    /// By how much the clock of MySQL or Redis is ahead, in microseconds.
    ahead: Arc<AtomicI64>,
}

impl Clocks {
    fn advance(&self, span: Duration) {
        self.manual.advance(span);
        let micros = i64::try_from(span.as_micros()).expect("a test spans less than an age");
        self.ahead.fetch_add(micros, Ordering::SeqCst);
    }
}

/// Makes everything in a schema older.
fn age(schema: &str, span: Duration) {
    let older = |columns: &[&str]| {
        let set =
            columns.iter().map(|column| format!("{column} = {column} - interval '{} us'", span.as_micros()));
        set.collect::<Vec<_>>().join(", ")
    };
    let moments =
        ["created_at", "began_at", "written_at", "due_at", "lapses_at", "expires_at", "unknown_since"];
    let of_messages = ["created_at", "due_at", "first_due_at", "delivered_at"];
    Server::shared().sql(&format!(
        "UPDATE {schema}.onlyonce_record SET {}; UPDATE {schema}.onlyonce_audit SET {}; UPDATE {schema}.onlyonce_outbox SET {}",
        older(&moments),
        older(&["at"]),
        older(&of_messages),
    ));
}

/// A moment as the API tells it.
pub(crate) fn moment(at: Timestamp) -> String {
    format!("{:.3}", jiff::Timestamp::from_microsecond(at.as_micros()).expect("a date"))
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
    store: Arc<dyn Store>,
    is_off: Arc<AtomicBool>,
    has_lost_its_key: Arc<AtomicBool>,
}

impl Switched {
    fn check(&self) -> Result<(), Error> {
        if self.is_off.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "db.internal:5432 does not answer"));
        }
        Ok(())
    }

    fn decrypt(&self) -> Result<(), Error> {
        if self.has_lost_its_key.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Undecryptable, "it is encrypted with key 0011223344556677"));
        }
        Ok(())
    }
}

impl Switched {
    fn messages(&self) -> Result<&dyn Outbox, Error> {
        self.check()?;
        Ok(self.store.outbox().expect("it is asked for only where there is one"))
    }
}

#[async_trait]
impl Store for Switched {
    async fn prepare(&self) -> Result<(), Error> {
        self.check()
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.check()?;
        self.decrypt()?;
        self.store.load(id).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.check()?;
        self.store.swap(id, change).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.check()?;
        self.store.scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.check()?;
        self.store.reap(limit).await
    }

    async fn results(
        &self,
        id: Id,
        used_at: Timestamp,
    ) -> Result<Vec<onlyonce::store::result::PhaseResult>, Error> {
        self.store.results(id, used_at).await
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        self.store.request(id, used_at).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.store.requests(limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.check()?;
        self.store.count().await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        self.check()?;
        self.store.epoch().await
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.check()?;
        self.store.raise_epoch().await
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.check()?;
        self.store.erase(scope, limit).await
    }

    async fn archived(&self, id: Id, limit: usize) -> Result<Option<Vec<Record>>, Error> {
        self.check()?;
        self.store.archived(id, limit).await
    }

    fn promises(&self) -> Promises {
        self.store.promises()
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        self.store.outbox().map(|_| self as &dyn Outbox)
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

#[async_trait]
impl Audit for Switched {
    async fn write(&self, entry: Entry) -> Result<(), Error> {
        self.check()?;
        self.store.audit().write(entry).await
    }

    async fn list(&self, query: audit::Query) -> Result<audit::Page, Error> {
        self.check()?;
        self.store.audit().list(query).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        self.check()?;
        self.store.audit().prune(age, limit).await
    }
}

#[async_trait]
impl Outbox for Switched {
    async fn claim(&self, token: Token, wanted: &[outbox::Wanted]) -> Result<outbox::Claims, Error> {
        self.messages()?.claim(token, wanted).await
    }

    async fn settle(&self, claimed: &outbox::Claimed, settled: outbox::Settled) -> Result<bool, Error> {
        self.messages()?.settle(claimed, settled).await
    }

    async fn pass_dead(&self, destination: &str) -> Result<(), Error> {
        self.messages()?.pass_dead(destination).await
    }

    async fn list(&self, query: outbox::Query) -> Result<outbox::Page, Error> {
        self.messages()?.list(query).await
    }

    async fn item(&self, number: u64) -> Result<Option<outbox::Item>, Error> {
        self.messages()?.item(number).await
    }

    async fn payload(&self, number: u64) -> Result<Option<outbox::Payload>, Error> {
        self.decrypt()?;
        self.messages()?.payload(number).await
    }

    async fn redrive(&self, number: u64, entry: Entry) -> Result<outbox::Changed, Error> {
        self.messages()?.redrive(number, entry).await
    }

    async fn discard(&self, number: u64, entry: Entry) -> Result<outbox::Changed, Error> {
        self.messages()?.discard(number, entry).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        self.messages()?.prune(age, limit).await
    }

    async fn census(&self) -> Result<outbox::Census, Error> {
        self.messages()?.census().await
    }
}
