//! Conversion between records and rows: values sent, columns received. `crate::sql` defines the columns.

use mysql_async::{Row, Value};
use onlyonce_core::record::{Draft, Id, Record, Seen};
use onlyonce_core::time::{Due, Timestamp, When};

use crate::seal::Keyring;
use crate::sql::{self, Columns, Swap};
use crate::{Error, ErrorKind};

/// The longest span that is added to the clock; a longer one is for ever. The sum of two fits in 64 bits.
const SPAN_MAX: i64 = i64::MAX / 4;

/// The values of a write, in the order of `sql::COLUMNS`. How many each column has is in `statement.rs`.
pub(super) fn values(swap: &Swap) -> Vec<Value> {
    let columns = Columns::of(&swap.next, swap.sealing.as_deref());
    let planned = |when: Option<When>| when.map_or_else(Due::default, |when| Due::default().or_at(when));
    let [due_at, due_after] = moments(columns.due);
    let [lapses_at, lapses_after] = moments(planned(columns.lapses_at));
    let [expires_at, expires_after] = moments(planned(columns.expires_at));
    let [unknown_since, unknown_after] = moments(planned(columns.unknown_since));
    vec![
        swap.id.0.into(),
        swap.revision.into(),
        columns.scope.into(),
        columns.label.into(),
        columns.key.into(),
        columns.route.into(),
        columns.state.into(),
        columns.attempt.into(),
        columns.token.into(),
        columns.effects.into(),
        columns.retention_us.into(),
        moment_or_write(columns.created_at),
        moment_or_write(columns.began_at),
        due_at,
        due_after,
        lapses_at,
        lapses_after,
        expires_at,
        expires_after,
        unknown_since,
        unknown_after,
        columns.reason.as_deref().into(),
        columns.dead_letter.into(),
        columns.completed_by.into(),
        columns.recovery_point.into(),
        columns.status.into(),
        columns.headers.as_deref().into(),
        columns.body.into(),
        columns.rest.into(),
        columns.key_id.into(),
        columns.rest_key_id.into(),
    ]
}

/// A moment that the server computes: the earlier of a known one and one relative to the write. The first value is null where
/// there is none, and the last moment where only the second counts.
fn moments(due: Due) -> [Value; 2] {
    let after = due.after_write.map(|after| i64::try_from(after.as_micros()).unwrap_or(i64::MAX));
    let known = due.at.map(Timestamp::as_micros);
    match after {
        None => [known.into(), Value::NULL],
        Some(after) if after > SPAN_MAX => [known.unwrap_or(i64::MAX).into(), Value::NULL],
        Some(after) => [known.unwrap_or(i64::MAX).into(), after.into()],
    }
}

/// For a moment that is the write itself or before it: null is the write.
fn moment_or_write(when: When) -> Value {
    match when {
        When::At(moment) => moment.as_micros().into(),
        When::AfterWrite(_) => Value::NULL,
    }
}

/// Which use of the key a draft is about. Results are added to a record that exists: its moment is known.
pub(super) fn used_at(draft: &Draft) -> i64 {
    match draft.created_at {
        When::At(moment) => moment.as_micros(),
        When::AfterWrite(_) => i64::MAX,
    }
}

/// A span in microseconds, at most [`SPAN_MAX`].
pub(super) fn span(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(SPAN_MAX).min(SPAN_MAX)
}

/// A limit as the server takes it.
pub(super) fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The record of a row in the order of `sql::COLUMNS`, with the store's time behind them.
///
/// # Errors
///
/// `Corrupt` where it cannot be understood, `Undecryptable` where its key is missing.
pub(super) fn seen(row: &Row, keyring: Option<&Keyring>) -> Result<Seen, Error> {
    let now = column(row, row.len() - 1)?;
    read(row)?.seen(Timestamp::from_micros(now), keyring)
}

/// The same without the time.
pub(super) fn record(row: &Row, keyring: Option<&Keyring>) -> Result<Record, Error> {
    read(row)?.record(keyring)
}

