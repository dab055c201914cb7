//! The records of a file for a process that does not own it: a store that reads, and refuses every write.
//!
//! 1. It reads what is committed, while an owner has the file, after the owner was killed, and where nobody has it. It takes no
//!    lock of ours, settles nothing, applies no migration and makes no checkpoint (`guest.rs`).
//! 2. What one call shows is one snapshot. Its now is the machine's, and not before the latest stamp in that snapshot: the
//!    owner's clock may be ahead.
//! 3. Every write is refused as `Misconfigured`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_core::record::{Id, Record, Seen, StateName, Token};
use onlyonce_core::time::Timestamp;
use rusqlite::Connection;

use super::failure::{Failure, quoted};
use super::writer::Refused;
use super::{Guest, audit, guest, keys, open, outbox, promises, reap, request, result, row, scan};
use crate::audit::Entry;
use crate::clock::{Clock, SystemClock};
use crate::outbox::{Census, Changed, Claimed, Claims, Item, Outbox, Payload, Settled, Wanted};
use crate::result::PhaseResult;
use crate::seal::Keyring;
use crate::{
    Audit, Change, Count, EpochSeen, Error, ErrorKind, Finding, KeyUse, Page, Promises, Query, Store, Swapped,
};

/// How many connections are kept while nobody reads.
const IDLE_MAX: usize = 2;

/// A store file that is only read; see the module's documentation. **For another process than the owner's.**
#[derive(Debug)]
pub struct GuestStore {
    path: PathBuf,
    clock: Arc<SystemClock>,
    idle: Idle,
    keyring: Option<Keyring>,
}

type Idle = Arc<Mutex<Vec<Connection>>>;

impl GuestStore {
    /// Opens the file at `path` to read it.
    ///
    /// # Errors
    ///
    /// As for [`Guest::open`]; `Misconfigured` also where the file lacks a migration, or this process owns it.
    pub async fn open(path: impl AsRef<Path>, keyring: Option<Keyring>) -> Result<Self, Error> {
        let path = Guest::open(path)?.path().to_owned();
        let store = Self { path, clock: Arc::new(SystemClock::new()), idle: Idle::default(), keyring };
        store.epoch().await?;
        Ok(store)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `read` in one snapshot, on a thread that may block.
    async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Snapshot<'_>) -> Result<R, Refused> + Send + 'static,
    ) -> Result<R, Error> {
        let (path, clock, idle) = (self.path.clone(), self.clock.clone(), self.idle.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let kept = lock(&idle).pop();
            let connection = kept.map_or_else(|| guest::connect_current(&path), Ok)?;
            let failed = |refused: Refused| match refused {
                Refused::Stored(error) => error,
                Refused::Sqlite(error) => Failure::of(&path, &error).error(),
            };
            let read = Snapshot::of(&connection, &clock).and_then(|snapshot| read(&snapshot)).map_err(failed);
            keep(&idle, connection, &path);
            read
        });
        reading.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "reading the store file was given up"))
        })
    }

    fn refused<R>(&self) -> Result<R, Error> {
        let message = format!(
            "store file {} belongs to another process, and can only be read here; use --admin to have its gateway change it",
            quoted(&self.path)
        );
        Err(Error::new(ErrorKind::Misconfigured, message).having_written_nothing())
    }
}

impl Drop for GuestStore {
    fn drop(&mut self) {
        lock(&self.idle).drain(..).for_each(|connection| guest::leave(&connection, &self.path));
    }
}

fn lock(idle: &Idle) -> MutexGuard<'_, Vec<Connection>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(idle: &Idle, connection: Connection, path: &Path) {
    let mut idle = lock(idle);
    if idle.len() < IDLE_MAX {
        idle.push(connection);
    } else {
        guest::leave(&connection, path);
    }
}

/// The file at one moment.
struct Snapshot<'a> {
    transaction: rusqlite::Transaction<'a>,
    clock: &'a SystemClock,
    kept: open::Kept,
}

impl<'a> Snapshot<'a> {
    fn of(connection: &'a Connection, clock: &'a SystemClock) -> Result<Self, Refused> {
        let transaction = connection.unchecked_transaction()?;
        let kept = open::kept(&transaction)?;
        Ok(Self { transaction, clock, kept })
    }

    fn now(&self) -> Timestamp {
        self.clock.now().max(self.kept.latest)
    }
}

