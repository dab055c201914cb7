//! Lives of the victim: started, waited for, killed. Nothing here sleeps; every wait is for a line or for an exit.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use onlyonce::store::failpoint;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::victim;

/// How long anything may take before the test is over: a bound, never a pause.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How a process dies that is killed, and one that comes to its failpoint.
const SIGKILL: i32 = 9;

/// How a victim is to live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    /// Where it dies by itself.
    pub(crate) failpoint: Option<&'static str>,
    /// Whether the sweeper and the reaper work.
    pub(crate) workers: bool,
    /// Whether leases can be renewed.
    pub(crate) renewals: bool,
    /// The lease of every attempt. Long: on a busy machine a process must not lapse by itself.
    lease_seconds: u32,
    /// Whether routes say about their effects what is true.
    honesty: bool,
    /// Whether the ledger is asked about what is unknown.
    probes: bool,
}

impl Life {
    /// As in production.
    pub(crate) const USUAL: Self = Self {
        failpoint: None,
        workers: true,
        renewals: true,
        lease_seconds: 20,
        honesty: true,
        probes: false,
    };

    pub(crate) const fn until(failpoint: &'static str) -> Self {
        Self { failpoint: Some(failpoint), ..Self::USUAL }
    }

    pub(crate) const fn without_workers(self) -> Self {
        Self { workers: false, ..self }
    }

    pub(crate) const fn without_renewals(self) -> Self {
        Self { renewals: false, ..self }
    }

    /// The shortest lease that a policy may have, for what happens once half of it, or all of it, is over.
    pub(crate) const fn with_short_leases(self) -> Self {
        Self { lease_seconds: 1, ..self }
    }

    /// Shorter leases, for a store that does not know by itself that its process is dead: what it left lapses when its
    /// lease does.
    pub(crate) fn with_leases_to_be_waited_for(self) -> Self {
        Self { lease_seconds: self.lease_seconds.min(2), ..self }
    }

    /// The ledger is asked about what is unknown.
    pub(crate) const fn with_probes(self) -> Self {
        Self { probes: true, ..self }
    }

    /// The opaque route calls itself keyed.
    pub(crate) const fn with_a_lie(self) -> Self {
        Self { honesty: false, ..self }
    }
}

/// Where a victim lives; the same for all lives of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    /// As settings name it.
    pub(crate) store: &'a str,
    pub(crate) page_bytes: u32,
    pub(crate) ledger: SocketAddr,
}

/// A living victim. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Victim {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// What became of a start.
#[derive(Debug)]
pub(crate) enum Started {
    Ready(Victim),
    /// Killed before its ready line.
    Died,
}

/// Starts a victim, and waits for its ready line or its death.
pub(crate) async fn start(site: &Site<'_>, life: Life) -> Started {
    let mut command = Command::new(std::env::current_exe().expect("a running program has a path"));
    command
        .env(victim::STORE, site.store)
        .env(victim::LEDGER, site.ledger.to_string())
        .env(victim::PAGE_BYTES, site.page_bytes.to_string())
        .env(victim::WORKERS, on(life.workers))
        .env(victim::RENEWALS, on(life.renewals))
        .env(victim::HONESTY, on(life.honesty))
        .env(victim::PROBES, on(life.probes))
        .env(victim::LEASE_SECONDS, life.lease_seconds.to_string())
        .env_remove(failpoint::VARIABLE)
        .envs(life.failpoint.map(|name| (failpoint::VARIABLE, name)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("this very program can be started");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout was piped")).lines();
    let first = timeout(PATIENCE, lines.next_line()).await.expect("the victim gets ready or dies");
    let Ok(Some(line)) = first else {
        died(&mut child).await;
        return Started::Died;
    };
    let address = line.strip_prefix(victim::READY).and_then(|address| address.parse().ok());
    let address = address.unwrap_or_else(|| panic!("the victim said {line:?} instead of being ready"));
    Started::Ready(Victim { child, address })
}

const fn on(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

impl Victim {
    /// Kills it as `kill -9` does, and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.child.start_kill().expect("a child of ours can be killed");
        died(&mut self.child).await;
    }

    /// Waits until it has died at its failpoint.
    pub(crate) async fn dies(mut self) {
        died(&mut self.child).await;
    }
}

async fn died(child: &mut Child) {
    // Waiting would close it, and a victim whose stdin is closed thinks that its driver is gone, and ends before its step.
    let _stdin = child.stdin.take();
    let status = timeout(PATIENCE, child.wait()).await.expect("the victim dies");
    was_killed(status.expect("a child of ours can be waited for"));
}

/// A victim that ends in any other way has failed, and its stderr says why.
fn was_killed(status: ExitStatus) {
    assert_eq!(status.signal(), Some(SIGKILL), "the victim was not killed but ended with {status}");
}
