//! Listings: which records, in which order, and where a page ended.
//!
//! No engine has an index by scope, key, label or route: it would cost every request. So a page of a listing that is narrowed
//! by one of them examines a bounded number of records and may be short, or empty, with a cursor to go on.

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, Seen, StateSet};
use onlyonce_core::time::Timestamp;
use std::sync::Arc;

use crate::{Error, ErrorKind, Unreadable};

/// Which records to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Only those in one of these states.
    pub states: StateSet,
    /// Only those of this scope, by digest.
    pub scope: Option<[u8; 32]>,
    /// Only those of this route.
    pub route: Option<Arc<str>>,
    /// Only those the reconciler has given up on. [`Order::UnknownSince`] finds them without examining other states.
    pub dead_letter: bool,
    /// Only those that fit what somebody has in hand. The beginning of a record's id is found at once in [`Order::Any`].
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

    /// What was accepted and has not begun, the oldest first.
    pub fn pending_since(limit: usize) -> Self {
        Self { order: Order::PendingSince, ..Self::all(limit) }
    }

    /// Whether a record passes the filters.
    pub(crate) fn covers(&self, record: &Record) -> bool {
        self.states.contains(record.state.name())
            && self.scope.is_none_or(|scope| *record.scope.digest() == scope)
            && self.route.as_ref().is_none_or(|route| record.route.as_ref() == Some(route))
            && (!self.dead_letter || machine::facts(record).dead_letter)
            && self.search.as_ref().is_none_or(|search| search.fits(record))
    }

    /// Whether a record may be left out for another reason than its order.
    #[cfg(any(
        feature = "dynamodb",
        feature = "mysql",
        feature = "sqlite",
        feature = "postgres",
        feature = "redis"
    ))]
    pub(crate) fn is_narrow(&self) -> bool {
        let is_filtered = self.scope.is_some() || self.route.is_some() || self.search.is_some();
        is_filtered || self.dead_letter || self.states != StateSet::ALL
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

    /// The scopes and ids that begin so; none where the text is no beginning of one.
    #[cfg(any(
        feature = "dynamodb",
        feature = "mysql",
        feature = "sqlite",
        feature = "postgres",
        feature = "redis",
        test
    ))]
    pub(crate) fn digests(&self) -> Option<Digests> {
        let prefix = self.hex_prefix()?;
        let filled = |digit: char| {
            let digits: String = prefix.chars().chain(std::iter::repeat(digit)).take(64).collect();
            let byte = |place: usize| u8::from_str_radix(&digits[2 * place..2 * place + 2], 16);
            std::array::from_fn(|place| byte(place).expect("a prefix has hex digits only"))
        };
        Some(Digests { first: filled('0'), last: filled('f') })
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

/// All digests that begin alike, from the first to the last.
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "sqlite",
    feature = "postgres",
    feature = "redis",
    test
))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digests {
    pub(crate) first: [u8; 32],
    pub(crate) last: [u8; 32],
}

/// Which records a listing shows, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All, in an order of the engine's own: each record that stands there all the while exactly once. A page may be
    /// short, or empty, and still have a next.
    Any,
    /// Those that are due by the store's clock, by (due time, id). For workers: narrowed by more than states, a page examines
    /// all that is due.
    Due,
    /// Those whose outcome is unknown, by (since when, id). A page may be short, or empty, and still have a next.
    UnknownSince,
    /// Those that were accepted and have not begun, by (creation, id). A page may be short, or empty, and still have a next.
    PendingSince,
    /// Expired uses of keys that were kept ([`Expired::Keep`](crate::Expired::Keep)), in the order they were archived; none
    /// where this engine keeps none. A page may be short, or empty, and still have a next.
    Archived,
}

/// Where a page ended. Opaque: it is given back as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Box<[u8]>);

/// Some records, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The records.
    pub records: Vec<(Id, Seen)>,
    /// Those among them whose encryption key is missing, in the same order.
    pub unreadable: Vec<Unreadable>,
    /// Where to go on; none where this was the last page.
    pub next: Option<Cursor>,
}

