//! `onlyonce relay`: delivers the messages of a store, without a gateway.

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::anyhow;
use onlyonce::Engine;
use onlyonce::relay::Relay;
use onlyonce::store as seam;
use onlyonce::store::outbox::{Query, State};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::failure::Failure;
use super::target::{PAGE, held};
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
    if arguments.dry_run {
        let due = due(&settings).await?;
        return tell(arguments, due, ["message is due", "messages are due"], "; nothing was delivered");
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
        return tell(arguments, delivered?, ["delivery made", "deliveries made"], "");
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

/// How many messages of these destinations a relay would claim, one group after the other.
async fn due(settings: &Relaying) -> Result<usize, Failure> {
    let opened = settings.store.open_for_reading(settings.encryption.as_ref()).await?;
    let engine = Engine::new(opened.clone());
    let counted = count_due(&engine, settings).await;
    drop(engine);
    store::close(opened).await?;
    Ok(counted?)
}

async fn count_due(engine: &Engine, settings: &Relaying) -> Result<usize, seam::Error> {
    let now = engine.store().epoch().await?.now;
    let mut count = 0;
    for destination in &settings.destinations {
        // A claim that has lapsed is due too.
        for state in [State::Waiting, State::Claimed] {
            let destination = Some(destination.name.clone());
            let mut query = Query { state: Some(state), destination, after: None, limit: PAGE };
            loop {
                let page = engine.messages(query.clone()).await?;
                count += page.items.iter().filter(|item| item.due_at <= now).count();
                query.after = page.next;
                if query.after.is_none() {
                    break;
                }
            }
        }
    }
    Ok(count)
}

fn tell(arguments: &cli::Relay, count: usize, [one, many]: [&str; 2], end: &str) -> Result<Ended, Failure> {
    let mut out = io::stdout().lock();
    match (arguments.json, count) {
        (true, _) => writeln!(out, "{:#}", json!({ "done": count }))?,
        (false, 1) => writeln!(out, "1 {one}{end}")?,
        (false, _) => writeln!(out, "{count} {many}{end}")?,
    }
    Ok(Ended::Yes)
}
