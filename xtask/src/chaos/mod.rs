//! `cargo xtask chaos`: three gateways on one PostgreSQL, while everything around them is killed, stopped, cut off and
//! slowed down; then every key must come to an end, and what clients were told must agree with what was really done.
//!
//! ```text
//!   hundreds of clients ══╪══► three `onlyonce serve` ══╪══► the service and its ledger
//!                                      ╫
//!                                 PostgreSQL                 ╪ ╫: lines that are cut, held and slowed down
//! ```
//!
//! 1. Which faults, keys, whims and bodies there are follows from the seed; when they meet is up to the machine, so the
//!    seed says where to look and does not repeat a run.
//! 2. The ledger and the clients are in this process, which nobody kills. `stage.rs` keeps what happened to each key.
//! 3. Afterwards nothing is broken any more, and `ending.rs` asks for every key until it has ended.
//! 4. Judged by `judge.rs`: the checker of histories that the simulation is judged by, and the ledger beside it; and by
//!    `witness.rs`: what the database noted of every write.
//! 5. A run in which too little went wrong is void, and void is not passed.

mod call;
mod client;
mod ending;
mod exchange;
mod fault;
mod judge;
mod kind;
mod ledger;
mod node;
mod report;
mod service;
mod settings;
mod stage;
mod tally;
mod trouble;
mod whim;
mod witness;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use onlyonce_testkit::engines::postgres::{Owned, Server};

use self::client::Client;
use self::fault::Line;
use self::ledger::Ledger;
use self::node::{Behind, Node};
use self::report::Report;
use self::service::Service;
use self::settings::NODES;
use self::stage::Stage;
use crate::Verdict;
use crate::gateway;
use crate::repository;

const MINUTES: u64 = 2;
const CLIENTS: u64 = 200;
const TELL_EVERY: Duration = Duration::from_secs(10);
/// So many clients' threads need little room each.
const STACK_BYTES: usize = 256 << 10;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long things are broken; healing and judging come on top
    #[arg(long, default_value_t = MINUTES, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Which faults, keys and whims; one is drawn and printed where none is given
    #[arg(long)]
    seed: Option<u64>,
    /// How many clients there are at a time
    #[arg(long, default_value_t = CLIENTS, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// The report as JSON on stdout
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// What the test command has time for.
    pub(crate) fn brief() -> Self {
        Self { minutes: MINUTES, seed: None, clients: CLIENTS, json: false }
    }
}

/// F06, M01, M04, P01, P05, R01, R02, R05, R06, R07, S02, U02, U03, U04, X01, X03, X05: three nodes, whatever fails.
pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let seed = arguments.seed.unwrap_or_else(drawn);
    eprintln!("chaos: seed {seed}, {} minutes, {} clients", arguments.minutes, arguments.clients);
    let program = gateway::build()?;
    let folder = repository::target()?.join("chaos").join(format!("{seed}-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let world = World::start(seed, &program, &folder)?;
    world.play(arguments)?;
    let report = world.judge(arguments)?;
    report.tell(arguments.json)?;
    if report.has_passed() {
        fs::remove_dir_all(&folder)?;
        return Ok(Verdict::Yes);
    }
    // The log of the last start; the gateways' are there whole.
    let _ = fs::copy(world.server.folder().join("log"), folder.join("postgres.log"));
    eprintln!("what everybody said is in {}", folder.display());
    eprintln!("again: cargo xtask chaos --minutes {} --seed {seed}", arguments.minutes);
    Ok(Verdict::No)
}

/// A seed that nobody chose.
fn drawn() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff)
}

/// Everybody and everything of a run.
struct World {
    stage: Arc<Stage>,
    service: Arc<Service>,
    nodes: Vec<Node>,
    server: Owned,
    folder: PathBuf,
}

