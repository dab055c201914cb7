//! Random operations on the engine and on `memory`: the answers agree.
//!
//! Times of two clocks cannot be compared. So every moment that decides something is an hour before or after now, and the
//! suite compares what follows from it: what is due and in which order, what is reaped, and that each record is exactly
//! the draft written, with the engine's own stamp.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::key::Key;
use onlyonce_core::record::{Draft, Id, Revision, Seen, Source, State, StateName, StateSet};
use onlyonce_core::time::{Timestamp, When};

use super::random::Random;
use super::world::{HOUR, Shared, before, change, everything, list, load, mint, now, scope, seed, swap};
use crate::memory::Memory;
use crate::{Change, Order, Query, Search, Swapped};

/// How many operations, on few ids so that they conflict.
const OPERATIONS: usize = 1_000;
const IDS: u64 = 6;
/// The scope of the suite's clock records; it is not listed or compared.
const CLOCK_SCOPE: [u8; 32] = [0xcc; 32];

/// E07
pub async fn random_operations_agree_with_memory(store: Shared) {
    let mut pair = Pair::new(store).await;
    let mut random = Random::new(seed());
    for _ in 0..OPERATIONS {
        let id = pair.ids[usize::try_from(random.below(IDS)).expect("small")].clone();
        match random.below(20) {
            0..=13 => pair.swap(&id, &mut random).await,
            14..=16 => pair.load(id.0).await,
            17 | 18 => pair.scan(&mut random).await,
            _ if random.one_in(4) => pair.erase(random.pick(&[[1; 32], [2; 32]])).await,
            _ => pair.reap().await,
        }
    }
    // Chance may have left nothing to erase or to reap at those moments. Here there surely is something.
    pair.expire_all(&mut random).await;
    pair.erase([1; 32]).await;
    pair.reap().await;
}

fn random_states(random: &mut Random) -> StateSet {
    let some: Vec<_> = StateName::ALL.into_iter().filter(|_| random.one_in(2)).collect();
    if random.one_in(2) { StateSet::ALL } else { StateSet::of(&some) }
}

/// The engine under test and the reference, and the last draft written under each revision.
struct Pair {
    engine: Shared,
    memory: Shared,
    ids: Vec<(Id, u8, Key)>,
    written: HashMap<Revision, Box<Draft>>,
    /// Revisions each id once had, for swaps that expect an old one.
    old: Vec<Revision>,
    base: Timestamp,
}

impl Pair {
    async fn new(engine: Shared) -> Self {
        let memory: Shared = Arc::new(Memory::new());
        let base = now(&engine).await.min(now(&memory).await);
        let ids = (0..IDS).map(|number| {
            let (in_scope, key) =
                (if number % 2 == 0 { 1 } else { 2 }, Key::stored(&format!("key {number}")));
            (Id::of(&scope(in_scope), &key), in_scope, key)
        });
        Self { engine, memory, ids: ids.collect(), written: HashMap::new(), old: vec![mint()], base }
    }

    async fn swap(&mut self, (id, in_scope, key): &(Id, u8, Key), random: &mut Random) {
        let next = self.draft(*in_scope, key, random);
        let expected = match random.below(8) {
            0 => None,
            1 => Some(random.pick(&self.old)),
            _ => load(&self.memory, *id).await.map(|seen| seen.revision),
        };
        let change = change(expected, next.clone());
        self.old.push(change.revision);
        self.written.insert(change.revision, next);
        let answers = self.swap_both(*id, change).await;
        match answers {
            (Swapped::Applied(engine), Swapped::Applied(memory)) => self.agree(Some(&engine), Some(&memory)),
            (Swapped::Lost(engine), Swapped::Lost(memory)) => self.agree(engine.as_ref(), memory.as_ref()),
            (engine, memory) => panic!("the engine says {engine:?}, memory says {memory:?}"),
        }
    }

    async fn swap_both(&self, id: Id, change: Change) -> (Swapped, Swapped) {
        (swap(&self.engine, id, change.clone()).await, swap(&self.memory, id, change).await)
    }

    async fn load(&self, id: Id) {
        let (engine, memory) = (load(&self.engine, id).await, load(&self.memory, id).await);
        self.agree(engine.as_ref(), memory.as_ref());
    }

