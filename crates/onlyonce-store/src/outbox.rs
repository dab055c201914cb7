//! Messages stored with a record, to be delivered afterwards.
//!
//! A message is *waiting* until a relay *claims* it; a delivery ends as *delivered*, waiting again after a pause, or
//! *dead*. A delivered message stays known by its key for a while, without its payload; a dead letter stays until a
//! person ends it.
//!
//! 1. Of the messages of one destination and group at most one is claimed at a time: the first that is not delivered, by
//!    number. It is passed over only where it is dead and the claim says [`OnDead::Skip`].
//! 2. A claim reads what is due and not behind another message. One that turns out to be behind another is marked as *held*,
//!    and is not looked at again until the message ahead of it has been settled or discarded: a long group costs each of its
//!    messages one look, and the claims of other groups nothing.
//! 3. Settling needs the claim's token. A claim that has lapsed still settles while nobody else has the message.
//! 4. What an operator changes and its entry in the audit log are one commit.

#[cfg(any(feature = "mysql", feature = "sqlite", feature = "postgres"))]
pub(crate) mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_core::record::{Id, Token};
use onlyonce_core::time::Timestamp;

use crate::seal::Unsealable;
use crate::{Count, Cursor, Error, audit};

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

/// How many messages of a destination are wanted, and on which terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The destination.
    pub destination: Arc<str>,
    /// At most so many.
    pub limit: usize,
    /// How long each is claimed for.
    pub lease: Duration,
    /// What a dead letter does to its group.
    pub on_dead: OnDead,
}

/// What a dead letter does to the messages behind it in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDead {
    /// They wait until a person ends it.
    Block,
    /// They pass it.
    Skip,
}

/// What a claim got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The messages, in the order they fell due.
    pub claimed: Vec<Claimed>,
    /// More may be due than was looked at: claim again at once.
    pub is_more: bool,
}

/// A message that a relay has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The message's number: the order within a group.
    pub number: u64,
    /// The message's own key.
    pub key: Arc<str>,
    /// Where it goes, by name.
    pub destination: Arc<str>,
    /// What is delivered; or why it cannot be read.
    pub payload: Result<Bytes, Unsealable>,
    /// The payload's media type.
    pub content_type: Arc<str>,
    /// The group it is ordered in.
    pub group: Option<Arc<str>>,
    /// Which delivery this is, from 1.
    pub delivery: u32,
    /// How many deliveries have failed and count, since it was stored or redriven.
    pub failures: u32,
    /// How long ago it first fell due, since it was stored or redriven.
    pub age: Duration,
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
    /// Not delivered; to be tried again after so long.
    Again {
        /// How long to wait.
        after: Duration,
        /// Whether it counts as a failure. One that does not takes the place of the error before it if that said the same:
        /// a destination that asks to wait all day leaves one line.
        counts: bool,
        /// What went wrong.
        failed: Failed,
    },
    /// Given up.
    Dead {
        /// What went wrong.
        failed: Failed,
    },
}

/// What went wrong with a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The status of the answer; none where nobody answered.
    pub status: Option<u16>,
    /// What went wrong, for people.
    pub error: Arc<str>,
}

/// How a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// To be delivered, now or later.
    Waiting,
    /// A relay has it, or had it when it died.
    Claimed,
    /// Delivered.
    Delivered,
    /// Given up.
    Dead,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Claimed, Self::Delivered, Self::Dead];

    /// The name that columns, listings and metrics have.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Claimed => "claimed",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }

    /// The state of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// A message as people see it: all but the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its number.
    pub number: u64,
    /// Its own key.
    pub key: Arc<str>,
    /// Where it goes, by name.
    pub destination: Arc<str>,
    /// The group it is ordered in.
    pub group: Option<Arc<str>>,
    /// How it stands.
    pub state: State,
    /// How many deliveries have begun.
    pub deliveries: u32,
    /// When it was stored.
    pub created_at: Timestamp,
    /// When it may be delivered next; of a claim, when it lapses.
    pub due_at: Timestamp,
    /// When it was delivered.
    pub delivered_at: Option<Timestamp>,
    /// What the provider calls it.
    pub provider_id: Option<Arc<str>>,
    /// Every failed delivery, in order.
    pub errors: Vec<DeliveryError>,
    /// The record it was stored with.
    pub record: Option<Id>,
}

