//! What goes when: the rules of batching, without a thread or a future in sight.
//!
//! ```text
//!   push ──► ready ──take──► under way ──end──► (gone)
//!     │        ▲                            │
//!     └► behind their id ◄──────────────────┘ the next of the same id becomes ready
//! ```

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use onlyonce_core::record::Id;

use super::Limits;
use crate::hash::ById;

/// So many rows are worth a batch: a batch costs the store about as much as they do.
const ROWS_WORTH: usize = 8;

/// What takes longer than this, and this for each of its rows, has waited for a disk, a standby or a busy machine.
const PROMPT: Duration = Duration::from_millis(1);
const PROMPT_A_ROW: Duration = Duration::from_micros(25);
/// How long batches take is the mean of about so many.
const MEAN_OF: f64 = 8.0;
/// What one batch counts for at most: one that waited for long is soon forgotten.
const SLOW_MAX: f64 = 4.0;

/// Writes that wait, and the ids that are taken.
pub(super) struct Queue<L> {
    limits: Limits,
    /// In the order they go. No id is here twice, and none that is under way.
    ready: VecDeque<Entry<L>>,
    /// Every id that is ready or under way, with the writes that came after it.
    behind: HashMap<Id, VecDeque<Entry<L>>, ById>,
    in_flight: usize,
    /// Of what has an order: what has none is cheap to ask.
    rows_in_flight: usize,
    /// When the store answered a batch the last time.
    answered_at: Option<Instant>,
    /// How long batches take, in the mean of the last few; those that are prompt take less than one.
    slowness: f64,
}

struct Entry<L> {
    /// None: it has no order among others.
    id: Option<Id>,
    bytes: usize,
    load: L,
}

/// What goes together.
pub(super) struct Batch<L> {
    /// Those that are taken until it has ended.
    pub(super) ids: Vec<Id>,
    pub(super) loads: Vec<L>,
}

