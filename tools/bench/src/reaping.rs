//! The reaper at work under load, on any store that keeps its records when the server is gone.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use crate::figures::{Sample, Standing};
use crate::growth::Extent;
use crate::lines::{Bound, Line, Pair, grouped, judge, medians, ratios, spread_words, tell};

/// What the reaper has to delete; on less the promises cannot be shown to be kept, only to be broken.
const EXPIRED_PROMISED: u64 = 1_000_000;
const P99: Bound = Bound::AtMost { floor: 2.0, goal: 1.5 };
/// All expired records must be gone after so long under load.
const GONE_WITHIN: Duration = Duration::from_secs(900);
/// After the rounds, how long the load goes on between two looks at what is left.
const LOOK_EVERY: Duration = Duration::from_secs(20);
const NO_WORKERS: &str = "--without-workers";

/// The results of one run.
pub(crate) struct Reaping {
    /// How many had expired at first.
    pub(crate) expired: u64,
    /// Without the reaper, and with it.
    pub(crate) pairs: Vec<Pair>,
    /// How many of the expired records there are in the end, and how long the reaper has worked by then.
    pub(crate) left: u64,
    pub(crate) worked: Duration,
}

/// One load on a server with these flags, on a store that the loads before it have used.
pub(crate) struct Load<'a> {
    pub(crate) run: &'a str,
    pub(crate) flags: &'a [&'a str],
    pub(crate) time: Duration,
}

/// How many records expire before the load.
pub(crate) fn expired(records: u64) -> u64 {
    EXPIRED_PROMISED.min(records)
}

