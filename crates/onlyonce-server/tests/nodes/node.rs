//! A gateway process. On PostgreSQL its connections carry its name.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use onlyonce_testkit::engines::postgres::Server;
use onlyonce_testkit::engines::server::Engine;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::client::{PATIENCE, send};
use crate::service::Service;

/// The most connections a node has: twelve and four.
pub(crate) const CONNECTIONS_MAX: usize = 16;

/// Gateways that are alike: before one service, on one store.
pub(crate) struct Site<'a> {
    pub(crate) upstream: SocketAddr,
    /// The store's URL.
    pub(crate) store: String,
    pub(crate) settings: &'a [&'a str],
}

/// A gateway that lives. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    name: String,
    process: Child,
    log: PathBuf,
}

impl<'a> Site<'a> {
    /// On the server of this test run.
    pub(crate) fn new(engine: Engine, service: &Service, settings: &'a [&'a str]) -> Self {
        Self { upstream: service.address, store: engine.shared().fresh_store(), settings }
    }

    /// DynamoDB's clock is known to two seconds, so its leases are ten at least. Its workers ask sixteen questions each time, and the
    /// emulator takes some milliseconds for each.
    fn as_the_engine_can<'s>(&self, setting: &'s str) -> &'s str {
        match setting {
            _ if !self.store.starts_with("dynamodb") => setting,
            "policy.lease=1s" => "policy.lease=10s",
            "policy.store_timeout=500ms" => "policy.store_timeout=3s",
            "policy.deadline=10s" => "policy.deadline=30s",
            "background.sweep_every=50ms" => "background.sweep_every=1s",
            "background.reap_every=50ms" => "background.reap_every=1s",
            other => other,
        }
    }

    pub(crate) async fn node(&self) -> Node {
        self.try_node().await.unwrap_or_else(|told| panic!("it did not get ready: {told}"))
    }

    pub(crate) async fn nodes<const N: usize>(&self) -> [Node; N] {
        let mut nodes = Vec::new();
        for _ in 0..N {
            nodes.push(self.node().await);
        }
        nodes.try_into().unwrap()
    }

    /// What it said where it does not get ready.
    pub(crate) async fn try_node(&self) -> Result<Node, String> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("node-{}-{number}", std::process::id());
        let log = std::env::temp_dir().join(format!("onlyonce-{name}.log"));
        let file = File::create(&log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_onlyonce"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--upstream", &format!("http://{}", self.upstream)]);
        let named = self.store.starts_with("postgres").then(|| format!("&application_name={name}"));
        command.args(["--store", &format!("{}{}", self.store, named.unwrap_or_default())]);
        command.args(["--set", "log.format=json", "--set", "log.filter=warn"]);
        for setting in self.settings {
            command.args(["--set", self.as_the_engine_can(setting)]);
        }
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = timeout(PATIENCE, lines.next_line()).await.expect("it gets ready or ends").unwrap();
        let Some(ready) = ready else {
            let status = process.wait().await.unwrap();
            let told = fs::read_to_string(&log).unwrap();
            let _ = fs::remove_file(&log);
            return Err(format!("{status}: {told}"));
        };
        let words: Vec<_> = ready.split(' ').collect();
        let address = |word: &str| word.strip_prefix("http://").unwrap().parse().unwrap();
        Ok(Node { address: address(words[2]), admin: address(words[4]), name, process, log })
    }
}

impl Node {
    /// Kills it as `kill -9` does, and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.process.start_kill().unwrap();
        timeout(PATIENCE, self.process.wait()).await.expect("it dies").unwrap();
    }

    /// `STOP`, `CONT`
    pub(crate) async fn signal(&self, name: &str) {
        let id = self.process.id().expect("it lives").to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().await.unwrap().success());
    }

    /// Whether traffic should be sent there.
    pub(crate) async fn is_ready(&self) -> bool {
        let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        send(self.admin, request).await.expect("an answer").status == 200
    }

    /// The sum of a metric over its labels, of which these must be there.
    pub(crate) async fn figure(&self, name: &str, label: &str) -> u64 {
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = send(self.admin, request).await.expect("figures");
        let lines = answer.body.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
        });
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// How often it asked the store for a record, or wrote one.
    pub(crate) async fn trips(&self) -> u64 {
        let mut trips = 0;
        for operation in ["load", "swap"] {
            trips += self.figure("onlyonce_store_seconds_count", &format!("operation=\"{operation}\"")).await;
        }
        trips
    }

    /// How many connections it has to PostgreSQL.
    pub(crate) fn connections(&self, server: &Server) -> usize {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}'", self.name);
        server.sql(&sql).parse().unwrap()
    }

    /// The lines it has logged.
    pub(crate) fn logged(&self) -> Vec<String> {
        fs::read_to_string(&self.log).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} logged: {:#?}", self.name, self.logged());
        }
        let _ = fs::remove_file(&self.log);
    }
}

/// Makes tests of cases: of each, one on every server.
macro_rules! on_every_server {
    ($cases:tt) => {
        crate::node::cases!(on_postgres Postgres $cases);
        #[cfg(feature = "mysql")]
        crate::node::cases!(on_mysql Mysql $cases);
        #[cfg(feature = "redis")]
        crate::node::cases!(on_redis Redis $cases);
        #[cfg(feature = "dynamodb")]
        crate::node::cases!(on_dynamodb Dynamodb $cases);
    };
}

macro_rules! cases {
    ($module:ident $engine:ident { $($name:ident,)* }) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name(onlyonce_testkit::engines::server::Engine::$engine).await;
                }
            )*
        }
    };
}

pub(crate) use {cases, on_every_server};
