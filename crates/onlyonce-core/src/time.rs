//! Moments, and moments that only the store can stamp.
//!
//! Nothing here reads a clock. A [`Timestamp`] was stamped by a store; a [`When`] is what a rule writes before the
//! store has stamped it: a moment that is known, or one counted from the write itself.

use std::time::Duration;

/// A moment by the store's clock, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded up: an expiry told to a client is never told too early.
    pub const fn as_secs_ceil(self) -> i64 {
        self.0.div_euclid(1_000_000) + if self.0.rem_euclid(1_000_000) == 0 { 0 } else { 1 }
    }

    /// This moment and `span` more; a span past the end of time ends there.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero where it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// A moment in a record that is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// A moment stamped by an earlier write.
    At(Timestamp),
    /// So long after the write that carries it. Only the store knows when that is.
    AfterWrite(Duration),
}

impl When {
    /// The moment of the write itself.
    pub const WRITE: Self = Self::AfterWrite(Duration::ZERO);

    /// This moment and `span` more.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        match self {
            Self::At(moment) => Self::At(moment.plus(span)),
            Self::AfterWrite(after) => Self::AfterWrite(after.saturating_add(span)),
        }
    }

    /// The moment, once the store says when it wrote.
    pub fn stamp(self, written_at: Timestamp) -> Timestamp {
        match self {
            Self::At(moment) => moment,
            Self::AfterWrite(after) => written_at.plus(after),
        }
    }
}

/// When a record wants attention next: the earliest of these counts. An engine keeps it beside the record, so that
/// what is due is found without reading the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// A moment that is known.
    pub at: Option<Timestamp>,
    /// A span after the write.
    pub after_write: Option<Duration>,
}

impl Due {
    /// Due at the earlier of what it was and `when`.
    #[must_use]
    pub fn or_at(mut self, when: When) -> Self {
        match when {
            When::At(moment) => self.at = Some(self.at.map_or(moment, |at| at.min(moment))),
            When::AfterWrite(span) => {
                self.after_write = Some(self.after_write.map_or(span, |after| after.min(span)));
            }
        }
        self
    }

    /// The moment, once the store says when it wrote; none where nothing is ever due.
    pub fn stamp(self, written_at: Timestamp) -> Option<Timestamp> {
        let after_write = self.after_write.map(|span| written_at.plus(span));
        match (self.at, after_write) {
            (Some(at), Some(after)) => Some(at.min(after)),
            (at, after) => at.or(after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_of_a_known_moment_and_one_after_the_write_is_due() {
        let due = Due::default()
            .or_at(When::At(Timestamp::from_micros(500)))
            .or_at(When::AfterWrite(Duration::from_micros(30)));
        assert_eq!(due.stamp(Timestamp::from_micros(100)), Some(Timestamp::from_micros(130)));
        assert_eq!(due.stamp(Timestamp::from_micros(490)), Some(Timestamp::from_micros(500)));
        assert_eq!(Due::default().stamp(Timestamp::from_micros(1)), None);
    }

    #[test]
    fn time_saturates_at_its_end_and_never_runs_backwards() {
        let late = Timestamp::from_micros(i64::MAX - 1);
        assert_eq!(late.plus(Duration::MAX), Timestamp::from_micros(i64::MAX));
        assert_eq!(Timestamp::from_micros(5).since(late), Duration::ZERO);
    }

    #[test]
    fn seconds_round_up() {
        assert_eq!(Timestamp::from_micros(2_000_000).as_secs_ceil(), 2);
        assert_eq!(Timestamp::from_micros(2_000_001).as_secs_ceil(), 3);
        assert_eq!(Timestamp::from_micros(-1).as_secs_ceil(), 0);
    }
}
