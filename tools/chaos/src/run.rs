//! What all parts of a run share: the keys and what happened to each, numbers, counts, and whether faults may happen.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onlyonce_testkit::history::{Event, History, Said, What};
use onlyonce_testkit::random::Random;
use sha2::{Digest, Sha256};

use crate::kind::Kind;
use crate::settings::{DEADLINE, DOWNSTREAM_REMEMBERS, SWEPT_WITHIN};
use crate::store::Store;
use crate::tally::Tally;

const CALLERS: [&str; 4] = ["ann", "bob", "cho", "dia"];
/// How many of a hundred keys a second caller uses too.
const SHARED_PERCENT: u64 = 20;
/// How many of the newest keys several clients use at the same time.
const HOT: usize = 60;
/// How many brief keys are in use at a time.
const BRIEF: usize = 40;

/// A key of one caller.
pub(crate) struct Subject {
    pub(crate) number: usize,
    pub(crate) kind: Kind,
    pub(crate) caller: &'static str,
    pub(crate) key: String,
    /// The id of its record, in hex. The handle of every attempt begins with it.
    pub(crate) id: String,
    /// Whether another caller had it first.
    is_shared: bool,
    /// Each with its time in microseconds of the system's clock, which the server uses too.
    events: Mutex<Vec<(u64, What)>>,
}

/// An attempt that the service has seen.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) subject: Arc<Subject>,
    /// What it answers since the work is done; none where it is not.
    pub(crate) said: Option<Said>,
}

pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) store: Store,
    started_at: u64,
    is_faulty: AtomicBool,
    subjects: Mutex<Vec<Arc<Subject>>>,
    by_name: Mutex<HashMap<(String, String), Arc<Subject>>>,
    by_id: Mutex<HashMap<String, Arc<Subject>>>,
    tokens: Mutex<HashMap<String, u32>>,
    /// Whose attempts the service has seen, by the handle that it was given.
    attempts: Mutex<HashMap<String, Seen>>,
    requests: AtomicU32,
    ticks: AtomicU64,
    tally: Mutex<Tally>,
    wrongs: Mutex<Vec<String>>,
}

impl Run {
    pub(crate) fn new(seed: u64, store: Store) -> Arc<Self> {
        Arc::new(Self {
            seed,
            store,
            started_at: now_micros(),
            is_faulty: AtomicBool::new(true),
            subjects: Mutex::default(),
            by_name: Mutex::default(),
            by_id: Mutex::default(),
            tokens: Mutex::default(),
            attempts: Mutex::default(),
            requests: AtomicU32::new(0),
            ticks: AtomicU64::new(0),
            tally: Mutex::default(),
            wrongs: Mutex::default(),
        })
    }

    /// A stream of random numbers for one part, by its name and number.
    pub(crate) fn random(&self, who: &str, number: u64) -> Random {
        let name = who.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
        Random::new(Random::new(self.seed ^ name).number() ^ Random::new(number).number())
    }

    pub(crate) fn is_faulty(&self) -> bool {
        self.is_faulty.load(Ordering::SeqCst)
    }

    /// No new fault begins from now on.
    pub(crate) fn end_faults(&self) {
        self.is_faulty.store(false, Ordering::SeqCst);
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_micros(now_micros().saturating_sub(self.started_at))
    }

