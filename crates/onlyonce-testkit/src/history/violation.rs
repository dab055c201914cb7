//! What can be broken, by name.

use std::fmt;

/// A promise that was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broken {
    /// The effect took place twice in one use of the key.
    RanTwice,
    /// Local effects: two commits in one use of the key.
    CommittedTwice,
    /// Downstream did the work again while it had promised to remember the key: its fault, not ours.
    ForgotTooSoon,
    /// The handler ran without a reservation, or after it had been given back.
    RanUnreserved,
    /// One attempt was given to the handler twice.
    BeganTwice,
    /// An effect of an attempt that was never given to the handler.
    ExecutedUnasked,
    /// A request that differs from the one that has the key was run.
    OtherBodyRan,
    /// It ran again, or was reserved again, though the answer was there.
    RanAfterCompleted,
    /// It ran again in doubt, without a verdict.
    RanWithoutVerdict,
    /// A later attempt took over while the lease of the one before was alive.
    SupersededAlive,
    /// A record in doubt was made retryable, and nobody had said that nothing happened.
    ReleasedInDoubt,
    /// A verdict of "did not happen", and then it happened.
    VerdictBelied,
    /// A verdict that was not the truth when it was given.
    VerdictUntrue,
    /// The handler had said that nothing ran, and then it did.
    HandlerLied,
    /// A token was used for two attempts.
    TokenReused,
    /// Attempts are numbered one by one.
    AttemptOutOfOrder,
    /// A superseded attempt wrote.
    SupersededWrote,
    /// The answer on record is not what its attempt, or a verdict, said.
    CompletedWithoutTruth,
    /// A success on record, and no effect.
    CompletedUnexecuted,
    /// The answer on record changed while it was kept.
    AnswerChanged,
    /// A running or unknown record was deleted, or a finished one before it expired.
    DeletedAlive,
    /// Local work is never in doubt.
    DoubtedLocal,
    /// A replay that is not, byte for byte, the answer on record.
    ReplayDiffers,
    /// A replay of what was not completed.
    ReplayedNothing,
    /// A replay to a request that was sent after the answer had expired.
    ReplayedPastExpiry,
    /// An answer that nobody gave to this caller's key.
    ForeignAnswer,
    /// The answer went to another request under the same key.
    AnsweredOtherBody,
    /// Another request under the key was told anything but that: how the work of the first one stands, say.
    OtherBodyToldElse,
    /// The very request that has the key was told that the key is another's.
    RefusedOwnBody,
    /// A first answer to a request that did not run, or that is not its own.
    NotItsOwn,
    /// The client was told "stored" before it was.
    NotDurable,
    /// The answer of a run says neither until when it is replayed nor that it is not.
    Unmarked,
    /// "Nothing was run", to a request that ran.
    RefusedYetRan,
    /// "In progress", and nothing ever ran.
    InProgressOfNothing,
    /// "Nobody knows", and nothing was ever in doubt.
    DoubtWithoutCause,
    /// "Nobody knows", after it was known.
    WentBack,
    /// "The answer was not stored", and it was, or nothing was completed.
    NotStoredOfNothing,
    /// A request without an answer.
    Unanswered,
    /// A client that came back again and again was never served.
    NeverServed,
    /// A record that is still running when everybody has gone.
    NeverEnded,
    /// A lease lapsed though its handler was alive and nothing failed.
    LapsedAlive,
    /// Work that was begun while nothing failed, and never came back: its client had hung up.
    Abandoned,
    /// Nothing failed, and a client was told "in progress" long after the answer was there.
    WaitedInVain,
    /// A lapsed lease that no sweeper found in time.
    Unswept,
}

/// Where a history breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub name: Broken,
    /// When it shows, in milliseconds.
    pub at: u64,
    /// The event at which it shows.
    pub index: usize,
    /// More about it.
    pub says: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} ms, event {}: {}", self.name, self.at, self.index, self.says)
    }
}
