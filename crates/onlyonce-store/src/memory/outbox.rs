//! The messages of the memory engine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::record::{Id, Token};
use onlyonce_core::time::Timestamp;

use crate::outbox::{
    Census, Changed, Claimed, Claims, DeliveryError, Failed, Item, Message, Oldest, OnDead, Page, Payload,
    Query, Settled, State, Wanted,
};
use crate::{Count, Cursor, Error, listing};

/// Messages in the order they were stored, and indexes of what can be claimed.
#[derive(Default)]
pub(super) struct Messages {
    stored: u64,
    by_number: BTreeMap<u64, Stored>,
    by_key: HashMap<Arc<str>, u64>,
    /// The waiting and claimed messages of a destination that no such message of their group is ahead of.
    due: HashMap<Arc<str>, BTreeSet<(Timestamp, u64)>>,
    groups: HashMap<(Arc<str>, Arc<str>), Group>,
}

/// The undelivered messages of a destination and group.
#[derive(Default)]
struct Group {
    waiting: BTreeSet<u64>,
    claimed: Option<u64>,
    dead: BTreeSet<u64>,
}

impl Group {
    /// The one that is under way, or the first that waits.
    fn first(&self) -> Option<u64> {
        self.claimed.or_else(|| self.waiting.first().copied())
    }
}

struct Stored {
    message: Message,
    record: Id,
    state: State,
    delivery: u32,
    failures: u32,
    /// The token of the last claim that is not settled.
    token: Option<Token>,
    created_at: Timestamp,
    /// When it may be claimed; while it is claimed, when the claim lapses.
    due_at: Timestamp,
    first_due_at: Timestamp,
    delivered_at: Option<Timestamp>,
    provider_id: Option<Arc<str>>,
    errors: Vec<DeliveryError>,
}

impl Messages {
    /// A message whose key exists already is the same message: it is stored once.
    pub(super) fn store(&mut self, record: Id, messages: Vec<Message>, now: Timestamp) {
        for message in messages {
            if self.by_key.contains_key(&message.key) {
                continue;
            }
            self.stored += 1;
            let (number, due_at) = (self.stored, now.plus(message.delay));
            self.by_key.insert(message.key.clone(), number);
            let stored = Stored {
                message,
                record,
                state: State::Waiting,
                delivery: 0,
                failures: 0,
                token: None,
                created_at: now,
                due_at,
                first_due_at: due_at,
                delivered_at: None,
                provider_id: None,
                errors: Vec::new(),
            };
            self.by_number.insert(number, stored);
            self.change(number, |_| {});
        }
    }

    /// Changes a message, and the indexes with it: the first of its group before and after can be claimed.
    fn change<R>(&mut self, number: u64, change: impl FnOnce(&mut Stored) -> R) -> R {
        self.withdraw(number);
        let stored = self.by_number.get_mut(&number).expect("a message that is changed is stored");
        let changed = change(stored);
        self.enter(number);
        changed
    }

    /// Takes a message out of the indexes.
    fn withdraw(&mut self, number: u64) {
        let stored = &self.by_number[&number];
        let Some(name) = stored.group() else { return self.not_due(number) };
        let group = self.groups.entry(name.clone()).or_default();
        let first = group.first();
        group.waiting.remove(&number);
        group.dead.remove(&number);
        group.claimed = group.claimed.filter(|claimed| *claimed != number);
        self.move_first(&name, first);
    }

    /// Puts it in again, as it stands now.
    fn enter(&mut self, number: u64) {
        let stored = &self.by_number[&number];
        let state = stored.state;
        let Some(name) = stored.group() else {
            return if matches!(state, State::Waiting | State::Claimed) {
                self.is_due(number);
            };
        };
        let group = self.groups.entry(name.clone()).or_default();
        let first = group.first();
        match state {
            State::Waiting => drop(group.waiting.insert(number)),
            State::Claimed => group.claimed = Some(number),
            State::Dead => drop(group.dead.insert(number)),
            State::Delivered => {}
        }
        self.move_first(&name, first);
    }

    fn move_first(&mut self, name: &(Arc<str>, Arc<str>), before: Option<u64>) {
        let group = &self.groups[name];
        let first = group.first();
        if first.is_none() && group.dead.is_empty() {
            self.groups.remove(name);
        }
        if let Some(before) = before {
            self.not_due(before);
        }
        if let Some(first) = first {
            self.is_due(first);
        }
    }

    fn is_due(&mut self, number: u64) {
        let Stored { message, due_at, .. } = &self.by_number[&number];
        self.due.entry(message.destination.clone()).or_default().insert((*due_at, number));
    }

