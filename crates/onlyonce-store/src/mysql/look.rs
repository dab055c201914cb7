//! Reads of one record.

use onlyonce_core::record::{Id, Seen};

use super::pool::Pool;
use super::row;
use super::statement;
use crate::Error;
use crate::seal::Keyring;

pub(super) async fn alone(pool: &Pool, keyring: Option<&Keyring>, id: Id) -> Result<Option<Seen>, Error> {
    let rows = pool.query(&statement::LOAD, vec![id.0.into()]).await?;
    rows.first().map(|row| row::seen(row, keyring)).transpose()
}
