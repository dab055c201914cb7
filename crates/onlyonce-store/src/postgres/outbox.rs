//! The messages stored with records.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::record::Token;
use tokio_postgres::Row;

use super::pool::{Asked, Pool};
use super::row::{Moment, Span, column, text};
use super::statement::Verb;
use crate::Error;
use crate::outbox::{Claimed, DeadLetter, DeliveryError, Settled};

pub(super) async fn claim(
    pool: &Pool,
    token: Token,
    lease: Duration,
    limit: usize,
) -> Result<Vec<Claimed>, Error> {
    let (bytes, lease) = (&token.0[..], Span::at_most(lease));
    let rows = pool.write(Asked::Statement(Verb::Claim, &[&bytes, &lease, &at_most(limit)])).await?;
    let claimed = |row: &Row| {
        Ok(Claimed {
            key: column::<&str>(row, 0)?.into(),
            destination: column::<&str>(row, 1)?.into(),
            payload: payload(row, 2)?,
            content_type: column::<&str>(row, 3)?.into(),
            group: column::<Option<&str>>(row, 4)?.map(Arc::from),
            delivery: column::<i32>(row, 5)?.unsigned_abs(),
            token,
        })
    };
    rows.iter().map(claimed).collect()
}

/// False if another relay has claimed the message since.
pub(super) async fn settle(pool: &Pool, key: &str, token: Token, settled: &Settled) -> Result<bool, Error> {
    let token = &token.0[..];
    let rows = match settled {
        Settled::Delivered { provider_id } => {
            let provider_id = provider_id.as_deref().map(text);
            pool.write(Asked::Statement(Verb::Deliver, &[&key, &token, &provider_id])).await?
        }
        Settled::Again { after, error } => {
            pool.write(Asked::Statement(Verb::Retry, &[&key, &token, &text(error), &Span::at_most(*after)]))
                .await?
        }
        Settled::Dead { error } => {
            pool.write(Asked::Statement(Verb::Bury, &[&key, &token, &text(error)])).await?
        }
    };
    Ok(!rows.is_empty())
}

pub(super) async fn provider_id(pool: &Pool, key: &str) -> Result<Option<Arc<str>>, Error> {
    let rows = pool.query(Verb::ProviderId, &[&key]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(column::<Option<&str>>(row, 0)?.map(Arc::from))
}

pub(super) async fn dead_letters(pool: &Pool, limit: usize) -> Result<Vec<DeadLetter>, Error> {
    let rows = pool.query(Verb::DeadLetters, &[&at_most(limit)]).await?;
    let letter = |row: &Row| {
        Ok(DeadLetter {
            key: column::<&str>(row, 0)?.into(),
            destination: column::<&str>(row, 1)?.into(),
            payload: payload(row, 2)?,
            errors: errors(row)?,
        })
    };
    rows.iter().map(letter).collect()
}

/// The errors from three array columns; all of them null if there was none.
fn errors(row: &Row) -> Result<Vec<DeliveryError>, Error> {
    let moments = column::<Option<Vec<Moment>>>(row, 3)?.unwrap_or_default();
    let deliveries = column::<Option<Vec<i32>>>(row, 4)?.unwrap_or_default();
    let errors = column::<Option<Vec<&str>>>(row, 5)?.unwrap_or_default();
    let told = moments.into_iter().zip(deliveries).zip(errors);
    let error = |((at, delivery), error): ((Moment, i32), &str)| DeliveryError {
        at: at.0,
        delivery: delivery.unsigned_abs(),
        error: error.into(),
    };
    Ok(told.map(error).collect())
}

fn payload(row: &Row, place: usize) -> Result<Bytes, Error> {
    Ok(Bytes::copy_from_slice(column(row, place)?))
}

fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
