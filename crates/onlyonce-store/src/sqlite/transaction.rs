//! A transaction of the user's own on the writer's thread: rows of theirs, a record and its messages, in one commit.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use onlyonce_core::record::{Id, Seen};
use onlyonce_core::time::Timestamp;
use rusqlite::Connection;

use super::row::{self, Swap};
use super::writer::{Refused, Size, Statements};
use super::{Sqlite, failure::Failure, outbox};
use crate::outbox::Message;
use crate::seal::Keyring;
use crate::{Change, Error, ErrorKind, Swapped, sql};

/// The store's transaction, as work handed to [`Sqlite::write`] sees it. It is a connection of rusqlite's, for statements on
/// tables of one's own; the transaction is not ended through it.
#[derive(Debug)]
pub struct Transaction<'a> {
    connection: &'a Connection,
    path: &'a std::path::Path,
    now: Timestamp,
    keyring: Option<&'a Keyring>,
    is_refused: Cell<bool>,
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Transaction<'_> {
    /// The connection, for statements on tables of one's own. The transaction is not ended through it.
    pub fn connection(&self) -> &Connection {
        self.connection
    }

    /// The moment that what is written here is stamped with.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Nothing of this transaction is written, even if the work goes on and succeeds: what it was to commit with was refused.
    pub fn refuse(&self) {
        self.is_refused.set(true);
    }

    /// The record as it stands in this transaction.
    ///
    /// # Errors
    ///
    /// As for [`crate::Store::load`].
    pub fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let now = self.now;
        let seen = row::load(self.connection, id, self.keyring, || now);
        seen.map_err(|error| self.failed(&error))?.transpose()
    }

    /// As [`crate::Store::swap`], in this transaction: what it answers counts once the transaction has committed.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        let swap = Swap::of(id, change, self.keyring);
        match swap.run(self.connection, self.keyring, self.now) {
            Ok(done) => Ok(swap.swapped(done)),
            Err(Refused::Stored(error)) => Err(error),
            Err(Refused::Sqlite(error)) => Err(self.failed(&error)),
        }
    }

    /// Stores messages of a record. One whose key is there already is the same message, and is kept once.
    ///
    /// # Errors
    ///
    /// As for [`crate::Store::swap`].
    pub fn send(&self, record: Id, messages: &[Message]) -> Result<(), Error> {
        let sealed = self.keyring.map(|keyring| {
            let seal = |message: &Message| Message {
                payload: sql::payload(keyring, &message.key, &message.payload).into(),
                ..message.clone()
            };
            (keyring.first(), messages.iter().map(seal).collect::<Vec<_>>())
        });
        let (key_id, messages) = match &sealed {
            Some((key_id, messages)) => (Some(&key_id.0[..]), &messages[..]),
            None => (None, messages),
        };
        outbox::store(self.connection, record, messages, key_id, self.now)
            .map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &rusqlite::Error) -> Error {
        Failure::of(self.path, error).error()
    }
}

impl Sqlite {
    /// Runs `work` in one transaction on the writer's thread, and answers once it is durable. All of it is written, or
    /// nothing where `work` fails. While it runs nobody else writes, so it should be short; it is carried out also where
    /// its caller goes away.
    ///
    /// # Errors
    ///
    /// What `work` failed with; or as for [`crate::Store::swap`].
    pub async fn write<R, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let (path, keyring) = (self.path().to_owned(), self.keyring.clone());
        let size = Size { rows: 1, bytes: 0, statements: Statements::Many };
        let given_up = Arc::new(Mutex::new(None));
        let told = given_up.clone();
        let run = move |connection: &Connection, now| {
            let keyring = keyring.as_ref();
            let tx = Transaction { connection, path: &path, now, keyring, is_refused: Cell::new(false) };
            let done = work(&tx).map_err(|error| {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Refused::Stored(Error::new(ErrorKind::Other, "the work was given up, and undone"))
            })?;
            if tx.is_refused.get() {
                let message = "a completion or message in this transaction was refused, so nothing of it was written; return \
                               that error instead of going on";
                return Err(Refused::Stored(Error::new(ErrorKind::Other, message).having_written_nothing()));
            }
            Ok(done)
        };
        let done = self.writer.submit(size, run).await;
        let given_up = given_up.lock().unwrap_or_else(PoisonError::into_inner).take();
        match given_up {
            Some(error) => Err(error),
            None => done.map_err(E::from),
        }
    }
}
