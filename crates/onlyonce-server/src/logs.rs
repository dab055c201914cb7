//! Logs on standard error, as text or JSON. Keys are in them only as short digests, secrets never.

use std::io::{self, IsTerminal};

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Begins to log. Once a process.
pub(crate) fn start(log: &Log) -> Result<()> {
    let filter = EnvFilter::try_new(&log.filter).with_context(|| {
        format!("log.filter \"{}\" is no filter; write it like info or onlyonce=debug", log.filter)
    })?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match log.format {
        LogFormat::Text => logs.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!(error)).context("something else logs in this process already")
}
