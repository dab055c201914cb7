//! How much callers ask for, held against [`Limits`].
//!
//! 1. A request is judged between the look and the reservation: whoever is refused reserved nothing and ran nothing.
//! 2. Nothing is taken unless everything is granted: all that a request needs is judged and taken under one lock, the
//!    scope's before the total's.
//! 3. Rates are token buckets, one second's worth deep. They hold tokens and not times, so that a reload with other rates
//!    finds them filled as they were.
//! 4. `keys_alive` is what the store counted, at most a second ago, plus what this node was granted since. Where no other
//!    process reserves keys, the sum is an upper bound however old the count is, and the store is asked only at the limit.
//! 5. Memory is bounded: the scopes that were used longest ago are forgotten beyond [`SCOPES_MAX`], and come back full.
//!
//! Why not a limiter from a crate: see `docs/decisions/0044-limits.md`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashlink::LruCache;
use onlyonce_core::limits::{Limit, Limits};
use onlyonce_core::refusal::Refusal;
use onlyonce_store::Alive;
use tokio::time::Instant;

/// How many scopes are remembered: about 12 MB of them, twice as much where their records are counted.
const SCOPES_MAX: usize = 100_000;
/// How old a count may be, and from when on it is counted anew in the background.
const COUNT_AGE_MAX: Duration = Duration::from_secs(1);
const COUNT_AGAIN: Duration = Duration::from_millis(500);
/// What a client is told to wait where nobody knows when the next record expires.
const EXPIRY_UNKNOWN: Duration = Duration::from_secs(60);
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// The digest of a scope.
pub(crate) type Digest = [u8; 32];

/// What callers have taken on this node.
#[derive(Debug)]
pub(crate) struct Limiter {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    scopes: LruCache<Digest, Usage>,
    total: Usage,
    /// Attempts under way; only scopes that have any. None of them is forgotten.
    in_flight: HashMap<Digest, u64>,
    in_flight_total: u64,
}

/// What one scope, or all of them, have used.
#[derive(Debug)]
struct Usage {
    keys: Bucket,
    lookups: Bucket,
    /// None where nobody counts them.
    records: Option<Box<Records>>,
}

impl Usage {
    fn new(now: Instant) -> Self {
        Self { keys: Bucket::full(now), lookups: Bucket::full(now), records: None }
    }

    /// Takes what is limited.
    fn take(&mut self, takes: Takes, limits: Limited) {
        match takes {
            Takes::Key => {
                if limits.keys {
                    self.keys.tokens -= 1.0;
                }
                if limits.records {
                    self.records.get_or_insert_default().grant();
                }
            }
            Takes::Lookup if limits.lookups => self.lookups.tokens -= 1.0,
            Takes::Lookup | Takes::Nothing => {}
        }
    }

    /// Gives back what was taken. A bucket that was filled meanwhile is cut to its depth when it is next looked at.
    fn give_back(&mut self, takes: Takes, limits: Limited) {
        match takes {
            Takes::Key => {
                if limits.keys {
                    self.keys.tokens += 1.0;
                }
                self.records.iter_mut().for_each(|records| records.give_back());
            }
            Takes::Lookup if limits.lookups => self.lookups.tokens += 1.0,
            Takes::Lookup | Takes::Nothing => {}
        }
    }
}

/// What is limited, of a scope or in all.
#[derive(Clone, Copy)]
struct Limited {
    keys: bool,
    lookups: bool,
    records: bool,
}

impl Limited {
    fn of_scope(limits: &Limits) -> Self {
        Self {
            keys: limits.keys_per_second.is_some(),
            lookups: limits.lookups_per_second.is_some(),
            records: limits.keys_alive.is_some(),
        }
    }

    fn in_all(limits: &Limits) -> Self {
        Self {
            keys: limits.keys_per_second_total.is_some(),
            lookups: limits.lookups_per_second_total.is_some(),
            records: limits.keys_alive_total.is_some(),
        }
    }
}

/// Tokens that come back at a rate.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

/// A rate, and how many tokens may be kept.
#[derive(Clone, Copy)]
struct Rate {
    per_second: f64,
    depth: f64,
}

impl Rate {
    fn of(number: u64, nodes: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a rate above 2^53 a second limits nothing")]
        let per_second = number as f64 / nodes.max(1) as f64;
        Self { per_second, depth: per_second.max(1.0) }
    }
}

impl Bucket {
    fn full(now: Instant) -> Self {
        Self { tokens: f64::INFINITY, filled_at: now }
    }

    /// How long until there is a token; zero where there is one.
    fn wait(&mut self, rate: Rate, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + passed * rate.per_second).min(rate.depth);
        self.filled_at = self.filled_at.max(now);
        if self.tokens >= 1.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64((1.0 - self.tokens) / rate.per_second).unwrap_or(Duration::MAX)
    }
}

