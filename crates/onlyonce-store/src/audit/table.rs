//! An entry as a row of table `onlyonce_audit`, for every SQL engine. Its columns are text, so that people can read them; a
//! scope and a record are digests in hex. `at` and `number` are the engine's own: entries are listed by them.

use std::borrow::Cow;
use std::sync::Arc;

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;

use super::{Entry, Page, Query, Written};
use crate::{Cursor, Error, ErrorKind, listing};

/// How many entries a page of a narrowed log examines. They lie in the order of time.
pub(crate) const EXAMINED_MAX: usize = 10_000;

/// The columns of an entry, in the order of [`texts`]; then whether it was forced.
pub(crate) const COLUMNS: &str = "id, who, role, via, action, result, claims, from_address, scope, scope_label, key, \
     record, reason, before, after, code, forced";
/// How many of them are text.
pub(crate) const TEXTS: usize = 16;

/// The text columns of an entry.
pub(crate) fn texts(entry: &Entry) -> [Option<Cow<'_, str>>; TEXTS] {
    fn some(text: &str) -> Option<Cow<'_, str>> {
        Some(text.into())
    }
    fn may(text: &Option<Arc<str>>) -> Option<Cow<'_, str>> {
        text.as_deref().map(Cow::Borrowed)
    }
    [
        some(&entry.id),
        some(&entry.who),
        some(&entry.role),
        some(&entry.via),
        some(&entry.action),
        some(&entry.result),
        may(&entry.claims),
        may(&entry.from),
        entry.scope.map(|scope| hex(scope).into()),
        may(&entry.scope_label),
        may(&entry.key),
        entry.record.map(|record| record.to_string().into()),
        may(&entry.reason),
        may(&entry.before),
        may(&entry.after),
        may(&entry.code),
    ]
}

/// An entry from its columns.
pub(crate) fn entry<E: From<Error>>(
    text: impl Fn(usize) -> Result<Option<Arc<str>>, E>,
    forced: bool,
) -> Result<Entry, E> {
    let some = |place| text(place).map(Option::unwrap_or_default);
    let digest = |place| match text(place)? {
        Some(digits) => unhex(&digits).map(Some).map_err(E::from),
        None => Ok(None),
    };
    Ok(Entry {
        id: some(0)?,
        who: some(1)?,
        role: some(2)?,
        via: some(3)?,
        action: some(4)?,
        result: some(5)?,
        claims: text(6)?,
        from: text(7)?,
        scope: digest(8)?,
        scope_label: text(9)?,
        key: text(10)?,
        record: digest(11)?.map(Id),
        reason: text(12)?,
        before: text(13)?,
        after: text(14)?,
        code: text(15)?,
        forced,
    })
}

/// A scope in hex, as its column has it.
pub(crate) fn hex(digest: [u8; 32]) -> String {
    Id(digest).to_string()
}

fn unhex(digits: &str) -> Result<[u8; 32], Error> {
    let byte =
        |place: usize| digits.get(2 * place..2 * place + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
    let whole = bytes.and_then(|bytes| bytes.try_into().ok()).filter(|_| digits.len() == 64);
    whole.ok_or_else(|| {
        let message = format!(
            "an entry of table \"onlyonce_audit\" has the digest \"{digits}\", which is none; restore it from a backup"
        );
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// Where an entry stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) at: Timestamp,
    pub(crate) number: i64,
}

impl Place {
    /// Before every entry of that moment.
    fn before(at: Timestamp) -> Self {
        Self { at, number: i64::MIN }
    }

    fn cursor(self) -> Cursor {
        let (at, number) = (self.at.as_micros().to_be_bytes(), self.number.to_be_bytes());
        Cursor([at, number].concat().into())
    }

    fn of(Cursor(bytes): &Cursor) -> Result<Self, Error> {
        let (at, number) = bytes.split_first_chunk::<8>().ok_or_else(listing::foreign)?;
        let number = number.try_into().map_err(|_| listing::foreign())?;
        Ok(Self { at: Timestamp::from_micros(i64::from_be_bytes(*at)), number: i64::from_be_bytes(number) })
    }
}

/// Which part of the log a page is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Only entries before this place.
    pub(crate) before: Place,
    /// None before this one.
    pub(crate) from: Place,
}

impl Part {
    /// What a query asks for, from its cursor on.
    ///
    /// # Errors
    ///
    /// `Other` where the cursor is none of this engine's.
    pub(crate) fn of(query: &Query) -> Result<Self, Error> {
        let until = query.until.unwrap_or(Timestamp::from_micros(i64::MAX));
        let before = Place::before(until);
        let before = match &query.after {
            Some(cursor) => before.min(Place::of(cursor)?),
            None => before,
        };
        let from = query.from.unwrap_or(Timestamp::from_micros(i64::MIN));
        Ok(Self { before, from: Place::before(from) })
    }

    /// The same, as far as entries are examined.
    pub(crate) fn examined(self, last: Option<Place>) -> Self {
        Self { from: last.unwrap_or(self.from).max(self.from), ..self }
    }
}

impl Query {
    /// Whether an entry may be left out for another reason than its time.
    pub(crate) fn is_narrow(&self) -> bool {
        self.who.is_some() || self.action.is_some() || self.scope.is_some() || self.key.is_some()
    }

    /// A page and one entry more, which only says that there is another page.
    pub(crate) fn one_more(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX).saturating_add(1)
    }
}

/// A page of what was found: up to `one_more` entries, newest first, and the last place that was examined, where there may be
/// more after it.
pub(crate) fn page(mut found: Vec<(Place, Written)>, limit: usize, examined: Option<Place>) -> Page {
    let last = limit.checked_sub(1).and_then(|last| found.get(last)).map(|(place, _)| *place);
    let next = if found.len() > limit { last } else { examined };
    found.truncate(limit);
    let entries = found.into_iter().map(|(_, written)| written).collect();
    Page { entries, next: next.map(Place::cursor) }
}
