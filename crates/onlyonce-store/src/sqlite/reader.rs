//! Looks and listings, beside the writer: in WAL mode neither waits for the other.
//!
//! A look goes to a thread that keeps its connection warm and takes all that wait at once, in one read transaction.
//! They are taken out of the queue *before* the transaction begins: it shows all that was durable by then, and so
//! all that any of them was promised. Listings may take long, and go to tokio's threads for blocking work.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use onlyonce_core::record::{Id, Seen};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::connection::{self, run};
use super::failure::Failure;
use super::owner::Owned;
use super::row;
use super::writer::Refused;
use crate::clock::Clock;
use crate::seal::Keyring;
use crate::{Error, ErrorKind};

/// How many looks go into one read transaction.
const LOOKS_MAX: usize = 256;
/// What a connection that reads keeps in memory; the system's page cache has the rest.
const CACHE_BYTES: usize = 8 << 20;
/// How many connections for listings are kept while nobody lists.
const IDLE_MAX: usize = 2;

type Answer = Result<Option<Seen>, Error>;

struct Look {
    id: Id,
    caller: oneshot::Sender<Answer>,
}

/// The threads that look. Dropped, they answer what waits and end.
pub(super) struct Looks {
    queues: Vec<Sender<Look>>,
    threads: Vec<JoinHandle<()>>,
    next: AtomicUsize,
}

impl Looks {
    pub(super) fn start(
        path: &Path,
        clock: &Arc<dyn Clock>,
        keyring: Option<&Keyring>,
        readers: usize,
    ) -> Result<Self, Failure> {
        let mut looks = Self { queues: Vec::new(), threads: Vec::new(), next: AtomicUsize::new(0) };
        for _ in 0..readers.max(1) {
            let connection =
                connection::reader(path, CACHE_BYTES).map_err(|error| Failure::of(path, &error))?;
            let (sender, queue) = mpsc::channel();
            let (path, keyring) = (path.to_owned(), keyring.cloned());
            let thread = Thread { connection, path, clock: clock.clone(), keyring };
            let named = thread::Builder::new().name("onlyonce-reader".to_owned());
            let thread = named.spawn(move || thread.run(&queue)).map_err(|error| no_thread(&error))?;
            looks.queues.push(sender);
            looks.threads.push(thread);
        }
        Ok(looks)
    }

    pub(super) async fn look(&self, id: Id) -> Answer {
        let (caller, answer) = oneshot::channel();
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        // A thread that has died drops the look, and so closes its channel.
        let _ = self.queues[turn].send(Look { id, caller });
        answer.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the reader has ended")))
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Thread {
    connection: Connection,
    path: PathBuf,
    clock: Arc<dyn Clock>,
    keyring: Option<Keyring>,
}

impl Thread {
    fn run(self, queue: &Receiver<Look>) {
        while let Ok(first) = queue.recv() {
            let more: Vec<_> = queue.try_iter().take(LOOKS_MAX - 1).collect();
            if more.is_empty() {
                self.answer(first);
                continue;
            }
            // Without the transaction each look would begin one of its own: slower, and as right.
            let begun = run(&self.connection, "BEGIN").is_ok();
            self.answer(first);
            more.into_iter().for_each(|look| self.answer(look));
            if begun {
                let _ = run(&self.connection, "COMMIT");
            }
        }
    }

    fn answer(&self, Look { id, caller }: Look) {
        let answer = match row::load(&self.connection, id, self.keyring.as_ref(), || self.clock.now()) {
            Ok(seen) => seen.transpose(),
            Err(error) => Err(Failure::of(&self.path, &error).error()),
        };
        let _ = caller.send(answer);
    }
}

/// Connections for listings, kept while nobody lists.
#[derive(Clone)]
pub(super) struct Lists {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
    /// Let go of after the connections.
    _owned: Owned,
}

impl Lists {
    pub(super) fn new(path: &Path, owned: &Owned) -> Self {
        Self { path: path.to_owned(), idle: Arc::default(), _owned: owned.clone() }
    }

    /// Runs `list` on a connection that only reads, on a thread that may block.
    pub(super) async fn run<R: Send + 'static>(
        &self,
        list: impl FnOnce(&Connection) -> Result<R, Refused> + Send + 'static,
    ) -> Result<R, Error> {
        let lists = self.clone();
        let listing = tokio::task::spawn_blocking(move || lists.blocking(list));
        listing.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the listing was given up")))
    }

    fn blocking<R>(&self, list: impl FnOnce(&Connection) -> Result<R, Refused>) -> Result<R, Error> {
        let failed = |error: rusqlite::Error| Failure::of(&self.path, &error).error();
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connection::reader(&self.path, CACHE_BYTES).map_err(failed)?,
        };
        let listed = list(&connection).map_err(|refused| match refused {
            Refused::Stored(error) => error,
            Refused::Sqlite(error) => failed(error),
        });
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        listed
    }
}

pub(super) fn no_thread(error: &std::io::Error) -> Failure {
    Failure::new(ErrorKind::Unavailable, format!("a thread of the store cannot be started: {error}"))
}
