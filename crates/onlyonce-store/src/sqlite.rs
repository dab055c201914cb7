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
//! assert!(error.to_string().contains("belongs to process"), "{error}");
//! # drop(store);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # });
//! ```
//!
//! 1. **Durable means synced.** Every swap is on a tape (`tape.rs`) and flushed to the disk before anybody is told of it,
//!    and before any reader sees it. This holds as far as the disk keeps its word about `fdatasync`.
//! 2. **One thread takes swaps in** (`intake.rs`). What comes while a batch is synced goes into the next, together. Another
//!    carries them over into the database (`carry.rs`, `writer.rs`), half a second later at most; nobody waits for it, nor
//!    do those who read (`reader.rs`, `fresh.rs`). The WAL is carried over beside it (`wal.rs`).
//! 3. **One process has the file** (`owner.rs`). A second one is told which. So whatever was running when a process
//!    takes the file was left by a dead one, and lapses at once (`lapse.rs`): by its effects, retryable or unknown.
//! 4. **The clock** is the machine's, held monotonic, and never begins before the latest stamp in the file.
//! 5. **What is not ours is not touched** (`file.rs`): another program's file, one of a newer release, a damaged one or
//!    half of one is refused with advice, before SQLite has had a chance to write to it.
//! 6. **A full disk fails closed**: a swap is `Unavailable`, nothing of it is written, and writes go on by themselves
//!    once there is space.
//! 7. Files are readable by their owner only.
//!
//! Copying the file while it is in use gives half a database: use [`Sqlite::backup`]. A network file system does not
//! keep SQLite's promises: use a local disk, or an engine with a server. Reading with `sqlite3` beside it is fine;
//! a long read there keeps the WAL from beginning anew, so that it grows.

mod backup;
mod carry;
mod check;
mod connection;
mod failure;
mod file;
mod fresh;
mod guest;
mod intake;
mod judge;
mod lapse;
mod letters;
mod migration;
mod open;
mod owner;
mod post;
mod reader;
mod reap;
mod row;
mod scan;
mod slip;
mod tape;
mod turn;
mod wal;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
pub use backup::Progress;
pub use check::Health;
pub use guest::Guest;
use onlyonce_core::record::{Id, Record, Seen, StateName, Token};

use self::file::Handle;
use self::intake::Intake;
use self::letters::Claim;
use self::owner::Owner;
use self::reader::{Lists, Looks};
use self::row::{Stored, Swap};
use self::wal::Keeper;
use self::writer::{Counts, Size, Statements, Writer};
pub use crate::Expired;
use crate::clock::Clock;
use crate::outbox::{Claimed, Message, Outbox, Settled};
use crate::{Change, Epoch, Error, ErrorKind, Page, Query, Store, Swapped};

/// Every step of this engine at which a test may let the process die; see [`mod@crate::failpoint`].
pub const FAILPOINTS: [&str; 19] = [
    "sqlite.create.before",
    "sqlite.create.after",
    "sqlite.migrate.before",
    "sqlite.migrate.after",
    "sqlite.recover.before",
    "sqlite.recover.after",
    "sqlite.tapes.created",
    "sqlite.lapse.before",
    "sqlite.lapse.after",
    "sqlite.open.ready",
    "sqlite.commit.before",
    "sqlite.commit.after",
    "sqlite.carry.before",
    "sqlite.carry.after",
    "sqlite.reap.before",
    "sqlite.reap.after",
    "sqlite.checkpoint.before",
    "sqlite.checkpoint.rest",
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
}

impl Default for Options {
    fn default() -> Self {
        Self { expired: Expired::Delete, readers: 2, cache_bytes: 2 << 20, page_bytes: 4096, clock: None }
    }
}

