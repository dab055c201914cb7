//! The admin port: liveness, readiness, metrics, the API of operators, and the dashboard, which is a client of that API.
//!
//! 1. What there is, who may ask for it and how it is refused stands in one table (`endpoint.rs`), from which requests are
//!    routed and the API is described.
//! 2. A request is let in (`who.rs`) before anything else is said about it, and read whole (`call.rs`): everything that is
//!    wrong with it is told at once.
//! 3. Records are changed by the engine alone, each change with its entry of the audit log.
//! 4. Every answer has `Cache-Control: no-store`. No answer allows pages of another origin anything.
//! 5. What has an authentication of its own (webhooks, which are signed) comes as a router that is merged: see [`serve`].

mod audit;
mod call;
mod change;
mod connection;
mod cursor;
mod endpoint;
mod events;
mod figures;
mod health;
mod json;
mod keys;
mod openapi;
mod outbox;
mod overview;
mod parameter;
mod refusal;
mod schema;
mod traffic;
mod verdict;
mod who;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderValue, Method};
use onlyonce::Engine;
use onlyonce::store::{Error, ErrorKind};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout};

use self::call::Call;
use self::connection::Peer;
use self::endpoint::{Access, Endpoint, Name};
use self::events::Events;
use self::refusal::{Code, Refusal};
use self::traffic::Minute;
use self::who::{Caller, role_name};
use crate::config::{AdminToken, Config, Role};
use crate::dashboard;
use crate::metric::{self, Family};
pub(crate) use audit::ACTIONS;
pub(crate) use figures::Figures;
pub(crate) use who::AS_CHARS_MAX;

/// What a body may have beyond the largest answer that can be stored.
const BODY_BYTES_MORE: usize = 64 * 1024;
/// How often the traffic is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long requests may take to end once the node is stopped.
const STOPS_WITHIN: Duration = Duration::from_secs(1);

/// The state of the admin port.
#[derive(Debug)]
pub(crate) struct Admin {
    engine: Arc<Engine>,
    figures: Figures,
    /// How long `/readyz` waits for the store.
    store_timeout: Duration,
    /// This node's name: its host's, and the port.
    node: Arc<str>,
    rules: RwLock<Arc<Rules>>,
    store_name: OnceCell<[u8; 16]>,
    minute: Minute,
    events: Events,
    /// What the demo's sample service has done, for the dashboard.
    ledger: OnceLock<Ledger>,
    phase: watch::Sender<Phase>,
}

/// What the demo's bank has charged, as JSON. Outside the demo there is none.
struct Ledger(Box<dyn Fn() -> Value + Send + Sync>);

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ledger")
    }
}

/// How far the node's stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// It is stopped, finishes what is under way, and is not ready for more.
    Stopping,
    /// Streams and connections end.
    Ended,
}

/// What the settings say about the admin port. A reload replaces it.
#[derive(Debug)]
struct Rules {
    tokens: Vec<AdminToken>,
    body_bytes_max: usize,
    /// A digest of all settings, without their secrets.
    digest: String,
}

impl Rules {
    fn of(config: &Config) -> Self {
        let policies = config.routes.iter().chain([&config.default]).map(|route| &route.policy);
        let response_bytes_max = policies.map(|policy| policy.response_bytes_max).max().unwrap_or(0);
        let digest = Sha256::digest(format!("{config:?}"));
        Self {
            tokens: config.admin_tokens.clone(),
            body_bytes_max: usize::try_from(response_bytes_max)
                .unwrap_or(usize::MAX)
                .saturating_add(BODY_BYTES_MORE),
            digest: digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }
}

impl Admin {
    /// With these settings, at the port that was bound. From now on every entry of the audit log is in the process' log too.
    pub(crate) fn new(
        engine: Arc<Engine>,
        figures: Figures,
        config: &Config,
        address: SocketAddr,
    ) -> Arc<Self> {
        engine.on_change(audit::log);
        let minute = Minute::default();
        // Before the first request: whatever comes counts from here on.
        minute.look(engine.traffic(), Instant::now());
        Arc::new(Self {
            engine,
            figures,
            store_timeout: config.default.policy.store_timeout,
            node: format!("{}:{}", host_name(), address.port()).into(),
            rules: RwLock::new(Arc::new(Rules::of(config))),
            store_name: OnceCell::new(),
            minute,
            events: Events::default(),
            ledger: OnceLock::new(),
            phase: watch::channel(Phase::Serving).0,
        })
    }

