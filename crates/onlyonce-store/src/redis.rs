//! Records in Redis or Redis Cluster: any number of nodes on one server, or on several that share the keys.
//!
//! ```no_run
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use onlyonce_core::record::Id;
//! use onlyonce_store::Store;
//! use onlyonce_store::redis::{Options, Redis};
//!
//! let url = "redis://onlyonce:secret@localhost:6379/0?prefix=payments";
//! let store = Redis::open(url, Options::default()).await.unwrap();
//! store.prepare().await.unwrap();
//! assert_eq!(store.load(Id([7; 32])).await.unwrap(), None);
//! # });
//! ```
//!
//! 1. **A record is one value**, with a head that can be read and the columns of the SQL engines behind it (`layout.rs`).
//! 2. **One round trip to reserve, one to finish**: plain commands where there is nothing to compare, one small script on one
//!    key where there is (`write.rs`). Commands of many callers share a connection (`server.rs`).
//! 3. **What is due** is found by a list that is never late (`due.rs`).
//! 4. **The clock is the server's**, as it tells it in every trip (`clock.rs`). No node's calendar decides anything.
//! 5. **Durable**: a server that would acknowledge a write before it is on disk, or delete records when memory is full, is
//!    refused (`examine.rs`). A replica that takes over may lack the last writes, and [`Store::examine`] says so; with
//!    `replicas=N` in the URL, what was told is on N of them (`master.rs`).
//! 6. **A lost answer is `Unavailable`**: the write may have taken place.
//! 7. **In a cluster** each command goes to the master that has its key, and follows keys that move (`cluster.rs`).
//! 8. No messages, no archive, no completion in a transaction of the user's own.
//!
//! Redis 7.0 or newer, Valkey 7.2 or newer.

mod audit;
mod clock;
mod cluster;
mod connection;
mod copies;
mod due;
mod erase;
mod examine;
mod failure;
mod layout;
mod lineage;
mod list;
mod master;
mod scan;
mod script;
mod server;
mod url;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_core::record::{Id, Seen, StateName};
use onlyonce_core::time::Timestamp;
use redis::Pipeline;

use self::clock::Clock;
use self::connection::Link;
pub use self::copies::Copies;
use self::layout::Keys;
use self::master::Ending;
use self::url::{Database, Durability};
use crate::audit::Entry;
use crate::outbox::Outbox;
use crate::promises::{self, Expiry, Listing, Survives};
use crate::result::PhaseResult;
use crate::seal::Keyring;
use crate::{
    Alive, Audit, Change, Count, Epoch, EpochSeen, Error, ErrorKind, Expired, Finding, KeyUse, Migration,
    Page, Promises, Query, Schema, Store, Swapped, failpoint, sql,
};

/// How a server is used. Every value works, but for [`Expired::Keep`].
#[derive(Clone, Debug)]
pub struct Options {
    /// What becomes of records that have expired: Redis can only delete them.
    pub expired: Expired,
    /// How long the server may take to answer a request's call.
    pub request_timeout: Duration,
    /// What answers, results of phases and requests are encrypted with; none: they stand in clear.
    pub keyring: Option<Keyring>,
    /// For tests: by so many microseconds the server's clock is taken to be later than it says.
    #[doc(hidden)]
    pub ahead: Arc<AtomicI64>,
}

impl Default for Options {
    fn default() -> Self {
        let request_timeout = Duration::from_secs(5);
        Self { expired: Expired::Delete, request_timeout, keyring: None, ahead: Arc::default() }
    }
}

/// How long the server may work for sweeper, reaper and operators.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// How far two nodes may differ about the server's time: less than a round trip.
const CLOCK_WITHIN: Duration = Duration::from_millis(50);

/// The engine for records in Redis; see the module's documentation.
pub struct Redis {
    /// Reads of requests.
    looks: Link,
    writes: Link,
    background: Link,
    keys: Keys,
    keyring: Option<Keyring>,
}