/// The load without and with the reaper, while there is something to reap, and then with it until nothing is left. A
/// round in which the reaper came to its end says nothing about p99 and is left out.
pub(crate) fn measure(
    extent: Extent,
    load: impl Fn(Load<'_>) -> Result<Sample>,
    left: impl Fn() -> Result<u64>,
) -> Result<Reaping> {
    let expired = expired(extent.records);
    let mut reaping = Reaping { expired, pairs: Vec::new(), left: expired, worked: Duration::ZERO };
    let time = Duration::from_secs(extent.seconds);
    for round in 1..=extent.rounds {
        let without = load(Load { run: &format!("without-{round}"), flags: &[NO_WORKERS], time })?;
        let with = reaping.work(&load, &format!("with-{round}"), time)?;
        let pair = Pair { without, with };
        tell(round, ["without reaper", "with reaper"], &pair);
        reaping.left = left()?;
        if reaping.left == 0 {
            eprintln!("round {round} is left out: the reaper was done before the load was");
            return Ok(reaping);
        }
        reaping.pairs.push(pair);
    }
    for look in 1.. {
        if reaping.left == 0 || reaping.worked >= GONE_WITHIN {
            break;
        }
        reaping.work(&load, &format!("on-{look}"), LOOK_EVERY)?;
        reaping.left = left()?;
        eprintln!("expired records left after {:.0} s: {}", reaping.worked.as_secs_f64(), reaping.left);
    }
    Ok(reaping)
}

impl Reaping {
    fn work(
        &mut self,
        load: impl Fn(Load<'_>) -> Result<Sample>,
        run: &str,
        time: Duration,
    ) -> Result<Sample> {
        let began = Instant::now();
        let sample = load(Load { run, flags: &[], time })?;
        self.worked += began.elapsed();
        Ok(sample)
    }

    pub(crate) fn lines(&self) -> [Line; 2] {
        [self.p99_line(), self.left_line()]
    }

    fn p99_line(&self) -> Line {
        let what = format!("p99 ms while {} expired records are reaped, to without", grouped(self.expired));
        let target = "2.0 → ≤ 1.5".to_owned();
        let Some(ratio) = ratios(&self.pairs, |sample| sample.p99_ms) else {
            let measured = "not measured: the reaper was done too soon; use more records or less time";
            return Line { what, measured: measured.to_owned(), target, standing: Standing::Shown };
        };
        let middle = |of| medians(&self.pairs, of).unwrap_or_default();
        let [p99_without, p99_with] = middle(|sample| sample.p99_ms);
        let [rps_without, rps_with] = middle(|sample| sample.rps);
        let measured = format!(
            "{} ({p99_with:.2} to {p99_without:.2}; {rps_with:.0} RPS to {rps_without:.0})",
            spread_words(ratio, 2)
        );
        let standing = judge(P99, ratio.median, self.is_as_promised());
        Line { what, measured, target, standing }
    }

    fn left_line(&self) -> Line {
        let standing = match (self.left, self.is_as_promised()) {
            (0, true) => Standing::Reached,
            (0, false) => Standing::Shown,
            (_, _) => Standing::ShortOfPromise,
        };
        Line {
            what: format!("of {} expired records, left after being reaped under load", grouped(self.expired)),
            measured: format!("{} after {:.0} s", grouped(self.left), self.worked.as_secs_f64()),
            target: format!("0 within {} s", GONE_WITHIN.as_secs()),
            standing,
        }
    }

    fn is_as_promised(&self) -> bool {
        self.expired >= EXPIRED_PROMISED
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "expired": self.expired,
            "left": self.left,
            "worked_seconds": self.worked.as_secs_f64(),
            "rounds": self.pairs.iter().map(Pair::json).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn sample(p99_ms: f64) -> Sample {
        Sample { rps: 100.0, p50_ms: 1.0, p99_ms, cpu_us: 1.0, requests: 1 }
    }

    /// Three rounds in which a million expired records are reaped at `p99_ms` to 1, and so many are left in the end.
    pub(crate) fn reaping(p99_ms: f64, left: u64) -> Reaping {
        let pair = Pair { without: sample(1.0), with: sample(p99_ms) };
        Reaping { expired: EXPIRED_PROMISED, pairs: vec![pair; 3], left, worked: Duration::from_secs(90) }
    }

    fn standings(reaping: &Reaping) -> [Standing; 2] {
        reaping.lines().map(|line| line.standing)
    }

    #[test]
    fn a_slow_reaper_and_one_that_slows_others_fall_short() {
        assert_eq!(standings(&reaping(1.4, 0)), [Standing::Reached, Standing::Reached]);
        assert_eq!(standings(&reaping(1.9, 0)), [Standing::ShortOfGoal, Standing::Reached]);
        assert_eq!(standings(&reaping(2.1, 0)), [Standing::ShortOfPromise, Standing::Reached]);
        assert_eq!(standings(&reaping(1.4, 1)), [Standing::Reached, Standing::ShortOfPromise]);
    }

    #[test]
    fn fewer_records_than_promised_can_only_fall_short() {
        let few = |p99_ms, left| Reaping { expired: 10_000, ..reaping(p99_ms, left) };
        assert_eq!(standings(&few(1.4, 0)), [Standing::Shown, Standing::Shown]);
        assert_eq!(standings(&few(2.1, 1)), [Standing::ShortOfPromise, Standing::ShortOfPromise]);
    }

    #[test]
    fn the_load_goes_on_until_nothing_is_left_and_every_run_has_keys_of_its_own() {
        let (left, runs) = (Cell::new(5), RefCell::new(Vec::new()));
        let load = |load: Load<'_>| {
            runs.borrow_mut().push(load.run.to_owned());
            if load.flags.is_empty() {
                left.set(left.get() - 1);
            }
            Ok(sample(1.0))
        };
        let extent = Extent { records: 10_000_000, rounds: 3, seconds: 1 };
        let reaping = measure(extent, load, || Ok(left.get())).unwrap();
        assert_eq!((reaping.expired, reaping.pairs.len(), reaping.left), (EXPIRED_PROMISED, 3, 0));
        let mut runs = runs.into_inner();
        assert_eq!(runs.len(), 8);
        runs.sort();
        runs.dedup();
        assert_eq!(runs.len(), 8);
    }

    #[test]
    fn a_round_in_which_the_reaper_was_done_is_left_out() {
        let extent = Extent { records: 10_000, rounds: 3, seconds: 1 };
        let reaping = measure(extent, |_| Ok(sample(1.0)), || Ok(0)).unwrap();
        assert!(reaping.pairs.is_empty());
        let [p99, left] = reaping.lines();
        assert!(p99.measured.contains("not measured"), "{}", p99.measured);
        assert_eq!([p99.standing, left.standing], [Standing::Shown, Standing::Shown]);
    }
}