    /// The logical clock: of two events in this process the one with the lower number came first.
    pub(crate) fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    /// A key that nobody has used yet: what it is follows from the seed and its number.
    pub(crate) fn new_subject(&self) -> Arc<Subject> {
        let mut subjects = locked(&self.subjects);
        let number = subjects.len();
        let random = self.random("subject", number as u64);
        let kind = Kind::of(self.store, &random);
        let before = subjects.last().filter(|before| {
            // Brief keys have one caller each: their histories are long as they are.
            let is_brief = kind == Kind::Brief || before.kind == Kind::Brief;
            !is_brief && !before.is_shared && random.percent(SHARED_PERCENT)
        });
        let (caller, key) = match before {
            Some(before) => {
                let others: Vec<_> = CALLERS.into_iter().filter(|caller| *caller != before.caller).collect();
                (random.pick(&others), before.key.clone())
            }
            None => (random.pick(&CALLERS), format!("order-{number}")),
        };
        let is_shared = before.is_some();
        let id = record_id(caller, &key);
        let subject =
            Arc::new(Subject { number, kind, caller, key, id, is_shared, events: Mutex::default() });
        let name = (subject.caller.to_owned(), subject.key.clone());
        locked(&self.by_name).insert(name, subject.clone());
        locked(&self.by_id).insert(subject.id.clone(), subject.clone());
        subjects.push(subject.clone());
        subject
    }

    /// A key that others may be using at this moment; none before the first.
    pub(crate) fn hot_subject(&self, random: &Random) -> Option<Arc<Subject>> {
        let subjects = locked(&self.subjects);
        let hot = &subjects[subjects.len().saturating_sub(HOT)..];
        (!hot.is_empty()).then(|| hot[random.index(hot.len())].clone())
    }

    /// A key that is kept for some seconds only.
    pub(crate) fn brief_subject(&self, random: &Random) -> Option<Arc<Subject>> {
        let subjects = locked(&self.subjects);
        let brief = subjects.iter().rev().filter(|subject| subject.kind == Kind::Brief).take(BRIEF);
        let brief: Vec<_> = brief.collect();
        (!brief.is_empty()).then(|| brief[random.index(brief.len())].clone())
    }

    /// Any key there has been.
    pub(crate) fn old_subject(&self, random: &Random) -> Option<Arc<Subject>> {
        let subjects = locked(&self.subjects);
        (!subjects.is_empty()).then(|| subjects[random.index(subjects.len())].clone())
    }

    pub(crate) fn subject(&self, caller: &str, key: &str) -> Option<Arc<Subject>> {
        locked(&self.by_name).get(&(caller.to_owned(), key.to_owned())).cloned()
    }

    pub(crate) fn subjects(&self) -> Vec<Arc<Subject>> {
        locked(&self.subjects).clone()
    }

    pub(crate) fn note(&self, subject: &Subject, what: What) {
        // Under the lock, so that the list is ordered by time.
        let mut events = locked(&subject.events);
        events.push((now_micros(), what));
    }

    /// Tokens are random bits: a history that is to be read numbers them.
    pub(crate) fn token(&self, handle: &str) -> u32 {
        let mut tokens = locked(&self.tokens);
        let next = u32::try_from(tokens.len() + 1).unwrap_or(u32::MAX);
        *tokens.entry(handle.to_owned()).or_insert(next)
    }

    /// The service was given this attempt.
    pub(crate) fn arrived(&self, handle: &str, subject: &Arc<Subject>) {
        let seen = || Seen { subject: subject.clone(), said: None };
        locked(&self.attempts).entry(handle.to_owned()).or_insert_with(seen);
    }

    /// The work of this attempt took effect.
    pub(crate) fn took_effect(&self, handle: &str, said: &Said) {
        if let Some(seen) = locked(&self.attempts).get_mut(handle) {
            seen.said = Some(said.clone());
        }
    }

    /// The attempt of this handle, where the service has seen it.
    pub(crate) fn attempt(&self, handle: &str) -> Option<Seen> {
        locked(&self.attempts).get(handle).cloned()
    }

    /// Whose record it is, by its id in hex. The service need not have seen it: a request can be lost on its way there.
    pub(crate) fn of_record(&self, id: &str) -> Option<Arc<Subject>> {
        locked(&self.by_id).get(id).cloned()
    }

    /// What the service answers to this key, since one of its attempts took effect.
    pub(crate) fn effect_of(&self, subject: &Subject) -> Option<Said> {
        let attempts = locked(&self.attempts);
        attempts
            .values()
            .filter(|seen| seen.subject.number == subject.number)
            .find_map(|seen| seen.said.clone())
    }

