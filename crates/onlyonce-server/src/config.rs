//! All settings of a gateway, parsed and validated: a [`Config`] needs no further checks.
//!
//! 1. [`load`] merges a file, the environment, `--set` and flags (`source.rs`) into a tree of values with their origin
//!    (`tree.rs`).
//! 2. Every name is looked up in the one table of settings (`setting/table.rs`); misspelt or misplaced names are reported
//!    with a suggestion (`names.rs`).
//! 3. Every value is parsed by its entry in the table. Conflicts between settings are found (`cross.rs`, `policy.rs`), and
//!    keys and certificates are tried (`credentials.rs`). All faults are collected (`reader.rs`); any fault means no
//!    settings.
//! 4. Legal but risky settings are warnings (`risk.rs`).
//! 5. The reference, the example and the help are generated from the table too (`page.rs`), and the schema for editors
//!    (`schema.rs`).
//!
//! Loading the same [`Sources`] again re-reads files and secrets: that is a reload.

mod credentials;
mod cross;
mod effective;
mod fault;
mod names;
pub(crate) mod page;
mod pattern;
mod policy;
mod reader;
mod risk;
pub(crate) mod schema;
mod secret;
mod setting;
mod source;
#[cfg(test)]
mod tests;
mod tree;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, Uri};
use onlyonce::fingerprint::Pointer;
use onlyonce::policy::Accept;
use onlyonce::probe::Probes;
use onlyonce::relay::Terms;
use onlyonce::store::seal::Keyring;
use onlyonce::store::sqlite::Expired;
use onlyonce::worker::Background;
use onlyonce::{Limits, Policy};

use self::reader::{Reader, Section};
use self::setting::table;
use crate::store;
use crate::webhook::preset::Preset;

pub(crate) use self::fault::{Fault, Faults, Place, Question, Warning};
pub(crate) use self::source::Sources;

/// Valid settings.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// Settings that are legal but risky.
    pub(crate) warnings: Vec<Warning>,
    /// What is not set and is worth a thought: a default never warns, so only `check` asks.
    pub(crate) questions: Vec<Question>,
    /// All settings as TOML, each with its origin.
    pub(crate) effective: String,
}

/// Reads all sources and validates everything: the settings, or every fault.
pub(crate) fn load(sources: &Sources) -> Result<Loaded, Faults> {
    let mut faults = Vec::new();
    let settings = source::read(sources, &mut faults);
    if faults.iter().any(|fault| fault.path == source::FILE) {
        // A setting that is missing may be in the file, so only the file's fault is reported.
        return Err(Faults(faults));
    }
    let reader = Reader::new(sources.variables(), faults);
    let top = Section::top(&settings, &reader);
    names::check(&top, "");
    let config = table::config(&top);
    cross::check(&config, &top);
    credentials::check(&config, &top);
    risk::check(&config, &top);
    let questions = risk::questions(&config, &top);
    let (faults, mut warnings) = reader.finish();
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    warnings.extend(source::unread_file(sources));
    let effective = effective::toml(&settings, &config);
    Ok(Loaded { config, warnings, questions, effective })
}

/// All settings, for a command that does not mind what is behind the gateway: `upstream` may be missing.
pub(crate) fn load_without_upstream(sources: &Sources) -> Result<Config, Faults> {
    let is_missing = |fault: &Fault| fault.path == "upstream" && fault.value.is_none();
    match load(sources) {
        Ok(loaded) => Ok(loaded.config),
        Err(faults) if faults.0.iter().any(is_missing) => {
            let mut sources = sources.clone();
            sources.flags.push(("--upstream", "upstream", "http://upstream.invalid".to_owned()));
            load(&sources).map(|loaded| loaded.config)
        }
        Err(faults) => Err(faults),
    }
}

/// Only the `store` setting; nothing else is read.
pub(crate) fn store(sources: &Sources) -> Result<store::Url, Faults> {
    some(sources, table::store)
}

/// Only the encryption keys; nothing else is read.
pub(crate) fn encryption(sources: &Sources) -> Result<Option<Keyring>, Faults> {
    some(sources, |top| table::encryption(&top.inner("encryption")))
}

/// Only the `admin` setting; nothing else is read.
pub(crate) fn admin(sources: &Sources) -> Result<SocketAddr, Faults> {
    some(sources, table::admin)
}

