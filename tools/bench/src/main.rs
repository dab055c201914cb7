//! `cargo xtask bench`: what the layer and the gateway cost, measured beside their baselines. See bench/README.md.

mod cache;
mod chart;
mod dashboard;
mod database;
mod engines;
mod figures;
mod findings;
mod folder;
mod growth;
mod lines;
mod load;
mod memory;
mod options;
mod page;
mod postgres;
mod reaping;
mod server;
mod subjects;
mod tools;
mod write_first;

use std::process::{self, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::{Verdict, exit_code};
use serde_json::Value;

use self::figures::Figures;
use self::growth::Extent;
use self::load::{Callers, Work};
use self::page::Part;
use self::server::Server;
use self::subjects::{GATEWAY, LAYER, PLAIN, PLAIN_PACKAGE, Series, Subject, UPLOAD_PROMISED};
use self::tools::Tools;

/// Fewer rounds have no median.
const ROUNDS_MIN: u32 = 3;
/// Connections of the storm, how long its work takes, and how often it is repeated.
const STORM: load::Storm = load::Storm { connections: 64, delay_ms: 50, rounds: 20 };
/// Duplicates that wait on one key, and how long the work they wait for takes: long enough for all of them to arrive,
/// shorter than the longest wait our default settings allow.
const WAITERS: u64 = 10_000;
const WAITERS_DELAY_MS: u64 = 6_000;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask bench",
    about = "Measures the layer, or the gateway, beside its baseline, and writes docs/performance.md"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// A first look: two seconds a measurement
    #[arg(long, global = true)]
    quick: bool,
    /// How often everything is measured, in turns
    #[arg(long, global = true, default_value_t = ROUNDS_MIN)]
    rounds: u32,
    /// How long each measurement takes
    #[arg(long, global = true, default_value_t = 8)]
    seconds: u64,
}

#[derive(clap::Subcommand)]
enum Command {
    /// The durable store as it grows: many records, reaping, the start after a kill, and what one request costs
    Growth {
        /// How many records the large store has; the promise is about 10000000, which takes a while to fill
        #[arg(long, default_value_t = 1_000_000)]
        records: u64,
    },
    /// The layer on PostgreSQL beside what one writes by hand for it
    Postgres {
        /// How many records the large table has; the promise is about 10000000, which takes some minutes more
        #[arg(long, default_value_t = 1_000_000)]
        records: u64,
    },
    /// The layer on MariaDB beside what one writes by hand for it
    Mysql,
    /// The layer on Redis beside what one writes by hand for it
    Redis,
    /// The layer on PostgreSQL with a Redis in front of it, beside PostgreSQL alone
    Cache,
    /// A handler whose record commits with its row, and the relay, beside what one writes by hand on PostgreSQL
    WriteFirst {
        /// How many messages the large backlog has; the promise is about 1000000. With --quick a tenth of it
        #[arg(long, default_value_t = 1_000_000)]
        messages: u64,
    },
    /// What an open dashboard costs the gateway, and its first screen on a large store
    Dashboard {
        /// How many records the store has; the promise is about 1000000. With --quick a tenth of it
        #[arg(long, default_value_t = 1_000_000)]
        records: u64,
    },
    /// The gateway beside a plain proxy and nginx, and the memory it holds
    Gateway {
        /// How many keys its memory is watched over; the promise is about 1000000. With --quick a tenth of it
        #[arg(long, default_value_t = 1_000_000)]
        keys: u64,
    },
}

fn main() -> ExitCode {
    exit_code(&run(&Arguments::parse()))
}

/// Eleven thousand clients of the gateway need three descriptors each. What is started here inherits the limit.
fn raise_descriptors() {
    let own = process::id().to_string();
    let raised = process::Command::new("prlimit").args(["--pid", &own, "--nofile=65536:65536"]).status();
    if !raised.is_ok_and(|status| status.success()) {
        eprintln!(
            "the limit of file descriptors cannot be raised, so fewer clients than 10000 may be served; run as root, or raise it to 65536"
        );
    }
}

