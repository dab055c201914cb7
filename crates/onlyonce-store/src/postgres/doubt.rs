//! Whether what a server shows would outlive it.
//!
//! Where a standby confirms every commit, an answer means that the standby has it too. But a row may stand on the primary
//! that the standby does not have: a commit that was waiting for it when the server was stopped, or an operator ended the
//! wait, is committed there alone. Whoever looks sees it, and if the standby takes over, it never was.
//!
//! 1. A new connection to a server with such a standby, and an answer that was lost, raise a doubt.
//! 2. A commit that was sent after that and is confirmed settles it: the log is written, and confirmed, in its order.
//! 3. While there is a doubt, a look writes the row that it shows, as it is; so it is shown when it is confirmed.
//!
//! Without such a standby there is nothing to doubt, and looks only read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The doubts of one node about its database.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    has_standby: AtomicBool,
    raised: AtomicU64,
    settled: AtomicU64,
}

/// How many doubts there were when something was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

impl Doubts {
    /// A connection was made, to a server that waits for a standby or to one that does not.
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

    /// To be taken before a commit is sent.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.raised.load(Ordering::Acquire))
    }

    /// A commit that wrote something is confirmed.
    pub(super) fn settle(&self, mark: Mark) {
        // Nearly always it is settled already: a look is all that costs.
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
