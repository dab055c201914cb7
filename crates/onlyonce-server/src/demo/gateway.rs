//! The gateway as a process of its own, so that the demo can kill it with SIGKILL.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::store::Url;

const READY_WITHIN: Duration = Duration::from_secs(20);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// A gateway process that is killed on drop.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    process: Child,
}

impl Gateway {
    /// `onlyonce serve` before the service at `upstream`, on free ports.
    pub(crate) async fn start(upstream: SocketAddr, store: &Url, name: &str) -> Result<Self> {
        let program = std::env::current_exe().context("this program does not know where it is")?;
        let mut process = Command::new(program)
            .arg("serve")
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://{upstream}")])
            // Each run has its own keys, also on a store used before.
            .args(["--set", &format!("service={name}"), "--set", "policy.required=true"])
            // Its log of the demo's faults would only confuse.
            .args(["--set", "log.filter=off"])
            .env_clear()
            // Not as an argument: it may hold a password, and every user of the machine can see arguments.
            .env("ONLYONCE_STORE", store.whole())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the gateway cannot be started")?;
        let stdout = process.stdout.take().context("the gateway has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let ready =
            timeout(READY_WITHIN, lines.next_line()).await.context("the gateway is not ready in time")??;
        let Some(address) = ready.as_deref().and_then(address) else {
            bail!("the gateway said {ready:?} instead of where it listens");
        };
        Ok(Self { address, process })
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

/// The address in `ready: gateway http://127.0.0.1:8080 admin …`.
fn address(ready: &str) -> Option<SocketAddr> {
    let rest = ready.strip_prefix("ready: gateway http://")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_in_the_ready_line() {
        let line = "ready: gateway http://127.0.0.1:8080 admin http://127.0.0.1:8081 store memory:";
        assert_eq!(address(line), Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(address("ready: nothing"), None);
    }
}
