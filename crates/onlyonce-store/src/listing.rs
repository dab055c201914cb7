//! Listings: which records, in which order, and where a page ended.

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, Seen, StateSet};
use onlyonce_core::time::Timestamp;
use std::sync::Arc;

use crate::{Error, ErrorKind};

/// Which records to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Only those in one of these states.
    pub states: StateSet,
    /// Only those of this scope, by digest.
    pub scope: Option<[u8; 32]>,
    /// Only those of this route.
    pub route: Option<Arc<str>>,
    /// Only those the reconciler has given up on.
    pub dead_letter: bool,
    /// Only those that fit what somebody has in hand.
    pub search: Option<Search>,
    /// Which of them, and in which order.
    pub order: Order,
    /// Only what comes after this cursor of an earlier page of the same listing.
    pub after: Option<Cursor>,
    /// At most so many.
    pub limit: usize,
}

impl Query {
    /// Every record, in an order of the engine's own.
    pub fn all(limit: usize) -> Self {
        Self {
            states: StateSet::ALL,
            scope: None,
            route: None,
            dead_letter: false,
            search: None,
            order: Order::Any,
            after: None,
            limit,
        }
    }

    /// What is due in these states, in the order it fell due.
    pub fn due(states: StateSet, limit: usize) -> Self {
        Self { states, order: Order::Due, ..Self::all(limit) }
    }

    /// What nobody knows the outcome of, the oldest first.
    pub fn unknown_since(limit: usize) -> Self {
        Self { order: Order::UnknownSince, ..Self::all(limit) }
    }

    /// Whether a record passes the filters.
    pub(crate) fn covers(&self, record: &Record) -> bool {
        self.states.contains(record.state.name())
            && self.scope.is_none_or(|scope| *record.scope.digest() == scope)
            && self.route.as_ref().is_none_or(|route| record.route.as_ref() == Some(route))
            && (!self.dead_letter || machine::facts(record).dead_letter)
            && self.search.as_ref().is_none_or(|search| search.fits(record))
    }

    /// A page and one record more, which only says that there is another page.
    pub(crate) fn one_more(&self) -> usize {
        self.limit.saturating_add(1)
    }
}

/// What somebody has in hand who looks for a record: a key or the beginning of one, a label, a scope or a record's id in hex
/// or the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    text: Arc<str>,
}

impl Search {
    /// From so many characters on the beginning of a key is looked for; a shorter text is a whole key or label.
    pub const KEY_CHARS_MIN: usize = 3;
    /// From so many hex digits on the beginning of a scope or an id is looked for.
    pub const HEX_DIGITS_MIN: usize = 8;

    /// A search for this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into() }
    }

    /// What a key may begin with; none where only a whole key is looked for.
    pub fn key_prefix(&self) -> Option<&str> {
        (self.text.chars().count() >= Self::KEY_CHARS_MIN).then_some(&*self.text)
    }

    /// What a scope or an id may begin with, in lower-case hex; none where the text is none.
    pub fn hex_prefix(&self) -> Option<String> {
        let is_hex = self.text.len() <= 64 && self.text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_hex && self.text.len() >= Self::HEX_DIGITS_MIN).then(|| self.text.to_ascii_lowercase())
    }

    /// The text itself: a whole key or label.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a record fits.
    pub fn fits(&self, record: &Record) -> bool {
        let key = record.key.as_str();
        self.is_exact(record)
            || self.key_prefix().is_some_and(|prefix| key.starts_with(prefix))
            || self.hex_prefix().is_some_and(|prefix| {
                record.scope.to_string().starts_with(&prefix)
                    || Id::of(&record.scope, &record.key).to_string().starts_with(&prefix)
            })
    }

    /// Whether a record fits as a whole: such records are shown first.
    pub fn is_exact(&self, record: &Record) -> bool {
        record.key.as_str() == &*self.text || record.scope.label() == Some(&*self.text)
    }
}

/// Which records a listing shows, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All, in an order of the engine's own: each record that stands there all the while exactly once. A page may be
    /// short, or empty, and still have a next.
    Any,
    /// Those that are due by the store's clock, by (due time, id).
    Due,
    /// Those whose outcome is unknown, by (since when, id).
    UnknownSince,
}

/// Where a page ended. Opaque: it is given back as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Box<[u8]>);

/// Some records, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The records.
    pub records: Vec<(Id, Seen)>,
    /// Where to go on; none where this was the last page.
    pub next: Option<Cursor>,
}

/// What the engines here put into a cursor: the last record of the page, and the moment it was listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// When it was due, or since when it was unknown; the same for all in a listing by id.
    pub(crate) at: Timestamp,
    pub(crate) id: Id,
}

impl Place {
    /// Before every record.
    const START: Self = Self { at: Timestamp::from_micros(i64::MIN), id: Id([0; 32]) };

    /// Where a listing goes on; none at its beginning.
    ///
    /// # Errors
    ///
    /// `Other` where the cursor is none of this engine's.
    pub(crate) fn of(query: &Query) -> Result<Option<Self>, Error> {
        let Some(Cursor(bytes)) = &query.after else { return Ok(None) };
        let (at, id) = bytes.split_first_chunk::<8>().ok_or_else(foreign)?;
        let id: [u8; 32] = id.try_into().map_err(|_| foreign())?;
        Ok(Some(Self { at: Timestamp::from_micros(i64::from_be_bytes(*at)), id: Id(id) }))
    }

    /// The same, or before every record.
    pub(crate) fn or_start(place: Option<Self>) -> Self {
        place.unwrap_or(Self::START)
    }

    pub(crate) fn cursor(self) -> Cursor {
        let at = self.at.as_micros().to_be_bytes();
        Cursor([&at[..], &self.id.0[..]].concat().into())
    }
}

fn foreign() -> Error {
    Error::new(ErrorKind::Other, "the cursor is none of this listing's; begin the listing anew without one")
}

/// A page of what was found: up to `one_more` records in order, each with its place.
pub(crate) fn page<T>(mut found: Vec<(Place, T)>, limit: usize) -> (Vec<T>, Option<Cursor>) {
    let has_next = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_next).map(|(place, _)| place.cursor());
    (found.into_iter().map(|(_, record)| record).collect(), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_gives_its_place_back_and_a_foreign_one_is_refused() {
        let place = Place { at: Timestamp::from_micros(-7), id: Id([9; 32]) };
        let query = Query { after: Some(place.cursor()), ..Query::all(1) };
        assert_eq!(Place::of(&query).unwrap(), Some(place));
        for bytes in [&b""[..], b"short", &[0; 41]] {
            let query = Query { after: Some(Cursor(bytes.into())), ..Query::all(1) };
            assert_eq!(Place::of(&query).unwrap_err().kind(), ErrorKind::Other, "{bytes:?}");
        }
        assert!(Place::START < place);
    }
}
