//! Gateways in front of a provider, each a process of its own: one on any engine, or three on one database.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use onlyonce_testkit::http::{self, Answer, Request};
use serde_json::Value;

use crate::engines::Engine;
use crate::program::{Folder, onlyonce};
use crate::provider::Provider;
use crate::serve::Serving;

/// Gateways, their provider, and the folder with the settings.
pub(crate) struct Gateways {
    pub(crate) engine: Engine,
    pub(crate) provider: Provider,
    pub(crate) nodes: Vec<Serving>,
    /// Whose turn it is.
    turn: AtomicUsize,
    pub(crate) folder: Folder,
}

impl Gateways {
    /// With these settings and this environment.
    pub(crate) fn new(engine: Engine, settings: &str, environment: &[(&str, &str)]) -> Self {
        let (folder, provider) = (Folder::new(), Provider::start());
        let store = engine.store(&folder);
        let file = folder.path().join("onlyonce.toml");
        std::fs::write(&file, settings).expect("the folder can be written");
        let file = file.to_str().expect("text");
        let arguments = ["--config", file, "--upstream", &provider.url(), "--store", &store];
        let start = |_| {
            let mut command = onlyonce();
            command.envs(environment.iter().copied());
            Serving::start_as(command, &arguments)
        };
        let nodes = (0..engine.nodes()).map(start).collect();
        Self { engine, provider, nodes, turn: AtomicUsize::new(0), folder }
    }

    /// The gateway whose turn it is: what comes next seldom reaches the one that came first.
    pub(crate) fn node(&self) -> &Serving {
        &self.nodes[self.turn.fetch_add(1, Ordering::SeqCst) % self.nodes.len()]
    }

    /// A request of a client's.
    pub(crate) fn post(&self, path: &str, key: &str) -> Answer {
        post(self.node().address(), path, key)
    }

    /// A key whose outcome is unknown, and its token.
    pub(crate) fn unknown(&self, key: &str) -> String {
        let answer = self.post("/lost", key);
        assert_eq!(answer.status, 502, "{}", text(&answer));
        assert_eq!(self.state(key), "unknown");
        self.provider.told(key, 1).token
    }

    /// What became of a key, as its client sees it.
    pub(crate) fn state(&self, key: &str) -> String {
        let path = format!("/_onlyonce/keys/{key}");
        let headers = [("Authorization", "Bearer ann")];
        let request = Request { method: "GET", path: &path, headers: &headers, body: "" };
        let answer = http::send(&self.node().address().to_string(), request).expect("an answer");
        json_of(&answer)["state"].as_str().unwrap_or("none").to_owned()
    }

    /// The path of the record of a key, at the admin port. The key has nothing that must be escaped.
    pub(crate) fn path(&self, key: &str) -> String {
        format!("/v1/keys/{}/{key}", self.provider.told(key, 1).scope)
    }

    /// A request of an operator's.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let headers = [("Content-Type", "application/json")];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request { method, path, headers: &headers, body: &body };
        http::send(&self.node().admin().to_string(), request).expect("an answer")
    }

    /// The status, and what an answer of JSON says.
    pub(crate) fn told(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.ask(method, path, body);
        (answer.status, json_of(&answer))
    }

    /// What all nodes have counted in the metric of this line.
    pub(crate) fn sum(&self, line: &str) -> u64 {
        let counts = self.nodes.iter().map(|node| {
            let metrics = text(&http::get(&node.admin().to_string(), "/metrics").expect("an answer"));
            let count = metrics.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
            let count = count.unwrap_or_else(|| panic!("{line}: {metrics}"));
            count.parse::<u64>().expect("a number")
        });
        counts.sum()
    }
}

pub(crate) fn post(address: SocketAddr, path: &str, key: &str) -> Answer {
    let headers = [("Authorization", "Bearer ann"), ("Idempotency-Key", key)];
    let request = Request { method: "POST", path, headers: &headers, body: "{}" };
    http::send(&address.to_string(), request).expect("an answer")
}

pub(crate) fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).expect("text")
}

pub(crate) fn json_of(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", text(answer)))
}
