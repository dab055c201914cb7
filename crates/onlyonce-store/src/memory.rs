//! Records in this process: the reference engine.
//!
//! The other engines are compared with it; tests and demonstrations run on it. Nothing survives the process, so "durable"
//! here means: as long as the process lives.
//!
//! 1. Rows are sharded by the first bits of their id, so that two keys rarely contend for a lock. Shards are in id order,
//!    so a listing reads them one by one.
//! 2. A row is the record itself behind an `Arc`: nothing is encoded, and a read copies one pointer.
//! 3. Each shard has an index by due time ([`Order::Due`] and `reap` read nothing else). Writes update it in batches, at
//!    the latest before it is read.
//! 4. Messages and audit entries are stored under the same lock as their record: both are there, or neither.
//!
//! **Lock order**: a shard, then the outbox, then the audit log. Nothing locks two shards at once, and nothing locks a shard
//! while it holds one of those. The clock is read under the lock that guards what is stamped, so the stamps of a row never go backwards.
//!
//! A listing is not a snapshot: it reads shard after shard, and may or may not show what changes meanwhile.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use std::time::Duration;
//!
//! use onlyonce_core::record::Id;
//! use onlyonce_store::Store;
//! use onlyonce_store::clock::ManualClock;
//! use onlyonce_store::memory::Memory;
//!
//! let clock = ManualClock::new();
//! let store = Memory::with_clock(clock.clone());
//! assert_eq!(store.load(Id([7; 32])).await.unwrap(), None);
//! clock.advance(Duration::from_secs(30)); // every lease of 30 s has lapsed now
//! # });
//! ```

mod audit;
mod due;
mod outbox;

use std::array;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_core::machine;
use onlyonce_core::record::{Draft, Id, Record, Revision, Seen, StateName, Token};
use onlyonce_core::time::Timestamp;

use self::due::{Due, Position};
use self::outbox::Messages;
use crate::accepted::Request;
use crate::clock::{Clock, SystemClock};
use crate::hash::ById;
use crate::listing::{self, Place};
use crate::outbox::{Census, Changed, Claimed, Claims, Item, Outbox, Payload, Settled, Wanted};
use crate::promises::{self, Expiry, Listing, Promises, Survives};
use crate::result::{PhaseResult, Results};
use crate::{Alive, Audit, Change, Count, Epoch, EpochSeen, Error, Order, Page, Query, Store, Swapped};

/// A power of two: a shard is chosen by the first bits of an id. With 256, the due index was seldom in the CPU cache.
const SHARDS: usize = 64;

/// The reference engine; see the module's documentation.
pub struct Memory {
    clock: Box<dyn Clock>,
    shards: [Mutex<Shard>; SHARDS],
    messages: Mutex<Messages>,
    log: Mutex<audit::Log>,
    epoch: Mutex<Epoch>,
    name: [u8; 16],
}

/// The rows whose ids begin with the same bits.
///
/// A hash table and not a tree: with many rows, few nodes of a tree are in the CPU cache, and every request comes here
/// twice. A listing pays for it: it sorts the rows of each shard that it reads.
#[derive(Default)]
struct Shard {
    rows: Rows,
    due: Due,
}

type Rows = HashMap<Id, Row, ById>;

struct Row {
    record: Arc<Record>,
    revision: Revision,
    due_at: Option<Timestamp>,
    position: Position,
    results: Vec<PhaseResult>,
    request: Option<Bytes>,
}