#[async_trait]
impl Store for GuestStore {
    /// There is nothing to prepare: a file that lacks a migration is not opened.
    async fn prepare(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let keyring = self.keyring.clone();
        let load = move |snapshot: &Snapshot<'_>| {
            Ok(row::load(&snapshot.transaction, id, keyring.as_ref(), || snapshot.now())?.transpose()?)
        };
        self.read(load).await
    }

    async fn swap(&self, _id: Id, _change: Change) -> Result<Swapped, Error> {
        self.refused()
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        let keyring = self.keyring.clone();
        let list = move |snapshot: &Snapshot<'_>| {
            scan::list(&snapshot.transaction, &|| snapshot.now(), keyring.as_ref(), &query)
        };
        self.read(list).await
    }

    async fn reap(&self, _limit: usize) -> Result<usize, Error> {
        self.refused()
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.read(|snapshot| scan::count(&snapshot.transaction)).await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        let seen = |snapshot: &Snapshot<'_>| {
            let open::Kept { name, epoch, .. } = snapshot.kept;
            Ok(EpochSeen { epoch, now: snapshot.now(), store: name })
        };
        self.read(seen).await
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.refused()
    }

    async fn archived(&self, id: Id, limit: usize) -> Result<Option<Vec<Record>>, Error> {
        let keyring = self.keyring.clone();
        let archived = move |snapshot: &Snapshot<'_>| {
            reap::archived(&snapshot.transaction, id, limit, keyring.as_ref()).map(Some)
        };
        self.read(archived).await
    }

    async fn results(&self, id: Id, used_at: Timestamp) -> Result<Vec<PhaseResult>, Error> {
        let keyring = self.keyring.clone();
        self.read(move |snapshot| result::of(&snapshot.transaction, id, used_at, keyring.as_ref())).await
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        let keyring = self.keyring.clone();
        self.read(move |snapshot| request::of(&snapshot.transaction, id, used_at, keyring.as_ref())).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.read(move |snapshot| Ok(request::count(&snapshot.transaction, limit)?)).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(self.clock.examine().into_iter().collect())
    }

    async fn keys_in_use(&self) -> Result<Vec<KeyUse>, Error> {
        let keyring = self.keyring.clone();
        self.read(move |snapshot| Ok(keys::in_use(&snapshot.transaction, keyring.as_ref())?)).await
    }

    fn promises(&self) -> Promises {
        promises(self.keyring.as_ref())
    }

    async fn erase(&self, _scope: [u8; 32], _limit: usize) -> Result<usize, Error> {
        self.refused()
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        Some(self)
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

#[async_trait]
impl Audit for GuestStore {
    async fn write(&self, _entry: Entry) -> Result<(), Error> {
        self.refused()
    }

    async fn list(&self, query: crate::audit::Query) -> Result<crate::audit::Page, Error> {
        self.read(move |snapshot| audit::list(&snapshot.transaction, &query)).await
    }

    async fn prune(&self, _age: Duration, _limit: usize) -> Result<usize, Error> {
        self.refused()
    }
}

#[async_trait]
impl Outbox for GuestStore {
    async fn claim(&self, _token: Token, _wanted: &[Wanted]) -> Result<Claims, Error> {
        self.refused()
    }

    async fn settle(&self, _claimed: &Claimed, _settled: Settled) -> Result<bool, Error> {
        self.refused()
    }

    async fn pass_dead(&self, _destination: &str) -> Result<(), Error> {
        self.refused()
    }

    async fn list(&self, query: crate::outbox::Query) -> Result<crate::outbox::Page, Error> {
        self.read(move |snapshot| outbox::list(&snapshot.transaction, &query)).await
    }

    async fn item(&self, number: u64) -> Result<Option<Item>, Error> {
        self.read(move |snapshot| outbox::item(&snapshot.transaction, number)).await
    }

    async fn payload(&self, number: u64) -> Result<Option<Payload>, Error> {
        let keyring = self.keyring.clone();
        self.read(move |snapshot| outbox::payload(&snapshot.transaction, number, keyring.as_ref())).await
    }

    async fn redrive(&self, _number: u64, _entry: Entry) -> Result<Changed, Error> {
        self.refused()
    }

    async fn discard(&self, _number: u64, _entry: Entry) -> Result<Changed, Error> {
        self.refused()
    }

    async fn prune(&self, _age: Duration, _limit: usize) -> Result<usize, Error> {
        self.refused()
    }

    async fn census(&self) -> Result<Census, Error> {
        self.read(|snapshot| Ok(outbox::census(&snapshot.transaction, snapshot.now())?)).await
    }
}
