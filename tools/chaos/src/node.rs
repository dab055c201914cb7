//! One gateway: the product's own program as a process, with its three connections: clients, the server with the store, the service.
//!
//! A node is started only by the main thread: the kernel is told to end it with the thread that started it.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use onlyonce_testkit::gateway::{self, Flags};
use onlyonce_testkit::process::{self, End, Process};
use onlyonce_testkit::wire::Wire;

use crate::fault::Line;
use crate::run::{Run, locked};
use crate::settings::STOPPED_WITHIN;

/// A port that nobody listens on: where clients are led while the node is down.
const NOWHERE: u16 = 1;
/// A node cannot start while its database is down, so it is started again, as a service manager does.
const STARTED_WITHIN: Duration = Duration::from_secs(120);
const TRY_EVERY: Duration = Duration::from_millis(200);

pub(crate) struct Node {
    run: Arc<Run>,
    name: String,
    program: PathBuf,
    folder: PathBuf,
    store: String,
    /// From clients to the gateway.
    clients: Wire,
    /// From the gateway to the server with the store.
    database: Wire,
    /// From the gateway to the service.
    service: Wire,
    /// None while it is stopped on purpose.
    process: Mutex<Option<Process>>,
}

/// The ports of what a node needs.
#[derive(Clone, Copy)]
pub(crate) struct Behind {
    pub(crate) database: u16,
    pub(crate) service: u16,
}

impl Node {
    pub(crate) fn new(
        run: &Arc<Run>,
        number: usize,
        program: &Path,
        folder: &Path,
        behind: Behind,
    ) -> Result<Self> {
        let wire = |port| Wire::to(port).map_err(|reason| anyhow!(reason));
        let database = wire(behind.database)?;
        let store = run.store.url(database.address());
        Ok(Self {
            run: run.clone(),
            name: format!("node-{number}"),
            program: program.to_owned(),
            folder: folder.to_owned(),
            store,
            clients: wire(NOWHERE)?,
            database,
            service: wire(behind.service)?,
            process: Mutex::default(),
        })
    }

    /// Where clients connect; it stays the same when the process is started again.
    pub(crate) fn address(&self) -> SocketAddr {
        self.clients.address()
    }

    /// Its connection of this kind; none of those that are not a gateway's own.
    pub(crate) fn line(&self, line: Line) -> Option<&Wire> {
        match line {
            Line::FromClients => Some(&self.clients),
            Line::ToStore => Some(&self.database),
            Line::ToService => Some(&self.service),
            Line::OfService | Line::ToDestination => None,
        }
    }

    /// Starts it, and tries again while it fails.
    pub(crate) fn start(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < STARTED_WITHIN {
            let mut process = self.launch()?;
            match gateway::ready(&mut process) {
                Ok(addresses) => {
                    let address: SocketAddr = addresses.gateway.parse().context("the gateway's address")?;
                    self.clients.lead_to(address.port());
                    *locked(&self.process) = Some(process);
                    return Ok(());
                }
                Err(_) if process.exit_status()?.is_some() => self.run.tally().node("could not start"),
                Err(error) => self.run.wrong(format!("{}: {error:#}, and it did not end", self.name)),
            }
            thread::sleep(TRY_EVERY);
        }
        bail!("{} did not start within {STARTED_WITHIN:?}; see {}", self.name, self.log().display())
    }

    fn launch(&self) -> Result<Process> {
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut command = process::child_command(&self.program, End::Kill);
        let config = self.folder.join("onlyonce.toml");
        Flags { config: Some(&config), upstream: self.service.address(), store: &self.store }
            .add_to(&mut command);
        Process::start(&self.name, command.stderr(log), End::Kill)
    }

    /// SIGKILL.
    pub(crate) fn kill(&self) {
        self.look();
        drop(locked(&self.process).take());
        self.clients.lead_to(NOWHERE);
    }

    /// SIGTERM: it must end in time, with success.
    pub(crate) fn terminate(&self) -> Result<()> {
        self.look();
        let Some(mut process) = locked(&self.process).take() else { return Ok(()) };
        signal("-TERM", &process);
        match process.exit_status_within(STOPPED_WITHIN)? {
            Some(status) if status.success() => {}
            Some(status) => {
                self.run.wrong(format!("{} was told to stop and ended with {status}", self.name));
            }
            None => self.run.wrong(format!("{} did not stop within {STOPPED_WITHIN:?}", self.name)),
        }
        self.clients.lead_to(NOWHERE);
        Ok(())
    }

    /// SIGSTOP, and SIGCONT after a while.
    pub(crate) fn freeze(&self, span: Duration) {
        if let Some(process) = &*locked(&self.process) {
            signal("-STOP", process);
        }
        thread::sleep(span);
        if let Some(process) = &*locked(&self.process) {
            signal("-CONT", process);
        }
    }

    /// Checks that the process has not ended by itself.
    pub(crate) fn look(&self) {
        let mut process = locked(&self.process);
        let ended = process.as_mut().map(Process::exit_status);
        if let Some(Ok(Some(status))) = ended {
            self.run.wrong(format!(
                "{} ended by itself with {status}; see {}",
                self.name,
                self.log().display()
            ));
            *process = None;
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        locked(&self.process).is_some()
    }

    /// The panics in its log.
    pub(crate) fn panics(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let panics = log.lines().filter(|line| line.contains("panicked at"));
        panics.map(|line| format!("{}: {line}", self.name)).collect()
    }

    fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }
}

fn signal(signal: &str, process: &Process) {
    // If it has just ended, the next check finds that.
    let _ = Command::new("kill").arg(signal).arg(process.pid().to_string()).stderr(Stdio::null()).status();
}
