//! Records in PostgreSQL: any number of nodes on one database.
//!
//! ```no_run
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use onlyonce_core::record::Id;
//! use onlyonce_store::Store;
//! use onlyonce_store::postgres::{Options, Postgres};
//!
//! let url = "postgres://onlyonce:secret@db.internal/payments?schema=onlyonce";
//! let store = Postgres::open(url, Options::default()).await.unwrap();
//! store.prepare().await.unwrap();
//! assert_eq!(store.load(Id([7; 32])).await.unwrap(), None);
//! # });
//! ```
//!
//! 1. **A record is a row of columns** that people read with `psql` and that other programs may change: with a new revision
//!    and a stamp that is not earlier (`migrations/postgres/0001-first.sql`). A row whose columns contradict each other is
//!    `Corrupt`, only for requests of that record.
//! 2. **One round trip to reserve, one to finish.** Each write is one statement, committed when it answers. A lost insert
//!    returns the current record; a lost update needs a second round trip for it (`write.rs`).
//! 3. **Many writes, one commit**: writes that arrive during a commit share the next batch (`crate::batch`), which is
//!    sent while the one before is still executed (`pool.rs`). No batch waits for one row, and one bad row fails alone.
//!    Reads are batched too (`look.rs`): polling a thousand records takes two connections and not a thousand.
//! 4. **The clock is the server's.** No node's clock decides anything.
//! 5. **A lost answer is `Unavailable`** (`pool.rs`): the write may have been committed. The caller reads the record and
//!    recognises its own revision or token. The same holds for a commit that a synchronous standby did not confirm; with
//!    such a standby, nothing is returned that it may not have (`doubt.rs`).
//! 6. **Nothing hangs.** Connecting, waiting for a lock, a statement and its answer each have a time-out.
//! 7. **Migrations** are safe from any number of nodes at once (`migration.rs`). If there are none to apply, a role that may
//!    only read and write rows is enough. docs/engines.md lists the grants.
//! 8. TLS is fully verified, or off (`url.rs`).
//!
//! A pooler in front must use session pooling (PgBouncer: `pool_mode=session`): statements are prepared once per
//! connection, and time-outs are session settings.

mod audit;
mod connection;
mod doubt;
mod erase;
mod examine;
mod failure;
mod grants;
mod index;
mod look;
mod migration;
mod outbox;
mod pool;
mod reap;
mod row;
mod scan;
mod statement;
mod tls;
mod url;
#[doc(hidden)]
pub mod user;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_core::record::{Id, Record, Seen, StateName, Token};
use onlyonce_core::time::Timestamp;
use tokio::sync::Semaphore;
use tokio_postgres::{Row, Transaction};

pub use self::grants::grants;

use self::doubt::Doubts;
use self::examine::Settings;
use self::look::Looked;
use self::pool::{Asked, Plans, Pool, Tuning};
use self::row::{Moment, Swap, column};
use self::statement::Verb;
use self::url::Database;
use self::write::Answer;
use crate::audit::Entry;
use crate::batch::{Batcher, Limits};
use crate::outbox::{Census, Changed, Claimed, Claims, Item, Outbox, Payload, Settled, Wanted};
use crate::promises::{Clock, Expiry, Listing, Survives};
use crate::result::PhaseResult;
use crate::seal::Keyring;
use crate::{
    Alive, Audit, Change, Count, Epoch, EpochSeen, Error, ErrorKind, Expired, Finding, KeyUse, Page,
    Promises, Query, Schema, Store, Swapped, sql,
};

/// How a database is used. Every value works; the defaults were measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// What becomes of records that have expired.
    pub expired: Expired,
    /// How many connections this node has for reads and for writes outside a batch. There are five more: one for batches, two
    /// for lone inserts, and two for background work.
    pub connections: usize,
    /// How long the server may work on a statement of a request.
    pub statement_timeout: Duration,
    /// How long a write waits for a lock on its record.
    pub lock_wait: Duration,
    /// What answers, results of phases and payloads are encrypted with; none: they stand in clear.
    pub keyring: Option<Keyring>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            expired: Expired::Delete,
            connections: 12,
            statement_timeout: Duration::from_secs(5),
            lock_wait: Duration::from_millis(500),
            keyring: None,
        }
    }
}

