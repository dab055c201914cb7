//! How the service behind the gateways behaves in one call.
//!
//! It never lies: what it says was not done (500, 503, 429) was not done and will not be; every other answer is done,
//! declined, or in doubt.

use std::fmt;
use std::time::Duration;

use onlyonce_testkit::random::Random;

use crate::settings::{DEADLINE, LEASE};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Behaviour {
    Plain,
    /// A pause, then the work.
    SlowBefore,
    /// The work, then a pause before the answer.
    SlowAfter,
    /// Longer than a lease: it has to be renewed.
    Long,
    /// The work is done after everybody has given up.
    PastDeadline,
    /// 402: an answer like any other, and nothing is done.
    Declined,
    /// An answer that is too large to be kept.
    Large,
    /// 500 or 503, and nothing is done.
    Failed,
    /// 429, and nothing is done.
    Throttled,
    /// 502, 504 or 408, and nothing is done.
    Doubtful,
    /// The same, and it was done.
    DoubtfulDone,
    /// The connection breaks, and nothing is done.
    BrokeBefore,
    /// The connection breaks, and it was done.
    BrokeAfter,
    /// The answer breaks off in the middle.
    BrokeWithin,
}

impl Behaviour {
    pub(crate) const ALL: [Self; 14] = [
        Self::Plain,
        Self::SlowBefore,
        Self::SlowAfter,
        Self::Long,
        Self::PastDeadline,
        Self::Declined,
        Self::Large,
        Self::Failed,
        Self::Throttled,
        Self::Doubtful,
        Self::DoubtfulDone,
        Self::BrokeBefore,
        Self::BrokeAfter,
        Self::BrokeWithin,
    ];

    /// The behaviour in one call, while faults may happen.
    pub(crate) fn of(random: &Random) -> Self {
        random.weighed(&[
            (100, Self::Plain),
            (14, Self::SlowBefore),
            (12, Self::SlowAfter),
            (6, Self::Long),
            (3, Self::PastDeadline),
            (8, Self::Declined),
            (4, Self::Large),
            (12, Self::Failed),
            (8, Self::Throttled),
            (5, Self::Doubtful),
            (5, Self::DoubtfulDone),
            (6, Self::BrokeBefore),
            (6, Self::BrokeAfter),
            (5, Self::BrokeWithin),
        ])
    }

    /// How long it takes before the work, and after it.
    pub(crate) fn pauses(self, random: &Random) -> (Duration, Duration) {
        let at_once = random.millis(0..=15);
        match self {
            Self::SlowBefore => (random.millis(100..=1_500), at_once),
            Self::SlowAfter => (at_once, random.millis(100..=1_500)),
            Self::Long => (LEASE.mul_f64(1.3), at_once),
            Self::PastDeadline => (DEADLINE + random.millis(300..=1_200), at_once),
            Self::Plain
            | Self::Declined
            | Self::Large
            | Self::Failed
            | Self::Throttled
            | Self::Doubtful
            | Self::DoubtfulDone
            | Self::BrokeBefore
            | Self::BrokeAfter
            | Self::BrokeWithin => (at_once, Duration::ZERO),
        }
    }

    /// Whether the work is done.
    pub(crate) const fn does_it(self) -> bool {
        match self {
            Self::Plain
            | Self::SlowBefore
            | Self::SlowAfter
            | Self::Long
            | Self::PastDeadline
            | Self::Large
            | Self::DoubtfulDone
            | Self::BrokeAfter
            | Self::BrokeWithin => true,
            Self::Declined | Self::Failed | Self::Throttled | Self::Doubtful | Self::BrokeBefore => false,
        }
    }

    /// What is answered, where it is not the answer of the work.
    pub(crate) fn status(self, random: &Random) -> Option<u16> {
        match self {
            Self::Declined => Some(402),
            Self::Failed => Some(random.pick(&[500, 503])),
            Self::Throttled => Some(429),
            Self::Doubtful | Self::DoubtfulDone => Some(random.pick(&[502, 504, 408])),
            Self::Plain
            | Self::SlowBefore
            | Self::SlowAfter
            | Self::Long
            | Self::PastDeadline
            | Self::Large
            | Self::BrokeBefore
            | Self::BrokeAfter
            | Self::BrokeWithin => None,
        }
    }
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Plain => "answers",
            Self::SlowBefore => "slow before its work",
            Self::SlowAfter => "slow after its work",
            Self::Long => "longer than a lease",
            Self::PastDeadline => "done past the deadline",
            Self::Declined => "declines, 402",
            Self::Large => "an answer too large to keep",
            Self::Failed => "500 or 503",
            Self::Throttled => "429",
            Self::Doubtful => "502, 504 or 408, not done",
            Self::DoubtfulDone => "502, 504 or 408, and done",
            Self::BrokeBefore => "breaks before its work",
            Self::BrokeAfter => "breaks after its work",
            Self::BrokeWithin => "breaks within its answer",
        };
        f.write_str(name)
    }
}
