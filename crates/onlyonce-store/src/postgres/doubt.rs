//! Whether what a server returns would survive its loss.
//!
//! With a synchronous standby, an answered commit is on the standby too. But the primary may show rows that the standby does
//! not have: if the server was stopped, or an operator cancelled the wait, while a commit waited for the standby, that
//! commit is on the primary only. It is lost if the standby takes over.
//!
//! 1. A new connection to a server with such a standby raises a doubt, and so does a lost answer.
//! 2. A confirmed commit that was sent later settles it: the log is written, and confirmed, in order.
//! 3. While there is a doubt, a read rewrites the row unchanged, so that its answer waits for the standby's confirmation.
//!
//! Without such a standby there is no doubt, and reads only read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The doubts of one node about its database.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    has_standby: AtomicBool,
    raised: AtomicU64,
    settled: AtomicU64,
}

/// The number of doubts at the moment something was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

impl Doubts {
    /// A connection was made, with or without a synchronous standby.
    pub(super) fn connected(&self, has_standby: bool) {
        self.has_standby.store(has_standby, Ordering::Release);
        self.lost();
    }

    /// An answer was lost.
    pub(super) fn lost(&self) {
        if self.has_standby.load(Ordering::Acquire) {
            self.raise();
        }
    }

    /// The server has said that it did not wait for its standby.
    pub(super) fn raise(&self) {
        self.raised.fetch_add(1, Ordering::AcqRel);
    }

    /// Taken before a commit is sent.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.raised.load(Ordering::Acquire))
    }

    /// A commit with a write was confirmed.
    pub(super) fn settle(&self, mark: Mark) {
        // Nearly always settled already: then this is one atomic load.
        if self.settled.load(Ordering::Acquire) < mark.0 {
            self.settled.fetch_max(mark.0, Ordering::AcqRel);
        }
    }

    pub(super) fn are_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) == self.raised.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_commit_that_was_sent_after_a_doubt_settles_it() {
        let doubts = Doubts::default();
        doubts.connected(true);
        let before = doubts.mark();
        doubts.lost();
        doubts.settle(before);
        assert!(!doubts.are_settled());
        doubts.settle(doubts.mark());
        assert!(doubts.are_settled());
    }

    #[test]
    fn without_a_standby_there_is_nothing_to_doubt() {
        let doubts = Doubts::default();
        doubts.connected(false);
        doubts.lost();
        assert!(doubts.are_settled());
        doubts.raise();
        assert!(!doubts.are_settled(), "the server knows better");
    }
}
