//! `onlyonce relay`: delivers the messages of a store, without a gateway.

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::anyhow;
use onlyonce::Engine;
use onlyonce::relay::Relay;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::failure::Failure;
use super::target::held;
use crate::cli;
use crate::config::{self, Relaying};
use crate::tls::Connector;
use crate::{Ended, logs, relay, store};

pub(crate) async fn run(arguments: &cli::Relay) -> Result<Ended, Failure> {
    let settings = config::relaying(&arguments.sources())?;
    if settings.destinations.is_empty() {
        return Err(anyhow!(
            "the settings have no destination; add [destinations.NAME] to the file of --config"
        )
        .into());
    }
    if let Some(holder) = settings.store.holder()? {
        return Err(held(
            &settings.store,
            &holder,
            "a gateway delivers messages itself, so add the destinations to its settings",
        ));
    }
    logs::start(&settings.log)?;
    // Installed before anything is claimed, so that no signal is lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let opened = settings.store.open_for_changes(settings.expired, settings.encryption.as_ref()).await?;
    let engine = Engine::new(opened.clone());
    let relay = made(&engine, &settings)?;
    if arguments.once {
        let delivered = relay.once().await;
        drop(engine);
        store::close(opened).await?;
        return tell(arguments, delivered?);
    }
    let running = relay.start();
    let mut out = io::stdout();
    writeln!(out, "ready: relay store {}", settings.store)?;
    out.flush()?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    running.stop(settings.stop_after).await;
    drop(engine);
    store::close(opened).await?;
    Ok(Ended::Yes)
}

fn made(engine: &Arc<Engine>, settings: &Relaying) -> Result<Relay, Failure> {
    let Relaying { destinations, upstream_ca, every, .. } = settings;
    let connector = Connector::for_destinations(destinations, upstream_ca.as_deref())?;
    Ok(relay::relay(engine, destinations, &connector, *every)?)
}

fn tell(arguments: &cli::Relay, deliveries: usize) -> Result<Ended, Failure> {
    let mut out = io::stdout().lock();
    match (arguments.json, deliveries) {
        (true, _) => writeln!(out, "{:#}", json!({ "deliveries": deliveries }))?,
        (false, 1) => writeln!(out, "1 delivery made")?,
        (false, _) => writeln!(out, "{deliveries} deliveries made")?,
    }
    Ok(Ended::Yes)
}
