//! Many writes in one commit.
//!
//! ```text
//!   swap ──► batcher ──► one: the plain statement ─────────────────────────┐
//!      │          └────► many: INSERT of rows, UPDATE of rows, COMMIT ───────┴─► applied, or lost
//!      │                            └─► a row is held, or the server refuses: all are sent alone
//!      └─ with anything attached ─────────────────────────────────────────► alone (write.rs)
//! ```
//!
//! 1. If as many rows were changed as sent, all were applied, at one stamp. Otherwise the transaction looks which revisions
//!    stand there: those it wrote are locked until it commits, so nobody has changed them since.
//! 2. Rows are sorted by id, so that they are locked in that order. A batch waits for nobody: if a row is held, the batch is
//!    rolled back, and each of its rows waits alone.
//! 3. A statement is prepared for two, four, eight … rows. What is left over is filled with a row that is sent twice, or with
//!    nulls: neither changes anything.

use std::collections::HashMap;

use mysql_async::{Conn, Value};
use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;

use super::pool::{Pool, Work, ask, commit};
use super::row::{self, column};
use super::statement::{self, marks};
use super::write::Write;
use crate::hash::ById;
use crate::sql::Swap;
use crate::{Error, Swapped};

/// What a batch returned for a row.
pub(super) enum Answer {
    /// It was written.
    Applied(Swapped),
    /// The record has another revision than was expected: it is to be read.
    Lost(Id),
    /// Nothing was written: send it alone.
    Alone(Box<Swap>),
}

/// Writes a batch of records to which nothing is attached. A batch of one is a statement that commits by itself, on a
/// connection for those.
pub(super) async fn write(lone: &Pool, batches: &Pool, swaps: Vec<Swap>) -> Vec<Result<Answer, Error>> {
    let mut sorted: Vec<&Swap> = swaps.iter().collect();
    sorted.sort_unstable_by_key(|swap| swap.id);
    let found = match &sorted[..] {
        [swap] => {
            let written_at = lone.write(&Write(swap)).await;
            written_at.map(|written_at| written_at.map(|at| Found::written(swap, at)).into_iter().collect())
        }
        _ => {
            let (inserts, updates) = sorted.into_iter().partition(|swap| swap.expected.is_none());
            batches.write(&Batch { inserts, updates }).await
        }
    };
    match found {
        Ok(found) => swaps.into_iter().map(|swap| Ok(answer(swap, &found))).collect(),
        Err(failure) => {
            let goes_alone = failure.is_of_one_row(swaps.len());
            let told =
                |swap| if goes_alone { Ok(Answer::Alone(Box::new(swap))) } else { Err(failure.error()) };
            swaps.into_iter().map(told).collect()
        }
    }
}

fn answer(swap: Swap, found: &HashMap<Id, Found, ById>) -> Answer {
    match found.get(&swap.id) {
        Some(found) if found.revision == swap.revision => Answer::Applied(swap.applied(found.written_at)),
        // Its stamp is ahead of the server's clock, so it was left out of the batch.
        Some(found) if Some(found.revision) == swap.expected => Answer::Alone(Box::new(swap)),
        Some(_) | None => Answer::Lost(swap.id),
    }
}

/// How a record of a batch stands before the commit.
struct Found {
    revision: i64,
    written_at: Timestamp,
}

/// Inserts and updates, each sorted by id. No id is in it twice. It returns how all records stand.
struct Batch<'a> {
    inserts: Vec<&'a Swap>,
    updates: Vec<&'a Swap>,
}

impl Found {
    fn written(swap: &Swap, written_at: Timestamp) -> (Id, Self) {
        (swap.id, Self { revision: swap.revision, written_at })
    }
}

impl Work for Batch<'_> {
    type Answer = HashMap<Id, Found, ById>;

    /// The connection is one on which every statement waits for a commit.
    async fn run(&self, connection: &mut Conn) -> Result<Self::Answer, mysql_async::Error> {
        let mut found = HashMap::default();
        for (swaps, is_insert) in [(&self.inserts, true), (&self.updates, false)] {
            if swaps.is_empty() {
                continue;
            }
            let (sql, values) = if is_insert { insert(swaps) } else { update(swaps) };
            let answer = ask(connection, &sql, values).await?;
            match answer.stamp.map(Timestamp::from_micros) {
                Some(written_at) if usize::try_from(answer.changed) == Ok(swaps.len()) => {
                    found.extend(swaps.iter().map(|swap| Found::written(swap, written_at)));
                }
                Some(_) | None => found.extend(look(connection, swaps).await?),
            }
        }
        commit(connection).await?;
        Ok(found)
    }
}

fn insert(swaps: &[&Swap]) -> (String, Vec<Value>) {
    let rows = swaps.len().next_power_of_two();
    let repeated = swaps.iter().chain(std::iter::repeat_n(&swaps[0], rows - swaps.len()));
    (statement::inserts(rows), repeated.flat_map(|swap| row::values(swap)).collect())
}

fn update(swaps: &[&Swap]) -> (String, Vec<Value>) {
    let rows = swaps.len().next_power_of_two();
    let missing = rows - swaps.len();
    let nulls = |count| std::iter::repeat_n(Value::NULL, count);
    let given: Vec<Vec<Value>> = swaps.iter().map(|swap| row::values(swap)).collect();
    let mut values = Vec::new();
    for place in statement::changed_values().flatten() {
        for (swap, given) in swaps.iter().zip(&given) {
            values.extend([swap.id.0.into(), given[place].clone()]);
        }
        values.extend(nulls(2 * missing));
    }
    values.extend(swaps.iter().flat_map(|swap| [swap.id.0.into(), swap.expected.into()]));
    values.extend(nulls(2 * missing));
    values.extend(swaps.iter().map(|swap| Value::from(swap.id.0)));
    values.extend(nulls(missing));
    (statement::updates(rows), values)
}

/// Relies on the primary key, and reads no answer.
async fn look(connection: &mut Conn, swaps: &[&Swap]) -> Result<Vec<(Id, Found)>, mysql_async::Error> {
    let sql =
        format!("SELECT id, revision, written_at FROM onlyonce_record WHERE id IN ({})", marks(swaps.len()));
    let ids = swaps.iter().map(|swap| swap.id.0.into()).collect();
    let rows = ask(connection, &sql, ids).await?.rows;
    let found = |row| {
        let found = Found { revision: column(row, 1).ok()?, written_at: row::moment(row, 2).ok()? };
        Some((row::id(row).ok()?, found))
    };
    Ok(rows.iter().filter_map(found).collect())
}
