//! The gateway: the layer in front of a service in any language.
//!
//! Each core has its own serving thread ([`worker`]). The gateway has no idempotency rules of its own. A request passes
//! `listener` → `front` (refuse malformed requests, normalise the path, find the route) → the layer →
//! `forward` (send it once, report what is known) → the service.

mod accepted;
mod activity;
mod body;
mod client;
mod connections;
mod descriptors;
mod forward;
mod front;
mod head;
mod headers;
mod inbound;
mod interim;
mod lenient;
mod listener;
mod own;
pub(crate) mod path;
mod phase;
mod pool;
pub(crate) mod route;
mod seldom;
mod serving;
mod site;
mod together;
mod tunnel;
mod unread;
mod worker;

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onlyonce::Engine;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::accepted::Accepted;
use self::connections::Outgoing;
pub(crate) use self::connections::{Connections, Entered};
use self::front::Sites;
use self::listener::Listener;
use self::phase::{Ending, Phase};
pub(crate) use self::seldom::Seldom;
use self::site::Site;
pub(crate) use self::worker::Place;
use self::worker::Worker;
use crate::config::Config;
use crate::tls::Acceptor;
use crate::webhook::Webhooks;

/// How long abandoned requests may take to record their state and answer their clients.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(5);

/// A running gateway.
pub(crate) struct Gateway {
    address: SocketAddr,
    is_secure: bool,
    engine: Arc<Engine>,
    workers: Vec<Worker>,
    threads: Vec<thread::JoinHandle<()>>,
    acceptor: listener::Acceptors,
    phase: watch::Sender<Phase>,
    /// Every client's connection holds a receiver.
    open: watch::Sender<()>,
    accepting: JoinHandle<()>,
    outgoing: Outgoing,
    /// The site of accepted work.
    accepted: Sites,
    config: RwLock<Config>,
    webhooks: Arc<Webhooks>,
}