/// Only what a relay goes by; nothing else is read.
pub(crate) fn relaying(sources: &Sources) -> Result<Relaying, Faults> {
    some(sources, |top| Relaying {
        store: table::store(top),
        expired: table::expired(top),
        encryption: table::encryption(&top.inner("encryption")),
        stop_after: table::stop_after(top),
        upstream_ca: table::upstream_ca(top),
        destinations: table::destinations(top),
        every: table::relay_every(top),
        log: table::log(&top.inner("log")),
    })
}

/// Only what a worker goes by; nothing else is read.
pub(crate) fn work(sources: &Sources) -> Result<Work, Faults> {
    some(sources, |top| Work {
        store: table::store(top),
        expired: table::expired(top),
        encryption: table::encryption(&top.inner("encryption")),
        background: table::background(top),
    })
}

/// What `doctor` looks at by itself, so that a fault elsewhere does not keep it from looking.
pub(crate) fn parts(sources: &Sources) -> Parts {
    Parts {
        admin: admin(sources).ok(),
        store: store(sources).ok(),
        encryption: encryption(sources).ok(),
        cache: some(sources, table::cache).ok(),
        admin_tokens: some(sources, table::admin_tokens).ok(),
        background: some(sources, table::background).ok(),
        listener: some(sources, |top| table::listener(&top.inner("listener"))).ok(),
        limits: some(sources, |top| table::limits(&top.inner("limits"))).ok(),
        webhooks: some(sources, table::webhooks).ok(),
    }
}

/// Some of the settings, for a command that has no use for the others and does not mind their faults.
fn some<T>(sources: &Sources, read: impl FnOnce(&Section<'_>) -> T) -> Result<T, Faults> {
    let mut faults = Vec::new();
    let settings = source::read(sources, &mut faults);
    faults.retain(|fault| fault.path == source::FILE);
    let reader = Reader::new(sources.variables(), faults);
    let some = read(&Section::top(&settings, &reader));
    let (faults, _) = reader.finish();
    if faults.is_empty() { Ok(some) } else { Err(Faults(faults)) }
}

/// A span as settings write it, or what is wrong with it.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let told =
        |wrong: Vec<value::Wrong>| wrong.into_iter().next().map(|wrong| wrong.remedy).unwrap_or_default();
    value::span(&tree::Node::text(text, Place::Default)).map_err(told)
}

/// A route's `match`, or what is wrong with it.
pub(crate) fn pattern(text: &str) -> Result<Pattern, String> {
    let told =
        |wrong: Vec<value::Wrong>| wrong.into_iter().next().map(|wrong| wrong.remedy).unwrap_or_default();
    pattern::read(&tree::Node::text(text, Place::Default)).map_err(told)
}

/// What a relay goes by.
#[derive(Clone, Debug)]
pub(crate) struct Relaying {
    pub(crate) store: store::Url,
    pub(crate) expired: Expired,
    pub(crate) encryption: Option<Keyring>,
    pub(crate) stop_after: Duration,
    pub(crate) upstream_ca: Option<PathBuf>,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) every: Duration,
    pub(crate) log: Log,
}

/// What a worker on a store goes by.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) store: store::Url,
    pub(crate) expired: Expired,
    pub(crate) encryption: Option<Keyring>,
    pub(crate) background: Background,
}

/// Some of the settings; none for each that has a fault.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) store: Option<store::Url>,
    pub(crate) encryption: Option<Option<Keyring>>,
    pub(crate) cache: Option<Option<store::Cache>>,
    pub(crate) admin_tokens: Option<Vec<AdminToken>>,
    pub(crate) background: Option<Background>,
    pub(crate) listener: Option<Listener>,
    pub(crate) limits: Option<Limits>,
    pub(crate) webhooks: Option<Vec<Webhook>>,
}

