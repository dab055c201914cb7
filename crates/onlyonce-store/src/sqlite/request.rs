//! Requests of accepted work.

use bytes::Bytes;
use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::writer::Refused;
use crate::accepted::Request;
use crate::seal::Keyring;
use crate::sql;

/// In the transaction of its record; `key_id` is the key that it is encrypted with. Relies on the primary key.
pub(super) fn change(
    connection: &Connection,
    record: Id,
    used_at: Timestamp,
    request: &Request,
    key_id: Option<&[u8]>,
) -> rusqlite::Result<()> {
    const PUT: &str = "
        INSERT INTO onlyonce_request (record, used_at, request, key_id) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (record) DO UPDATE
        SET used_at = excluded.used_at, request = excluded.request, key_id = excluded.key_id";
    match request {
        Request::Keep => Ok(()),
        Request::Drop => delete(connection, record),
        Request::Put(request) => {
            let values = params![record.0, used_at.as_micros(), &request[..], key_id];
            connection.prepare_cached(PUT)?.execute(values).map(drop)
        }
    }
}

/// The request of a record, where there is one. Relies on the primary key.
pub(super) fn delete(connection: &Connection, record: Id) -> rusqlite::Result<()> {
    const DELETE: &str = "DELETE FROM onlyonce_request WHERE record = ?1";
    connection.prepare_cached(DELETE)?.execute([record.0]).map(drop)
}

/// That of one use of a key. Relies on the primary key.
pub(super) fn of(
    connection: &Connection,
    record: Id,
    used_at: Timestamp,
    keyring: Option<&Keyring>,
) -> Result<Option<Bytes>, Refused> {
    const SQL: &str = "SELECT request, key_id FROM onlyonce_request WHERE record = ?1 AND used_at = ?2";
    let mut statement = connection.prepare_cached(SQL)?;
    let mut rows = statement.query(params![record.0, used_at.as_micros()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let stored = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
    let key_id = row.get_ref(1)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
    Ok(Some(sql::open_request(keyring, record, stored, key_id)?))
}

/// How many there are, up to `limit`. Relies on the index of the primary key.
pub(super) fn count(connection: &Connection, limit: usize) -> rusqlite::Result<usize> {
    const SQL: &str = "SELECT count(*) FROM (SELECT record FROM onlyonce_request LIMIT ?1)";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let count: i64 = connection.prepare_cached(SQL)?.query_row([limit], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}
