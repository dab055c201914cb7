//! A gateway for tests that bring the store, and so break it and move its clock.
//!
//! Hidden, and not behind a feature: a test of this very package could not turn one on, and the program does not link what
//! it does not call.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use onlyonce::Engine;
use onlyonce::store::Store;

use crate::config::{self, Sources};
use crate::gateway::Place;

/// A gateway that serves by the runtime it is started in, whose clock a test may move. It has no workers behind the requests and no admin port: what a test sees, requests did.
pub struct Gateway(crate::gateway::Gateway);

impl Gateway {
    /// By the settings of this file, of which `store` does not count.
    ///
    /// # Errors
    ///
    /// Every fault of the settings, or what cannot be listened on.
    pub async fn start(settings: &Path, store: Arc<dyn Store>) -> Result<Self> {
        let loaded = config::load(&Sources { file: Some(settings.to_owned()), ..Sources::default() })?;
        Ok(Self(crate::gateway::Gateway::start(loaded.config, Engine::new(store), Place::Here).await?))
    }

    /// Where clients come in.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Takes no more requests, and finishes those under way within `stop_after`.
    pub async fn stop(self) {
        let stop_after = self.0.config().stop_after;
        self.0.stop(stop_after).await;
    }
}
