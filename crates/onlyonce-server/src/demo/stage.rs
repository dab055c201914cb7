//! The setup of a tour: a bank, the sample service in front of it, and the gateway in front of that.
//!
//! ```text
//!  clients ── the gateway, a process ── the sample service ── the bank and its ledger
//!                  │
//!                the store
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::bank::Bank;
use super::client::Client;
use super::gateway::Gateway;
use super::service::Service;
use crate::store::Url;

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) bank: Arc<Bank>,
    pub(crate) service: Service,
    pub(crate) url: Url,
    /// Part of every scope, so that a store used before has no keys of this run.
    name: String,
    /// What the bank signs its webhooks with.
    pub(crate) secret: String,
    gateway: Option<Gateway>,
}

impl Stage {
    pub(crate) async fn set(bank: Arc<Bank>, url: Url) -> Result<Self> {
        let name = format!("demo-{}", super::place::unique());
        let service = Service::start(bank.clone(), Service::any_port()).await?;
        let secret = format!("secret-of-{name}");
        let gateway = Some(Gateway::start(service.address, &url, &name, &secret).await?);
        Ok(Self { bank, service, url, name, secret, gateway })
    }

    /// A client of the gateway.
    pub(crate) async fn client(&self) -> Result<Client> {
        Client::connect(self.gateway()?.address).await
    }

    /// Where operators and webhooks come in.
    pub(crate) fn admin(&self) -> Result<SocketAddr> {
        Ok(self.gateway()?.admin)
    }

    fn gateway(&self) -> Result<&Gateway> {
        self.gateway.as_ref().context("the gateway was killed and not started again")
    }

    /// Stops the gateway, which closes its store.
    pub(crate) async fn stop(self) -> Result<()> {
        match self.gateway {
            Some(gateway) => gateway.stop().await,
            None => Ok(()),
        }
    }

    /// Kills the gateway with SIGKILL and starts it again on the same store: everything in memory is lost.
    pub(crate) async fn kill_gateway(&mut self) -> Result<()> {
        if let Some(gateway) = self.gateway.take() {
            gateway.kill().await?;
        }
        let (service, secret) = (self.service.address, &self.secret);
        self.gateway = Some(Gateway::start(service, &self.url, &self.name, secret).await?);
        Ok(())
    }
}
