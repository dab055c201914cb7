//! When a round is handed to the writer, how large it is by then, and who waits for it to be in the database.
//!
//! 1. Once a round is large or old enough, or somebody wants to list, it is handed to the writer, and the next goes to the other
//!    tape. There are two tapes: while one round is carried over, another grows, and when that is full too, swaps wait.
//! 2. A round that cannot be carried over, as on a full disk, is tried again, also before the next swap. While that fails swaps
//!    are refused: what is on the tapes is safe, and more of it would only take longer.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::carry::Carry;
use super::failure::Failure;
use super::file::Handle;
use super::fresh::{Fresh, Round};
use super::intake::Order;
use super::tape::Tapes;
use super::writer::Writer;
use crate::Error;

/// A round is carried over once it has so many records ([`rows_due`]), or bytes, or is so old. In tests of this engine it is soon.
const ROUND_BYTES: usize = if cfg!(test) { 64 << 10 } else { 16 << 20 };
const ROUND_AGE: Duration = Duration::from_millis(500);
/// Behind a round that is still being carried over, the next grows up to this, or half as many records more; then swaps wait.
const GROWN_BYTES: usize = 2 * ROUND_BYTES;
/// How many records a round has in a small file, and in a large one: each costs a transaction of its own.
const ROWS_MOST: u64 = 8_192;
const ROWS_LEAST: u64 = 128;
const SMALL_BYTES: u64 = 128 << 20;
const LARGE_BYTES: u64 = 1 << 30;
/// How long to wait before a round that could not be carried over is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// How many records a round should have in a file of so many bytes.
///
/// Ids are random. In a small file those of a large round meet on the same pages, and each page is written once. In a large file
/// each has a page of its own, however large the round is, and all that a large one does is to write them in one go: the sync
/// of a tape waits for that.
fn rows_due(file_bytes: u64) -> usize {
    let rows = match file_bytes {
        0..=SMALL_BYTES => ROWS_MOST,
        LARGE_BYTES.. => ROWS_LEAST,
        between => ROWS_MOST * SMALL_BYTES / between,
    };
    usize::try_from(rows).expect("no more than ROWS_MOST")
}

/// A file that cannot be asked is taken as large.
fn rows_due_in(file: &Handle) -> usize {
    rows_due(file.metadata().map_or(u64::MAX, |metadata| metadata.len()))
}

/// Who waits for what was swapped so far to be in the database.
pub(super) type Waiting = oneshot::Sender<Result<(), Error>>;

/// The rounds, and how far their carrying over is.
pub(super) struct Turns {
    pub(super) tapes: Tapes,
    pub(super) fresh: Arc<Fresh>,
    writer: Arc<Writer>,
    handle: Handle,
    /// The way to the thread that takes swaps in: there the writer says how it ended.
    orders: Sender<Order>,
    /// How many records the round under way should have.
    rows_due: usize,
    /// When it got its first record.
    since: Option<Instant>,
    /// Who waits for it to be in the database.
    waiting: Vec<Waiting>,
    behind: Behind,
}

/// The round before the one under way.
enum Behind {
    Nothing,
    /// The writer has it.
    UnderWay {
        /// They wait for it.
        waiting: Vec<Waiting>,
        /// It could not be carried over when it was last tried.
        is_again: bool,
    },
    /// It could not be carried over at that moment, and is tried again.
    Failed(Failure, Instant),
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Take swaps in.
    Go,
    /// Take none before the writer has ended.
    Wait,
}

impl Turns {
    pub(super) fn new(
        tapes: Tapes,
        fresh: Arc<Fresh>,
        writer: Arc<Writer>,
        handle: Handle,
        orders: Sender<Order>,
    ) -> Self {
        Self {
            rows_due: rows_due_in(&handle),
            tapes,
            fresh,
            writer,
            handle,
            orders,
            since: None,
            waiting: Vec::new(),
            behind: Behind::Nothing,
        }
    }

