//! The loads: wrk for the steady ones, `bench-load` for many requests at the very same time.

use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use onlyonce_testkit::process::End;
use onlyonce_testkit::repository;
use serde_json::Value;

use crate::figures::Sample;
use crate::server::Server;
use crate::subjects::Subject;
use crate::tools::{Tools, output_within};

const WARM_UP: Duration = Duration::from_secs(1);
/// Two threads of wrk, each twice through the thousand keys that are replayed.
const WARM_REQUESTS_MIN: u64 = 4_000;
const WARM_UPS_MAX: u32 = 20;
/// How long past its own time a load may take to end.
const GRACE: Duration = Duration::from_secs(60);
/// A slower server than this is not measured.
const UPLOADED_WITHIN: Duration = Duration::from_secs(300);
/// Everything of a storm comes from one caller.
const SESSION: &str = "00000000000000000000AA";

/// How many send at once.
#[derive(Clone, Copy)]
pub(crate) enum Callers {
    One,
    /// On each of two nodes.
    Half,
    Many,
}

impl Callers {
    fn options(self) -> [&'static str; 2] {
        match self {
            Self::One => ["-t1", "-c1"],
            Self::Half => ["-t1", "-c32"],
            Self::Many => ["-t2", "-c64"],
        }
    }
}

/// What wrk sends, and for how long.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) workload: &'a str,
    /// Text that no other run on this store has used.
    pub(crate) run: &'a str,
    pub(crate) callers: Callers,
    pub(crate) time: Duration,
}

#[derive(Clone, Copy)]
pub(crate) struct Storm {
    pub(crate) connections: u64,
    pub(crate) delay_ms: u64,
    pub(crate) rounds: u64,
}

/// One workload on one server: warmed up, then measured.
pub(crate) fn wrk(server: &Server, subject: &Subject, work: Work<'_>) -> Result<Sample> {
    warm_up(server, subject, work)?;
    wrk_once(server, subject, work)
}

/// The warm-up of a replay is also what stores the answers: it is repeated until it must have gone through all keys more
/// than once, which takes a slow store several goes. Until then a duplicate may well be refused.
pub(crate) fn warm_up(server: &Server, subject: &Subject, work: Work<'_>) -> Result<()> {
    let run = format!("{}-warm", work.run);
    let work = Work { run: &run, time: WARM_UP, ..work };
    // These leave nothing behind that what follows needs.
    if matches!(work.workload, "unique" | "unkeyed") {
        return wrk_once(server, subject, work).map(drop);
    }
    for _ in 0..WARM_UPS_MAX {
        let (sample, _) = report(server, subject, Work { workload: "replay", ..work })?;
        if sample.requests >= WARM_REQUESTS_MIN {
            return Ok(());
        }
    }
    bail!("the store is too slow: its answers were not stored within {WARM_UPS_MAX} warm-ups");
}

/// Without a warm-up. Once more where nothing was answered at all, as when the whole machine stands still for a while: that says
/// nothing about the server.
pub(crate) fn wrk_once(server: &Server, subject: &Subject, work: Work<'_>) -> Result<Sample> {
    let (mut sample, mut void) = report(server, subject, work)?;
    if sample.requests == 0 {
        eprintln!("void, no request was answered in {:?}; measured once more", work.time);
        let run = format!("{}-again", work.run);
        (sample, void) = report(server, subject, Work { run: &run, ..work })?;
    }
    match void {
        None if sample.requests == 0 => bail!("void, no request was answered in {:?}, twice", work.time),
        None => Ok(sample),
        Some(report) => bail!("void, not every request was answered with 2xx: {report}"),
    }
}

/// What wrk reported; once more as it came where that was not 2xx for every request.
fn report(server: &Server, subject: &Subject, work: Work<'_>) -> Result<(Sample, Option<Value>)> {
    let mut command = wrk_command(server, subject, work);
    let cpu_before = server.cpu_seconds()?;
    let output = output_within(&mut command, work.time + GRACE)?;
    let cpu_seconds = server.cpu_seconds()? - cpu_before;
    let report = last_line(&output)?;
    let number =
        |name: &str| report[name].as_f64().with_context(|| format!("wrk reported no {name}: {report}"));
    let sample = Sample {
        rps: number("rps")?,
        p50_ms: number("p50_ms")?,
        p99_ms: number("p99_ms")?,
        cpu_us: cpu_seconds * 1e6 / number("requests")?,
        requests: report["requests"]
            .as_u64()
            .with_context(|| format!("wrk reported no requests: {report}"))?,
    };
    let is_void = number("refused")? + number("failed")? > 0.0;
    Ok((sample, is_void.then_some(report)))
}

