use super::*;

const ANN: Digest = [1; 32];
const BOB: Digest = [2; 32];
const KEY: Wanted = Wanted { takes: Takes::Key, runs: true };
const LOOKUP: Wanted = Wanted { takes: Takes::Lookup, runs: false };

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Takes and uses at once what a request wants; says which limit refused it, and for how long.
fn used(
    limiter: &Arc<Limiter>,
    limits: &Limits,
    scope: &Digest,
    wanted: Wanted,
    now: Instant,
) -> Result<Option<Running>, (Limit, Duration)> {
    limiter.take(limits, scope, wanted, now).map(Grant::used).map_err(|refusal| {
        let Refusal::LimitReached { limit, retry_after } = refusal else { panic!("{refusal:?}") };
        (limit, retry_after)
    })
}

fn of_keys(keys_per_second: u64) -> Limits {
    Limits { keys_per_second: Some(keys_per_second), ..Limits::default() }
}

/// L02
#[test]
fn a_bucket_is_one_second_deep_and_fills_at_its_rate() {
    let (limiter, limits, start) = (Limiter::new(), of_keys(4), Instant::now());
    let taken = (0..10).filter(|_| used(&limiter, &limits, &ANN, KEY, start).is_ok()).count();
    assert_eq!(taken, 4);
    let half = start + seconds(0.5);
    let taken = (0..10).filter(|_| used(&limiter, &limits, &ANN, KEY, half).is_ok()).count();
    assert_eq!(taken, 2);
    let later = start + seconds(3600.0);
    let taken = (0..10).filter(|_| used(&limiter, &limits, &ANN, KEY, later).is_ok()).count();
    assert_eq!(taken, 4, "what is not used is not saved up");
    assert!(used(&limiter, &limits, &BOB, KEY, start).is_ok(), "another scope has its own");
}

/// L02
#[test]
fn who_comes_back_when_told_finds_a_token_and_nobody_is_told_less_than_a_second() {
    let limits = Limits { nodes: 10, ..of_keys(1) };
    let (limiter, start) = (Limiter::new(), Instant::now());
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok(), "one is there, however low the rate");
    let (limit, wait) = used(&limiter, &limits, &ANN, KEY, start + seconds(2.0)).unwrap_err();
    assert_eq!(limit, Limit::KeysPerSecond);
    assert!(wait > seconds(7.9) && wait < seconds(8.1), "{wait:?}");
    assert!(used(&limiter, &limits, &ANN, KEY, start + seconds(2.0) + wait + seconds(0.001)).is_ok());
    let (limiter, limits) = (Limiter::new(), of_keys(1_000));
    let mut refused = (0..1_001).filter_map(|_| used(&limiter, &limits, &ANN, KEY, start).err());
    assert_eq!(refused.next(), Some((Limit::KeysPerSecond, seconds(1.0))));
}

/// L02: first the scope's, then the total's; whoever is refused by the first takes nothing from the second.
#[test]
fn a_refusal_takes_nothing() {
    let limits = Limits { keys_per_second_total: Some(3), in_flight: Some(1), ..of_keys(2) };
    let (limiter, start) = (Limiter::new(), Instant::now());
    let running = used(&limiter, &limits, &ANN, KEY, start).unwrap();
    for _ in 0..5 {
        assert_eq!(used(&limiter, &limits, &ANN, KEY, start).unwrap_err().0, Limit::InFlight);
    }
    drop(running);
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok(), "its second token is still there");
    for _ in 0..5 {
        assert_eq!(used(&limiter, &limits, &ANN, KEY, start).unwrap_err().0, Limit::KeysPerSecond);
    }
    assert!(used(&limiter, &limits, &BOB, KEY, start).is_ok(), "so is the third of all");
    assert_eq!(used(&limiter, &limits, &BOB, KEY, start).unwrap_err().0, Limit::KeysPerSecondTotal);
}

/// L02: a key that turned out to exist was no new key.
#[test]
fn what_is_not_used_is_given_back() {
    let limits = Limits { keys_per_second_total: Some(1), in_flight_total: Some(1), ..of_keys(1) };
    let (limiter, start) = (Limiter::new(), Instant::now());
    for _ in 0..3 {
        drop(limiter.take(&limits, &ANN, KEY, start).unwrap());
    }
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok());
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_err(), "and no more than was taken");
}

/// L02
#[test]
fn attempts_are_counted_until_they_end() {
    let limits = Limits { in_flight: Some(4), in_flight_total: Some(6), nodes: 2, ..Limits::default() };
    let (limiter, start) = (Limiter::new(), Instant::now());
    let first = used(&limiter, &limits, &ANN, KEY, start).unwrap();
    let second = used(&limiter, &limits, &ANN, KEY, start).unwrap();
    let refused = used(&limiter, &limits, &ANN, KEY, start).unwrap_err();
    assert_eq!(refused, (Limit::InFlight, seconds(1.0)));
    assert!(used(&limiter, &limits, &ANN, LOOKUP, start).is_ok(), "a look-up is no attempt");
    let third = used(&limiter, &limits, &BOB, KEY, start).unwrap();
    assert_eq!(used(&limiter, &limits, &BOB, KEY, start).unwrap_err().0, Limit::InFlightTotal);
    drop((first, second));
    assert!(used(&limiter, &limits, &BOB, KEY, start).is_ok());
    drop(third);
    assert!(limiter.state().in_flight.is_empty(), "a scope without attempts takes no memory");
    assert_eq!(limiter.state().in_flight_total, 0);
}

