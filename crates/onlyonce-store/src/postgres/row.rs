//! Conversion between records and rows: parameters sent, columns received. `crate::sql` defines the columns.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::time::Duration;

use onlyonce_core::record::{Draft, Id, Record, Seen};
use onlyonce_core::time::{Due, Timestamp, When};
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::user;
use crate::seal::Keyring;
pub(super) use crate::sql::Swap;
use crate::sql::{self, Columns};
use crate::{Error, ErrorKind};

/// Which use of the key a draft is about. Results are added to a record that exists: its moment is known.
pub(super) fn used_at(draft: &Draft) -> Moment {
    moment_or_write(draft.created_at).unwrap_or(Moment::LAST)
}

/// The values of a write: the parameters of `statement.rs`.
pub(super) struct Values<'a> {
    id: &'a [u8],
    expected: Option<i64>,
    revision: i64,
    columns: Columns<'a>,
    scope: &'a [u8],
    label: Option<Cow<'a, str>>,
    token: &'a [u8],
    created_at: Option<Moment>,
    began_at: Option<Moment>,
    due: Planned,
    lapses: Planned,
    expires: Planned,
    unknown: Planned,
}

impl<'a> Values<'a> {
    pub(super) fn of(swap: &'a Swap) -> Self {
        let columns = Columns::of(&swap.next, swap.sealing.as_deref());
        let planned = |when: Option<When>| {
            Planned::of(when.map_or_else(Due::default, |when| Due::default().or_at(when)))
        };
        Self {
            id: &swap.id.0,
            expected: swap.expected,
            revision: swap.revision,
            scope: columns.scope,
            label: columns.label.map(text),
            token: columns.token,
            created_at: moment_or_write(columns.created_at),
            began_at: moment_or_write(columns.began_at),
            due: Planned::of(columns.due),
            lapses: planned(columns.lapses_at),
            expires: planned(columns.expires_at),
            unknown: planned(columns.unknown_since),
            columns,
        }
    }

    /// In the order of the statements; an insert leaves out the last.
    pub(super) fn parameters(&self) -> [Value<'_>; 32] {
        let columns = &self.columns;
        let all: [&(dyn ToSql + Sync); 32] = [
            &self.id,
            &self.revision,
            &self.scope,
            &self.label,
            &columns.key,
            &columns.route,
            &columns.state,
            &columns.attempt,
            &self.token,
            &columns.effects,
            &columns.retention_us,
            &self.created_at,
            &self.began_at,
            &self.due.at,
            &self.due.after,
            &self.lapses.at,
            &self.lapses.after,
            &self.expires.at,
            &self.expires.after,
            &self.unknown.at,
            &self.unknown.after,
            &columns.reason,
            &columns.dead_letter,
            &columns.completed_by,
            &columns.recovery_point,
            &columns.status,
            &columns.headers,
            &columns.body,
            &columns.rest,
            &columns.key_id,
            &columns.rest_key_id,
            &self.expected,
        ];
        all.map(Value)
    }
}

impl Values<'_> {
    /// The same in the few types that every driver has; moments and spans as microseconds.
    pub(super) fn plain(&self) -> [user::Value; 32] {
        use user::Value::{Bytes, Flag, Integer, Text};
        let columns = &self.columns;
        let bytes = |bytes: &[u8]| Bytes(Some(bytes.to_vec()));
        let bytes_or_null = |bytes: Option<&[u8]>| Bytes(bytes.map(<[u8]>::to_vec));
        let text = |text: Option<&str>| Text(text.map(str::to_owned));
        let moment = |moment: &Option<Moment>| Integer(moment.map(|moment| moment.0.as_micros()));
        let span = |span: &Option<Span>| Integer(span.map(|span| span.0));
        [
            bytes(self.id),
            Integer(Some(self.revision)),
            bytes(self.scope),
            text(self.label.as_deref()),
            text(Some(columns.key)),
            text(columns.route),
            text(Some(columns.state)),
            Integer(Some(columns.attempt)),
            bytes(self.token),
            text(Some(columns.effects)),
            Integer(Some(columns.retention_us)),
            moment(&self.created_at),
            moment(&self.began_at),
            moment(&self.due.at),
            span(&self.due.after),
            moment(&self.lapses.at),
            span(&self.lapses.after),
            moment(&self.expires.at),
            span(&self.expires.after),
            moment(&self.unknown.at),
            span(&self.unknown.after),
            text(columns.reason.as_deref()),
            Flag(columns.dead_letter),
            text(columns.completed_by),
            text(columns.recovery_point),
            Integer(columns.status.map(i64::from)),
            bytes_or_null(columns.headers.as_deref()),
            bytes_or_null(columns.body),
            bytes(&columns.rest),
            bytes_or_null(columns.key_id),
            bytes_or_null(columns.rest_key_id),
            Integer(self.expected),
        ]
    }
}

