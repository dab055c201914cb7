//! Which encryption keys something in the file needs.

use rusqlite::Connection;

use crate::KeyUse;
use crate::seal::Keyring;
use crate::sql;

/// Reads every row: an index over keys would cost every write.
pub(super) fn in_use(connection: &Connection, keyring: Option<&Keyring>) -> rusqlite::Result<Vec<KeyUse>> {
    let mut statement = connection.prepare(&sql::KEYS_IN_USE.replace("{schema}.", ""))?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let key_id = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
        found.extend(sql::key_use(key_id, row.get(1)?, keyring));
    }
    Ok(found)
}
