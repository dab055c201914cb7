//! `cargo xtask bench postgres`: the layer on PostgreSQL beside what one writes by hand, on one server of our own.
//!
//! Besides the rows of the table: what a request costs the server, one caller at a time, two nodes beside one, many
//! records beside few, the reaper at work, and somebody who reads for long elsewhere in the database.

mod results;

use std::time::Duration;

use anyhow::{Context, Result};
use onlyonce_testkit::process::End;
use onlyonce_testkit::verdict::Verdict;
use serde_json::Value;

use self::results::{Cost, Results, SweepTimes, Touched};
use crate::database::{Counts, Database};
use crate::figures::{Figures, Sample};
use crate::growth::{Extent, RECORDS_FEW};
use crate::lines::{self, Pair};
use crate::load::{self, Callers, Work};
use crate::reaping::{self, Load, Reaping};
use crate::server::Server;
use crate::subjects::{HAND_POSTGRES, LAYER_POSTGRES, POSTGRES, Subject};
use crate::tools::{Tools, output_within};
use crate::{STORM, write_json, write_page};

const DAY_SECONDS: u64 = 86_400;
/// A slower server than this is not filled.
const FILLED_PER_SECOND_MIN: u64 = 5_000;
const GRACE: Duration = Duration::from_secs(60);
/// About a hundred records share a page of the primary key's index. After one request for every so many records, few of its
/// pages are untouched.
const RECORDS_PER_TOUCH: u64 = 40;
const TOUCHES_MAX: u32 = 40;
/// One caller is measured so many times as often as the rest: which cores the kernel puts the three processes on moves what
/// it takes by a fifth from run to run.
pub(crate) const ONE_CALLER_ROUNDS: u32 = 5;
const LAYER_PACKAGE: &str = "bench-layer";

/// Everything, written and printed.
pub(crate) fn run(tools: &Tools, extent: Extent) -> Result<Verdict> {
    extent.check()?;
    tools.build("bench-fill")?;
    let figures = crate::measure(tools, &POSTGRES, extent.rounds, extent.seconds)?;
    let results = measure(tools, extent, figures)?;
    write_json("postgres.json", &results.json())?;
    results.draw()?;
    write_page(crate::Part::Postgres, &results.section())?;
    eprintln!("\nwritten: bench/results/postgres.json, docs/performance.md, docs/{}", POSTGRES.chart);
    print!("\n{}", results.table());
    Ok(if results.keeps_its_promises() { Verdict::Yes } else { Verdict::No })
}

fn measure(tools: &Tools, extent: Extent, figures: Figures) -> Result<Results> {
    let bench = Bench { tools, extent, database: tools.database()? };
    let costs = [named(HAND_POSTGRES), named(LAYER_POSTGRES)].map(|subject| bench.cost(subject));
    let [hand, layer] = costs.map(|cost| cost.context("what a request costs"));
    let one_caller = bench.one_caller().context("one caller at a time")?;
    let two_nodes = bench.two_nodes().context("two nodes beside one")?;
    let storm_across = bench.storm_across().context("a storm across two nodes")?;
    let (reader, sweep) = bench.reader().context("somebody who reads for long")?;
    let (sizes, touched) = bench.sizes().context("few records and many")?;
    let reaping = bench.reaping().context("reaping under load")?;
    Ok(Results {
        extent,
        figures,
        hand: hand?,
        layer: layer?,
        one_caller,
        two_nodes,
        storm_across,
        sizes,
        touched,
        reaping,
        reader,
        sweep,
    })
}

struct Bench<'a> {
    tools: &'a Tools,
    extent: Extent,
    database: &'a Database,
}