/// All settings.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The address for clients.
    pub(crate) listen: SocketAddr,
    /// The address for operators.
    pub(crate) admin: SocketAddr,
    /// Where records are kept.
    pub(crate) store: store::Url,
    /// The cache in front of the store, if there is one.
    pub(crate) cache: Option<store::Cache>,
    /// What becomes of records that have expired.
    pub(crate) expired: Expired,
    /// What stored answers are encrypted with; none: they stand in clear.
    pub(crate) encryption: Option<Keyring>,
    /// Part of every scope.
    pub(crate) service: Arc<str>,
    /// How long a stop waits for requests in flight.
    pub(crate) stop_after: Duration,
    /// The networks whose trusted headers are accepted.
    pub(crate) trusted_from: Vec<Network>,
    /// How long clients may take, and how many there may be.
    pub(crate) listener: Listener,
    /// Whether a route's path is matched whatever its case.
    pub(crate) path_case: PathCase,
    /// What becomes of a path that a service may take for another route's.
    pub(crate) ambiguous_paths: AmbiguousPaths,
    /// TLS for clients, if enabled.
    pub(crate) tls: Option<Tls>,
    /// CAs for upstreams' certificates, instead of the system's.
    pub(crate) upstream_ca: Option<PathBuf>,
    /// How tokens are verified, if a scope names a claim.
    pub(crate) jwt: Option<Jwt>,
    /// The routes, in the order of the file; the first match wins.
    pub(crate) routes: Vec<Route>,
    /// The route of requests that match none.
    pub(crate) default: Route,
    /// How often the background workers run.
    pub(crate) background: Background,
    /// How insistently probes are asked.
    pub(crate) probing: Probing,
    /// Who may tell what became of unknown records.
    pub(crate) webhooks: Vec<Webhook>,
    /// Where messages of the outbox are delivered.
    pub(crate) destinations: Vec<Destination>,
    /// How often messages that are due are looked for.
    pub(crate) relay_every: Duration,
    /// How much callers may ask for.
    pub(crate) limits: Limits,
    /// Who may use the admin port from other machines.
    pub(crate) admin_tokens: Vec<AdminToken>,
    /// What is logged and how.
    pub(crate) log: Log,
    /// Where traces and metrics go.
    pub(crate) telemetry: Telemetry,
}

impl Config {
    /// Whether any route accepts work.
    pub(crate) fn accepts(&self) -> bool {
        let mut routes = self.routes.iter().chain([&self.default]);
        routes.any(|route| route.policy.accept != Accept::Never)
    }

    /// The largest body that any keyed request may have.
    fn request_bytes_max(&self) -> u64 {
        let routes = self.routes.iter().chain([&self.default]);
        routes.map(|route| route.policy.request_bytes_max).max().unwrap_or_default()
    }
}

/// A route: which requests, their upstream and their policy.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// Its `match` text; `*` for the default route.
    pub(crate) name: Arc<str>,
    /// Which requests it matches; `None` for the default route.
    pub(crate) pattern: Option<Pattern>,
    /// The upstream.
    pub(crate) upstream: Upstream,
    /// The policy.
    pub(crate) policy: Policy,
    /// Where to ask whether its work happened.
    pub(crate) probe: Option<Probe>,
}

/// `route.probe` and `route.probe_headers`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) uri: Uri,
    /// Headers of every question. Their values are never shown.
    pub(crate) headers: Vec<(HeaderName, Secret)>,
}

/// How insistently probes are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probing {
    /// The pause before the first question.
    pub(crate) first: Duration,
    /// The longest pause.
    pub(crate) max: Duration,
    /// After so many answers that say "unknown" a record is a dead letter.
    pub(crate) tries_max: u32,
    /// How many questions a node asks at once.
    pub(crate) at_once: usize,
}

impl Default for Probing {
    fn default() -> Self {
        let Probes { first, max, tries_max, at_once, .. } = Probes::default();
        Self { first, max, tries_max, at_once }
    }
}

/// `[webhooks.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Webhook {
    /// The last part of its path.
    pub(crate) name: Arc<str>,
    pub(crate) preset: &'static Preset,
    pub(crate) scheme: Scheme,
    /// Any of them may have signed.
    pub(crate) secrets: Vec<Secret>,
    /// The header that carries the signature.
    pub(crate) header: HeaderName,
    /// How old, or how far ahead, a signature may be.
    pub(crate) tolerance: Duration,
    /// Whether it is also served on the gateway's port.
    pub(crate) public: bool,
    pub(crate) pointers: Pointers,
    /// The status of the answer that stands for a declined request.
    pub(crate) declined_status: u16,
    /// What its words mean; none: our own words.
    pub(crate) verdicts: Option<BTreeMap<String, Word>>,
}

/// Where the body of a webhook has what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointers {
    pub(crate) token: Pointer,
    pub(crate) scope: Pointer,
    pub(crate) key: Pointer,
    pub(crate) verdict: Pointer,
    pub(crate) never_will: Option<Pointer>,
    pub(crate) response: Option<Pointer>,
    pub(crate) id: Pointer,
    /// None: the signature's time counts.
    pub(crate) time: Option<Pointer>,
}

