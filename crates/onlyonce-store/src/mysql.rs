//! Records in MySQL or MariaDB: any number of nodes on one database.
//!
//! ```no_run
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use onlyonce_core::record::Id;
//! use onlyonce_store::Store;
//! use onlyonce_store::mysql::{Mysql, Options};
//!
//! let url = "mysql://onlyonce:secret@db.internal/payments";
//! let store = Mysql::open(url, Options::default()).await.unwrap();
//! store.prepare().await.unwrap();
//! assert_eq!(store.load(Id([7; 32])).await.unwrap(), None);
//! # });
//! ```
//!
//! 1. **A record is a row of columns** that people read (`onlyonce_keys`) and that other programs may change: with a new
//!    revision and a stamp that is not earlier (`migrations/mysql/0001-first.sql`). A row whose columns contradict each other is
//!    `Corrupt`, only for requests of that record.
//! 2. **One round trip to reserve, one to finish.** Each write is one statement, committed when it answers. One that is lost
//!    needs a second round trip for the current record (`write.rs`).
//! 3. **Many writes, one commit**: writes that arrive during a commit share the next batch (`together.rs`). No batch waits for
//!    one row, and one bad row fails alone.
//! 4. **The clock is the server's** (`statement.rs`). No node's clock decides anything.
//! 5. **A lost answer is `Unavailable`**: the write may have been committed. The caller reads the record and recognises its
//!    own revision or token. A deadlock is retried, since nothing was written (`pool.rs`).
//! 6. **Nothing hangs.** Connecting, waiting for a lock, a statement and its answer each have a time-out.
//! 7. **Migrations** are safe from any number of nodes at once (`migration.rs`). If there are none to apply, a user that may
//!    only read and write rows is enough.
//! 8. TLS is fully verified, or off (`url.rs`).
//!
//! MariaDB 10.6 and later, and MySQL 8.0.19 and later. It is tested on MariaDB; for MySQL it is written and not tested.

mod audit;
mod examine;
mod failure;
mod grants;
mod look;
mod migration;
mod outbox;
mod pool;
mod reap;
mod row;
mod scan;
mod statement;
mod together;
mod url;
mod user;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use mysql_async::Row;
use mysql_async::prelude::Queryable;
use onlyonce_core::record::{Id, Record, Seen, StateName, Token};
use onlyonce_core::time::Timestamp;
use tokio::sync::Semaphore;

use self::examine::Settings;
pub use self::grants::grants;
use self::pool::{Commits, Pool, Statement, Tuning};
use self::row::{at_most, column, moment};
use self::statement::filled;
use self::together::Answer;
use self::url::Database;
use crate::audit::Entry;
use crate::batch::{Batcher, Limits};
use crate::outbox::{Census, Changed, Claimed, Claims, Item, Outbox, Payload, Settled, Wanted};
use crate::promises::{Clock, Expiry, Listing, Survives};
use crate::result::PhaseResult;
use crate::seal::Keyring;
use crate::sql::{self, Swap};
use crate::{
    Alive, Audit, Change, Count, Epoch, EpochSeen, Error, ErrorKind, Expired, Finding, KeyUse, Page,
    Promises, Query, Schema, Store, Swapped,
};

/// How a database is used. Every value works.
#[derive(Clone, Debug)]
pub struct Options {
    /// What becomes of records that have expired.
    pub expired: Expired,
    /// How many connections this node has for reads and for writes outside a batch. There are six more: two for batches, two for
    /// lone writes, and two for background work.
    pub connections: usize,
    /// How long the server may work on a statement of a request.
    pub statement_timeout: Duration,
    /// How long a write waits for a lock on its record: whole seconds, at least one.
    pub lock_wait: Duration,
    /// What answers, results of phases and payloads are encrypted with; none: they stand in clear.
    pub keyring: Option<Keyring>,
    /// For tests: by how many microseconds the server's clock is ahead in our sessions.
    #[doc(hidden)]
    pub ahead: Arc<AtomicI64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            expired: Expired::Delete,
            connections: 12,
            statement_timeout: Duration::from_secs(5),
            lock_wait: Duration::from_secs(1),
            keyring: None,
            ahead: Arc::default(),
        }
    }
}

/// The limits of a batch of writes. The work of the server grows with the square of the rows.
const LIMITS: Limits = Limits { rows_max: 64, bytes_max: 1 << 20, in_flight_max: 2 };
/// Connections for sweeper, reaper, relay and operators, and how long the server may work for them.
const BACKGROUND: usize = 2;
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// There is an index of this name already.
const INDEX_EXISTS: u16 = 1061;