impl World {
    fn start(seed: u64, program: &Path, folder: &Path) -> Result<Self> {
        let stage = Stage::new(seed);
        let server = Server::start(&[]).map_err(|reason| anyhow!(reason))?;
        let (service, port) = Service::start(&stage, Ledger::open(&folder.join("ledger"))?)?;
        fs::write(folder.join("onlyonce.toml"), settings::file())?;
        let behind = Behind { database: server.port(), service: port };
        let nodes = (1..=NODES).map(|number| Node::new(&stage, number, program, folder, behind));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        // The first one makes the tables.
        nodes[0].start()?;
        witness::install(&server);
        nodes[1..].iter().try_for_each(Node::start)?;
        Ok(Self { stage, service, nodes, server, folder: folder.to_owned() })
    }

    fn gateways(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Node::address).collect()
    }

    /// Lets everything break for so long. When this returns, it is whole again.
    fn play(&self, arguments: &Arguments) -> Result<()> {
        let (stage, nodes, server) = (&self.stage, &self.nodes, &self.server);
        let gateways = self.gateways();
        let over = Duration::from_secs(60 * arguments.minutes);
        thread::scope(|scope| {
            for number in 0..arguments.clients {
                let client = Client::new(stage, &gateways, number);
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, move || client.run()).context("too many clients")?;
            }
            scope.spawn(|| trouble::database(stage, server));
            for line in [Line::FromClients, Line::ToStore, Line::ToService] {
                scope.spawn(move || trouble::lines(stage, nodes, line));
            }
            scope.spawn(|| self.tell_until(over));
            let done = trouble::nodes(stage, nodes);
            // The others stop where this one could not go on.
            stage.end_faults();
            done
        })
    }

    /// Says how it goes, and ends the faults when it is time.
    fn tell_until(&self, over: Duration) {
        let began = self.stage.elapsed();
        let mut told = began;
        while self.stage.is_faulty() {
            thread::sleep(Duration::from_millis(100));
            let now = self.stage.elapsed();
            if now - told >= TELL_EVERY {
                told = now;
                self.nodes.iter().for_each(Node::look);
                let (keys, fired) = (self.stage.subjects().len(), self.stage.tally().fired());
                let requests = self.stage.requests();
                let wrongs = match self.stage.wrongs().len() {
                    0 => String::new(),
                    count => format!("  {count} WRONG"),
                };
                eprintln!(
                    "{:>5} s  {requests:>7} requests  {keys:>6} keys  {fired:>5} faults{wrongs}",
                    (now - began).as_secs()
                );
            }
            if now - began >= over {
                self.stage.end_faults();
            }
        }
    }

    fn judge(&self, arguments: &Arguments) -> Result<Report> {
        let stage = &self.stage;
        eprintln!("healed; {} keys are asked for until they have ended", stage.subjects().len());
        ending::settle(stage, &self.service);
        let ends = ending::ends(stage, &self.gateways());
        self.nodes.iter().for_each(Node::look);
        let panics = self.nodes.iter().flat_map(Node::panics);
        panics.for_each(|panic| stage.wrong(panic));
        witness::read(&self.server, stage)?;
        witness::compare(&self.server, stage, &ends);
        let charges = self.service.ledger.charges();
        let expired = witness::expired(&self.server)?;
        let mut told = String::new();
        for (subject, end) in &ends {
            let charges = charges.get(&subject.number).copied().unwrap_or(0);
            let kind = subject.kind.name();
            stage.tally().end(kind, end.name());
            stage.tally().effects(kind, charges as u64);
            let expired = expired.get(&subject.key).map_or(&[][..], Vec::as_slice);
            let history = subject.history(stage, expired);
            let broken = judge::judge(&history, charges, *end);
            if !broken.is_empty() {
                stage.wrong(format!("{}/{}: {}", subject.caller, subject.key, broken.join("; ")));
                told.push_str(&report::story(
                    subject,
                    &history,
                    &broken,
                    &witness::notes(&self.server, subject),
                ));
            }
        }
        if !told.is_empty() {
            fs::write(self.folder.join("histories"), &told)?;
        }
        let tally = stage.tally().clone();
        Ok(Report::new(stage, tally, arguments.minutes, told))
    }
}