/// One parameter of any type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a>(pub(super) &'a (dyn ToSql + Sync));

impl ToSql for Value<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql_checked(kind, out)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A moment that the server computes: the earlier of a known one and one relative to the write.
struct Planned {
    at: Option<Moment>,
    after: Option<Span>,
}

impl Planned {
    fn of(due: Due) -> Self {
        let after = due.after_write.map(|after| Span::of(after).ok_or(Moment::LAST));
        match after {
            Some(Err(last)) => Self { at: due.at.map(Moment).or(Some(last)), after: None },
            Some(Ok(after)) => Self { at: due.at.map(Moment), after: Some(after) },
            None => Self { at: due.at.map(Moment), after: None },
        }
    }
}

/// For a moment that is the write itself or before it: `None` is the write.
fn moment_or_write(when: When) -> Option<Moment> {
    match when {
        When::At(moment) => Some(Moment(moment)),
        When::AfterWrite(_) => None,
    }
}

/// Text that the server accepts: without NUL.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// The record of a row in the order of `sql::COLUMNS`, with the store's time behind them.
///
/// # Errors
///
/// `Corrupt` where it cannot be understood, `Undecryptable` where its key is missing.
pub(super) fn seen(row: &Row, keyring: Option<&Keyring>) -> Result<Seen, Error> {
    read(row)?.seen(last_moment(row)?, keyring)
}

/// The same without the time.
pub(super) fn record(row: &Row, keyring: Option<&Keyring>) -> Result<Record, Error> {
    read(row)?.record(keyring)
}

/// The last column, which is a moment.
pub(super) fn last_moment(row: &Row) -> Result<Timestamp, Error> {
    Ok(column::<Moment>(row, row.len() - 1)?.0)
}

fn read(row: &Row) -> Result<sql::Row<'_>, Error> {
    let moment = |place| column::<Moment>(row, place).map(|moment| moment.0.as_micros());
    let moment_or_null =
        |place| column::<Option<Moment>>(row, place).map(|moment| moment.map(|moment| moment.0.as_micros()));
    Ok(sql::Row {
        id: column(row, 0)?,
        revision: column(row, 1)?,
        scope: column(row, 2)?,
        label: column(row, 3)?,
        key: column(row, 4)?,
        route: column(row, 5)?,
        state: column(row, 6)?,
        attempt: column(row, 7)?,
        token: column(row, 8)?,
        effects: column(row, 9)?,
        retention_us: column(row, 10)?,
        created_at: moment(11)?,
        began_at: moment(12)?,
        written_at: moment(13)?,
        due_at: moment_or_null(DUE_AT)?,
        lapses_at: moment_or_null(15)?,
        expires_at: moment_or_null(16)?,
        unknown_since: moment_or_null(UNKNOWN_SINCE)?,
        reason: column(row, 18)?,
        dead_letter: column(row, 19)?,
        completed_by: column(row, 20)?,
        recovery_point: column(row, 21)?,
        status: column::<Option<i32>>(row, 22)?.map(i64::from),
        headers: column(row, 23)?,
        body: column(row, 24)?,
        rest: column(row, 25)?,
        key_id: column(row, 26)?,
    })
}

/// Positions of the columns that listings read even if the rest cannot be decoded.
pub(super) const REVISION: usize = 1;
pub(super) const CREATED_AT: usize = 11;
pub(super) const DUE_AT: usize = 14;
pub(super) const UNKNOWN_SINCE: usize = 17;