/// The engine for many nodes; see the module's documentation.
pub struct Mysql {
    swaps: Batcher<Swap, Answer>,
    /// Reads, and writes outside a batch.
    requests: Arc<Pool>,
    /// Half of the connections of `requests`: writes that wait for row locks leave the others to reads.
    alone: Arc<Semaphore>,
    background: Arc<Pool>,
    database: Arc<Database>,
    expired: Expired,
    keyring: Option<Keyring>,
    /// What is sent in transactions of the user's own.
    texts: user::Texts,
    /// The oldest release that may use the schema, as last read.
    needs: AtomicU32,
}

impl Mysql {
    /// Connects to the database of a URL, and checks that it can be used. Nothing is changed there:
    /// [`Store::prepare`] applies the migrations.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL, a certificate, the password, the database, the server, its version or a setting of it is
    /// wrong; `Unavailable` where the server does not answer in time or is read-only. Never with the password.
    pub async fn open(url: &str, options: Options) -> Result<Self, Error> {
        let database = Arc::new(Database::parse(url)?);
        let tuning = Tuning {
            connections: options.connections,
            statement: options.statement_timeout,
            lock: options.lock_wait.max(Duration::from_secs(1)),
            commits: Commits::AtOnce,
        };
        let pool = |tuning| Arc::new(Pool::new(&database, tuning, &options.ahead));
        let requests = pool(tuning);
        let background = pool(Tuning { connections: BACKGROUND, statement: BACKGROUND_TIMEOUT, ..tuning });
        let hasty = Tuning { connections: LIMITS.in_flight_max, lock: Duration::ZERO, ..tuning };
        let (lone, batches) = (pool(hasty), pool(Tuning { commits: Commits::AtTheEnd, ..hasty }));
        Settings::read(&background).await?.refuse(&database)?;
        let swaps = Batcher::new(LIMITS, move |swaps: Vec<Swap>| {
            let (lone, batches) = (lone.clone(), batches.clone());
            async move { together::write(&lone, &batches, swaps).await }
        });
        let alone = Arc::new(Semaphore::new(options.connections.div_ceil(2).max(1)));
        Ok(Self {
            swaps,
            requests,
            alone,
            background,
            texts: user::Texts::of(&database.name),
            database,
            expired: options.expired,
            keyring: options.keyring,
            needs: AtomicU32::new(0),
        })
    }

    /// What a URL names, safe to show: hosts, ports and database, nothing secret.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL, or a file that it names, cannot be used. It does not connect.
    pub fn shown(url: &str) -> Result<String, Error> {
        Ok(format!("mysql://{}", Database::parse(url)?.shown))
    }

    /// The schema as it is, and what [`Store::prepare`] would apply to it.
    ///
    /// # Errors
    ///
    /// As for [`Store::prepare`], but that nothing is changed.
    pub async fn schema(&self) -> Result<Schema, Error> {
        let mut connection = self.background.connect().await?;
        migration::schema(&mut connection, &self.database).await
    }

    async fn swap_alone(&self, swap: Swap) -> Result<Swapped, Error> {
        write::in_a_task(self.requests.clone(), self.alone.clone(), self.keyring.clone(), swap).await
    }

    /// Refuses reads and writes on a schema that a newer release has changed incompatibly.
    fn check_release(&self) -> Result<(), Error> {
        Ok(migration::check_release(&self.database, self.needs.load(Ordering::Relaxed))?)
    }

    /// A write that changes nothing must be answered so: a proxy that counts the rows it found would show every lost write as
    /// applied.
    async fn check_counting(&self) -> Result<(), Error> {
        const SQL: &str = "UPDATE onlyonce_store SET epoch = epoch WHERE one = 1";
        let changed = self.requests.once(&Statement { sql: SQL, values: Vec::new() }).await?.changed;
        if changed == 0 {
            return Ok(());
        }
        let message = format!(
            "something between this node and MySQL at {} counts rows that were found instead of rows that were changed; \
             connect without it, or switch off CLIENT_FOUND_ROWS there",
            self.database.shown
        );
        Err(Error::new(ErrorKind::Misconfigured, message).having_written_nothing())
    }
}

