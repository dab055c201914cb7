//! The file for a process that does not own it: it may be read and copied while its owner writes.
//!
//! SQLite lets any number of processes read beside the one that writes. A guest takes no lock of ours, settles nothing
//! and changes no record, so it works on a file that is in use and on one that is not.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::backup::{self, Progress};
use super::check::{self, Health};
use super::failure::{Failure, quoted};
use super::file::{self, Found};
use super::{connection, migration, owner};
use crate::{Error, ErrorKind, Schema};

const CACHE_BYTES: usize = 4 << 20;

/// A store file of which this process is not the owner.
///
/// **For another process than the owner's.** Looking at the file opens and closes it, and on Unix closing a file gives
/// up every lock its process has on it, SQLite's too. The owner has [`Sqlite::backup`](super::Sqlite::backup) and
/// [`Sqlite::check`](super::Sqlite::check).
#[derive(Clone, Debug)]
pub struct Guest {
    path: PathBuf,
}

impl Guest {
    /// The file at `path`, as far as its first bytes say.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where there is none, or none of ours, or one of a newer release, or where this process owns it;
    /// `Corrupt` where a part is missing.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = file::resolve(path.as_ref())?;
        owner::refuse_ours(&path)?;
        match file::inspect_at(&path)? {
            Found::Ours => Ok(Self { path }),
            Found::Nothing => {
                let message = format!(
                    "store file {} does not exist or is empty; use the file of a store",
                    quoted(&path)
                );
                Err(Error::new(ErrorKind::Misconfigured, message))
            }
        }
    }

    /// The schema of what is at `path`, as [`Guest::schema`] tells it; one that lacks everything where nothing is there.
    ///
    /// # Errors
    ///
    /// As for [`Guest::open`] and [`Guest::schema`].
    pub async fn schema_at(path: impl AsRef<Path>) -> Result<Schema, Error> {
        let path = file::resolve(path.as_ref())?;
        match file::inspect_at(&path)? {
            Found::Ours => Self { path }.schema().await,
            Found::Nothing => Ok(migration::lacking(0)),
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether [`Guest::backup`] could begin: `to` is free, and its folder is there.
    ///
    /// # Errors
    ///
    /// Those that the backup itself would begin with.
    pub fn may_backup(&self, to: impl AsRef<Path>) -> Result<(), Error> {
        Ok(backup::is_free(to.as_ref())?)
    }

    /// As [`Sqlite::backup`](super::Sqlite::backup).
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn backup(
        &self,
        to: impl AsRef<Path>,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<(), Error> {
        let to = to.as_ref().to_owned();
        self.blocking(move |path| {
            let connection = connect(path)?;
            let copied = backup::backup(path, &to, progress);
            leave(&connection, path);
            copied
        })
        .await
    }

    /// As [`Sqlite::check`](super::Sqlite::check). Where a damaged file cannot be read any further, that is a fault too.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read at all.
    pub async fn check(&self) -> Result<Health, Error> {
        self.blocking(|path| match connect(path).and_then(|connection| health(path, &connection)) {
            Err(damaged) if damaged.kind == ErrorKind::Corrupt => {
                Ok(Health { records: 0, faults: vec![damaged.message] })
            }
            found => found,
        })
        .await
    }

    /// The schema as it is, and what opening the file would apply to it.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read, is of a newer release, or has the tables of another one.
    pub async fn schema(&self) -> Result<Schema, Error> {
        self.blocking(|path| {
            let connection = connect(path)?;
            let schema = migration::schema(&connection, path);
            leave(&connection, path);
            schema
        })
        .await
    }

    async fn blocking<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<R, Failure> + Send + 'static,
    ) -> Result<R, Error> {
        let path = self.path.clone();
        match tokio::task::spawn_blocking(move || work(&path)).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "reading the store file was given up")),
        }
    }
}

/// What the first bytes cannot say: the WAL may be of a newer release than the file.
fn connect(path: &Path) -> Result<Connection, Failure> {
    let failed = |error: rusqlite::Error| Failure::of(path, &error);
    let connection = connection::reader(path, CACHE_BYTES).map_err(failed)?;
    file::newer_is_refused(path, migration::version(&connection).map_err(failed)?)?;
    Ok(connection)
}

/// The same to a file that has this release's schema: whoever reads its records relies on their columns.
pub(super) fn connect_current(path: &Path) -> Result<Connection, Failure> {
    let connection = connect(path)?;
    migration::check(&connection, path)?;
    Ok(connection)
}

fn health(path: &Path, connection: &Connection) -> Result<Health, Failure> {
    let found = check::health(connection, None).map_err(|refused| refused.failure(path));
    leave(connection, path);
    found
}

/// Where nobody else has the file and its WAL is empty, SQLite may take its own files away again. A WAL with something
/// in it is left for the next owner.
pub(super) fn leave(connection: &Connection, path: &Path) {
    if std::fs::metadata(file::beside(path, "wal")).is_ok_and(|wal| wal.len() == 0) {
        // Failing that, two files stay that say nothing.
        let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
    }
}