/// The id of a row, also if the rest cannot be decoded.
pub(super) fn id(row: &Row) -> Result<Id, Error> {
    column::<&[u8]>(row, 0)?.try_into().map(Id).map_err(|_| {
        Error::new(ErrorKind::Corrupt, "an id of a row has not 32 bytes; restore the table from a backup")
    })
}

/// A column. Another type means that the table is not ours.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, place: usize) -> Result<T, Error> {
    row.try_get(place).map_err(|error| {
        let name = row.columns().get(place).map_or("?", tokio_postgres::Column::name);
        let message = format!(
            "column \"{name}\" of a row is not what a migration made it: {error}; restore the table from a backup"
        );
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// A moment on the wire: microseconds since 2000, within the server's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(pub(super) Timestamp);

/// 2000-01-01, in microseconds since the Unix epoch.
const EPOCH: i64 = 946_684_800_000_000;
/// 4713 BC: earlier moments are `-infinity` on the server.
const EARLIEST: i64 = -211_813_488_000_000_000;

impl Moment {
    pub(super) const LAST: Self = Self(Timestamp::from_micros(i64::MAX));
}

impl ToSql for Moment {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        let micros = self.0.as_micros().saturating_sub(EPOCH);
        let micros = if micros < EARLIEST { i64::MIN } else { micros };
        out.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl FromSql<'_> for Moment {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        let micros = match i64::from_be_bytes(raw.try_into()?) {
            i64::MIN => i64::MIN,
            micros => micros.saturating_add(EPOCH),
        };
        Ok(Self(Timestamp::from_micros(micros)))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::TIMESTAMPTZ
    }
}

/// A span of time on the wire, in microseconds: an interval without days and months.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span(i64);

/// Two hundred thousand years: the server can add that to any current moment.
const SPAN_MAX: i64 = 200_000 * 365 * 86_400 * 1_000_000;

impl Span {
    /// `None` if it is for ever.
    fn of(span: Duration) -> Option<Self> {
        i64::try_from(span.as_micros()).ok().filter(|micros| *micros <= SPAN_MAX).map(Self)
    }

    /// The same, capped at the maximum.
    pub(super) fn at_most(span: Duration) -> Self {
        Self::of(span).unwrap_or(Self(SPAN_MAX))
    }
}

impl ToSql for Span {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        const DAYS_AND_MONTHS: [u8; 8] = [0; 8];
        out.extend_from_slice(&self.0.to_be_bytes());
        out.extend_from_slice(&DAYS_AND_MONTHS);
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::INTERVAL
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(micros: i64) -> [u8; 8] {
        let mut bytes = BytesMut::new();
        Moment(Timestamp::from_micros(micros)).to_sql(&Type::TIMESTAMPTZ, &mut bytes).unwrap();
        bytes[..].try_into().unwrap()
    }

    #[test]
    fn moments_are_exact_and_stay_within_what_the_server_knows() {
        for micros in [0, 1, -1, EPOCH, 4_102_444_800_999_999, i64::MAX, i64::MIN] {
            let read = Moment::from_sql(&Type::TIMESTAMPTZ, &sent(micros)).unwrap();
            assert_eq!(read.0, Timestamp::from_micros(micros));
        }
        assert_eq!(i64::from_be_bytes(sent(EARLIEST)), i64::MIN, "the server's minus infinity");
    }

    #[test]
    fn a_span_that_is_for_ever_is_the_last_moment() {
        let planned = |at: Option<i64>, after| {
            let planned = Planned::of(Due { at: at.map(Timestamp::from_micros), after_write: after });
            (planned.at.map(|at| at.0.as_micros()), planned.after.map(|after| after.0))
        };
        let hour = Duration::from_secs(3_600);
        assert_eq!(planned(None, None), (None, None));
        assert_eq!(planned(Some(7), Some(hour)), (Some(7), Some(3_600_000_000)));
        assert_eq!(planned(None, Some(Duration::MAX)), (Some(i64::MAX), None));
        assert_eq!(planned(Some(7), Some(Duration::MAX)), (Some(7), None));
    }
}
