//! Records in Amazon DynamoDB: any number of nodes on one table.
//!
//! ```no_run
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use onlyonce_core::record::Id;
//! use onlyonce_store::Store;
//! use onlyonce_store::dynamodb::{DynamoDb, Options};
//!
//! let store = DynamoDb::open("dynamodb://payments?region=eu-central-1", Options::default()).await.unwrap();
//! store.create().await.unwrap();
//! store.prepare().await.unwrap();
//! assert_eq!(store.load(Id([7; 32])).await.unwrap(), None);
//! # });
//! ```
//!
//! 1. **A record is an item** with the columns of the SQL engines as attributes; a large one has further items (`layout.rs`).
//! 2. **One call to reserve, one to finish**: a conditional `PutItem` (`write.rs`). What goes with a record (an entry of the
//!    audit log, the result of a phase, a request) is written in a transaction with it.
//! 3. **What is due** is found by a sparse index, which may be a second late (`index.rs`).
//! 4. **Expired records** are deleted by DynamoDB's time to live, or by the reaper with `reap=index`. What stood beside a record that
//!    is gone is found by the reaper (`left.rs`).
//! 5. **The clock is the server's**, as the date of its answers tells it: to two seconds (`clock.rs`). Leases are therefore at
//!    least ten seconds.
//! 6. **A lost answer is `Unavailable`**: the write may have taken place.
//! 7. No messages, no archive, no completion in a transaction of the user's own.
//!
//! Calls are JSON over HTTP, signed here (`client.rs`, `sign.rs`), with credentials as AWS's tools find them
//! (`credentials.rs`): the SDK would cost more to compile than all other engines together.

mod audit;
mod client;
mod clock;
mod credentials;
mod failure;
mod http;
mod index;
mod layout;
mod left;
mod read;
mod reap;
mod scan;
mod sign;
mod table;
mod url;
mod value;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_core::record::{Id, Seen, StateName};
use onlyonce_core::time::Timestamp;
use serde_json::Value;

use self::client::Client;
pub use self::credentials::Keys;
use self::credentials::Provider;
use self::failure::Fault;
use self::layout::{HEAD, Pieces, REQUEST, SHARDS, STORE, Stored};
use self::read::For;
use self::url::{Database, Reap};
use self::value::Item;
use crate::audit::Entry;
use crate::outbox::Outbox;
use crate::promises::{self, Expiry, Listing, Survives};
use crate::result::PhaseResult;
use crate::seal::Keyring;
use crate::{
    Alive, Audit, Change, Count, Epoch, EpochSeen, Error, ErrorKind, Expired, Finding, KeyUse, Migration,
    Page, Promises, Query, Schema, Store, Swapped, sql,
};

/// How a table is used. Every value works, but for [`Expired::Keep`].
#[derive(Clone, Debug)]
pub struct Options {
    /// What becomes of records that have expired: in DynamoDB they can only be deleted.
    pub expired: Expired,
    /// How long a request's call may take.
    pub request_timeout: Duration,
    /// What answers, results of phases and requests are encrypted with; none: they stand in clear.
    pub keyring: Option<Keyring>,
    /// Whose calls they are; none: as AWS's tools find it, in the environment, a profile, or by the role of the container or
    /// the machine.
    pub keys: Option<Keys>,
    /// For tests: by so many microseconds the server's clock is taken to be later than it says.
    #[doc(hidden)]
    pub ahead: Arc<AtomicI64>,
    /// For tests on an emulator that is slow: into how many parts an index is divided. All nodes have the same.
    #[doc(hidden)]
    pub shards: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            expired: Expired::Delete,
            request_timeout: Duration::from_secs(5),
            keyring: None,
            keys: None,
            ahead: Arc::default(),
            shards: SHARDS,
        }
    }
}

/// How long a call of sweeper, reaper and operators may take.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// How far two nodes may differ about the server's time.
const CLOCK_WITHIN: Duration = Duration::from_secs(2);
/// How late an index usually is.
const INDEX_LATE: Duration = Duration::from_secs(1);

/// The engine for records in DynamoDB; see the module's documentation.
pub struct DynamoDb {
    client: Arc<Client>,
    shards: u8,
    request_timeout: Duration,
    keyring: Option<Keyring>,
    /// From when on the reaper looks for what is left beside records, in microseconds of the server's clock.
    look_at: AtomicI64,
}

impl DynamoDb {
    /// Looks at the table of a URL, and checks that it can be used. Nothing is changed there. A table that is missing is
    /// refused by [`Store::prepare`], and created by [`DynamoDb::create`].
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL, the credentials or the table's key is wrong, or expired records are to be kept;
    /// `Unavailable` where DynamoDB does not answer in time.
    pub async fn open(url: &str, options: Options) -> Result<Self, Error> {
        if options.expired == Expired::Keep {
            let message = "expired records cannot be kept in DynamoDB; write expired = \"delete\", or use PostgreSQL or SQLite";
            return Err(Error::new(ErrorKind::Misconfigured, message).having_written_nothing());
        }
        let database = Database::parse(url, variable)?;
        let provider = Provider::new(Box::new(variable), options.keys, database.endpoint.is_local());
        let store = Self {
            client: Arc::new(Client::new(database, provider, options.ahead)),
            shards: options.shards,
            request_timeout: options.request_timeout,
            keyring: options.keyring,
            look_at: AtomicI64::new(0),
        };
        if let Some(table) = table::described(&store).await? {
            table::refuse(&store, &table)?;
        }
        Ok(store)
    }

    /// What a URL names: table and region.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL cannot be used. It does not connect.
    pub fn shown(url: &str) -> Result<String, Error> {
        Ok(Database::parse(url, variable)?.shown())
    }

