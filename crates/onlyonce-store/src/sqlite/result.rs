//! Results of phases.

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::writer::Refused;
use crate::result::{PhaseResult, Results};
use crate::seal::Keyring;
use crate::sql;

/// In the transaction of their record, encrypted where `sealed` is. Relies on the primary key.
pub(super) fn change(
    connection: &Connection,
    record: Id,
    used_at: Timestamp,
    results: &Results,
    sealed: Option<&[u8]>,
) -> rusqlite::Result<()> {
    const ADD: &str = "
        INSERT INTO onlyonce_result (record, number, used_at, phase, result, sealed) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
        ON CONFLICT (record, number) DO UPDATE
        SET used_at = excluded.used_at, phase = excluded.phase, result = excluded.result, sealed = excluded.sealed";
    match results {
        Results::Keep => Ok(()),
        Results::Drop => delete(connection, record),
        Results::Add(PhaseResult { number, phase, json }) => {
            let clear = sealed.is_none().then_some(&**json);
            let values = params![record.0, number, used_at.as_micros(), &**phase, clear, sealed];
            connection.prepare_cached(ADD)?.execute(values).map(drop)
        }
    }
}

/// All results of a record. Relies on the primary key.
pub(super) fn delete(connection: &Connection, record: Id) -> rusqlite::Result<()> {
    const DELETE: &str = "DELETE FROM onlyonce_result WHERE record = ?1";
    connection.prepare_cached(DELETE)?.execute([record.0]).map(drop)
}

/// Those of one use of a key, in order. Relies on the primary key.
pub(super) fn of(
    connection: &Connection,
    record: Id,
    used_at: Timestamp,
    keyring: Option<&Keyring>,
) -> Result<Vec<PhaseResult>, Refused> {
    const SQL: &str = "
        SELECT number, phase, result, sealed FROM onlyonce_result WHERE record = ?1 AND used_at = ?2 ORDER BY number";
    let mut statement = connection.prepare_cached(SQL)?;
    let mut rows = statement.query(params![record.0, used_at.as_micros()])?;
    let mut results = Vec::new();
    while let Some(row) = rows.next()? {
        let number = row.get(0)?;
        let clear = row.get_ref(2)?.as_str_or_null().map_err(rusqlite::Error::from)?;
        let sealed = row.get_ref(3)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
        let json = sql::open_result(keyring, record, number, clear, sealed)?;
        results.push(PhaseResult { number, phase: row.get(1)?, json });
    }
    Ok(results)
}
