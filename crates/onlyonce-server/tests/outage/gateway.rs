//! The real program, started once per test.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use onlyonce::store::failpoint;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::client::{self, Answer};
use crate::ledger::Ledger;

/// How long anything may take before the test is over: a bound, never a pause.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Set it to see what the gateway logs.
const LOG: &str = "ONLYONCE_OUTAGE_LOG";

/// Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    process: Child,
}

impl Gateway {
    /// A lease that outlasts every outage of these tests: what becomes of a lapsed one is told elsewhere.
    pub(crate) async fn start(ledger: &Ledger, store: &str, store_timeout: Duration) -> Self {
        let filter = std::env::var(LOG).unwrap_or_else(|_| "off".to_owned());
        let mut process = Command::new(env!("CARGO_BIN_EXE_onlyonce"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", store])
            .args(["--upstream", &format!("http://{}", ledger.address), "--set", "policy.lease=40s"])
            .args(["--set", &format!("policy.store_timeout={}ms", store_timeout.as_millis())])
            .args(["--set", "background.sweep_every=1s", "--set", &format!("log.filter={filter}")])
            .env_remove(failpoint::VARIABLE)
            .env_remove(LOG)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = timeout(PATIENCE, lines.next_line()).await.expect("it gets ready").unwrap();
        let ready = ready.expect("it lives until it is ready");
        let mut addresses = ready.split_whitespace().filter_map(|word| word.strip_prefix("http://"));
        let mut next = || addresses.next().and_then(|address| address.parse().ok());
        let (Some(address), Some(admin)) = (next(), next()) else { panic!("it said {ready:?}") };
        Self { address, admin, process }
    }

    /// Whether it is ready, and what it says about the store.
    pub(crate) async fn readiness(&self) -> (bool, String) {
        let answer = client::get(self.admin, "/readyz").await;
        let told: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        (answer.status == 200, told["store"]["state"].as_str().unwrap_or_default().to_owned())
    }

    /// The sum of a counter over its labels, where those contain all of these.
    pub(crate) async fn counted(&self, name: &str, labels: &[&str]) -> f64 {
        let Answer { body, .. } = client::get(self.admin, "/metrics").await;
        let is_it = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        };
        let values =
            body.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }

    /// It lives, and has never been started again.
    pub(crate) fn lives(&mut self) {
        assert!(self.process.try_wait().unwrap().is_none(), "the gateway has ended");
    }
}
