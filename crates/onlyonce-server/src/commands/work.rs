//! Work that a gateway does by itself, done without one: once, or again and again until it is stopped.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use onlyonce::{Engine, store as seam};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::failure::Failure;
use super::target::held;
use crate::cli::Work;
use crate::config;
use crate::{Ended, store};

/// What a worker is called for, and what it says.
pub(super) struct Round {
    /// What is done to records, after a number of them: "settled".
    pub(super) done: &'static str,
    /// How often.
    pub(super) every: fn(&config::Work) -> Duration,
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
    if arguments.dry_run {
        let opened = url.open_for_reading().await?;
        let engine = Engine::new(opened.clone());
        let due = plan(&engine).await;
        drop(engine);
        store::close(opened).await?;
        return tell(arguments, due?, &format!("would be {}; nothing was changed", round.done));
    }
    if let Some(holder) = url.holder()? {
        return Err(held(url, &holder, "a gateway does this by itself, so leave it to that process"));
    }
    let opened = url.open_for_changes(settings.expired).await?;
    let engine = Engine::new(opened.clone());
    let done = rounds(arguments, round, &settings, &engine, work).await;
    drop(engine);
    store::close(opened).await?;
    tell(arguments, done?, round.done)
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
                eprintln!("warning: {:#}; tried again at the next round", anyhow::Error::from(error))
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
    states: onlyonce::record::StateSet,
    is_meant: impl Fn(&onlyonce::record::Seen) -> bool,
) -> Result<usize, seam::Error> {
    const PAGE: usize = 500;
    let mut query = seam::Query::due(states, PAGE);
    let mut count = 0;
    loop {
        let page = engine.store().scan(query.clone()).await?;
        count += page.records.iter().filter(|(_, seen)| is_meant(seen)).count();
        let Some(next) = page.next else { return Ok(count) };
        query.after = Some(next);
    }
}
