//! Logs on standard error, as text or JSON. Keys are in them only as short digests, secrets never.
//!
//! With JSON every line is JSON, also that of a panic and the last word of a program that fails.

use std::io::{self, IsTerminal};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Where keyed requests are told, one line each.
const DECISIONS: &str = "onlyonce::decisions";
/// Whether everything on standard error is to be JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Begins to log. Once a process.
pub(crate) fn start(log: &Log) -> Result<()> {
    let decisions = if log.decisions { String::new() } else { format!(",{DECISIONS}=off") };
    let filter = EnvFilter::try_new(format!("{}{decisions}", log.filter)).with_context(|| {
        format!("log.filter \"{}\" is no filter; write it like info or onlyonce=debug", log.filter)
    })?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match log.format {
        LogFormat::Text => logs.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!(error)).context("something else logs in this process already")?;
    if log.format == LogFormat::Json {
        IS_JSON.store(true, Ordering::Relaxed);
        panic::set_hook(Box::new(|panicked| tracing::error!("{panicked}")));
    }
    Ok(())
}

/// The last word of a program that ends with an error.
pub(crate) fn tell_error(error: &anyhow::Error) {
    if IS_JSON.load(Ordering::Relaxed) {
        tracing::error!("{error:#}");
    } else {
        eprintln!("error: {error:#}");
    }
}