impl Bench<'_> {
    /// On a new database: what the server counts for a request of many callers, of one, and for a replay.
    fn cost(&self, subject: &'static Subject) -> Result<Cost> {
        let many = self.counted(subject, self.extent.work("unique", "many", Callers::Many))?;
        let one = self.counted(subject, self.extent.work("unique", "one", Callers::One))?;
        let replay = self.counted(subject, self.extent.work("replay", "replay", Callers::Many))?;
        let cost = Cost { many, one, replay };
        eprintln!("cost {}: {cost:?}", subject.name);
        Ok(cost)
    }

    /// What a session has counted is known when it has ended: the server is stopped before each look.
    fn counted(&self, subject: &'static Subject, work: Work<'_>) -> Result<Counts> {
        let name = self.database.fresh();
        let server = self.open(subject, &name, &[])?;
        load::warm_up(&server, subject, work)?;
        server.stop()?;
        self.database.settle(&name)?;
        let before = self.database.counts(&name)?;
        let server = self.open(subject, &name, &[])?;
        let sample = load::wrk_once(&server, subject, work)?;
        server.stop()?;
        self.database.settle(&name)?;
        let counts = self.database.counts(&name)?.each(&before, as_float(sample.requests));
        Ok(Counts { trips: self.trips(subject, work)?, ..counts })
    }

    /// Round trips for a request: counted by a proxy, in a run in which nothing else is measured.
    fn trips(&self, subject: &'static Subject, work: Work<'_>) -> Result<f64> {
        let (name, wire) = (self.database.fresh(), self.database.wire()?);
        let url = self.database.url_by(&wire, &name);
        let server = Server::on_database(self.tools, package(subject), &url, &[])?;
        load::warm_up(&server, subject, work)?;
        let before = wire.trips();
        let sample = load::wrk_once(&server, subject, work)?;
        let trips = wire.trips() - before;
        server.stop()?;
        Ok(as_float(trips) / as_float(sample.requests))
    }

    /// By hand, and by the layer. Who begins changes from round to round.
    fn one_caller(&self) -> Result<Vec<Pair>> {
        let rounds = self.extent.rounds * ONE_CALLER_ROUNDS;
        lines::pairs(rounds, ["one caller, by hand", "one caller, layer"], |round| {
            let run = format!("one-{round}");
            let sample = |name| {
                let server = Server::start(self.tools, named(name))?;
                load::wrk(&server, named(name), self.extent.work("unique", &run, Callers::One))
            };
            if round % 2 == 1 {
                let without = sample(HAND_POSTGRES)?;
                Ok(Pair { without, with: sample(LAYER_POSTGRES)? })
            } else {
                let with = sample(LAYER_POSTGRES)?;
                Ok(Pair { without: sample(HAND_POSTGRES)?, with })
            }
        })
    }

    /// As many callers on one node, and on two.
    fn two_nodes(&self) -> Result<Vec<Pair>> {
        self.rounds(["one node", "two nodes"], |round| {
            let run = format!("nodes-{round}");
            let work = self.extent.work("unique", &run, Callers::Many);
            let without = self.sample(&self.database.fresh(), work, &[])?;
            let nodes = self.nodes()?;
            let with = load::wrk_on_two(&nodes, named(LAYER_POSTGRES), work)?;
            Ok(Pair { without, with })
        })
    }

    /// One key on two nodes at once, and everyone waits for the one that runs it.
    fn storm_across(&self) -> Result<Value> {
        let [first, second] = self.nodes()?;
        let addresses = format!("{},{}", first.address, second.address);
        let storm =
            load::storm_on(self.tools, &addresses, named(LAYER_POSTGRES), STORM, &["Prefer: wait=10"])?;
        eprintln!("storm across two nodes, waiting: {storm}");
        Ok(storm)
    }

    fn nodes(&self) -> Result<[Server; 2]> {
        let name = self.database.fresh();
        let node = || self.open(named(LAYER_POSTGRES), &name, &[]);
        Ok([node()?, node()?])
    }

    /// Few records and many, and what the first requests write that touch a page of the large table's index.
    fn sizes(&self) -> Result<(Vec<Pair>, Touched)> {
        let large = self.filled(self.extent.records, DAY_SECONDS)?;
        let touched = self.touch(&large)?;
        let pairs = self.rounds(["few records", "many records"], |round| {
            let few = self.filled(RECORDS_FEW, DAY_SECONDS)?;
            let run = format!("sizes-{round}");
            let work = self.extent.work("unique", &run, Callers::Many);
            Ok(Pair { without: self.sample(&few, work, &[])?, with: self.sample(&large, work, &[])? })
        })?;
        self.database.drop(&large);
        Ok((pairs, touched))
    }

    /// Requests until nearly every page has been changed since the checkpoint. The first change of a page after a checkpoint
    /// writes the whole page to the WAL: that is what a checkpoint costs, and not what many records cost.
    fn touch(&self, name: &str) -> Result<Touched> {
        let subject = named(LAYER_POSTGRES);
        let server = self.open(subject, name, &[])?;
        let (mut requests, mut first_bytes) = (0, None);
        for number in 0..TOUCHES_MAX {
            let run = format!("touch-{number}");
            let before = self.database.wal_bytes(name)?;
            let sample = load::wrk_once(&server, subject, self.extent.work("unique", &run, Callers::Many))?;
            let bytes = (self.database.wal_bytes(name)? - before) / as_float(sample.requests);
            first_bytes.get_or_insert(bytes);
            requests += sample.requests;
            if requests >= self.extent.records / RECORDS_PER_TOUCH {
                break;
            }
        }
        let before = self.database.wal_bytes(name)?;
        let last = load::wrk_once(&server, subject, self.extent.work("unique", "touched", Callers::Many))?;
        let last_bytes = (self.database.wal_bytes(name)? - before) / as_float(last.requests);
        server.stop()?;
        let touched = Touched { requests, first_bytes: first_bytes.unwrap_or(last_bytes), last_bytes };
        eprintln!("touched: {touched:?}");
        Ok(touched)
    }

    fn reaping(&self) -> Result<Reaping> {
        const LEFT: &str = "
            SELECT count(*) FROM onlyonce_record
            WHERE state = 'completed' AND due_at <= (SELECT clock_timestamp())";
        let name = self.filled(reaping::expired(self.extent.records), 0)?;
        let load = |Load { run, flags, time }: Load<'_>| {
            let work = Work { time, ..self.extent.work("unique", run, Callers::Many) };
            self.sample(&name, work, flags)
        };
        let reaping = reaping::measure(self.extent, load, || self.database.count(&name, LEFT))?;
        self.database.drop(&name);
        Ok(reaping)
    }

    /// The load without and with somebody who reads for long, and what the server could not clear away meanwhile.
    fn reader(&self) -> Result<(Vec<Pair>, SweepTimes)> {
        let mut sweeps = Vec::new();
        let pairs = self.rounds(["nobody reads", "somebody reads"], |round| {
            let run = format!("reader-{round}");
            let work = self.extent.work("unique", &run, Callers::Many);
            let (without, without_ms) = self.with_reader(work, false)?;
            let (with, with_ms) = self.with_reader(work, true)?;
            sweeps.push(SweepTimes { requests: with.requests, without_ms, with_ms });
            Ok(Pair { without, with })
        })?;
        sweeps.sort_by(|one, other| one.with_ms.total_cmp(&other.with_ms));
        Ok((pairs, sweeps[sweeps.len() / 2]))
    }

    /// The load, and how long it takes afterwards to find what has lapsed.
    fn with_reader(&self, work: Work<'_>, reads: bool) -> Result<(Sample, f64)> {
        let name = self.database.fresh();
        let server = self.open(named(LAYER_POSTGRES), &name, &[])?;
        let _reader = reads.then(|| self.database.reader(&name)).transpose()?;
        let sample = load::wrk(&server, named(LAYER_POSTGRES), work)?;
        server.stop()?;
        Ok((sample, self.database.sweep_ms(&name)?))
    }

    /// A database with so many records, at rest.
    fn filled(&self, records: u64, retention_seconds: u64) -> Result<String> {
        let name = self.database.fresh();
        let mut command = self.tools.command(&self.tools.binary("bench-fill"), End::Kill);
        command.arg("copy").arg(self.database.url(&name));
        command.args([records, retention_seconds].map(|number| number.to_string()));
        let time = Duration::from_secs(records / FILLED_PER_SECOND_MIN) + GRACE;
        let filled = load::last_line(&output_within(&mut command, time)?)?;
        if records > RECORDS_FEW {
            eprintln!("filled: {filled}");
        }
        Ok(name)
    }

    fn sample(&self, name: &str, work: Work<'_>, flags: &[&str]) -> Result<Sample> {
        let subject = named(LAYER_POSTGRES);
        let server = self.open(subject, name, flags)?;
        let sample = load::wrk(&server, subject, work)?;
        server.stop()?;
        Ok(sample)
    }

    fn open(&self, subject: &Subject, name: &str, flags: &[&str]) -> Result<Server> {
        Server::on_database(self.tools, package(subject), &self.database.url(name), flags)
    }

    fn rounds(&self, names: [&str; 2], measure: impl FnMut(u32) -> Result<Pair>) -> Result<Vec<Pair>> {
        lines::pairs(self.extent.rounds, names, measure)
    }
}

fn package(subject: &Subject) -> &'static str {
    if subject.is_ours { LAYER_PACKAGE } else { "bench-hand-postgres" }
}

fn named(name: &str) -> &'static Subject {
    POSTGRES.named(name)
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn as_float(number: u64) -> f64 {
    number as f64
}
