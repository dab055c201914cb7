//! A gateway for tests that pass in the store, to break it or move its clock.
//!
//! Hidden, but not behind a feature: a test of this package could not enable one, and the program does not link what it does
//! not call.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use onlyonce::Engine;
use onlyonce::store::Store;

use crate::config::{self, Sources};
use crate::gateway::Place;

/// A gateway on the caller's runtime, whose clock a test may move. It has no background workers and no admin port: only requests change anything.
pub struct Gateway(crate::gateway::Gateway);

impl Gateway {
    /// With the settings of this file, except for `store`.
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

    /// Stops accepting, and finishes requests in flight within `stop_after`.
    pub async fn stop(self) {
        let stop_after = self.0.config().stop_after;
        self.0.stop(stop_after).await;
    }
}
