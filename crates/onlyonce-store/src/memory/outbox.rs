//! The messages of the memory engine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use onlyonce_core::record::Token;
use onlyonce_core::time::Timestamp;

use crate::outbox::{Claimed, DeadLetter, DeliveryError, Message, Settled};

/// Messages in the order they were stored, and an index by due time.
#[derive(Default)]
pub(super) struct Messages {
    stored: u64,
    by_number: BTreeMap<u64, Stored>,
    by_key: HashMap<Arc<str>, u64>,
    /// Exactly the messages that are neither delivered nor dead.
    due: BTreeSet<(Timestamp, u64)>,
    dead: BTreeSet<u64>,
}

struct Stored {
    message: Message,
    delivery: u32,
    /// The token of the last claim that is not settled.
    token: Option<Token>,
    /// When it may be claimed; while it is claimed, when the claim lapses.
    due_at: Timestamp,
    provider_id: Option<Arc<str>>,
    errors: Vec<DeliveryError>,
}

impl Messages {
    /// A message whose key exists already is the same message: it is stored once.
    pub(super) fn store(&mut self, messages: Vec<Message>, now: Timestamp) {
        for message in messages {
            if self.by_key.contains_key(&message.key) {
                continue;
            }
            let number = self.stored;
            self.stored += 1;
            let due_at = now.plus(message.delay);
            self.by_key.insert(message.key.clone(), number);
            self.due.insert((due_at, number));
            let stored =
                Stored { message, delivery: 0, token: None, due_at, provider_id: None, errors: Vec::new() };
            self.by_number.insert(number, stored);
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
        let stored = self.by_number.get_mut(&number).expect("what is due is stored");
        self.due.remove(&(stored.due_at, number));
        self.due.insert((until, number));
        stored.due_at = until;
        stored.token = Some(token);
        stored.delivery = stored.delivery.saturating_add(1);
        let Message { key, destination, payload, content_type, group, delay: _ } = stored.message.clone();
        Claimed { key, destination, payload, content_type, group, delivery: stored.delivery, token }
    }

    /// A lapsed claim can still settle if no other relay has claimed the message: its delivery was made.
    pub(super) fn settle(&mut self, key: &str, token: Token, settled: Settled, now: Timestamp) -> bool {
        let Some(&number) = self.by_key.get(key) else { return false };
        let stored = self.by_number.get_mut(&number).expect("a key that is known is stored");
        if stored.token != Some(token) {
            return false;
        }
        stored.token = None;
        self.due.remove(&(stored.due_at, number));
        let failed = |error| DeliveryError { at: now, delivery: stored.delivery, error };
        match settled {
            Settled::Delivered { provider_id } => {
                stored.provider_id = provider_id;
                stored.message.payload = Bytes::new();
            }
            Settled::Again { after, error } => {
                stored.errors.push(failed(error));
                stored.due_at = now.plus(after);
                self.due.insert((stored.due_at, number));
            }
            Settled::Dead { error } => {
                stored.errors.push(failed(error));
                self.dead.insert(number);
            }
        }
        true
    }

    pub(super) fn provider_id(&self, key: &str) -> Option<Arc<str>> {
        self.by_number[self.by_key.get(key)?].provider_id.clone()
    }

    pub(super) fn dead(&self, limit: usize) -> Vec<DeadLetter> {
        let dead = self.dead.iter().take(limit).map(|number| &self.by_number[number]);
        dead.map(|stored| DeadLetter {
            key: stored.message.key.clone(),
            destination: stored.message.destination.clone(),
            payload: stored.message.payload.clone(),
            errors: stored.errors.clone(),
        })
        .collect()
    }
}
