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
//! 1. **One round trip to reserve, one to finish.** Each write is one statement, committed when it answers; a write that
//!    is lost comes back with the record it was lost to (`statement.rs`). Two that are rare take a second round trip for it: a
//!    lone update that is lost, and a lone insert of a taken key that this node does not remember, where it has met none for
//!    a minute (`care.rs`, `tried.rs`).
//! 2. **Many writes, one commit** ([`crate::batch`], `write.rs`): what comes while a commit is under way goes into the
//!    next, which is sent while the one before is still executed (`line.rs`). No batch waits for one row, and one bad row
//!    fails alone.
//!    So do looks (`look.rs`): a thousand records that are watched take two connections and not a thousand.
//! 3. **The clock is the server's.** No node's clock decides anything.
//! 4. **An answer that was lost is `Unavailable`** (`pool.rs`): the write may have been committed. Whoever asked looks,
//!    and recognises its own revision or token. So is a commit that a standby was to confirm and did not; where one does,
//!    nothing is shown that it may not have (`doubt.rs`).
//! 5. **Nothing hangs.** Connecting, waiting for a lock, a statement and its answer each have their time-out.
//! 6. **Migrations** are safe from any number of nodes at once (`migration.rs`), and where there are none to apply, a
//!    role that may only read and write rows is enough. docs/engines.md lists the grants.
//! 7. TLS is verified in full, or off (`url.rs`).
//!
//! A pooler in front must keep a session to itself (PgBouncer: `pool_mode=session`): statements are prepared once a
//! connection, and its time-outs are settings of the session.

mod care;
mod connection;
mod doubt;
mod due;
mod failure;
mod followed;
mod letters;
mod line;
mod look;
mod migration;
mod pool;
mod reap;
mod row;
mod scan;
mod statement;
mod tls;
mod tried;
mod url;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onlyonce_core::record::{Id, Record, Seen, StateName, Token};
use tokio::sync::Semaphore;

use self::doubt::Doubts;
use self::followed::Followed;
use self::look::Looked;
use self::pool::{Plans, Pool, Tuning};
use self::row::{Stored, Swap, column};
use self::statement::{Statements, Verb};
use self::url::Place;
use self::write::Answer;
use crate::batch::{Batcher, Limits};
use crate::outbox::{Claimed, Message, Outbox, Settled};
use crate::{Change, Epoch, Error, Expired, Page, Query, Schema, Store, Swapped};

/// How a database is used. Every value works; the defaults were measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// What becomes of records that have expired.
    pub expired: Expired,
    /// How many connections this node has for looks, and for writes that go alone. There are five more: three for what
    /// is written the first time, alone or in batches, and two for what goes on behind the requests.
    pub connections: usize,
    /// How long the server may work on a statement of a request.
    pub statement_timeout: Duration,
    /// How long a write waits for whoever else holds its record.
    pub lock_wait: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            expired: Expired::Delete,
            connections: 12,
            statement_timeout: Duration::from_secs(5),
            lock_wait: Duration::from_millis(500),
        }
    }
}

/// How much goes together. Three batches in flight were no faster than two.
const LIMITS: Limits = Limits { rows_max: 256, bytes_max: 1 << 20, in_flight_max: 2 };
/// The same for looks, which are few bytes to ask. Two connections at most, and none of them for long.
const LOOKS: Limits = Limits { rows_max: 128, bytes_max: usize::MAX, in_flight_max: 2 };
/// How long a batch waits where somebody holds one of its records, once in a while, or inserts it right now.
const BATCH_LOCK_WAIT: Duration = Duration::from_millis(25);
/// Connections for sweeper, reaper, relay and operators, and how long the server may work for them.
const BEHIND: usize = 2;
const BEHIND_TIMEOUT: Duration = Duration::from_secs(60);

/// The engine for many nodes; see the module's documentation.
pub struct Postgres {
    swaps: Batcher<Swap, Answer>,
    looks: Batcher<Id, Looked>,
    /// Looks, and writes that go alone.
    front: Arc<Pool>,
    /// Half of its connections: a row that somebody holds keeps nobody from looking at another.
    alone: Arc<Semaphore>,
    behind: Arc<Pool>,
    place: Arc<Place>,
    expired: Expired,
    /// The least that the schema asks of a release, as it was last seen.
    needs: AtomicI32,
}

