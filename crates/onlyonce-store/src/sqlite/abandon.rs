//! What a dead process left running.
//!
//! The file has one owner. Whoever takes it knows that the one before is gone, and with it every attempt that ran:
//! nobody needs to wait for their leases. What becomes of them is the machine's to say.

use std::sync::LazyLock;

use onlyonce_core::machine;
use onlyonce_core::record::{Draft, Id, Revision, Seen};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::row::{self, Swap};
use super::writer::{Refused, keep_time};
use crate::seal::Keyring;
use crate::sql::COLUMNS;
use crate::{Change, Error, failpoint};

/// So many go into one transaction.
const ROWS_MAX: i64 = 1_000;

/// Settles every attempt in the file, and says how many there were.
pub(super) fn all(
    connection: &mut Connection,
    keyring: Option<&Keyring>,
    now: Timestamp,
) -> Result<usize, Refused> {
    let mut abandoned = 0;
    for state in machine::ABANDONED.iter() {
        let mut after = Vec::new();
        loop {
            let transaction =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let found = page(&transaction, state.as_str(), &after, keyring, now)?;
            let Some((last, _)) = found.last() else { break };
            after = last.0.to_vec();
            let mut settled = Vec::new();
            for (id, seen) in found {
                settled.extend(one(&transaction, id, seen, keyring, now)?);
            }
            keep_time(&transaction, now)?;
            failpoint!("sqlite.abandon.before");
            transaction.commit()?;
            failpoint!("sqlite.abandon.after");
            abandoned += settled.len();
            settled.iter().for_each(tell);
        }
    }
    Ok(abandoned)
}

type Found = (Id, Result<Seen, Error>);

/// Relies on the index by state and due time.
fn page(
    connection: &Connection,
    state: &str,
    after: &[u8],
    keyring: Option<&Keyring>,
    now: Timestamp,
) -> rusqlite::Result<Vec<Found>> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_due
             WHERE state = ?1 AND id > ?2 ORDER BY id LIMIT ?3"
        )
    });
    let understand = |row: &Row<'_>| Ok((row::id(row)?, row::read(row, |row| row.seen(now, keyring))?));
    connection.prepare_cached(&SQL)?.query_map(params![state, after, ROWS_MAX], understand)?.collect()
}

/// What was written about an attempt that was left running.
type Settled = (Id, Box<Draft>);

/// A record that cannot be understood, or whose key is missing, stays as it is: whoever asks for it is told.
fn one(
    connection: &Connection,
    id: Id,
    seen: Result<Seen, Error>,
    keyring: Option<&Keyring>,
    now: Timestamp,
) -> Result<Option<Settled>, Refused> {
    let Ok(seen) = seen else { return Ok(None) };
    let Some(next) = machine::abandon(&seen) else { return Ok(None) };
    let change = Change::after(Some(&seen), mint(connection)?, next.clone());
    Swap::of(id, change, keyring).run(connection, keyring, now)?;
    Ok(Some((id, next)))
}

fn tell((id, written): &Settled) {
    tracing::warn!(
        record = %id.short(),
        route = written.route.as_deref().unwrap_or_default(),
        attempt = written.attempt,
        is = %written.state.name(),
        "a process that ended had left this request running"
    );
}

/// 64 random bits: SQLite's own generator is seeded by the system.
fn mint(connection: &Connection) -> rusqlite::Result<Revision> {
    let bits: i64 = connection.prepare_cached("SELECT random()")?.query_row([], |row| row.get(0))?;
    Ok(Revision(bits.cast_unsigned()))
}
