//! The process that is killed: a service as a user would write it, on a store of any engine, with its workers.
//!
//! It is this very test binary, started anew by the driver. Its settings come in the environment, its ready line goes
//! to stdout, and it ends at once when its stdin does: nothing is left behind by a driver that was itself killed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use onlyonce::accepted::App;
use onlyonce::policy::Accept;
use onlyonce::store::postgres::{self, Postgres};
use onlyonce::store::seal::Keyring;
use onlyonce::store::sqlite::{self, Sqlite};
use onlyonce::store::{
    Audit, Change, Count, EpochSeen, Error, ErrorKind, Outbox, Page, Promises, Query, Store, Swapped,
};
use onlyonce::worker::{Background, Workers};
use onlyonce::{Attempt, Effects, Onlyonce, Policy};
use onlyonce_core::record::{Id, Seen, StateName};
use tokio::io::AsyncReadExt;

use crate::operate;
use crate::order::{Kind, WISH, Wish, send};

/// Names the store, and makes this process a victim.
pub(crate) const STORE: &str = "ONLYONCE_CRASH_VICTIM";
/// Where the ledger listens.
pub(crate) const LEDGER: &str = "ONLYONCE_CRASH_LEDGER";
/// Whether the sweeper and the reaper work: `on` or `off`.
pub(crate) const WORKERS: &str = "ONLYONCE_CRASH_WORKERS";
/// Whether the store takes renewals: `on` or `off`.
pub(crate) const RENEWALS: &str = "ONLYONCE_CRASH_RENEWALS";
/// The lease of every attempt, in seconds.
pub(crate) const LEASE_SECONDS: &str = "ONLYONCE_CRASH_LEASE_SECONDS";
/// Whether routes say about their effects what is true: `on` or `off`.
pub(crate) const HONESTY: &str = "ONLYONCE_CRASH_HONESTY";
/// Whether the ledger is asked about what is unknown: `on` or `off`.
pub(crate) const PROBES: &str = "ONLYONCE_CRASH_PROBES";
/// The page size of a file that is created.
pub(crate) const PAGE_BYTES: &str = "ONLYONCE_CRASH_PAGE_BYTES";
/// What the ready line begins with.
pub(crate) const READY: &str = "ready: ";

const DEADLINE: Duration = Duration::from_secs(30);
/// How long the record of a brief order is kept.
const BRIEFLY: Duration = Duration::from_millis(50);
/// The answer to a large order: more than 8,000 small pages, and after so many at the latest the WAL is carried over.
const LARGE_BYTES: usize = 4 << 20;
const WORK_EVERY: Duration = Duration::from_millis(50);

/// Serves until it is killed.
pub(crate) fn run(store: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(serve(store));
}

async fn serve(store: &str) {
    tokio::spawn(end_with_the_driver());
    let store = open(store).await.unwrap_or_else(|error| panic!("{error}"));
    let store = if is_on(RENEWALS) { store } else { Arc::new(NoRenewals(store)) };
    let onlyonce = Onlyonce::new(store);
    let background = Background {
        sweep_every: WORK_EVERY,
        reap_every: WORK_EVERY,
        reap_batch: 10,
        ..Background::default()
    };
    if is_on(PROBES) {
        onlyonce.engine().use_probes(operate::probes(ledger()));
    }
    let app = app(&onlyonce);
    onlyonce.engine().run_accepted_with(Arc::new(App::<_, Body>::new(app.clone())));
    let _workers = is_on(WORKERS).then(|| Workers::start(onlyonce.engine(), &background));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("{READY}{}", listener.local_addr().expect("a bound listener has an address"));
    axum::serve(listener, app).await.expect("the server serves until it is killed");
}

async fn open(store: &str) -> Result<Arc<dyn Store>, Error> {
    let keyring = Some(Keyring::new([[7; 32]]).expect("one key"));
    if let Some(file) = store.strip_prefix("sqlite:") {
        let page_bytes = number(PAGE_BYTES);
        let options = sqlite::Options { page_bytes, keyring, ..sqlite::Options::default() };
        return Ok(Arc::new(Sqlite::open(file, options).await?));
    }
    let store: Arc<dyn Store> = match store.split(':').next() {
        #[cfg(feature = "mysql")]
        Some("mysql") => {
            use onlyonce::store::mysql::{Mysql, Options};
            Arc::new(Mysql::open(store, Options { keyring, ..Options::default() }).await?)
        }
        #[cfg(feature = "redis")]
        Some("redis") => {
            use onlyonce::store::redis::{Options, Redis};
            Arc::new(Redis::open(store, Options { keyring, ..Options::default() }).await?)
        }
        _ => {
            let options = postgres::Options { keyring, ..postgres::Options::default() };
            Arc::new(Postgres::open(store, options).await?)
        }
    };
    store.prepare().await?;
    Ok(store)
}

