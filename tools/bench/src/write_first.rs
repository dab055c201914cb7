//! `cargo xtask bench write-first`: a handler whose record commits with its row, and the relay, each beside what one writes by
//! hand, on one PostgreSQL of our own.

mod results;

use std::time::Duration;

use anyhow::{Context, Result};
use onlyonce_testkit::process::End;
use onlyonce_testkit::verdict::Verdict;
use serde_json::Value;

use self::results::{Results, Sides};
use crate::database::Database;
use crate::figures::Sample;
use crate::growth::Extent;
use crate::lines::{self, Pair};
use crate::load::{self, Callers};
use crate::page::Part;
use crate::postgres::{ONE_CALLER_ROUNDS, as_float};
use crate::server::Server;
use crate::subjects::{HAND_POSTGRES, LAYER_POSTGRES, POSTGRES};
use crate::tools::{Tools, output_within};
use crate::{write_json, write_page};

/// What a large backlog is compared with; enough for the claims that are timed.
pub(crate) const MESSAGES_FEW: u64 = 1_000;
/// More than anybody delivers.
const MESSAGES_PER_SECOND: u64 = 25_000;
/// A slower server than this is not filled.
const FILLED_PER_SECOND_MIN: u64 = 2_000;
const GRACE: Duration = Duration::from_secs(60);
const RELAY_PACKAGE: &str = "bench-relay";

/// A server whose handler does all of it in one transaction.
struct Way {
    /// Whose requests it is sent.
    subject: &'static str,
    package: &'static str,
    flag: &'static str,
}

const HAND: Way = Way { subject: HAND_POSTGRES, package: "bench-hand-postgres", flag: "--one-transaction" };
const OURS: Way = Way { subject: LAYER_POSTGRES, package: "bench-layer", flag: "--write-first" };

/// Everything, written and printed. The records of the extent are the messages of the large backlog.
pub(crate) fn run(tools: &Tools, extent: Extent) -> Result<Verdict> {
    extent.check()?;
    for package in [HAND.package, OURS.package, RELAY_PACKAGE] {
        tools.build(package)?;
    }
    let bench = Bench { tools, extent, database: tools.database()? };
    let results = Results {
        extent,
        trips: bench.trips().context("round trips")?,
        one_caller: bench.requests(Callers::One).context("one caller at a time")?,
        many_callers: bench.requests(Callers::Many).context("many callers")?,
        relay: bench.relay().context("the relay")?,
        claim: bench.claim().context("a claim")?,
    };
    write_json("write-first.json", &results.json())?;
    write_page(Part::WriteFirst, &results.section())?;
    eprintln!("\nwritten: bench/results/write-first.json, docs/performance.md");
    print!("\n{}", results.table());
    Ok(if results.keeps_its_promises() { Verdict::Yes } else { Verdict::No })
}

struct Bench<'a> {
    tools: &'a Tools,
    extent: Extent,
    database: &'a Database,
}

impl Bench<'_> {
    /// By hand, and by the layer. Who begins changes from round to round.
    fn requests(&self, callers: Callers) -> Result<Vec<Pair>> {
        let (rounds, who) = match callers {
            Callers::One => (self.extent.rounds * ONE_CALLER_ROUNDS, "one caller"),
            Callers::Half | Callers::Many => (self.extent.rounds, "many callers"),
        };
        let names = ["by hand", "write first"].map(|name| format!("{who}, {name}"));
        lines::pairs(rounds, [&names[0], &names[1]], |round| {
            let run = format!("{}-{round}", who.replace(' ', "-"));
            let [without, with] = in_turn(round, [&HAND, &OURS], |way| self.sample(way, &run, callers))?;
            Ok(Pair { without, with })
        })
    }

    fn sample(&self, way: &Way, run: &str, callers: Callers) -> Result<Sample> {
        let server = self.open(way, &self.database.url(&self.database.fresh_for_one()))?;
        load::wrk(&server, POSTGRES.named(way.subject), self.extent.work("unique", run, callers))
    }

    /// Round trips for a request of one caller.
    fn trips(&self) -> Result<Sides> {
        let count = |way: &Way| -> Result<f64> {
            let (name, wire) = (self.database.fresh(), self.database.wire()?);
            let server = self.open(way, &self.database.url_by(&wire, &name))?;
            let (subject, work) =
                (POSTGRES.named(way.subject), self.extent.work("unique", "trips", Callers::One));
            load::warm_up(&server, subject, work)?;
            let before = wire.trips();
            let sample = load::wrk_once(&server, subject, work)?;
            let trips = as_float(wire.trips() - before);
            server.stop()?;
            self.database.drop(&name);
            Ok(trips / as_float(sample.requests))
        };
        let trips = Sides { without: count(&HAND)?, with: count(&OURS)? };
        eprintln!("round trips: {trips:?}");
        Ok(trips)
    }

    fn open(&self, way: &Way, url: &str) -> Result<Server> {
        Server::on_database(self.tools, way.package, url, &[way.flag])
    }

    /// Messages a second: by hand, and by the relay.
    fn relay(&self) -> Result<Vec<Sides>> {
        let seconds = self.extent.seconds;
        let messages = (seconds + 1) * MESSAGES_PER_SECOND;
        let rate = |verb| {
            number(&self.program(verb, messages, &[seconds])?, "per_second")
                .with_context(|| format!("{verb:?}"))
        };
        self.sides("messages a second", |round| in_turn(round, ["hand", "onlyonce"], rate))
    }

    /// Milliseconds a claim: with few messages waiting, and with many.
    fn claim(&self) -> Result<Vec<Sides>> {
        let claim = |messages| number(&self.program("claim", messages, &[])?, "claim_ms");
        self.sides("ms a claim", |round| in_turn(round, [MESSAGES_FEW, self.extent.records], claim))
    }

    fn sides(&self, what: &str, measure: impl Fn(u32) -> Result<[f64; 2]>) -> Result<Vec<Sides>> {
        let round = |round| {
            let [without, with] = measure(round)?;
            eprintln!("round {round} {what}: {without:.2}, {with:.2}");
            Ok(Sides { without, with })
        };
        (1..=self.extent.rounds).map(round).collect()
    }

    /// What `bench-relay` tells, on a new database.
    fn program(&self, verb: &str, messages: u64, more: &[u64]) -> Result<Value> {
        let name = self.database.fresh();
        let mut command = self.tools.command(&self.tools.binary(RELAY_PACKAGE), End::Kill);
        command.arg(verb).arg(self.database.url(&name)).arg(messages.to_string());
        command.args(more.iter().map(u64::to_string));
        let time = Duration::from_secs(messages / FILLED_PER_SECOND_MIN + self.extent.seconds) + GRACE;
        let told = load::last_line(&output_within(&mut command, time)?);
        self.database.drop(&name);
        told
    }
}

/// Both, the second first in every other round.
fn in_turn<A: Copy, T>(
    round: u32,
    [first, second]: [A; 2],
    measure: impl Fn(A) -> Result<T>,
) -> Result<[T; 2]> {
    if round % 2 == 1 {
        let first = measure(first)?;
        Ok([first, measure(second)?])
    } else {
        let second = measure(second)?;
        Ok([measure(first)?, second])
    }
}

fn number(told: &Value, name: &str) -> Result<f64> {
    told[name].as_f64().with_context(|| format!("no {name} in {told}"))
}
