//! The rules of batching, without threads or futures.
//!
//! ```text
//!   push ──► ready ──take──► in flight ──end──► (gone)
//!     │        ▲                            │
//!     └► behind their id ◄──────────────────┘ the next write of the same id becomes ready
//! ```

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use onlyonce_core::record::Id;

use super::Limits;
use crate::hash::ById;

/// A batch costs the store about as much as this many rows.
const ROWS_WORTH: usize = 8;

/// A batch that takes longer than `PROMPT` plus `PROMPT_A_ROW` per row mostly waited for a disk, a standby or a busy machine.
/// Neither way of sending the next batch is right for both: on a busy machine the one for prompt batches did 0.5 to 0.7 of
/// the requests, on a quiet one the other does 0.8.
const PROMPT: Duration = Duration::from_millis(1);
const PROMPT_A_ROW: Duration = Duration::from_micros(25);
/// The pace is a moving average over this many batches.
const PACE_BATCHES: f64 = 8.0;
/// Upper bound of one batch's share in the average: a single long wait is soon forgotten.
const PACE_MAX: f64 = 4.0;

/// The queued writes, and the ids that are ready or in flight.
pub(super) struct Queue<L> {
    limits: Limits,
    /// In the order they are sent. No id is here twice, and none that is in flight.
    ready: VecDeque<Entry<L>>,
    /// Every id that is ready or in flight, with the writes queued behind it.
    behind: HashMap<Id, VecDeque<Entry<L>>, ById>,
    in_flight: usize,
    /// Rows of writes. Reads are cheap and not counted.
    rows_in_flight: usize,
    /// When the store last answered a batch.
    answered_at: Option<Instant>,
    /// Average time of a batch, in units of the prompt time: below one is prompt.
    pace: f64,
}

struct Entry<L> {
    /// `None`: no order.
    id: Option<Id>,
    bytes: usize,
    load: L,
}

/// Entries that are sent together.
pub(super) struct Batch<L> {
    /// Ids that are taken until the batch has ended.
    pub(super) ids: Vec<Id>,
    pub(super) loads: Vec<L>,
}

impl<L> Queue<L> {
    /// A limit of zero, with which nothing would ever be sent, counts as one.
    pub(super) fn new(limits: Limits) -> Self {
        let limits = Limits {
            rows_max: limits.rows_max.max(1),
            in_flight_max: limits.in_flight_max.max(1),
            bytes_max: limits.bytes_max,
        };
        Self {
            limits,
            ready: VecDeque::new(),
            behind: HashMap::default(),
            in_flight: 0,
            rows_in_flight: 0,
            answered_at: None,
            pace: PACE_MAX,
        }
    }

    #[cfg(any(feature = "mysql", feature = "postgres", test))]
    pub(super) fn push(&mut self, id: Id, bytes: usize, load: L) {
        let entry = Entry { id: Some(id), bytes, load };
        match self.behind.get_mut(&id) {
            Some(behind) => behind.push_back(entry),
            None => {
                self.behind.insert(id, VecDeque::new());
                self.ready.push_back(entry);
            }
        }
    }

    /// Queues an entry without an order: it waits only for a slot.
    #[cfg(any(feature = "postgres", feature = "redis", test))]
    pub(super) fn push_free(&mut self, bytes: usize, load: L) {
        self.ready.push_back(Entry { id: None, bytes, load });
    }

    /// Takes batches while there are queued entries and free slots.
    pub(super) fn take_all(&mut self) -> Vec<Batch<L>> {
        std::iter::from_fn(|| self.take()).collect()
    }

    fn take(&mut self) -> Option<Batch<L>> {
        if !self.may_send() {
            return None;
        }
        self.in_flight += 1;
        let rows = self.ready.len().min(self.limits.rows_max);
        let mut batch = Batch { ids: Vec::with_capacity(rows), loads: Vec::with_capacity(rows) };
        let mut bytes = 0_usize;
        while let Some(entry) = self.ready.pop_front_if(|next| {
            let fits = batch.loads.len() < self.limits.rows_max
                && bytes.saturating_add(next.bytes) <= self.limits.bytes_max;
            fits || batch.loads.is_empty()
        }) {
            bytes = bytes.saturating_add(entry.bytes);
            batch.ids.extend(entry.id);
            batch.loads.push(entry.load);
        }
        self.rows_in_flight += batch.ids.len();
        Some(batch)
    }

    /// Whether a slot is free and enough entries wait. Beside a batch in flight, "enough" is as many rows as it has (a batch
    /// has a fixed cost), or twice as many if batches are slow, so that more writes share a flush. Beside a lone write, one
    /// is enough: with few callers, none waits for another.
    fn may_send(&self) -> bool {
        let enough = match self.rows_in_flight {
            0 | 1 => 1,
            rows if self.pace < 1.0 => rows,
            rows => rows * 2,
        };
        self.in_flight < self.limits.in_flight_max && self.ready.len() >= enough.min(self.limits.rows_max)
    }

