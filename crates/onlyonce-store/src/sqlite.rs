//! Records in one file: durable, without a server. The default.
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().build().unwrap().block_on(async {
//! use onlyonce_core::record::Id;
//! use onlyonce_store::Store;
//! use onlyonce_store::sqlite::{Options, Sqlite};
//!
//! # let folder = std::env::temp_dir().join(format!("onlyonce-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! # let path = folder.join("onlyonce.db");
//! let store = Sqlite::open(&path, Options::default()).await.unwrap();
//! assert_eq!(store.load(Id([7; 32])).await.unwrap(), None);
//! // The file has one owner at a time.
//! let error = Sqlite::open(&path, Options::default()).await.unwrap_err();
//! assert!(error.to_string().contains("belongs to this process already"), "{error}");
//! # drop(store);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # });
//! ```
//!
//! 1. **Durable means synced.** Every swap is in SQLite's WAL and flushed to the disk before anybody is told of it. This
//!    holds as far as the disk keeps its word about `fdatasync`. The first sync that fails is final (`latch.rs`): nothing is
//!    written after it until a restart has recovered from the WAL.
//! 2. **One thread writes** (`writer.rs`). What comes while a commit is synced goes into the next, together. Others read
//!    beside it (`reader.rs`), and one checkpoints the WAL (`checkpoint.rs`).
//! 3. **One process has the file** (`owner.rs`). A second one is told which. So whatever was running when a process
//!    takes the file was left by a dead one, and is settled at once (`abandon.rs`): by its effects, retryable or unknown.
//! 4. **The clock** is the machine's, held monotonic, and never begins before the latest stamp in the file.
//! 5. **What is not ours is not touched** (`file.rs`): another program's file, one of a newer release, a damaged one or
//!    half of one is refused with advice, before SQLite has had a chance to write to it.
//! 6. **A full disk fails closed**: a swap is `Unavailable`, nothing of it is written, and writes go on by themselves
//!    once there is space.
//! 7. Files are readable by their owner only.
//! 8. **It is an ordinary SQLite database.** `sqlite3` reads it, also while it is in use and after a crash; its `.backup`
//!    gives a store that can be opened. Closed, the store is one file; in use it is the file and its `-wal`, which
//!    belong together: one copied without the other lacks what only the other has. [`Sqlite::backup`] copies both as one.
//!
//! A network file system does not keep SQLite's promises: use a local disk, or an engine with a server. A long read by
//! another program keeps the WAL from beginning anew, so that it grows.

mod abandon;
mod audit;
mod backup;
mod check;
mod checkpoint;
mod connection;
mod erase;
mod failure;
mod file;
mod guest;
mod guest_store;
mod keys;
mod latch;
mod migration;
mod open;
mod outbox;
mod owner;
mod reader;
mod reap;
mod request;
mod result;
mod row;
mod scan;
mod transaction;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
pub use backup::Progress;
use bytes::Bytes;
pub use check::Health;
pub use guest::Guest;
pub use guest_store::GuestStore;
use onlyonce_core::record::{Id, Record, Seen, StateName, Token};
use onlyonce_core::time::Timestamp;
pub use owner::Holder;
use rusqlite::Connection;
pub use transaction::Transaction;

use self::checkpoint::Checkpointer;
use self::latch::Latch;
use self::owner::Owned;
use self::reader::{Lists, Looks};
use self::row::Swap;
use self::writer::{Counts, Refused, Size, Statements, Writer};
pub use crate::Expired;
use crate::audit::Entry;
use crate::clock::Clock;
use crate::outbox::{Census, Changed, Claimed, Claims, Item, Outbox, Payload, Settled, Wanted};
use crate::promises::{self, Expiry, Finding, Level, Listing, Promises, Survives};
use crate::result::PhaseResult;
use crate::seal::Keyring;
use crate::{
    Alive, Audit, Change, Count, Epoch, EpochSeen, Error, ErrorKind, KeyUse, Page, Query, Store, Swapped,
};

/// Every step of this engine at which a test may let the process die; see [`mod@crate::failpoint`].
pub const FAILPOINTS: [&str; 14] = [
    "sqlite.create.before",
    "sqlite.create.after",
    "sqlite.migrate.before",
    "sqlite.migrate.after",
    "sqlite.abandon.before",
    "sqlite.abandon.after",
    "sqlite.open.ready",
    "sqlite.commit.before",
    "sqlite.commit.after",
    "sqlite.reap.before",
    "sqlite.reap.after",
    "sqlite.checkpoint.before",
    "sqlite.checkpoint.last",
    "sqlite.checkpoint.after",
];

/// How a file is used. Every value works; the defaults were measured.
#[derive(Debug)]
pub struct Options {
    /// What becomes of records that have expired.
    pub expired: Expired,
    /// How many threads look records up.
    pub readers: usize,
    /// How much of the file the writer keeps in memory. More is slower: SQLite goes through all of it after commits,
    /// and the system's page cache is as near.
    pub cache_bytes: usize,
    /// The page size of a file that is created: a power of two from 512 to 65,536. A file that exists keeps its own.
    pub page_bytes: u32,
    /// The clock; none for the machine's.
    pub clock: Option<Box<dyn Clock>>,
    /// What answers, results of phases and payloads are encrypted with; none: they stand in clear.
    pub keyring: Option<Keyring>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            expired: Expired::Delete,
            readers: 2,
            cache_bytes: 2 << 20,
            page_bytes: 4096,
            clock: None,
            keyring: None,
        }
    }
}

