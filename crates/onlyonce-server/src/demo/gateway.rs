//! The gateway as a process of its own, so that the demo can kill it with SIGKILL.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::client::ASKED;
use crate::store::Url;

const READY_WITHIN: Duration = Duration::from_secs(20);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// A gateway process that is killed on drop.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    /// Where operators and webhooks come in.
    pub(crate) admin: SocketAddr,
    process: Child,
}

impl Gateway {
    /// `onlyonce serve` before the service at `upstream`, on free ports.
    pub(crate) async fn start(upstream: SocketAddr, store: &Url, name: &str, secret: &str) -> Result<Self> {
        let program = std::env::current_exe().context("this program does not know where it is")?;
        let mut process = Command::new(program)
            .arg("serve")
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://{upstream}")])
            // Each run has its own keys, also on a store used before.
            .args(["--set", &format!("service={name}"), "--set", "policy.required=true"])
            .args(settling(upstream).iter().flat_map(|setting| ["--set", setting]))
            // Its log of the demo's faults would only confuse.
            .args(["--set", "log.filter=off"])
            .env_clear()
            // Not as an argument: it may hold a password, and every user of the machine can see arguments.
            .env("ONLYONCE_STORE", store.whole())
            .env(BANK_SECRET, secret)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the gateway cannot be started")?;
        let stdout = process.stdout.take().context("the gateway has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let ready =
            timeout(READY_WITHIN, lines.next_line()).await.context("the gateway is not ready in time")??;
        let addresses = ready.as_deref().and_then(addresses);
        let Some((address, admin)) = addresses else {
            bail!("the gateway said {ready:?} instead of where it listens");
        };
        Ok(Self { address, admin, process })
    }

    /// SIGTERM: it finishes requests in flight and closes its store.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let pid = self.process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        kill_process(pid.context("the gateway is gone already")?, Signal::TERM)?;
        let status =
            timeout(STOPPED_WITHIN, self.process.wait()).await.context("the gateway does not stop")??;
        if !status.success() {
            bail!("the gateway ended with {status}");
        }
        Ok(())
    }

    /// SIGKILL: it cannot write anything more.
    pub(crate) async fn kill(mut self) -> Result<()> {
        self.process.kill().await.context("the gateway cannot be killed")
    }
}

/// The variable with the secret that the bank signs its webhooks with.
pub(crate) const BANK_SECRET: &str = "ONLYONCE_DEMO_BANK_SECRET";

/// Settings by which unknown outcomes are settled: payments that the service can be asked about, and the bank's webhooks.
pub(crate) fn settling(service: SocketAddr) -> [String; 2] {
    let route =
        format!("match = \"POST {ASKED}\", effects = \"queryable\", probe = \"http://{service}/probe\"");
    [format!("route=[{{ {route} }}]"), format!("webhooks.bank.secrets=[\"env:{BANK_SECRET}\"]")]
}

/// The addresses in `ready: gateway http://127.0.0.1:8080 admin http://127.0.0.1:8081 …`.
fn addresses(ready: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = ready.split(' ').filter_map(|word| word.strip_prefix("http://"));
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_are_in_the_ready_line() {
        let line = "ready: gateway http://127.0.0.1:8080 admin http://127.0.0.1:8081 store memory:";
        let (gateway, admin) = ("127.0.0.1:8080".parse().unwrap(), "127.0.0.1:8081".parse().unwrap());
        assert_eq!(addresses(line), Some((gateway, admin)));
        assert_eq!(addresses("ready: nothing"), None);
    }
}