#[async_trait]
impl Store for Mysql {
    async fn prepare(&self) -> Result<(), Error> {
        let mut connection = self.background.connect().await?;
        migration::run(&mut connection, &self.database).await?;
        self.check_counting().await?;
        // Read it now, so that a missing grant shows at start and not at the first use of the cache.
        self.epoch().await.map(drop)
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.check_release()?;
        look::alone(&self.requests, self.keyring.as_ref(), id).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.check_release()?;
        let swap = Swap::of(id, change, self.keyring.as_ref());
        // What is attached belongs to one record, and is rare.
        if !swap.with.is_empty() {
            return self.swap_alone(swap).await;
        }
        match self.swaps.submit(id, swap.bytes(), swap).await? {
            Answer::Applied(swapped) => Ok(swapped),
            Answer::Lost(id) => Ok(Swapped::Lost(self.load(id).await?)),
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
        reap::erase(&self.background, scope, limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        scan::count(&self.background).await
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        self.check_release()?;
        scan::count_alive(&self.requests, scope, limit).await
    }

    /// InnoDB builds the index while others write. It may take long: MariaDB must not cut it off, and MySQL does not.
    async fn prepare_counting(&self) -> Result<(), Error> {
        let mut connection = self.background.connect().await?;
        let made = async {
            connection
                .query_drop("SET SESSION lock_wait_timeout = 60 /*M! , max_statement_time = 0 */")
                .await?;
            connection.query_drop(scan::BY_SCOPE).await
        };
        match made.await {
            Ok(()) => Ok(()),
            Err(error) if failure::code(&error) == Some(INDEX_EXISTS) => Ok(()),
            Err(error) => Err(failure::of(&self.database, &error).into()),
        }
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        const SQL: &str = "
            SELECT epoch, {now}, name, (SELECT max(needs) FROM onlyonce_migration) FROM onlyonce_store WHERE one = 1";
        let rows = self.requests.query(&filled(SQL), Vec::new()).await?;
        let row = only(&rows)?;
        self.needs.store(column::<Option<u32>>(row, 3)?.unwrap_or(0), Ordering::Relaxed);
        self.check_release()?;
        let name: [u8; 16] = column::<&[u8]>(row, 2)?.try_into().map_err(|_| lost_row())?;
        let epoch = Epoch(column::<i64>(row, 0)?.cast_unsigned());
        Ok(EpochSeen { epoch, now: moment(row, 1)?, store: name })
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        const SQL: &str = "UPDATE onlyonce_store SET epoch = GREATEST(epoch + 1, {now}) WHERE one = 1";
        match self.requests.change(&filled(SQL), Vec::new()).await? {
            0 => Err(lost_row()),
            _ => Ok(()),
        }
    }

    async fn archived(&self, id: Id, limit: usize) -> Result<Option<Vec<Record>>, Error> {
        const SQL: &str = "SELECT {all} FROM onlyonce_archive WHERE id = ? ORDER BY number DESC LIMIT ?";
        let rows = self.background.query(&filled(SQL), vec![id.0.into(), at_most(limit).into()]).await?;
        rows.iter().map(|row| row::record(row, self.keyring.as_ref())).collect::<Result<_, _>>().map(Some)
    }

    async fn results(&self, id: Id, used_at: Timestamp) -> Result<Vec<PhaseResult>, Error> {
        const SQL: &str = "
            SELECT number, phase, result, sealed FROM onlyonce_result WHERE record = ? AND used_at = ? ORDER BY number";
        let rows = self.requests.query(SQL, vec![id.0.into(), used_at.as_micros().into()]).await?;
        let result = |row: &Row| {
            let number = column(row, 0)?;
            let phase = column::<&str>(row, 1)?.into();
            let (clear, sealed) = (column(row, 2)?, column(row, 3)?);
            let json = sql::open_result(self.keyring.as_ref(), id, number, clear, sealed)?;
            Ok(PhaseResult { number, phase, json })
        };
        rows.iter().map(result).collect()
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        const SQL: &str = "SELECT request, key_id FROM onlyonce_request WHERE record = ? AND used_at = ?";
        let rows = self.requests.query(SQL, vec![id.0.into(), used_at.as_micros().into()]).await?;
        let request =
            |row: &Row| sql::open_request(self.keyring.as_ref(), id, column(row, 0)?, column(row, 1)?);
        rows.first().map(request).transpose()
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        const SQL: &str = "SELECT count(*) FROM (SELECT 1 FROM onlyonce_request LIMIT ?) AS counted";
        let rows = self.background.query(SQL, vec![at_most(limit).into()]).await?;
        Ok(usize::try_from(column::<i64>(only(&rows)?, 0)?).unwrap_or(0))
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Settings::read(&self.requests).await?.findings())
    }

    async fn keys_in_use(&self) -> Result<Vec<KeyUse>, Error> {
        examine::keys_in_use(&self.background, self.keyring.as_ref()).await
    }

    fn promises(&self) -> Promises {
        Promises {
            clock: Clock::One,
            survives: Survives::Crash,
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
impl Audit for Mysql {
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
impl Outbox for Mysql {
    async fn claim(&self, token: Token, wanted: &[Wanted]) -> Result<Claims, Error> {
        self.check_release()?;
        outbox::claim(&self.requests, self.keyring.as_ref(), token, wanted).await
    }

    async fn settle(&self, claimed: &Claimed, settled: Settled) -> Result<bool, Error> {
        self.check_release()?;
        outbox::settle(&self.requests, claimed, &settled).await
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
        outbox::census(&self.background).await
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mysql").field("at", &self.database.shown).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