    pub(crate) fn next_request(&self) -> u32 {
        self.requests.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Notes that a promise was broken.
    pub(crate) fn wrong(&self, what: String) {
        locked(&self.wrongs).push(what);
    }

    pub(crate) fn wrongs(&self) -> Vec<String> {
        locked(&self.wrongs).clone()
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        locked(&self.tally)
    }
}

impl Subject {
    /// Its history as the checker reads it, with what only the database saw.
    pub(crate) fn history(
        &self,
        run: &Run,
        seen_by_database: impl IntoIterator<Item = (u64, What)>,
    ) -> History {
        let mut events = locked(&self.events).clone();
        events.extend(seen_by_database);
        // The sort is stable: events of the same time keep their order.
        events.sort_by_key(|(at, _)| *at);
        let since = |at: u64| at.saturating_sub(run.started_at) / 1_000;
        let events = events.into_iter().map(|(at, what)| Event { at: since(at), what }).collect();
        History {
            effects: self.kind.effects(),
            remembers_ms: millis(DOWNSTREAM_REMEMBERS),
            swept_within_ms: millis(SWEPT_WITHIN),
            deadline_ms: millis(DEADLINE),
            is_over: true,
            events,
        }
    }

    /// How often it reached the service so far.
    pub(crate) fn calls(&self) -> usize {
        locked(&self.events).iter().filter(|(_, what)| matches!(what, What::Began { .. })).count()
    }
}

/// Computed here and by nothing of the product, since a run judges the product: the scope of a service without a name, whose
/// callers are told apart by their credentials, and the key.
fn record_id(caller: &str, key: &str) -> String {
    let mut scope = Sha256::new_with_prefix(b"onlyonce scope 1 caller\0");
    for field in ["", "header:authorization", &format!("Bearer {caller}")] {
        scope.update((field.len() as u64).to_be_bytes());
        scope.update(field);
    }
    let id = Sha256::new().chain_update(scope.finalize()).chain_update(key).finalize();
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now_micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Locks, also after a panic: every change under these locks is a single step.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(seed: u64) -> Vec<(Kind, &'static str, String)> {
        let run = Run::new(seed, Store::Postgres);
        let subjects = (0..200).map(|_| run.new_subject());
        subjects.map(|subject| (subject.kind, subject.caller, subject.key.clone())).collect()
    }

    #[test]
    fn keys_follow_from_the_seed() {
        assert_eq!(keys(7), keys(7));
        assert_ne!(keys(7), keys(8));
    }

    #[test]
    fn some_keys_have_two_callers_and_no_caller_has_one_twice() {
        let keys = keys(7);
        let mut names: Vec<_> = keys.iter().map(|(_, caller, key)| (key, caller)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), keys.len());
        let mut texts: Vec<_> = names.into_iter().map(|(key, _)| key).collect();
        texts.dedup();
        assert!(texts.len() < keys.len(), "no key is shared");
    }

    #[test]
    fn a_record_is_found_by_its_id_though_the_service_never_saw_it() {
        let run = Run::new(7, Store::Postgres);
        let subject = run.new_subject();
        let found = run.of_record(&subject.id).map(|found| found.number);
        assert_eq!((found, run.effect_of(&subject)), (Some(subject.number), None));
        assert!(run.of_record(&"0".repeat(64)).is_none());
    }

    #[test]
    fn an_expiry_takes_its_place_in_the_history() {
        let run = Run::new(7, Store::Postgres);
        let subject = run.new_subject();
        run.note(&subject, What::Sent { request: 1, body: 1 });
        let between = now_micros() + 1;
        while now_micros() <= between {
            std::thread::yield_now();
        }
        run.note(&subject, What::HungUp { request: 1 });
        let events = subject.history(&run, [(between, What::Expired)]).events;
        let events: Vec<_> = events.into_iter().map(|event| event.what).collect();
        assert_eq!(events, [What::Sent { request: 1, body: 1 }, What::Expired, What::HungUp { request: 1 }]);
    }
}
