//! What is legal and may be regretted.

use std::time::Duration;

use http::{Method, header};
use onlyonce::policy::{Anonymous, Mode, On5xx, REQUIRED, StoreDown};
use onlyonce::scope::Source;
use onlyonce::{Effects, Limit, Policy};

use super::policy::brought;
use super::reader::Section;
use super::{Config, Place, Question, Route, Segment};
use crate::store::Url;

/// RFC 7518 asks for as many bytes as the digest has.
const HS256_BYTES_MIN: usize = 32;
const ADMIN_TOKEN_CHARS_MIN: usize = 16;
const HOUR: Duration = Duration::from_secs(3600);
/// What services and proxies usually give themselves.
const USUAL_TIMEOUT: Duration = Duration::from_secs(30);
const LONG_LEASE: Duration = Duration::from_secs(5 * 60);
const LONG_WAIT: Duration = Duration::from_secs(60);
const LARGE_BYTES: u64 = 64 << 20;

/// A setting of a policy, its value, and what may come of it.
type Risk = (&'static str, String, String);

pub(super) fn check(config: &Config, top: &Section<'_>) {
    check_network(config, top);
    check_secrets(config, top);
    check_webhooks(config, top);
    check_destinations(config, top);
    check_limits(config, top);
    check_nodes(config, top);
    let policy = top.inner("policy");
    let general = risks(&config.default.policy, &config.store);
    // What nobody set is nothing to warn about, unless a dialect brings it.
    let of_dialect: Vec<_> = brought(&config.default.policy).into_iter().map(|(name, _)| name).collect();
    for (name, value, remedy) in general.iter().filter(|(name, ..)| policy.has(name)) {
        policy.warn(name, value.clone(), remedy);
    }
    for (route, section) in config.routes.iter().zip(&top.tables("route")) {
        let is_set = |name| section.has(name) || policy.has(name) || of_dialect.contains(&name);
        let own = |risk: &Risk| is_set(risk.0) && !general.contains(risk);
        for (name, value, remedy) in risks(&route.policy, &config.store).into_iter().filter(own) {
            section.warn_of(name, value, remedy, source(name, section, &policy));
        }
        check_required(route, section);
        if !top.has("ambiguous_paths") {
            check_spellings(route, &config.default, (section, &policy));
        }
        check_probe(route, section);
        check_dialect(route, &config.default, (section, &policy));
    }
}

/// What `check` asks: whether a 5xx really means that nothing was done, where a second run would do harm and nobody has said so.
pub(super) fn questions(config: &Config, top: &Section<'_>) -> Vec<Question> {
    let policy = top.inner("policy");
    let asks = |route: &Route, section: &Section<'_>| {
        let is_said = section.has("on_5xx") || policy.has("on_5xx") || route.policy.on_5xx != On5xx::Retry;
        let is_harmful = route.policy.effects == Effects::Opaque && route.policy.mode == Mode::Enforce;
        is_harmful && !is_said
    };
    if asks(&config.default, &policy) {
        // It is about every route that says nothing else.
        return vec![question(&policy)];
    }
    let routes = config.routes.iter().zip(top.tables("route"));
    routes.filter(|(route, section)| asks(route, section)).map(|(_, section)| question(&section)).collect()
}

fn question(section: &Section<'_>) -> Question {
    Question {
        path: section.path_of("on_5xx"),
        route: section.route.clone(),
        value: None,
        remedy: "does an answer of 500 or 503 mean that nothing was done? It is taken to, and a retry runs the work again: a handler that \
                 throws after its effect runs twice. Set \"unknown\" (nothing runs until the outcome is known) or \"store\" (the 5xx is \
                 replayed) if it may have been done, and \"retry\" if not"
            .to_owned(),
        place: Place::Default,
    }
}

fn check_network(config: &Config, top: &Section<'_>) {
    if !config.store.is_durable() {
        let remedy = "loses all records when the process ends, so a retry runs again; use sqlite:PATH";
        top.warn("store", config.store.to_string(), remedy);
    }
    if config.tls.is_none() && !config.listen.ip().is_loopback() {
        let remedy = "accepts unencrypted connections from other machines, including credentials; set [tls], or put a \
                      proxy with TLS in front";
        top.warn("listen", config.listen.to_string(), remedy);
    }
    if !config.admin.ip().is_loopback() {
        let remedy = "sends admin tokens unencrypted; use it only in your own network";
        top.warn("admin", config.admin.to_string(), remedy);
    }
    for network in config.trusted_from.iter().filter(|network| !network.is_loopback()) {
        let share = if network.address.is_ipv4() { 8 } else { 32 };
        if network.prefix_bits < share {
            let value = format!("{}/{}", network.address, network.prefix_bits);
            let remedy = "accepts trusted headers from nearly any address; list only the proxies";
            top.warn("trusted_from", value, remedy);
        }
    }
}