fn is_on(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "on")
}

fn number(variable: &str) -> u32 {
    let value = std::env::var(variable).ok().and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("the driver sets {variable}"))
}

async fn end_with_the_driver() {
    let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    std::process::abort();
}

fn ledger() -> SocketAddr {
    let address = std::env::var(LEDGER).ok().and_then(|address| address.parse().ok());
    address.expect("the driver names its ledger")
}

/// A route for each kind of effects, on one engine.
fn app(onlyonce: &Onlyonce) -> Router {
    let ledger = ledger();
    let nothing = get(|| async { StatusCode::NOT_FOUND });
    let questions = Router::new().route("/_onlyonce/keys/{key}", nothing).layer(onlyonce.layer());
    let questions = questions.merge(operate::routes(onlyonce.engine()));
    Kind::ALL.into_iter().fold(questions, |app, kind| {
        let onlyonce = onlyonce.clone().with_policy(policy(kind)).unwrap_or_else(|faults| panic!("{faults}"));
        let route = Router::new().route(&format!("/{}", kind.name()), post(work)).layer(onlyonce.layer());
        app.merge(route.with_state(ledger))
    })
}

fn policy(kind: Kind) -> Policy {
    let effects = match kind {
        // What a user gets wrong: this work does not deduplicate anything.
        Kind::Opaque if !is_on(HONESTY) => Effects::Keyed,
        Kind::Opaque => Effects::Opaque,
        Kind::Keyed => Effects::Keyed,
        Kind::Queryable => Effects::Queryable,
        Kind::Local => Effects::Local,
    };
    let lease = Duration::from_secs(number(LEASE_SECONDS).into());
    Policy {
        effects,
        lease,
        deadline: DEADLINE,
        store_timeout: lease / 2,
        response_bytes_max: 2 * LARGE_BYTES as u64,
        accept: Accept::Allowed,
        // A life without probes leaves records that nobody asks about; the next one that has some takes them up.
        reconcile_first: (kind == Kind::Queryable && is_on(PROBES)).then_some(operate::ASK_FIRST),
        ..Policy::default()
    }
}

/// Calls the ledger once, and passes its receipt on.
async fn work(
    State(ledger): State<SocketAddr>,
    route: MatchedPath,
    attempt: Attempt,
    headers: HeaderMap,
) -> Response {
    let wish = Wish::of(&headers);
    let request = Request::post("/charge")
        .header("x-kind", route.as_str().trim_start_matches('/'))
        .header("x-key", attempt.key().as_str())
        .header("x-downstream-key", attempt.downstream_key("charge"))
        .header("x-token", attempt.handle().to_string())
        .header(WISH, wish.name())
        .body(Full::<Bytes>::default())
        .expect("a run is a valid request");
    let Ok(receipt) = send(ledger, request).await else { return StatusCode::BAD_GATEWAY.into_response() };
    let mut body = receipt.body.to_vec();
    match wish {
        Wish::Large => body.resize(LARGE_BYTES, b' '),
        Wish::Brief => attempt.keep_for(BRIEFLY),
        Wish::None | Wish::Held => {}
    }
    (StatusCode::CREATED, body).into_response()
}

/// A store that takes everything but renewals, so that a lease lapses while its handler lives: as on a node that was
/// suspended, and comes back.
#[derive(Debug)]
struct NoRenewals(Arc<dyn Store>);

impl NoRenewals {
    async fn is_renewal(&self, id: Id, change: &Change) -> Result<bool, Error> {
        let is_running = change.next.state.name() == StateName::Running;
        let seen = self.0.load(id).await?;
        Ok(is_running && seen.is_some_and(|seen| seen.record.token == change.next.token))
    }
}

#[async_trait]
impl Store for NoRenewals {
    async fn prepare(&self) -> Result<(), Error> {
        self.0.prepare().await
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.0.load(id).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        if self.is_renewal(id, &change).await? {
            return Err(Error::new(ErrorKind::Other, "renewals are refused on order"));
        }
        self.0.swap(id, change).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.0.scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.0.reap(limit).await
    }

    async fn results(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Vec<onlyonce::store::result::PhaseResult>, Error> {
        self.0.results(id, used_at).await
    }

    async fn request(&self, id: Id, used_at: onlyonce_core::time::Timestamp) -> Result<Option<Bytes>, Error> {
        self.0.request(id, used_at).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.0.requests(limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.0.count().await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        self.0.epoch().await
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.0.raise_epoch().await
    }

    fn promises(&self) -> Promises {
        self.0.promises()
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.0.erase(scope, limit).await
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        self.0.outbox()
    }

    fn audit(&self) -> &dyn Audit {
        self.0.audit()
    }
}
