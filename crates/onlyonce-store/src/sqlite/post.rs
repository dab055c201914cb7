//! How swaps get to the intake and its answers back: for each runtime that has any, together.
//!
//! ```text
//!   caller ─┐                                                         ┌─► caller
//!   caller ─┼─► a task of their runtime ─► intake ─► a task of it ────┼─► caller
//!   caller ─┘   all that came in one turn            all of a batch   └─► caller
//! ```
//!
//! Waking another thread costs a system call or two on both sides, and the intake is the thread that everybody waits for. And
//! whoever comes a moment after it has set off waits for a whole sync. So what the tasks of a runtime send while they have
//! their turn is gathered by one more task, which has its turn after them, and goes together. A lone swap is followed by that
//! task at once. On the way back one task wakes the callers, which are its neighbours.

use std::sync::{PoisonError, RwLock, mpsc};

use tokio::runtime::{Handle, Id as RuntimeId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::intake::Order;
use super::row::Swap;
use crate::{Error, Swapped};

/// A swap on its way to the intake and back, and who waits for it.
pub(super) struct Letter {
    /// Until it is judged.
    pub(super) swap: Option<Swap>,
    /// What became of it.
    pub(super) done: Option<Result<Swapped, Error>>,
    /// Where it goes back to.
    office: Office,
    caller: oneshot::Sender<Result<Swapped, Error>>,
}

impl Letter {
    /// About how much it writes.
    pub(super) fn bytes(&self) -> usize {
        self.swap.as_ref().map_or(0, Swap::bytes)
    }
}

/// Letters that go together, each in the box it was sent in: it is large, and not moved.
pub(super) type Bag = Vec<Box<Letter>>;

/// How many go together at most.
const LETTERS_MAX: usize = 256;

/// The tasks of one runtime.
#[derive(Clone)]
struct Office {
    runtime: RuntimeId,
    sent: UnboundedSender<Box<Letter>>,
    answered: UnboundedSender<Bag>,
}

impl Office {
    /// One that has ended, whatever ended it, serves nobody.
    fn is_closed(&self) -> bool {
        self.sent.is_closed() || self.answered.is_closed()
    }
}

/// The offices of every runtime that has sent anything.
pub(super) struct Offices {
    intake: mpsc::Sender<Order>,
    known: RwLock<Vec<Office>>,
}

impl Offices {
    pub(super) fn new(intake: mpsc::Sender<Order>) -> Self {
        Self { intake, known: RwLock::default() }
    }

    /// Sends a swap off, and says where its answer will be. It is carried out also where nobody waits for that.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(super) fn send(&self, swap: Swap) -> oneshot::Receiver<Result<Swapped, Error>> {
        let (caller, answer) = oneshot::channel();
        let office = self.here();
        let sent = office.sent.clone();
        // An office that has closed meanwhile drops it, and so its channel.
        let _ = sent.send(Box::new(Letter { swap: Some(swap), done: None, office, caller }));
        answer
    }

    /// The one of the runtime this is called in.
    fn here(&self) -> Office {
        let here = Handle::current();
        let is_ours = |office: &&Office| office.runtime == here.id() && !office.is_closed();
        if let Some(office) = self.known.read().unwrap_or_else(PoisonError::into_inner).iter().find(is_ours) {
            return office.clone();
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(office) = known.iter().find(is_ours) {
            return office.clone();
        }
        // Those of runtimes that have ended.
        known.retain(|office| !office.is_closed());
        let (sent, letters) = unbounded_channel();
        let (answered, bags) = unbounded_channel();
        let office = Office { runtime: here.id(), sent, answered };
        known.push(office.clone());
        // They end when the store is gone and the last answer has been given, or with their runtime.
        here.spawn(Outgoing { letters, intake: self.intake.clone() }.gather());
        here.spawn(hand_out(bags));
        office
    }
}

/// What has been sent in one runtime, and is not on its way yet.
struct Outgoing {
    letters: UnboundedReceiver<Box<Letter>>,
    intake: mpsc::Sender<Order>,
}

impl Outgoing {
    async fn gather(mut self) {
        loop {
            let mut bag = Vec::new();
            if self.letters.recv_many(&mut bag, LETTERS_MAX).await == 0 {
                return;
            }
            // An intake that has ended drops them, and so their channels.
            let _ = self.intake.send(Order::Swaps(bag));
        }
    }
}

impl Drop for Outgoing {
    /// With its runtime: what was sent is carried out all the same.
    fn drop(&mut self) {
        self.letters.close();
        let mut bag = Vec::new();
        while let Ok(letter) = self.letters.try_recv() {
            bag.push(letter);
        }
        if !bag.is_empty() {
            let _ = self.intake.send(Order::Swaps(bag));
        }
    }
}

async fn hand_out(mut bags: UnboundedReceiver<Bag>) {
    while let Some(bag) = bags.recv().await {
        for letter in bag {
            let Letter { done, caller, .. } = *letter;
            // A caller that went away does not want its answer.
            let _ = caller.send(done.expect("a letter comes back with what was done"));
        }
    }
}

/// The letters of one batch, by where they go.
#[derive(Default)]
pub(super) struct Bags(Vec<(Office, Bag)>);

impl Bags {
    pub(super) fn put(&mut self, letter: Box<Letter>) {
        let runtime = letter.office.runtime;
        match self.0.iter_mut().find(|(office, _)| office.runtime == runtime) {
            Some((_, bag)) => bag.push(letter),
            None => self.0.push((letter.office.clone(), vec![letter])),
        }
    }

    /// On their way. Where a runtime has ended, so have those who waited there.
    pub(super) fn send(self) {
        for (office, bag) in self.0 {
            let _ = office.answered.send(bag);
        }
    }
}