    /// The engine it speaks to.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// This node's name.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// All metrics.
    pub(crate) async fn metrics(&self) -> Vec<Family> {
        let (is_ready, ()) = tokio::join!(health::is_ready(self), self.figures.count_records(&self.engine));
        self.figures.families(&self.engine, &self.minute, is_ready)
    }

    fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes by these settings from the next request on. That they were read anew is in the audit log.
    pub(crate) fn reload(self: &Arc<Self>, config: &Config) {
        let after = Arc::new(Rules::of(config));
        let before = {
            let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *rules, after.clone())
        };
        let (admin, entry) = (self.clone(), audit::reloaded(&before.digest, &after.digest));
        tokio::spawn(async move {
            if let Err(error) = admin.engine.write_audit(entry).await {
                tracing::warn!(%error, "the settings were reloaded, but the audit entry could not be written");
            }
        });
    }

    /// The dashboard shows this ledger beside the gateway's own figures.
    pub(crate) fn show_ledger(&self, ledger: impl Fn() -> Value + Send + Sync + 'static) {
        // A second one would be the same.
        let _ = self.ledger.set(Ledger(Box::new(ledger)));
    }

    /// Whoever watches gets new figures soon, as after any other event.
    pub(crate) fn refresh(&self) {
        self.events.refresh();
    }

    /// From now on the node is not ready.
    pub(crate) fn announce_stop(&self) {
        self.phase.send_replace(Phase::Stopping);
    }

    fn is_serving(&self) -> bool {
        *self.phase.borrow() == Phase::Serving
    }

