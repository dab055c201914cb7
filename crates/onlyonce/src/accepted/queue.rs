//! What a node knows of accepted work: what waits, what it runs, and how much there is.
//!
//! The store is the truth. The queue is a copy of its listing, at most a second old unless much waits, with what this node
//! has accepted since; who takes from it looks at the record before it claims it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::limits::Limit;
use onlyonce_core::record::{Id, Record, Seen};
use onlyonce_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Runs, Terms};

/// For how long work is left alone that cannot be run here, or until the settings change.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// While more than this waits here, the store is listed less often: all of it would be read.
const BACKLOG: usize = 1_000;
/// How often, then. Work that another node left behind when it died may wait so much longer.
const LIST_BACKLOG_EVERY: Duration = Duration::from_secs(10);

/// What a node knows of accepted work.
#[derive(Default)]
pub(crate) struct Accepted {
    state: Mutex<State>,
    /// There may be something to begin.
    pub(crate) wake: Notify,
}

#[derive(Default)]
struct State {
    runner: Option<Arc<dyn Runs>>,
    terms: Terms,
    /// No more is begun: the process is about to stop.
    is_stopped: bool,
    /// What waits, the oldest first.
    waiting: VecDeque<Waiting>,
    queued: HashSet<Id>,
    /// How much of each scope waits.
    waiting_of: HashMap<[u8; 32], usize>,
    /// What this node has just stored and has a place for: it need not be read back.
    fresh: HashMap<Id, Fresh>,
    /// What this node runs, and how much of each scope.
    running: HashSet<Id>,
    running_of: HashMap<[u8; 32], usize>,
    /// What cannot be run here, and until when it is left alone.
    left: HashMap<Id, Instant>,
    /// Scopes that a limit left no place for since the last look, and how many of each may be tried all the same. None is all
    /// of them.
    refused: HashMap<Option<[u8; 32]>, usize>,
    looked_at: Option<Instant>,
    listed_at: Option<Instant>,
    /// How many requests are stored, by the last count and what this node did since.
    stored: usize,
    /// How many this node has stored since the last count began.
    stored_since: usize,
    /// How many are about to be stored.
    storing: usize,
}

/// Accepted work that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Waiting {
    pub(crate) since: Timestamp,
    pub(crate) id: Id,
    pub(crate) scope: [u8; 32],
}

impl Waiting {
    pub(crate) fn of(id: Id, record: &Record) -> Self {
        Self { since: record.created_at, id, scope: *record.scope.digest() }
    }
}

/// An acceptance as this node wrote it.
pub(crate) struct Fresh {
    pub(crate) seen: Seen,
    pub(crate) request: Bytes,
    /// When the store was asked to write it.
    pub(crate) asked_at: Instant,
}

/// A place among those that run. It is given back when it is dropped.
pub(crate) struct Place {
    accepted: Arc<Accepted>,
    pub(crate) waiting: Waiting,
    pub(crate) fresh: Option<Fresh>,
    pub(crate) runner: Arc<dyn Runs>,
    pub(crate) terms: Terms,
    is_refused: bool,
}

/// Room for one more request. It counts until it is dropped; from then on the request itself does, where it was stored.
pub(crate) struct Slot(Arc<Accepted>);

impl Accepted {
    /// Has work run by `runner` from now on; what could not be run is tried again.
    pub(crate) fn use_runner(&self, runner: Arc<dyn Runs>) {
        let mut state = self.lock();
        state.runner = Some(runner);
        state.left.clear();
        state.refused.clear();
        (state.looked_at, state.listed_at) = (None, None);
        drop(state);
        self.wake.notify_one();
    }

    /// On these terms from now on.
    pub(crate) fn use_terms(&self, terms: Terms) {
        self.lock().terms = terms;
        self.wake.notify_one();
    }

