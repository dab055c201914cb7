//! What everybody in a run shares: the keys and what happened to each, numbers, counts, and whether faults may happen.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xtask::history::{Effects, Event, History, What};
use xtask::random::Random;

use super::settings::{DEADLINE, DOWNSTREAM_REMEMBERS, SWEPT_WITHIN};
use super::tally::Tally;

/// The kinds of work that the gateway can be honest about today: `local` needs the completion in the application's own
/// transaction, which there is no function for yet.
pub(super) const KINDS: [Effects; 3] = [Effects::Opaque, Effects::Keyed, Effects::Queryable];
const CALLERS: [&str; 4] = ["ann", "bob", "cho", "dia"];
/// Of a hundred keys, so many are used by a second caller too.
const SHARED_PERCENT: u64 = 20;
/// What is still hot: so many keys back, several clients meet at one.
const HOT: usize = 60;

/// A key of one caller.
pub(super) struct Subject {
    pub(super) number: usize,
    pub(super) effects: Effects,
    pub(super) caller: &'static str,
    pub(super) key: String,
    /// Whether another caller had it first.
    is_shared: bool,
    events: Mutex<Vec<Event>>,
}

pub(super) struct Stage {
    pub(super) seed: u64,
    started: Instant,
    is_faulty: AtomicBool,
    subjects: Mutex<Vec<Arc<Subject>>>,
    by_name: Mutex<HashMap<(String, String), Arc<Subject>>>,
    tokens: Mutex<HashMap<String, u32>>,
    requests: AtomicU32,
    tally: Mutex<Tally>,
    wrongs: Mutex<Vec<String>>,
}

impl Stage {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            seed,
            started: Instant::now(),
            is_faulty: AtomicBool::new(true),
            subjects: Mutex::default(),
            by_name: Mutex::default(),
            tokens: Mutex::default(),
            requests: AtomicU32::new(0),
            tally: Mutex::default(),
            wrongs: Mutex::default(),
        })
    }

    /// A stream of chance of one's own, by a name and a number.
    pub(super) fn random(&self, who: &str, number: u64) -> Random {
        let name = who.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
        Random::new(Random::new(self.seed ^ name).number() ^ Random::new(number).number())
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.is_faulty.load(Ordering::SeqCst)
    }

    /// From now on nothing new is broken.
    pub(super) fn end_faults(&self) {
        self.is_faulty.store(false, Ordering::SeqCst);
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// A key that nobody has used yet: what it is follows from the seed and its number.
    pub(super) fn new_subject(&self) -> Arc<Subject> {
        let mut subjects = locked(&self.subjects);
        let number = subjects.len();
        let random = self.random("subject", number as u64);
        let effects = random.pick(&KINDS);
        let before = subjects.last().filter(|before| !before.is_shared && random.percent(SHARED_PERCENT));
        let (caller, key) = match before {
            Some(before) => {
                let others: Vec<_> = CALLERS.into_iter().filter(|caller| *caller != before.caller).collect();
                (random.pick(&others), before.key.clone())
            }
            None => (random.pick(&CALLERS), format!("order-{number}")),
        };
        let is_shared = before.is_some();
        let subject = Arc::new(Subject { number, effects, caller, key, is_shared, events: Mutex::default() });
        let name = (subject.caller.to_owned(), subject.key.clone());
        locked(&self.by_name).insert(name, subject.clone());
        subjects.push(subject.clone());
        subject
    }

    /// A key that others may be using at this moment; none before the first.
    pub(super) fn hot_subject(&self, random: &Random) -> Option<Arc<Subject>> {
        let subjects = locked(&self.subjects);
        let hot = &subjects[subjects.len().saturating_sub(HOT)..];
        (!hot.is_empty()).then(|| hot[random.index(hot.len())].clone())
    }

    /// Any key there has been.
    pub(super) fn old_subject(&self, random: &Random) -> Option<Arc<Subject>> {
        let subjects = locked(&self.subjects);
        (!subjects.is_empty()).then(|| subjects[random.index(subjects.len())].clone())
    }

    pub(super) fn subject(&self, caller: &str, key: &str) -> Option<Arc<Subject>> {
        locked(&self.by_name).get(&(caller.to_owned(), key.to_owned())).cloned()
    }

    pub(super) fn subjects(&self) -> Vec<Arc<Subject>> {
        locked(&self.subjects).clone()
    }

    pub(super) fn note(&self, subject: &Subject, what: What) {
        let mut events = locked(&subject.events);
        // Under the lock, so that the order of the moments is the order of the list.
        let at = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        events.push(Event { at, what });
    }

    /// Tokens are random bits: a history that is to be read numbers them.
    pub(super) fn token(&self, handle: &str) -> u32 {
        let mut tokens = locked(&self.tokens);
        let next = u32::try_from(tokens.len() + 1).unwrap_or(u32::MAX);
        *tokens.entry(handle.to_owned()).or_insert(next)
    }

    pub(super) fn next_request(&self) -> u32 {
        self.requests.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Something that breaks a promise.
    pub(super) fn wrong(&self, what: String) {
        locked(&self.wrongs).push(what);
    }

    pub(super) fn wrongs(&self) -> Vec<String> {
        locked(&self.wrongs).clone()
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        locked(&self.tally)
    }
}

impl Subject {
    /// All that has happened to it, as the checker reads it.
    pub(super) fn history(&self) -> History {
        History {
            effects: self.effects,
            remembers_ms: millis(DOWNSTREAM_REMEMBERS),
            swept_within_ms: millis(SWEPT_WITHIN),
            deadline_ms: millis(DEADLINE),
            is_over: true,
            events: locked(&self.events).clone(),
        }
    }

    /// How often it reached the service so far.
    pub(super) fn calls(&self) -> usize {
        locked(&self.events).iter().filter(|event| matches!(event.what, What::Began { .. })).count()
    }
}

/// As in the settings of a route, and in its path.
pub(super) const fn name(effects: Effects) -> &'static str {
    match effects {
        Effects::Local => "local",
        Effects::Keyed => "keyed",
        Effects::Queryable => "queryable",
        Effects::Opaque => "opaque",
    }
}

/// Counts by what was counted, in the order of their names.
pub(super) type Counts = BTreeMap<String, u64>;

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// What is behind a lock is whole after every step: whoever panicked has not left half of it.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
