//! Settings that are right alone and wrong together.

use std::net::SocketAddr;

use onlyonce::scope::Source;

use super::reader::Section;
use super::{Config, Route, policy};

pub(super) fn check(config: &Config, top: &Section<'_>) {
    let section = top.inner("policy");
    policy::check(&config.default.policy, &section);
    check_scope(config, &config.default, &section);
    check_addresses(config, top);
    check_upstream(config, &config.default, top);
    for (index, (route, section)) in config.routes.iter().zip(&top.tables("route")).enumerate() {
        policy::check_route(&route.policy, &config.default.policy, section);
        check_order(route, &config.routes[..index], section);
        if route.policy.scope != config.default.policy.scope {
            check_scope(config, route, section);
        }
        if section.has("upstream") {
            check_upstream(config, route, section);
        }
    }
}

fn check_addresses(config: &Config, top: &Section<'_>) {
    if meet(config.listen, config.admin) {
        let remedy = "is where clients come in too (listen); give operators a port of their own";
        top.fault("admin", config.admin.to_string(), remedy);
    }
    if !config.admin.ip().is_loopback() && top.tables("admin_token").is_empty() {
        let remedy = "can be reached from other machines, and nobody is asked for a token; add an [[admin_token]], or \
                      use 127.0.0.1";
        top.fault("admin", config.admin.to_string(), remedy);
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
                "needs somebody who issues clients' certificates; set tls.client_ca"
            }
            Source::Trusted(_) if config.trusted_from.is_empty() => {
                "is believed from nobody, since trusted_from is empty; name the proxies there"
            }
            Source::Header(_) | Source::Trusted(_) | Source::Jwt(_) | Source::Certificate | Source::Route => {
                continue;
            }
        };
        section.fault("scope", source.to_string(), remedy);
    }
}

fn check_upstream(config: &Config, route: &Route, section: &Section<'_>) {
    let Some(address) = route.upstream.address() else { return };
    let is_us = |own: SocketAddr| {
        let same_ip = own.ip() == address.ip() || (own.ip().is_unspecified() && address.ip().is_loopback());
        own.port() == address.port() && own.port() != 0 && same_ip
    };
    if is_us(config.listen) || is_us(config.admin) {
        let remedy =
            "is this gateway itself, and every request would go round in circles; name the service behind it";
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
        let remedy = format!("is the match of route[{at}] too, and the first wins; take one of them out");
        section.fault("match", value, remedy);
    } else {
        let remedy = format!(
            "never matches: route[{at}] \"{}\" comes first and covers all of it; move this one up",
            other.name
        );
        section.warn("match", value, remedy);
    }
}
