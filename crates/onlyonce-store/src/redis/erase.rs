//! What reads every record: erasing a scope, and which encryption keys are in use.

use std::collections::BTreeMap;

use onlyonce_core::record::Id;
use redis::Pipeline;

use super::layout::{self, Head, buckets};
use super::{Redis, audit, due, list};
use crate::seal::KeyId;
use crate::{Error, KeyUse};

/// How many records are read at a time.
const READ_MAX: usize = 200;

/// Deletes up to `limit` records of a scope that have expired; once none is left, its keys and labels go out of the log.
pub(super) async fn erase(redis: &Redis, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
    let mut erased = 0;
    for bucket in buckets() {
        if erased >= limit {
            return Ok(erased);
        }
        let ids = list::ids(&redis.background, &redis.keys, bucket).await?;
        let heads = list::heads(&redis.background, &redis.keys, &ids).await?;
        let now = redis.now().await?;
        let mut expired: Vec<(Id, Head)> = Vec::new();
        for (id, head) in ids.into_iter().zip(heads) {
            let head = head.transpose()?;
            expired
                .extend(head.filter(|head| head.scope == scope && head.may_reap(now)).map(|head| (id, head)));
        }
        expired.truncate(limit - erased);
        erased += due::delete(redis, &expired).await?;
    }
    if erased < limit {
        audit::erase(redis, scope).await?;
    }
    Ok(erased)
}

/// Which encryption keys something stored here needs. It reads every record, result and request.
pub(super) async fn keys_in_use(redis: &Redis) -> Result<Vec<KeyUse>, Error> {
    let mut rows = BTreeMap::new();
    for bucket in buckets() {
        let ids = list::ids(&redis.background, &redis.keys, bucket).await?;
        for some in ids.chunks(READ_MAX) {
            for (id, value, _) in list::records(&redis.background, &redis.keys, some).await? {
                let (row, rest_key_id) = layout::decode(&id, &value)?;
                note(&mut rows, row.key_id);
                note(&mut rows, rest_key_id.filter(|key_id| Some(*key_id) != row.key_id));
            }
            note_attached(redis, some, &mut rows).await?;
        }
    }
    let keyring = redis.keyring.as_ref();
    let key_use = |(id, rows)| KeyUse { id, rows, is_known: keyring.is_some_and(|keyring| keyring.has(id)) };
    Ok(rows.into_iter().map(key_use).collect())
}

/// The same for results of phases and requests of accepted work.
async fn note_attached(redis: &Redis, ids: &[Id], rows: &mut BTreeMap<KeyId, u64>) -> Result<(), Error> {
    let mut trip = Pipeline::new();
    for id in ids {
        trip.cmd("HVALS").arg(redis.keys.results(*id));
        trip.cmd("GET").arg(redis.keys.request(*id));
    }
    let mut answers = redis.background.ask(trip).await?;
    for id in ids {
        for value in answers.strings()? {
            note(rows, layout::decode_result(*id, &value)?.sealed);
        }
        if let Some(value) = answers.bytes()? {
            note(rows, layout::decode_request(*id, &value)?.key_id);
        }
    }
    Ok(())
}

/// Counts a use of the key whose id these bytes begin with.
fn note(rows: &mut BTreeMap<KeyId, u64>, key_id: Option<&[u8]>) {
    if let Some(key_id) = key_id.and_then(|bytes| bytes.first_chunk().copied()) {
        *rows.entry(KeyId(key_id)).or_default() += 1;
    }
}