/// The embedded engine; see the module's documentation.
///
/// Dropping it carries out what was handed in, and gives the file free.
pub struct Sqlite {
    writer: Writer,
    looks: Option<Looks>,
    lists: Option<Lists>,
    checkpointer: Option<Checkpointer>,
    clock: Arc<dyn Clock>,
    counts: Arc<Counts>,
    latch: Latch,
    abandoned: usize,
    /// As the file has it: this process alone raises it.
    epoch: Mutex<Epoch>,
    name: [u8; 16],
    expired: Expired,
    keyring: Option<Keyring>,
    path: PathBuf,
    owned: Owned,
}

/// What the engine has done since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Transactions that wrote something; each is one `fdatasync`.
    pub commits: u64,
    /// Pieces of work in them.
    pub works: u64,
    /// How many checkpoints were made.
    pub checkpoints: u64,
    /// Attempts of a dead process that were settled when the file was opened.
    pub abandoned: usize,
}

impl Sqlite {
    /// Opens the file at `path`, and creates it where there is none.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the path, the file or the settings are wrong, or another process has the file; `Corrupt`
    /// where it is damaged; `Unavailable` where its disk is full. The file is left as it was.
    pub async fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let opening = tokio::task::spawn_blocking(move || open::open(&path, options));
        match opening.await {
            Ok(opened) => Ok(opened?),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "opening the store file was given up")),
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the engine has done since it was opened.
    pub fn figures(&self) -> Figures {
        Figures {
            commits: self.counts.commits.load(Ordering::Relaxed),
            works: self.counts.works.load(Ordering::Relaxed),
            checkpoints: self.checkpointer.as_ref().map_or(0, Checkpointer::checkpoints),
            abandoned: self.abandoned,
        }
    }

    fn looks(&self) -> &Looks {
        self.looks.as_ref().expect("a store that is not dropped has its readers")
    }

    fn lists(&self) -> &Lists {
        self.lists.as_ref().expect("a store that is not dropped has its readers")
    }

    /// Deletes up to `limit` records that have finished and expired, of all scopes or of one. The writer judges each again.
    async fn delete_expired(
        &self,
        scope: Option<[u8; 32]>,
        limit: usize,
        expired: Expired,
    ) -> Result<usize, Error> {
        let clock = self.clock.clone();
        let find = move |connection: &Connection| reap::candidates(connection, scope, limit, clock.now());
        let candidates = self.lists().run(find).await?;
        let mut deleted = 0;
        for ids in candidates.chunks(reap::ROWS_MAX) {
            let ids = ids.to_vec();
            let size = Size { rows: ids.len(), bytes: 0, statements: Statements::Many };
            deleted +=
                self.writer.submit(size, move |writer, now| reap::delete(writer, &ids, expired, now)).await?;
        }
        Ok(deleted)
    }

    /// A change to one message, in a transaction of several statements.
    async fn change_message<R: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection, Timestamp) -> Result<R, Refused> + Send + 'static,
    ) -> Result<R, Error> {
        let size = Size { rows: 2, bytes: 0, statements: Statements::Many };
        self.writer.submit(size, change).await
    }

    fn epoch_now(&self) -> MutexGuard<'_, Epoch> {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn promises(keyring: Option<&Keyring>) -> Promises {
    Promises {
        clock: promises::Clock::One,
        survives: Survives::Crash,
        listing: Listing::Immediate,
        expiry: Expiry::Ours,
        transactions: true,
        shared: false,
        encrypts: keyring.is_some(),
    }
}

