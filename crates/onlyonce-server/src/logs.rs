//! Logs on standard error, as text or JSON. Keys are in them only as short digests, secrets never.
//!
//! With JSON every line is JSON, also that of a panic and the last word of a program that fails.

mod lines;

use std::io::{self, IsTerminal, Stderr};
use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::lines::Lines;
use crate::config::{Log, LogFormat};

/// Where keyed requests are told, one line each.
const DECISIONS: &str = "onlyonce::decisions";
/// Whether everything on standard error is to be JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);
/// Where the lines go, once something logs.
static LINES: OnceLock<Lines<Stderr>> = OnceLock::new();

/// Begins to log. Once a process.
pub(crate) fn start(log: &Log) -> Result<()> {
    let mut filter = log.filter.parse::<Targets>().with_context(|| {
        format!("log.filter \"{}\" is not a log filter; write it like info or onlyonce=debug", log.filter)
    })?;
    if !log.decisions {
        filter = filter.with_target(DECISIONS, LevelFilter::OFF);
    }
    let lines = Lines::start(io::stderr()).context("the thread that writes the log did not start")?;
    let _ = LINES.set(lines.clone());
    let lines = tracing_subscriber::fmt::layer().with_writer(lines);
    let filtered = tracing_subscriber::registry().with(filter);
    let started = match log.format {
        LogFormat::Text => filtered.with(lines.with_ansi(io::stderr().is_terminal())).try_init(),
        LogFormat::Json => {
            filtered.with(lines.json().flatten_event(true).with_current_span(false)).try_init()
        }
    };
    started.context("another logger is installed in this process")?;
    if log.format == LogFormat::Json {
        IS_JSON.store(true, Ordering::Relaxed);
        panic::set_hook(Box::new(|panicked| tracing::error!("{panicked}")));
    }
    Ok(())
}

/// Writes the lines that still wait, before the process ends.
pub(crate) fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush();
    }
}

/// The last word of a program that ends with an error.
pub(crate) fn tell_error(error: &anyhow::Error) {
    if IS_JSON.load(Ordering::Relaxed) {
        tracing::error!("{error:#}");
    } else {
        eprintln!("error: {error:#}");
    }
}
