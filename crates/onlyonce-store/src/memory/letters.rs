//! The messages of the memory engine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use onlyonce_core::record::Token;
use onlyonce_core::time::Timestamp;

use crate::outbox::{Claimed, Message, Settled};

/// Messages in the order they were stored, with what is due when.
#[derive(Default)]
pub(super) struct Letters {
    stored: u64,
    by_number: BTreeMap<u64, Letter>,
    by_key: HashMap<Arc<str>, u64>,
    /// Exactly the letters that are neither delivered nor dead.
    due: BTreeSet<(Timestamp, u64)>,
    dead: BTreeSet<u64>,
}

struct Letter {
    message: Message,
    delivery: u32,
    /// Who has claimed it last and not settled it.
    token: Option<Token>,
    /// When it may be claimed; while it is claimed, when the claim lapses.
    due_at: Timestamp,
    errors: Vec<Arc<str>>,
}

impl Letters {
    /// A message whose key is there already is the same message, and is kept once.
    pub(super) fn store(&mut self, messages: Vec<Message>, now: Timestamp) {
        for message in messages {
            if self.by_key.contains_key(&message.key) {
                continue;
            }
            let number = self.stored;
            self.stored += 1;
            self.by_key.insert(message.key.clone(), number);
            self.due.insert((now, number));
            let letter = Letter { message, delivery: 0, token: None, due_at: now, errors: Vec::new() };
            self.by_number.insert(number, letter);
        }
    }

    pub(super) fn claim(
        &mut self,
        token: Token,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Vec<Claimed> {
        let due = self.due.iter().take_while(|(due_at, _)| *due_at <= now).take(limit);
        let numbers: Vec<_> = due.map(|(_, number)| *number).collect();
        numbers.into_iter().map(|number| self.claim_one(number, token, until)).collect()
    }

    fn claim_one(&mut self, number: u64, token: Token, until: Timestamp) -> Claimed {
        let letter = self.by_number.get_mut(&number).expect("what is due is stored");
        self.due.remove(&(letter.due_at, number));
        self.due.insert((until, number));
        letter.due_at = until;
        letter.token = Some(token);
        letter.delivery = letter.delivery.saturating_add(1);
        Claimed { message: letter.message.clone(), delivery: letter.delivery, token }
    }

    /// A claim that has lapsed still settles while nobody else has claimed the message: it brings the truth.
    pub(super) fn settle(&mut self, key: &str, token: Token, settled: Settled, now: Timestamp) -> bool {
        let Some(&number) = self.by_key.get(key) else { return false };
        let letter = self.by_number.get_mut(&number).expect("a key that is known is stored");
        if letter.token != Some(token) {
            return false;
        }
        letter.token = None;
        self.due.remove(&(letter.due_at, number));
        match settled {
            Settled::Delivered { provider_id: _ } => {
                self.by_key.remove(key);
                self.by_number.remove(&number);
            }
            Settled::Again { after, error } => {
                letter.errors.push(error);
                letter.due_at = now.plus(after);
                self.due.insert((letter.due_at, number));
            }
            Settled::Dead { error } => {
                letter.errors.push(error);
                self.dead.insert(number);
            }
        }
        true
    }

    pub(super) fn dead(&self, limit: usize) -> Vec<(Message, Vec<Arc<str>>)> {
        let dead = self.dead.iter().take(limit).map(|number| &self.by_number[number]);
        dead.map(|letter| (letter.message.clone(), letter.errors.clone())).collect()
    }
}
