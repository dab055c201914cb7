//! One node: a store, the engine on it with its workers, the gateway, and the admin port.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use onlyonce::Engine;
use onlyonce::store::{Level, Store};
use onlyonce::worker::Workers;
use tokio::net::TcpListener;

use crate::admin::{self, Admin, Administration, Figures};
use crate::config::Config;
use crate::gateway::{Gateway, Place};
use crate::probe::Prober;
use crate::{store, webhook};

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

/// A running node.
pub(crate) struct Node {
    pub(crate) gateway: Gateway,
    /// The address for operators.
    pub(crate) admin: SocketAddr,
    engine: Arc<Engine>,
    store: Arc<dyn Store>,
    prober: Prober,
    workers: Workers,
    administration: Administration,
    operators: Arc<Admin>,
}

impl Node {
    /// Opens the store, binds both ports, and starts serving with these settings.
    pub(crate) async fn start(config: Config, figures: Figures) -> Result<Self> {
        let store = config.store.open(config.expired).await?;
        let engine = Engine::new(store.clone());
        refuse_unfit(&engine).await?;
        let listener = TcpListener::bind(config.admin).await;
        let listener = listener
            .with_context(|| format!("cannot listen on \"{}\"; set admin to a free address", config.admin))?;
        let address = listener.local_addr()?;
        let prober = Prober::default();
        engine.use_probes(prober.probes(&config)?);
        let workers = Workers::start(&engine, &config.background);
        let operators = Admin::new(engine.clone(), figures, &config, address);
        let gateway = Gateway::start(config, engine.clone(), Place::Threads).await?;
        // Webhooks are signed, and need no token.
        let open = webhook::router(gateway.webhooks());
        let administration = admin::serve(listener, &operators, open);
        Ok(Self { gateway, admin: address, engine, store, prober, workers, administration, operators })
    }

    /// The line printed once the node serves; scripts wait for it.
    pub(crate) fn ready(&self) -> String {
        let store = self.gateway.config().store;
        format!("ready: gateway {} admin http://{} store {store}", self.gateway.url(), self.admin)
    }

    /// Serves with these settings from the next request on; returns the settings that need a restart.
    pub(crate) fn reload(&mut self, config: Config) -> Result<Vec<&'static str>> {
        let probes = self.prober.probes(&config)?;
        let stays = self.gateway.reload(config)?;
        self.engine.use_probes(probes);
        let config = self.gateway.config();
        self.workers = Workers::start(&self.engine, &config.background);
        self.operators.reload(&config);
        Ok(stays)
    }

    /// Stops accepting, finishes requests in flight within `stop_after`, abandons the rest, and closes the store. The admin port
    /// answers until then.
    pub(crate) async fn stop(self) {
        let Self { gateway, engine, store, workers, administration, operators, .. } = self;
        operators.announce_stop();
        let stop_after = gateway.config().stop_after;
        gateway.stop(stop_after).await;
        administration.stop().await;
        drop((workers, engine, operators));
        // A client that keeps its connection is no failure: the store loses nothing when the process ends.
        if let Err(error) = store::close(store).await {
            tracing::warn!(%error, "the store was not closed");
        }
    }
}
