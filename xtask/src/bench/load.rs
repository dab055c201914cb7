//! The loads: wrk for the steady ones, `bench-load` for many requests at the very same time.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::figures::Sample;
use super::server::Server;
use super::subjects::Subject;
use super::tools::{Tools, output_within};
use crate::repository;

const CONNECTIONS: &str = "-c64";
const WARM_UP: Duration = Duration::from_secs(1);
/// How long past its own time a load may take to end.
const GRACE: Duration = Duration::from_secs(60);
/// Everything of a storm comes from one caller.
const SESSION: &str = "00000000000000000000AA";

#[derive(Clone, Copy)]
pub(super) struct Storm {
    pub(super) connections: u64,
    pub(super) delay_ms: u64,
    pub(super) rounds: u64,
}

/// One workload on one server: warmed up, then measured.
pub(super) fn wrk(server: &Server, subject: &Subject, workload: &str, time: Duration) -> Result<Sample> {
    // The warm-up of a replay is also what stores the answers.
    let warm_up = if workload == "unique" { "unique" } else { "replay" };
    wrk_once(server, subject, [warm_up, "warm"], WARM_UP)?;
    wrk_once(server, subject, [workload, "run"], time)
}

fn wrk_once(
    server: &Server,
    subject: &Subject,
    [workload, run]: [&str; 2],
    time: Duration,
) -> Result<Sample> {
    let folder = repository::root().join("bench/workload");
    let mut command = Command::new("wrk");
    command.args(["-t2", CONNECTIONS, "--timeout", "10s", &format!("-d{}s", time.as_secs()), "-s"]);
    command.arg(folder.join("keys.lua")).arg(format!("http://{}/payments", server.address));
    command.args(["--", workload, run]).arg(folder.join("body.json")).args(subject.headers);

    let cpu_before = server.cpu_seconds()?;
    let output = output_within(&mut command, time + GRACE)?;
    let cpu_seconds = server.cpu_seconds()? - cpu_before;
    let report = last_line(&output)?;
    let number =
        |name: &str| report[name].as_f64().with_context(|| format!("wrk reported no {name}: {report}"));
    if number("refused")? + number("failed")? > 0.0 {
        bail!("void, not every request was answered with 2xx: {report}");
    }
    Ok(Sample {
        rps: number("rps")?,
        p50_ms: number("p50_ms")?,
        p99_ms: number("p99_ms")?,
        cpu_us: cpu_seconds * 1e6 / number("requests")?,
    })
}

/// All connections at once on one key; with `headers` on top of the subject's own.
pub(super) fn storm(
    tools: &Tools,
    server: &Server,
    subject: &Subject,
    storm: Storm,
    headers: &[&str],
) -> Result<Value> {
    let mut command = loader(tools, "storm", server, storm.connections, storm.delay_ms);
    command.arg(storm.rounds.to_string()).args(own_headers(subject)).args(headers);
    last_line(&output_within(&mut command, GRACE)?)
}

/// Many that wait on one key.
pub(super) fn waiters(
    tools: &Tools,
    server: &Server,
    subject: &Subject,
    count: u64,
    delay_ms: u64,
) -> Result<Value> {
    let mut command = loader(tools, "waiters", server, count, delay_ms);
    command.arg(server.pid().to_string()).args(own_headers(subject)).arg("Prefer: wait=10");
    last_line(&output_within(&mut command, GRACE)?)
}

fn loader(tools: &Tools, verb: &str, server: &Server, connections: u64, delay_ms: u64) -> Command {
    let mut command = tools.command("bench-load");
    command.arg(verb).arg(&server.address).arg(repository::root().join("bench/workload/body.json"));
    command.args([connections.to_string(), delay_ms.to_string()]);
    command
}

fn own_headers(subject: &Subject) -> impl Iterator<Item = String> {
    subject.headers.iter().map(|header| header.replace("%s", SESSION))
}

fn last_line(output: &str) -> Result<Value> {
    let line = output.trim_end().lines().next_back().unwrap_or_default();
    serde_json::from_str(line)
        .with_context(|| format!("the load did not end with its report but with {line:?}"))
}
