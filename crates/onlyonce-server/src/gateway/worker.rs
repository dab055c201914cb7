//! Serving threads: one per core, each with its own runtime, site and connections to services. A request is read,
//! forwarded and answered by one thread, without waking another
//! (docs/decisions/0020-a-runtime-per-core.md).

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::time::interval;

use super::front::Sites;
use super::listener::Connection;
use super::site::Site;

/// Where clients are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// By threads of their own, one a core.
    Threads,
    /// On the runtime that starts the gateway: for tests that move its clock, or inspect one worker's connections.
    Here,
}

/// How many threads if the number of cores is unknown.
const COUNT_UNKNOWN: usize = 2;
/// Shorter than any time-out of a request: the store's is 2 s.
const TICK: Duration = Duration::from_millis(500);

/// One worker. Its thread ends when the last clone is dropped, and drops its connections.
#[derive(Clone)]
pub(crate) struct Worker {
    runtime: Handle,
    sites: Sites,
    /// Each of its connections holds a clone.
    load: Load,
    _wanted: Option<watch::Sender<()>>,
}

/// A reference count.
pub(crate) type Load = Arc<()>;

impl Worker {
    /// Starts all workers, each with its own site, and returns the threads to join at the end.
    pub(crate) fn start_all(
        place: Place,
        site: impl Fn() -> Result<Site>,
    ) -> Result<(Vec<Self>, Vec<JoinHandle<()>>)> {
        match place {
            Place::Here => Ok((vec![Self::on(Handle::current(), site()?, None)], Vec::new())),
            Place::Threads => {
                let count = thread::available_parallelism().map_or(COUNT_UNKNOWN, usize::from);
                let started = (0..count).map(|number| Self::start(number, site()?));
                Ok(started.collect::<Result<Vec<_>>>()?.into_iter().unzip())
            }
        }
    }

    fn start(number: usize, site: Site) -> Result<(Self, JoinHandle<()>)> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot create a runtime for a worker thread")?;
        let (wanted, unwanted) = watch::channel(());
        let worker = Self::on(runtime.handle().clone(), site, Some(wanted));
        let named = thread::Builder::new().name(format!("onlyonce-{number}"));
        let thread = named.spawn(move || serve(&runtime, unwanted));
        Ok((worker, thread.context("cannot start a worker thread")?))
    }

    fn on(runtime: Handle, site: Site, wanted: Option<watch::Sender<()>>) -> Self {
        let sites = Arc::new(RwLock::new(Arc::new(site)));
        Self { runtime, sites, load: Load::default(), _wanted: wanted }
    }

    /// How many connections it has.
    pub(crate) fn load(&self) -> usize {
        Arc::strong_count(&self.load)
    }

    /// The current site.
    pub(crate) fn site(&self) -> Arc<Site> {
        self.sites.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the site for the next requests.
    pub(crate) fn set_site(&self, site: Site) {
        *self.sites.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(site);
    }

    /// Serves a client that was accepted.
    pub(crate) fn serve(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        connection: impl FnOnce(Sites, Load) -> Connection,
    ) {
        let connection = connection(self.sites.clone(), self.load.clone());
        self.runtime.spawn(connection.serve(tcp, address));
    }
}

/// Runs until the worker is dropped.
fn serve(runtime: &Runtime, mut unwanted: watch::Receiver<()>) {
    runtime.block_on(async {
        let mut ticks = interval(TICK);
        loop {
            // A timer that ends before the runtime's next wake-up makes the runtime write to its own event descriptor, one system
            // call per timer, for most requests on a durable store. So the runtime always wakes earlier than any of them.
            tokio::select! {
                _ = ticks.tick() => {}
                changed = unwanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    });
}