fn check_secrets(config: &Config, top: &Section<'_>) {
    let jwt = top.inner("jwt");
    for key in config.jwt.iter().flat_map(|jwt| &jwt.keys) {
        if key.bytes.len() < HS256_BYTES_MIN {
            let remedy = format!(
                "is shorter than the {HS256_BYTES_MIN} bytes that HS256 needs and can be guessed; use a longer one"
            );
            jwt.warn("keys", key.source.clone(), remedy);
        }
    }
    let has_secret = |route: &Route| !route.policy.fingerprint.secrets.is_empty();
    if config.encryption.is_some() && !config.routes.iter().chain([&config.default]).all(has_secret) {
        let remedy = "encrypts answers, but fingerprints are plain digests, from which a short request can be guessed; set \
                      policy.fingerprint.secrets to make them HMACs";
        top.inner("encryption").warn("keys", None, remedy);
    }
    for (token, section) in config.admin_tokens.iter().zip(top.tables("admin_token")) {
        if token.token.bytes.len() < ADMIN_TOKEN_CHARS_MIN {
            let remedy = format!(
                "is shorter than {ADMIN_TOKEN_CHARS_MIN} characters and can be guessed; use a longer one"
            );
            section.warn("token", token.token.source.clone(), remedy);
        }
    }
}

/// `required = true` does not mean a route's own method, where that is PUT or DELETE.
fn check_required(route: &Route, section: &Section<'_>) {
    let method = route.pattern.as_ref().and_then(|pattern| pattern.method.as_ref());
    let is_true = section.node("required").is_some_and(|node| node.value.to_string() == "true");
    let Some(method) = method.filter(|method| is_true && !REQUIRED.contains(method)) else { return };
    let remedy =
        format!("means POST and PATCH, but this route matches {method}; write required = [\"{method}\"]");
    section.warn("required", "true".to_owned(), remedy);
}

/// A route that demands a key, where others do not, is as good as the service's reading of paths.
fn check_spellings(route: &Route, base: &Route, (section, policy): (&Section<'_>, &Section<'_>)) {
    let Some(pattern) = &route.pattern else { return };
    let is_its_own = |method: &Method| {
        pattern.method.as_ref().is_none_or(|own| own == method) && !base.policy.required.contains(method)
    };
    let has_text = pattern.segments.iter().any(|segment| matches!(segment, Segment::Text(_)));
    if has_text && route.policy.required.iter().any(is_its_own) {
        let remedy = "can be bypassed by another spelling of the path (/Payments, //payments, /payments;x) if the service treats it as \
                      the same path; set ambiguous_paths to \"refuse\", or to \"allow\" if the service does not";
        if section.has("required") || policy.has("required") {
            section.warn_of("required", None, remedy, source("required", section, policy));
        } else {
            let remedy = format!("requires keys, which {remedy}");
            section.warn_of(
                "dialect",
                route.policy.dialect.name.to_string(),
                remedy,
                source("dialect", section, policy),
            );
        }
    }
}

/// Where a setting that holds in a route was written: there, in `[policy]`, or as the dialect that brings it.
fn source(name: &str, section: &Section<'_>, policy: &Section<'_>) -> Place {
    let places = [(section, name), (policy, name), (section, "dialect"), (policy, "dialect")];
    let written = places.into_iter().find(|(section, name)| section.has(name));
    written.map_or(Place::Default, |(section, name)| section.place_of(name))
}

/// A probe is for work that can be asked about: only there a 5xx is doubt, and not a reason to run again.
fn check_probe(route: &Route, section: &Section<'_>) {
    let Some(probe) = route.probe.as_ref().filter(|_| route.policy.effects == Effects::Opaque) else {
        return;
    };
    let remedy = "is called for unknown outcomes, but the route's effects are \"opaque\", so a 500 still runs again; set \
                  effects to \"queryable\"";
    section.warn("probe", probe.uri.to_string(), remedy);
}