impl Memory {
    /// An empty store that uses the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::new())
    }

    /// An empty store that uses this clock.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self {
            clock: Box::new(clock),
            shards: array::from_fn(|_| Mutex::default()),
            messages: Mutex::default(),
            log: Mutex::default(),
            epoch: Mutex::default(),
            name: random_name(),
        }
    }

    fn shard(&self, id: Id) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(id)])
    }

    /// The swap, and the row that it replaced, so that the caller drops it after the lock.
    fn write(&self, id: Id, change: Change) -> (Swapped, Option<Row>) {
        let mut shard = self.shard(id);
        let now = self.clock.now();
        let Shard { rows, due } = &mut *shard;
        let entry = rows.entry(id);
        let current = match &entry {
            Entry::Occupied(current) => Some(current.get()),
            Entry::Vacant(_) => None,
        };
        if current.map(|row| row.revision) != change.expected {
            return (Swapped::Lost(current.map(|row| row.seen(now))), None);
        }
        let position = current.map_or(Position::NONE, |row| row.position);
        let results = results_after(current, change.with.results);
        let request = match change.with.request {
            Request::Keep => current.and_then(|row| row.request.clone()),
            Request::Drop => None,
            Request::Put(request) => Some(request),
        };
        if !change.with.messages.is_empty() {
            lock(&self.messages).store(id, change.with.messages, now);
        }
        if let Some(entry) = change.with.audit {
            lock(&self.log).write(entry, now);
        }
        let mut row = Row { results, request, ..Row::new(*change.next, change.revision, now, position) };
        due.note(id, &mut row);
        let swapped = Swapped::Applied(row.seen(now));
        let old = put(entry, row);
        if due.is_full() {
            due.arrange(rows);
        }
        (swapped, old)
    }

    /// Shards are in id order, so a listing continues in the shard of the cursor's id.
    fn list_by_id(&self, query: &Query, after: Option<Place>) -> Vec<Found> {
        let after = after.map(|place| place.id);
        let mut found = Vec::new();
        for shard in &self.shards[after.map_or(0, shard_of)..] {
            let wanted = query.one_more() - found.len();
            if wanted == 0 {
                break;
            }
            let shard = lock(shard);
            let now = self.clock.now();
            let rows = shard.rows.iter().filter(|(id, row)| Some(**id) > after && query.covers(&row.record));
            let mut rows: Vec<_> = rows.collect();
            rows.sort_unstable_by_key(|(id, _)| **id);
            found.extend(rows.into_iter().take(wanted).map(|(id, row)| row.found(*id, ALIKE, now)));
        }
        found
    }

    fn list_due(&self, query: &Query, after: Place) -> Vec<Found> {
        // One `now` for all shards: a record that becomes due during the listing must not move the cursor past shards
        // already read.
        let until = self.clock.now();
        let mut found = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let now = self.clock.now();
            let Shard { rows, due } = &mut *shard;
            due.arrange(rows);
            let due = due.after(Bound::Excluded((after.at, after.id)));
            let due =
                due.take_while(|(due_at, _)| *due_at <= until).map(|&(due_at, id)| (due_at, id, &rows[&id]));
            let covered = due.filter(|(.., row)| query.covers(&row.record));
            found.extend(covered.take(query.one_more()).map(|(due_at, id, row)| row.found(id, due_at, now)));
        }
        first_of(found, query)
    }

    /// Reads every row: a store that is lost with its process never has many unknown or pending records.
    fn list_since(&self, query: &Query, after: Place, since: fn(&Record) -> Option<Timestamp>) -> Vec<Found> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let now = self.clock.now();
            for (id, row) in &shard.rows {
                let Some(since) = since(&row.record) else { continue };
                if (Place { at: since, id: *id }) > after && query.covers(&row.record) {
                    found.push(row.found(*id, since, now));
                }
            }
        }
        first_of(found, query)
    }
}

/// A listed record and its place in the listing.
type Found = (Place, (Id, Seen));

/// The moment in the places of a listing by id: the same for all.
const ALIKE: Timestamp = Timestamp::from_micros(0);

fn first_of(mut found: Vec<Found>, query: &Query) -> Vec<Found> {
    found.sort_unstable_by_key(|(place, _)| *place);
    found.truncate(query.one_more());
    found
}

impl Shard {
    /// Removes up to `limit` rows that may be deleted, each judged as it is now.
    fn reap(&mut self, limit: usize, now: Timestamp) -> Vec<Row> {
        let Self { rows, due } = self;
        due.arrange(rows);
        let entries = due.after(Bound::Unbounded).take_while(|(due_at, _)| *due_at <= now);
        let expired = entries.filter(|(_, id)| machine::may_reap(&rows[id].record, now));
        let expired: Vec<_> = expired.take(limit).copied().collect();
        expired.into_iter().filter_map(|entry| self.remove(entry)).collect()
    }