/// L03
#[test]
fn look_ups_and_new_keys_have_buckets_of_their_own() {
    let limits = Limits { lookups_per_second: Some(1), ..of_keys(1) };
    let (limiter, start) = (Limiter::new(), Instant::now());
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok());
    assert!(used(&limiter, &limits, &ANN, LOOKUP, start).is_ok());
    assert_eq!(used(&limiter, &limits, &ANN, LOOKUP, start).unwrap_err().0, Limit::LookupsPerSecond);
    let counted = Wanted { takes: Takes::Nothing, runs: true };
    assert!(used(&limiter, &limits, &ANN, counted, start).is_ok(), "it was counted before");
}

fn alive(count: u64) -> Alive {
    Alive { count, next_expiry: Some(seconds(30.0)) }
}

/// L02: one node never exceeds it.
#[test]
fn records_are_those_counted_and_those_granted_since() {
    let limits = Limits { keys_alive: Some(10), ..Limits::default() };
    let (limiter, start, whose) = (Limiter::new(), Instant::now(), Whose::Scope(ANN));
    assert_eq!(limiter.recount(&limits, whose, false, start), Recount::Now);
    assert_eq!(limiter.recount(&limits, Whose::All, false, start), Recount::No, "it has no limit");
    limiter.ask(whose, start);
    limiter.answered(whose, alive(7), start);
    let open = limiter.take(&limits, &ANN, KEY, start).unwrap();
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok());
    // While the store counts, one is written and one is not known to be: it may be in the count or not.
    limiter.ask(whose, start);
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok());
    let refused = used(&limiter, &limits, &ANN, KEY, start + seconds(5.0)).unwrap_err();
    assert_eq!(refused, (Limit::KeysAlive, seconds(25.0)), "until the next one expires");
    limiter.answered(whose, alive(7), start);
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok());
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_err());
    drop(open);
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok(), "the open one was not reserved");
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_err());
}

/// L02: where others reserve too, no count is used that is older than a second.
#[test]
fn a_shared_store_is_asked_every_second_and_another_only_at_the_limit() {
    let limits = Limits { keys_alive_total: Some(10), ..Limits::default() };
    let (limiter, start, whose) = (Limiter::new(), Instant::now(), Whose::All);
    limiter.ask(whose, start);
    limiter.answered(whose, alive(9), start);
    let at = |after| start + seconds(after);
    assert_eq!(limiter.recount(&limits, whose, true, at(0.4)), Recount::No);
    assert_eq!(limiter.recount(&limits, whose, true, at(0.6)), Recount::Soon);
    assert_eq!(limiter.recount(&limits, whose, true, at(0.7)), Recount::No, "one of them sees to it");
    assert_eq!(limiter.recount(&limits, whose, true, at(1.0)), Recount::Now);
    assert_eq!(limiter.recount(&limits, whose, false, at(3600.0)), Recount::No);
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok());
    assert_eq!(limiter.recount(&limits, whose, false, at(0.9)), Recount::No);
    assert_eq!(limiter.recount(&limits, whose, false, at(1.0)), Recount::Now);
    assert_eq!(used(&limiter, &limits, &ANN, KEY, start).unwrap_err().0, Limit::KeysAliveTotal);
}

/// L02: a reload finds the buckets filled as they were, cut to their new depth.
#[test]
fn other_rates_hold_at_once() {
    let (limiter, start) = (Limiter::new(), Instant::now());
    let before = of_keys(100);
    (0..40).for_each(|_| drop(used(&limiter, &before, &ANN, KEY, start).unwrap()));
    let after = of_keys(2);
    let taken = (0..10).filter(|_| used(&limiter, &after, &ANN, KEY, start).is_ok()).count();
    assert_eq!(taken, 2);
    let none = Limits::default();
    (0..50).for_each(|_| drop(used(&limiter, &none, &ANN, KEY, start).unwrap()));
    assert!(used(&limiter, &after, &ANN, KEY, start + seconds(1.0)).is_ok(), "no debt was run up meanwhile");
}

/// L02: whoever makes scopes up does not make the memory grow.
#[test]
fn the_scopes_used_longest_ago_are_forgotten_and_come_back_full() {
    let (limiter, limits, start) = (Limiter::new(), of_keys(1), Instant::now());
    let scope = |number: u32| {
        let mut scope = [7; 32];
        scope[..4].copy_from_slice(&number.to_be_bytes());
        scope
    };
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok());
    assert!(used(&limiter, &limits, &BOB, KEY, start).is_ok());
    let most = u32::try_from(SCOPES_MAX).unwrap();
    for number in 0..most - 2 {
        assert!(used(&limiter, &limits, &scope(number), KEY, start).is_ok());
    }
    assert!(used(&limiter, &limits, &BOB, KEY, start).is_err(), "all of them are remembered");
    assert!(used(&limiter, &limits, &scope(most), KEY, start).is_ok());
    assert_eq!(limiter.state().scopes.len(), SCOPES_MAX);
    assert!(used(&limiter, &limits, &ANN, KEY, start).is_ok(), "used longest ago");
    assert!(used(&limiter, &limits, &BOB, KEY, start).is_err(), "looked at since");
    assert_eq!(limiter.state().scopes.len(), SCOPES_MAX);
}
