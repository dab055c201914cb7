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
//! 3. What is fresh is carried over into the database in rounds: [`Turns`] says when.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use super::failure::{Failure, quoted};
use super::judge::{self, Lookup};
use super::post::{Bag, Bags, Letter, Offices};
use super::row::Swap;
use super::turn::{Next, Turns, Waiting};
use super::writer::{Counts, closed};
use super::{file, slip};
use crate::clock::Clock;
use crate::{Error, ErrorKind, Swapped, failpoint};

/// How much goes into one batch. More than callers that wait at once in practice; a bound all the same.
const ROWS_MAX: usize = 512;
const BYTES_MAX: usize = 4 << 20;

pub(super) enum Order {
    Swaps(Bag),
    /// Answered once all that came before it is in the database.
    Carry(Waiting),
    /// The writer has ended with the round behind.
    Carried(Result<(), Failure>),
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
    pub(super) counts: Arc<Counts>,
    pub(super) turns: Turns,
}

impl Thread {
    fn run(mut self, queue: &Receiver<Order>) {
        let mut put_off = VecDeque::new();
        loop {
            match put_off.pop_front().or_else(|| self.next(queue)) {
                Some(Order::Swaps(first)) => {
                    let letters = self.collect(first, queue, &mut put_off);
                    if self.turns.try_again() == Next::Wait {
                        self.wait_for_writer(queue, &mut put_off);
                    }
                    self.carry_out(letters);
                }
                Some(Order::Carry(caller)) => self.turns.wanted(caller),
                Some(Order::Carried(outcome)) => self.turns.carried(&outcome),
                Some(Order::Stop) => return self.stop(queue),
                None => {}
            }
            if self.turns.go_on() == Next::Wait {
                self.wait_for_writer(queue, &mut put_off);
            }
        }
    }

    /// What comes next; none where something has waited long enough.
    fn next(&self, queue: &Receiver<Order>) -> Option<Order> {
        let Some(patience) = self.turns.patience() else { return queue.recv().ok() };
        queue.recv_timeout(patience).ok()
    }

    /// Takes no more until there is room; what comes meanwhile waits in its order.
    fn wait_for_writer(&mut self, queue: &Receiver<Order>, put_off: &mut VecDeque<Order>) {
        while self.turns.is_under_way() {
            match queue.recv() {
                Ok(Order::Carried(outcome)) => self.turns.carried(&outcome),
                Ok(order) => put_off.push_back(order),
                // Cannot be: this thread has a way to itself.
                Err(_) => return,
            }
        }
        // The next round has the writer, and there is room on the tape of this one.
        let _ = self.turns.go_on();
    }

    fn stop(mut self, queue: &Receiver<Order>) {
        while self.turns.end() {
            match queue.recv() {
                Ok(Order::Carried(outcome)) => self.turns.carried(&outcome),
                // Whoever comes now comes too late, and is told.
                Ok(order) => drop(order),
                Err(_) => return,
            }
        }
        self.turns.close();
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
                Some(Order::Carried(outcome)) => self.turns.carried(&outcome),
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
        let refused = self.write(&mut letters);
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
        if let Some(failure) = self.turns.refusal() {
            return Err(failure.clone());
        }
        let now = self.clock.now();
        let staged = judge::all(letters, &self.turns.fresh, &self.file, now);
        if staged.written.is_empty() {
            return Ok(());
        }
        failpoint!("sqlite.commit.before");
        let written = self.turns.tapes.append(|out| {
            for (id, written, messages) in &staged.written {
                slip::write(out, id, written, messages);
            }
        });
        written.map_err(|error| self.unwritten(&error))?;
        failpoint!("sqlite.commit.after");
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        self.counts.works.fetch_add(letters.len() as u64, Ordering::Relaxed);
        metrics::histogram!("onlyonce_batch_size").record(u32::try_from(letters.len()).unwrap_or(u32::MAX));
        self.turns.began();
        let mut rounds = self.turns.fresh.write();
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