fn check_webhooks(config: &Config, top: &Section<'_>) {
    for webhook in config.webhooks.iter().filter(|webhook| webhook.tolerance > HOUR) {
        let section = top.inner("webhooks").inner(&webhook.name);
        let remedy = "lets a captured webhook be sent again for that long; use 5m, as providers do";
        section.warn("tolerance", onlyonce::policy::span(webhook.tolerance), remedy);
    }
}

fn check_destinations(config: &Config, top: &Section<'_>) {
    for destination in config.destinations.iter().filter(|destination| destination.secrets.is_empty()) {
        let section = top.inner("destinations").inner(&destination.name);
        let remedy = "is not set, so the receiver cannot verify who sent a message; set it";
        section.warn("secrets", None, remedy);
    }
}

/// Anybody can make up scopes that nobody verifies, and each of them has a limit of its own.
fn check_limits(config: &Config, top: &Section<'_>) {
    let unverified = |source: &&Source| match source {
        Source::Header(_) => true,
        Source::Trusted(_) | Source::Jwt(_) | Source::Certificate | Source::Route => false,
    };
    let routes = config.routes.iter().chain([&config.default]);
    let Some(source) = routes.flat_map(|route| &route.policy.scope).find(unverified) else { return };
    for (limit, total) in [
        (Limit::KeysPerSecond, Limit::KeysPerSecondTotal),
        (Limit::LookupsPerSecond, Limit::LookupsPerSecondTotal),
        (Limit::KeysAlive, Limit::KeysAliveTotal),
        (Limit::InFlight, Limit::InFlightTotal),
    ] {
        let (Some(value), None) = (config.limits.of(limit), config.limits.of(total)) else { continue };
        let remedy = format!(
            "is a limit per scope, but {source} is not verified here, so a caller can invent any number of scopes; set \
             limits.{total} too"
        );
        top.inner("limits").warn(limit.as_str(), value.to_string(), remedy);
    }
}

/// Rates and attempts are counted by each node for itself: two gateways allow twice as much, unless they share.
fn check_nodes(config: &Config, top: &Section<'_>) {
    let limits = top.inner("limits");
    if config.store.has_one_owner() || limits.has("nodes") {
        return;
    }
    let by_node = [
        Limit::KeysPerSecond,
        Limit::KeysPerSecondTotal,
        Limit::LookupsPerSecond,
        Limit::LookupsPerSecondTotal,
        Limit::InFlight,
        Limit::InFlightTotal,
    ];
    let Some(limit) = by_node.into_iter().find(|limit| config.limits.of(*limit).is_some()) else { return };
    let remedy = format!(
        "is not set, and each gateway on this store allows the whole of limits.{limit}: two of them allow twice as much; set how \
         many there are, also if it is 1"
    );
    limits.warn("nodes", None, remedy);
}

/// A preset of `[policy]`'s dialect goes on to hold in a route of another dialect, where that one says nothing.
fn check_dialect(route: &Route, base: &Route, (section, policy): (&Section<'_>, &Section<'_>)) {
    let (own, other) = (&route.policy.dialect, &base.policy.dialect);
    if own.name == other.name {
        return;
    }
    let brings: Vec<_> = brought(&route.policy).into_iter().map(|(name, _)| name).collect();
    let is_set = |section: &Section<'_>, name: &str| match name.split_once('.') {
        Some((table, name)) => section.inner(table).has(name),
        // Both say where the key stands.
        None if name == "key_from" => section.has("key_from") || section.has("header"),
        None => section.has(name),
    };
    let left: Vec<_> = brought(&base.policy)
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !brings.contains(name) && !is_set(section, name) && !is_set(policy, name))
        .collect();
    if !left.is_empty() {
        let left = left.join(", ");
        let remedy = format!(
            "does not change what policy.dialect \"{}\" set: {left}; set these in the route too",
            other.name
        );
        section.warn("dialect", own.name.to_string(), remedy);
    }
}

fn risks(policy: &Policy, store: &Url) -> Vec<Risk> {
    let mut risks = risks_of_keys(policy);
    risks.extend(risks_of_effects(policy, store));
    risks.extend(risks_of_times(policy));
    risks
}

