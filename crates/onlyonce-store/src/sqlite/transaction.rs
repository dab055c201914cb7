//! A transaction of the user's own on the writer's thread: rows of theirs, a record and its messages, in one commit.

use onlyonce_core::record::{Id, Seen};
use onlyonce_core::time::Timestamp;
use rusqlite::Connection;

use super::row::{self, Swap};
use super::writer::{Refused, Size, Statements};
use super::{Sqlite, failure::Failure};
use crate::{Change, Error, Swapped};

/// The store's transaction, as work handed to [`Sqlite::write`] sees it.
#[derive(Debug)]
pub struct Transaction<'a> {
    connection: &'a Connection,
    path: &'a std::path::Path,
    now: Timestamp,
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

    /// The record as it stands in this transaction.
    ///
    /// # Errors
    ///
    /// As for [`crate::Store::load`].
    pub fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let now = self.now;
        let seen = row::load(self.connection, id, || now);
        seen.map_err(|error| Failure::of(self.path, &error).error())?.transpose()
    }

    /// As [`crate::Store::swap`], in this transaction: what it answers counts once the transaction has committed.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        let swap = Swap::of(id, change);
        match swap.run(self.connection, self.now) {
            Ok(done) => Ok(swap.swapped(done)),
            Err(Refused::Stored(error)) => Err(error),
            Err(Refused::Sqlite(error)) => Err(Failure::of(self.path, &error).error()),
        }
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
    pub async fn write<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let path = self.path().to_owned();
        let size = Size { rows: 1, bytes: 0, statements: Statements::Many };
        let run =
            move |connection: &Connection, now| Ok(work(&Transaction { connection, path: &path, now })?);
        self.writer.submit(size, run).await
    }
}
