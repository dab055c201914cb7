//! The tables besides policy and routes, and all of them put together.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use onlyonce::store::sqlite::Expired;
use onlyonce::worker::Background;
use tracing_subscriber::filter::Targets;

use super::policy::{self, Draft};
use super::reader::{Reader, Section};
use super::route::{self, Base};
use super::tree::{Node, Table};
use super::value::{self, Read, wrong};
use super::{
    AdminToken, Algorithm, Config, Jwt, Log, LogFormat, Network, Protocol, Role, Route, Tls, Upstream,
    credentials, cross, names, risk, secret,
};
use crate::{caller, store};

/// All settings. It may only be used if the reader found no fault.
pub(super) fn config(settings: &Table, reader: &mut Reader<'_>) -> Config {
    names::check(settings, reader);
    let top = Section::top(settings);
    let base = base(&top, reader);
    let routes = routes(&top, &base, reader);
    route::check_order(&routes, reader);
    let config = Config {
        listen: address(&top, "listen", 8080, reader),
        admin: address(&top, "admin", 8081, reader),
        store: store(&top, reader),
        expired: reader
            .word(&top, "expired", &[("delete", Expired::Delete), ("keep", Expired::Keep)])
            .unwrap_or(Expired::Delete),
        service: reader.read(&top, "service", value::text).unwrap_or_default().into(),
        stop_after: reader.read(&top, "stop_after", value::span).unwrap_or(Duration::from_secs(25)),
        trusted_from: trusted_from(&top, reader),
        tls: tls(&top.inner("tls"), reader),
        upstream_ca: pem(&top, "upstream_ca", "CERTIFICATE", reader),
        jwt: jwt(&top.inner("jwt"), reader),
        routes: routes.iter().map(|(_, route)| route.clone()).collect(),
        default: Route { name: "*".into(), pattern: None, upstream: base.upstream, policy: base.policy },
        background: background(&top.inner("background"), reader),
        admin_tokens: admin_tokens(&top, reader),
        log: log(&top.inner("log"), reader),
    };
    let sections: Vec<_> = routes.into_iter().map(|(section, _)| section).collect();
    cross::check(&config, &top, &sections, reader);
    credentials::check(&config, &top, reader);
    risk::check(&config, &top, &sections, reader);
    config
}

/// Where records are kept.
pub(super) fn store(top: &Section<'_>, reader: &mut Reader<'_>) -> store::Url {
    reader.read(top, "store", value::parsed).unwrap_or_else(|| store::Url::Sqlite("onlyonce.db".into()))
}

fn base(top: &Section<'_>, reader: &mut Reader<'_>) -> Base {
    if !top.has("upstream") {
        let remedy =
            "names no service to stand in front of; give --upstream http://HOST:PORT, or set it in the file";
        reader.fault(top, "upstream", None, remedy);
    }
    // Without one there is a fault, and the settings are not used.
    let uri = reader.read(top, "upstream", value::service).unwrap_or_default();
    let upstream = Upstream { uri, protocol: route::protocol(top, reader).unwrap_or(Protocol::Auto) };
    let section = top.inner("policy");
    let draft = Draft::default().with(&section, reader);
    let policy = draft.finish();
    policy::check(&policy, &section, reader);
    Base { upstream, draft, policy }
}

fn routes<'a>(top: &Section<'a>, base: &Base, reader: &mut Reader<'_>) -> Vec<(Section<'a>, Route)> {
    let mut routes = Vec::new();
    for mut section in top.tables("route") {
        section.route = route::name(&section);
        let route = route::read(&section, base, reader);
        routes.extend(route.map(|route| (section, route)));
    }
    routes
}

fn address(top: &Section<'_>, name: &str, port: u16, reader: &mut Reader<'_>) -> SocketAddr {
    reader.read(top, name, value::address).unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], port)))
}

fn trusted_from(top: &Section<'_>, reader: &mut Reader<'_>) -> Vec<Network> {
    let loopback = || {
        vec![
            Network { address: [127, 0, 0, 0].into(), prefix_bits: 8 },
            Network { address: std::net::Ipv6Addr::LOCALHOST.into(), prefix_bits: 128 },
        ]
    };
    reader.list(top, "trusted_from", "[\"10.0.0.0/8\"]", value::network).unwrap_or_else(loopback)
}

fn tls(section: &Section<'_>, reader: &mut Reader<'_>) -> Option<Tls> {
    if section.is_empty() {
        return None;
    }
    for (name, other) in [("cert", "key"), ("key", "cert")] {
        if !section.has(name) {
            let remedy = if section.has(other) {
                format!("is missing beside tls.{other}; set both")
            } else {
                "is missing; TLS needs tls.cert and tls.key".to_owned()
            };
            reader.fault(section, name, None, remedy);
        }
    }
    let cert = pem(section, "cert", "CERTIFICATE", reader);
    let key = pem(section, "key", "PRIVATE KEY", reader);
    let client_ca = pem(section, "client_ca", "CERTIFICATE", reader);
    Some(Tls { cert: cert?, key: key?, client_ca })
}