fn read(row: &Row) -> Result<sql::Row<'_>, Error> {
    Ok(sql::Row {
        id: column(row, 0)?,
        revision: column(row, REVISION)?,
        scope: column(row, 2)?,
        label: column(row, 3)?,
        key: column(row, 4)?,
        route: column(row, 5)?,
        state: column(row, 6)?,
        attempt: column(row, 7)?,
        token: column(row, 8)?,
        effects: column(row, 9)?,
        retention_us: column(row, 10)?,
        created_at: column(row, CREATED_AT)?,
        began_at: column(row, 12)?,
        written_at: column(row, WRITTEN_AT)?,
        due_at: column(row, DUE_AT)?,
        lapses_at: column(row, 15)?,
        expires_at: column(row, 16)?,
        unknown_since: column(row, UNKNOWN_SINCE)?,
        reason: column(row, 18)?,
        dead_letter: column(row, 19)?,
        completed_by: column(row, 20)?,
        recovery_point: column(row, 21)?,
        status: column(row, 22)?,
        headers: column(row, 23)?,
        body: column(row, 24)?,
        rest: column(row, 25)?,
        key_id: column(row, 26)?,
    })
}

/// Positions of the columns that are read even if the rest cannot be decoded.
pub(super) const REVISION: usize = 1;
pub(super) const CREATED_AT: usize = 11;
pub(super) const WRITTEN_AT: usize = 13;
pub(super) const DUE_AT: usize = 14;
pub(super) const UNKNOWN_SINCE: usize = 17;

/// The id of a row, also if the rest cannot be decoded.
pub(super) fn id(row: &Row) -> Result<Id, Error> {
    column::<&[u8]>(row, 0)?.try_into().map(Id).map_err(|_| {
        Error::new(ErrorKind::Corrupt, "an id of a row has not 32 bytes; restore the table from a backup")
    })
}

/// A moment in a column.
pub(super) fn moment(row: &Row, place: usize) -> Result<Timestamp, Error> {
    Ok(Timestamp::from_micros(column(row, place)?))
}

/// A column. Another type means that the table is not ours.
pub(super) fn column<'a, T: Column<'a>>(row: &'a Row, place: usize) -> Result<T, Error> {
    row.as_ref(place).and_then(T::of).ok_or_else(|| {
        let name =
            row.columns_ref().get(place).map_or_else(|| "?".into(), |column| column.name_str().into_owned());
        let message = format!(
            "column \"{name}\" of a row is not what a migration made it; restore the table from a backup"
        );
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// What a column may hold.
pub(super) trait Column<'a>: Sized {
    /// `None` where it is something else.
    fn of(value: &'a Value) -> Option<Self>;
}

impl Column<'_> for i64 {
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Int(number) => Some(*number),
            Value::UInt(number) => Self::try_from(*number).ok(),
            Value::NULL
            | Value::Bytes(_)
            | Value::Float(_)
            | Value::Double(_)
            | Value::Date(..)
            | Value::Time(..) => None,
        }
    }
}

impl Column<'_> for bool {
    fn of(value: &Value) -> Option<Self> {
        i64::of(value).map(|number| number != 0)
    }
}

impl Column<'_> for u32 {
    fn of(value: &Value) -> Option<Self> {
        i64::of(value).and_then(|number| Self::try_from(number).ok())
    }
}

impl<'a> Column<'a> for &'a [u8] {
    fn of(value: &'a Value) -> Option<Self> {
        if let Value::Bytes(bytes) = value { Some(bytes) } else { None }
    }
}

impl<'a> Column<'a> for &'a str {
    fn of(value: &'a Value) -> Option<Self> {
        <&[u8]>::of(value).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }
}

impl<'a, T: Column<'a>> Column<'a> for Option<T> {
    fn of(value: &'a Value) -> Option<Self> {
        if *value == Value::NULL { Some(None) } else { T::of(value).map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_span_that_is_for_ever_is_the_last_moment() {
        let moments =
            |at: Option<i64>, after| moments(Due { at: at.map(Timestamp::from_micros), after_write: after });
        let hour = Duration::from_secs(3_600);
        assert_eq!(moments(None, None), [Value::NULL, Value::NULL]);
        assert_eq!(moments(Some(7), None), [7.into(), Value::NULL]);
        assert_eq!(moments(None, Some(hour)), [i64::MAX.into(), 3_600_000_000_i64.into()]);
        assert_eq!(moments(Some(7), Some(hour)), [7.into(), 3_600_000_000_i64.into()]);
        assert_eq!(moments(None, Some(Duration::MAX)), [i64::MAX.into(), Value::NULL]);
        assert_eq!(moments(Some(7), Some(Duration::MAX)), [7.into(), Value::NULL]);
    }
}
