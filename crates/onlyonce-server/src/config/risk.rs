//! What is legal and may be regretted.

use std::time::Duration;

use http::{Method, header};
use onlyonce::policy::{Anonymous, Mode, On5xx, REQUIRED, StoreDown};
use onlyonce::scope::Source;
use onlyonce::{Effects, Policy};

use super::policy::brought;
use super::reader::Section;
use super::{Config, Route};

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
    let policy = top.inner("policy");
    let general = risks(&config.default.policy);
    // What nobody set is nothing to warn about, unless a dialect brings it.
    let of_dialect: Vec<_> =
        brought(&config.default.policy.dialect).into_iter().map(|(name, _)| name).collect();
    for (name, value, remedy) in general.iter().filter(|(name, ..)| policy.has(name)) {
        policy.warn(name, value.clone(), remedy);
    }
    for (route, section) in config.routes.iter().zip(&top.tables("route")) {
        let is_set = |name| section.has(name) || policy.has(name) || of_dialect.contains(&name);
        let own = |risk: &Risk| is_set(risk.0) && !general.contains(risk);
        for (name, value, remedy) in risks(&route.policy).into_iter().filter(own) {
            section.warn(name, value, remedy);
        }
        check_required(route, section);
        check_probe(route, section);
        check_dialect(route, &config.default, (section, &policy));
    }
}

fn check_network(config: &Config, top: &Section<'_>) {
    if !config.store.is_durable() {
        let remedy = "forgets everything when the process ends, and a retry then runs again; use sqlite:PATH";
        top.warn("store", config.store.to_string(), remedy);
    }
    if config.tls.is_none() && !config.listen.ip().is_loopback() {
        let remedy = "can be reached from other machines in clear, credentials and all; set [tls], or let what ends TLS \
                      stand in front";
        top.warn("listen", config.listen.to_string(), remedy);
    }
    if !config.admin.ip().is_loopback() {
        let remedy = "carries admin tokens in clear; keep it in a network of yours";
        top.warn("admin", config.admin.to_string(), remedy);
    }
    for network in config.trusted_from.iter().filter(|network| !network.is_loopback()) {
        let share = if network.address.is_ipv4() { 8 } else { 32 };
        if network.prefix_bits < share {
            let value = format!("{}/{}", network.address, network.prefix_bits);
            let remedy = "lets nearly anybody say who they are by a trusted header; name the proxies alone";
            top.warn("trusted_from", value, remedy);
        }
    }
}

