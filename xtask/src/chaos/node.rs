//! One gateway: the product's own program as a process, and the three lines it is reached and reaches others by.
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
use onlyonce_testkit::wire::Wire;

use super::fault::Line;
use super::settings::STOPPED_WITHIN;
use super::stage::{Stage, locked};
use crate::gateway::{self, Flags};
use crate::process::{self, End, Process};

/// A port that nobody listens on: a line leads there while its node is down.
const NOWHERE: u16 = 1;
/// A node cannot start while its database is away; whoever manages services tries again.
const STARTED_WITHIN: Duration = Duration::from_secs(120);
const TRY_EVERY: Duration = Duration::from_millis(200);

pub(super) struct Node {
    stage: Arc<Stage>,
    name: String,
    program: PathBuf,
    folder: PathBuf,
    store: String,
    /// From clients to the gateway.
    clients: Wire,
    /// From the gateway to PostgreSQL.
    database: Wire,
    /// From the gateway to the service.
    service: Wire,
    /// None while it is down on our order.
    process: Mutex<Option<Process>>,
}

/// The ports of what a node needs.
#[derive(Clone, Copy)]
pub(super) struct Behind {
    pub(super) database: u16,
    pub(super) service: u16,
}

impl Node {
    pub(super) fn new(
        stage: &Arc<Stage>,
        number: usize,
        program: &Path,
        folder: &Path,
        behind: Behind,
    ) -> Result<Self> {
        let wire = |port| Wire::to(port).map_err(|reason| anyhow!(reason));
        let database = wire(behind.database)?;
        let store = format!("postgres://postgres@{}/postgres?sslmode=disable", database.address());
        Ok(Self {
            stage: stage.clone(),
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

    /// Where clients connect, whatever becomes of the process.
    pub(super) fn address(&self) -> SocketAddr {
        self.clients.address()
    }

    pub(super) fn line(&self, line: Line) -> &Wire {
        match line {
            Line::FromClients => &self.clients,
            Line::ToStore => &self.database,
            Line::ToService => &self.service,
        }
    }

    /// Starts it, again and again while it says that it cannot.
    pub(super) fn start(&self) -> Result<()> {
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
                Err(_) if process.ended()?.is_some() => self.stage.tally().node("could not start"),
                Err(error) => self.stage.wrong(format!("{}: {error:#}, and it did not end", self.name)),
            }
            thread::sleep(TRY_EVERY);
        }
        bail!("{} did not start within {STARTED_WITHIN:?}; see {}", self.name, self.log().display())
    }

    fn launch(&self) -> Result<Process> {
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut command = process::bound(&self.program, End::Kill);
        let config = self.folder.join("onlyonce.toml");
        Flags { config: Some(&config), upstream: self.service.address(), store: &self.store }
            .give(&mut command);
        Process::start(&self.name, command.stderr(log), End::Kill)
    }

    /// SIGKILL.
    pub(super) fn kill(&self) {
        self.look();
        drop(locked(&self.process).take());
        self.clients.lead_to(NOWHERE);
    }

    /// SIGTERM: it must end by itself, in time and content.
    pub(super) fn terminate(&self) -> Result<()> {
        self.look();
        let Some(mut process) = locked(&self.process).take() else { return Ok(()) };
        signal("-TERM", &process);
        match process.ended_within(STOPPED_WITHIN)? {
            Some(status) if status.success() => {}
            Some(status) => {
                self.stage.wrong(format!("{} was told to stop and ended with {status}", self.name));
            }
            None => self.stage.wrong(format!("{} did not stop within {STOPPED_WITHIN:?}", self.name)),
        }
        self.clients.lead_to(NOWHERE);
        Ok(())
    }

    /// SIGSTOP, and SIGCONT after a while.
    pub(super) fn freeze(&self, span: Duration) {
        if let Some(process) = &*locked(&self.process) {
            signal("-STOP", process);
        }
        thread::sleep(span);
        if let Some(process) = &*locked(&self.process) {
            signal("-CONT", process);
        }
    }

    /// A node that is up and that nobody has ended is still there.
    pub(super) fn look(&self) {
        let mut process = locked(&self.process);
        let ended = process.as_mut().map(Process::ended);
        if let Some(Ok(Some(status))) = ended {
            self.stage.wrong(format!(
                "{} ended by itself with {status}; see {}",
                self.name,
                self.log().display()
            ));
            *process = None;
        }
    }

    pub(super) fn is_up(&self) -> bool {
        locked(&self.process).is_some()
    }

    /// What it said that it never should.
    pub(super) fn panics(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let panics = log.lines().filter(|line| line.contains("panicked at"));
        panics.map(|line| format!("{}: {line}", self.name)).collect()
    }

    fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }
}

fn signal(signal: &str, process: &Process) {
    // One that has just ended is found by whoever looks next.
    let _ = Command::new("kill").arg(signal).arg(process.pid().to_string()).stderr(Stdio::null()).status();
}