impl<L> Queue<L> {
    /// Limits of zero would let nothing go, ever: they are taken as one.
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
            slowness: SLOW_MAX,
        }
    }

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

    /// The same as [`Queue::push`] for what has no order: it waits for nothing but a place.
    pub(super) fn push_free(&mut self, bytes: usize, load: L) {
        self.ready.push_back(Entry { id: None, bytes, load });
    }

    /// Every batch that there is something for, and a place.
    pub(super) fn take_all(&mut self) -> Vec<Batch<L>> {
        std::iter::from_fn(|| self.take()).collect()
    }

    fn take(&mut self) -> Option<Batch<L>> {
        if !self.may_go() {
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

    /// There is a place, and something for it. Beside a batch under way goes only what is as large, or as large as it gets: a
    /// batch costs as much as many rows, and what waits for the end of one goes together. Where batches are slow, the more
    /// share the next the better: only what is twice as large goes. Beside a lone write another goes at once: where there
    /// are few callers, none waits for the others.
    fn may_go(&self) -> bool {
        let enough = match self.rows_in_flight {
            0 | 1 => 1,
            rows if self.slowness < 1.0 => rows,
            rows => rows * 2,
        };
        self.in_flight < self.limits.in_flight_max && self.ready.len() >= enough.min(self.limits.rows_max)
    }

    /// The store has answered a batch of so many rows. True where what waits goes before its callers are told, so that the
    /// store is at work meanwhile. Where few wait, or the batch was slow, they are told first and may come along.
    pub(super) fn answered(&mut self, rows: usize, sent_at: Instant, now: Instant) -> bool {
        if rows <= 1 {
            return true;
        }
        // What was sent behind another had to wait for that one first.
        let began_at = self.answered_at.map_or(sent_at, |before| before.max(sent_at));
        self.answered_at = Some(now);
        let prompt =
            PROMPT.saturating_add(PROMPT_A_ROW.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX)));
        let took = now.saturating_duration_since(began_at).div_duration_f64(prompt);
        self.slowness += (took.min(SLOW_MAX) - self.slowness) / MEAN_OF;
        took < 1.0 && self.ready.len() >= ROWS_WORTH
    }

    /// A batch has ended: the next write of each of its ids is ready.
    pub(super) fn end(&mut self, ids: &[Id]) {
        self.in_flight -= 1;
        self.rows_in_flight -= ids.len();
        for id in ids {
            let behind = self.behind.get_mut(id).expect("an id under way is taken");
            match behind.pop_front() {
                Some(next) => self.ready.push_back(next),
                None => drop(self.behind.remove(id)),
            }
        }
    }

    /// A batch was dropped under way. Where it was the last, what waits is given up with it: nobody would come for it.
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

    /// What goes when these are handed in, one after the other.
    fn taken(queue: &mut Queue<u8>, numbers: impl IntoIterator<Item = u8>) -> Vec<Vec<u8>> {
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
        assert_eq!(taken(&mut queue, 0..=10), [vec![0]], "one place");
        assert_eq!(ended(&mut queue, &[0]), [(1..=10).collect::<Vec<_>>()]);
    }

    /// E07
    #[test]
    fn beside_a_lone_write_another_goes_at_once() {
        let mut queue = Queue::new(LIMITS);
        assert_eq!(taken(&mut queue, 1..=5), [[1], [2]], "two places");
        assert_eq!(ended(&mut queue, &[1]), [[3, 4, 5]], "they waited for a place");
        assert_eq!(ended(&mut queue, &[2]), Vec::<Vec<u8>>::new());
    }

    const PROMPTLY: Duration = Duration::from_micros(500);
    const SLOWLY: Duration = Duration::from_millis(5);

    /// How much goes beside a batch of ten, after batches that took so long.
    fn beside_ten_after(spans: &[Duration]) -> usize {
        let mut queue = Queue::new(LIMITS);
        let mut now = Instant::now();
        for span in spans {
            now += *span;
            queue.answered(10, now - *span, now);
        }
        assert_eq!(taken(&mut queue, 100..112), [[100], [101]], "two lone writes, and no place");
        queue.end(&[id(100)]);
        queue.end(&[id(101)]);
        assert_eq!(queue.take_all()[0].ids.len(), 10);
        taken(&mut queue, 0..20)[0].len()
    }

    /// E07: where batches are slow as many as possible share the next.
    #[test]
    fn as_large_a_batch_goes_beside_another_only_while_batches_are_prompt() {
        assert_eq!(beside_ten_after(&[]), 20, "nothing is known yet");
        assert_eq!(beside_ten_after(&[PROMPTLY; 30]), 10);
        assert_eq!(beside_ten_after(&[SLOWLY; 30]), 20);
        assert_eq!(beside_ten_after(&[[PROMPTLY; 30], [SLOWLY; 30]].concat()), 20, "it has become slow");
        assert_eq!(beside_ten_after(&[[SLOWLY; 30], [PROMPTLY; 30]].concat()), 10, "and is prompt again");
        assert_eq!(
            beside_ten_after(&[&[PROMPTLY; 30][..], &[SLOWLY]].concat()),
            10,
            "one alone does not count"
        );
    }

    /// E07: after a prompt batch many that wait go before its callers are told; after a slow one, and where few wait, they are
    /// told first. What waits behind another on the same connection is not slow for that.
    #[test]
    fn many_that_wait_go_at_once_after_a_prompt_batch() {
        let mut queue = Queue::<u8>::new(LIMITS);
        let sent = Instant::now();
        let [first, second] = [sent + Duration::from_millis(1), sent + Duration::from_millis(2)];
        assert!(!queue.answered(10, sent, sent + PROMPTLY), "nobody waits");
        for number in 0..8 {
            queue.push_free(1, number);
        }
        assert!(queue.answered(10, sent, first));
        assert!(queue.answered(10, sent, second), "it took a millisecond, and waited for another");
        assert!(!queue.answered(10, second, second + SLOWLY));
    }

    /// E07
    #[test]
    fn a_batch_is_bounded_in_rows_and_bytes_and_a_large_row_goes_alone() {
        let mut queue = Queue::new(Limits { rows_max: 3, in_flight_max: 1, ..LIMITS });
        assert_eq!(taken(&mut queue, [0]), [[0]]);
        for (number, bytes) in [(1, 1), (2, 1), (3, 1), (4, 600), (5, 600), (6, 5_000), (7, 1)] {
            queue.push(id(number), bytes, number);
        }
        let mut under_way = vec![0];
        for expected in [vec![1, 2, 3], vec![4], vec![5], vec![6], vec![7]] {
            assert_eq!(ended(&mut queue, &under_way), std::slice::from_ref(&expected));
            under_way = expected;
        }
    }

    /// E07
    #[test]
    fn writes_of_one_id_go_one_batch_after_the_other_and_looks_together() {
        let mut queue = Queue::new(Limits { in_flight_max: 3, ..LIMITS });
        for number in 0..3 {
            queue.push(id(7), 1, number);
        }
        assert_eq!(queue.take_all().len(), 1, "places are free, but the id is taken");
        for number in [1, 2] {
            assert_eq!(ended(&mut queue, &[7]), [[number]]);
        }
        assert_eq!(ended(&mut queue, &[7]), Vec::<Vec<u8>>::new());
        let mut looks = Queue::new(Limits { in_flight_max: 1, ..LIMITS });
        looks.push_free(1, 5);
        assert_eq!(looks.take_all()[0].loads, [5]);
        for _ in 0..3 {
            looks.push_free(1, 5);
        }
        looks.end(&[]);
        assert_eq!(looks.take_all()[0].loads, [5, 5, 5]);
    }

    /// X05
    #[test]
    fn what_waits_is_given_up_with_the_last_batch_and_not_before() {
        let mut queue = Queue::new(LIMITS);
        assert_eq!(taken(&mut queue, 1..=4), [[1], [2]]);
        queue.push(id(1), 1, 9);
        assert_eq!(queue.abandon(&[id(1)]), Vec::<u8>::new(), "another batch comes for it");
        let mut given_up = queue.abandon(&[id(2)]);
        given_up.sort_unstable();
        assert_eq!(given_up, [3, 4, 9]);
        assert_eq!(taken(&mut queue, [5]), [[5]], "the queue is as new");
    }
}
