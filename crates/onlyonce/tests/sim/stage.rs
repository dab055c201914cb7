//! What everybody in a simulation shares: chance, the clock, the keys, and the log of what happened.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header;
use onlyonce::{Effects, Policy};
use onlyonce_core::key::Key;
use onlyonce_core::record::{Id, Token};
use onlyonce_core::scope::{Scope, Source};
use tokio::time::{Instant, sleep};

use crate::history::{self, Event, History, What};
use crate::random::Random;
use crate::tally::{Count, Tally};

pub(crate) const LEASE: Duration = Duration::from_secs(4);
pub(crate) const DEADLINE: Duration = Duration::from_secs(12);
/// Covers the longest pause of a node and the longest a call is under way, together: what may act after the deadline.
pub(crate) const HORIZON: Duration = Duration::from_secs(10);
pub(crate) const PAUSE_MS: RangeInclusive<u64> = 500..=6_000;
pub(crate) const LATE_MS: RangeInclusive<u64> = 500..=1_900;
const DOWNSTREAM_RETENTION: Duration = Duration::from_secs(25);
/// A call may be made until the last moment of that, and be under way for as long as an attempt may act.
pub(crate) const DOWNSTREAM_REMEMBERS: Duration = Duration::from_secs(25 + 12 + 10 + 1);
pub(crate) const RESPONSE_BYTES_MAX: u64 = 512;
/// Rounds of the sweeper, one of which may have to wait for a call that stalled before the faults stopped.
const SWEPT_WITHIN_MS: u64 = 15_000;
/// Nobody has reason to ask the store more often than this in a millisecond.
const CALLS_AT_ONCE_MAX: u32 = 500;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    /// Everything that can.
    All,
    /// Nothing, except that some writes reach the store twice.
    OnlyRepeats,
}

/// Shared by all; see the module's documentation.
pub(crate) struct Stage {
    started: Instant,
    pub(crate) subjects: Vec<Subject>,
    pub(crate) retention: Duration,
    random: Random,
    log: Mutex<Log>,
    faults: AtomicBool,
    spin: Mutex<Spin>,
}

/// How often the store was asked at one instant: a clock that only moves when everybody waits shows who never does.
#[derive(Default)]
struct Spin {
    at: u64,
    calls: u32,
    has_spun: bool,
}

/// A key that clients use.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) number: usize,
    pub(crate) effects: Effects,
    pub(crate) caller: String,
    pub(crate) key: String,
    pub(crate) id: Id,
}

#[derive(Default)]
struct Log {
    events: Vec<Vec<Event>>,
    tokens: HashMap<Token, u32>,
    requests: u32,
    tally: Tally,
}

impl Stage {
    pub(crate) fn new(seed: u64, faults: Faults) -> Arc<Self> {
        let random = Random::new(seed);
        let subjects = subjects(&random);
        let retention = Duration::from_secs(random.pick(&[24, 40, 600]));
        let log = Log { events: vec![Vec::new(); subjects.len()], ..Log::default() };
        Arc::new(Self {
            started: Instant::now(),
            subjects,
            retention,
            random,
            log: Mutex::new(log),
            faults: AtomicBool::new(faults == Faults::All),
            spin: Mutex::default(),
        })
    }

    pub(crate) fn policy(&self, effects: Effects) -> Policy {
        Policy {
            effects,
            lease: LEASE,
            deadline: DEADLINE,
            horizon: HORIZON,
            retention: self.retention,
            downstream_retention: DOWNSTREAM_RETENTION,
            store_timeout: Duration::from_secs(1),
            wait_max: Duration::from_secs(6),
            response_bytes_max: RESPONSE_BYTES_MAX,
            ..Policy::default()
        }
    }

    pub(crate) fn random(&self) -> &Random {
        &self.random
    }

    /// Whether faults may still happen.
    pub(crate) fn is_faulty(&self) -> bool {
        self.faults.load(Ordering::SeqCst)
    }

    /// True in so many of a hundred cases, while faults happen.
    pub(crate) fn fault(&self, percent: u64) -> bool {
        self.is_faulty() && self.random().percent(percent)
    }