    /// Creates the table where it is missing, with its indexes and time to live, and waits until it can be used. Safe from
    /// many processes at once, and more than once.
    ///
    /// # Errors
    ///
    /// As for [`DynamoDb::open`]; `Misconfigured` also where the role may not create tables.
    pub async fn create(&self) -> Result<(), Error> {
        table::create(self).await
    }

    /// The layout as it is, and what [`DynamoDb::create`] would do.
    ///
    /// # Errors
    ///
    /// As for [`DynamoDb::open`].
    pub async fn schema(&self) -> Result<Schema, Error> {
        let is_there = match table::described(self).await? {
            Some(_) => self.item(For::Background, Item::key(STORE, HEAD)).await?.is_some(),
            None => false,
        };
        let first = Migration {
            number: 1,
            name: "first",
            sql: format!("CreateTable {:#}", table::definition(self)),
            needs: 1,
        };
        let (version, pending) = if is_there { (1, Vec::new()) } else { (0, vec![first]) };
        Ok(Schema { version, latest: 1, pending })
    }

    async fn call(&self, who: For, operation: &str, body: &Value) -> Result<Value, Fault> {
        self.client.call(self.within(who), operation, body).await
    }

    fn within(&self, who: For) -> Duration {
        match who {
            For::Requests => self.request_timeout,
            For::Background => BACKGROUND_TIMEOUT,
        }
    }

    fn table(&self) -> &str {
        &self.client.database.table
    }

    fn reaping(&self) -> Reap {
        self.client.database.reap
    }

    fn shown_here(&self) -> String {
        self.client.database.shown()
    }

    /// The record, at the store's now.
    fn seen(&self, stored: &Stored) -> Result<Seen, Error> {
        stored.seen(self.client.clock.now(), self.keyring.as_ref())
    }

    async fn look_at_epoch(&self, who: For) -> Result<(Epoch, Timestamp, [u8; 16]), Error> {
        let item = self.item(who, Item::key(STORE, HEAD)).await?;
        let epoch = item.as_ref().and_then(|item| u64::try_from(item.number("epoch")?).ok());
        let name = item.and_then(|item| item.bytes("name")?.try_into().ok());
        let (Some(epoch), Some(name)) = (epoch, name) else {
            let message = format!(
                "{}: the table has no epoch or no name: nobody has prepared it, or the item was deleted; run \"onlyonce \
                 migrate\"",
                self.shown_here()
            );
            return Err(Error::new(ErrorKind::Misconfigured, message));
        };
        Ok((Epoch(epoch), self.client.clock.now(), name))
    }
}

/// A variable of this process.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[async_trait]
impl Store for DynamoDb {
    async fn prepare(&self) -> Result<(), Error> {
        let Some(table) = table::described(self).await? else { return Err(table::missing(self)) };
        table::refuse(self, &table)?;
        match self.item(For::Background, Item::key(STORE, HEAD)).await? {
            Some(_) => Ok(()),
            // A table that somebody made by other tools.
            None => table::name(self).await,
        }
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let stored = self.stored(For::Requests, id).await?;
        stored.map(|stored| self.seen(&stored)).transpose()
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        write::swap(self, id, change).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        scan::list(self, &query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        reap::reap(self, limit).await
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        reap::erase(self, scope, limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        Ok(scan::count())
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        scan::count_alive(self, scope, limit).await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        let (epoch, now, store) = self.look_at_epoch(For::Requests).await?;
        Ok(EpochSeen { epoch, now, store })
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.raise().await
    }

    async fn results(&self, id: Id, used_at: Timestamp) -> Result<Vec<PhaseResult>, Error> {
        let mut results = Vec::new();
        let all = self.of_parts(id, "begins_with(#part, :part)", "with.result.");
        for item in self.query(For::Requests, all).await? {
            if item.number("used_at") != Some(used_at.as_micros()) {
                continue;
            }
            let altered = || layout::corrupt(id, "the result of a phase was altered");
            let number =
                item.number("number").and_then(|number| u32::try_from(number).ok()).ok_or_else(altered)?;
            let phase = item.text("phase").ok_or_else(altered)?.into();
            let sealed = item.bytes("sealed");
            let json =
                sql::open_result(self.keyring.as_ref(), id, number, item.text("result"), sealed.as_deref())?;
            results.push(PhaseResult { number, phase, json });
        }
        results.sort_by_key(|result| result.number);
        Ok(results)
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        let Some(item) = self.item(For::Requests, Item::key(&id.0, REQUEST)).await? else { return Ok(None) };
        if item.number("used_at") != Some(used_at.as_micros()) {
            return Ok(None);
        }
        let request = match Pieces::of_request(&item) {
            Some(pieces) => self.joined(For::Requests, id, &pieces).await?,
            None => item.bytes("request"),
        };
        let request =
            request.ok_or_else(|| layout::corrupt(id, "its request, or a part of it, is missing"))?;
        sql::open_request(self.keyring.as_ref(), id, &request, item.bytes("key_id").as_deref()).map(Some)
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        index::count_requests(self, limit).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        table::examine(self).await
    }

    async fn keys_in_use(&self) -> Result<Vec<KeyUse>, Error> {
        reap::keys_in_use(self).await
    }

    fn promises(&self) -> Promises {
        Promises {
            clock: promises::Clock::Told { within: CLOCK_WITHIN },
            survives: Survives::Failover,
            listing: Listing::Late { usually: INDEX_LATE },
            expiry: match self.reaping() {
                Reap::Ttl => Expiry::Theirs,
                Reap::Index => Expiry::Ours,
            },
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
impl Audit for DynamoDb {
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

impl fmt::Debug for DynamoDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDb").field("at", &self.shown_here()).finish_non_exhaustive()
    }
}