/// A delivery that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryError {
    /// When, by the store's clock.
    pub at: Timestamp,
    /// Which delivery.
    pub delivery: u32,
    /// The status of the answer; none where nobody answered.
    pub status: Option<u16>,
    /// What went wrong.
    pub error: Arc<str>,
}

/// The payload of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The bytes; none once it was delivered.
    pub bytes: Option<Bytes>,
    /// Their media type.
    pub content_type: Arc<str>,
}

/// Which messages to show: waiting and claimed ones in the order they first fell due, delivered ones in the order they were
/// delivered, others by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Only of this state.
    pub state: Option<State>,
    /// Only of this destination.
    pub destination: Option<Arc<str>>,
    /// Only what comes after this cursor of an earlier page of the same listing.
    pub after: Option<Cursor>,
    /// At most so many.
    pub limit: usize,
}

/// Some messages, and where to go on. A page may be short, or empty, and still have a next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The messages.
    pub items: Vec<Item>,
    /// Where to go on; none where this was the last page.
    pub next: Option<Cursor>,
}

/// What became of an operator's change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It was made, and is in the audit log.
    Applied,
    /// The message is not in a state for it. Nothing was written.
    Refused,
    /// There is no such message.
    Absent,
}

/// How the outbox stands, for gauges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// How many messages there are of each state.
    pub counts: Vec<(State, Count)>,
    /// The undelivered message, not a dead one, that fell due first, whatever was tried since.
    pub oldest: Option<Oldest>,
}

/// The message that waits longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// Its number.
    pub number: u64,
    /// Its own key.
    pub key: Arc<str>,
    /// Where it goes.
    pub destination: Arc<str>,
    /// When it first fell due.
    pub since: Timestamp,
    /// How long ago that was.
    pub age: Duration,
}

/// The messages of a store.
#[async_trait]
pub trait Outbox: fmt::Debug + Send + Sync {
    /// Claims messages that are due, of the wanted destinations only, each fenced by `token` until its lease has passed.
    async fn claim(&self, token: Token, wanted: &[Wanted]) -> Result<Claims, Error>;

    /// Ends a claimed delivery. False where another relay has claimed the message since, or it is gone: nothing is written.
    async fn settle(&self, claimed: &Claimed, settled: Settled) -> Result<bool, Error>;

    /// Has the next claim look at what is behind dead letters of a destination: for a relay whose settings say, maybe for the
    /// first time, that they are skipped.
    async fn pass_dead(&self, destination: &str) -> Result<(), Error>;

    /// Messages, for people.
    async fn list(&self, query: Query) -> Result<Page, Error>;

    /// One message.
    async fn item(&self, number: u64) -> Result<Option<Item>, Error>;

    /// The payload of a message.
    async fn payload(&self, number: u64) -> Result<Option<Payload>, Error>;

    /// Has a dead letter delivered again: it is due now, keeps its key, its place and its errors, its deliveries are numbered
    /// on, and its failures and its age count anew.
    async fn redrive(&self, number: u64, entry: audit::Entry) -> Result<Changed, Error>;

    /// Deletes a message. Refused while a claim on it has not lapsed.
    async fn discard(&self, number: u64, entry: audit::Entry) -> Result<Changed, Error>;

    /// Deletes up to `limit` messages that were delivered longer than `age` ago, and says how many it did.
    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error>;

    /// Counts and the oldest undelivered message; in time that does not grow with the store.
    async fn census(&self) -> Result<Census, Error>;
}
