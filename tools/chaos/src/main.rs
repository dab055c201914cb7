//! `cargo xtask chaos`: three gateways on one PostgreSQL, while everything around them is killed, stopped, cut off and
//! slowed down; then every key must reach a final state, and what clients were told must agree with what was done.
//!
//! ```text
//!   hundreds of clients ══╪══► three `onlyonce serve` ══╪══► the service and its ledger
//!                                      ╫
//!                                 PostgreSQL                 ╪ ╫: connections that are cut, held and slowed down
//! ```
//!
//! 1. The seed decides which faults, keys, bodies and behaviours of the service there are. Their timing is up to the
//!    machine, so a seed does not repeat a run.
//! 2. The ledger and the clients are in this process, which nobody kills. `run.rs` keeps what happened to each key.
//! 3. `inject.rs` injects the faults. Once they have stopped, `final_state.rs` asks for every key until it has ended.
//! 4. `judge.rs` judges each key by the checker of histories that judges the simulation too, and by the ledger; `audit.rs`
//!    judges what the database recorded of every write.
//! 5. A run with too few faults of any kind is void, and void is not passed.

mod audit;
mod behaviour;
mod call;
mod client;
mod exchange;
mod fault;
mod final_state;
mod inject;
mod judge;
mod kind;
mod ledger;
mod node;
mod report;
mod run;
mod service;
mod settings;
mod tally;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use onlyonce_testkit::engines::postgres::{Owned, Server};
use onlyonce_testkit::gateway;
use onlyonce_testkit::history::What;
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::{Verdict, exit_code};

use self::client::Client;
use self::fault::Line;
use self::ledger::Ledger;
use self::node::{Behind, Node};
use self::report::Report;
use self::run::Run;
use self::service::Service;
use self::settings::NODES;

const MINUTES: u64 = 2;
const CLIENTS: u64 = 200;
const TELL_EVERY: Duration = Duration::from_secs(10);
/// There are hundreds of clients, and each is a thread.
const STACK_BYTES: usize = 256 << 10;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask chaos",
    about = "Three gateways on one PostgreSQL while everything around them fails; then every promise is judged"
)]
struct Arguments {
    /// How long faults are injected; recovery and judging come on top
    #[arg(long, default_value_t = MINUTES, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Which faults, keys and behaviours of the service; without it one is drawn and printed
    #[arg(long)]
    seed: Option<u64>,
    /// How many clients there are at a time
    #[arg(long, default_value_t = CLIENTS, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// The report as JSON on stdout
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    exit_code(&run(&Arguments::parse()))
}

/// F06, M01, M03, M04, P01, P05, R01, R02, R05, R06, R07, S02, U02, U03, U04, U05, U06, X01, X03, X05: three nodes, whatever fails.
fn run(arguments: &Arguments) -> Result<Verdict> {
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
    // PostgreSQL's log has only its last start; the gateways' logs are there whole.
    let _ = fs::copy(world.server.folder().join("log"), folder.join("postgres.log"));
    eprintln!("the logs are in {}", folder.display());
    eprintln!("again: cargo xtask chaos --minutes {} --seed {seed}", arguments.minutes);
    Ok(Verdict::No)
}

/// A seed from the clock.
fn drawn() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff)
}

/// All parts of a run.
struct World {
    run: Arc<Run>,
    service: Arc<Service>,
    nodes: Vec<Node>,
    server: Owned,
    folder: PathBuf,
}

impl World {
    fn start(seed: u64, program: &Path, folder: &Path) -> Result<Self> {
        let run = Run::new(seed);
        let server = Server::start(&[]).map_err(|reason| anyhow!(reason))?;
        let (service, port) = Service::start(&run, Ledger::open(&folder.join("ledger"))?)?;
        fs::write(folder.join("onlyonce.toml"), settings::file(port))?;
        let behind = Behind { database: server.port(), service: port };
        let nodes = (1..=NODES).map(|number| Node::new(&run, number, program, folder, behind));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        // The first node creates the tables.
        nodes[0].start()?;
        audit::install(&server);
        nodes[1..].iter().try_for_each(Node::start)?;
        Ok(Self { run, service, nodes, server, folder: folder.to_owned() })
    }