    async fn scan(&self, random: &mut Random) {
        let query = Query {
            states: random_states(random),
            scope: random.one_in(2).then(|| random.pick(&[[1; 32], [2; 32]])),
            dead_letter: random.one_in(6),
            search: random.one_in(3).then(|| self.search(random)),
            order: random.pick(&[Order::Any, Order::Due, Order::UnknownSince, Order::PendingSince]),
            ..everything(usize::try_from(random.below(IDS) + 1).expect("small"))
        };
        let (engine, memory) =
            (list(&self.engine, query.clone()).await, list(&self.memory, query.clone()).await);
        let [engine, memory] = [engine, memory].map(|records| {
            let ours = records.into_iter().filter(|(_, seen)| *seen.record.scope.digest() != CLOCK_SCOPE);
            let mut ours: Vec<_> = ours.collect();
            // Other orders are the engine's own, or use moments that differ between two clocks.
            if query.order != Order::Due {
                ours.sort_unstable_by_key(|(id, _)| *id);
            }
            ours
        });
        let [engine_ids, memory_ids] = [&engine, &memory].map(|records| super::world::ids(records));
        assert_eq!(engine_ids, memory_ids, "engine and memory, asked for {query:?}");
        for ((_, engine), (_, memory)) in engine.iter().zip(&memory) {
            self.agree(Some(engine), Some(memory));
        }
    }

    /// A key or the beginning of an id or a scope, or of none.
    fn search(&self, random: &mut Random) -> Search {
        let (id, in_scope, key) = random.pick(&self.ids);
        let digits = usize::try_from(7 + random.below(58)).expect("small");
        let hex = random.pick(&[id.to_string(), scope(in_scope).to_string()]);
        let text = random.pick(&[key.as_str(), "ke", "key", &hex[..digits]]).to_owned();
        Search::new(text)
    }

    /// What is erased is counted with what the engine has archived, so only what is left is compared.
    async fn erase(&self, scope: [u8; 32]) {
        for store in [&self.engine, &self.memory] {
            while store.erase(scope, 3).await.expect("an answer") > 0 {}
        }
        for (id, ..) in &self.ids {
            self.load(*id).await;
        }
    }

    /// Writes every record as completed an hour ago.
    async fn expire_all(&mut self, random: &mut Random) {
        for (id, in_scope, key) in self.ids.clone() {
            let mut next = self.draft(in_scope, &key, random);
            (next.evidence, next.accepted) = (None, None);
            let expires_at = When::At(before(self.base, HOUR));
            next.state = State::Completed { response: None, by: Source::Attempt, expires_at };
            let expected = load(&self.memory, id).await.map(|seen| seen.revision);
            let change = change(expected, next.clone());
            self.written.insert(change.revision, next);
            let (engine, memory) = self.swap_both(id, change).await;
            assert!(matches!((engine, memory), (Swapped::Applied(_), Swapped::Applied(_))));
        }
    }

    async fn reap(&self) {
        let (engine, memory) = (self.engine.reap(1_000).await, self.memory.reap(1_000).await);
        assert_eq!(
            engine.expect("an answer"),
            memory.expect("an answer"),
            "reaped by the engine and by memory"
        );
    }

    fn agree(&self, engine: Option<&Seen>, memory: Option<&Seen>) {
        let revision = |seen: &Seen| seen.revision;
        assert_eq!(engine.map(revision), memory.map(revision), "engine and memory");
        for seen in engine.into_iter().chain(memory) {
            let written = self.written[&seen.revision].clone();
            assert_eq!(*seen.record, written.stamp(seen.record.written_at));
            assert!(seen.now >= seen.record.written_at);
        }
    }

    /// A random record, except for what decides when it is due.
    fn draft(&self, in_scope: u8, key: &Key, random: &mut Random) -> Box<Draft> {
        let mut draft = random.draft();
        (draft.scope, draft.key) = (scope(in_scope), key.clone());
        draft.terms = super::world::terms();
        (draft.created_at, draft.began_at) = (When::WRITE, When::WRITE);
        match &mut draft.state {
            State::Pending { expires_at: moment }
            | State::Running { lapses_at: moment }
            | State::Completed { expires_at: moment, .. }
            | State::Retryable { expires_at: moment, .. }
            | State::Unknown { ask_at: Some(moment), .. } => *moment = self.far(random),
            State::Unknown { ask_at: None, .. } => {}
        }
        draft
    }

    /// An hour ago, a few at the very same moment; or in an hour.
    fn far(&self, random: &mut Random) -> When {
        match random.below(4) {
            0 => When::AfterWrite(HOUR),
            1 => When::At(self.base.plus(HOUR)),
            _ => When::At(before(self.base, HOUR + Duration::from_micros(random.below(4)))),
        }
    }
}