    /// Removes up to `limit` rows of a scope that may be deleted, each judged as it is now.
    fn erase(&mut self, scope: [u8; 32], limit: usize, now: Timestamp) -> Vec<Row> {
        let Self { rows, due } = self;
        due.arrange(rows);
        let expired = rows
            .iter()
            .filter(|(_, row)| *row.record.scope.digest() == scope && machine::may_reap(&row.record, now));
        let entries: Vec<_> = expired.take(limit).filter_map(|(id, row)| Some((row.due_at?, *id))).collect();
        entries.into_iter().filter_map(|entry| self.remove(entry)).collect()
    }

    fn remove(&mut self, entry: (Timestamp, Id)) -> Option<Row> {
        self.due.remove(&entry);
        self.rows.remove(&entry.1)
    }
}

impl Row {
    fn new(draft: Draft, revision: Revision, now: Timestamp, position: Position) -> Self {
        let due_at = draft.due().stamp(now);
        let record = Arc::new(draft.stamp(now));
        Self { record, revision, due_at, position, results: Vec::new(), request: None }
    }

    fn found(&self, id: Id, at: Timestamp, now: Timestamp) -> Found {
        (Place { at, id }, (id, self.seen(now)))
    }

    fn seen(&self, now: Timestamp) -> Seen {
        Seen { record: self.record.clone(), revision: self.revision, now }
    }
}

#[async_trait]
impl Store for Memory {
    async fn prepare(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let shard = self.shard(id);
        let now = self.clock.now();
        Ok(shard.rows.get(&id).map(|row| row.seen(now)))
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        let (swapped, _old) = self.write(id, change);
        Ok(swapped)
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        let after = Place::of(&query)?;
        let found = match query.order {
            Order::Any => self.list_by_id(&query, after),
            Order::Due => self.list_due(&query, Place::or_start(after)),
            Order::UnknownSince => self.list_since(&query, Place::or_start(after), machine::unknown_since),
            Order::PendingSince => self.list_since(&query, Place::or_start(after), machine::pending_since),
            // Nothing is archived here.
            Order::Archived => Vec::new(),
        };
        let (records, next) = listing::Found::all(found).page(query.limit);
        Ok(Page { records, unreadable: Vec::new(), next })
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        let mut reaped = 0;
        for shard in &self.shards {
            // The rows are dropped after the lock: freeing a body takes longer than unlinking it.
            let rows = lock(shard).reap(limit - reaped, self.clock.now());
            reaped += rows.len();
            if reaped == limit {
                break;
            }
        }
        Ok(reaped)
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        let mut erased = 0;
        for shard in &self.shards {
            let rows = lock(shard).erase(scope, limit - erased, self.clock.now());
            erased += rows.len();
        }
        if erased < limit {
            lock(&self.log).erase(scope);
        }
        Ok(erased)
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        let mut counts = StateName::ALL.map(|state| (state, 0_u64));
        for shard in &self.shards {
            for row in lock(shard).rows.values() {
                counts[row.record.state.name() as usize].1 += 1;
            }
        }
        Ok(counts.into_iter().map(|(state, count)| (state, Count::Exact(count))).collect())
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        let (mut count, mut next_expiry) = (0, None);
        for shard in &self.shards {
            let shard = lock(shard);
            let now = self.clock.now();
            for row in shard.rows.values() {
                if scope.is_some_and(|scope| *row.record.scope.digest() != scope) {
                    continue;
                }
                let left = machine::facts(&row.record).expires_at.map(|expires_at| expires_at.since(now));
                if left == Some(Duration::ZERO) {
                    continue;
                }
                count += 1;
                next_expiry = next_expiry.into_iter().chain(left).min();
            }
        }
        Ok(Alive { count: count.min(limit), next_expiry: next_expiry.filter(|_| scope.is_some()) })
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        Ok(EpochSeen { epoch: *lock(&self.epoch), now: self.clock.now(), store: self.name })
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        let mut epoch = lock(&self.epoch);
        *epoch = epoch.after(self.clock.now());
        Ok(())
    }

    async fn results(&self, id: Id, used_at: Timestamp) -> Result<Vec<PhaseResult>, Error> {
        let shard = self.shard(id);
        let row = shard.rows.get(&id).filter(|row| row.record.created_at == used_at);
        Ok(row.map_or_else(Vec::new, |row| row.results.clone()))
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error> {
        let shard = self.shard(id);
        let row = shard.rows.get(&id).filter(|row| row.record.created_at == used_at);
        Ok(row.and_then(|row| row.request.clone()))
    }

    /// Reads every row: a store that is lost with its process never has much accepted work.
    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        let stored =
            |shard: &Mutex<Shard>| lock(shard).rows.values().filter(|row| row.request.is_some()).count();
        Ok(self.shards.iter().map(stored).sum::<usize>().min(limit))
    }