/// How many records there are at most.
#[derive(Debug, Default)]
struct Records {
    /// What the store counted, and when it was asked.
    counted: Option<(Alive, Instant)>,
    /// Granted since then: none of these is surely in the count.
    since: u64,
    /// The same for the count that the store is being asked for.
    since_asked: u64,
    /// Granted, and the store has not answered whether they are reserved.
    open: u64,
    /// Somebody sees to the next count.
    is_renewed: bool,
}

impl Records {
    /// At most so many; none where the store has not been asked.
    fn bound(&self) -> Option<u64> {
        self.counted.as_ref().map(|(alive, _)| alive.count.saturating_add(self.since))
    }

    fn grant(&mut self) {
        self.since += 1;
        self.since_asked += 1;
        self.open += 1;
    }

    /// It is reserved, or may be.
    fn settle(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// It was not reserved.
    fn give_back(&mut self) {
        self.settle();
        self.since = self.since.saturating_sub(1);
        self.since_asked = self.since_asked.saturating_sub(1);
    }

    /// The store is asked now. What is open may be in its count or not.
    fn ask(&mut self) {
        self.since_asked = self.open;
    }

    fn answered(&mut self, alive: Alive, asked_at: Instant) {
        self.counted = Some((alive, asked_at));
        self.since = self.since_asked;
        self.is_renewed = false;
    }

    /// When to come back: at the next expiry, where that is known.
    fn retry_after(&self, now: Instant) -> Duration {
        let next = self.counted.as_ref().and_then(|(alive, asked_at)| Some(*asked_at + alive.next_expiry?));
        next.map_or(EXPIRY_UNKNOWN, |next| next.saturating_duration_since(now))
    }
}

/// Whose records are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Scope(Digest),
    All,
}

/// Whether the store must be asked how many records there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recount {
    No,
    /// Soon: the count is about to be too old. Whoever is told so sees to it.
    Soon,
    Now,
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) takes: Takes,
    /// Whether it becomes an attempt of this node.
    pub(crate) runs: bool,
}

/// What a request takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// A new key: a token and a record.
    Key,
    /// A look at a key that exists.
    Lookup,
    /// Nothing: it was counted before.
    Nothing,
}