/// The callers shared out among two nodes on one database, whose CPU time counts once. The slower of the two says what is
/// slow.
pub(crate) fn wrk_on_two(nodes: &[Server; 2], subject: &Subject, work: Work<'_>) -> Result<Sample> {
    let runs = [0, 1].map(|node| format!("{}-{node}", work.run));
    let work = |node: usize| Work { run: &runs[node], callers: Callers::Half, ..work };
    for (number, node) in nodes.iter().enumerate() {
        warm_up(node, subject, work(number))?;
    }
    let cpu_seconds = || Ok::<f64, anyhow::Error>(nodes[0].cpu_seconds()? + nodes[1].own_cpu_seconds()?);
    let cpu_before = cpu_seconds()?;
    let [first, second] = std::thread::scope(|scope| {
        let load = |number: usize| {
            let (node, work) = (&nodes[number], work(number));
            scope.spawn(move || wrk_once(node, subject, work))
        };
        [load(0), load(1)].map(|load| load.join().expect("a load does not panic"))
    });
    let (first, second, cpu_seconds) = (first?, second?, cpu_seconds()? - cpu_before);
    let requests = first.requests + second.requests;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let cpu_us = cpu_seconds * 1e6 / requests as f64;
    Ok(Sample {
        rps: first.rps + second.rps,
        p50_ms: first.p50_ms.max(second.p50_ms),
        p99_ms: first.p99_ms.max(second.p99_ms),
        cpu_us,
        requests,
    })
}

/// Kills the server after half of the time, under load, and gives back once the load has ended too.
pub(crate) fn kill_under_load(server: Server, subject: &Subject, work: Work<'_>) {
    let mut command = wrk_command(&server, subject, work);
    std::thread::scope(|scope| {
        // What it reports is void: its server dies.
        let load = scope.spawn(move || drop(output_within(&mut command, work.time + GRACE)));
        std::thread::sleep(work.time / 2);
        drop(server);
        load.join().expect("a load does not panic");
    });
}

fn wrk_command(server: &Server, subject: &Subject, work: Work<'_>) -> Command {
    let folder = repository::root().join("bench/workload");
    let mut command = Command::new("wrk");
    command.args(work.callers.options()).args([
        "--timeout",
        "10s",
        &format!("-d{}s", work.time.as_secs()),
        "-s",
    ]);
    command.arg(folder.join("keys.lua")).arg(format!("http://{}/payments", server.address));
    command.args(["--", work.workload, work.run]).arg(folder.join("body.json")).args(timed(subject));
    command
}

/// All connections at once on one key; with `headers` on top of the subject's own.
pub(crate) fn storm(
    tools: &Tools,
    server: &Server,
    subject: &Subject,
    storm: Storm,
    headers: &[&str],
) -> Result<Value> {
    storm_on(tools, &server.address, subject, storm, headers)
}

/// The same on several servers in turn, with commas between their addresses.
pub(crate) fn storm_on(
    tools: &Tools,
    addresses: &str,
    subject: &Subject,
    storm: Storm,
    headers: &[&str],
) -> Result<Value> {
    let mut command = crowd(tools, "storm", addresses, storm.connections, storm.delay_ms);
    command.arg(storm.rounds.to_string()).args(own_headers(subject)).args(headers);
    last_line(&output_within(&mut command, GRACE)?)
}

/// Many that wait on one key.
pub(crate) fn waiters(
    tools: &Tools,
    server: &Server,
    subject: &Subject,
    count: u64,
    delay_ms: u64,
) -> Result<Value> {
    let mut command = crowd(tools, "waiters", &server.address, count, delay_ms);
    command.arg(server.pid().to_string()).args(own_headers(subject)).arg("Prefer: wait=10");
    last_line(&output_within(&mut command, GRACE)?)
}

/// A body of so many bytes, without a key, and what the server holds meanwhile.
pub(crate) fn upload(tools: &Tools, server: &Server, subject: &Subject, bytes: u64) -> Result<Value> {
    let mut command = loader(tools, "upload", &server.address);
    command.args([bytes.to_string(), server.pid().to_string()]).args(own_headers(subject));
    last_line(&output_within(&mut command, UPLOADED_WITHIN)?)
}

fn loader(tools: &Tools, verb: &str, address: &str) -> Command {
    let mut command = tools.command(&tools.binary("bench-load"), End::Kill);
    command.arg(verb).arg(address);
    command
}

/// Payments, many at once.
fn crowd(tools: &Tools, verb: &str, address: &str, connections: u64, delay_ms: u64) -> Command {
    let mut command = loader(tools, verb, address);
    command.arg(repository::root().join("bench/workload/body.json"));
    command.args([connections.to_string(), delay_ms.to_string()]);
    command
}

fn own_headers(subject: &Subject) -> impl Iterator<Item = String> {
    timed(subject).map(|header| header.replace("%s", SESSION))
}

/// The headers of a subject, with the time in them.
fn timed(subject: &Subject) -> impl Iterator<Item = String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    subject.headers.iter().map(move |header| header.replace("{now}", &now.to_string()))
}

/// The report that a load ends with.
pub(crate) fn last_line(output: &str) -> Result<Value> {
    let line = output.trim_end().lines().next_back().unwrap_or_default();
    serde_json::from_str(line)
        .with_context(|| format!("the load did not end with its report but with {line:?}"))
}