/// How a webhook is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Ours: `t=…,v1=…` over the time and the body.
    Onlyonce,
    /// Stripe's, the same under another name.
    Stripe,
    /// Standard Webhooks: over the id, the time and the body.
    Standard,
}

/// What a word of a webhook means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Happened,
    /// The work was done, and what came of it is a refusal.
    Declined,
    DidNotHappen,
    /// It did not happen and never will.
    DidNotHappenFinal,
    Unknown,
    Ignore,
}

/// `[destinations.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) name: Arc<str>,
    pub(crate) uri: Uri,
    /// Every one signs.
    pub(crate) secrets: Vec<Secret>,
    pub(crate) terms: Terms,
    /// Statuses that make a dead letter at once.
    pub(crate) dead: Vec<u16>,
    /// Where an answer has the receiver's own id of a message.
    pub(crate) provider_id: Option<ProviderId>,
    pub(crate) key_header: HeaderName,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProviderId {
    Header(HeaderName),
    Json(Pointer),
}

/// `POST /payments/*`: a method or any, and a path with `*` for one segment and `**` at its end for the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// None: any method.
    pub(crate) method: Option<Method>,
    /// The segments of the path, normalised as paths of requests are.
    pub(crate) segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// This text.
    Text(String),
    /// `*`
    One,
    /// `**`, only at the end. `/b/**` also matches `/b` and `/b/`.
    Rest,
}

/// A service behind the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Upstream {
    /// `http://…` or `https://…`, perhaps with a path prefix.
    pub(crate) uri: Uri,
    /// The HTTP version.
    pub(crate) protocol: Protocol,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    /// HTTP/1.1 without TLS; negotiated with TLS.
    #[default]
    Auto,
    Http1,
    /// HTTP/2; without TLS by prior knowledge.
    Http2,
}

/// `[listener]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    /// From the first byte of a request's head, or of the HTTP/2 preface, to its last.
    pub(crate) head_timeout: Duration,
    /// How long a body may make no progress.
    pub(crate) body_timeout: Duration,
    /// How long a connection may have no request.
    pub(crate) idle_timeout: Duration,
    /// The most connections of clients.
    pub(crate) connections_max: usize,
    /// The most bytes of bodies that are held in memory, of all keyed requests together.
    pub(crate) buffered_bytes_max: u64,
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            connections_max: 10_000,
            buffered_bytes_max: 256 << 20,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PathCase {
    /// `/Payments` is another path than `/payments`.
    #[default]
    Keep,
    /// Both match a route of either.
    Fold,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AmbiguousPaths {
    /// Passed on as they are spelt.
    #[default]
    Allow,
    /// 400.
    Refuse,
}

/// `[tls]`: files in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// The CA of client certificates; with it a client may present one, which `scope = ["certificate"]` uses.
    pub(crate) client_ca: Option<PathBuf>,
}

/// `[jwt]`
#[derive(Clone, Debug)]
pub(crate) struct Jwt {
    /// The keys, in the order they are tried.
    pub(crate) keys: Vec<Secret>,
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) issuer: Option<String>,
    pub(crate) audience: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Hs256,
    Rs256,
    Es256,
}

/// `[[admin_token]]`
#[derive(Clone, Debug)]
pub(crate) struct AdminToken {
    pub(crate) name: String,
    pub(crate) token: Secret,
    pub(crate) role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Read,
    Operate,
}

/// The value of `env:NAME` or `file:PATH`. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret {
    /// Where it came from, which may be shown.
    pub(crate) source: String,
    pub(crate) bytes: Vec<u8>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.source)
    }
}

/// `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) address: IpAddr,
    pub(crate) prefix_bits: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// Directives of `tracing`'s filter.
    pub(crate) filter: String,
    pub(crate) format: LogFormat,
    /// Whether every keyed request leaves a line.
    pub(crate) decisions: bool,
}

/// Where traces and metrics go.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Telemetry {
    /// The collector; none: nothing is traced.
    pub(crate) otlp: Option<Uri>,
    pub(crate) service_name: String,
    /// Which part of the traces that begin here is recorded, from 0 to 1.
    pub(crate) sample: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}
