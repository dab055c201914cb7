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

/// What takes longer than this, and this for each of its rows, has waited for a disk or a standby more than it worked.
const PROMPT: Duration = Duration::from_millis(1);
const PROMPT_A_ROW: Duration = Duration::from_micros(25);
/// Over so many batches the pace is the mean of.
const PACE_BATCHES: f64 = 8.0;
/// What one batch counts for at most: one that waited for long is soon forgotten.
const PACE_MAX: f64 = 4.0;

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
    /// How long it takes for a batch, in the mean of the last few; what is prompt takes less than one.
    pace: f64,
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
            pace: PACE_MAX,
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

    /// Takes a place for a write that its caller carries, where nothing else is under way: then it is. The last place is
    /// no caller's to keep.
    pub(super) fn go_alone(&mut self, id: Id) -> bool {
        if self.in_flight > 0 || self.limits.in_flight_max < 2 {
            return false;
        }
        self.behind.insert(id, VecDeque::new());
        self.in_flight = 1;
        self.rows_in_flight = 1;
        true
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

    /// There is a place, and something for it. Beside a batch under way goes only what is as large, or as large as it gets:
    /// a batch costs as much as many rows, and what waits for the end of one goes together. Where batches take long, the
    /// more share the next the better: only what is much larger goes. Beside a lone write another goes at once: where there
    /// are few callers, none waits for the others.
    fn may_go(&self) -> bool {
        let enough = match self.rows_in_flight {
            0 | 1 => 1,
            rows if self.pace < 1.0 => rows,
            rows => rows * 2,
        };
        self.in_flight < self.limits.in_flight_max && self.ready.len() >= enough.min(self.limits.rows_max)
    }

    /// The store has answered a batch of so many rows. True where what waits goes before its callers are told: the store
    /// is at work meanwhile. Where few wait, or a batch takes long, those are told first and may come along.
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
        self.pace += (took.min(PACE_MAX) - self.pace) / PACE_BATCHES;
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