/// The embedded engine; see the module's documentation.
///
/// Dropping it carries out what was handed in, and gives the file free.
pub struct Sqlite {
    intake: Intake,
    writer: Arc<Writer>,
    // Dropped in this order: who reads, who keeps the WAL, the hold on the file, and the right to it last.
    looks: Looks,
    lists: Lists,
    keeper: Keeper,
    clock: Arc<dyn Clock>,
    counts: Arc<Counts>,
    lapsed: usize,
    /// Not in the file: one process has it, and with that process every copy of a record is gone.
    epoch: AtomicU64,
    expired: Expired,
    path: PathBuf,
    handle: Handle,
    _owner: Owner,
}

/// What the engine has done since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Batches of swaps that were made durable; each is one `fdatasync` of a tape.
    pub commits: u64,
    /// Swaps in them.
    pub works: u64,
    /// Transactions of the database that wrote something: rounds carried over, and what is no swap.
    pub transactions: u64,
    /// How often the WAL was carried over.
    pub checkpoints: u64,
    /// Attempts of a dead process that lapsed when the file was opened.
    pub lapsed: usize,
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
            transactions: self.counts.transactions.load(Ordering::Relaxed),
            checkpoints: self.keeper.checkpoints(),
            lapsed: self.lapsed,
        }
    }

    /// The uses of a key that have expired and were kept ([`Expired::Keep`]), latest first.
    ///
    /// # Errors
    ///
    /// As for [`Store::load`].
    pub async fn archived(&self, id: Id, limit: usize) -> Result<Vec<Record>, Error> {
        self.intake.carry().await?;
        let stored = self.lists.run(move |connection| reap::archived(connection, id, limit)).await?;
        stored.into_iter().map(Stored::record).collect()
    }
}

#[async_trait]
impl Store for Sqlite {
    /// Opening has done everything already.
    async fn prepare(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.looks.look(id).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.intake.swap(Swap::of(id, change)).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.intake.carry().await?;
        let clock = self.clock.clone();
        self.lists.run(move |connection| scan::list(connection, &*clock, &query)).await
    }

    async fn count(&self) -> Result<Vec<(StateName, u64)>, Error> {
        self.intake.carry().await?;
        self.lists.run(scan::count).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.intake.carry().await?;
        let clock = self.clock.clone();
        let find = move |connection: &rusqlite::Connection| reap::candidates(connection, limit, clock.now());
        let candidates = self.lists.run(find).await?;
        let mut reaped = 0;
        for ids in candidates.chunks(reap::ROWS_MAX) {
            let (ids, expired) = (ids.to_vec(), self.expired);
            let size = Size { rows: ids.len(), bytes: 0, statements: Statements::Many };
            reaped +=
                self.writer.submit(size, move |writer, now| reap::delete(writer, &ids, expired, now)).await?;
        }
        Ok(reaped)
    }

    async fn epoch(&self) -> Result<Epoch, Error> {
        Ok(Epoch(self.epoch.load(Ordering::Acquire)))
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        Some(self)
    }
}

#[async_trait]
impl Outbox for Sqlite {
    async fn claim(&self, token: Token, lease: Duration, limit: usize) -> Result<Vec<Claimed>, Error> {
        self.intake.carry().await?;
        let claim = Claim { token, lease, limit };
        let size = Size { rows: limit, bytes: 0, statements: Statements::Many };
        self.writer.submit(size, move |writer, now| Ok(letters::claim(writer, claim, now)?)).await
    }

    async fn settle(&self, key: &str, token: Token, settled: Settled) -> Result<bool, Error> {
        self.intake.carry().await?;
        let key = key.to_owned();
        let size = Size { rows: 1, bytes: 0, statements: Statements::Many };
        let settle = move |writer: &rusqlite::Connection, now| {
            Ok(letters::settle(writer, &key, token, &settled, now)?)
        };
        self.writer.submit(size, settle).await
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<(Message, Vec<Arc<str>>)>, Error> {
        self.intake.carry().await?;
        self.lists.run(move |connection| Ok(letters::dead(connection, limit)?)).await
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.intake.close();
        self.writer.close();
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.path).field("clock", &self.clock).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
