//! A seeded simulation: nodes, clients and a downstream on a virtual clock, while everything around them fails.
//!
//! Several nodes share one store, each over a link that delays, loses and refuses; behind them is a downstream of each
//! kind of effects that acts late, dies and loses answers; clients hang up and come back; nodes stand still, are cut
//! off and die. Then the faults stop, and everybody must come to an end. What happened to each key is judged by the
//! checker in [`history`].
//!
//! Everything follows from the seed. `ONLYONCE_SIM_SEED=7` plays one and prints what happened;
//! `ONLYONCE_SIM_SEEDS=100000` plays more of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod bank;
mod client;
mod handler;
mod link;
mod node;
mod operator;
mod stage;
mod tally;
mod truth;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use onlyonce_testkit::{history, random};
use stage::Faults;
use tally::{Count, Tally};
use world::{Report, play};

/// As many as the test command has time for.
const SEEDS: u64 = 2_500;
/// Enough for each kind of effects many times over.
const CALM_SEEDS: u64 = 200;
/// A failing run shows so many seeds; the first is enough to work on.
const SHOWN_MAX: usize = 5;

/// R01, R02, R04, R05, R06, R07, P01, P05, F06, S02, T02, T03, U03, U04, X01, X03, X05, M01, M02, M04
#[test]
fn whatever_fails_the_promise_of_each_kind_holds_and_everybody_comes_to_an_end() {
    if let Some(seed) = number("ONLYONCE_SIM_SEED") {
        return show(seed);
    }
    let seeds = number("ONLYONCE_SIM_SEEDS").unwrap_or(SEEDS);
    let (failed, tally) = play_all(seeds, Faults::All);
    println!("{seeds} seeds: {tally}");
    assert!(failed.is_empty(), "{} of {seeds} seeds failed:\n{}", failed.len(), told(&failed));
    let missing = tally.missing(seeds);
    assert!(missing.is_empty(), "void: too little of {missing:?} in {seeds} seeds");
}

/// X05, R02: a client library that loses an answer sends its write again. The second one finds the first, and that is no
/// reason for a key to refuse itself: where nothing else goes wrong, every attempt that is reserved is run and ends.
#[test]
fn where_writes_are_sent_twice_and_nothing_else_goes_wrong_nothing_lapses_and_nothing_is_in_doubt() {
    let (failed, tally) = play_all(CALM_SEEDS, Faults::OnlyRepeats);
    println!("{CALM_SEEDS} seeds: {tally}");
    assert!(failed.is_empty(), "{} of {CALM_SEEDS} seeds failed:\n{}", failed.len(), told(&failed));
    let (lapsed, unknown) = (tally.of(Count::Lapsed), tally.of(Count::BecameUnknown));
    assert_eq!((lapsed, unknown), (0, 0), "leases that lapsed, and records in doubt");
    let repeated = tally.of(Count::SwapRepeated);
    assert!(
        repeated > CALM_SEEDS && tally.of(Count::Renewed) > 0,
        "{repeated} repeated writes prove nothing"
    );
}

/// A seed is worth printing only if it plays the same again.
#[test]
fn a_seed_plays_the_same_again() {
    for seed in [1, 2, 3, 5, 8, 13, 21, 34] {
        let events = |report: Report| report.histories.into_iter().map(|history| history.events);
        assert!(events(play(seed, Faults::All)).eq(events(play(seed, Faults::All))), "seed {seed}");
    }
}

/// Spread over the cores; each seed has a runtime and a clock of its own.
fn play_all(seeds: u64, faults: Faults) -> (Vec<(u64, Vec<String>)>, Tally) {
    let (next, played) = (AtomicU64::new(0), Mutex::new((Vec::new(), Tally::default())));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds {
                        return;
                    }
                    let report = play(seed, faults);
                    let mut played = played.lock().unwrap();
                    played.1.add_all(&report.tally);
                    if !report.violations.is_empty() {
                        played.0.push((seed, report.violations));
                    }
                }
            });
        }
    });
    let (mut failed, tally) = played.into_inner().unwrap();
    failed.sort();
    (failed, tally)
}

fn told(failed: &[(u64, Vec<String>)]) -> String {
    let shown = failed.iter().take(SHOWN_MAX).map(|(seed, violations)| {
        let command = "cargo test -p onlyonce --test sim whatever -- --nocapture";
        format!("seed {seed}:\n  {}\n  ONLYONCE_SIM_SEED={seed} {command}", violations.join("\n  "))
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn show(seed: u64) {
    let report = play(seed, Faults::All);
    for (number, history) in report.histories.iter().enumerate() {
        println!("key {number}, {:?}", history.effects);
        for (index, event) in history.events.iter().enumerate() {
            println!("{index:>5} {event}");
        }
    }
    println!("{}", report.tally);
    assert!(report.violations.is_empty(), "seed {seed}:\n  {}", report.violations.join("\n  "));
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")))
}
