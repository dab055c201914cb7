//! One node: a store, the engine on it with its workers, the gateway, and the admin port.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use onlyonce::Engine;
use onlyonce::relay::Running;
use onlyonce::store::{Level, Store};
use onlyonce::worker::Workers;
use tokio::net::TcpListener;

use crate::admin::{self, Admin, Administration, Figures};
use crate::config::Config;
use crate::gateway::{Gateway, Place};
use crate::probe::Prober;
use crate::telemetry::Telemetry;
use crate::tls::Connector;
use crate::{relay, store, webhook};

/// Refuses to serve from a store that does not keep a promise.
async fn refuse_unfit(engine: &Engine) -> Result<()> {
    let findings = engine.examine().await?;
    let errors = findings.into_iter().filter(|finding| finding.level == Level::Error);
    let told: Vec<_> =
        errors.map(|finding| format!("{} ({}); {}", finding.says, finding.code, finding.remedy)).collect();
    if told.is_empty() {
        return Ok(());
    }
    bail!("the store cannot be used: {}", told.join("; "))
}

/// Delivers messages, where the settings say where to.
fn start_relay(engine: &Arc<Engine>, config: &Config) -> Result<Option<Running>> {
    if config.destinations.is_empty() {
        return Ok(None);
    }
    let connector = Connector::for_destinations(&config.destinations, config.upstream_ca.as_deref())?;
    let relay = relay::relay(engine, &config.destinations, &connector, config.relay_every)?;
    Ok(Some(relay.start()))
}

/// A running node.
pub(crate) struct Node {
    pub(crate) gateway: Gateway,
    /// The address for operators.
    pub(crate) admin: SocketAddr,
    engine: Arc<Engine>,
    store: Arc<dyn Store>,
    prober: Prober,
    workers: Workers,
    relay: Option<Running>,
    administration: Administration,
    operators: Arc<Admin>,
    telemetry: Option<Telemetry>,
}

impl Node {
    /// Opens the store, binds both ports, and starts serving with these settings.
    pub(crate) async fn start(config: Config, figures: Figures) -> Result<Self> {
        let store = config.store.open(config.expired, config.encryption.as_ref()).await?;
        let engine = Engine::new(store.clone());
        if let Some(cache) = &config.cache {
            let opened = cache.open(config.encryption.as_ref()).await;
            engine.use_cache(opened.context("the cache cannot be used; correct cache, or unset it")?);
        }
        refuse_unfit(&engine).await?;
        if config.limits.counts_records() {
            // On a large table the index takes a while, and nobody waits for it.
            let engine = engine.clone();
            tokio::spawn(async move { engine.prepare_counting().await });
        }
        let listener = TcpListener::bind(config.admin).await;
        let listener = listener
            .with_context(|| format!("cannot listen on \"{}\"; set admin to a free address", config.admin))?;
        let address = listener.local_addr()?;
        let prober = Prober::default();
        engine.use_probes(prober.probes(&config)?);
        let workers = Workers::start(&engine, &config.background);
        let relay = start_relay(&engine, &config)?;
        let operators = Admin::new(engine.clone(), figures, &config, address);
        let telemetry =
            Telemetry::start(&config.telemetry, config.upstream_ca.as_deref(), operators.clone())?;
        let gateway = Gateway::start(config, engine.clone(), Place::Threads).await?;
        // Webhooks are signed, and need no token.
        let open = webhook::router(gateway.webhooks());
        let administration = admin::serve(listener, &operators, open);
        Ok(Self {
            gateway,
            admin: address,
            engine,
            store,
            prober,
            workers,
            relay,
            administration,
            operators,
            telemetry,
        })
    }

    /// The line printed once the node serves; scripts wait for it.
    pub(crate) fn ready(&self) -> String {
        let store = self.gateway.config().store;
        format!("ready: gateway {} admin http://{} store {store}", self.gateway.url(), self.admin)
    }

    /// The engine, for whoever watches it.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The admin port.
    pub(crate) fn operators(&self) -> &Arc<Admin> {
        &self.operators
    }

    /// Serves with these settings from the next request on; returns the settings that need a restart.
    pub(crate) fn reload(&mut self, config: Config) -> Result<Vec<&'static str>> {
        let probes = self.prober.probes(&config)?;
        let relay = start_relay(&self.engine, &config)?;
        let stays = self.gateway.reload(config)?;
        self.engine.use_probes(probes);
        let config = self.gateway.config();
        self.workers = Workers::start(&self.engine, &config.background);
        // The relay that was there finishes what it has claimed.
        self.relay = relay;
        self.operators.reload(&config);
        Ok(stays)
    }

    /// Stops accepting, finishes requests in flight within `stop_after`, abandons the rest, and closes the store. The admin port
    /// answers until then.
    pub(crate) async fn stop(self) {
        let Self { gateway, engine, store, workers, relay, administration, operators, telemetry, .. } = self;
        operators.announce_stop();
        let stop_after = gateway.config().stop_after;
        let relay_stops = async {
            if let Some(relay) = relay {
                relay.stop(stop_after).await;
            }
        };
        tokio::join!(gateway.stop(stop_after), relay_stops);
        administration.stop().await;
        if let Some(telemetry) = telemetry {
            telemetry.stop().await;
        }
        drop((workers, engine, operators));
        // A client that keeps its connection is no failure: the store loses nothing when the process ends.
        if let Err(error) = store::close(store).await {
            tracing::warn!(%error, "the store was not closed");
        }
    }
}
