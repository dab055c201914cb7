//! The gateway process: started, waited for, killed. Every wait is for a line or an exit.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onlyonce::store::failpoint;
use onlyonce_testkit::engines::server::Server;
use onlyonce_testkit::wire::Wire;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::ledger::Ledger;
use crate::{Effects, Engine};

/// How long anything may take before the test is over: a bound, never a pause.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How a process dies that is killed, and one that comes to its failpoint.
pub(crate) const SIGNALS: [i32; 2] = [9, 6];

/// A living gateway. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    process: Child,
}

impl Gateway {
    pub(crate) async fn start(
        store: &Store,
        ledger: &Ledger,
        effects: Effects,
        failpoint: Option<&str>,
    ) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_onlyonce"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://{}", ledger.address), "--store", &store.url()])
            .args(["--set", &format!("policy.effects={}", effects.name()), "--set", "log.filter=off"])
            .args(store.settings())
            .env_remove(failpoint::VARIABLE)
            .envs(failpoint.map(|name| (failpoint::VARIABLE, name)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = timeout(PATIENCE, lines.next_line()).await.expect("it gets ready").unwrap();
        let ready = ready.expect("it lives until it is ready");
        let address = ready.strip_prefix("ready: gateway http://").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("it said {ready:?}")).parse().unwrap();
        Self { address, process }
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.process.start_kill().unwrap();
        self.died().await;
    }

    /// Waits until it has died, by a signal: one that ends in any other way has failed.
    pub(crate) async fn died(mut self) {
        let status = timeout(PATIENCE, self.process.wait()).await.expect("it dies").unwrap();
        let is_killed = status.signal().is_some_and(|signal| SIGNALS.contains(&signal));
        assert!(is_killed, "it was not killed but ended with {status}");
    }
}

/// Where the gateways of one test keep their records, one after the other.
#[derive(Debug)]
pub(crate) enum Store {
    /// In a file, whose next owner knows that the last one is dead.
    Sqlite(Folder),
    /// On a server, by a line that can be held and cut. A dead gateway is only missed when its leases lapse.
    Server { server: Server<'static>, url: String, wire: Wire },
}

impl Store {
    pub(crate) fn new(engine: Engine) -> Self {
        match engine {
            Engine::Sqlite => Self::Sqlite(Folder::new()),
            Engine::Server(engine) => {
                let server = engine.shared();
                Self::Server { server, url: server.fresh_store(), wire: Wire::to(server.port()).unwrap() }
            }
        }
    }

    /// As gateways have it: by the line, where there is one.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.0.join("onlyonce.db").display()),
            Self::Server { server, url, wire } => {
                url.replace(&format!("127.0.0.1:{}", server.port()), &wire.address().to_string())
            }
        }
    }

    fn settings(&self) -> &[&str] {
        match self {
            Self::Sqlite(_) => &[],
            Self::Server { server: Server::Dynamodb(_), .. } => TOLD_THE_TIME,
            Self::Server { .. } => SHARED,
        }
    }
}

/// The settings of gateways that share a store: short leases, since that is what is waited for.
const SHARED: &[&str] = &["--set", "policy.lease=2s", "--set", "policy.store_timeout=1s"];

/// The shortest lease on DynamoDB, whose clock is known to two seconds; and the emulator is slow.
const TOLD_THE_TIME: &[&str] =
    &["--set", "policy.lease=10s", "--set", "policy.store_timeout=3s", "--set", "background.sweep_every=2s"];

/// A folder that goes with its test.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("onlyonce-gateway-crash-{}-{number}", std::process::id()));
        // A process of the same number may have left one when it was killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed lies in the folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
