//! `cargo xtask chaos`: three gateways on one store, while everything around them is killed, stopped, cut off and
//! slowed down; then every key must reach a final state, and what clients were told must agree with what was done.
//!
//! ```text
//!   hundreds of clients ══╪══► three `onlyonce serve` ══╪══► the service and its ledger
//!                                   ╫     ╪                       ╫
//!                           the server     the destination     PostgreSQL
//!
//!   ╪ ╫: connections that are cut, held and slowed down
//! ```
//!
//! 1. The seed decides which faults, keys, bodies and behaviours of the service there are. Their timing is up to the
//!    machine, so a seed does not repeat a run.
//! 2. The ledger and the clients are in this process, which nobody kills. `run.rs` keeps what happened to each key.
//! 3. `inject.rs` injects the faults. Once they have stopped, `final_state.rs` asks for every key until it has ended.
//! 4. `judge.rs` judges each key by the checker of histories that judges the simulation too, and by the ledger; `audit.rs`
//!    judges what the server recorded of every write.
//! 5. The store is PostgreSQL, MariaDB or Redis (`store.rs`). On PostgreSQL local work completes its key in a transaction of the service's own, by SQL (`application.rs`), with a message to a
//!    destination that counts (`destination.rs`); `messages.rs` judges both by the table of the service.
//! 6. A run with too few faults of any kind is void, and void is not passed.

mod application;
mod audit;
mod behaviour;
mod call;
mod client;
mod destination;
mod exchange;
mod fault;
mod final_state;
mod inject;
mod judge;
mod kind;
mod ledger;
mod messages;
mod node;
mod report;
mod run;
mod service;
mod session;
mod settings;
mod store;
mod tally;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use clap::{Parser, ValueEnum};
use onlyonce_testkit::engines::server::{Owned, Server};
use onlyonce_testkit::gateway;
use onlyonce_testkit::history::What;
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::{Verdict, exit_code};
use onlyonce_testkit::wire::Wire;

use self::application::{Application, Row};
use self::audit::Audit;
use self::client::Client;
use self::destination::Destination;
use self::fault::Line;
use self::ledger::Ledger;
use self::messages::Evidence;
use self::node::{Behind, Node};
use self::report::Report;
use self::run::Run;
use self::service::Service;
use self::settings::{NODES, Places};
use self::store::{Store, of_services};

const MINUTES: u64 = 2;
const CLIENTS: u64 = 200;
const TELL_EVERY: Duration = Duration::from_secs(10);
/// There are hundreds of clients, and each is a thread.
const STACK_BYTES: usize = 256 << 10;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask chaos",
    about = "Three gateways on one store while everything around them fails; then every promise is judged"
)]
struct Arguments {
    /// What the gateways keep their records in
    #[arg(long, value_enum, default_value_t = Store::Postgres)]
    store: Store,
    /// How long faults are injected; recovery and judging come on top
    #[arg(long, default_value_t = MINUTES, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Which faults, keys and behaviours of the service; without it one is drawn and printed
    #[arg(long)]
    seed: Option<u64>,
    /// How many clients there are at a time
    #[arg(long, default_value_t = CLIENTS, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// This program as the gateway, in place of one that is built for it
    #[arg(long)]
    program: Option<PathBuf>,
    /// The report as JSON on stdout
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    exit_code(&run(&Arguments::parse()))
}

