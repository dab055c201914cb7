//! A temporary folder for one test, removed on drop.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use onlyonce_core::record::{Id, Record, Seen, StateName};
use onlyonce_store::sqlite::Sqlite;
use onlyonce_store::{Alive, Change, Count, EpochSeen, Error, Outbox, Page, Promises, Query, Store, Swapped};

#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let name = format!("onlyonce-it-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("onlyonce.db")
    }

    /// A store that takes its folder with it.
    pub(crate) fn keep_with(self, store: Sqlite) -> Kept {
        Kept { store, _folder: self }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Dropped in this order: first the store, then its folder.
#[derive(Debug)]
pub(crate) struct Kept {
    store: Sqlite,
    _folder: Folder,
}

#[async_trait]
impl Store for Kept {
    async fn prepare(&self) -> Result<(), Error> {
        self.store.prepare().await
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.store.load(id).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        self.store.swap(id, change).await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.store.scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.store.reap(limit).await
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        self.store.count_alive(scope, limit).await
    }

    async fn prepare_counting(&self) -> Result<(), Error> {
        self.store.prepare_counting().await
    }

    async fn results(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Vec<onlyonce_store::result::PhaseResult>, Error> {
        self.store.results(id, used_at).await
    }

    async fn request(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Option<bytes::Bytes>, Error> {
        self.store.request(id, used_at).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.store.requests(limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.store.count().await
    }

    async fn archived(&self, id: Id, limit: usize) -> Result<Option<Vec<Record>>, Error> {
        self.store.archived(id, limit).await
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.store.erase(scope, limit).await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        self.store.epoch().await
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.store.raise_epoch().await
    }

    fn promises(&self) -> Promises {
        self.store.promises()
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        self.store.outbox()
    }

    fn audit(&self) -> &dyn onlyonce_store::Audit {
        self.store.audit()
    }
}