    /// Ready when streams and connections are to end. Also where nobody is left who could say so.
    fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut phase = self.phase.subscribe();
        async move {
            let _ = phase.wait_for(|phase| *phase == Phase::Ended).await;
        }
    }

    /// The store's name, which never changes.
    async fn store_name(&self) -> Result<[u8; 16], Error> {
        let asked = self.store_name.get_or_try_init(|| async {
            let late = |_| Error::new(ErrorKind::Unavailable, "the store did not answer in time");
            let seen = timeout(self.store_timeout, self.engine.store().epoch()).await.map_err(late)??;
            Ok(seen.store)
        });
        asked.await.copied()
    }

    /// Looks at the traffic, for ever.
    async fn look_at_traffic(self: Arc<Self>) {
        let mut rounds = interval(LOOK_EVERY);
        loop {
            rounds.tick().await;
            self.minute.look(self.engine.traffic(), Instant::now());
        }
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The admin port, being served.
#[derive(Debug)]
pub(crate) struct Administration {
    admin: Arc<Admin>,
    serving: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
}

/// Serves until it is stopped. What is in `open` needs no token: it has an authentication of its own.
pub(crate) fn serve(listener: TcpListener, admin: &Arc<Admin>, open: Router) -> Administration {
    let routes = router(admin.clone()).merge(open).layer(map_response(sealed));
    let ending = admin.clone();
    Administration {
        admin: admin.clone(),
        serving: tokio::spawn(connection::serve(listener, routes, move || ending.ended())),
        background: vec![
            tokio::spawn(events::run(admin.clone(), admin.engine.events())),
            tokio::spawn(admin.clone().look_at_traffic()),
        ],
    }
}

impl Administration {
    /// Ends streams and requests, and closes the port.
    pub(crate) async fn stop(self) {
        let Self { admin, mut serving, background } = self;
        admin.phase.send_replace(Phase::Ended);
        background.iter().for_each(JoinHandle::abort);
        if timeout(STOPS_WITHIN, &mut serving).await.is_err() {
            serving.abort();
        }
    }
}

fn router(admin: Arc<Admin>) -> Router {
    let mut router = Router::new();
    for path in endpoint::paths() {
        let answer = move |State(admin): State<Arc<Admin>>, ConnectInfo(peer): Peer, request: Request| {
            answer(admin, peer, path, request)
        };
        router = router.route(path, any(answer));
    }
    router.fallback(not_found).with_state(admin)
}

/// What holds for every answer.
async fn sealed(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn answer(admin: Arc<Admin>, peer: SocketAddr, path: &'static str, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let answered = match let_in(&admin, peer, path, &head).await {
        Ok((endpoint, caller)) => respond(Call::new(admin, endpoint, caller, head), body).await,
        Err(refusal) => Err(refusal),
    };
    answered.unwrap_or_else(IntoResponse::into_response)
}

/// Who asks for what, where it may be asked.
async fn let_in(
    admin: &Admin,
    peer: SocketAddr,
    path: &'static str,
    head: &Parts,
) -> Result<(&'static Endpoint, Caller), Refusal> {
    let rules = admin.rules();
    let is_open = endpoint::at(path).all(|endpoint| match endpoint.access {
        Access::Open => true,
        Access::Page => rules.has_tokens(),
        Access::Needs(_) => false,
    });
    let caller = match is_open {
        true => Caller::anybody(peer.ip()),
        false => Caller::of(&rules.tokens, peer.ip(), head)?,
    };
    let method = if head.method == Method::HEAD { &Method::GET } else { &head.method };
    let Some(endpoint) = endpoint::at(path).find(|endpoint| endpoint.method == method) else {
        return Err(no_method(path, &head.method));
    };
    match may(endpoint, &caller, head) {
        Ok(()) => Ok((endpoint, caller)),
        Err(refusal) => {
            audit::keep_refusal(admin, endpoint, &caller, head, refusal.code).await;
            Err(refusal)
        }
    }
}

/// Refuses what this caller may not ask for.
fn may(endpoint: &Endpoint, caller: &Caller, head: &Parts) -> Result<(), Refusal> {
    if endpoint.is_change() {
        who::refuse_other_origin(head)?;
    }
    match (endpoint.access, caller.role) {
        (Access::Open | Access::Page | Access::Needs(Role::Read), Role::Read | Role::Operate)
        | (Access::Needs(Role::Operate), Role::Operate) => Ok(()),
        (Access::Needs(Role::Operate), Role::Read) => {
            let detail = "this token has the role read; use a token with the role operate";
            Err(Refusal::new(Code::Forbidden, detail).with("needs", role_name(Role::Operate)))
        }
    }
}

fn no_method(path: &str, method: &Method) -> Refusal {
    let allowed = endpoint::allowed(path);
    let detail = format!("{path} does not support {method}; it supports {allowed}");
    let allow = HeaderValue::try_from(allowed).expect("names of methods are a header's value");
    Refusal::new(Code::Method, detail).with_header(ALLOW, allow)
}

async fn not_found(State(admin): State<Arc<Admin>>, ConnectInfo(peer): Peer, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let refusal = match Caller::of(&admin.rules().tokens, peer.ip(), &head) {
        Ok(_) => Refusal::new(Code::NotFound, "there is no such path; GET /v1/openapi.json lists all paths"),
        Err(refusal) => refusal,
    };
    refusal.into_response()
}

async fn respond(call: Call, body: Body) -> Result<Response, Refusal> {
    match call.endpoint.name {
        Name::Healthz => Ok(health::healthz()),
        Name::Readyz => Ok(health::readyz(&call.admin).await),
        Name::Metrics => metrics(call).await,
        Name::Keys => keys::list(call).await,
        Name::Key => keys::show(call).await,
        Name::Response => keys::response(call).await,
        Name::Verdict => change::verdict(call, body).await,
        Name::Forget => change::forget(call).await,
        Name::Purge => change::purge(call).await,
        Name::Messages => outbox::list(call).await,
        Name::Message => outbox::show(call).await,
        Name::Payload => outbox::payload(call).await,
        Name::Redrive => outbox::redrive(call, body).await,
        Name::RedriveMany => outbox::redrive_many(call, body).await,
        Name::Discard => outbox::discard(call).await,
        Name::Audit => audit::list(call).await,
        Name::Events => events::watch(&call),
        Name::Overview => overview::show(call).await,
        Name::OpenApi => described(&call),
        Name::Page => Ok(dashboard::page(call.admin.rules().has_tokens())),
        Name::Script => Ok(dashboard::script()),
        Name::Style => Ok(dashboard::style()),
        Name::Icon => Ok(dashboard::icon()),
    }
}

async fn metrics(call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let mut response = Response::new(Body::from(metric::text(&call.admin.metrics().await)));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    Ok(response)
}

fn described(call: &Call) -> Result<Response, Refusal> {
    call.check()?;
    Ok(axum::Json(openapi::document()).into_response())
}
