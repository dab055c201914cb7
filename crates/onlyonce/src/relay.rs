//! The relay: delivers what was stored with records, at least once, each message with a key that is the same at every
//! delivery.
//!
//! ```text
//!  due? ── claim: one committed statement ── deliver: no transaction open ── settle: fenced by the claim's token
//! ```
//!
//! 1. A claim is held for twice the time that a delivery may take, and a delivery never outlives its claim. So a message
//!    is delivered twice only where a claim lapsed: its node died, or could not reach the store.
//! 2. No more is claimed than can begin now. While most places of a destination are taken, a claim waits a few milliseconds for
//!    more of them to become free: one claim of many costs the store little more than a claim of one. Messages of one group go
//!    one at a time, in the order of their numbers.
//! 3. How a delivery ended is one write: the provider's id, the end of the message and its payload, or the error and the next
//!    try. A store that does not take it is asked again until the claim lapses.
//! 4. After so many failures, or so long, a message is a dead letter: kept with every error until a person ends it
//!    ([`crate::operate`]).
//!
//! Deliveries into code of one's own:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use std::sync::{Arc, Mutex};
//!
//! use onlyonce::relay::{Deliver, Delivered, Delivery, Relay};
//! use onlyonce::{Engine, store::memory::Memory};
//!
//! struct Mailer;
//!
//! #[async_trait::async_trait]
//! impl Deliver for Mailer {
//!     async fn deliver(&self, delivery: &Delivery) -> Delivered {
//!         // Hand `delivery.key` on: who receives it twice knows it by that.
//!         println!("{}: {} bytes", delivery.key, delivery.payload.len());
//!         Delivered::Done { provider_id: None }
//!     }
//! }
//!
//! let engine = Engine::new(Arc::new(Memory::new()));
//! let relay = Relay::new(&engine).to("receipts", Mailer).start();
//! // … until the process stops:
//! relay.stop(std::time::Duration::from_secs(25)).await;
//! # }
//! ```

mod terms;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_store::{Error, ErrorKind};

pub use terms::Terms;
pub use worker::Running;

use crate::engine::Engine;

/// Delivers messages of a destination.
#[async_trait]
pub trait Deliver: Send + Sync {
    /// Delivers a message. It may have been delivered before: `delivery.key` tells. A panic is [`Delivered::Again`], and so
    /// is a delivery that takes longer than [`Terms::timeout`].
    async fn deliver(&self, delivery: &Delivery) -> Delivered;

    /// The same, with what only HTTP knows.
    #[doc(hidden)]
    async fn exchange(&self, delivery: &Delivery) -> Exchanged {
        self.deliver(delivery).await.into()
    }
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The message's key, the same at every delivery.
    pub key: Arc<str>,
    /// Where it goes, by name.
    pub destination: Arc<str>,
    /// What is delivered.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: Arc<str>,
    /// The group it is ordered in.
    pub group: Option<Arc<str>>,
    /// Which delivery this is, from 1. It goes on rising after a redrive.
    pub number: u32,
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It arrived.
    Done {
        /// What the receiver calls it; at most 255 characters are kept.
        provider_id: Option<String>,
    },
    /// Try again.
    Again {
        /// Not before this, where the receiver asks to wait; such a wait does not count as a failure. None: it failed.
        after: Option<Duration>,
        /// What went wrong, for people. It must not contain the payload.
        error: String,
    },
    /// Trying again is of no use.
    Dead {
        /// What went wrong, for people. It must not contain the payload.
        error: String,
    },
}

/// How a delivery ended, with what only HTTP knows.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    pub delivered: Delivered,
    /// The status of the answer; none where nobody answered.
    pub status: Option<u16>,
    /// Whether trying again counts as a failure.
    pub counts: bool,
}

impl From<Delivered> for Exchanged {
    fn from(delivered: Delivered) -> Self {
        let counts = match &delivered {
            Delivered::Again { after, .. } => after.is_none(),
            Delivered::Done { .. } | Delivered::Dead { .. } => true,
        };
        Self { delivered, status: None, counts }
    }
}

/// How often what is due is looked for, where nobody says otherwise.
const EVERY: Duration = Duration::from_secs(1);

/// Delivers the messages of a store; see the [module](self).
#[must_use = "nothing is delivered before `start`"]
pub struct Relay {
    engine: Arc<Engine>,
    destinations: Vec<Destination>,
    every: Duration,
}

/// A destination, who delivers there, and on which terms.
struct Destination {
    name: Arc<str>,
    deliver: Arc<dyn Deliver>,
    terms: Terms,
}

impl Relay {
    /// A relay without destinations.
    pub fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: engine.clone(), destinations: Vec::new(), every: EVERY }
    }

    /// Delivers messages of this destination so, on the usual terms.
    pub fn to(self, name: impl Into<Arc<str>>, deliver: impl Deliver + 'static) -> Self {
        self.to_with(name, deliver, Terms::default())
    }

    /// The same on these terms.
    pub fn to_with(
        mut self,
        name: impl Into<Arc<str>>,
        deliver: impl Deliver + 'static,
        terms: Terms,
    ) -> Self {
        self.destinations.push(Destination { name: name.into(), deliver: Arc::new(deliver), terms });
        self
    }

    /// Looks for what is due this often. After a delivery, while there is more, and when this process stored a message it
    /// looks at once.
    pub fn every(mut self, span: Duration) -> Self {
        self.every = span;
        self
    }

    /// Starts it on this runtime. A store without an outbox has nothing to deliver.
    pub fn start(self) -> Running {
        Running::start(self)
    }

    /// Delivers until nothing is due, and says how many deliveries were made.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or has no outbox.
    pub async fn once(self) -> Result<usize, Error> {
        if self.engine.store().outbox().is_none() {
            return Err(Error::new(ErrorKind::Misconfigured, "this store has no outbox; use another engine"));
        }
        worker::once(self).await
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.destinations.iter().map(|destination| &destination.name).collect();
        f.debug_struct("Relay")
            .field("destinations", &names)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}
