//! A record as a row: what is sent for it, and what comes back.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::record::{Draft, Id, Record, Revision, Seen, StateName};
use onlyonce_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::statement::FIRST_LOOK;
use crate::{Change, Error, ErrorKind, Swapped, codec, outbox};

/// A write of a record, made ready for the wire.
#[derive(Debug)]
pub(super) struct Swap {
    pub(super) id: Id,
    pub(super) expected: Option<i64>,
    pub(super) revision: i64,
    pub(super) due_at: Option<Moment>,
    /// After the write.
    pub(super) due_after: Option<Span>,
    pub(super) record: Vec<u8>,
    pub(super) messages: Vec<outbox::Message>,
    pub(super) next: Box<Draft>,
}

/// What a row costs beside its record, about.
const ROW_BYTES: usize = 256;
/// Two hundred years. What is due later than that is due never, and the server can reckon with it.
const SPAN_MAX: i64 = 200 * 365 * 86_400 * 1_000_000;

impl Swap {
    pub(super) fn of(id: Id, change: Change) -> Self {
        let Change { expected, revision, next, messages } = change;
        let due = next.due();
        Self {
            id,
            expected: expected.map(|revision| revision.0.cast_signed()),
            revision: revision.0.cast_signed(),
            due_at: due.at.map(Moment),
            due_after: due.after_write.map(Span::of),
            record: codec::encode(&next),
            messages,
            next,
        }
    }

    /// About how much it sends.
    pub(super) fn bytes(&self) -> usize {
        self.record.len() + ROW_BYTES
    }

    /// Whether it must be listed with this write to be found when it is due. All that is open is; what is completed was
    /// listed when it was open, and is found there before it expires, unless that is at once.
    pub(super) fn is_listed(&self) -> bool {
        let is_soon =
            || self.due_at.is_some() || self.due_after.is_none_or(|after| after < Span::of(FIRST_LOOK));
        self.expected.is_none() || self.next.state.name() != StateName::Completed || is_soon()
    }

    /// Whether the plain statement will do: nothing is written beside the record, and it is due a while after the write.
    pub(super) fn is_plain(&self) -> bool {
        let leaves_the_list = self.expected.is_none() || !self.is_listed();
        self.messages.is_empty() && self.due_at.is_none() && leaves_the_list
    }

    /// When it is due, if it was written at this moment; as the server reckons it.
    pub(super) fn due(&self, written_at: Timestamp) -> Option<Timestamp> {
        let after = self.due_after.map(|after| written_at.as_micros().saturating_add(after.0));
        let after = after.map(Timestamp::from_micros);
        self.due_at.map(|at| at.0).into_iter().chain(after).min()
    }

    pub(super) fn state(&self) -> &'static str {
        self.next.state.name().as_str()
    }

    pub(super) fn scope(&self) -> &[u8] {
        self.next.scope.digest()
    }

    pub(super) fn label(&self) -> Option<Cow<'_, str>> {
        self.next.scope.label().map(text)
    }

    pub(super) fn key(&self) -> Cow<'_, str> {
        text(self.next.key.as_str())
    }

    pub(super) fn route(&self) -> Option<Cow<'_, str>> {
        self.next.route.as_deref().map(text)
    }

    pub(super) fn applied(self, written_at: Timestamp) -> Swapped {
        let revision = Revision(self.revision.cast_unsigned());
        Swapped::Applied(Seen { record: Arc::new(self.next.stamp(written_at)), revision, now: written_at })
    }
}

/// Many writes as the server takes them: an array a column.
pub(super) struct Columns<'a> {
    pub(super) ids: Vec<&'a [u8]>,
    /// Of updates alone.
    pub(super) expected: Vec<Option<i64>>,
    pub(super) revisions: Vec<i64>,
    pub(super) keys: Vec<Cow<'a, str>>,
    pub(super) records: Vec<&'a [u8]>,
    pub(super) due_at: Column<Moment>,
    pub(super) due_after: Column<Span>,
    pub(super) states: Column<&'static str>,
    pub(super) scopes: Column<&'a [u8]>,
    pub(super) labels: Column<Cow<'a, str>>,
    pub(super) routes: Column<Cow<'a, str>>,
    /// Of updates alone: inserts are.
    pub(super) listed: Column<bool>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(swaps: &[&'a Swap]) -> Self {
        Self {
            ids: swaps.iter().map(|swap| &swap.id.0[..]).collect(),
            expected: swaps.iter().map(|swap| swap.expected).collect(),
            revisions: swaps.iter().map(|swap| swap.revision).collect(),
            keys: swaps.iter().map(|swap| swap.key()).collect(),
            records: swaps.iter().map(|swap| &swap.record[..]).collect(),
            due_at: Column::of(swaps.iter().map(|swap| swap.due_at)),
            due_after: Column::of(swaps.iter().map(|swap| swap.due_after)),
            states: Column::of(swaps.iter().map(|swap| Some(swap.state()))),
            scopes: Column::of(swaps.iter().map(|swap| Some(swap.scope()))),
            labels: Column::of(swaps.iter().map(|swap| swap.label())),
            routes: Column::of(swaps.iter().map(|swap| swap.route())),
            listed: Column::of(swaps.iter().map(|swap| Some(swap.is_listed()))),
        }
    }
}