#[async_trait]
impl Store for Sqlite {
    /// Opening has done everything already.
    async fn prepare(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.looks().look(id).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.writer.swap(Swap::of(id, change, self.keyring.as_ref())).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        let (clock, keyring) = (self.clock.clone(), self.keyring.clone());
        let list = move |connection: &Connection| {
            let snapshot = connection.unchecked_transaction()?;
            scan::list(&snapshot, &|| clock.now(), keyring.as_ref(), &query)
        };
        self.lists().run(list).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.lists().run(scan::count).await
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        let clock = self.clock.clone();
        self.lists()
            .run(move |connection| Ok(scan::count_alive(connection, scope, limit, clock.now())?))
            .await
    }

    async fn prepare_counting(&self) -> Result<(), Error> {
        let size = Size { rows: 1, bytes: 0, statements: Statements::Many };
        self.writer.submit(size, |writer, _| Ok(writer.execute_batch(scan::BY_SCOPE)?)).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.delete_expired(None, limit, self.expired).await
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        erase::erase(self, scope, limit).await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        Ok(EpochSeen { epoch: *self.epoch_now(), now: self.clock.now(), store: self.name })
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        const SQL: &str = "
            UPDATE onlyonce_store SET epoch = max(epoch + 1, ?1) WHERE one = 1 RETURNING epoch";
        let size = Size { rows: 1, bytes: 0, statements: Statements::One };
        let raise = |writer: &Connection, now: Timestamp| {
            Ok(writer.prepare_cached(SQL)?.query_row([now.as_micros()], |row| row.get::<_, i64>(0))?)
        };
        let raised = self.writer.submit(size, raise).await?;
        let mut epoch = self.epoch_now();
        *epoch = (*epoch).max(Epoch(raised.cast_unsigned()));
        Ok(())
    }

    async fn archived(&self, id: Id, limit: usize) -> Result<Option<Vec<Record>>, Error> {
        let keyring = self.keyring.clone();
        let archived =
            move |connection: &Connection| reap::archived(connection, id, limit, keyring.as_ref()).map(Some);
        self.lists().run(archived).await
    }

    async fn results(&self, id: Id, used_at: Timestamp) -> Result<Vec<PhaseResult>, Error> {
        let keyring = self.keyring.clone();
        self.lists().run(move |connection| result::of(connection, id, used_at, keyring.as_ref())).await
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        let keyring = self.keyring.clone();
        self.lists().run(move |connection| request::of(connection, id, used_at, keyring.as_ref())).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.lists().run(move |connection| Ok(request::count(connection, limit)?)).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let latched = self.latch.failure().map(|failure| Finding {
            level: Level::Error,
            code: if failure.kind == ErrorKind::Corrupt { "sqlite.damaged" } else { "sqlite.sync_failed" },
            says: failure.message.clone(),
            remedy: "check the disk, then restart this process".to_owned(),
        });
        Ok(latched.into_iter().chain(self.clock.examine()).collect())
    }

    async fn keys_in_use(&self) -> Result<Vec<KeyUse>, Error> {
        let keyring = self.keyring.clone();
        self.lists().run(move |connection| Ok(keys::in_use(connection, keyring.as_ref())?)).await
    }

