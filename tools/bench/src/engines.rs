//! `cargo xtask bench mysql` and `cargo xtask bench redis`: the layer on that engine beside what one writes by hand for it, on one
//! server of our own.
//!
//! Besides the rows of the table: what a request costs the server, and one caller at a time.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::Verdict;
use onlyonce_testkit::wire::Wire;
use serde_json::Value;

use crate::figures::{Figures, Standing};
use crate::lines::{self, Bound, Line, Pair, spread_words};
use crate::load::{self, Callers, Work};
use crate::page::{self, Part};
use crate::postgres::{ONE_CALLER_ROUNDS, as_float};
use crate::server::{Server, written_bytes};
use crate::subjects::{MARIADB, Program, REDIS, Series, Subject};
use crate::tools::{Fresh, Tools};
use crate::{chart, write_json, write_page};

/// The workers look at the store from time to time, beside what requests ask for.
const TRIPS: Bound = Bound::AtMost { floor: 2.1, goal: 2.1 };
/// Of the time that Redis itself counts for its commands.
const REDIS_US: Bound = Bound::AtMost { floor: 12.0, goal: 12.0 };

#[derive(Clone, Copy)]
pub(crate) enum Engine {
    Mariadb,
    Redis,
}

/// What a fresh request costs the server.
struct Cost {
    /// Bytes that the server wrote to disks: of many callers at once, and of one.
    many_bytes: f64,
    one_bytes: f64,
    /// Round trips, of one caller: those of many share theirs.
    one_trips: f64,
    /// Microseconds inside the commands of Redis, of many callers.
    inside_us: Option<f64>,
    /// What Redis holds in memory for a record.
    record_bytes: Option<f64>,
}

/// Everything, written and printed.
pub(crate) fn run(tools: &Tools, engine: Engine, rounds: u32, seconds: u64) -> Result<Verdict> {
    let series = engine.series();
    let figures = crate::measure(tools, series, rounds, seconds)?;
    let bench = Bench { tools, engine, rounds, time: Duration::from_secs(seconds) };
    let [hand, layer] = [0, 1].map(|index| bench.cost(&series.subjects[index]));
    let (hand, layer) = (hand.context("what a request costs")?, layer.context("what a request costs")?);
    let one_caller = bench.one_caller().context("one caller at a time")?;
    let lines = engine.lines(&hand, &layer, &one_caller);
    let name = engine.name();
    write_json(&format!("{name}.json"), &as_json(&figures, &lines, &one_caller))?;
    std::fs::write(repository::root().join("docs").join(series.chart), chart::draw(&figures))?;
    let section = format!("{}\n{}", page::section(&figures), lines::section("besides", &lines));
    write_page(engine.part(), &section)?;
    eprintln!("\nwritten: bench/results/{name}.json, docs/performance.md, docs/{}", series.chart);
    print!("\n{}{}", page::table(&figures), lines::table(&lines));
    let is_kept =
        figures.keeps_its_promises() && !lines.iter().any(|line| line.standing == Standing::ShortOfPromise);
    Ok(if is_kept { Verdict::Yes } else { Verdict::No })
}

fn as_json(figures: &Figures, lines: &[Line], one_caller: &[Pair]) -> Value {
    let mut json = figures.json();
    json["besides"] = lines.iter().map(Line::json).collect();
    json["one_caller"] = one_caller.iter().map(Pair::json).collect();
    json
}

impl Engine {
    fn series(self) -> &'static Series {
        match self {
            Self::Mariadb => &MARIADB,
            Self::Redis => &REDIS,
        }
    }

    fn part(self) -> Part {
        match self {
            Self::Mariadb => Part::Mariadb,
            Self::Redis => Part::Redis,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Mariadb => "mariadb",
            Self::Redis => "redis",
        }
    }

    /// How long one caller may take, to what is written by hand.
    fn one_caller_max(self) -> f64 {
        match self {
            Self::Mariadb => 1.15,
            Self::Redis => 1.2,
        }
    }

    fn lines(self, hand: &Cost, layer: &Cost, one_caller: &[Pair]) -> Vec<Line> {
        let most = self.one_caller_max();
        let ratio = lines::ratios(one_caller, |sample| sample.p50_ms);
        let one_caller = ratio.map(|ratio| Line {
            what: "one caller at a time: p50 to by hand".to_owned(),
            measured: spread_words(ratio, 2),
            target: format!("≤ {most}"),
            standing: Bound::AtMost { floor: most, goal: most }.standing(ratio.median),
        });
        let beside = |what: &str, of: fn(&Cost) -> f64, digits: usize| Line {
            what: what.to_owned(),
            measured: format!("{:.digits$} (by hand {:.digits$})", of(layer), of(hand)),
            target: String::new(),
            standing: Standing::Shown,
        };
        let trips = Line {
            target: "2".to_owned(),
            standing: TRIPS.standing(layer.one_trips),
            ..beside("round trips for a fresh request, one caller", |cost| cost.one_trips, 2)
        };
        let inside = layer.inside_us.zip(hand.inside_us).map(|(layer, hand)| Line {
            what: "µs inside the commands of Redis, a fresh request".to_owned(),
            measured: format!("{layer:.1} (by hand {hand:.1})"),
            target: "≤ 12".to_owned(),
            standing: REDIS_US.standing(layer),
        });
        let record = layer.record_bytes.zip(hand.record_bytes).map(|(layer, hand)| Line {
            what: "bytes that Redis holds in memory for a record".to_owned(),
            measured: format!("{layer:.0} (by hand {hand:.0})"),
            target: String::new(),
            standing: Standing::Shown,
        });
        let lines = [
            trips,
            beside("bytes written to disk for a fresh request, 64 callers", |cost| cost.many_bytes, 0),
            beside("the same, one caller", |cost| cost.one_bytes, 0),
        ];
        one_caller.into_iter().chain(lines).chain(inside).chain(record).collect()
    }
}