impl Gateway {
    /// Starts serving with these settings.
    pub(crate) async fn start(config: Config, engine: Arc<Engine>, place: Place) -> Result<Self> {
        let (phase, _) = watch::channel(Phase::Serving);
        let (open, _) = watch::channel(());
        let acceptor = config.tls.as_ref().map(Acceptor::new).transpose()?;
        let is_secure = acceptor.is_some();
        let acceptor = Arc::new(RwLock::new(acceptor));
        let tcp = TcpListener::bind(config.listen).await;
        let tcp = tcp.with_context(|| {
            format!("cannot listen on \"{}\"; set listen to a free address", config.listen)
        })?;
        let address = tcp.local_addr()?;
        let webhooks = Webhooks::new(engine.clone(), &config);
        engine.bound_buffered_bytes(config.listener.buffered_bytes_max);
        let shares = descriptors::shared(config.listener.connections_max);
        let outgoing = Outgoing::new(shares.services);
        let site = || Site::new(&config, &engine, &webhooks, &Ending::of(&phase), &outgoing, None);
        let accepted = Arc::new(RwLock::new(Arc::new(site()?)));
        let (workers, threads) = Worker::start_all(place, site)?;
        engine.run_accepted_with(Arc::new(Accepted(Arc::downgrade(&accepted))));
        let listener = Listener {
            tcp,
            workers: workers.clone(),
            acceptors: acceptor.clone(),
            phase: phase.subscribe(),
            open: open.subscribe(),
            connections: Connections::new(shares.clients),
            bounds: config.listener,
        };
        let accepting = tokio::spawn(listener.accept());
        Ok(Self {
            address,
            is_secure,
            engine,
            workers,
            threads,
            acceptor,
            phase,
            open,
            accepting,
            outgoing,
            accepted,
            config: RwLock::new(config),
            webhooks,
        })
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a URL.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.is_secure { "https" } else { "http" }, self.address())
    }

    /// Serves with these settings from the next request on; requests in flight keep the old ones. Returns the settings that
    /// need a restart, which stay unchanged.
    pub(crate) fn reload(&self, mut config: Config) -> Result<Vec<&'static str>> {
        let mut held = self.config.write().unwrap_or_else(PoisonError::into_inner);
        if held.encryption.is_none() && config.accepts() {
            bail!("accept needs encryption.keys, but this process was started without them; restart it");
        }
        // All are made before any is used: a fault leaves every worker unchanged.
        let sites = self
            .workers
            .iter()
            .map(|worker| self.site(&config, &worker.site()))
            .collect::<Result<Vec<_>>>()?;
        let before = self.accepted.read().unwrap_or_else(PoisonError::into_inner).clone();
        let accepted = self.site(&config, &before)?;
        let acceptor = match (self.is_secure, &config.tls) {
            (true, Some(tls)) => Some(Acceptor::new(tls)?),
            (true, None) | (false, _) => None,
        };
        let stays = keep(&mut config, &held, self.is_secure);
        if let Some(acceptor) = acceptor {
            *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = Some(acceptor);
        }
        for (worker, site) in self.workers.iter().zip(sites) {
            worker.set_site(site);
        }
        *self.accepted.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(accepted);
        self.engine.run_accepted_with(Arc::new(Accepted(Arc::downgrade(&self.accepted))));
        self.webhooks.reload(&config);
        *held = config;
        Ok(stays)
    }

    /// A new site in the place of another.
    fn site(&self, config: &Config, before: &Site) -> Result<Site> {
        let ending = Ending::of(&self.phase);
        Site::new(config, &self.engine, &self.webhooks, &ending, &self.outgoing, Some(before))
    }

    /// Who takes webhooks, with the current settings.
    pub(crate) fn webhooks(&self) -> Arc<Webhooks> {
        self.webhooks.clone()
    }

    /// The current settings.
    pub(crate) fn config(&self) -> Config {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops accepting, finishes requests in flight within `stop_after`, also those whose clients have disconnected, and abandons
    /// the rest: what was sent becomes unknown or retryable, by its effects.
    pub(crate) async fn stop(self, stop_after: Duration) {
        self.engine.stop_accepted();
        self.phase.send_replace(Phase::Finishing);
        if timeout(stop_after, self.finished()).await.is_err() {
            tracing::warn!(?stop_after, "requests are still running after stop_after; they are abandoned");
        }
        self.phase.send_replace(Phase::Ending);
        if timeout(GIVEN_UP_WITHIN, self.finished()).await.is_err() {
            tracing::error!("the outcome of some requests could not be stored; their leases will lapse");
        }
        let Self { workers, threads, accepting, .. } = self;
        accepting.abort();
        // It ends as aborted, unless it had ended before.
        drop(accepting.await);
        drop(workers);
        // A thread that panicked has logged it.
        let joined = move || threads.into_iter().for_each(|thread| drop(thread.join()));
        drop(tokio::task::spawn_blocking(joined).await);
    }

    /// Waits until no client is connected and no work is in flight.
    async fn finished(&self) {
        self.open.closed().await;
        self.engine.idle().await;
    }
}

/// Keeps the settings that need a restart, and returns their names.
fn keep(config: &mut Config, held: &Config, is_secure: bool) -> Vec<&'static str> {
    let mut stays = Vec::new();
    if config.listen != held.listen {
        config.listen = held.listen;
        stays.push("listen");
    }
    if config.admin != held.admin {
        config.admin = held.admin;
        stays.push("admin");
    }
    if config.store != held.store {
        config.store = held.store.clone();
        stays.push("store");
    }
    if config.cache != held.cache {
        config.cache = held.cache.clone();
        stays.push("cache");
    }
    if config.expired != held.expired {
        config.expired = held.expired;
        stays.push("expired");
    }
    if config.listener != held.listener {
        config.listener = held.listener;
        stays.push("listener");
    }
    if config.encryption != held.encryption {
        config.encryption = held.encryption.clone();
        stays.push("encryption.keys");
    }
    if config.telemetry != held.telemetry {
        config.telemetry = held.telemetry.clone();
        stays.push("telemetry");
    }
    if config.tls.is_some() != is_secure {
        config.tls = held.tls.clone();
        stays.push("tls");
    }
    stays
}

#[cfg(test)]
mod tests;
