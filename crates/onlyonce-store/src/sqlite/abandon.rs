//! What a dead process left running.
//!
//! The file has one owner. Whoever takes it knows that the one before is gone, and with it every attempt that ran:
//! nobody needs to wait for their leases. What becomes of them is the machine's to say.

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Revision, StateName};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::carry;
use super::fresh::Written;
use super::row::Stored;
use super::writer::{Refused, keep_time};
use crate::{codec, failpoint};

/// So many go into one transaction.
const ROWS_MAX: i64 = 1_000;

/// Lapses every attempt in the file, and says how many. Relies on the index by state and due time.
pub(super) fn all(connection: &mut Connection, now: Timestamp) -> Result<usize, Refused> {
    let mut lapsed = 0;
    let mut after = Vec::new();
    loop {
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let running = running(&transaction, &after)?;
        let Some(last) = running.last().map(|stored| stored.id) else { return Ok(lapsed) };
        after = last.0.to_vec();
        for stored in running {
            lapsed += usize::from(one(&transaction, stored, now)?);
        }
        keep_time(&transaction, now)?;
        failpoint!("sqlite.lapse.before");
        transaction.commit()?;
        failpoint!("sqlite.lapse.after");
    }
}

fn running(connection: &Connection, after: &[u8]) -> rusqlite::Result<Vec<Stored>> {
    const SQL: &str = "
        SELECT id, revision, written_at, record, due_at FROM record INDEXED BY record_by_due
        WHERE state = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
    let mut statement = connection.prepare_cached(SQL)?;
    let rows = statement.query_map(params![StateName::Running.as_str(), after, ROWS_MAX], Stored::read)?;
    rows.collect()
}

/// A record that cannot be understood stays as it is: whoever asks for it is told.
fn one(connection: &Connection, stored: Stored, now: Timestamp) -> Result<bool, Refused> {
    let id: Id = stored.id;
    let Ok(seen) = stored.seen(now) else { return Ok(false) };
    let Some(next) = machine::abandon(&seen) else { return Ok(false) };
    let revision = mint(connection)?;
    let blob = codec::encode(&next);
    carry::put(connection, id, &Written::new(revision, *next, blob, now))?;
    Ok(true)
}

/// 64 random bits: SQLite's own generator is seeded by the system.
fn mint(connection: &Connection) -> rusqlite::Result<Revision> {
    let bits: i64 = connection.prepare_cached("SELECT random()")?.query_row([], |row| row.get(0))?;
    Ok(Revision(bits.cast_unsigned()))
}