    fn not_due(&mut self, number: u64) {
        let Stored { message, due_at, .. } = &self.by_number[&number];
        if let Some(due) = self.due.get_mut(&message.destination) {
            due.remove(&(*due_at, number));
        }
    }

    pub(super) fn claim(&mut self, token: Token, wanted: &[Wanted], now: Timestamp) -> Claims {
        let mut numbers = Vec::new();
        for wanted in wanted {
            let due = self.due.get(&wanted.destination).into_iter().flatten();
            let due = due.take_while(|(due_at, _)| *due_at <= now);
            let due = due.filter(|(_, number)| !self.is_blocked(*number, wanted.on_dead));
            numbers.extend(due.take(wanted.limit).map(|(_, number)| (*number, wanted.lease)));
        }
        let mut claimed: Vec<_> =
            numbers.into_iter().map(|(number, lease)| self.claim_one(number, token, now, lease)).collect();
        claimed.sort_by_key(|claimed: &Claimed| (std::cmp::Reverse(claimed.age), claimed.number));
        Claims { claimed, is_more: false }
    }

    /// A dead letter ahead of it blocks a message that waits.
    fn is_blocked(&self, number: u64, on_dead: OnDead) -> bool {
        let stored = &self.by_number[&number];
        let group = stored.group().and_then(|name| self.groups.get(&name));
        let first_dead = group.and_then(|group| group.dead.first());
        match on_dead {
            OnDead::Block => stored.state == State::Waiting && first_dead.is_some_and(|dead| *dead < number),
            OnDead::Skip => false,
        }
    }

    fn claim_one(&mut self, number: u64, token: Token, now: Timestamp, lease: Duration) -> Claimed {
        self.change(number, |stored| {
            stored.state = State::Claimed;
            stored.due_at = now.plus(lease);
            stored.token = Some(token);
            stored.delivery = stored.delivery.saturating_add(1);
            let Message { key, destination, payload, content_type, group, delay: _ } = stored.message.clone();
            let (delivery, failures) = (stored.delivery, stored.failures);
            let age = now.since(stored.first_due_at);
            Claimed {
                number,
                key,
                destination,
                payload: Ok(payload),
                content_type,
                group,
                delivery,
                failures,
                age,
                token,
            }
        })
    }

    /// A lapsed claim can still settle if no other relay has claimed the message: its delivery was made.
    pub(super) fn settle(&mut self, claimed: &Claimed, settled: Settled, now: Timestamp) -> bool {
        let is_own =
            self.by_number.get(&claimed.number).is_some_and(|stored| stored.token == Some(claimed.token));
        if is_own {
            self.change(claimed.number, |stored| stored.settle(settled, now));
        }
        is_own
    }

    pub(super) fn list(&self, query: &Query) -> Result<Page, Error> {
        let after = match &query.after {
            None => None,
            Some(Cursor(bytes)) => Some(place_of(bytes).ok_or_else(listing::foreign)?),
        };
        let mut found: Vec<_> = self
            .by_number
            .iter()
            .filter(|(_, stored)| query.state.is_none_or(|state| state == stored.state))
            .filter(|(_, stored)| {
                query
                    .destination
                    .as_ref()
                    .is_none_or(|destination| *destination == stored.message.destination)
            })
            .map(|(number, stored)| (stored.listed_at(query.state), *number))
            .filter(|place| after.is_none_or(|after| *place > after))
            .collect();
        found.sort_unstable();
        let has_more = found.len() > query.limit;
        found.truncate(query.limit);
        let cursor = |(at, number): &(Timestamp, u64)| {
            Cursor([at.as_micros().to_be_bytes(), number.to_be_bytes()].concat().into())
        };
        let next = found.last().filter(|_| has_more).map(cursor);
        let items = found.iter().map(|(_, number)| self.by_number[number].item(*number)).collect();
        Ok(Page { items, next })
    }

    pub(super) fn item(&self, number: u64) -> Option<Item> {
        Some(self.by_number.get(&number)?.item(number))
    }

    pub(super) fn payload(&self, number: u64) -> Option<Payload> {
        let stored = self.by_number.get(&number)?;
        let bytes = (stored.state != State::Delivered).then(|| stored.message.payload.clone());
        Some(Payload { bytes, content_type: stored.message.content_type.clone() })
    }