impl Limiter {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            scopes: LruCache::new(SCOPES_MAX),
            total: Usage::new(Instant::now()),
            in_flight: HashMap::new(),
            in_flight_total: 0,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Takes all that a request wants, or nothing and says why. Dropped, what was granted is given back.
    pub(crate) fn take<'a>(
        self: &'a Arc<Self>,
        limits: &'a Limits,
        scope: &'a Digest,
        wanted: Wanted,
        now: Instant,
    ) -> Result<Grant<'a>, Refusal> {
        let mut state = self.state();
        let state = &mut *state;
        let usage = usage(&mut state.scopes, scope, now);
        let nodes = limits.nodes;
        match wanted.takes {
            Takes::Key => {
                enough(&mut usage.keys, limits.keys_per_second, nodes, now, Limit::KeysPerSecond)?;
                let total = &mut state.total;
                enough(&mut total.keys, limits.keys_per_second_total, nodes, now, Limit::KeysPerSecondTotal)?;
                room(usage, limits.keys_alive, now, Limit::KeysAlive)?;
                room(total, limits.keys_alive_total, now, Limit::KeysAliveTotal)?;
            }
            Takes::Lookup => {
                enough(&mut usage.lookups, limits.lookups_per_second, nodes, now, Limit::LookupsPerSecond)?;
                let (total, limit) = (&mut state.total, Limit::LookupsPerSecondTotal);
                enough(&mut total.lookups, limits.lookups_per_second_total, nodes, now, limit)?;
            }
            Takes::Nothing => {}
        }
        if wanted.runs {
            let of_scope = state.in_flight.get(scope).copied().unwrap_or(0);
            few(of_scope, limits.in_flight, nodes, Limit::InFlight)?;
            few(state.in_flight_total, limits.in_flight_total, nodes, Limit::InFlightTotal)?;
        }
        usage.take(wanted.takes, Limited::of_scope(limits));
        state.total.take(wanted.takes, Limited::in_all(limits));
        let counts_runs = limits.in_flight.is_some() || limits.in_flight_total.is_some();
        let running = (wanted.runs && counts_runs).then(|| {
            *state.in_flight.entry(*scope).or_default() += 1;
            state.in_flight_total += 1;
            Running { limiter: self.clone(), scope: *scope }
        });
        Ok(Grant { limiter: self, limits, scope, takes: wanted.takes, running })
    }

    /// Whether the store must be asked how many records there are before a new key is granted. `is_shared` says whether
    /// others reserve keys there too.
    pub(crate) fn recount(&self, limits: &Limits, whose: Whose, is_shared: bool, now: Instant) -> Recount {
        let mut state = self.state();
        let (usage, limit) = match &whose {
            Whose::Scope(scope) => (usage(&mut state.scopes, scope, now), limits.keys_alive),
            Whose::All => (&mut state.total, limits.keys_alive_total),
        };
        let (Some(limit), Some(records)) = (limit, &mut usage.records) else {
            return if limit.is_some() { Recount::Now } else { Recount::No };
        };
        let (Some(bound), Some((_, asked_at))) = (records.bound(), &records.counted) else {
            return Recount::Now;
        };
        if !is_shared && bound < limit {
            return Recount::No;
        }
        match now.saturating_duration_since(*asked_at) {
            age if age >= COUNT_AGE_MAX => Recount::Now,
            age if age >= COUNT_AGAIN && is_shared && !records.is_renewed => {
                records.is_renewed = true;
                Recount::Soon
            }
            _ => Recount::No,
        }
    }

    /// Whether the store was asked at this moment or later, and has answered.
    pub(crate) fn was_counted_since(&self, whose: Whose, moment: Instant) -> bool {
        let mut is_so = false;
        self.records(whose, moment, |records| {
            is_so = records.counted.as_ref().is_some_and(|(_, asked_at)| *asked_at >= moment);
        });
        is_so
    }

    /// The store is about to be asked. One at a time asks for the same.
    pub(crate) fn ask(&self, whose: Whose, now: Instant) {
        self.records(whose, now, Records::ask);
    }

    /// The store has answered.
    pub(crate) fn answered(&self, whose: Whose, alive: Alive, asked_at: Instant) {
        self.records(whose, asked_at, |records| records.answered(alive, asked_at));
    }

    fn records(&self, whose: Whose, now: Instant, change: impl FnOnce(&mut Records)) {
        let mut state = self.state();
        match &whose {
            Whose::Scope(scope) => {
                change(usage(&mut state.scopes, scope, now).records.get_or_insert_default());
            }
            Whose::All => change(state.total.records.get_or_insert_default()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn usage<'a>(scopes: &'a mut LruCache<Digest, Usage>, scope: &Digest, now: Instant) -> &'a mut Usage {
    if scopes.get(scope).is_none() {
        scopes.insert(*scope, Usage::new(now));
    }
    scopes.get_mut(scope).expect("it was there, or was inserted just now")
}

fn enough(
    bucket: &mut Bucket,
    rate: Option<u64>,
    nodes: u64,
    now: Instant,
    limit: Limit,
) -> Result<(), Refusal> {
    let Some(rate) = rate else { return Ok(()) };
    let wait = bucket.wait(Rate::of(rate, nodes), now);
    if wait.is_zero() { Ok(()) } else { Err(reached(limit, wait)) }
}

fn room(usage: &Usage, most: Option<u64>, now: Instant, limit: Limit) -> Result<(), Refusal> {
    let (Some(most), Some(records)) = (most, &usage.records) else { return Ok(()) };
    match records.bound() {
        Some(bound) if bound >= most => Err(reached(limit, records.retry_after(now))),
        Some(_) | None => Ok(()),
    }
}

fn few(running: u64, most: Option<u64>, nodes: u64, limit: Limit) -> Result<(), Refusal> {
    match most {
        Some(most) if running >= (most / nodes.max(1)).max(1) => Err(reached(limit, RETRY_AFTER_MIN)),
        Some(_) | None => Ok(()),
    }
}

fn reached(limit: Limit, retry_after: Duration) -> Refusal {
    Refusal::LimitReached { limit, retry_after: retry_after.max(RETRY_AFTER_MIN) }
}

/// What a request was granted. Dropped, it is given back: the key was taken, or nothing was written.
#[derive(Debug)]
#[must_use = "dropped, it is given back"]
pub(crate) struct Grant<'a> {
    limiter: &'a Arc<Limiter>,
    limits: &'a Limits,
    scope: &'a Digest,
    takes: Takes,
    running: Option<Running>,
}

impl Grant<'_> {
    /// It is used. What is left is the attempt, for as long as it runs.
    pub(crate) fn used(mut self) -> Option<Running> {
        if self.takes == Takes::Key && self.limits.counts_records() {
            let mut state = self.limiter.state();
            let of_scope = state.scopes.peek_mut(self.scope).and_then(|usage| usage.records.as_mut());
            of_scope.into_iter().for_each(|records| records.settle());
            state.total.records.iter_mut().for_each(|records| records.settle());
        }
        self.takes = Takes::Nothing;
        self.running.take()
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        if self.takes == Takes::Nothing {
            return;
        }
        let mut state = self.limiter.state();
        // A scope that was forgotten meanwhile is full already.
        if let Some(usage) = state.scopes.peek_mut(self.scope) {
            usage.give_back(self.takes, Limited::of_scope(self.limits));
        }
        state.total.give_back(self.takes, Limited::in_all(self.limits));
    }
}

/// An attempt under way on this node, until it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    limiter: Arc<Limiter>,
    scope: Digest,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.limiter.state();
        state.in_flight_total = state.in_flight_total.saturating_sub(1);
        if let Some(running) = state.in_flight.get_mut(&self.scope) {
            *running -= 1;
            if *running == 0 {
                state.in_flight.remove(&self.scope);
            }
        }
    }
}

#[cfg(test)]
mod tests;
