//! Where swaps come in: judged, made durable on a tape, answered; the database hears of them later.
//!
//! ```text
//!   swap ─┐            ┌─ judge each by what is fresh, ─┐
//!   swap ─┼─► queue ─► ┤  else by the database          ├─► tape (one write, one sync) ─► fresh ─► callers
//!   swap ─┘            └────────────────────────────────┘                                   │ round by round
//!                                                                    database ◄── the writer ┘
//! ```
//!
//! What waits while a batch is synced goes into the next one, together. A lone swap finds the thread idle, and goes at once.
//!
//! 1. Nobody is answered, and nobody who looks is shown anything, before it is durable; also not those who lost, since they
//!    are shown what the same batch wrote.
//! 2. A batch that cannot be written is `Unavailable` for everyone in it. A crash right then may still find it on the tape. So
//!    nobody may say that it was not written: the callers look, and recognise their writes by their revisions.
//! 3. Once a round is large or old enough, or somebody wants to list, it is handed to the writer, and the next goes to the other
//!    tape. How large is measured ([`pace`]). There are two tapes: while one round is carried over, another grows, and when that is full too, swaps wait.
//! 4. A round that cannot be carried over, as on a full disk, is tried again, also before the next swap. While that fails swaps
//!    are refused: what is on the tapes is safe, and more of it would only take longer.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::carry::Carry;
use super::failure::{Failure, quoted};
use super::fresh::{Fresh, Round};
use super::judge::{self, Lookup};
use super::post::{Bag, Bags, Letter, Offices};
use super::row::Swap;
use super::tape::Tapes;
use super::writer::{Counts, Pages, Writer, closed};
use super::{file, slip};
use crate::clock::Clock;
use crate::{Error, ErrorKind, Swapped, failpoint};

/// How much goes into one batch. More than callers that wait at once in practice; a bound all the same.
const ROWS_MAX: usize = 512;
const BYTES_MAX: usize = 4 << 20;
/// A round is carried over once it has so many records, or bytes, or is so old. In tests of this engine it is soon.
const ROUND_BYTES: usize = if cfg!(test) { 64 << 10 } else { 16 << 20 };
const ROUND_AGE: Duration = Duration::from_millis(500);
/// Behind a round that is still being carried over, the next grows up to this, or half as many records more; then swaps wait.
const GROWN_BYTES: usize = 2 * ROUND_BYTES;
/// How many records that are, until the database is known; at least, and at most.
const ROWS_FIRST: usize = 2_048;
const ROWS_LEAST: usize = 512;
const ROWS_MOST: usize = 8_192;
/// So many pages of the database should a round change. They are synced at once, and the sync of a tape waits for that.
const ROUND_PAGES: usize = 2_000;

/// How many records the next round should have, where one of `rows` has changed so many pages: many where they share
/// pages, as they do in a small file, few where each has one of its own. Where swaps had to wait for it, half as many: then
/// the writer is what holds everybody up, and each time they wait for a whole round.
fn pace(due_rows: usize, rows: usize, pages: usize, has_waited: bool) -> usize {
    if has_waited {
        return (due_rows / 2).max(ROWS_LEAST);
    }
    // One that was carried over early says nothing about large ones.
    if rows * 2 < due_rows {
        return due_rows;
    }
    (rows * ROUND_PAGES / pages.max(1)).clamp(ROWS_LEAST, ROWS_MOST)
}

/// How long to wait before a round that could not be carried over is tried again.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) enum Order {
    Swaps(Bag),
    /// Answered once all that came before it is in the database.
    Carry(Waiting),
    /// The writer has ended with the round behind.
    Carried(Result<Pages, Failure>),
    Stop,
}