fn run(arguments: &Arguments) -> Result<Verdict> {
    if arguments.rounds < ROUNDS_MIN {
        bail!("{} rounds have no median; use --rounds {ROUNDS_MIN} or more", arguments.rounds);
    }
    let seconds = if arguments.quick { 2 } else { arguments.seconds };
    if seconds == 0 {
        bail!("nothing is measured in 0 seconds; use --seconds 1 or more");
    }
    raise_descriptors();
    let tools = Tools::prepare()?;
    match arguments.command {
        None => run_layer(&tools, arguments.rounds, seconds),
        Some(Command::Gateway { keys }) => {
            let keys = if arguments.quick { keys / 10 } else { keys };
            run_gateway(&tools, arguments.rounds, seconds, keys)
        }
        Some(Command::Dashboard { records }) => {
            let records = if arguments.quick { records / 10 } else { records };
            dashboard::run(&tools, Extent { records, rounds: arguments.rounds, seconds })
        }
        Some(Command::Postgres { records }) => {
            postgres::run(&tools, Extent { records, rounds: arguments.rounds, seconds })
        }
        Some(Command::Mysql) => engines::run(&tools, engines::Engine::Mariadb, arguments.rounds, seconds),
        Some(Command::Redis) => engines::run(&tools, engines::Engine::Redis, arguments.rounds, seconds),
        Some(Command::Cache) => cache::run(&tools, Extent { records: 0, rounds: arguments.rounds, seconds }),
        Some(Command::WriteFirst { messages }) => {
            let records = if arguments.quick { messages / 10 } else { messages };
            write_first::run(&tools, Extent { records, rounds: arguments.rounds, seconds })
        }
        Some(Command::Growth { records }) => {
            run_growth(&tools, Extent { records, rounds: arguments.rounds, seconds })
        }
    }
}

fn run_layer(tools: &Tools, rounds: u32, seconds: u64) -> Result<Verdict> {
    let figures = measure(tools, &LAYER, rounds, seconds)?;
    write(&figures, "latest.json", Part::Measured)
}

fn run_gateway(tools: &Tools, rounds: u32, seconds: u64, keys: u64) -> Result<Verdict> {
    tools.build(PLAIN_PACKAGE).context("the handler behind the gateway does not build")?;
    let mut figures = measure(tools, &GATEWAY, rounds, seconds)?;
    memory::measure(tools, keys, UPLOAD_PROMISED, &mut figures).context("memory")?;
    figures.options = options::measure(tools, rounds, seconds).context("options")?;
    write(&figures, "gateway.json", Part::Gateway)
}

/// The rows of a series and its storms.
fn measure(tools: &Tools, series: &'static Series, rounds: u32, seconds: u64) -> Result<Figures> {
    let mut figures = Figures::new(series, rounds, seconds);
    let subjects = provide(tools, &mut figures)?;
    for round in 0..rounds {
        measure_round(tools, &subjects, round, Duration::from_secs(seconds), &mut figures)
            .with_context(|| format!("round {}", round + 1))?;
    }
    for subject in subjects {
        storm(tools, subject, &mut figures).with_context(|| format!("storm on {}", subject.name))?;
    }
    Ok(figures)
}

fn run_growth(tools: &Tools, extent: Extent) -> Result<Verdict> {
    let results = growth::measure(tools, extent)?;
    write_json("growth.json", &results.json())?;
    write_page(Part::Growth, &results.section())?;
    eprintln!("\nwritten: bench/results/growth.json, docs/performance.md");
    print!("\n{}", results.table());
    Ok(if results.keeps_its_promises() { Verdict::Yes } else { Verdict::No })
}