    /// Something was swapped.
    pub(super) fn began(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Why nothing can be swapped now.
    pub(super) fn refusal(&self) -> Option<&Failure> {
        match &self.behind {
            Behind::Failed(failure, _) => Some(failure),
            Behind::Nothing | Behind::UnderWay { .. } => self.writer.damage(),
        }
    }

    /// Until when there is nothing to do, where anything waits for its time.
    pub(super) fn patience(&self) -> Option<Duration> {
        match &self.behind {
            Behind::Nothing => Some(ROUND_AGE.saturating_sub(self.since?.elapsed())),
            Behind::UnderWay { .. } => None,
            Behind::Failed(_, since) => Some(PAUSE.saturating_sub(since.elapsed())),
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.behind, Behind::UnderWay { .. })
    }

    /// Hands a round over where one is due.
    pub(super) fn go_on(&mut self) -> Next {
        match &self.behind {
            Behind::Nothing if self.is_due() => self.turn(),
            Behind::Failed(_, since) if since.elapsed() >= PAUSE => self.hand_over_again(Vec::new()),
            Behind::Nothing | Behind::Failed(..) | Behind::UnderWay { .. } => {}
        }
        if self.is_under_way() && self.is_full() { Next::Wait } else { Next::Go }
    }

    /// Whoever comes after a failure is not told of it unless it happens again.
    pub(super) fn try_again(&mut self) -> Next {
        if matches!(self.behind, Behind::Failed(..)) {
            self.hand_over_again(Vec::new());
        }
        if matches!(self.behind, Behind::UnderWay { is_again: true, .. }) { Next::Wait } else { Next::Go }
    }

    /// The writer has ended.
    pub(super) fn carried(&mut self, outcome: &Result<(), Failure>) {
        let behind = match outcome {
            Ok(()) => Behind::Nothing,
            Err(failure) => Behind::Failed(failure.clone(), Instant::now()),
        };
        let mut told = match std::mem::replace(&mut self.behind, behind) {
            Behind::UnderWay { waiting, .. } => waiting,
            Behind::Nothing | Behind::Failed(..) => Vec::new(),
        };
        if outcome.is_err() {
            // The round under way will not be carried over soon either.
            told.append(&mut self.waiting);
        }
        for caller in told {
            let _ = caller.send(outcome.clone().map_err(|failure| failure.error()));
        }
    }

    /// Somebody wants all that was swapped so far to be in the database.
    pub(super) fn wanted(&mut self, caller: Waiting) {
        let is_empty = self.since.is_none();
        match &mut self.behind {
            Behind::Failed(..) if is_empty => self.hand_over_again(vec![caller]),
            Behind::Failed(..) => {
                self.waiting.push(caller);
                self.hand_over_again(Vec::new());
            }
            Behind::Nothing if is_empty => {
                let _ = caller.send(Ok(()));
            }
            Behind::UnderWay { waiting, .. } if is_empty => waiting.push(caller),
            Behind::Nothing | Behind::UnderWay { .. } => self.waiting.push(caller),
        }
    }

    /// Nothing is swapped any more: hands over what is left. Whether the writer has something now.
    pub(super) fn end(&mut self) -> bool {
        if matches!(self.behind, Behind::Nothing) && self.since.is_some() {
            self.turn();
        }
        self.is_under_way()
    }

    /// Everything is in the database, or as much as can be: the tapes have the rest.
    pub(super) fn close(self) {
        let is_all = matches!(self.behind, Behind::Nothing) && self.since.is_none();
        if is_all && self.writer.release() {
            self.tapes.remove();
        }
    }

    fn is_due(&self) -> bool {
        let Some(since) = self.since else { return false };
        let rounds = self.fresh.read();
        !self.waiting.is_empty()
            || rounds.open.written.len() >= self.rows_due
            || rounds.open.bytes >= ROUND_BYTES
            || since.elapsed() >= ROUND_AGE
    }

    fn is_full(&self) -> bool {
        let rounds = self.fresh.read();
        rounds.open.written.len() >= self.rows_due * 3 / 2 || rounds.open.bytes >= GROWN_BYTES
    }

    /// The round under way is handed over, and the next one begins on the other tape.
    fn turn(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.since = None;
        let full = self.fresh.turn();
        self.tapes.turn();
        self.rows_due = rows_due_in(&self.handle);
        self.hand_over(full, waiting, false);
    }

    fn hand_over_again(&mut self, waiting: Vec<Waiting>) {
        let round = self.fresh.read().behind.clone();
        self.hand_over(round.expect("what was not carried over is still there"), waiting, true);
    }

    fn hand_over(&mut self, round: Arc<Round>, waiting: Vec<Waiting>, is_again: bool) {
        // The tapes have turned: it is the one before.
        let carry = Carry::new(round, self.tapes.round() - 1, self.fresh.clone(), self.orders.clone());
        self.behind = Behind::UnderWay { waiting, is_again };
        self.writer.hand_in(Box::new(carry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_large_in_a_small_file_and_small_in_a_large_one() {
        assert_eq!(rows_due(0), 8_192);
        assert_eq!(rows_due(SMALL_BYTES), 8_192);
        assert_eq!(rows_due(SMALL_BYTES * 4), 2_048);
        assert_eq!(rows_due(LARGE_BYTES), 128);
        assert_eq!(rows_due(u64::MAX), 128);
    }
}