/// The limits of a batch of writes. Three batches in flight were no faster than two.
const LIMITS: Limits = Limits { rows_max: 256, bytes_max: 1 << 20, in_flight_max: 2 };
/// The limits of a batch of reads, and of one of deliveries that are settled: a few bytes each. At most two connections, briefly.
const SMALL: Limits = Limits { rows_max: 128, bytes_max: usize::MAX, in_flight_max: 2 };
/// How long a batch waits for a concurrent insert of one of its records, and a lone write for a row lock.
const BATCH_LOCK_WAIT: Duration = Duration::from_millis(25);
/// Connections for sweeper, reaper, relay and operators, and how long the server may work for them.
const BACKGROUND: usize = 2;
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// The engine for many nodes; see the module's documentation.
pub struct Postgres {
    swaps: Batcher<Swap, Answer>,
    looks: Batcher<Id, Looked>,
    deliveries: Batcher<outbox::Done, bool>,
    /// Reads, and writes outside a batch.
    requests: Arc<Pool>,
    /// Half of the connections of `requests`: writes that wait for row locks leave the others to reads.
    alone: Arc<Semaphore>,
    background: Arc<Pool>,
    database: Arc<Database>,
    /// What is sent in transactions of the user's own.
    texts: user::Texts,
    expired: Expired,
    keyring: Option<Keyring>,
    /// The oldest release that may use the schema, as last read.
    needs: AtomicI32,
}

impl Postgres {
    /// Connects to the database of a URL, and checks that it can be used. Nothing is changed there:
    /// [`Store::prepare`] applies the migrations.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL, a certificate, the password, the role, the database, the server or its version is
    /// wrong; `Unavailable` where the server does not answer in time, is read-only or in recovery. Never with the
    /// password.
    pub async fn open(url: &str, options: Options) -> Result<Self, Error> {
        let database = Arc::new(Database::parse(url)?);
        let doubts = Arc::new(Doubts::default());
        let tuning = Tuning {
            connections: options.connections,
            statement: options.statement_timeout,
            lock: options.lock_wait,
            plans: Plans::ByIndex,
        };
        let pool = |tuning| Arc::new(Pool::new(&database, &doubts, tuning));
        let requests = pool(tuning);
        let batches = pool(Tuning { connections: LIMITS.in_flight_max, lock: BATCH_LOCK_WAIT, ..tuning });
        let background = pool(Tuning {
            connections: BACKGROUND,
            statement: BACKGROUND_TIMEOUT,
            plans: Plans::Anew,
            ..tuning
        });
        examine::refuse_untested(&background.connect().await?.client, &database).await?;
        let keyring = options.keyring.clone();
        let swaps = Batcher::new(LIMITS, move |swaps: Vec<Swap>| {
            let (batches, keyring) = (batches.clone(), keyring.clone());
            async move { write::together(&batches, keyring.as_ref(), swaps).await }
        });
        let (looking, keyring) = (requests.clone(), options.keyring.clone());
        let looks = Batcher::new(SMALL, move |ids: Vec<Id>| {
            let (looking, keyring) = (looking.clone(), keyring.clone());
            async move { look::together(&looking, keyring.as_ref(), ids).await }
        });
        let delivering = requests.clone();
        let deliveries = Batcher::new(SMALL, move |done: Vec<outbox::Done>| {
            let delivering = delivering.clone();
            async move { outbox::deliver_together(&delivering, done).await }
        });
        let alone = Arc::new(Semaphore::new(options.connections.div_ceil(2).max(1)));
        Ok(Self {
            texts: user::Texts::of(&database.quoted_schema()),
            swaps,
            looks,
            deliveries,
            requests,
            alone,
            background,
            database,
            expired: options.expired,
            keyring: options.keyring,
            needs: AtomicI32::new(0),
        })
    }

    /// What a URL names, safe to show: hosts, ports and database, nothing secret.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL, or a file that it names, cannot be used. It does not connect.
    pub fn shown(url: &str) -> Result<String, Error> {
        Ok(format!("postgres://{}", Database::parse(url)?.shown))
    }

    /// The schema as it is, and what [`Store::prepare`] would apply to it.
    ///
    /// # Errors
    ///
    /// As for [`Store::prepare`], but that nothing is changed.
    pub async fn schema(&self) -> Result<Schema, Error> {
        let connection = self.background.connect().await?;
        Ok(migration::schema(&connection.client, &self.database).await?)
    }