    /// The store has answered a batch of `rows` rows. True if the next batch is sent before the callers are answered, so that
    /// the store has work meanwhile. If few entries wait, or the batch was slow, callers are answered first: their next
    /// writes can join.
    pub(super) fn answered(&mut self, rows: usize, sent_at: Instant, now: Instant) -> bool {
        if rows <= 1 {
            return true;
        }
        // A batch sent behind another one first waited for that one.
        let began_at = self.answered_at.map_or(sent_at, |before| before.max(sent_at));
        self.answered_at = Some(now);
        let prompt =
            PROMPT.saturating_add(PROMPT_A_ROW.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX)));
        let took = now.saturating_duration_since(began_at).div_duration_f64(prompt);
        self.pace += (took.min(PACE_MAX) - self.pace) / PACE_BATCHES;
        took < 1.0 && self.ready.len() >= ROWS_WORTH
    }

    /// A batch has ended: the next write of each of its ids becomes ready.
    pub(super) fn end(&mut self, ids: &[Id]) {
        self.in_flight -= 1;
        self.rows_in_flight -= ids.len();
        for id in ids {
            let behind = self.behind.get_mut(id).expect("every id in flight has an entry in `behind`");
            match behind.pop_front() {
                Some(next) => self.ready.push_back(next),
                None => drop(self.behind.remove(id)),
            }
        }
    }

    /// A batch was dropped while in flight. If it was the last, all queued entries are returned: nothing would send them.
    pub(super) fn abandon(&mut self, ids: &[Id]) -> Vec<L> {
        self.end(ids);
        if self.in_flight > 0 {
            return Vec::new();
        }
        let behind = self.behind.drain().flat_map(|(_, behind)| behind);
        self.ready.drain(..).chain(behind).map(|entry| entry.load).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { rows_max: 100, bytes_max: 1_000, in_flight_max: 2 };

    fn id(number: u8) -> Id {
        Id([number; 32])
    }

    /// The batches that are sent as these are submitted one by one.
    fn sent(queue: &mut Queue<u8>, numbers: impl IntoIterator<Item = u8>) -> Vec<Vec<u8>> {
        let mut batches = Vec::new();
        for number in numbers {
            queue.push(id(number), 1, number);
            batches.extend(queue.take_all().into_iter().map(|batch| batch.loads));
        }
        batches
    }

    fn ended(queue: &mut Queue<u8>, numbers: &[u8]) -> Vec<Vec<u8>> {
        let ids: Vec<Id> = numbers.iter().map(|number| id(*number)).collect();
        queue.end(&ids);
        queue.take_all().into_iter().map(|batch| batch.loads).collect()
    }

    /// E07
    #[test]
    fn a_lone_write_goes_at_once_and_those_that_come_meanwhile_go_together() {
        let mut queue = Queue::new(Limits { in_flight_max: 1, ..LIMITS });
        assert_eq!(sent(&mut queue, 0..=10), [vec![0]], "one slot");
        assert_eq!(ended(&mut queue, &[0]), [(1..=10).collect::<Vec<_>>()]);
    }

    /// E07
    #[test]
    fn beside_a_lone_write_another_goes_at_once() {
        let mut queue = Queue::new(LIMITS);
        assert_eq!(sent(&mut queue, 1..=5), [[1], [2]], "two slots");
        assert_eq!(ended(&mut queue, &[1]), [[3, 4, 5]], "they waited for a slot");
        assert_eq!(ended(&mut queue, &[2]), Vec::<Vec<u8>>::new());
    }

    /// E07
    #[test]
    fn a_batch_is_bounded_in_rows_and_bytes_and_a_large_row_goes_alone() {
        let mut queue = Queue::new(Limits { rows_max: 3, in_flight_max: 1, ..LIMITS });
        assert_eq!(sent(&mut queue, [0]), [[0]]);
        for (number, bytes) in [(1, 1), (2, 1), (3, 1), (4, 600), (5, 600), (6, 5_000), (7, 1)] {
            queue.push(id(number), bytes, number);
        }
        let mut in_flight = vec![0];
        for expected in [vec![1, 2, 3], vec![4], vec![5], vec![6], vec![7]] {
            assert_eq!(ended(&mut queue, &in_flight), std::slice::from_ref(&expected));
            in_flight = expected;
        }
    }

    /// E07
    #[test]
    fn writes_of_one_id_go_one_batch_after_the_other_and_reads_together() {
        let mut queue = Queue::new(Limits { in_flight_max: 3, ..LIMITS });
        for number in 0..3 {
            queue.push(id(7), 1, number);
        }
        assert_eq!(queue.take_all().len(), 1, "slots are free, but the id is taken");
        for number in [1, 2] {
            assert_eq!(ended(&mut queue, &[7]), [[number]]);
        }
        assert_eq!(ended(&mut queue, &[7]), Vec::<Vec<u8>>::new());
        let mut reads = Queue::new(Limits { in_flight_max: 1, ..LIMITS });
        reads.push_free(1, 5);
        assert_eq!(reads.take_all()[0].loads, [5]);
        for _ in 0..3 {
            reads.push_free(1, 5);
        }
        reads.end(&[]);
        assert_eq!(reads.take_all()[0].loads, [5, 5, 5]);
    }

    /// X05
    #[test]
    fn queued_writes_are_dropped_with_the_last_batch_and_not_before() {
        let mut queue = Queue::new(LIMITS);
        assert_eq!(sent(&mut queue, 1..=4), [[1], [2]]);
        queue.push(id(1), 1, 9);
        assert_eq!(queue.abandon(&[id(1)]), Vec::<u8>::new(), "the other batch sends them");
        let mut dropped = queue.abandon(&[id(2)]);
        dropped.sort_unstable();
        assert_eq!(dropped, [3, 4, 9]);
        assert_eq!(sent(&mut queue, [5]), [[5]], "the queue is as new");
    }
}
