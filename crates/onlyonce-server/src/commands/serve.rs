//! `onlyonce serve`: runs the gateway until it is stopped.
//!
//! | signal | what happens |
//! |---|---|
//! | SIGTERM, SIGINT | stop accepting, finish requests in flight within `stop_after`, abandon the rest; a second one exits at once |
//! | SIGHUP | reload the settings: valid ones hold from the next request on, otherwise the old ones stay |

use std::io::{self, Write};

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::admin::Figures;
use crate::cli::Serve;
use crate::config::{self, Loaded, Sources};
use crate::node::Node;
use crate::{Ended, logs};

pub(crate) async fn run(arguments: &Serve) -> Result<Ended> {
    let sources = arguments.settings.sources();
    let loaded = config::load(&sources)?;
    logs::start(&loaded.config.log)?;
    warn(&loaded);
    // Installed before anything listens, so that no signal is lost.
    let mut signals = Signals::new()?;
    let mut node = Node::start(loaded.config, Figures::install()?).await?;
    let mut out = io::stdout();
    writeln!(out, "{}", node.ready())?;
    out.flush()?;
    while let Asked::Reload = signals.next().await {
        reload(&mut node, &sources);
    }
    tokio::select! {
        () = node.stop() => Ok(Ended::Yes),
        () = signals.stop() => {
            tracing::warn!("stopped at once; running requests are settled when their leases lapse");
            Ok(Ended::No)
        }
    }
}

/// Logs settings that are legal but risky.
fn warn(loaded: &Loaded) {
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
}

/// Applies new settings if they are valid.
fn reload(node: &mut Node, sources: &Sources) {
    let reloaded = config::load(sources).map_err(anyhow::Error::from).and_then(|loaded| {
        warn(&loaded);
        node.reload(loaded.config)
    });
    match reloaded {
        Ok(stays) => {
            for setting in stays {
                tracing::warn!(setting, "a changed setting needs a restart; the old value stays in effect");
            }
            tracing::info!("reloaded: the new settings apply from the next request on");
        }
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "not reloaded: the old settings stay in effect");
        }
    }
}

/// The signals.
enum Asked {
    Reload,
    Stop,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