impl Postgres {
    /// Connects to the database that a URL names, and sees whether it can be used. Nothing is changed there:
    /// [`Store::prepare`] applies the migrations.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL, a certificate, the password, the role, the database or the server's version is
    /// wrong; `Unavailable` where the server does not answer in time, is read-only or in recovery. Never with the
    /// password.
    pub async fn open(url: &str, options: Options) -> Result<Self, Error> {
        let place = Arc::new(Place::parse(url)?);
        let statements = Arc::new(Statements::new(&place.quoted_schema()));
        let doubts = Arc::new(Doubts::default());
        let followed = Arc::new(Followed::default());
        let tuning = Tuning {
            connections: options.connections,
            statement: options.statement_timeout,
            lock: options.lock_wait,
            plans: Plans::ByIndex,
        };
        let front = Arc::new(Pool::new(&place, &statements, &doubts, &followed, tuning));
        let batches = Tuning { connections: LIMITS.in_flight_max, lock: BATCH_LOCK_WAIT, ..tuning };
        let batches = Arc::new(Pool::new(&place, &statements, &doubts, &followed, batches));
        let behind = Tuning { connections: BEHIND, statement: BEHIND_TIMEOUT, plans: Plans::Anew, ..tuning };
        let behind = Arc::new(Pool::new(&place, &statements, &doubts, &followed, behind));
        behind.connect().await?;
        let telling = behind.clone();
        let swaps = Batcher::new(LIMITS, move |swaps: Vec<Swap>| {
            let (batches, telling) = (batches.clone(), telling.clone());
            async move {
                let answers = write::together(&batches, swaps).await;
                due::tell_beside(&telling);
                answers
            }
        });
        let looking = front.clone();
        let looks = Batcher::new(LOOKS, move |ids: Vec<Id>| {
            let looking = looking.clone();
            async move { look::together(&looking, ids).await }
        });
        let alone = Arc::new(Semaphore::new(options.connections.div_ceil(2).max(1)));
        Ok(Self {
            swaps,
            looks,
            front,
            alone,
            behind,
            place,
            expired: options.expired,
            needs: AtomicI32::new(0),
        })
    }

    /// What a URL names, as it may be shown: hosts, ports and database, and nothing that is secret.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL, or a file that it names, cannot be used. Nobody is connected to.
    pub fn shown(url: &str) -> Result<String, Error> {
        Ok(format!("postgres://{}", Place::parse(url)?.shown))
    }

    /// The schema as it is, and what [`Store::prepare`] would apply to it.
    ///
    /// # Errors
    ///
    /// As for [`Store::prepare`], but that nothing is changed.
    pub async fn schema(&self) -> Result<Schema, Error> {
        let client = self.behind.connect().await?.into_client();
        Ok(migration::schema(&client, &self.place).await?)
    }

    /// A schema that a newer release has changed beyond us is neither read nor written.
    fn may_go_on(&self) -> Result<(), Error> {
        Ok(migration::may_go_on(&self.place, self.needs.load(Ordering::Relaxed))?)
    }

    /// The uses of a key that have expired and were kept ([`Expired::Keep`]), latest first.
    ///
    /// # Errors
    ///
    /// As for [`Store::load`].
    pub async fn archived(&self, id: Id, limit: usize) -> Result<Vec<Record>, Error> {
        let stored = reap::archived(&self.behind, id, limit).await?;
        stored.into_iter().map(Stored::record).collect()
    }
}

#[async_trait]
impl Store for Postgres {
    async fn prepare(&self) -> Result<(), Error> {
        let mut client = self.behind.connect().await?.into_client();
        migration::run(&mut client, &self.place).await?;
        // What a role was not granted is told now, and not by a cache that nobody ever uses.
        self.epoch().await.map(drop)
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.may_go_on()?;
        match self.looks.ask(0, id).await? {
            Looked::Seen(seen) => Ok(seen),
            Looked::Alone => look::alone(&self.front, id).await,
        }
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.may_go_on()?;
        let swap = Swap::of(id, change);
        // Messages belong to one row's write, and are few.
        if !swap.messages.is_empty() {
            return write::carried_on(self.front.clone(), self.alone.clone(), swap).await;
        }
        match self.swaps.submit(id, swap.bytes(), swap).await? {
            Answer::Swapped(swapped) => Ok(swapped),
            Answer::Alone(swap) => write::carried_on(self.front.clone(), self.alone.clone(), *swap).await,
        }
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.may_go_on()?;
        scan::list(&self.behind, &query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.may_go_on()?;
        reap::reap(&self.behind, limit, self.expired).await
    }

    async fn count(&self) -> Result<Vec<(StateName, u64)>, Error> {
        scan::count(&self.behind).await
    }

    async fn epoch(&self) -> Result<Epoch, Error> {
        let rows = self.front.query(Verb::Epoch, &[]).await?;
        let epoch = look::epoch(rows.first())?;
        let needs = rows.first().map_or(Ok(None), |row| column::<Option<i32>>(row, 1))?;
        self.needs.store(needs.unwrap_or(0), Ordering::Relaxed);
        self.may_go_on()?;
        Ok(epoch)
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        look::epoch(self.front.write(Verb::RaiseEpoch, &[]).await?.first()).map(drop)
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        Some(self)
    }
}

#[async_trait]
impl Outbox for Postgres {
    async fn claim(&self, token: Token, lease: Duration, limit: usize) -> Result<Vec<Claimed>, Error> {
        letters::claim(&self.behind, token, lease, limit).await
    }

    async fn settle(&self, key: &str, token: Token, settled: Settled) -> Result<bool, Error> {
        letters::settle(&self.behind, key, token, &settled).await
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<(Message, Vec<Arc<str>>)>, Error> {
        letters::dead(&self.behind, limit).await
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("at", &self.place.shown)
            .field("schema", &self.place.schema)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