fn check_secrets(config: &Config, top: &Section<'_>) {
    let jwt = top.inner("jwt");
    for key in config.jwt.iter().flat_map(|jwt| &jwt.keys) {
        if key.bytes.len() < HS256_BYTES_MIN {
            let remedy = format!(
                "is shorter than the {HS256_BYTES_MIN} bytes that HS256 asks for and can be guessed; make a longer one"
            );
            jwt.warn("keys", key.source.clone(), remedy);
        }
    }
    for (token, section) in config.admin_tokens.iter().zip(top.tables("admin_token")) {
        if token.token.bytes.len() < ADMIN_TOKEN_CHARS_MIN {
            let remedy = format!(
                "is shorter than {ADMIN_TOKEN_CHARS_MIN} characters and can be guessed; make a longer one"
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
        format!("is about POST and PATCH, and this route matches {method}; write required = [\"{method}\"]");
    section.warn("required", "true".to_owned(), remedy);
}

/// A probe is for work that can be asked about: only there a 5xx is doubt, and not a reason to run again.
fn check_probe(route: &Route, section: &Section<'_>) {
    let Some(probe) = route.probe.as_ref().filter(|_| route.policy.effects == Effects::Opaque) else {
        return;
    };
    let remedy = "is asked about unknown outcomes, and the route's effects are \"opaque\": a 500 is still run again; set \
                  effects to \"queryable\"";
    section.warn("probe", probe.uri.to_string(), remedy);
}

fn check_webhooks(config: &Config, top: &Section<'_>) {
    for webhook in config.webhooks.iter().filter(|webhook| webhook.tolerance > HOUR) {
        let section = top.inner("webhooks").inner(&webhook.name);
        let remedy =
            "is how long a request that somebody captured can be sent again; use 5m, as providers do";
        section.warn("tolerance", onlyonce::policy::span(webhook.tolerance), remedy);
    }
}

/// A preset of `[policy]`'s dialect goes on to hold in a route of another dialect, where that one says nothing.
fn check_dialect(route: &Route, base: &Route, (section, policy): (&Section<'_>, &Section<'_>)) {
    let (own, other) = (&route.policy.dialect, &base.policy.dialect);
    if own.name == other.name {
        return;
    }
    let brings: Vec<_> = brought(own).into_iter().map(|(name, _)| name).collect();
    let left: Vec<_> = brought(other)
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !brings.contains(name) && !section.has(name) && !policy.has(name))
        .collect();
    if !left.is_empty() {
        let left = left.join(", ");
        let remedy = format!(
            "leaves what policy.dialect \"{}\" brings: {left}; set these in the route too",
            other.name
        );
        section.warn("dialect", own.name.to_string(), remedy);
    }
}

fn risks(policy: &Policy) -> Vec<Risk> {
    let mut risks = risks_of_keys(policy);
    risks.extend(risks_of_effects(policy));
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
            "protects nothing: it only counts what would be done; set \"enforce\" once the counts look right",
        );
    }
    let by_token = policy.scope.contains(&Source::Header(header::AUTHORIZATION));
    if by_token && !policy.scope.iter().any(|source| matches!(source, Source::Jwt(_))) {
        let remedy = "is another caller whenever a bearer token is refreshed, and a retry then runs again; use \
                      \"jwt:sub\" with [jwt] where tokens change";
        risk("scope", "header:authorization", remedy);
    }
    if policy.anonymous == Anonymous::Shared {
        let remedy = "lets callers that cannot be told apart see each other's answers by choosing the same key; use \
                      \"refuse\" unless all of them are one";
        risk("anonymous", "shared", remedy);
    }
    if policy.key.chars_min < 16 && policy.key.chars_min > 0 {
        let remedy =
            "lets counters and dates be keys, which collide and can be guessed; set 16 if clients send UUIDs";
        risk("key_chars_min", &policy.key.chars_min.to_string(), remedy);
    }
    if policy.methods.contains(&Method::CONNECT) {
        risk("methods", "CONNECT", "opens a tunnel and cannot be replayed; take it out");
    }
    risks
}

fn risks_of_effects(policy: &Policy) -> Vec<Risk> {
    let mut risks = Vec::new();
    let mut risk = |name, value: &str, remedy: &str| risks.push((name, value.to_owned(), remedy.to_owned()));
    match policy.effects {
        Effects::Opaque => {
            let remedy = "leaves an outcome unknown after a crash or a time-out, and its key answers 409 until a webhook or a \
                          person settles it; use \"queryable\" with a probe if the service can be asked, \"keyed\" if it \
                          deduplicates the key itself";
            risk("effects", "opaque", remedy);
        }
        Effects::Queryable if policy.reconcile_first.is_none() => {
            let remedy = "has no probe: nobody asks, and an unknown outcome waits for a webhook or a person; set probe in its \
                          route";
            risk("effects", "queryable", remedy);
        }
        Effects::Queryable => {}
        Effects::Local => {
            let remedy = "runs again after a crash, which is safe only if the service completes in its own transaction, \
                          and this release has no way to; use \"opaque\" or \"keyed\"";
            risk("effects", "local", remedy);
        }
        Effects::Keyed => {}
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
            "replays an outage for the whole retention; use \"retry\" if a 5xx means that nothing was done",
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
            "is shorter than clients may go on retrying, and a retry after it runs again; use 24h",
        );
    }
    if policy.deadline < USUAL_TIMEOUT {
        let remedy = "may end before the service does, and what it then answers is lost: the outcome is unknown; use more \
                      than the service's own time-out";
        risk("deadline", policy.deadline, remedy);
    }
    if policy.lease > LONG_LEASE {
        risk("lease", policy.lease, "is how long a key is blocked after a crash; use 30s, it is renewed");
    }
    if policy.wait_max > LONG_WAIT {
        risk(
            "wait_max",
            policy.wait_max,
            "is longer than proxies and clients usually hold a connection; use up to 60s",
        );
    }
    if policy.request_bytes_max > LARGE_BYTES {
        let remedy =
            "is held in memory for every keyed request under way; keep it near what clients send".to_owned();
        risks.push(("request_bytes_max", policy.request_bytes_max.to_string(), remedy));
    }
    risks
}
