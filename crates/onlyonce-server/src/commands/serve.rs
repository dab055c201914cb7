//! `onlyonce serve`: the gateway, until it is told to stop.
//!
//! | signal | what happens |
//! |---|---|
//! | SIGTERM, SIGINT | stop accepting, finish what is under way within `stop_after`, give up the rest; a second one ends at once |
//! | SIGHUP | read the settings again: without a fault they hold from the next request on, else the old ones stay |

use std::io::{self, Write};
use std::net::SocketAddr;

use anyhow::Result;
use onlyonce::Engine;
use onlyonce::worker::Workers;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Ended;
use crate::cli::Serve;
use crate::config::{self, Config, Loaded, Sources};
use crate::gateway::Gateway;
use crate::store;

pub(crate) async fn run(arguments: &Serve) -> Result<Ended> {
    let sources = arguments.settings.sources();
    let loaded = config::load(&sources)?;
    warn(&loaded);
    let config = loaded.config;
    // Before anything listens: a signal that comes from now on is not lost.
    let mut signals = Signals::new()?;
    let store = config.store.open(config.expired).await?;
    let engine = Engine::new(store.clone());
    let mut workers = Workers::start(&engine, &config.background);
    let gateway = Gateway::start(config.clone(), engine.clone()).await?;
    ready(&gateway, config.admin, &config.store)?;
    while let Asked::Reload = signals.next().await {
        if let Some(config) = reload(&gateway, &sources) {
            workers = Workers::start(&engine, &config.background);
        }
    }
    let stop_after = gateway.config().stop_after;
    tokio::select! {
        () = gateway.stop(stop_after) => {}
        () = signals.stop() => {
            eprintln!("stopped at once; what was under way is settled when the leases lapse");
            return Ok(Ended::No);
        }
    }
    drop((workers, engine));
    // A client that does not let go is no reason to fail: the store loses nothing by a process that ends.
    if let Err(error) = store::close(store).await {
        tracing::warn!(%error, "the store was not closed");
    }
    Ok(Ended::Yes)
}

/// What is legal and may be regretted.
fn warn(loaded: &Loaded) {
    loaded.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
}

/// Whoever started us waits for this line.
fn ready(gateway: &Gateway, admin: SocketAddr, store: &store::Url) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "ready: gateway {} admin http://{admin} store {store}", gateway.url())?;
    out.flush()
}

/// The settings that hold from now on, if others do.
fn reload(gateway: &Gateway, sources: &Sources) -> Option<Config> {
    let reloaded = config::load(sources).map_err(anyhow::Error::from).and_then(|loaded| {
        warn(&loaded);
        gateway.reload(loaded.config)
    });
    match reloaded {
        Ok(stays) => {
            for setting in stays {
                eprintln!("warning: {setting} has changed, which takes a restart; it stays as it was");
            }
            eprintln!("reloaded: the settings hold from the next request on");
            Some(gateway.config())
        }
        Err(error) => {
            eprintln!("error: {error:#}\nnot reloaded: the settings stay as they were");
            None
        }
    }
}

/// What we are asked from outside.
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
