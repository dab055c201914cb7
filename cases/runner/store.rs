//! A store with injected failures, and the clocks of a case.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use onlyonce::store::clock::{Clock, SystemClock};
use onlyonce::store::memory::Memory;
use onlyonce::store::sqlite::{Options, Sqlite};
use onlyonce::store::{
    Alive, Audit, Change, Count, EpochSeen, Error, ErrorKind, Outbox, Page, Promises, Query, Store, Swapped,
    audit,
};
use onlyonce_core::record::{Id, Seen, StateName};
use onlyonce_core::time::Timestamp;
use serde::Deserialize;
use tokio::sync::Notify;

use super::data::StoreMode;
use super::moved::Moved;

/// The machine's clock, which a case can move forward.
#[derive(Clone, Debug)]
pub(crate) struct MovedClock(Arc<(SystemClock, AtomicI64)>);

impl MovedClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new((SystemClock::new(), AtomicI64::new(0))))
    }

    /// The offset in microseconds.
    pub(crate) fn moved(&self) -> i64 {
        self.0.1.load(Ordering::Acquire)
    }

    pub(crate) fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).expect("a case spans less than an age");
        self.0.1.fetch_add(micros, Ordering::AcqRel);
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        let moved = u64::try_from(self.moved()).expect("it only moves forward");
        self.0.0.now().plus(Duration::from_micros(moved))
    }
}

/// The engines that every case runs on.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Engine {
    Memory,
    Sqlite,
    Postgres,
    #[cfg(feature = "mysql")]
    Mysql,
    #[cfg(feature = "redis")]
    Redis,
}

impl Engine {
    pub(crate) const ALL: &[Self] = &[
        Self::Memory,
        Self::Sqlite,
        Self::Postgres,
        #[cfg(feature = "mysql")]
        Self::Mysql,
        #[cfg(feature = "redis")]
        Self::Redis,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            #[cfg(feature = "mysql")]
            Self::Mysql => "mysql",
            #[cfg(feature = "redis")]
            Self::Redis => "redis",
        }
    }
}

/// The store that all nodes of a case share.
pub(crate) struct Disk {
    engine: Engine,
    clock: MovedClock,
    store: Mutex<Arc<dyn Store>>,
    /// Calls in flight.
    busy: AtomicUsize,
    // After the store: it is removed last.
    folder: Folder,
}

impl Disk {
    pub(crate) async fn new(engine: Engine, clock: MovedClock) -> Arc<Self> {
        let folder = Folder::new();
        let store = Mutex::new(open(engine, &clock, &folder).await);
        Arc::new(Self { engine, clock, store, busy: AtomicUsize::new(0), folder })
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Deletes all data.
    async fn flush(&self) {
        let empty = open(self.engine, &self.clock, &self.folder).await;
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = empty;
    }

    /// Every record there is.
    pub(crate) async fn records(&self) -> Vec<Seen> {
        let query = Query::all(usize::MAX - 1);
        let page = self.store().scan(query).await.expect("the engine itself is well");
        page.records.into_iter().map(|(_, seen)| seen).collect()
    }

    /// Whether a call is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) > 0
    }

    fn call(&self) -> Call<'_> {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Call(&self.busy)
    }
}

/// Counts a call in flight while it lives.
struct Call<'a>(&'a AtomicUsize);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An empty store.
async fn open(engine: Engine, clock: &MovedClock, folder: &Folder) -> Arc<dyn Store> {
    match engine {
        Engine::Memory => Arc::new(Memory::with_clock(clock.clone())),
        Engine::Sqlite => {
            let options = Options { clock: Some(Box::new(clock.clone())), ..Options::default() };
            let opened = Sqlite::open(folder.new_file("db"), options).await;
            Arc::new(opened.unwrap_or_else(|error| panic!("a new file can be opened: {error}")))
        }
        Engine::Postgres => Arc::new(Moved::postgres(clock).await),
        #[cfg(feature = "mysql")]
        Engine::Mysql => Arc::new(Moved::mysql(clock).await),
        #[cfg(feature = "redis")]
        Engine::Redis => Arc::new(Moved::redis(clock).await),
    }
}

/// A temporary folder for the files of one case, created with its first file.
pub(crate) struct Folder {
    path: PathBuf,
    files: AtomicUsize,
}