impl Redis {
    /// Connects to the server of a URL, and checks that it can be used. Nothing is changed there.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL, the login, the server's version or one of its settings is wrong, or expired records are
    /// to be kept; `Unavailable` where the server does not answer in time, or is a replica. Never with the password.
    pub async fn open(url: &str, options: Options) -> Result<Self, Error> {
        if options.expired == Expired::Keep {
            let message = "expired records cannot be kept in Redis; write expired = \"delete\", or use PostgreSQL or SQLite";
            return Err(Error::new(ErrorKind::Misconfigured, message).having_written_nothing());
        }
        let database = Arc::new(Database::parse(url)?);
        let clock = Arc::new(Clock::new(options.ahead));
        let link = |ending| {
            let ending = if database.replicas > 0 { Ending::Wait } else { ending };
            Link::ending(&database, &clock, options.request_timeout, ending)
        };
        let redis = Self {
            looks: link(Ending::Role),
            writes: link(Ending::Time),
            background: Link::new(&database, &clock, BACKGROUND_TIMEOUT),
            keys: Keys { prefix: database.prefix.clone() },
            keyring: options.keyring,
        };
        examine::refuse(&redis.background, &redis.keys).await?;
        Ok(redis)
    }

    /// What a URL names, safe to show: hosts, ports and number of the database, nothing secret.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL cannot be used. It does not connect.
    pub fn shown(url: &str) -> Result<String, Error> {
        let database = Database::parse(url)?;
        Ok(format!("{}://{}", database.scheme, database.shown))
    }

    /// The layout as it is, and what [`Store::prepare`] would write.
    ///
    /// # Errors
    ///
    /// As for [`Redis::open`].
    pub async fn schema(&self) -> Result<Schema, Error> {
        let mut trip = Pipeline::new();
        trip.cmd("GET").arg(self.keys.layout());
        let layout = self.background.ask(trip).await?.bytes()?;
        let first = Migration {
            number: 1,
            name: "first",
            sql: format!("SET {} {} NX", self.keys.layout(), layout::LAYOUT),
            needs: 1,
        };
        let (version, pending) = if layout.is_some() { (1, Vec::new()) } else { (0, vec![first]) };
        Ok(Schema { version, latest: 1, pending })
    }

    /// The record of a value, at the store's `now`.
    fn seen(&self, id: Id, value: &[u8], now: Timestamp) -> Result<Seen, Error> {
        let (row, _) = layout::decode(&id, value)?;
        row.seen(now.max(Timestamp::from_micros(row.written_at)), self.keyring.as_ref())
    }

    /// The store's now.
    async fn now(&self) -> Result<Timestamp, Error> {
        Ok(self.background.ask(Pipeline::new()).await?.now)
    }
}