    /// Waits for some time in this range.
    pub(crate) async fn pass(&self, millis: RangeInclusive<u64>) {
        let span = self.random().millis(millis);
        sleep(span).await;
    }

    /// The store is asked. Whoever asks without end is told on, and slowed down, or this would never be over.
    pub(crate) async fn asked(&self) {
        let is_spinning = {
            let (mut spin, now) = (self.spin.lock().unwrap(), self.now());
            spin.calls = if spin.at == now { spin.calls + 1 } else { 0 };
            spin.at = now;
            spin.has_spun |= spin.calls > CALLS_AT_ONCE_MAX;
            spin.calls > CALLS_AT_ONCE_MAX
        };
        if is_spinning {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether somebody asked the store without end.
    pub(crate) fn has_spun(&self) -> bool {
        self.spin.lock().unwrap().has_spun
    }

    pub(crate) fn heal(&self) {
        self.faults.store(false, Ordering::SeqCst);
        for subject in &self.subjects {
            self.note(subject.number, What::Healed);
        }
    }

    pub(crate) fn note(&self, subject: usize, what: What) {
        let at = self.now();
        self.log.lock().unwrap().events[subject].push(Event { at, what });
    }

    pub(crate) fn count(&self, count: Count) {
        self.log.lock().unwrap().tally.add(count);
    }

    /// Tokens are random: a history that is to be repeated numbers them.
    pub(crate) fn token(&self, token: Token) -> u32 {
        let tokens = &mut self.log.lock().unwrap().tokens;
        let next = u32::try_from(tokens.len()).unwrap() + 1;
        *tokens.entry(token).or_insert(next)
    }

    pub(crate) fn next_request(&self) -> u32 {
        let mut log = self.log.lock().unwrap();
        log.requests += 1;
        log.requests
    }

    pub(crate) fn subject(&self, id: Id) -> &Subject {
        self.subjects.iter().find(|subject| subject.id == id).expect("only the simulation's keys are used")
    }

    /// What happened to each key, and how often what went wrong.
    pub(crate) fn histories(&self) -> (Vec<History>, Tally) {
        let log = self.log.lock().unwrap();
        let with_events = |(subject, events): (&Subject, &Vec<Event>)| History {
            effects: judged_as(subject.effects),
            remembers_ms: millis(DOWNSTREAM_REMEMBERS),
            swept_within_ms: SWEPT_WITHIN_MS,
            deadline_ms: millis(DEADLINE),
            is_over: true,
            events: events.clone(),
        };
        let histories: Vec<_> = self.subjects.iter().zip(&log.events).map(with_events).collect();
        let mut tally = log.tally.clone();
        histories.iter().for_each(|history| tally.read(history));
        (histories, tally)
    }

    fn now(&self) -> u64 {
        millis(self.started.elapsed())
    }
}

fn judged_as(effects: Effects) -> history::Effects {
    match effects {
        Effects::Local => history::Effects::Local,
        Effects::Keyed => history::Effects::Keyed,
        Effects::Queryable => history::Effects::Queryable,
        Effects::Opaque => history::Effects::Opaque,
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap()
}

/// Keys of random kinds, and a caller that happens to use another's key.
fn subjects(random: &Random) -> Vec<Subject> {
    let kinds = [Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque];
    let kinds: Vec<_> = (0..5).map(|_| random.pick(&kinds)).collect();
    [
        (0, "ann", "k1"),
        (0, "bob", "k1"),
        (1, "ann", "k2"),
        (2, "bob", "k3"),
        (3, "bob", "k4"),
        (4, "ann", "k5"),
    ]
    .into_iter()
    .enumerate()
    .map(|(number, (kind, caller, key))| {
        let credentials = format!("Bearer {caller}");
        let source = Source::Header(header::AUTHORIZATION);
        let scope = Scope::of("", [source.part(credentials.as_bytes())]).unwrap();
        let id = Id::of(&scope, &Key::stored(key));
        Subject { number, effects: kinds[kind], caller: caller.into(), key: key.into(), id }
    })
    .collect()
}