/// A column that may be the same throughout, as most of them are where one policy writes. Then it is sent once: `each` is empty,
/// which `unnest` fills up with nulls, and a null stands for `all`.
pub(super) struct Column<T> {
    pub(super) each: Vec<Option<T>>,
    pub(super) all: Option<T>,
}

impl<T: PartialEq> Column<T> {
    fn of(values: impl Iterator<Item = Option<T>> + Clone) -> Self {
        let mut rest = values.clone();
        let first = rest.next().flatten();
        if rest.all(|value| value == first) {
            return Self { each: Vec::new(), all: first };
        }
        Self { each: values.collect(), all: None }
    }
}

/// What a row of the list stands under: at random, so that no two are listed alike.
pub(super) fn fresh_number() -> i64 {
    RandomState::new().build_hasher().finish().cast_signed()
}

/// Text as the server takes it: it knows no NUL. The record itself is kept as it is.
fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// A row as it was read, not yet understood.
pub(super) struct Stored {
    id: Id,
    pub(super) revision: Revision,
    written_at: Timestamp,
    now: Timestamp,
    draft: Result<Draft, Error>,
}

impl Stored {
    /// From the columns revision, written_at, record and now, from `first` on.
    pub(super) fn read(id: Id, row: &Row, first: usize) -> Result<Self, Error> {
        Ok(Self {
            id,
            revision: Revision(column::<i64>(row, first)?.cast_unsigned()),
            written_at: column::<Moment>(row, first + 1)?.0,
            draft: codec::decode(column::<&[u8]>(row, first + 2)?),
            now: column::<Moment>(row, first + 3)?.0,
        })
    }

    /// The record; `Corrupt` where it cannot be understood, and never absent.
    pub(super) fn record(self) -> Result<Record, Error> {
        let id = self.id;
        let draft = self.draft.map_err(|error| {
            Error::new(error.kind(), format!("record {id} cannot be read: {error}")).because(error)
        })?;
        Ok(draft.stamp(self.written_at))
    }

    pub(super) fn seen(self) -> Result<Seen, Error> {
        let (revision, now) = (self.revision, self.now);
        Ok(Seen { record: Arc::new(self.record()?), revision, now })
    }
}

/// A column of ours: of another type it is not ours.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, place: usize) -> Result<T, Error> {
    row.try_get(place).map_err(|error| {
        let message =
            format!("column {place} of a row is not what we wrote: {error}; restore it from a backup");
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// An id as a column has it.
pub(super) fn id(row: &Row, place: usize) -> Result<Id, Error> {
    id_of(column(row, place)?)
}

pub(super) fn id_of(bytes: &[u8]) -> Result<Id, Error> {
    bytes.try_into().map(Id).map_err(|_| {
        Error::new(ErrorKind::Corrupt, "an id of a row has not 32 bytes; restore the table from a backup")
    })
}

/// A moment on the wire: microseconds since 2000, in the range that the server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(pub(super) Timestamp);

/// 2000-01-01, in microseconds since the Unix epoch.
const EPOCH: i64 = 946_684_800_000_000;
/// 4713 BC and AD 294276: what lies beyond is infinite to the server.
const EARLIEST: i64 = -211_813_488_000_000_000;
const LATEST: i64 = 9_223_371_331_199_999_999;

impl ToSql for Moment {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        let micros = self.0.as_micros().saturating_sub(EPOCH).clamp(EARLIEST, LATEST);
        out.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

/// A span of time on the wire, in microseconds: an interval without days and months.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span(i64);

impl Span {
    pub(super) fn of(span: Duration) -> Self {
        Self(i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(SPAN_MAX))
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

impl FromSql<'_> for Moment {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(Timestamp::from_micros(micros.saturating_add(EPOCH))))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::TIMESTAMPTZ
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(micros: i64) -> i64 {
        let mut bytes = BytesMut::new();
        Moment(Timestamp::from_micros(micros)).to_sql(&Type::TIMESTAMPTZ, &mut bytes).unwrap();
        i64::from_be_bytes(bytes[..].try_into().unwrap())
    }

    #[test]
    fn what_is_the_same_throughout_is_sent_once() {
        let sent = |values: &[Option<u8>]| {
            let column = Column::of(values.iter().copied());
            (column.each, column.all)
        };
        assert_eq!(sent(&[]), (vec![], None));
        assert_eq!(sent(&[Some(1), Some(1)]), (vec![], Some(1)));
        assert_eq!(sent(&[None, None]), (vec![], None));
        for mixed in [[Some(1), Some(2)], [Some(1), None], [None, Some(1)]] {
            assert_eq!(sent(&mixed), (mixed.to_vec(), None), "a null stands for itself where all are sent");
        }
    }

    #[test]
    fn moments_are_exact_and_stay_within_what_the_server_knows() {
        for micros in [0, 1, -1, EPOCH, 4_102_444_800_999_999] {
            let raw = sent(micros).to_be_bytes();
            assert_eq!(Moment::from_sql(&Type::TIMESTAMPTZ, &raw).unwrap().0, Timestamp::from_micros(micros));
        }
        assert_eq!((sent(i64::MIN), sent(i64::MAX)), (EARLIEST, i64::MAX - EPOCH));
    }
}
