//! The messages stored with records.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::record::Token;
use tokio_postgres::Row;

use super::pool::Pool;
use super::row::{Span, column};
use super::statement::Verb;
use crate::Error;
use crate::outbox::{Claimed, Message, Settled};

pub(super) async fn claim(
    pool: &Pool,
    token: Token,
    lease: Duration,
    limit: usize,
) -> Result<Vec<Claimed>, Error> {
    let (bytes, lease, limit) = (&token.0[..], Span::of(lease), i64::try_from(limit).unwrap_or(i64::MAX));
    let rows = pool.write(Verb::Claim, &[&bytes, &lease, &limit]).await?;
    let claimed = rows.iter().map(|row| {
        let delivery = u32::try_from(column::<i64>(row, 3)?).unwrap_or(u32::MAX);
        Ok(Claimed { message: message(row)?, delivery, token })
    });
    claimed.collect()
}

/// False where the claim is not the last one any more.
pub(super) async fn settle(pool: &Pool, key: &str, token: Token, settled: &Settled) -> Result<bool, Error> {
    let token = &token.0[..];
    let rows = match settled {
        Settled::Delivered { provider_id: _ } => pool.write(Verb::Deliver, &[&key, &token]).await?,
        Settled::Again { after, error } => {
            let (after, error) = (Span::of(*after), &**error);
            pool.write(Verb::Retry, &[&key, &token, &after, &error]).await?
        }
        Settled::Dead { error } => {
            let error = &**error;
            pool.write(Verb::Bury, &[&key, &token, &error]).await?
        }
    };
    Ok(!rows.is_empty())
}

pub(super) async fn dead(pool: &Pool, limit: usize) -> Result<Vec<(Message, Vec<Arc<str>>)>, Error> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = pool.query(Verb::DeadLetters, &[&limit]).await?;
    let letters = rows.iter().map(|row| {
        let errors: Vec<&str> = column(row, 3)?;
        Ok((message(row)?, errors.into_iter().map(Arc::from).collect()))
    });
    letters.collect()
}

/// From the columns key, destination and payload.
fn message(row: &Row) -> Result<Message, Error> {
    Ok(Message {
        key: column::<&str>(row, 0)?.into(),
        destination: column::<&str>(row, 1)?.into(),
        payload: Bytes::copy_from_slice(column(row, 2)?),
    })
}