    fn gateways(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Node::address).collect()
    }

    /// Injects faults for as long as the arguments say. When this returns, everything has been repaired.
    fn play(&self, arguments: &Arguments) -> Result<()> {
        let (run, nodes, server) = (&self.run, &self.nodes, &self.server);
        let gateways = self.gateways();
        let over = Duration::from_secs(60 * arguments.minutes);
        thread::scope(|scope| {
            for number in 0..arguments.clients {
                let client = Client::new(run, &gateways, number);
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, move || client.run()).context("too many clients")?;
            }
            scope.spawn(|| inject::database(run, server));
            for line in [Line::FromClients, Line::ToStore, Line::ToService] {
                scope.spawn(move || inject::lines(run, nodes, line));
            }
            scope.spawn(|| self.tell_until(over));
            let done = inject::nodes(run, nodes);
            // If this thread could not go on, the others stop too.
            run.end_faults();
            done
        })
    }

    /// Prints the progress, and ends the faults when their time is over.
    fn tell_until(&self, over: Duration) {
        let began = self.run.elapsed();
        let mut told = began;
        while self.run.is_faulty() {
            thread::sleep(Duration::from_millis(100));
            let now = self.run.elapsed();
            if now - told >= TELL_EVERY {
                told = now;
                self.nodes.iter().for_each(Node::look);
                let (keys, fired) = (self.run.subjects().len(), self.run.tally().fired());
                let requests = self.run.requests();
                let wrongs = match self.run.wrongs().len() {
                    0 => String::new(),
                    count => format!("  {count} WRONG"),
                };
                eprintln!(
                    "{:>5} s  {requests:>7} requests  {keys:>6} keys  {fired:>5} faults{wrongs}",
                    (now - began).as_secs()
                );
            }
            if now - began >= over {
                self.run.end_faults();
            }
        }
    }

    fn judge(&self, arguments: &Arguments) -> Result<Report> {
        let run = &self.run;
        eprintln!("healed; {} keys are asked for until they have ended", run.subjects().len());
        final_state::settle(run, &self.service);
        let ends = final_state::ends(run, &self.gateways());
        self.nodes.iter().for_each(Node::look);
        let panics = self.nodes.iter().flat_map(Node::panics);
        panics.for_each(|panic| run.wrong(panic));
        audit::read(&self.server, run)?;
        audit::compare(&self.server, run, &ends);
        let charges = self.service.ledger.charges();
        let expired = audit::expired(&self.server)?;
        let ruled = audit::ruled(&self.server, run)?;
        let mut told = String::new();
        for (subject, end) in &ends {
            let charges = charges.get(&subject.number).copied().unwrap_or(0);
            let kind = subject.kind.name();
            run.tally().end(kind, end.name());
            run.tally().effects(kind, charges as u64);
            let expired = expired.get(&subject.key).into_iter().flatten().map(|at| (*at, What::Expired));
            let ruled = ruled.get(&subject.number).into_iter().flatten().cloned();
            let history = subject.history(run, expired.chain(ruled));
            let broken = judge::judge(&history, charges, *end);
            if !broken.is_empty() {
                run.wrong(format!("{}/{}: {}", subject.caller, subject.key, broken.join("; ")));
                told.push_str(&report::history_text(
                    subject,
                    &history,
                    &broken,
                    &audit::notes(&self.server, subject),
                ));
            }
        }
        if !told.is_empty() {
            fs::write(self.folder.join("histories"), &told)?;
        }
        let tally = run.tally().clone();
        Ok(Report::new(run, tally, arguments.minutes, told))
    }
}
