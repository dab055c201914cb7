//! Who serves clients: a thread a core, each with a runtime of its own, a site of its own, and so connections to services of
//! its own. A request is read, sent on and answered by one thread, and nothing of it wakes another
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
    /// By the runtime that starts the gateway: for tests that move its clock, or look at one worker's connections.
    Here,
}

/// How many threads there are where the system does not say how many cores it has.
const COUNT_UNKNOWN: usize = 2;
/// Shorter than any time-out of a request: that of the store is 2 s.
const TICK: Duration = Duration::from_millis(500);

/// One that serves. Its thread ends when the last of these is gone, and drops what is still served there.
#[derive(Clone)]
pub(crate) struct Worker {
    runtime: Handle,
    sites: Sites,
    /// Held by each of its connections.
    load: Load,
    _wanted: Option<watch::Sender<()>>,
}

/// Counts those who hold it.
pub(crate) type Load = Arc<()>;

impl Worker {
    /// All of a gateway's, each with a site of its own, and the threads to wait for at the end.
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
        let runtime = runtime.context("cannot make a runtime for a thread that serves")?;
        let (wanted, unwanted) = watch::channel(());
        let worker = Self::on(runtime.handle().clone(), site, Some(wanted));
        let named = thread::Builder::new().name(format!("onlyonce-{number}"));
        let thread = named.spawn(move || serve(&runtime, unwanted));
        Ok((worker, thread.context("cannot start a thread that serves")?))
    }

    fn on(runtime: Handle, site: Site, wanted: Option<watch::Sender<()>>) -> Self {
        let sites = Arc::new(RwLock::new(Arc::new(site)));
        Self { runtime, sites, load: Load::default(), _wanted: wanted }
    }

    /// How many connections it has.
    pub(crate) fn load(&self) -> usize {
        Arc::strong_count(&self.load)
    }

    /// What its requests are judged by now.
    pub(crate) fn site(&self) -> Arc<Site> {
        self.sites.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What its requests are judged by from the next one on.
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

/// Until nobody wants it any more.
fn serve(runtime: &Runtime, mut unwanted: watch::Receiver<()>) {
    runtime.block_on(async {
        let mut ticks = interval(TICK);
        loop {
            // A timer that ends before the runtime would next wake by itself makes it write to itself, one system call a
            // timer: most requests on a durable store would. So it always wakes sooner than any of them.
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