/// E02, E03, E04, E07, E08, F06, M01, M02, M03, M04, P01, P05, R01, R02, R05, R06, R07, S02, T01, T02, T03, U02, U03, U04, U05, U06, W01, W02,
/// W05, W09, X01, X02, X03, X05: three nodes, whatever fails.
fn run(arguments: &Arguments) -> Result<Verdict> {
    let seed = arguments.seed.unwrap_or_else(drawn);
    let store = arguments.store;
    eprintln!("chaos: {store:?}, seed {seed}, {} minutes, {} clients", arguments.minutes, arguments.clients);
    let program = match (&arguments.program, store) {
        (Some(program), _) => program.clone(),
        (None, Store::Postgres) => gateway::build()?,
        (None, Store::Mysql | Store::Redis) => gateway::build_with_all_stores()?,
    };
    let folder = repository::target()?.join("chaos").join(format!("{seed}-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let world = World::start(seed, store, &program, &folder)?;
    world.play(arguments)?;
    let report = world.judge(arguments)?;
    report.tell(arguments.json)?;
    if report.has_passed() {
        fs::remove_dir_all(&folder)?;
        return Ok(Verdict::Yes);
    }
    // The server's log has only its last start; the gateways' logs are there whole.
    let _ = fs::copy(world.server().log(), folder.join("server.log"));
    eprintln!("the logs are in {}", folder.display());
    let store = store.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    eprintln!("again: cargo xtask chaos --store {store} --minutes {} --seed {seed}", arguments.minutes);
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
    destination: Arc<Destination>,
    /// From the relays to the destination.
    deliveries: Wire,
    nodes: Vec<Node>,
    server: Owned,
    folder: PathBuf,
}

impl World {
    fn start(seed: u64, store: Store, program: &Path, folder: &Path) -> Result<Self> {
        let run = Run::new(seed, store);
        let server = store.start()?;
        let port_of_server = server.server().port();
        let application = Application::new(&run, port_of_server)?;
        let (service, port) = Service::start(&run, Ledger::open(&folder.join("ledger"))?, application)?;
        let (destination, receives) = Destination::start(&run)?;
        let deliveries = Wire::to(receives).map_err(|reason| anyhow!(reason))?;
        let secret = folder.join("secret");
        fs::write(&secret, destination::secret())?;
        let places = Places { service: port, destination: deliveries.address(), secret: &secret };
        fs::write(folder.join("onlyonce.toml"), settings::file(store, &places))?;
        let behind = Behind { database: port_of_server, service: port };
        let nodes = (1..=NODES).map(|number| Node::new(&run, number, program, folder, behind));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        // The first node creates the tables.
        nodes[0].start()?;
        audit::install(server.server());
        if let Some(server) = of_services(server.server()) {
            application::install(server, program)?;
        }
        nodes[1..].iter().try_for_each(Node::start)?;
        Ok(Self { run, service, destination, deliveries, nodes, server, folder: folder.to_owned() })
    }

    fn server(&self) -> Server<'_> {
        self.server.server()
    }

    fn gateways(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Node::address).collect()
    }

    /// The connections of this kind.
    fn wires(&self, line: Line) -> Vec<&Wire> {
        match line {
            Line::FromClients | Line::ToStore | Line::ToService => {
                self.nodes.iter().filter_map(|node| node.line(line)).collect()
            }
            Line::OfService => vec![self.service.application.line()],
            Line::ToDestination => vec![&self.deliveries],
        }
    }

    /// Injects faults for as long as the arguments say. When this returns, everything has been repaired.
    fn play(&self, arguments: &Arguments) -> Result<()> {
        let (run, nodes, server) = (&self.run, &self.nodes, self.server());
        let gateways = self.gateways();
        let over = Duration::from_secs(60 * arguments.minutes);
        thread::scope(|scope| {
            for number in 0..arguments.clients {
                let client = Client::new(run, &gateways, number);
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, move || client.run()).context("too many clients")?;
            }
            scope.spawn(move || inject::database(run, server));
            for line in Line::of(run.store) {
                let wires = self.wires(*line);
                scope.spawn(move || inject::lines(run, &wires, *line));
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
        let since = run.elapsed();
        let ends = final_state::ends(run, &self.gateways());
        eprintln!("every key was asked for within {} s", (run.elapsed() - since).as_secs());
        self.nodes.iter().for_each(Node::look);
        let panics = self.nodes.iter().flat_map(Node::panics);
        panics.for_each(|panic| run.wrong(panic));
        let rows = self.judge_messages()?;
        let audit = Audit::read(self.server())?;
        audit.judge(run);
        audit.compare(run, &ends);
        let mut charges = self.service.ledger.charges();
        rows.iter().for_each(|row| *charges.entry(row.subject).or_default() += 1);
        let expired = audit.expired();
        let ruled = audit.ruled(run)?;
        let mut told = String::new();
        for (subject, end) in &ends {
            let charges = charges.get(&subject.number).copied().unwrap_or(0);
            let kind = subject.kind.name();
            run.tally().end(kind, end.name());
            run.tally().effects(kind, charges as u64);
            let expired = expired.get(&subject.id).into_iter().flatten().map(|at| (*at, What::Expired));
            let ruled = ruled.get(&subject.number).into_iter().flatten().cloned();
            let committed = rows.iter().filter(|row| row.subject == subject.number).map(Row::executed);
            let history = subject.history(run, expired.chain(ruled).chain(committed));
            let broken = judge::judge(&history, charges, *end);
            if !broken.is_empty() {
                run.wrong(format!("{}/{}: {}", subject.caller, subject.key, broken.join("; ")));
                let notes = audit.notes(subject);
                told.push_str(&report::history_text(subject, &history, &broken, &notes));
            }
        }
        if !told.is_empty() {
            fs::write(self.folder.join("histories"), &told)?;
        }
        if !run.wrongs().is_empty() {
            self.keep_messages(&rows)?;
        }
        let tally = run.tally().clone();
        Ok(Report::new(run, tally, arguments.minutes, told))
    }

    /// Waits for the messages, and judges them by the rows, which are given. Without local work there are none.
    fn judge_messages(&self) -> Result<Vec<Row>> {
        let Some(server) = of_services(self.server()) else { return Ok(Vec::new()) };
        let since = self.run.elapsed();
        messages::settle(server, &self.run);
        eprintln!("every message was waited for within {} s", (self.run.elapsed() - since).as_secs());
        let evidence = Evidence {
            rows: application::rows(server)?,
            commits: self.service.application.commits(),
            arrivals: self.destination.arrivals(),
            stored: messages::stored(server)?,
        };
        messages::count(&evidence, &self.run);
        audit::judge_claims(server, &self.run)?;
        messages::judge(&evidence).into_iter().for_each(|broken| self.run.wrong(broken));
        Ok(evidence.rows)
    }

    /// For whoever looks into a failed run.
    fn keep_messages(&self, rows: &[Row]) -> Result<()> {
        let rows = rows.iter().map(|row| format!("{row:?}\n"));
        let arrivals = self.destination.arrivals();
        let arrivals = arrivals.iter().map(|arrival| format!("{arrival:?}\n"));
        fs::write(self.folder.join("messages"), rows.chain(arrivals).collect::<String>())?;
        Ok(())
    }
}