#[async_trait]
impl Store for Redis {
    async fn prepare(&self) -> Result<(), Error> {
        examine::refuse(&self.background, &self.keys).await?;
        let mut trip = Pipeline::new();
        trip.cmd("SET").arg(self.keys.layout()).arg(layout::LAYOUT).arg("NX");
        trip.cmd("SET").arg(self.keys.name()).arg(&crate::memory::random_name()).arg("NX");
        trip.cmd("SET").arg(self.keys.epoch()).arg(0).arg("NX");
        failpoint!("redis.migrate.before");
        self.writes.ask(trip).await?.finish()?;
        failpoint!("redis.migrate.after");
        Ok(())
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let mut trip = Pipeline::new();
        trip.cmd("GET").arg(self.keys.record(id));
        let mut answers = self.looks.ask(trip).await?;
        let value = answers.bytes()?;
        value.map(|value| self.seen(id, &value, answers.now)).transpose()
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        write::swap(self, id, change).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        scan::list(self, &query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        due::reap(self, limit).await
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        let erased = erase::erase(self, scope, limit).await?;
        // Where replicas have to confirm what is told, also that it is gone.
        self.writes.ask(Pipeline::new()).await?;
        Ok(erased)
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        scan::count(self).await
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        scan::count_alive(self, scope, limit).await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        let mut trip = Pipeline::new();
        trip.cmd("GET").arg(self.keys.epoch());
        trip.cmd("GET").arg(self.keys.name());
        let mut answers = self.looks.ask(trip).await?;
        let epoch = answers.bytes()?.and_then(|digits| str::from_utf8(&digits).ok()?.parse().ok());
        let name = answers.bytes()?.and_then(|name| name.try_into().ok());
        let (Some(epoch), Some(store)) = (epoch, name) else {
            let message = format!(
                "prefix \"{}\" of {:?} has no epoch or no name: nobody has prepared it, or its keys were deleted; run \
                 \"onlyonce migrate\"",
                self.keys.prefix, self
            );
            return Err(Error::new(ErrorKind::Misconfigured, message));
        };
        Ok(EpochSeen { epoch: Epoch(epoch), now: answers.now, store })
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        let key = self.keys.epoch().into_bytes();
        let now = self.writes.stamp(&key, Timestamp::from_micros(0)).await?;
        let mut trip = Pipeline::new();
        script::call(&mut trip, &script::RAISE, &[key]).arg(now.as_micros());
        self.writes.ask(trip).await?.finish()?;
        Ok(())
    }

    async fn results(&self, id: Id, used_at: Timestamp) -> Result<Vec<PhaseResult>, Error> {
        let mut trip = Pipeline::new();
        trip.cmd("HGETALL").arg(self.keys.results(id));
        let words = self.looks.ask(trip).await?.strings()?;
        let mut results = Vec::new();
        for pair in words.chunks_exact(2) {
            let stored = layout::decode_result(id, &pair[1])?;
            if stored.used_at == used_at {
                let number =
                    str::from_utf8(&pair[0]).ok().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX);
                let json = sql::open_result(self.keyring.as_ref(), id, number, stored.clear, stored.sealed)?;
                results.push(PhaseResult { number, phase: stored.phase.into(), json });
            }
        }
        results.sort_by_key(|result| result.number);
        Ok(results)
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        let mut trip = Pipeline::new();
        trip.cmd("GET").arg(self.keys.request(id));
        let Some(value) = self.looks.ask(trip).await?.bytes()? else { return Ok(None) };
        let stored = layout::decode_request(id, &value)?;
        if stored.used_at != used_at {
            return Ok(None);
        }
        sql::open_request(self.keyring.as_ref(), id, stored.request, stored.key_id).map(Some)
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        let mut trip = Pipeline::new();
        for bucket in layout::buckets() {
            trip.cmd("SCARD").arg(self.keys.requests(bucket));
        }
        let mut answers = self.background.ask(trip).await?;
        let mut count = 0;
        for _ in layout::buckets() {
            count += usize::try_from(answers.integer()?).unwrap_or(0);
        }
        Ok(count.min(limit))
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        examine::examine(&self.background, &self.keys).await
    }

    async fn keys_in_use(&self) -> Result<Vec<KeyUse>, Error> {
        erase::keys_in_use(self).await
    }

    fn promises(&self) -> Promises {
        let database = self.looks.database();
        Promises {
            clock: promises::Clock::Told { within: CLOCK_WITHIN },
            survives: match database.durability {
                Durability::Checked | Durability::Vouched if database.replicas > 0 => Survives::Failover,
                Durability::Checked | Durability::Vouched => Survives::Crash,
                Durability::None => Survives::Nothing,
            },
            listing: Listing::Immediate,
            expiry: Expiry::Ours,
            transactions: false,
            shared: true,
            encrypts: self.keyring.is_some(),
        }
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        None
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

#[async_trait]
impl Audit for Redis {
    async fn write(&self, entry: Entry) -> Result<(), Error> {
        audit::write(self, &entry).await
    }

    async fn list(&self, query: crate::audit::Query) -> Result<crate::audit::Page, Error> {
        audit::list(self, &query).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        audit::prune(self, age, limit).await
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.looks.database();
        f.debug_struct("Redis")
            .field("at", &database.shown)
            .field("prefix", &database.prefix)
            .finish_non_exhaustive()
    }
}
