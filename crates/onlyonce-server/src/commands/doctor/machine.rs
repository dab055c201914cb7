//! What can be seen of this machine: connections to services and probes, and descriptors.

use std::collections::BTreeMap;

use onlyonce::Effects;
use onlyonce::store::sqlite::Holder;
use rustix::process::{Resource, getrlimit};

use super::{Told, or_well, routes};
use crate::config::{Config, Listener, Protocol, Upstream};
use crate::tls::Connector;

const DESCRIPTORS_PER_CONNECTION: u64 = 4;
/// A gateway that is expected to serve more says so in listener.connections_max.
const CONNECTIONS_USUAL: u64 = 1_000;

/// Whether every service can be connected to. Nothing is sent.
pub(super) async fn upstreams(config: &Config) -> Vec<Told> {
    let mut named = BTreeMap::new();
    for route in routes(config) {
        named.entry(route.upstream.uri.to_string()).or_insert(&route.upstream);
    }
    let connector = match Connector::new(config) {
        Ok(connector) => connector,
        Err(error) => {
            return vec![Told::fail(format!("{error:#}"), "set upstream_ca to the certificates of a CA")];
        }
    };
    let mut told = Vec::new();
    for upstream in named.values() {
        if let Err(error) = connector.connect(upstream).await {
            told.push(Told::fail(format!("{error:#}"), "start the service, or correct upstream"));
        }
    }
    or_well(told, format!("connected to {}", list(named.keys())))
}

/// Whether every probe can be connected to, and whether those that should be there are.
pub(super) async fn probes(config: &Config) -> Vec<Told> {
    let mut told = Vec::new();
    let mut named = BTreeMap::new();
    for route in routes(config) {
        match &route.probe {
            Some(probe) => {
                named.insert(origin(&probe.uri), Upstream { uri: probe.uri.clone(), protocol: Protocol::Http1 });
            }
            None if route.policy.effects == Effects::Queryable => told.push(Told::warn(
                format!("route \"{}\" is queryable and has no probe: unknown outcomes wait for a webhook or a person", route.name),
                "set probe in that route",
            )),
            None => {}
        }
    }
    match Connector::new(config) {
        Ok(connector) => {
            for upstream in named.values() {
                if let Err(error) = connector.connect(upstream).await {
                    let remedy = "start the probe, or correct route.probe";
                    told.push(Told::fail(format!("{error:#}"), remedy));
                }
            }
        }
        Err(error) => {
            told.push(Told::fail(format!("{error:#}"), "set upstream_ca to the certificates of a CA"));
        }
    }
    let well = if named.is_empty() {
        "none is needed".to_owned()
    } else {
        format!("connected to {}", list(named.keys()))
    };
    or_well(told, well)
}

fn origin(uri: &http::Uri) -> String {
    let scheme = uri.scheme_str().unwrap_or("http");
    format!("{scheme}://{}", uri.authority().map_or("", http::uri::Authority::as_str))
}

fn list<'a>(texts: impl Iterator<Item = &'a String>) -> String {
    texts.map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Whether the process may have the descriptors that its clients need: the gateway's, where it is known, else this one's.
pub(super) fn files(listener: &Listener, holder: Option<Holder>) -> Vec<Told> {
    let of_gateway = holder.and_then(|holder| holder.process).and_then(limit_of);
    let whose = if of_gateway.is_some() { "the gateway" } else { "a process of this user" };
    let limit = of_gateway.unwrap_or_else(|| getrlimit(Resource::Nofile).maximum);
    let connections = expected(listener.connections_max);
    let needed = connections.saturating_mul(DESCRIPTORS_PER_CONNECTION);
    match limit {
        Some(limit) if limit < needed => vec![Told::fail(
            format!(
                "{whose} may have {limit} file descriptors, but {connections} connections (listener.connections_max) need {needed}"
            ),
            format!(
                "raise the limit (LimitNOFILE={needed} in systemd, ulimit -n), or lower listener.connections_max"
            ),
        )],
        Some(limit) => vec![Told::ok(format!("{whose} may have {limit} file descriptors"))],
        None => vec![Told::ok(format!("{whose} may have any number of file descriptors"))],
    }
}

/// How many connections somebody counts on: as many as they set, and of those that nobody set a part.
fn expected(connections_max: usize) -> u64 {
    let is_set = connections_max != Listener::default().connections_max;
    if is_set { connections_max as u64 } else { CONNECTIONS_USUAL.min(connections_max as u64) }
}

/// The most descriptors that another process may have; `Some(None)` where there is no limit.
fn limit_of(process: u32) -> Option<Option<u64>> {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(None),
        hard => Some(Some(hard.parse().ok()?)),
    }
}