impl Folder {
    pub(crate) fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("onlyonce-cases-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // A killed process with the same pid may have left one.
        let _ = std::fs::remove_dir_all(&path);
        Self { path, files: AtomicUsize::new(0) }
    }

    pub(crate) fn new_file(&self, ending: &str) -> PathBuf {
        std::fs::create_dir_all(&self.path).expect("the folder for temporary files can be written");
        self.path.join(format!("{}.{ending}", self.files.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Not there for an engine without files.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// One node's handle of the store.
pub(crate) struct Faulty {
    disk: Arc<Disk>,
    mode: Mutex<StoreMode>,
    changed: Notify,
    pub(crate) calls: AtomicUsize,
}

impl Faulty {
    pub(crate) fn new(disk: Arc<Disk>) -> Arc<Self> {
        Arc::new(Self { disk, mode: Mutex::default(), changed: Notify::new(), calls: AtomicUsize::new(0) })
    }

    pub(crate) async fn set(&self, mode: StoreMode) {
        if mode == StoreMode::Flushed {
            self.disk.flush().await;
            return;
        }
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        self.changed.notify_waiters();
    }

    fn mode(&self) -> StoreMode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mode of a call; a stalled call gets the next mode.
    async fn met(&self) -> StoreMode {
        self.calls.fetch_add(1, Ordering::AcqRel);
        self.passed().await
    }

    async fn passed(&self) -> StoreMode {
        loop {
            let changed = self.changed.notified();
            let mode = self.mode();
            if mode != StoreMode::Stall {
                return mode;
            }
            changed.await;
        }
    }
}

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is down on order")
}

#[async_trait]
impl Store for Faulty {
    async fn prepare(&self) -> Result<(), Error> {
        self.disk.store().prepare().await
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let mode = self.met().await;
        let _call = self.disk.call();
        match mode {
            StoreMode::Down => Err(away()),
            // A replica that has no data yet.
            StoreMode::Stale => Ok(None),
            StoreMode::LoseAnswers => Err(away()),
            StoreMode::Up | StoreMode::Full | StoreMode::Stall | StoreMode::Flushed => {
                self.disk.store().load(id).await
            }
        }
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        let mode = self.met().await;
        let _call = self.disk.call();
        match mode {
            StoreMode::Down => Err(away()),
            StoreMode::Full => Err(Error::new(ErrorKind::Other, "the store is full on order")),
            StoreMode::LoseAnswers => {
                self.disk.store().swap(id, change).await?;
                Err(away())
            }
            StoreMode::Up | StoreMode::Stale | StoreMode::Stall | StoreMode::Flushed => {
                self.disk.store().swap(id, change).await
            }
        }
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.disk.store().scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.disk.store().reap(limit).await
    }

    async fn results(
        &self,
        id: Id,
        used_at: Timestamp,
    ) -> Result<Vec<onlyonce::store::result::PhaseResult>, Error> {
        self.disk.store().results(id, used_at).await
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<bytes::Bytes>, Error> {
        self.disk.store().request(id, used_at).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.disk.store().requests(limit).await
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        self.disk.store().count_alive(scope, limit).await
    }

    async fn prepare_counting(&self) -> Result<(), Error> {
        self.disk.store().prepare_counting().await
    }

    /// Not counted as a call: no request makes it.
    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.disk.store().count().await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        match self.passed().await {
            StoreMode::Down | StoreMode::LoseAnswers => Err(away()),
            StoreMode::Up | StoreMode::Full | StoreMode::Stale | StoreMode::Stall | StoreMode::Flushed => {
                let _call = self.disk.call();
                self.disk.store().epoch().await
            }
        }
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.disk.store().raise_epoch().await
    }

    fn promises(&self) -> Promises {
        self.disk.store().promises()
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.disk.store().erase(scope, limit).await
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        None
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

#[async_trait]
impl Audit for Faulty {
    async fn write(&self, entry: audit::Entry) -> Result<(), Error> {
        match self.passed().await {
            StoreMode::Down | StoreMode::Full | StoreMode::LoseAnswers => Err(away()),
            StoreMode::Up | StoreMode::Stale | StoreMode::Stall | StoreMode::Flushed => {
                self.disk.store().audit().write(entry).await
            }
        }
    }

    async fn list(&self, query: audit::Query) -> Result<audit::Page, Error> {
        self.disk.store().audit().list(query).await
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        self.disk.store().audit().prune(age, limit).await
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("mode", &self.mode()).finish_non_exhaustive()
    }
}
