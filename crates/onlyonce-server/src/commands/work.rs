//! Work that a gateway does by itself, done without one: once, or again and again until it is stopped.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use onlyonce::record::{Seen, StateSet};
use onlyonce::{Engine, machine, store as seam};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::failure::Failure;
use super::target::{PAGE, held};
use crate::cli::Work;
use crate::config;
use crate::{Ended, store};

/// What a worker is called for, and what it says.
pub(super) struct Round {
    /// What is done to records, after a number of them: "settled".
    pub(super) done: &'static str,
    /// How often.
    pub(super) every: fn(&config::Work) -> Duration,
    /// Whether taking a file does a part of it: what a killed process left running is settled then.
    pub(super) begins_with_taking: bool,
}

/// Runs a worker: `plan` counts what is due, `work` does it and says how much it was.
pub(super) async fn run(
    arguments: &Work,
    round: &Round,
    plan: impl AsyncFn(&Engine) -> Result<usize, seam::Error>,
    work: impl AsyncFn(&Engine, &config::Work) -> Result<usize, seam::Error>,
) -> Result<Ended, Failure> {
    let settings = config::work(&arguments.sources())?;
    let url = &settings.store;
    let holder = url.holder()?;
    let is_taken = round.begins_with_taking && url.has_one_owner() && holder.is_none();
    let abandoned = if is_taken { reading(&settings, left_running).await? } else { 0 };
    if arguments.dry_run {
        let due = abandoned + reading(&settings, plan).await?;
        return tell(arguments, due, &format!("would be {}; nothing was changed", round.done));
    }
    if let Some(holder) = holder {
        return Err(held(url, &holder, "a gateway does this itself, so leave it to that process"));
    }
    let opened = url.open_for_changes(settings.expired, settings.encryption.as_ref()).await?;
    let engine = Engine::new(opened.clone());
    let done = rounds(arguments, round, &settings, &engine, work).await;
    drop(engine);
    store::close(opened).await?;
    tell(arguments, abandoned + done?, round.done)
}

/// Counts something in a store that is only read.
async fn reading(
    settings: &config::Work,
    count: impl AsyncFn(&Engine) -> Result<usize, seam::Error>,
) -> Result<usize, Failure> {
    let opened = settings.store.open_for_reading(settings.encryption.as_ref()).await?;
    let engine = Engine::new(opened.clone());
    let counted = count(&engine).await;
    drop(engine);
    store::close(opened).await?;
    Ok(counted?)
}

/// How many attempts a process that is gone has left, whose lease may still live.
async fn left_running(engine: &Engine) -> Result<usize, seam::Error> {
    let all = seam::Query { states: machine::ABANDONED, ..seam::Query::all(PAGE) };
    count(engine, all, |seen| machine::sweep(seen).is_none()).await
}

async fn rounds(
    arguments: &Work,
    round: &Round,
    settings: &config::Work,
    engine: &Arc<Engine>,
    work: impl AsyncFn(&Engine, &config::Work) -> Result<usize, seam::Error>,
) -> Result<usize, Failure> {
    if arguments.once {
        return Ok(work(engine, settings).await?);
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut all = 0;
    loop {
        match work(engine, settings).await {
            Ok(0) => {}
            Ok(done) => {
                all += done;
                eprintln!("{} {}", records(done), round.done);
            }
            Err(error) => {
                eprintln!("warning: {:#}; tried again at the next round", anyhow::Error::from(error));
            }
        }
        tokio::select! {
            () = sleep((round.every)(settings)) => {}
            _ = terminate.recv() => return Ok(all),
            interrupted = tokio::signal::ctrl_c() => return Ok(interrupted.map(|()| all)?),
        }
    }
}

fn tell(arguments: &Work, count: usize, done: &str) -> Result<Ended, Failure> {
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", json!({ "done": count }))?;
    } else {
        writeln!(out, "{} {done}", records(count))?;
    }
    Ok(Ended::Yes)
}

fn records(count: usize) -> String {
    if count == 1 { "1 record".to_owned() } else { format!("{count} records") }
}

/// How many records are due in these states of which `is_meant` holds.
pub(super) async fn count_due(
    engine: &Engine,
    states: StateSet,
    is_meant: impl Fn(&Seen) -> bool,
) -> Result<usize, seam::Error> {
    count(engine, seam::Query::due(states, PAGE), is_meant).await
}

async fn count(
    engine: &Engine,
    mut query: seam::Query,
    is_meant: impl Fn(&Seen) -> bool,
) -> Result<usize, seam::Error> {
    let mut count = 0;
    loop {
        let page = engine.store().scan(query.clone()).await?;
        count += page.records.iter().filter(|(_, seen)| is_meant(seen)).count();
        let Some(next) = page.next else { return Ok(count) };
        query.after = Some(next);
    }
}
