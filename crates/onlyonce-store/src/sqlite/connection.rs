//! Connections to the file, each set up for what it does.
//!
//! Only the writer's checkpoints the WAL when it is closed, and it is closed last: whoever only reads leaves the WAL as
//! it is.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Result};

/// How long a connection waits for another program, such as somebody's `sqlite3`, before it gives up.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many prepared statements a connection keeps: more than there are in this engine.
const STATEMENTS_MAX: usize = 64;

/// One that writes. There is one; checkpoints are made by a connection of their own.
pub(super) fn writer(path: &Path, cache_bytes: usize) -> Result<Connection> {
    let connection = open(path, cache_bytes)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(connection)
}

/// One that checkpoints the WAL beside the writer.
pub(super) fn checkpointer(path: &Path, cache_bytes: usize) -> Result<Connection> {
    let connection = writer(path, cache_bytes)?;
    leave_wal(&connection)?;
    Ok(connection)
}

/// One that only reads, also where nobody owns the file.
pub(super) fn reader(path: &Path, cache_bytes: usize) -> Result<Connection> {
    let connection = open(path, cache_bytes)?;
    connection.pragma_update(None, "query_only", true)?;
    leave_wal(&connection)?;
    Ok(connection)
}

/// Closing this connection makes no checkpoint, also where it is the last.
pub(super) fn leave_wal(connection: &Connection) -> Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
}

/// The file must be there: creating it, for its owner only, is not SQLite's business. The path is not taken as a URI.
fn open(path: &Path, cache_bytes: usize) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // What is in the file is data: no function in its schema runs by itself, and nothing writes the schema directly.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    let cache_kib = i64::try_from(cache_bytes / 1024).unwrap_or(i64::MAX);
    connection.pragma_update(None, "cache_size", -cache_kib)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

/// Runs statements that have no parameters and give no rows, prepared once.
pub(super) fn run(connection: &Connection, sql: &'static str) -> Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}
