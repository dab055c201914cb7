//! A message as a row of table `onlyonce_outbox`, for every SQL engine.

use onlyonce_core::time::Timestamp;

use super::{Query, State};
use crate::seal::Unsealable;
use crate::{Cursor, Error, ErrorKind, listing};

/// How many messages a page of a narrowed listing examines.
pub(crate) const EXAMINED_MAX: usize = 2_000;
/// How many messages a claim looks at for each destination once it has met some that are behind others, and how often.
pub(crate) const HELD_AT_ONCE: usize = 512;
pub(crate) const ROUNDS_MAX: u32 = 4;
/// How many messages of a state are counted.
pub(crate) const COUNTED_MAX: i64 = 10_000;

/// In which order messages are listed, which index that relies on, and what moment it goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By number: all, and dead letters.
    Number,
    /// Dead letters by number.
    Dead,
    /// By the moment they first fell due: waiting and claimed ones.
    FirstDue,
    /// By the moment they were delivered.
    Delivered,
}

impl Order {
    pub(crate) fn of(query: &Query) -> Self {
        match query.state {
            None => Self::Number,
            Some(State::Dead) => Self::Dead,
            Some(State::Waiting | State::Claimed) => Self::FirstDue,
            Some(State::Delivered) => Self::Delivered,
        }
    }
}

/// Where a message stands in a listing. Those by number have one moment for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) at: Timestamp,
    pub(crate) number: i64,
}

impl Place {
    pub(crate) const START: Self = Self { at: Timestamp::from_micros(i64::MIN), number: i64::MIN };

    /// Where a page begins.
    ///
    /// # Errors
    ///
    /// `Other` where the cursor is none of this engine's.
    pub(crate) fn of(query: &Query) -> Result<Self, Error> {
        let Some(Cursor(bytes)) = &query.after else { return Ok(Self::START) };
        let (at, number) = bytes.split_first_chunk::<8>().ok_or_else(listing::foreign)?;
        let number = number.try_into().map_err(|_| listing::foreign())?;
        Ok(Self { at: Timestamp::from_micros(i64::from_be_bytes(*at)), number: i64::from_be_bytes(number) })
    }

    fn cursor(self) -> Cursor {
        Cursor([self.at.as_micros().to_be_bytes(), self.number.to_be_bytes()].concat().into())
    }
}

/// A message that a page examines.
pub(crate) struct Examined {
    pub(crate) place: Place,
    pub(crate) state: State,
    pub(crate) destination: String,
}

/// How many messages a page examines: all that it shows and one more, or many where most may be left out.
pub(crate) fn examined_max(query: &Query) -> i64 {
    let is_narrow = query.destination.is_some() || Order::of(query) == Order::FirstDue;
    let shown = query.limit.saturating_add(1);
    i64::try_from(if is_narrow { shown.max(EXAMINED_MAX) } else { shown }).unwrap_or(i64::MAX)
}

/// The numbers of the messages of a page, and where to go on.
pub(crate) fn page(examined: &[Examined], query: &Query) -> (Vec<i64>, Option<Cursor>) {
    let passes = |found: &&Examined| {
        query.state.is_none_or(|state| state == found.state)
            && query.destination.as_ref().is_none_or(|destination| **destination == *found.destination)
    };
    let mut shown: Vec<Place> =
        examined.iter().filter(passes).take(query.limit.saturating_add(1)).map(|found| found.place).collect();
    let has_more = shown.len() > query.limit;
    shown.truncate(query.limit);
    let was_cut = i64::try_from(examined.len()).is_ok_and(|count| count >= examined_max(query));
    let next = match (has_more, was_cut) {
        (true, _) => shown.last().copied(),
        (false, true) => examined.last().map(|found| found.place),
        (false, false) => None,
    };
    (shown.iter().map(|place| place.number).collect(), next.map(Place::cursor))
}

/// A payload that somebody asked for cannot be read.
pub(crate) fn unreadable(number: u64, unsealable: Unsealable) -> Error {
    let kind = match unsealable {
        Unsealable::MissingKey(_) => ErrorKind::Undecryptable,
        Unsealable::Altered => ErrorKind::Corrupt,
    };
    Error::new(kind, format!("the payload of message {number} cannot be read: {unsealable}"))
}
