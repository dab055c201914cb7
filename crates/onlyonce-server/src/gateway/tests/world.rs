//! A gateway on a free port, and clients of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use onlyonce::store::memory::Memory;
use onlyonce::store::sqlite::Expired;
use onlyonce::worker::Background;
use onlyonce::{Engine, Policy};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::service::Service;
use super::wire::{Message, Wire};
use crate::config::{Config, Log, LogFormat, Network, Pattern, Probing, Protocol, Route, Segment, Upstream};
use crate::gateway::{Gateway, Place};
use crate::store::Url;

/// Nothing in these tests takes so long, unless it hangs.
pub(super) const SOON: Duration = Duration::from_secs(20);
pub(super) const CREATED: &str = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok";

pub(super) struct World {
    pub(super) gateway: Gateway,
}

pub(super) fn upstream(address: SocketAddr) -> Upstream {
    Upstream { uri: format!("http://{address}").parse().unwrap(), protocol: Protocol::Auto }
}

pub(super) fn config(address: SocketAddr) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: "127.0.0.1:0".parse().unwrap(),
        store: Url::Memory,
        expired: Expired::Delete,
        encryption: None,
        cache: None,
        service: "".into(),
        stop_after: Duration::from_secs(5),
        trusted_from: Vec::new(),
        listener: Default::default(),
        path_case: Default::default(),
        ambiguous_paths: Default::default(),
        tls: None,
        upstream_ca: None,
        jwt: None,
        routes: Vec::new(),
        default: Route {
            name: "*".into(),
            pattern: None,
            upstream: upstream(address),
            policy: Policy::default(),
            probe: None,
        },
        background: Background::default(),
        probing: Probing::default(),
        webhooks: Vec::new(),
        destinations: Vec::new(),
        relay_every: Duration::from_secs(1),
        limits: onlyonce::Limits::default(),
        admin_tokens: Vec::new(),
        log: Log { filter: "info".into(), format: LogFormat::Text, decisions: true },
        telemetry: Default::default(),
    }
}

pub(super) fn loopback() -> Network {
    Network { address: "127.0.0.1".parse().unwrap(), prefix_bits: 32 }
}

/// `POST /payments/*`
pub(super) fn route(name: &str, upstream: Upstream, policy: Policy) -> Route {
    let (method, path) = name.split_once(' ').unwrap();
    let segments = path[1..].split('/').map(|segment| match segment {
        "*" => Segment::One,
        "**" => Segment::Rest,
        text => Segment::Text(text.into()),
    });
    let pattern = Pattern { method: Some(method.parse().unwrap()), segments: segments.collect() };
    Route { name: name.into(), pattern: Some(pattern), upstream, policy, probe: None }
}

impl World {
    pub(super) async fn before(service: &Service) -> Self {
        Self::with(config(service.address)).await
    }

    pub(super) async fn with(config: Config) -> Self {
        Self::at(Place::Threads, config).await
    }

    /// Where one worker has all connections.
    pub(super) async fn with_one_worker(config: Config) -> Self {
        Self::at(Place::Here, config).await
    }

    async fn at(place: Place, config: Config) -> Self {
        let engine = Engine::new(Arc::new(Memory::new()));
        Self { gateway: Gateway::start(config, engine, place).await.unwrap() }
    }

    pub(super) async fn connect(&self) -> Wire {
        Wire::new(TcpStream::connect(self.gateway.address()).await.unwrap())
    }

    /// Sends this on a connection of its own, and reads the answer.
    pub(super) async fn send(&self, request: impl AsRef<[u8]>) -> Message {
        let mut wire = self.connect().await;
        wire.write(request).await;
        timeout(SOON, wire.message()).await.expect("an answer in time").expect("an answer")
    }

    /// `POST /orders` with this key.
    pub(super) async fn post(&self, key: &str) -> Message {
        self.send(post(key)).await
    }

    /// What became of a key.
    pub(super) async fn state(&self, key: &str) -> String {
        let answer = self
            .send(format!(
                "GET /_onlyonce/keys/{key} HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer ann\r\n\r\n"
            ))
            .await;
        let state: serde_json::Value = serde_json::from_slice(&answer.body).expect("a state in JSON");
        state["state"].as_str().unwrap_or("none").to_owned()
    }
}

/// `POST /orders` with this key.
pub(super) fn post(key: &str) -> String {
    format!(
        "POST /orders HTTP/1.1\r\nhost: shop.example\r\nauthorization: Bearer ann\r\nidempotency-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    )
}

/// The same without a key.
pub(super) fn unkeyed() -> &'static str {
    "POST /orders HTTP/1.1\r\nhost: shop.example\r\nauthorization: Bearer ann\r\ncontent-length: 2\r\n\r\n{}"
}