/// What the engines here put into a cursor: the last record that the page examined, and what it was listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// When it was due, created, or since when it was unknown; in other orders whatever the engine goes by.
    pub(crate) at: Timestamp,
    pub(crate) id: Id,
}

impl Place {
    /// Before every record.
    pub(crate) const START: Self = Self { at: Timestamp::from_micros(i64::MIN), id: Id([0; 32]) };

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

pub(crate) fn foreign() -> Error {
    Error::new(ErrorKind::Other, "the cursor does not belong to this listing; start again without one")
}

/// What an engine found for a page.
pub(crate) struct Found<T> {
    /// Up to `one_more` records in order, each with its place.
    pub(crate) records: Vec<(Place, T)>,
    /// The last place that was examined, where there may be more after it.
    pub(crate) examined: Option<Place>,
}

impl<T> Found<T> {
    /// All there is, or enough for a page.
    pub(crate) fn all(records: Vec<(Place, T)>) -> Self {
        Self { records, examined: None }
    }

    /// The page, and where to go on.
    pub(crate) fn page(mut self, limit: usize) -> (Vec<T>, Option<Cursor>) {
        let last = limit.checked_sub(1).and_then(|last| self.records.get(last)).map(|(place, _)| *place);
        let next = if self.records.len() > limit { last } else { self.examined };
        self.records.truncate(limit);
        (self.records.into_iter().map(|(_, record)| record).collect(), next.map(Place::cursor))
    }

    /// The page of a query, whose records are decoded by `read`. A listing for workers (due, unknown) skips what cannot be
    /// decoded, so that one damaged record does not block all others; a listing for people returns the error.
    #[cfg(any(feature = "dynamodb", feature = "mysql", feature = "postgres", feature = "redis"))]
    pub(crate) fn read(
        self,
        query: &Query,
        read: impl Fn(T) -> Result<(Id, Seen), Error>,
    ) -> Result<Page, Error> {
        let (found, next) = self.page(query.limit);
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for record in found {
            let seen = read(record);
            let unread = seen.as_ref().err().and_then(Error::unreadable).cloned();
            match (query.order, seen) {
                (_, Ok(seen)) => records.push(seen),
                (_, Err(_)) if unread.is_some() => unreadable.extend(unread),
                (Order::Any | Order::Archived, Err(error)) => return Err(error),
                (Order::Due | Order::UnknownSince | Order::PendingSince, Err(error)) => {
                    tracing::warn!("skipped in a listing: {error}");
                }
            }
        }
        Ok(Page { records, unreadable, next })
    }
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

    #[test]
    fn a_page_goes_on_after_what_it_shows_or_after_what_it_examined() {
        let place = |number: u8| Place { at: Timestamp::from_micros(0), id: Id([number; 32]) };
        let found = |count: u8, examined: Option<u8>| Found {
            records: (1..=count).map(|number| (place(number), number)).collect(),
            examined: examined.map(place),
        };
        let cursor = |number: u8| Some(place(number).cursor());
        assert_eq!(found(3, None).page(2), (vec![1, 2], cursor(2)));
        assert_eq!(found(3, Some(9)).page(2), (vec![1, 2], cursor(2)));
        assert_eq!(found(2, Some(9)).page(2), (vec![1, 2], cursor(9)));
        assert_eq!(found(0, Some(9)).page(2), (vec![], cursor(9)));
        assert_eq!(found(2, None).page(2), (vec![1, 2], None));
    }

    #[test]
    fn a_beginning_in_hex_is_a_range_of_digests() {
        let digests = Search::new("aBcdef012").digests().unwrap();
        assert_eq!(digests.first[..6], [0xab, 0xcd, 0xef, 0x01, 0x20, 0x00]);
        assert_eq!(digests.last[..6], [0xab, 0xcd, 0xef, 0x01, 0x2f, 0xff]);
        let whole = "5a".repeat(32);
        let whole = Search::new(whole).digests().unwrap();
        assert_eq!((whole.first, whole.last), ([0x5a; 32], [0x5a; 32]));
        for text in ["abcdef0", "abcdefgh", "é1234567", &"5a".repeat(33), ""] {
            assert_eq!(Search::new(text).digests(), None, "{text}");
        }
    }
}
