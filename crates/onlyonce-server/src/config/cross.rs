//! Settings that are right alone and wrong together.

use std::net::SocketAddr;

use onlyonce::policy::Accept;
use onlyonce::scope::Source;

use super::reader::Section;
use super::{Config, Route, policy};

pub(super) fn check(config: &Config, top: &Section<'_>) {
    let section = top.inner("policy");
    policy::check(&config.default.policy, &section);
    check_scope(config, &config.default, &section);
    check_accept(&config.default, top, &section);
    check_addresses(config, top);
    check_buffered(config, top);
    check_cache(config, top);
    check_limits(config, top);
    check_upstream(config, &config.default, top);
    for (index, (route, section)) in config.routes.iter().zip(&top.tables("route")).enumerate() {
        policy::check_route(&route.policy, &config.default.policy, section);
        check_order(route, &config.routes[..index], section);
        if section.has("accept") {
            check_accept(route, top, section);
        }
        if route.policy.scope != config.default.policy.scope {
            check_scope(config, route, section);
        }
        if section.has("upstream") {
            check_upstream(config, route, section);
        }
    }
}

fn check_limits(config: &Config, top: &Section<'_>) {
    for fault in config.limits.check().err().map(|faults| faults.0).unwrap_or_default() {
        let name = fault.path.strip_prefix("limits.").unwrap_or(fault.path);
        top.inner("limits").fault(name, fault.value, fault.remedy);
    }
    if config.store.counts_records() {
        return;
    }
    let [of_one, in_all] = [config.limits.keys_alive, config.limits.keys_alive_total];
    for (name, limit) in [("keys_alive", of_one), ("keys_alive_total", in_all)] {
        if let Some(limit) = limit {
            let remedy =
                "would read the whole table of this store for every count; unset it, or use another store";
            top.inner("limits").fault(name, limit.to_string(), remedy);
        }
    }
}

fn check_addresses(config: &Config, top: &Section<'_>) {
    if meet(config.listen, config.admin) {
        let remedy = "is also the address for clients (listen); use another port";
        top.fault("admin", config.admin.to_string(), remedy);
    }
    if !config.admin.ip().is_loopback() && top.tables("admin_token").is_empty() {
        let remedy = "can be reached from other machines, but no token is set; add an [[admin_token]], or \
                      use 127.0.0.1";
        top.fault("admin", config.admin.to_string(), remedy);
    }
}

/// A body that grows is held in up to twice its size.
fn check_buffered(config: &Config, top: &Section<'_>) {
    let (bytes_max, least) = (config.listener.buffered_bytes_max, config.request_bytes_max());
    if bytes_max / 2 < least {
        let remedy = format!(
            "is too small for one body of request_bytes_max {least}; set at least twice that, {}",
            least.saturating_mul(2)
        );
        top.inner("listener").fault("buffered_bytes_max", bytes_max.to_string(), remedy);
    }
}

fn check_cache(config: &Config, top: &Section<'_>) {
    if let Some(cache) = config.cache.as_ref().filter(|_| !config.store.takes_cache()) {
        let remedy = format!(
            "is a cache for an SQL store, and store is {}; unset cache, or use postgres://…, mysql://… or sqlite:PATH",
            config.store
        );
        top.fault("cache", cache.to_string(), remedy);
    }
}

/// Whether both cannot be listened at. Port 0 is never the same twice.
fn meet(one: SocketAddr, two: SocketAddr) -> bool {
    let same_ip = one.ip() == two.ip() || one.ip().is_unspecified() || two.ip().is_unspecified();
    one.port() != 0 && one.port() == two.port() && same_ip
}

fn check_scope(config: &Config, route: &Route, section: &Section<'_>) {
    for source in &route.policy.scope {
        let remedy = match source {
            Source::Jwt(_) if config.jwt.is_none() => {
                "needs keys to verify tokens with; set jwt.keys, such as [\"file:/etc/onlyonce/jwt.pem\"]"
            }
            Source::Certificate if config.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none()) => {
                "needs the CA of clients' certificates; set tls.client_ca"
            }
            Source::Trusted(_) if config.trusted_from.is_empty() => {
                "is never accepted, since trusted_from is empty; list the proxies there"
            }
            Source::Header(_) | Source::Trusted(_) | Source::Jwt(_) | Source::Certificate | Source::Route => {
                continue;
            }
        };
        section.fault("scope", source.to_string(), remedy);
    }
}

/// A request that is accepted is stored with its credentials: never in clear.
fn check_accept(route: &Route, top: &Section<'_>, section: &Section<'_>) {
    let value = match route.policy.accept {
        Accept::Never => return,
        Accept::Allowed => "allowed",
        Accept::Always => "always",
    };
    if !top.inner("encryption").has("keys") {
        let remedy = "stores requests with their credentials, which must be encrypted; set encryption.keys";
        section.fault("accept", value.to_owned(), remedy);
    }
}

fn check_upstream(config: &Config, route: &Route, section: &Section<'_>) {
    let Some(address) = route.upstream.address() else { return };
    let is_us = |own: SocketAddr| {
        let same_ip = own.ip() == address.ip() || (own.ip().is_unspecified() && address.ip().is_loopback());
        own.port() == address.port() && own.port() != 0 && same_ip
    };
    if is_us(config.listen) || is_us(config.admin) {
        let remedy = "is the gateway's own address, so requests would loop; set the address of the service";
        section.fault("upstream", route.upstream.uri.to_string(), remedy);
    }
}

/// A route that an earlier one leaves nothing to.
fn check_order(route: &Route, earlier: &[Route], section: &Section<'_>) {
    let Some(pattern) = &route.pattern else { return };
    let covers = |other: &Route| other.pattern.as_ref().is_some_and(|other| other.covers(pattern));
    let Some(at) = earlier.iter().position(covers) else { return };
    let (value, other) = (route.name.to_string(), &earlier[at]);
    if other.pattern == route.pattern {
        let remedy = format!("is also the match of route[{at}], and the first one wins; remove one of them");
        section.fault("match", value, remedy);
    } else {
        let remedy = format!(
            "never matches: route[{at}] \"{}\" comes first and matches the same requests; move this one up",
            other.name
        );
        section.warn("match", value, remedy);
    }
}
