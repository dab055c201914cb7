//! Messages stored with a record, to be delivered afterwards.
//!
//! A message is *waiting* until a relay *claims* it; a delivery ends as *delivered*, waiting again after a pause, or
//! *dead*. A delivered message stays known by its key for a while, without its payload; a dead letter stays until a
//! person ends it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_core::record::Token;
use onlyonce_core::time::Timestamp;

use crate::Error;

/// What a message is sent as where nobody says otherwise.
pub const CONTENT_TYPE: &str = "application/json";

/// A side effect stored with a record: both are there, or neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The message's own key: the same at every delivery, and unique among the messages that are kept.
    pub key: Arc<str>,
    /// Where it goes, by name.
    pub destination: Arc<str>,
    /// What is delivered.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: Arc<str>,
    /// Messages of one destination and group are delivered in order; none: in any.
    pub group: Option<Arc<str>>,
    /// Not delivered before so long after it was stored.
    pub delay: Duration,
}

impl Message {
    /// A JSON message without order or delay.
    pub fn new(key: impl Into<Arc<str>>, destination: impl Into<Arc<str>>, payload: Bytes) -> Self {
        Self {
            key: key.into(),
            destination: destination.into(),
            payload,
            content_type: CONTENT_TYPE.into(),
            group: None,
            delay: Duration::ZERO,
        }
    }
}

/// A message that a relay has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The message's own key.
    pub key: Arc<str>,
    /// Where it goes, by name.
    pub destination: Arc<str>,
    /// What is delivered.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: Arc<str>,
    /// The group it is ordered in.
    pub group: Option<Arc<str>>,
    /// Which delivery this is, from 1.
    pub delivery: u32,
    /// Fences the claim: settling needs it.
    pub token: Token,
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Delivered; the provider's own id of it is kept.
    Delivered {
        /// What the provider calls it.
        provider_id: Option<Arc<str>>,
    },
    /// Failed; to be tried again after so long.
    Again {
        /// How long to wait.
        after: Duration,
        /// What went wrong.
        error: Arc<str>,
    },
    /// Given up.
    Dead {
        /// What went wrong.
        error: Arc<str>,
    },
}

/// A message that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message's own key.
    pub key: Arc<str>,
    /// Where it goes, by name.
    pub destination: Arc<str>,
    /// What was to be delivered.
    pub payload: Bytes,
    /// Every failed delivery, in order.
    pub errors: Vec<DeliveryError>,
}

/// A delivery that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryError {
    /// When, by the store's clock.
    pub at: Timestamp,
    /// Which delivery.
    pub delivery: u32,
    /// What went wrong.
    pub error: Arc<str>,
}

/// The messages of a store.
#[async_trait]
pub trait Outbox: fmt::Debug + Send + Sync {
    /// Claims up to `limit` messages that are due, each fenced by `token` until `lease` has passed.
    async fn claim(&self, token: Token, lease: Duration, limit: usize) -> Result<Vec<Claimed>, Error>;

    /// Ends a claimed delivery. False where the claim has lapsed and another relay has it: nothing is written.
    async fn settle(&self, key: &str, token: Token, settled: Settled) -> Result<bool, Error>;

    /// The provider's id of a delivered message that is still known; none where it has none or is not delivered.
    async fn provider_id(&self, key: &str) -> Result<Option<Arc<str>>, Error>;

    /// Dead letters, oldest first, with every error kept.
    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, Error>;
}
