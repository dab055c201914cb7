//! A store that fails on order, and the clocks of a case.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use onlyonce::store::clock::{Clock, SystemClock};
use onlyonce::store::memory::Memory;
use onlyonce::store::{Change, Error, ErrorKind, Outbox, Page, Query, Store, Swapped};
use onlyonce_core::record::{Id, Seen};
use onlyonce_core::time::Timestamp;
use tokio::sync::Notify;

use crate::data::StoreMode;

/// The machine's clock, which a case can move forward.
#[derive(Clone, Debug)]
pub(crate) struct MovedClock(Arc<(SystemClock, AtomicI64)>);

impl MovedClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new((SystemClock::new(), AtomicI64::new(0))))
    }

    pub(crate) fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).expect("a case spans less than an age");
        self.0.1.fetch_add(micros, Ordering::AcqRel);
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        let moved = u64::try_from(self.0.1.load(Ordering::Acquire)).expect("it only moves forward");
        self.0.0.now().plus(Duration::from_micros(moved))
    }
}

/// What all nodes of a case keep their records in.
pub(crate) struct Disk {
    clock: MovedClock,
    memory: Mutex<Arc<Memory>>,
}

impl Disk {
    pub(crate) fn new(clock: MovedClock) -> Arc<Self> {
        let memory = Mutex::new(Arc::new(Memory::with_clock(clock.clone())));
        Arc::new(Self { clock, memory })
    }

    pub(crate) fn memory(&self) -> Arc<Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All data is lost.
    fn flush(&self) {
        let empty = Arc::new(Memory::with_clock(self.clock.clone()));
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = empty;
    }

    /// Every record there is.
    pub(crate) async fn records(&self) -> Vec<Seen> {
        let query = Query { state: None, scope: None, only_due: false, after: None, limit: usize::MAX - 1 };
        let page = self.memory().scan(query).await.expect("the memory engine always answers");
        page.records.into_iter().map(|(_, seen)| seen).collect()
    }
}

/// One node's way to the store.
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

    pub(crate) fn set(&self, mode: StoreMode) {
        if mode == StoreMode::Flushed {
            self.disk.flush();
            return;
        }
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        self.changed.notify_waiters();
    }

    fn mode(&self) -> StoreMode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mode that a call meets; one that stalls meets whatever comes after.
    async fn met(&self) -> StoreMode {
        self.calls.fetch_add(1, Ordering::AcqRel);
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
        self.disk.memory().prepare().await
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        match self.met().await {
            StoreMode::Down => Err(away()),
            // A replica that has not heard of anything yet.
            StoreMode::Stale => Ok(None),
            StoreMode::LoseAnswers => Err(away()),
            StoreMode::Up | StoreMode::Full | StoreMode::Stall | StoreMode::Flushed => {
                self.disk.memory().load(id).await
            }
        }
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        match self.met().await {
            StoreMode::Down => Err(away()),
            StoreMode::Full => Err(Error::new(ErrorKind::Other, "the store is full on order")),
            StoreMode::LoseAnswers => {
                self.disk.memory().swap(id, change).await?;
                Err(away())
            }
            StoreMode::Up | StoreMode::Stale | StoreMode::Stall | StoreMode::Flushed => {
                self.disk.memory().swap(id, change).await
            }
        }
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.disk.memory().scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.disk.memory().reap(limit).await
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        None
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("mode", &self.mode()).finish_non_exhaustive()
    }
}