struct Bench<'a> {
    tools: &'a Tools,
    engine: Engine,
    rounds: u32,
    time: Duration,
}

impl Bench<'_> {
    fn work<'w>(&self, run: &'w str, callers: Callers) -> Work<'w> {
        Work { workload: "unique", run, callers, time: self.time }
    }

    fn cost(&self, subject: &'static Subject) -> Result<Cost> {
        let (many_bytes, _) = self.written(subject, self.work("many", Callers::Many))?;
        let (one_bytes, _) = self.written(subject, self.work("one", Callers::One))?;
        let (inside_us, record_bytes) = match self.engine {
            Engine::Mariadb => (None, None),
            Engine::Redis => self.inside_redis(subject)?,
        };
        let one_trips = self.trips(subject)?;
        Ok(Cost { many_bytes, one_bytes, one_trips, inside_us, record_bytes })
    }

    /// Bytes that the server wrote to disks for a request, and how many requests there were.
    fn written(&self, subject: &'static Subject, work: Work<'_>) -> Result<(f64, u64)> {
        let store = self.fresh(subject)?;
        let server = Server::on(self.tools, package(subject), &store, &[])?;
        load::warm_up(&server, subject, work)?;
        let before = written_bytes(store.pid)?;
        let sample = load::wrk_once(&server, subject, work)?;
        let bytes = written_bytes(store.pid)? - before;
        server.stop()?;
        Ok((as_float(bytes) / as_float(sample.requests), sample.requests))
    }

    /// Microseconds in commands for a request, and bytes in memory for a record, as Redis counts them.
    fn inside_redis(&self, subject: &'static Subject) -> Result<(Option<f64>, Option<f64>)> {
        let redis = self.tools.redis()?;
        let server = Server::on(self.tools, package(subject), &self.fresh(subject)?, &[])?;
        load::warm_up(&server, subject, self.work("inside", Callers::Many))?;
        redis.command(&["CONFIG", "RESETSTAT"]);
        let memory = || info(&redis.command(&["INFO", "memory"]), "used_memory:");
        let before = memory()?;
        let sample = load::wrk_once(&server, subject, self.work("inside", Callers::Many))?;
        let bytes = memory()? - before;
        let told = redis.command(&["INFO", "commandstats"]);
        // Requests call `GETRANGE` in the script only, whose own time has it already. So does it have the script's `SET`, which is
        // counted twice: some 0.3 µs.
        let micros = told
            .lines()
            .filter(|line| !line.starts_with("cmdstat_getrange:"))
            .filter_map(|line| line.split_once(",usec=")?.1.split(',').next()?.parse::<f64>().ok());
        let micros: f64 = micros.sum();
        server.stop()?;
        let requests = as_float(sample.requests);
        Ok((Some(micros / requests), Some(bytes / requests)))
    }

    /// Round trips for a request of one caller: counted by a proxy, in a run in which nothing else is measured.
    fn trips(&self, subject: &'static Subject) -> Result<f64> {
        let store = self.fresh(subject)?;
        let port = match self.engine {
            Engine::Mariadb => self.tools.mariadb()?.port(),
            Engine::Redis => self.tools.redis()?.port(),
        };
        let wire = Wire::to(port).map_err(|reason| anyhow!(reason))?;
        let [direct, by_wire] = [port, wire.address().port()].map(|port| format!(":{port}/"));
        let store = Fresh { url: store.url.replacen(&direct, &by_wire, 1), ..store };
        let server = Server::on(self.tools, package(subject), &store, &[])?;
        let work = self.work("trips", Callers::One);
        load::warm_up(&server, subject, work)?;
        let before = wire.trips();
        let sample = load::wrk_once(&server, subject, work)?;
        let trips = wire.trips() - before;
        server.stop()?;
        Ok(as_float(trips) / as_float(sample.requests))
    }

    /// By hand, and by the layer. Who begins changes from round to round.
    fn one_caller(&self) -> Result<Vec<Pair>> {
        let [hand, layer] = [0, 1].map(|index| &self.engine.series().subjects[index]);
        lines::pairs(self.rounds * ONE_CALLER_ROUNDS, ["one caller, by hand", "one caller, layer"], |round| {
            let run = format!("one-{round}");
            let sample = |subject| {
                let server = Server::start(self.tools, subject)?;
                load::wrk(&server, subject, self.work(&run, Callers::One))
            };
            if round % 2 == 1 {
                let without = sample(hand)?;
                Ok(Pair { without, with: sample(layer)? })
            } else {
                let with = sample(layer)?;
                Ok(Pair { without: sample(hand)?, with })
            }
        })
    }

    fn fresh(&self, subject: &Subject) -> Result<Fresh> {
        match subject.program {
            Program::Handler { place, .. } => self.tools.fresh(place),
            Program::Proxy { .. } | Program::Nginx | Program::Gateway { .. } => {
                unreachable!("the series of an engine has handlers only")
            }
        }
    }
}

fn package(subject: &Subject) -> &'static str {
    match subject.program {
        Program::Handler { package, .. } => package,
        Program::Proxy { .. } | Program::Nginx | Program::Gateway { .. } => {
            unreachable!("the series of an engine has handlers only")
        }
    }
}

/// A number in what Redis tells of itself.
fn info(told: &str, name: &str) -> Result<f64> {
    let value = told.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.with_context(|| format!("no {name} in {told:?}"))
}