/// Builds or installs every server. One that cannot be had is reported and left out, except the baseline.
fn provide(tools: &Tools, figures: &mut Figures) -> Result<Vec<&'static Subject>> {
    tools.build("bench-load").context("the load does not build")?;
    let mut subjects = Vec::new();
    for subject in figures.series.subjects {
        match tools.provide(subject.program) {
            Ok(()) => subjects.push(subject),
            Err(error) if subject.name == figures.series.baseline => return Err(error),
            Err(error) => {
                eprintln!("{} is left out: {error:#}", subject.name);
                figures.missing.push((subject, format!("{error:#}")));
            }
        }
    }
    Ok(subjects)
}

/// Each workload on each subject, one after the other. Who begins changes from round to round: the first to run after
/// a pause finds a cooler machine.
fn measure_round(
    tools: &Tools,
    subjects: &[&'static Subject],
    round: u32,
    time: Duration,
    figures: &mut Figures,
) -> Result<()> {
    for workload in figures.series.workloads.iter().copied() {
        let first = round as usize % subjects.len();
        for subject in subjects[first..].iter().chain(&subjects[..first]) {
            let server = Server::start(tools, subject)?;
            let sample =
                load::wrk(&server, subject, Work { workload, run: "run", callers: Callers::Many, time })
                    .with_context(|| format!("{workload} on {}", subject.name))?;
            eprintln!(
                "round {} {workload:<7} {:<20} {:>7.0} RPS  p99 {:>6.2} ms  {:>5.1} µs CPU",
                round + 1,
                subject.name,
                sample.rps,
                sample.p99_ms,
                sample.cpu_us
            );
            figures.add(subject, workload, sample);
        }
    }
    Ok(())
}

fn storm(tools: &Tools, subject: &'static Subject, figures: &mut Figures) -> Result<()> {
    let server = Server::start(tools, subject)?;
    if subject.name != figures.series.baseline {
        let plain = load::storm(tools, &server, subject, STORM, &[])?;
        eprintln!("storm {}: {plain}", subject.name);
        figures.storms.push((subject, plain));
    }
    if subject.is_ours {
        let waiting = load::storm(tools, &server, subject, STORM, &["Prefer: wait=10"])?;
        eprintln!("storm {}, waiting: {waiting}", subject.name);
        figures.waiting_storms.push((subject, waiting));
    }
    // On the plain handler all of them run, which shows what so many open requests cost without any layer. A plain proxy
    // would need twice the connections for them and shows nothing of the kind.
    if subject.is_ours || subject.name == PLAIN {
        let server = Server::start(tools, subject)?;
        let waiters = WAITERS.min(tools.files_max.saturating_sub(200));
        let crowd = load::waiters(tools, &server, subject, waiters, WAITERS_DELAY_MS)?;
        eprintln!("waiters {}: {crowd}", subject.name);
        figures.crowds.push((subject, crowd));
    }
    Ok(())
}

/// Writes what was found, prints it, and says whether the promises were kept.
fn write(figures: &Figures, results: &str, part: Part) -> Result<Verdict> {
    write_json(results, &figures.json())?;
    let chart = format!("docs/{}", figures.series.chart);
    std::fs::write(repository::root().join(&chart), chart::draw(figures))?;
    write_page(part, &page::section(figures))?;
    eprintln!("\nwritten: bench/results/{results}, docs/performance.md, {chart}");
    print!("\n{}", page::table(figures));
    Ok(if figures.keeps_its_promises() { Verdict::Yes } else { Verdict::No })
}

fn write_json(name: &str, json: &Value) -> Result<()> {
    let folder = repository::root().join("bench/results");
    std::fs::create_dir_all(&folder)?;
    Ok(std::fs::write(folder.join(name), serde_json::to_string_pretty(json)? + "\n")?)
}

fn write_page(part: Part, section: &str) -> Result<()> {
    let path = repository::root().join("docs/performance.md");
    let old = std::fs::read_to_string(&path).context("cannot read docs/performance.md")?;
    Ok(std::fs::write(&path, page::replace(&old, part, section)?)?)
}