    /// Nothing more is begun.
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
    }

    /// Nobody runs accepted work any more, and nothing is accepted.
    pub(crate) fn forget_runner(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        let runner = state.runner.take();
        drop(state);
        // It has services, which have engines.
        drop(runner);
    }

    /// Whether anybody runs accepted work here.
    pub(crate) fn has_runner(&self) -> bool {
        self.lock().runner.is_some()
    }

    /// Room for one more request; none where too much waits already.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Slot> {
        let mut state = self.lock();
        state.runner.as_ref()?;
        let waits = (state.stored + state.storing).saturating_sub(state.running.len());
        if waits >= state.terms.pending_max {
            return None;
        }
        state.storing += 1;
        Some(Slot(self.clone()))
    }

    /// A request was stored here. It waits for a place like all others.
    pub(crate) fn stored(&self, id: Id, fresh: Fresh) {
        let mut state = self.lock();
        state.stored += 1;
        state.stored_since += 1;
        state.push(Waiting::of(id, &fresh.seen.record));
        if state.queued.contains(&id) && state.running.len() + state.fresh.len() < state.terms.at_once {
            state.fresh.insert(id, fresh);
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Accepted work has ended here, and its request is deleted.
    pub(crate) fn ended(&self) {
        let mut state = self.lock();
        state.stored = state.stored.saturating_sub(1);
    }

    /// A count of what is stored begins. Gives how far it is to count; none where nobody runs accepted work here, nothing could
    /// be begun, or the last look is not yet `every` ago; `idle_every` where it found nothing and nothing was stored since.
    pub(crate) fn begin_look(&self, every: Duration, idle_every: Duration) -> Option<usize> {
        let mut state = self.lock();
        state.runner.as_ref()?;
        let now = Instant::now();
        let every = if state.stored == 0 && state.waiting.is_empty() { idle_every } else { every };
        let is_due =
            state.looked_at.is_none_or(|looked_at| now.saturating_duration_since(looked_at) >= every);
        if state.is_stopped || !is_due {
            return None;
        }
        state.looked_at = Some(now);
        state.refused.clear();
        state.stored_since = 0;
        Some(state.terms.pending_max.saturating_add(state.terms.at_once).saturating_add(1))
    }

    /// What the store has: so many requests, and what waits.
    pub(crate) fn looked(&self, stored: usize, mut waiting: Vec<Waiting>) {
        // Each is then put at the end, or near it.
        waiting.sort_unstable();
        let mut state = self.lock();
        state.stored = stored + state.stored_since;
        let now = Instant::now();
        state.left.retain(|_, until| now < *until);
        for waiting in waiting {
            state.push(waiting);
        }
    }

    /// Whether what waits in the store is to be listed now: there is a place for more, and not enough of it is known here.
    pub(crate) fn begin_listing(&self) -> bool {
        let mut state = self.lock();
        let has_place = state.running.len() < state.terms.at_once;
        let is_due = state.waiting.len() <= BACKLOG
            || state.listed_at.is_none_or(|listed_at| listed_at.elapsed() >= LIST_BACKLOG_EVERY);
        let begins = state.runner.is_some() && !state.is_stopped && has_place && is_due;
        if begins {
            state.listed_at = Some(Instant::now());
        }
        begins
    }

    /// The next that may begin, with its place.
    pub(crate) fn next(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.lock();
        let (runner, terms) = (state.runner.clone()?, state.terms);
        if state.is_stopped || state.running.len() >= terms.at_once {
            return None;
        }
        let waiting = state.take(terms.at_once)?;
        let fresh = state.fresh.remove(&waiting.id);
        state.running.insert(waiting.id);
        *state.running_of.entry(waiting.scope).or_default() += 1;
        drop(state);
        Some(Place { accepted: self.clone(), waiting, fresh, runner, terms, is_refused: false })
    }

    /// Leaves work alone that cannot be run here.
    pub(crate) fn leave(&self, id: Id) {
        self.leave_for(id, LEFT_ALONE);
    }

    /// The same for so long, or until the settings change.
    pub(crate) fn leave_for(&self, id: Id, span: Duration) {
        self.lock().left.insert(id, Instant::now() + span);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// A limit left no place for it: it waits on. Others that the limit holds for are not tried before one of them ends, or the
    /// next look.
    pub(crate) fn refused(mut self, limit: Limit) {
        let whose = (limit != Limit::InFlightTotal).then_some(self.waiting.scope);
        self.accepted.lock().refused.entry(whose).or_default();
        self.is_refused = true;
    }
}

impl State {
    /// It waits, in the order of age.
    fn push(&mut self, waiting: Waiting) {
        let is_known = self.running.contains(&waiting.id) || self.left.contains_key(&waiting.id);
        if !is_known && self.queued.insert(waiting.id) {
            let place = self.waiting.partition_point(|other| *other < waiting);
            self.waiting.insert(place, waiting);
            *self.waiting_of.entry(waiting.scope).or_default() += 1;
        }
    }

    /// The oldest of a scope that has less than half of the places; where no other waits, the oldest. None that a limit leaves
    /// no place for.
    fn take(&mut self, at_once: usize) -> Option<Waiting> {
        let half = (at_once / 2).max(1);
        let has_room =
            |waiting: &Waiting| self.running_of.get(&waiting.scope).is_none_or(|count| *count < half);
        let may_try = |waiting: &Waiting| {
            let tries = [None, Some(waiting.scope)].map(|whose| self.refused.get(&whose));
            tries.into_iter().flatten().all(|tries| *tries > 0)
        };
        let both = |waiting: &Waiting| has_room(waiting) && may_try(waiting);
        // At most two scopes have half of the places. If nothing else waits, nothing is looked for.
        let busy = self.running_of.iter().filter(|(_, count)| **count >= half);
        let of_busy: usize = busy.filter_map(|(scope, _)| self.waiting_of.get(scope)).sum();
        let of_others = (self.waiting.len() > of_busy).then(|| self.waiting.iter().position(both)).flatten();
        let place = of_others.or_else(|| self.waiting.iter().position(may_try))?;
        let waiting = self.waiting.remove(place)?;
        self.queued.remove(&waiting.id);
        subtract(&mut self.waiting_of, waiting.scope);
        self.limited(&waiting, |tries| tries.saturating_sub(1));
        Some(waiting)
    }

    /// Changes how many may be tried, where a limit has left no place.
    fn limited(&mut self, waiting: &Waiting, change: impl Fn(usize) -> usize) {
        for whose in [None, Some(waiting.scope)] {
            if let Some(tries) = self.refused.get_mut(&whose) {
                *tries = change(*tries);
            }
        }
    }
}

/// One less of this scope.
fn subtract(counts: &mut HashMap<[u8; 32], usize>, scope: [u8; 32]) {
    if let Entry::Occupied(mut count) = counts.entry(scope) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.accepted.lock();
        state.running.remove(&self.waiting.id);
        subtract(&mut state.running_of, self.waiting.scope);
        if self.is_refused {
            state.push(self.waiting);
        } else {
            // Its end may have left a place.
            state.limited(&self.waiting, |tries| tries.saturating_add(1));
        }
        drop(state);
        self.accepted.wake.notify_one();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.lock().storing -= 1;
    }
}

impl std::fmt::Debug for Accepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("Accepted")
            .field("waiting", &state.waiting.len())
            .field("running", &state.running.len())
            .field("stored", &state.stored)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Running, Work};
    use super::*;

    struct Nobody;

    impl Runs for Nobody {
        fn run(&self, work: Work) -> Result<Running, Work> {
            Err(work)
        }
    }

    fn accepted(at_once: usize, pending_max: usize) -> Arc<Accepted> {
        let accepted = Arc::new(Accepted::default());
        let terms = Terms { at_once, pending_max, ..Terms::default() };
        accepted.use_runner(Arc::new(Nobody));
        accepted.use_terms(terms);
        accepted
    }

    fn waiting(number: u8, scope: u8) -> Waiting {
        let since = Timestamp::from_micros(number.into());
        Waiting { since, id: Id([number; 32]), scope: [scope; 32] }
    }

    fn begun(accepted: &Arc<Accepted>) -> Vec<Place> {
        std::iter::from_fn(|| accepted.next()).collect()
    }

    fn numbers(places: &[Place]) -> Vec<u8> {
        places.iter().map(|place| place.waiting.id.0[0]).collect()
    }

    /// W07: oldest first, and no scope has more than half of the places while others wait.
    #[test]
    fn a_busy_scope_leaves_half_of_the_places_to_others() {
        let accepted = accepted(4, 100);
        let of_one = (1..=6).map(|number| waiting(number, 1));
        accepted.looked(0, of_one.chain([waiting(7, 2), waiting(8, 3)]).collect());
        let mut places = begun(&accepted);
        assert_eq!(numbers(&places), [1, 2, 7, 8]);
        // One of another scope ends. Nobody else waits, so the busy scope takes its place.
        places.remove(2);
        assert_eq!(numbers(&[accepted.next().unwrap()]), [3]);
        drop(places);
        assert_eq!(numbers(&begun(&accepted)), [4, 5, 6]);
    }

    /// W07: of several looks at the store, each is begun once, and what cannot be run is left alone.
    #[test]
    fn what_runs_or_is_left_alone_is_not_begun_again() {
        let accepted = accepted(1, 100);
        let all = || vec![waiting(2, 1), waiting(1, 1)];
        accepted.looked(2, all());
        let place = accepted.next().unwrap();
        assert_eq!(place.waiting, waiting(1, 1), "the oldest first");
        accepted.looked(2, all());
        accepted.leave(Id([2; 32]));
        drop(place);
        assert_eq!(accepted.next().unwrap().waiting, waiting(2, 1), "it was queued before");
        accepted.looked(2, all());
        assert_eq!(accepted.next().unwrap().waiting, waiting(1, 1));
        assert!(accepted.next().is_none());
        accepted.use_runner(Arc::new(Nobody));
        accepted.use_terms(Terms::default());
        accepted.looked(2, all());
        assert_eq!(begun(&accepted).len(), 2, "settings that change have it tried again");
    }

    /// W07: the store is not listed every second while this node knows more than it can run; what is stored is still counted.
    #[test]
    fn a_long_queue_is_not_listed_again_at_every_look() {
        let accepted = accepted(4, 100);
        assert!(accepted.begin_listing() && accepted.begin_listing(), "nothing waits here");
        let many = |number: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            Waiting { since: Timestamp::from_micros(1), id: Id(id), scope: [1; 32] }
        };
        accepted.looked(BACKLOG + 1, (0..=BACKLOG).map(many).collect());
        assert!(!accepted.begin_listing());
        accepted.use_runner(Arc::new(Nobody));
        assert!(accepted.begin_listing(), "settings that change have it listed again");
        drop(accepted.next());
        assert!(accepted.begin_listing(), "no more than that waits now");
    }

    /// W07
    #[test]
    fn no_more_waits_than_is_allowed() {
        let accepted = accepted(1, 2);
        let [one, two] = [(); 2].map(|()| accepted.admit().unwrap());
        assert!(accepted.admit().is_none());
        drop(one);
        assert!(accepted.admit().is_some(), "what was not stored gives its room back");
        drop(two);
        accepted.looked(2, vec![waiting(1, 1), waiting(2, 1)]);
        assert!(accepted.admit().is_none());
        let running = accepted.next().unwrap();
        assert!(accepted.admit().is_some(), "what runs does not wait");
        drop(running);
        assert!(accepted.admit().is_none());
        accepted.ended();
        assert!(accepted.admit().is_some());
    }

    /// W07, L02: what a limit leaves no place for is not read again and again.
    #[test]
    fn a_scope_without_a_place_is_tried_again_when_one_ends_or_at_the_next_look() {
        let accepted = accepted(4, 100);
        let look = || accepted.begin_look(Duration::ZERO, Duration::ZERO).unwrap();
        look();
        accepted.looked(5, (1..=4).map(|number| waiting(number, 1)).chain([waiting(5, 2)]).collect());
        let mut places = begun(&accepted);
        assert_eq!(numbers(&places), [1, 2, 5, 3]);
        // Of the first scope, one may run.
        places.remove(1).refused(Limit::InFlight);
        places.pop().unwrap().refused(Limit::InFlight);
        assert!(accepted.next().is_none(), "two places are free, and nothing is tried");
        drop(places.remove(0));
        let place = accepted.next().unwrap();
        assert_eq!(place.waiting, waiting(2, 1), "what was refused has kept its place in the queue");
        assert!(accepted.next().is_none());
        drop(place);
        drop(places);
        let place = accepted.next().unwrap();
        place.refused(Limit::InFlightTotal);
        accepted.looked(1, vec![waiting(6, 3)]);
        assert!(accepted.next().is_none(), "nobody has a place");
        look();
        assert_eq!(numbers(&begun(&accepted)), [3, 4, 6]);
    }

    #[test]
    fn after_a_stop_nothing_is_begun() {
        let accepted = accepted(4, 4);
        accepted.looked(1, vec![waiting(1, 1)]);
        accepted.stop();
        assert!(!accepted.begin_listing() && accepted.next().is_none());
        assert!(accepted.admit().is_some(), "it is durable, and others run it");
        accepted.forget_runner();
        assert!(accepted.admit().is_none() && !accepted.has_runner());
    }
}
