//! Accepted work: a request that is stored, answered with 202, and run by a worker.
//!
//! ```text
//!  request ── reserved as pending, with the request itself, in one commit ── 202, where to ask
//!                       │
//!  worker  ── oldest first ── claim by compare and swap ── the handler, under a lease ── finish
//!                       ▲                                          │ did not run
//!                       └──────────── after 1 s, 2 s, 4 s … ───────┘
//! ```
//!
//! 1. Nothing is answered with 202 before both the record and the request are durable. Any node that shares the store may run
//!    the work, also after the one that accepted it has died.
//! 2. An attempt of a worker is an attempt like any other: it has a lease, a deadline and a number, and its answer means what
//!    it would have meant to a client that waited.
//! 3. Work that did not run is run again after a pause that doubles, until [`Policy::retention`] has passed since it was
//!    accepted. Then its answer is a 408 that says so. Work that was lost is run again where that is safe by its effects.
//! 4. A worker runs the oldest first. While others wait, no scope has more than half of a node's places.
//! 5. The request is deleted with the write that ends the work.
//!
//! Workers need somebody to hand a request to: [`Engine::run_accepted_with`] takes the whole service, with the layer in it.
//! Without that, nothing is accepted, and [`Policy::accept`] has no effect.
//!
//! ```
//! use std::sync::Arc;
//!
//! use axum::{Router, body::Body, routing::post};
//! use onlyonce::accepted::App;
//! use onlyonce::policy::Accept;
//! use onlyonce::{Onlyonce, Policy, store::memory::Memory, worker::{Background, Workers}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), onlyonce::Faults> {
//! let policy = Policy { accept: Accept::Allowed, ..Policy::default() };
//! let onlyonce = Onlyonce::new(Arc::new(Memory::new())).with_policy(policy)?;
//! let app: Router = Router::new().route("/reports", post(|| async { "made" })).layer(onlyonce.layer());
//! onlyonce.engine().run_accepted_with(Arc::new(App::<_, Body>::new(app.clone())));
//! let workers = Workers::start(onlyonce.engine(), &Background::default());
//! // … until the process stops:
//! onlyonce.engine().stop_accepted();
//! onlyonce.engine().idle().await;
//! onlyonce.engine().forget_accepted();
//! # drop(workers);
//! # Ok(())
//! # }
//! ```
//!
//! [`Policy::retention`]: crate::Policy::retention
//! [`Policy::accept`]: crate::Policy::accept

mod app;
mod queue;
mod request;
mod worker;

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, StatusCode, Uri};
use onlyonce_core::limits::Limit;
use onlyonce_core::record::{Id, Seen};
use onlyonce_core::refusal::Refusal;

pub use app::App;
pub(crate) use queue::{Accepted, Fresh, Slot};
pub(crate) use request::Stored;
pub(crate) use worker::Cancelled;

#[cfg(doc)]
use crate::Engine;

/// How accepted work is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How much of it a node runs at once.
    pub at_once: usize,
    /// How much may wait in all; more is refused with 429.
    pub pending_max: usize,
    /// The longest pause between two attempts.
    pub pause_max: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self { at_once: 64, pending_max: 10_000, pause_max: Duration::from_secs(5 * 60) }
    }
}

/// Runs accepted work: hands its request to the service that it was for.
pub trait Runs: Send + Sync + 'static {
    /// The attempt, as a future that ends with it.
    ///
    /// # Errors
    ///
    /// The work itself, where there is no such route any more: nothing is run, and it is tried again later.
    fn run(&self, work: Work) -> Result<Running, Work>;
}

/// An attempt of accepted work, until it has ended.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Accepted work that a worker is about to run. It is claimed by the layer that runs it, once.
#[derive(Clone)]
pub struct Work(Arc<Inner>);

struct Inner {
    id: Id,
    seen: Seen,
    stored: Stored,
    pause_max: Duration,
    /// Whether a layer has tried to claim it.
    has_arrived: AtomicBool,
    /// The limit that left no place for it.
    refused_by: OnceLock<Limit>,
    /// What the whole service answered.
    answered: OnceLock<StatusCode>,
}

impl Work {
    pub(crate) fn new(id: Id, seen: Seen, stored: Stored, pause_max: Duration) -> Self {
        Self(Arc::new(Inner {
            id,
            seen,
            stored,
            pause_max,
            has_arrived: AtomicBool::new(false),
            refused_by: OnceLock::new(),
            answered: OnceLock::new(),
        }))
    }

    /// The name of the route that its request came in on, where that has one.
    pub fn route(&self) -> Option<&str> {
        self.0.stored.route.as_deref()
    }

    /// The request's method.
    pub fn method(&self) -> &Method {
        &self.0.stored.method
    }

    /// The request's target.
    pub fn uri(&self) -> &Uri {
        &self.0.stored.uri
    }

    /// The request as it came, for a service with the layer in it: that knows it for accepted work, and runs it as such.
    pub fn into_request<B: From<Bytes>>(self) -> Request<B> {
        let body = B::from(self.0.stored.body.clone());
        let mut parts = self.parts();
        parts.extensions.insert(self);
        Request::from_parts(parts, body)
    }

    pub(crate) fn parts(&self) -> Parts {
        self.0.stored.parts()
    }

    pub(crate) fn body(&self) -> Bytes {
        self.0.stored.body.clone()
    }

    pub(crate) fn id(&self) -> &Id {
        &self.0.id
    }

    pub(crate) fn seen(&self) -> &Seen {
        &self.0.seen
    }

    pub(crate) fn pause_max(&self) -> Duration {
        self.0.pause_max
    }

    /// A layer is about to claim it.
    pub(crate) fn arrives(&self) {
        self.0.has_arrived.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_arrived(&self) -> bool {
        self.0.has_arrived.load(Ordering::Relaxed)
    }

    /// It was not claimed, for this reason.
    pub(crate) fn refuse(&self, refusal: &Refusal) {
        if let Refusal::LimitReached { limit, .. } = refusal {
            self.0.refused_by.get_or_init(|| *limit);
        }
    }

    pub(crate) fn refused_by(&self) -> Option<Limit> {
        self.0.refused_by.get().copied()
    }

    pub(crate) fn answered(&self, status: StatusCode) {
        self.0.answered.get_or_init(|| status);
    }

    pub(crate) fn answer(&self) -> Option<StatusCode> {
        self.0.answered.get().copied()
    }
}

impl fmt::Debug for Work {
    /// Without the request: it has credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("id", &self.0.id).field("route", &self.route()).finish_non_exhaustive()
    }
}