    pub(super) fn redrive(&mut self, number: u64, now: Timestamp) -> Changed {
        match self.by_number.get(&number).map(|stored| stored.state) {
            None => return Changed::Absent,
            Some(State::Waiting | State::Claimed | State::Delivered) => return Changed::Refused,
            Some(State::Dead) => {}
        }
        self.change(number, |stored| {
            (stored.state, stored.failures) = (State::Waiting, 0);
            (stored.due_at, stored.first_due_at) = (now, now);
        });
        Changed::Applied
    }

    pub(super) fn discard(&mut self, number: u64, now: Timestamp) -> Changed {
        match self.by_number.get(&number) {
            None => return Changed::Absent,
            Some(stored) if stored.state == State::Claimed && stored.due_at > now => return Changed::Refused,
            Some(_) => {}
        }
        self.delete(number);
        Changed::Applied
    }

    fn delete(&mut self, number: u64) {
        self.withdraw(number);
        if let Some(stored) = self.by_number.remove(&number) {
            self.by_key.remove(&stored.message.key);
        }
    }

    pub(super) fn prune(&mut self, age: Duration, limit: usize, now: Timestamp) -> usize {
        let is_old =
            |stored: &Stored| stored.delivered_at.is_some_and(|delivered_at| now.since(delivered_at) > age);
        let old = self.by_number.iter().filter(|(_, stored)| is_old(stored)).take(limit);
        let old: Vec<_> = old.map(|(number, _)| *number).collect();
        old.iter().for_each(|number| self.delete(*number));
        old.len()
    }

    pub(super) fn census(&self, now: Timestamp) -> Census {
        let count = |state| self.by_number.values().filter(|stored| stored.state == state).count() as u64;
        let counts = State::ALL.into_iter().map(|state| (state, Count::Exact(count(state)))).collect();
        let undelivered = self.by_number.iter().filter(|(_, stored)| {
            matches!(stored.state, State::Waiting | State::Claimed) && stored.first_due_at <= now
        });
        let oldest = undelivered.min_by_key(|(number, stored)| (stored.first_due_at, **number));
        let oldest = oldest.map(|(number, stored)| Oldest {
            number: *number,
            key: stored.message.key.clone(),
            destination: stored.message.destination.clone(),
            since: stored.first_due_at,
            age: now.since(stored.first_due_at),
        });
        Census { counts, oldest }
    }
}

impl Stored {
    fn group(&self) -> Option<(Arc<str>, Arc<str>)> {
        Some((self.message.destination.clone(), self.message.group.clone()?))
    }

    fn settle(&mut self, settled: Settled, now: Timestamp) {
        self.token = None;
        match settled {
            Settled::Delivered { provider_id } => {
                self.state = State::Delivered;
                self.delivered_at = Some(now);
                self.provider_id = provider_id;
                self.message.payload = Bytes::new();
            }
            Settled::Again { after, counts, failed } => {
                self.state = State::Waiting;
                self.due_at = now.plus(after);
                self.failures = self.failures.saturating_add(u32::from(counts));
                // One that does not count takes the place of the one before it, if that said the same.
                let says_the_same = self.errors.last().is_some_and(|last| last.error == failed.error);
                if !counts && says_the_same {
                    self.errors.pop();
                }
                self.note(failed, now);
            }
            Settled::Dead { failed } => {
                self.state = State::Dead;
                self.note(failed, now);
            }
        }
    }

    fn note(&mut self, Failed { status, error }: Failed, at: Timestamp) {
        self.errors.push(DeliveryError { at, delivery: self.delivery, status, error });
    }

    /// The moment that a listing of this state goes by.
    fn listed_at(&self, state: Option<State>) -> Timestamp {
        match state {
            Some(State::Waiting | State::Claimed) => self.first_due_at,
            Some(State::Delivered) => self.delivered_at.unwrap_or(self.created_at),
            Some(State::Dead) | None => Timestamp::from_micros(0),
        }
    }

    fn item(&self, number: u64) -> Item {
        Item {
            number,
            key: self.message.key.clone(),
            destination: self.message.destination.clone(),
            group: self.message.group.clone(),
            state: self.state,
            deliveries: self.delivery,
            created_at: self.created_at,
            due_at: self.due_at,
            delivered_at: self.delivered_at,
            provider_id: self.provider_id.clone(),
            errors: self.errors.clone(),
            record: Some(self.record),
        }
    }
}

fn place_of(bytes: &[u8]) -> Option<(Timestamp, u64)> {
    let (at, number) = bytes.split_first_chunk::<8>()?;
    let number = u64::from_be_bytes(number.try_into().ok()?);
    Some((Timestamp::from_micros(i64::from_be_bytes(*at)), number))
}
