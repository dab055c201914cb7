//! One node: a store, the engine on it with its workers, the gateway, and the admin port.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use onlyonce::Engine;
use onlyonce::store::{Level, Store};
use onlyonce::worker::Workers;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::admin::{self, Admin, Figures};
use crate::config::Config;
use crate::gateway::{Gateway, Place};
use crate::store;

/// A store of which a promise does not hold is not served from.
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

/// A node that serves.
pub(crate) struct Node {
    pub(crate) gateway: Gateway,
    /// Where operators come in.
    pub(crate) admin: SocketAddr,
    engine: Arc<Engine>,
    store: Arc<dyn Store>,
    workers: Workers,
    administration: JoinHandle<std::io::Result<()>>,
    summing: JoinHandle<()>,
}

impl Node {
    /// Opens the store, binds both ports, and serves by these settings from now on.
    pub(crate) async fn start(config: Config, figures: Figures) -> Result<Self> {
        let store = config.store.open(config.expired).await?;
        let engine = Engine::new(store.clone());
        refuse_unfit(&engine).await?;
        let listener = TcpListener::bind(config.admin).await;
        let listener = listener
            .with_context(|| format!("cannot listen on \"{}\"; set admin to a free address", config.admin))?;
        let address = listener.local_addr()?;
        let workers = Workers::start(&engine, &config.background);
        let summing = tokio::spawn(figures.keep_summed());
        let admin = Arc::new(Admin {
            engine: engine.clone(),
            figures,
            tokens: config.admin_tokens.clone(),
            store_timeout: config.default.policy.store_timeout,
        });
        let gateway = Gateway::start(config, engine.clone(), Place::Threads).await?;
        let administration = tokio::spawn(admin::serve(listener, admin));
        Ok(Self { gateway, admin: address, engine, store, workers, administration, summing })
    }

    /// Whoever started us waits for this line.
    pub(crate) fn ready(&self) -> String {
        let store = self.gateway.config().store;
        format!("ready: gateway {} admin http://{} store {store}", self.gateway.url(), self.admin)
    }

    /// Serves by these settings from the next request on; the names of those that take a restart and stay are returned.
    pub(crate) fn reload(&mut self, config: Config) -> Result<Vec<&'static str>> {
        let stays = self.gateway.reload(config)?;
        self.workers = Workers::start(&self.engine, &self.gateway.config().background);
        Ok(stays)
    }

    /// Takes no more requests, finishes what is under way within `stop_after`, hands over the rest, and closes the store.
    /// The admin port answers until then.
    pub(crate) async fn stop(self) {
        let Self { gateway, engine, store, workers, administration, summing, .. } = self;
        let stop_after = gateway.config().stop_after;
        gateway.stop(stop_after).await;
        summing.abort();
        administration.abort();
        // Aborted is what it should have been.
        drop(administration.await);
        drop((workers, engine));
        // A client that does not let go is no reason to fail: the store loses nothing by a process that ends.
        if let Err(error) = store::close(store).await {
            tracing::warn!(%error, "the store was not closed");
        }
    }
}
