//! From a path to a store that is ready.

use std::path::Path;
use std::sync::{Arc, Mutex};

use onlyonce_core::time::Timestamp;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::checkpoint::Checkpointer;
use super::failure::{Failure, quoted};
use super::file::{self, Found};
use super::latch::Latch;
use super::owner::Owner;
use super::reader::{Lists, Looks, no_thread};
use super::writer::{self, Writer};
use super::{Options, Sqlite, abandon, check, connection, migration};
use crate::clock::{Clock, SystemClock};
use crate::seal::Keyring;
use crate::{Epoch, ErrorKind, Finding, failpoint};

/// A file up to this size is checked whole each time it is opened: that takes no longer than a few milliseconds.
const CHECKED_BYTES_MAX: u64 = 2 << 20;

pub(super) fn open(path: &Path, mut options: Options) -> Result<Sqlite, Failure> {
    let path = file::resolve(path)?;
    let owned = Owner::take(&path)?;
    let found = file::inspect(&path, owned.file())?;
    let failed = |error: rusqlite::Error| Failure::of(&path, &error);
    let mut connection = connection::writer(&path, options.cache_bytes).map_err(failed)?;
    make_ready(&mut connection, &path, found, &options)?;
    let kept = kept(&connection).map_err(failed)?;
    let clock = time(kept.latest, options.clock.take());
    let abandoned = abandon::all(&mut connection, options.keyring.as_ref(), clock.now())
        .map_err(|refused| refused.failure(&path))?;
    failpoint!("sqlite.open.ready");
    let latch = Latch::default();
    let (checkpointer, signal) =
        Checkpointer::start(&path, &owned, &latch).map_err(|error| no_thread(&error))?;
    signal.watch(&mut connection).map_err(failed)?;
    let counts = Arc::<writer::Counts>::default();
    let looks = Looks::start(&path, &clock, options.keyring.as_ref(), options.readers)?;
    let thread = writer::Thread {
        connection,
        path: path.clone(),
        clock: clock.clone(),
        checkpoints: signal,
        counts: counts.clone(),
        latch: latch.clone(),
        keyring: options.keyring.clone(),
    };
    let writer = Writer::start(thread).map_err(|error| no_thread(&error))?;
    let lists = Lists::new(&path, &owned);
    Ok(Sqlite {
        writer,
        looks: Some(looks),
        lists: Some(lists),
        checkpointer: Some(checkpointer),
        clock,
        counts,
        latch,
        abandoned,
        epoch: Mutex::new(kept.epoch),
        name: kept.name,
        expired: options.expired,
        keyring: options.keyring,
        path,
        owned,
    })
}

/// Until the file is known to be good, closing it must not checkpoint its WAL: it is refused untouched.
fn make_ready(
    connection: &mut Connection,
    path: &Path,
    found: Found,
    options: &Options,
) -> Result<(), Failure> {
    let failed = |error: rusqlite::Error| Failure::of(path, &error);
    let no_checkpoint = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    connection.set_db_config(no_checkpoint, true).map_err(failed)?;
    match found {
        Found::Nothing => migration::claim(connection, options.page_bytes).map_err(failed)?,
        Found::Ours => {}
    }
    use_wal(connection, path)?;
    migration::run(connection, path)?;
    if found == Found::Ours {
        check_if_small(connection, path, options.keyring.as_ref())?;
    }
    connection.set_db_config(no_checkpoint, false).map_err(failed)?;
    Ok(())
}

fn use_wal(connection: &Connection, path: &Path) -> Result<(), Failure> {
    let mode = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
    match mode {
        Ok(mode) if mode == "wal" => Ok(()),
        Ok(mode) => {
            let message = format!(
                "store file {} stays in journal mode \"{mode}\": its file system has no shared memory; \
                 put it on a local disk",
                quoted(path)
            );
            Err(Failure::new(ErrorKind::Misconfigured, message))
        }
        Err(error) => Err(Failure::of(path, &error)),
    }
}

fn check_if_small(connection: &Connection, path: &Path, keyring: Option<&Keyring>) -> Result<(), Failure> {
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if bytes > CHECKED_BYTES_MAX {
        return Ok(());
    }
    let health = check::health(connection, keyring).map_err(|refused| refused.failure(path))?;
    let Some(fault) = health.faults.first() else { return Ok(()) };
    let message = format!(
        "store file {} is damaged ({}) and was left as it is; restore it from a backup",
        quoted(path),
        fault.replace('\n', " ")
    );
    Err(Failure::new(ErrorKind::Corrupt, message))
}

/// What the store keeps about itself.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    pub(super) name: [u8; 16],
    pub(super) epoch: Epoch,
    pub(super) latest: Timestamp,
}

pub(super) fn kept(connection: &Connection) -> rusqlite::Result<Kept> {
    connection.query_row("SELECT name, epoch, latest FROM onlyonce_store WHERE one = 1", [], |row| {
        Ok(Kept {
            name: row.get(0)?,
            epoch: Epoch(row.get::<_, i64>(1)?.cast_unsigned()),
            latest: Timestamp::from_micros(row.get(2)?),
        })
    })
}

/// The clock, which does not begin before the latest stamp in the file.
fn time(latest: Timestamp, given: Option<Box<dyn Clock>>) -> Arc<dyn Clock> {
    let Some(given) = given else { return Arc::new(SystemClock::not_before(latest)) };
    let behind = latest.since(given.now());
    Arc::new(Ahead { given, behind })
}

/// A clock that was set back since the file was last written: it goes on from there.
#[derive(Debug)]
struct Ahead {
    given: Box<dyn Clock>,
    behind: std::time::Duration,
}

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.given.now().plus(self.behind)
    }

    fn examine(&self) -> Option<Finding> {
        self.given.examine()
    }
}