fn risks_of_keys(policy: &Policy) -> Vec<Risk> {
    let mut risks = Vec::new();
    let mut risk = |name, value: &str, remedy: &str| risks.push((name, value.to_owned(), remedy.to_owned()));
    if policy.mode == Mode::Observe {
        risk(
            "mode",
            "observe",
            "protects nothing and only counts decisions; set \"enforce\" once the counts look right",
        );
    }
    let by_token = policy.scope.contains(&Source::Header(header::AUTHORIZATION));
    if by_token && !policy.scope.iter().any(|source| matches!(source, Source::Jwt(_))) {
        let remedy = "makes a client a new caller whenever its bearer token is refreshed, and a retry then runs again; use \
                      \"jwt:sub\" with [jwt] if tokens change";
        risk("scope", "header:authorization", remedy);
    }
    if policy.anonymous == Anonymous::Shared {
        let remedy = "lets unidentified callers get each other's answers by using the same key; use \"refuse\" unless they \
                      are all the same caller";
        risk("anonymous", "shared", remedy);
    }
    if policy.key.chars_min < 16 && policy.key.chars_min > 0 {
        let remedy = "allows short keys such as counters, which collide and can be guessed; set 16 if clients send UUIDs";
        risk("key_chars_min", &policy.key.chars_min.to_string(), remedy);
    }
    if policy.methods.contains(&Method::CONNECT) {
        risk("methods", "CONNECT", "opens a tunnel and cannot be replayed; remove it");
    }
    risks
}

fn risks_of_effects(policy: &Policy, store: &Url) -> Vec<Risk> {
    let mut risks = Vec::new();
    let mut risk = |name, value: &str, remedy: &str| risks.push((name, value.to_owned(), remedy.to_owned()));
    match policy.effects {
        Effects::Opaque => {
            let remedy = "leaves the outcome unknown after a crash or a time-out, and retries get 409 until a webhook or a \
                          person settles it; use \"queryable\" with a probe if the service can be asked, or \"keyed\" if it \
                          deduplicates by key itself";
            risk("effects", "opaque", remedy);
        }
        Effects::Queryable if policy.reconcile_first.is_none() => {
            let remedy = "needs a probe; without one an unknown outcome waits for a webhook or a person; set probe in its \
                          route";
            risk("effects", "queryable", remedy);
        }
        Effects::Queryable => {}
        Effects::Local if !store.takes_completions() => {
            let remedy = "runs again after a crash, which is safe only if the service completes in its own transaction, but it \
                          cannot do that in this store; use postgres://… or mysql://… that both share, or effects \"opaque\" or \"keyed\"";
            risk("effects", "local", remedy);
        }
        Effects::Local | Effects::Keyed => {}
    }
    if policy.store_down == StoreDown::Run {
        risk(
            "store_down",
            "run",
            "lets requests run twice while the store is down; use \"refuse\" where that matters",
        );
    }
    if policy.on_5xx == On5xx::Store && policy.dialect.preset.on_5xx != Some(On5xx::Store) {
        risk(
            "on_5xx",
            "store",
            "replays a 5xx for the whole retention; use \"retry\" if a 5xx means that nothing was done",
        );
    }
    risks
}

fn risks_of_times(policy: &Policy) -> Vec<Risk> {
    let mut risks = Vec::new();
    let mut risk = |name, span: Duration, remedy: &str| {
        risks.push((name, onlyonce::policy::span(span), remedy.to_owned()));
    };
    if policy.retention < HOUR {
        risk(
            "retention",
            policy.retention,
            "is shorter than clients may keep retrying, and a later retry runs again; use 24h",
        );
    }
    if let Some(age_max) = policy.request_age_max.filter(|age_max| *age_max > policy.retention) {
        let remedy = format!(
            "is longer than retention \"{}\": an old request can run again once its record has expired; shorten it, or keep records longer",
            onlyonce::policy::span(policy.retention)
        );
        risk("request_age_max", age_max, &remedy);
    }
    if policy.deadline < USUAL_TIMEOUT {
        let remedy = "may be over before the service answers, and the outcome is then unknown; use more than the service's own \
                      time-out";
        risk("deadline", policy.deadline, remedy);
    }
    if policy.lease > LONG_LEASE {
        risk(
            "lease",
            policy.lease,
            "blocks a key for that long after a crash; use 30s, since a lease is renewed",
        );
    }
    if policy.wait_max > LONG_WAIT {
        risk(
            "wait_max",
            policy.wait_max,
            "is longer than proxies and clients usually keep a connection open; use up to 60s",
        );
    }
    if policy.request_bytes_max > LARGE_BYTES {
        let remedy =
            "is held in memory for every running keyed request; set it close to what clients send".to_owned();
        risks.push(("request_bytes_max", policy.request_bytes_max.to_string(), remedy));
    }
    risks
}
