//! From a path to a store that is ready.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use onlyonce_core::time::Timestamp;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::failure::{Failure, quoted};
use super::file::{self, Found};
use super::fresh::Fresh;
use super::intake::{self, Intake};
use super::judge::Lookup;
use super::owner::Owner;
use super::reader::{Lists, Looks, no_thread};
use super::tape::Tapes;
use super::turn::Turns;
use super::wal::Keeper;
use super::writer::{self, Refused, Writer};
use super::{Options, Sqlite, carry, connection, lapse, migration};
use crate::clock::{Clock, SystemClock};
use crate::{ErrorKind, failpoint};

/// A file up to this size is checked whole each time it is opened: that takes no longer than a few milliseconds.
const CHECKED_BYTES_MAX: u64 = 2 << 20;

pub(super) fn open(path: &Path, options: Options) -> Result<Sqlite, Failure> {
    let path = file::resolve(path)?;
    // What is not ours gets no lock file beside it, so it is looked at before one is made. Where there is one already,
    // the lock comes first: opening and closing a file that this very process has would drop SQLite's locks on it.
    if !Owner::has_been_here(&path) {
        file::inspect(&path)?;
    }
    let owner = Owner::take(&path)?;
    // Another process may have created it in between.
    let found = file::inspect(&path)?;
    let failed = |error: rusqlite::Error| Failure::of(&path, &error);
    if found == Found::Nothing {
        file::create(&path)?;
    }
    let handle = file::handle(&path)?;
    let mut connection = connection::writer(&path, options.cache_bytes).map_err(failed)?;
    make_ready(&mut connection, &path, found, &options)?;
    let tapes = take_in(&mut connection, &path)?;
    let clock = time(&connection, options.clock).map_err(failed)?;
    let lapsed = lapse::all(&mut connection, clock.now()).map_err(|refused| match refused {
        Refused::Sqlite(error) => Failure::of(&path, &error),
        Refused::Stored(error) => Failure::new(error.kind(), error.to_string()),
    })?;
    failpoint!("sqlite.open.ready");
    let (keeper, signal) = Keeper::start(&path, &handle).map_err(|error| no_thread(&error))?;
    signal.watch(&mut connection).map_err(failed)?;
    let counts = Arc::<writer::Counts>::default();
    let fresh = Arc::<Fresh>::default();
    let looks = Looks::start(&path, &clock, &fresh, options.readers)?;
    let thread = writer::Thread {
        connection,
        path: path.clone(),
        clock: clock.clone(),
        wal: signal,
        counts: counts.clone(),
        damage: writer::Damage::default(),
    };
    let writer = Arc::new(Writer::start(thread).map_err(|error| no_thread(&error))?);
    let looking = connection::reader(&path, options.cache_bytes).map_err(failed)?;
    let intake = Intake::start(|orders| intake::Thread {
        file: Lookup { connection: looking, path: path.clone() },
        clock: clock.clone(),
        counts: counts.clone(),
        turns: Turns::new(tapes, fresh, writer.clone(), handle.clone(), orders),
    });
    let intake = intake.map_err(|error| no_thread(&error))?;
    let lists = Lists::new(&path, &handle);
    Ok(Sqlite {
        intake,
        writer,
        looks,
        lists,
        keeper,
        clock,
        counts,
        lapsed,
        epoch: AtomicU64::new(0),
        expired: options.expired,
        path,
        handle,
        _owner: owner,
    })
}

/// Carries over what a process left on its tapes when it died, and makes them ours.
fn take_in(connection: &mut Connection, path: &Path) -> Result<Tapes, Failure> {
    let failed = |error: rusqlite::Error| Failure::of(path, &error);
    let intake = carry::Intake::of(connection).map_err(failed)?.expect("the schema is this release's");
    let rounds = carry::left(path, connection)?;
    let last = carry::recover(connection, path, intake.carried, rounds)?;
    let tapes = Tapes::open(path, intake.identity, last + 1).map_err(|error| {
        let message = format!(
            "tapes of store file {} cannot be created: {error}; let this process write in its folder",
            quoted(path)
        );
        Failure::new(file::kind_of(&error), message)
    })?;
    failpoint!("sqlite.tapes.created");
    carry::set_open(connection, true).map_err(failed)?;
    Ok(tapes)
}

/// Until the file is known to be good, closing it must not carry its WAL over: it is refused untouched.
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
        Found::Ours => check_if_small(connection, path)?,
    }
    use_wal(connection, path)?;
    migration::run(connection, path)?;
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

fn check_if_small(connection: &Connection, path: &Path) -> Result<(), Failure> {
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if bytes > CHECKED_BYTES_MAX {
        return Ok(());
    }
    let verdict = connection.pragma_query_value(None, "quick_check", |row| row.get::<_, String>(0));
    match verdict {
        Ok(verdict) if verdict == "ok" => Ok(()),
        Ok(verdict) => {
            let message = format!(
                "store file {} is damaged ({}) and was left as it is; restore it from a backup",
                quoted(path),
                verdict.replace('\n', " ")
            );
            Err(Failure::new(ErrorKind::Corrupt, message))
        }
        Err(error) => Err(Failure::of(path, &error)),
    }
}

/// The clock, which does not begin before the latest stamp in the file.
fn time(connection: &Connection, given: Option<Box<dyn Clock>>) -> rusqlite::Result<Arc<dyn Clock>> {
    let latest = connection.query_row("SELECT latest FROM clock WHERE one = 1", [], |row| row.get(0))?;
    let latest = Timestamp::from_micros(latest);
    let Some(given) = given else {
        let clock = SystemClock::new();
        clock.not_before(latest);
        return Ok(Arc::new(clock));
    };
    let behind = latest.since(given.now());
    Ok(Arc::new(Ahead { given, behind }))
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
}