    fn promises(&self) -> Promises {
        promises(self.keyring.as_ref())
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
impl Audit for Sqlite {
    async fn write(&self, entry: Entry) -> Result<(), Error> {
        let size = Size { rows: 1, bytes: 0, statements: Statements::One };
        self.writer.submit(size, move |writer, now| Ok(audit::store(writer, &entry, now)?)).await
    }

    async fn list(&self, query: crate::audit::Query) -> Result<crate::audit::Page, Error> {
        let list = move |connection: &Connection| {
            let snapshot = connection.unchecked_transaction()?;
            audit::list(&snapshot, &query)
        };
        self.lists().run(list).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        let before = audit::older_than(age, self.clock.now());
        let delete = move |writer: &Connection, rows| audit::delete(writer, before, rows);
        erase::in_batches(self, limit, audit::ROWS_MAX, delete).await
    }
}

#[async_trait]
impl Outbox for Sqlite {
    async fn claim(&self, token: Token, wanted: &[Wanted]) -> Result<Claims, Error> {
        let wanted = wanted.to_vec();
        let rows = wanted.iter().map(|wanted| wanted.limit).sum();
        let size = Size { rows, bytes: 0, statements: Statements::Many };
        let keyring = self.keyring.clone();
        let claim =
            move |writer: &Connection, now| Ok(outbox::claim(writer, token, &wanted, keyring.as_ref(), now)?);
        self.writer.submit(size, claim).await
    }

    async fn settle(&self, claimed: &Claimed, settled: Settled) -> Result<bool, Error> {
        let claimed = claimed.clone();
        self.change_message(move |writer, now| Ok(outbox::settle(writer, &claimed, &settled, now)?)).await
    }

    async fn pass_dead(&self, destination: &str) -> Result<(), Error> {
        let destination = destination.to_owned();
        self.change_message(move |writer, _| Ok(outbox::pass_dead(writer, &destination)?)).await
    }

    async fn list(&self, query: crate::outbox::Query) -> Result<crate::outbox::Page, Error> {
        let list = move |connection: &Connection| {
            let snapshot = connection.unchecked_transaction()?;
            outbox::list(&snapshot, &query)
        };
        self.lists().run(list).await
    }

    async fn item(&self, number: u64) -> Result<Option<Item>, Error> {
        self.lists().run(move |connection| outbox::item(connection, number)).await
    }

    async fn payload(&self, number: u64) -> Result<Option<Payload>, Error> {
        let keyring = self.keyring.clone();
        self.lists().run(move |connection| outbox::payload(connection, number, keyring.as_ref())).await
    }

    async fn redrive(&self, number: u64, entry: Entry) -> Result<Changed, Error> {
        self.change_message(move |writer, now| outbox::redrive(writer, number, &entry, now)).await
    }

    async fn discard(&self, number: u64, entry: Entry) -> Result<Changed, Error> {
        self.change_message(move |writer, now| outbox::discard(writer, number, &entry, now)).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        let before = audit::older_than(age, self.clock.now());
        let delete = move |writer: &Connection, rows| outbox::prune(writer, before, rows);
        erase::in_batches(self, limit, outbox::ROWS_MAX, delete).await
    }

    async fn census(&self) -> Result<Census, Error> {
        let clock = self.clock.clone();
        let census = move |connection: &Connection| {
            let snapshot = connection.unchecked_transaction()?;
            Ok(outbox::census(&snapshot, clock.now())?)
        };
        self.lists().run(census).await
    }
}

impl Drop for Sqlite {
    /// The writer's connection is closed last: that checkpoints the WAL and removes it, so that one file is left.
    fn drop(&mut self) {
        let connection = self.writer.close();
        drop((self.looks.take(), self.lists.take(), self.checkpointer.take()));
        if self.latch.failure().is_some() {
            // The WAL is the only whole copy: the next process recovers from it.
            let _ = connection.as_ref().map(connection::leave_wal);
        }
        drop(connection);
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.path).field("clock", &self.clock).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