    fn promises(&self) -> Promises {
        Promises {
            clock: promises::Clock::One,
            survives: Survives::Nothing,
            listing: Listing::Immediate,
            expiry: Expiry::Ours,
            transactions: false,
            shared: false,
            encrypts: true,
        }
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        Some(self)
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

#[async_trait]
impl Audit for Memory {
    async fn write(&self, entry: crate::audit::Entry) -> Result<(), Error> {
        let mut log = lock(&self.log);
        let now = self.clock.now();
        log.write(entry, now);
        Ok(())
    }

    async fn list(&self, query: crate::audit::Query) -> Result<crate::audit::Page, Error> {
        lock(&self.log).list(&query)
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        Ok(lock(&self.log).reap(age, limit, self.clock.now()))
    }
}

#[async_trait]
impl Outbox for Memory {
    async fn claim(&self, token: Token, wanted: &[Wanted]) -> Result<Claims, Error> {
        let mut messages = lock(&self.messages);
        let now = self.clock.now();
        Ok(messages.claim(token, wanted, now))
    }

    async fn settle(&self, claimed: &Claimed, settled: Settled) -> Result<bool, Error> {
        let mut messages = lock(&self.messages);
        let now = self.clock.now();
        Ok(messages.settle(claimed, settled, now))
    }

    /// Nothing is held here: each claim judges by what it is told.
    async fn pass_dead(&self, _destination: &str) -> Result<(), Error> {
        Ok(())
    }

    async fn list(&self, query: crate::outbox::Query) -> Result<crate::outbox::Page, Error> {
        lock(&self.messages).list(&query)
    }

    async fn item(&self, number: u64) -> Result<Option<Item>, Error> {
        Ok(lock(&self.messages).item(number))
    }

    async fn payload(&self, number: u64) -> Result<Option<Payload>, Error> {
        Ok(lock(&self.messages).payload(number))
    }

    async fn redrive(&self, number: u64, entry: crate::audit::Entry) -> Result<Changed, Error> {
        self.change_message(entry, |messages, now| messages.redrive(number, now))
    }

    async fn discard(&self, number: u64, entry: crate::audit::Entry) -> Result<Changed, Error> {
        self.change_message(entry, |messages, now| messages.discard(number, now))
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        let mut messages = lock(&self.messages);
        let now = self.clock.now();
        Ok(messages.prune(age, limit, now))
    }

    async fn census(&self) -> Result<Census, Error> {
        let messages = lock(&self.messages);
        let now = self.clock.now();
        Ok(messages.census(now))
    }
}

impl Memory {
    /// A change to a message, and its entry under the same lock.
    fn change_message(
        &self,
        entry: crate::audit::Entry,
        change: impl FnOnce(&mut Messages, Timestamp) -> Changed,
    ) -> Result<Changed, Error> {
        let mut messages = lock(&self.messages);
        let now = self.clock.now();
        let changed = change(&mut messages, now);
        if changed == Changed::Applied {
            lock(&self.log).write(entry, now);
        }
        Ok(changed)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the rows: they are client data, and long.
        f.debug_struct("Memory").field("clock", &self.clock).finish_non_exhaustive()
    }
}

fn results_after(row: Option<&Row>, change: Results) -> Vec<PhaseResult> {
    let results = row.map_or_else(Vec::new, |row| row.results.clone());
    match change {
        Results::Keep => results,
        Results::Drop => Vec::new(),
        Results::Add(added) => {
            let mut results: Vec<_> =
                results.into_iter().filter(|result| result.number != added.number).collect();
            results.push(added);
            results.sort_by_key(|result| result.number);
            results
        }
    }
}

/// By the first bits, so that shards are in id order.
fn shard_of(id: Id) -> usize {
    usize::from(id.0[0]) * SHARDS / 256
}

fn put(entry: Entry<'_, Id, Row>, row: Row) -> Option<Row> {
    match entry {
        Entry::Occupied(mut current) => Some(current.insert(row)),
        Entry::Vacant(absent) => {
            absent.insert(row);
            None
        }
    }
}

/// 128 random bits: unique among all stores of all processes.
pub(crate) fn random_name() -> [u8; 16] {
    let random = RandomState::new();
    let [high, low] = [0_u8, 1].map(|half| random.hash_one(half).to_be_bytes());
    let mut name = [0; 16];
    name[..8].copy_from_slice(&high);
    name[8..].copy_from_slice(&low);
    name
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds a part of the store")
}

#[cfg(test)]
mod tests {
    use onlyonce_core::machine::{Admission, Decision, Request, decide};
    use onlyonce_core::policy::Policy;

    use super::*;
    use crate::clock::ManualClock;

    fn reservation() -> (Id, Box<Draft>) {
        use onlyonce_core::{fingerprint::Fingerprint, key::Key, scope::Scope};
        let (scope, key) = (Scope::stored([1; 32], None), Key::stored("k"));
        let request = Request {
            scope: &scope,
            key: &key,
            route: None,
            fingerprint: &Fingerprint { version: 1, raw: [2; 32], canonical: None },
            policy: &Policy::default(),
            token: Token([3; 16]),
            admission: Admission::Run,
            trace: None,
        };
        let Decision::Begin(draft) = decide(None, &request) else { panic!("an absent key runs") };
        (Id::of(&scope, &key), draft)
    }

    fn insert(revision: u64, next: Box<Draft>) -> Change {
        Change::new(None, Revision(revision), next)
    }

    /// The due times of the rows in this id's shard, as a listing sees them.
    fn due(store: &Memory, id: Id) -> Vec<Timestamp> {
        let mut shard = store.shard(id);
        let Shard { rows, due } = &mut *shard;
        due.arrange(rows);
        due.after(Bound::Unbounded).map(|(due_at, _)| *due_at).collect()
    }

    /// E06
    #[tokio::test]
    async fn the_due_index_follows_every_write_and_reap() {
        let clock = ManualClock::new();
        let store = Memory::with_clock(clock.clone());
        let (id, draft) = reservation();
        store.swap(id, insert(1, draft)).await.unwrap();
        assert_eq!(due(&store, id), [clock.now().plus(Policy::default().lease)]);
        let seen = store.load(id).await.unwrap().unwrap();
        let machine::Forget::Write(forgotten) = machine::forget(&seen, Token([4; 16]), machine::Force::Yes)
        else {
            panic!("it is forgotten")
        };
        let change = Change { expected: Some(Revision(1)), ..insert(2, forgotten) };
        store.swap(id, change).await.unwrap();
        assert_eq!(due(&store, id), [clock.now()]);
        assert_eq!(Store::reap(&store, 9).await.unwrap(), 1);
        assert!(due(&store, id).is_empty() && store.shard(id).rows.is_empty());
    }

    /// E06
    #[tokio::test]
    async fn a_row_that_moves_before_it_is_put_in_order_is_due_once() {
        let clock = ManualClock::new();
        let store = Memory::with_clock(clock.clone());
        let (first, draft) = reservation();
        store.swap(first, insert(1, draft.clone())).await.unwrap();
        // More rows than `NOTED_MAX`, all in one shard, so that writes themselves update the index.
        let ids = (0..200_u8).map(|last| Id([&first.0[..31], &[last]].concat().try_into().unwrap()));
        let others: Vec<_> = ids.filter(|id| *id != first).collect();
        for id in &others {
            store.swap(*id, insert(2, draft.clone())).await.unwrap();
            clock.advance(Duration::from_millis(1));
            let seen = store.load(*id).await.unwrap().unwrap();
            let machine::Renewal::Write(renewed) = machine::renew(Some(&seen), Token([3; 16])) else {
                panic!("an attempt that runs may renew")
            };
            let change = Change { expected: Some(Revision(2)), ..insert(3, renewed) };
            store.swap(*id, change).await.unwrap();
        }
        let due = due(&store, first);
        assert_eq!(due.len(), 1 + others.len());
        assert!(due.is_sorted());
        assert_eq!(due.last(), Some(&clock.now().plus(Policy::default().lease)));
    }
}
