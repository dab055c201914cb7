//! A gateway, and an admin port, for tests that pass in the store, to break it or move its clock.
//!
//! Hidden, but not behind a feature: a test of this package could not enable one, and the program does not link what it does
//! not call.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use axum::Router;
use onlyonce::Engine;
use onlyonce::store::Store;
use tokio::net::TcpListener;

use crate::admin::{self, Administration, Figures};
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

/// An admin port without a gateway and without background workers. Its metrics stay empty.
pub struct Admin {
    address: SocketAddr,
    engine: Arc<Engine>,
    serving: Administration,
}

impl Admin {
    /// With the settings of this file, except for `store` and `admin`.
    ///
    /// # Errors
    ///
    /// Every fault of the settings, or what cannot be listened on.
    pub async fn start(settings: &Path, store: Arc<dyn Store>) -> Result<Self> {
        let loaded = config::load(&Sources { file: Some(settings.to_owned()), ..Sources::default() })?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let engine = Engine::new(store);
        let state = admin::Admin::new(engine.clone(), Figures::detached(), &loaded.config, address);
        Ok(Self { address, engine, serving: admin::serve(listener, &state, Router::new()) })
    }

    /// Where operators come in.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The engine it speaks to.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Ends streams and requests, and closes the port.
    pub async fn stop(self) {
        self.serving.stop().await;
    }
}
