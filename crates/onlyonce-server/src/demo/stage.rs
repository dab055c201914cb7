//! Where the story plays: the sample service on a free port, which can be stopped and started again on its store.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use onlyonce::store::Store;
use onlyonce::store::sqlite::Expired;
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::bank::Bank;
use super::service::Sample;
use crate::store::{self, Url};

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) bank: Arc<Bank>,
    pub(crate) address: SocketAddr,
    /// The server has noticed that a client hung up.
    pub(crate) hang_ups: Arc<Notify>,
    url: Url,
    /// Part of every scope, so that a store that was played on before does not remember the keys of this run.
    name: String,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    store: Arc<dyn Store>,
    sample: Sample,
    serving: JoinHandle<io::Result<()>>,
    /// Dropped, it tells the server to stop.
    stop: oneshot::Sender<()>,
}

impl Stage {
    pub(crate) async fn set(bank: Arc<Bank>, url: Url) -> Result<Self> {
        let name = format!("demo-{}", super::place::unique());
        let (running, address) = Running::start(&bank, &url, &name).await?;
        let hang_ups = running.sample.hang_ups.clone();
        Ok(Self { bank, address, hang_ups, url, name, running: Some(running) })
    }

    /// Stops the service, closes its store, and starts both again: all that the service had in memory is gone.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        let (running, address) = Running::start(&self.bank, &self.url, &self.name).await?;
        (self.address, self.hang_ups) = (address, running.sample.hang_ups.clone());
        self.running = Some(running);
        Ok(())
    }

    pub(crate) async fn stop(&mut self) -> Result<()> {
        let Running { store, sample, serving, stop } =
            self.running.take().context("the service is stopped")?;
        drop(stop);
        serving.await??;
        sample.onlyonce.engine().idle().await;
        drop(sample);
        store::close(store).await
    }
}

impl Running {
    async fn start(bank: &Arc<Bank>, url: &Url, name: &str) -> Result<(Self, SocketAddr)> {
        let store = url.open(Expired::Delete).await?;
        let sample = Sample::new(bank.clone(), store.clone(), name);
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("loopback has no free port")?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let app = sample.app();
        let serving = tokio::spawn(async move {
            let stopped = async { drop::<Result<(), _>>(stopped.await) };
            axum::serve(listener, app).with_graceful_shutdown(stopped).await
        });
        Ok((Self { store, sample, serving, stop }, address))
    }
}