/// The way to the thread.
pub(super) struct Intake {
    orders: Sender<Order>,
    offices: Offices,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Intake {
    pub(super) fn start(thread: impl FnOnce(Sender<Order>) -> Thread) -> std::io::Result<Self> {
        let (orders, queue) = mpsc::channel();
        let thread = thread(orders.clone());
        let named = thread::Builder::new().name("onlyonce-intake".to_owned());
        let thread = named.spawn(move || thread.run(&queue))?;
        Ok(Self { offices: Offices::new(orders.clone()), orders, thread: Mutex::new(Some(thread)) })
    }

    /// Carries out a swap, and answers once it is durable; also where its caller goes away.
    pub(super) async fn swap(&self, swap: Swap) -> Result<Swapped, Error> {
        self.offices.send(swap).await.unwrap_or_else(|_| Err(closed()))
    }

    /// Answers once all that was swapped before is in the database.
    pub(super) async fn carry(&self) -> Result<(), Error> {
        let (caller, answer) = oneshot::channel();
        // A thread that has ended has dropped its end, and drops this: its channel closes.
        let _ = self.orders.send(Order::Carry(caller));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Carries out what was handed in so far, carries it over, and waits for that.
    pub(super) fn close(&self) {
        let _ = self.orders.send(Order::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic there was printed there.
        let _ = thread.map(JoinHandle::join);
    }
}

/// What the thread has.
pub(super) struct Thread {
    /// To look for what is not fresh.
    pub(super) file: Lookup,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tapes: Tapes,
    pub(super) fresh: Arc<Fresh>,
    pub(super) writer: Arc<Writer>,
    pub(super) counts: Arc<Counts>,
    /// The way to itself, for those who carry over.
    pub(super) orders: Sender<Order>,
    pub(super) round: State,
}

/// How far the carrying over is.
pub(super) struct State {
    /// How many records a round should have.
    due_rows: usize,
    /// Swaps had to wait for the round behind.
    has_waited: bool,
    /// When the round under way got its first record.
    since: Option<Instant>,
    /// Who waits for the round under way to be in the database.
    waiting: Vec<Waiting>,
    behind: Behind,
}

impl Default for State {
    fn default() -> Self {
        Self {
            due_rows: ROWS_FIRST,
            has_waited: false,
            since: None,
            waiting: Vec::new(),
            behind: Behind::Nothing,
        }
    }
}

/// The round before the one under way.
enum Behind {
    Nothing,
    /// The writer has it.
    UnderWay {
        /// How many records it has.
        rows: usize,
        /// They wait for it.
        waiting: Vec<Waiting>,
        /// It could not be carried over when it was last tried.
        is_again: bool,
    },
    /// It could not be carried over at that moment, and is tried again.
    Failed(Failure, Instant),
}

type Waiting = oneshot::Sender<Result<(), Error>>;

impl Thread {
    fn run(mut self, queue: &Receiver<Order>) {
        let mut put_off = VecDeque::new();
        loop {
            match put_off.pop_front().or_else(|| self.next(queue)) {
                Some(Order::Swaps(first)) => {
                    let letters = self.collect(first, queue, &mut put_off);
                    self.try_again(queue, &mut put_off);
                    self.carry_out(letters);
                }
                Some(Order::Carry(caller)) => self.wanted(caller),
                Some(Order::Carried(outcome)) => self.carried(&outcome),
                Some(Order::Stop) => return self.stop(queue),
                None => {}
            }
            self.go_on();
            if self.is_full() {
                self.round.has_waited = matches!(self.round.behind, Behind::UnderWay { .. });
                self.wait_for_writer(queue, &mut put_off);
            }
        }
    }

    /// What comes next; none where something has waited long enough.
    fn next(&self, queue: &Receiver<Order>) -> Option<Order> {
        let Some(patience) = self.patience() else { return queue.recv().ok() };
        queue.recv_timeout(patience).ok()
    }

    /// Until when there is nothing to do, where anything waits for its time.
    fn patience(&self) -> Option<Duration> {
        match &self.round.behind {
            Behind::Nothing => Some(ROUND_AGE.saturating_sub(self.round.since?.elapsed())),
            Behind::UnderWay { .. } => None,
            Behind::Failed(_, since) => Some(PAUSE.saturating_sub(since.elapsed())),
        }
    }

    /// Hands a round over where one is due.
    fn go_on(&mut self) {
        match &self.round.behind {
            Behind::Nothing if self.is_due() => self.turn(),
            Behind::Failed(_, since) if since.elapsed() >= PAUSE => self.hand_over_again(Vec::new()),
            Behind::Nothing | Behind::Failed(..) | Behind::UnderWay { .. } => {}
        }
    }

    /// Whoever comes after a failure is not told of it unless it happens again.
    fn try_again(&mut self, queue: &Receiver<Order>, put_off: &mut VecDeque<Order>) {
        if matches!(self.round.behind, Behind::Failed(..)) {
            self.hand_over_again(Vec::new());
        }
        if matches!(self.round.behind, Behind::UnderWay { is_again: true, .. }) {
            self.wait_for_writer(queue, put_off);
        }
    }

    /// The round under way is handed over, and the next one begins on the other tape.
    fn turn(&mut self) {
        let waiting = std::mem::take(&mut self.round.waiting);
        self.round.since = None;
        let full = self.fresh.turn();
        self.tapes.turn();
        self.hand_over(full, waiting, false);
    }

    fn hand_over_again(&mut self, waiting: Vec<Waiting>) {
        let round = self.fresh.read().behind.clone();
        self.hand_over(round.expect("what was not carried over is still there"), waiting, true);
    }

    fn is_due(&self) -> bool {
        let Some(since) = self.round.since else { return false };
        let rounds = self.fresh.read();
        !self.round.waiting.is_empty()
            || rounds.open.written.len() >= self.round.due_rows
            || rounds.open.bytes >= ROUND_BYTES
            || since.elapsed() >= ROUND_AGE
    }

    fn is_full(&self) -> bool {
        let rounds = self.fresh.read();
        rounds.open.written.len() >= self.round.due_rows * 3 / 2 || rounds.open.bytes >= GROWN_BYTES
    }

    fn hand_over(&mut self, round: Arc<Round>, waiting: Vec<Waiting>, is_again: bool) {
        // The tapes have turned: it is the one before.
        let rows = round.written.len();
        let carry = Carry::new(round, self.tapes.round() - 1, self.fresh.clone(), self.orders.clone());
        self.round.behind = Behind::UnderWay { rows, waiting, is_again };
        self.writer.hand_in(Box::new(carry));
    }

    fn carried(&mut self, outcome: &Result<Pages, Failure>) {
        let behind = match outcome {
            Ok(_) => Behind::Nothing,
            Err(failure) => Behind::Failed(failure.clone(), Instant::now()),
        };
        let mut told = Vec::new();
        if let Behind::UnderWay { rows, waiting, .. } = std::mem::replace(&mut self.round.behind, behind) {
            told = waiting;
            if let Ok(Pages(pages)) = *outcome {
                let has_waited = std::mem::take(&mut self.round.has_waited);
                self.round.due_rows = pace(self.round.due_rows, rows, pages, has_waited);
            }
        }
        if outcome.is_err() {
            // The round under way will not be carried over soon either.
            told.append(&mut self.round.waiting);
        }
        for caller in told {
            let _ = caller.send(outcome.clone().map(drop).map_err(|failure| failure.error()));
        }
    }

    fn wanted(&mut self, caller: Waiting) {
        let is_empty = self.round.since.is_none();
        match &mut self.round.behind {
            Behind::Failed(..) if is_empty => self.hand_over_again(vec![caller]),
            Behind::Failed(..) => {
                self.round.waiting.push(caller);
                self.hand_over_again(Vec::new());
            }
            Behind::Nothing if is_empty => {
                let _ = caller.send(Ok(()));
            }
            Behind::UnderWay { waiting, .. } if is_empty => waiting.push(caller),
            Behind::Nothing | Behind::UnderWay { .. } => self.round.waiting.push(caller),
        }
    }

    /// Takes no more until there is room; what comes meanwhile waits in its order.
    fn wait_for_writer(&mut self, queue: &Receiver<Order>, put_off: &mut VecDeque<Order>) {
        while matches!(self.round.behind, Behind::UnderWay { .. }) {
            match queue.recv() {
                Ok(Order::Carried(outcome)) => self.carried(&outcome),
                Ok(order) => put_off.push_back(order),
                // Cannot be: this thread has a way to itself.
                Err(_) => return,
            }
        }
        self.go_on();
    }

    /// Everything is in the database, or as much as can be: the tapes have the rest.
    fn stop(mut self, queue: &Receiver<Order>) {
        loop {
            match &self.round.behind {
                Behind::Nothing if self.round.since.is_none() => break,
                Behind::Nothing => self.turn(),
                Behind::Failed(..) => return,
                Behind::UnderWay { .. } => match queue.recv() {
                    Ok(Order::Carried(outcome)) => self.carried(&outcome),
                    // Whoever comes now comes too late, and is told.
                    Ok(order) => drop(order),
                    Err(_) => return,
                },
            }
        }
        if self.writer.release() {
            self.tapes.remove();
        }
    }

    /// So much of what waits as goes together. Who wants to list waits behind it.
    fn collect(&mut self, mut letters: Bag, queue: &Receiver<Order>, put_off: &mut VecDeque<Order>) -> Bag {
        let mut bytes: usize = letters.iter().map(|letter| letter.bytes()).sum();
        while letters.len() < ROWS_MAX && bytes < BYTES_MAX {
            // What was put off before goes first.
            let next = put_off.pop_front().or_else(|| queue.try_recv().ok());
            match next {
                Some(Order::Swaps(more)) => {
                    bytes += more.iter().map(|letter| letter.bytes()).sum::<usize>();
                    letters.extend(more);
                }
                // Never put off: somebody may wait for it before the rest has its turn.
                Some(Order::Carried(outcome)) => self.carried(&outcome),
                Some(other @ (Order::Carry(_) | Order::Stop)) => {
                    put_off.push_front(other);
                    break;
                }
                None => break,
            }
        }
        letters
    }

    fn carry_out(&mut self, mut letters: Bag) {
        let refused = match &self.round.behind {
            Behind::Failed(failure, _) => Err(failure.clone()),
            Behind::Nothing | Behind::UnderWay { .. } => self.write(&mut letters),
        };
        let mut bags = Bags::default();
        for mut letter in letters {
            if let Err(failure) = &refused {
                letter.done = Some(Err(failure.error()));
            }
            bags.put(letter);
        }
        bags.send();
    }

    /// Judges all, makes durable what is written, and shows it. An error is everybody's.
    fn write(&mut self, letters: &mut [Box<Letter>]) -> Result<(), Failure> {
        if let Some(damage) = self.writer.damage() {
            return Err(damage.clone());
        }
        let now = self.clock.now();
        let staged = judge::all(letters, &self.fresh, &self.file, now);
        if staged.written.is_empty() {
            return Ok(());
        }
        failpoint!("sqlite.commit.before");
        let written = self.tapes.append(|out| {
            for (id, written, messages) in &staged.written {
                slip::write(out, id, written, messages);
            }
        });
        written.map_err(|error| self.unwritten(&error))?;
        failpoint!("sqlite.commit.after");
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        self.counts.works.fetch_add(letters.len() as u64, Ordering::Relaxed);
        metrics::histogram!("onlyonce_batch_size").record(u32::try_from(letters.len()).unwrap_or(u32::MAX));
        self.round.since.get_or_insert_with(Instant::now);
        let mut rounds = self.fresh.write();
        for (id, written, messages) in staged.written {
            rounds.open.put(id, written, messages);
        }
        Ok(())
    }

    fn unwritten(&self, error: &std::io::Error) -> Failure {
        let is_full = file::kind_of(error) == ErrorKind::Unavailable;
        let remedy = if is_full {
            "free some space on its disk, and writes go on by themselves"
        } else {
            "see what the system's log says about its disk"
        };
        let message =
            format!("tape of store file {} cannot be written: {error}; {remedy}", quoted(&self.file.path));
        Failure::new(ErrorKind::Unavailable, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_large_where_records_share_pages_and_small_where_they_do_not() {
        assert_eq!(pace(2_048, 2_048, 1_024, false), 4_000);
        assert_eq!(pace(8_192, 8_192, 65_536, false), ROWS_LEAST);
        assert_eq!(pace(2_048, 2_048, 0, false), ROWS_MOST);
        assert_eq!(pace(8_192, 10, 30, false), 8_192, "a round that somebody asked for early");
        assert_eq!(pace(8_192, 8_192, 10, true), 4_096, "whoever writes had to wait for it");
        assert_eq!(pace(600, 600, 10, true), ROWS_LEAST);
    }
}
