//! How the writer's answers come back: for each runtime that waits for any, all of a commit at once.
//!
//! Waking a task of another thread costs a system call or two, and the writer is the thread that everybody waits for. So it
//! hands what it has done to one task of each runtime, and that task wakes the callers, which are its neighbours. A swap
//! goes back as it came: what a runtime's thread allocated, it frees, and the record is put together there.

use std::sync::{PoisonError, RwLock};

use tokio::runtime::{Handle, Id as RuntimeId};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use super::row::{Done, Swap};
use crate::{Error, Swapped};

/// A swap on its way to the writer and back, and who waits for it.
pub(super) struct Letter {
    pub(super) swap: Swap,
    /// What the writer made of it.
    pub(super) done: Option<Result<Done, Error>>,
    pub(super) sender: Sender,
    pub(super) caller: oneshot::Sender<Result<Swapped, Error>>,
}

/// Letters that go back together, each in the box it was sent in: it is large, and not moved.
type Bag = Vec<Box<Letter>>;

/// Where a letter goes back to.
#[derive(Clone)]
pub(super) struct Sender {
    runtime: RuntimeId,
    answered: UnboundedSender<Bag>,
}

/// The task that answers, for every runtime that has asked.
#[derive(Default)]
pub(super) struct Offices(RwLock<Vec<Sender>>);

impl Offices {
    /// The one of the runtime this is called in.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(super) fn here(&self) -> Sender {
        let here = Handle::current();
        // One that has ended, whatever ended it, answers nobody: the next to ask begins another.
        let known = |sender: &&Sender| sender.runtime == here.id() && !sender.answered.is_closed();
        if let Some(sender) = self.0.read().unwrap_or_else(PoisonError::into_inner).iter().find(known) {
            return sender.clone();
        }
        let mut senders = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = senders.iter().find(known) {
            return sender.clone();
        }
        // Those of runtimes that have ended.
        senders.retain(|sender| !sender.answered.is_closed());
        let (answered, letters) = mpsc::unbounded_channel();
        let sender = Sender { runtime: here.id(), answered };
        senders.push(sender.clone());
        // It ends when the store is gone and the last answer has been given, or with its runtime.
        here.spawn(hand_out(letters));
        sender
    }
}

async fn hand_out(mut letters: UnboundedReceiver<Bag>) {
    while let Some(letters) = letters.recv().await {
        for letter in letters {
            let Letter { swap, done, caller, .. } = *letter;
            let done = done.expect("a letter comes back with what was done");
            // A caller that went away does not want its answer.
            let _ = caller.send(done.map(|done| swap.swapped(done)));
        }
    }
}

/// The letters of one commit, by where they go.
#[derive(Default)]
pub(super) struct Bags(Vec<(Sender, Bag)>);

impl Bags {
    pub(super) fn put(&mut self, letter: Box<Letter>) {
        let runtime = letter.sender.runtime;
        match self.0.iter_mut().find(|(sender, _)| sender.runtime == runtime) {
            Some((_, letters)) => letters.push(letter),
            None => self.0.push((letter.sender.clone(), vec![letter])),
        }
    }

    /// On their way. Where a runtime has ended, so have those who waited there.
    pub(super) fn send(self) {
        for (sender, letters) in self.0 {
            let _ = sender.answered.send(letters);
        }
    }
}