/// A file that can be read now and has such a part; what is in it is read by those who use it.
fn pem(section: &Section<'_>, name: &str, label: &str, reader: &mut Reader<'_>) -> Option<PathBuf> {
    reader.read(section, name, |node| {
        let path = value::path(node)?;
        match std::fs::read(&path) {
            Ok(bytes) if has_pem(&bytes, label) => Ok(path),
            Ok(_) => wrong(path.display(), format!("holds no \"{label}\" in PEM; name a file that does")),
            Err(error) => {
                wrong(path.display(), format!("cannot be read: {error}; name a file that this user may read"))
            }
        }
    })
}

fn has_pem(bytes: &[u8], label: &str) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let end = format!("{label}-----");
    text.lines().any(|line| line.trim().strip_prefix("-----BEGIN ").is_some_and(|rest| rest.ends_with(&end)))
}

fn jwt(section: &Section<'_>, reader: &mut Reader<'_>) -> Option<Jwt> {
    if section.is_empty() {
        return None;
    }
    let is_set = section.has("keys");
    let keys = reader.secrets(section, "keys");
    if !is_set || keys.as_ref().is_some_and(Vec::is_empty) {
        reader.fault(section, "keys", None, "has no key to verify tokens with; write keys = [\"file:PATH\"]");
    }
    let keys = keys.unwrap_or_default();
    let all = [("HS256", Algorithm::Hs256), ("RS256", Algorithm::Rs256), ("ES256", Algorithm::Es256)];
    let words = all.map(|(word, _)| word);
    let chosen = reader.list(section, "algorithms", "[\"RS256\"]", |node| value::word(node, &words));
    let algorithms = match chosen {
        Some(chosen) => chosen.into_iter().map(|at| all[at].1).collect(),
        None => caller::algorithms(&keys),
    };
    let mut text = |name| reader.read(section, name, value::text);
    Some(Jwt { keys, algorithms, issuer: text("issuer"), audience: text("audience") })
}

fn background(section: &Section<'_>, reader: &mut Reader<'_>) -> Background {
    let mut background = Background::default();
    for (name, every) in
        [("sweep_every", &mut background.sweep_every), ("reap_every", &mut background.reap_every)]
    {
        if let Some(span) = reader.read(section, name, above_zero) {
            *every = span;
        }
    }
    if let Some(batch) = reader.read(section, "reap_batch", batch) {
        background.reap_batch = batch;
    }
    background
}

fn above_zero(node: &Node) -> Read<Duration> {
    let span = value::span(node)?;
    if span.is_zero() { wrong(&node.value, "would never rest; set at least 1s") } else { Ok(span) }
}

fn batch(node: &Node) -> Read<usize> {
    let count = value::count(node)?;
    match usize::try_from(count) {
        Ok(batch @ 1..=100_000) => Ok(batch),
        _ => wrong(count, "is not from 1 to 100000; 200 is a good size"),
    }
}

fn admin_tokens(top: &Section<'_>, reader: &mut Reader<'_>) -> Vec<AdminToken> {
    let mut tokens: Vec<AdminToken> = Vec::new();
    for section in top.tables("admin_token") {
        if !section.has("token") {
            reader.fault(&section, "token", None, "is missing; write token = \"env:NAME\" or \"file:PATH\"");
        }
        let environment = reader.environment.clone();
        let token = reader.read(&section, "token", |node| secret::read(node, &environment));
        let role = reader.word(&section, "role", &[("read", Role::Read), ("operate", Role::Operate)]);
        let name = reader.read(&section, "name", value::text).unwrap_or_else(|| section.path.clone());
        let Some(token) = token else { continue };
        if let Some(other) = tokens.iter().find(|other| other.name == name) {
            let remedy = format!("is the name of the token {} too; give each its own", other.token.source);
            reader.fault(&section, "name", name.clone(), remedy);
        }
        if tokens.iter().any(|other| other.token.bytes == token.bytes) {
            let remedy = "is the same secret as another's: nobody could tell who came; make one for each";
            reader.fault(&section, "token", token.source.clone(), remedy);
        }
        tokens.push(AdminToken { name, token, role: role.unwrap_or(Role::Read) });
    }
    tokens
}

fn log(section: &Section<'_>, reader: &mut Reader<'_>) -> Log {
    let filter = reader.read(section, "filter", |node| {
        let text = value::text(node)?;
        match text.parse::<Targets>() {
            Ok(_) => Ok(text),
            Err(_) => {
                wrong(text, "is no filter; write a level, or levels by module, like info,onlyonce=debug")
            }
        }
    });
    let format = reader.word(section, "format", &[("text", LogFormat::Text), ("json", LogFormat::Json)]);
    Log { filter: filter.unwrap_or_else(|| "info".into()), format: format.unwrap_or_default() }
}