    /// [`Store::swap`] in a transaction of the caller's, in the same database: the record commits or rolls back together with
    /// the caller's own rows. If the swap is lost, the record is shown as the transaction sees it. The record stays locked
    /// until the transaction ends: call it last. What is attached to the change is written with it.
    ///
    /// # Errors
    ///
    /// As for [`Store::swap`]. The transaction can then only be rolled back.
    pub async fn swap_in(
        &self,
        transaction: &Transaction<'_>,
        id: Id,
        change: Change,
    ) -> Result<Swapped, Error> {
        self.check_release()?;
        let keyring = self.keyring.as_ref();
        write::in_transaction(transaction, &self.database, keyring, Swap::of(id, change, keyring)).await
    }

    async fn swap_alone(&self, swap: Swap) -> Result<Swapped, Error> {
        write::in_a_task(self.requests.clone(), self.alone.clone(), self.keyring.clone(), swap).await
    }

    /// Refuses reads and writes on a schema that a newer release has changed incompatibly.
    fn check_release(&self) -> Result<(), Error> {
        Ok(migration::check_release(&self.database, self.needs.load(Ordering::Relaxed))?)
    }
}

#[async_trait]
impl Store for Postgres {
    async fn prepare(&self) -> Result<(), Error> {
        let mut connection = self.background.connect().await?;
        migration::run(&mut connection.client, &self.database).await?;
        // Read it now, so that a missing grant shows at start and not at the first use of the cache.
        self.epoch().await.map(drop)
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.check_release()?;
        match self.looks.ask(0, id).await? {
            Looked::Seen(seen) => Ok(seen),
            Looked::Alone => look::alone(&self.requests, self.keyring.as_ref(), id).await,
        }
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.check_release()?;
        let swap = Swap::of(id, change, self.keyring.as_ref());
        // A write with messages, an audit entry or a result is not batched: they belong to one row, and are rare.
        if !swap.with.is_batched() {
            return self.swap_alone(swap).await;
        }
        match self.swaps.submit(id, swap.bytes(), swap).await? {
            Answer::Swapped(swapped) => Ok(swapped),
            Answer::Alone(swap) => self.swap_alone(*swap).await,
        }
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.check_release()?;
        scan::list(&self.background, self.keyring.as_ref(), &query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.check_release()?;
        reap::reap(&self.background, limit, self.expired).await
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.check_release()?;
        erase::erase(&self.background, scope, limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        scan::count(&self.background, &self.database).await
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        self.check_release()?;
        scan::count_alive(&self.requests, scope, limit).await
    }

    /// In a task of its own: a caller that gives up does not leave half an index behind.
    async fn prepare_counting(&self) -> Result<(), Error> {
        let (pool, database) = (self.background.clone(), self.database.clone());
        let made = tokio::spawn(async move { index::by_scope(&pool, &database).await }).await;
        let given_up = |_| Err(Error::new(ErrorKind::Unavailable, "making the index by scope was given up"));
        made.unwrap_or_else(given_up)
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        let rows = self.requests.query(Verb::Epoch, &[]).await?;
        let row = only(&rows)?;
        self.needs.store(column::<Option<i32>>(row, 3)?.unwrap_or(0), Ordering::Relaxed);
        self.check_release()?;
        let name: [u8; 16] = column::<&[u8]>(row, 2)?.try_into().map_err(|_| lost_row())?;
        let epoch = Epoch(column::<i64>(row, 0)?.cast_unsigned());
        Ok(EpochSeen { epoch, now: column::<Moment>(row, 1)?.0, store: name })
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        only(&self.requests.write(Asked::Statement(Verb::RaiseEpoch, &[])).await?).map(drop)
    }

    async fn archived(&self, id: Id, limit: usize) -> Result<Option<Vec<Record>>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.background.query(Verb::Archived, &[&&id.0[..], &limit]).await?;
        rows.iter().map(|row| row::record(row, self.keyring.as_ref())).collect::<Result<_, _>>().map(Some)
    }

    async fn results(&self, id: Id, used_at: Timestamp) -> Result<Vec<PhaseResult>, Error> {
        let rows = self.requests.query(Verb::Results, &[&&id.0[..], &Moment(used_at)]).await?;
        let result = |row: &Row| {
            let number = u32::try_from(column::<i32>(row, 0)?).unwrap_or(u32::MAX);
            let phase = column::<&str>(row, 1)?.into();
            let (clear, sealed) = (column(row, 2)?, column(row, 3)?);
            let json = sql::open_result(self.keyring.as_ref(), id, number, clear, sealed)?;
            Ok(PhaseResult { number, phase, json })
        };
        rows.iter().map(result).collect()
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        let rows = self.requests.query(Verb::Request, &[&&id.0[..], &Moment(used_at)]).await?;
        let request =
            |row: &Row| sql::open_request(self.keyring.as_ref(), id, column(row, 0)?, column(row, 1)?);
        rows.first().map(request).transpose()
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.background.query(Verb::CountRequests, &[&limit]).await?;
        Ok(usize::try_from(column::<i64>(only(&rows)?, 0)?).unwrap_or(0))
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let rows = self.requests.query(Verb::Settings, &[&self.database.schema]).await?;
        let row = only(&rows)?;
        Ok(examine::findings(&Settings {
            fsync: column(row, 0)?,
            full_page_writes: column(row, 1)?,
            synchronous_commit: column(row, 2)?,
            has_functions: column(row, 3)?,
            role_synchronous_commit: column::<Option<&str>>(row, 4)?.unwrap_or_default(),
        }))
    }

    async fn keys_in_use(&self) -> Result<Vec<KeyUse>, Error> {
        examine::keys_in_use(&self.background, &self.database, self.keyring.as_ref()).await
    }

    fn promises(&self) -> Promises {
        Promises {
            clock: Clock::One,
            survives: Survives::Failover,
            listing: Listing::Immediate,
            expiry: Expiry::Ours,
            transactions: true,
            shared: true,
            encrypts: self.keyring.is_some(),
        }
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        Some(self)
    }

    fn audit(&self) -> &dyn Audit {
        self
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}

#[async_trait]
impl Audit for Postgres {
    async fn write(&self, entry: Entry) -> Result<(), Error> {
        self.check_release()?;
        audit::write(&self.requests, &entry).await
    }

    async fn list(&self, query: crate::audit::Query) -> Result<crate::audit::Page, Error> {
        self.check_release()?;
        audit::list(&self.background, &query).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        self.check_release()?;
        audit::reap(&self.background, age, limit).await
    }
}

/// The one row of a statement that returns exactly one.
fn only(rows: &[Row]) -> Result<&Row, Error> {
    rows.first().ok_or_else(lost_row)
}

fn lost_row() -> Error {
    let message = "table \"onlyonce_store\" has lost its row; write it anew with INSERT INTO onlyonce_store VALUES (1, NAME, \
                   EPOCH), where NAME is 16 random bytes and EPOCH is the clock in microseconds";
    Error::new(ErrorKind::Corrupt, message)
}

#[async_trait]
impl Outbox for Postgres {
    async fn claim(&self, token: Token, wanted: &[Wanted]) -> Result<Claims, Error> {
        self.check_release()?;
        outbox::claim(&self.requests, self.keyring.as_ref(), token, wanted).await
    }

    async fn settle(&self, claimed: &Claimed, settled: Settled) -> Result<bool, Error> {
        self.check_release()?;
        match outbox::done(claimed, &settled) {
            Some(done) => self.deliveries.ask(0, done).await,
            None => outbox::settle(&self.requests, claimed, &settled).await,
        }
    }

    async fn pass_dead(&self, destination: &str) -> Result<(), Error> {
        self.check_release()?;
        outbox::pass_dead(&self.background, destination).await
    }

    async fn list(&self, query: crate::outbox::Query) -> Result<crate::outbox::Page, Error> {
        self.check_release()?;
        outbox::list(&self.background, &query).await
    }

    async fn item(&self, number: u64) -> Result<Option<Item>, Error> {
        outbox::item(&self.background, number).await
    }

    async fn payload(&self, number: u64) -> Result<Option<Payload>, Error> {
        outbox::payload(&self.background, self.keyring.as_ref(), number).await
    }

    async fn redrive(&self, number: u64, entry: Entry) -> Result<Changed, Error> {
        self.check_release()?;
        outbox::redrive(&self.requests, number, &entry).await
    }

    async fn discard(&self, number: u64, entry: Entry) -> Result<Changed, Error> {
        self.check_release()?;
        outbox::discard(&self.requests, number, &entry).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        self.check_release()?;
        outbox::prune(&self.background, age, limit).await
    }

    async fn census(&self) -> Result<Census, Error> {
        outbox::census(&self.background, &self.database).await
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("at", &self.database.shown)
            .field("schema", &self.database.schema)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
