//! Settings that are right alone and wrong together.

use std::net::SocketAddr;

use onlyonce::scope::Source;

use super::reader::{Reader, Section};
use super::{Config, Route};

/// `routes` are the sections of `config.routes`.
pub(super) fn check(config: &Config, top: &Section<'_>, routes: &[Section<'_>], reader: &mut Reader<'_>) {
    check_addresses(config, top, reader);
    let policy = top.inner("policy");
    check_scope(config, &config.default, &policy, reader);
    check_upstream(config, &config.default, top, reader);
    for (route, section) in config.routes.iter().zip(routes) {
        if route.policy.scope != config.default.policy.scope {
            check_scope(config, route, section, reader);
        }
        if section.has("upstream") {
            check_upstream(config, route, section, reader);
        }
    }
}

fn check_addresses(config: &Config, top: &Section<'_>, reader: &mut Reader<'_>) {
    if meet(config.listen, config.admin) {
        let remedy = "is where clients come in too (listen); give operators a port of their own";
        reader.fault(top, "admin", config.admin.to_string(), remedy);
    }
    if !config.admin.ip().is_loopback() && top.tables("admin_token").is_empty() {
        let remedy = "can be reached from other machines, and nobody is asked for a token; add an [[admin_token]], or \
                      use 127.0.0.1";
        reader.fault(top, "admin", config.admin.to_string(), remedy);
    }
}

/// Whether both cannot be listened at. Port 0 is never the same twice.
fn meet(one: SocketAddr, two: SocketAddr) -> bool {
    let same_ip = one.ip() == two.ip() || one.ip().is_unspecified() || two.ip().is_unspecified();
    one.port() != 0 && one.port() == two.port() && same_ip
}

fn check_scope(config: &Config, route: &Route, section: &Section<'_>, reader: &mut Reader<'_>) {
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
        reader.fault(section, "scope", source.to_string(), remedy);
    }
}

fn check_upstream(config: &Config, route: &Route, section: &Section<'_>, reader: &mut Reader<'_>) {
    let Some(address) = route.upstream.address() else { return };
    let is_us = |own: SocketAddr| {
        let same_ip = own.ip() == address.ip() || (own.ip().is_unspecified() && address.ip().is_loopback());
        own.port() == address.port() && own.port() != 0 && same_ip
    };
    if is_us(config.listen) || is_us(config.admin) {
        let remedy =
            "is this gateway itself, and every request would go round in circles; name the service behind it";
        reader.fault(section, "upstream", route.upstream.uri.to_string(), remedy);
    }
}
