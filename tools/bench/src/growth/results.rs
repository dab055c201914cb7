//! The results of `cargo xtask bench growth`, beside what was promised.

use serde_json::{Value, json};

use crate::figures::{Standing, cores, spread};
use crate::growth::Extent;
use crate::growth::asking::Asking;
use crate::lines::{self, Bound, Line, Pair, grouped, judge, spread_words};
use crate::reaping::Reaping;

const READY_RECORDS_PROMISED: u64 = 1_000_000;
const LISTING_RECORDS_PROMISED: u64 = 1_000_000;

const READY_MS: Bound = Bound::AtMost { floor: 100.0, goal: 100.0 };
const LISTING_MS: Bound = Bound::AtMost { floor: 50.0, goal: 50.0 };
/// Over the bare handler and two bare durable writes.
const REST_MS: Bound = Bound::AtMost { floor: 0.15, goal: 0.15 };
/// A fresh request has two commits. The margin is for what else commits meanwhile.
const COMMITS_ONE: Bound = Bound::AtMost { floor: 2.01, goal: 2.01 };
const COMMITS_REPLAY: Bound = Bound::AtMost { floor: 0.001, goal: 0.001 };

/// The results of one run.
pub(crate) struct Results {
    pub(crate) extent: Extent,
    pub(crate) cost: Cost,
    pub(crate) one_caller: Vec<OneCaller>,
    /// On few records, and on many.
    pub(crate) sizes: Vec<Pair>,
    pub(crate) kills: Vec<Kill>,
    pub(crate) listings: Vec<Listing>,
    pub(crate) reaping: Reaping,
    pub(crate) asking: Asking,
}

/// What requests leave on the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) many: Written,
    pub(crate) one: Written,
    pub(crate) replay: Written,
    /// The file at rest.
    pub(crate) file_bytes: u64,
    pub(crate) records: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) requests: u64,
    /// Each is one sync of the WAL.
    pub(crate) commits: u64,
    pub(crate) checkpoints: u64,
    /// To the WAL and the database file, by the kernel's count.
    pub(crate) bytes: u64,
}

/// Medians of one round, one request at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneCaller {
    /// A page appended and synced, without any database.
    pub(crate) append_ms: f64,
    /// A page written over another and synced.
    pub(crate) overwrite_ms: f64,
    pub(crate) plain_ms: f64,
    pub(crate) layer_ms: f64,
    pub(crate) hand_ms: f64,
}

impl OneCaller {
    fn added_ms(&self) -> f64 {
        self.layer_ms - self.plain_ms
    }

    fn rest_ms(&self) -> f64 {
        self.added_ms() - 2.0 * self.append_ms
    }
}

/// A server killed under load and started again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    pub(crate) ready_ms: f64,
    /// The plain handler's: what a process takes anyway.
    pub(crate) plain_ready_ms: f64,
    pub(crate) wal_bytes: u64,
    /// Attempts of the killed process that were settled at the start.
    pub(crate) abandoned: u64,
}

/// Pages of one listing, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) what: String,
    /// The most records on a page.
    pub(crate) limit: u64,
    pub(crate) pages_ms: Vec<f64>,
}

impl Results {
    pub(crate) fn keeps_its_promises(&self) -> bool {
        !self.lines().iter().any(|line| line.standing == Standing::ShortOfPromise)
    }

    fn lines(&self) -> Vec<Line> {
        let by_size = lines::of_sizes(self.extent.records, &self.sizes)
            .into_iter()
            .chain(self.reaping.lines())
            .chain(self.asking.line(self.extent.seconds))
            .chain(self.ready_lines())
            .chain(self.listing_lines());
        by_size.chain(self.one_caller_lines()).chain(self.cost_lines()).collect()
    }

    fn ready_lines(&self) -> Vec<Line> {
        let of = |of: fn(&Kill) -> f64| spread(self.kills.iter().map(of));
        let Some((ready, plain)) = of(|kill| kill.ready_ms).zip(of(|kill| kill.plain_ready_ms)) else {
            return Vec::new();
        };
        let wal_bytes = self.kills.iter().map(|kill| kill.wal_bytes).max().unwrap_or_default();
        let abandoned = self.kills.iter().map(|kill| kill.abandoned).max().unwrap_or_default();
        vec![Line {
            what: format!("ready after SIGKILL under load, {} records: ms", grouped(self.extent.records)),
            measured: format!(
                "{} (the plain handler's process {:.1}; WAL up to {} MB, up to {abandoned} abandoned attempts)",
                spread_words(ready, 1),
                plain.median,
                wal_bytes / 1_000_000
            ),
            target: "≤ 100, the slowest too".to_owned(),
            standing: judge(READY_MS, ready.high, self.extent.records >= READY_RECORDS_PROMISED),
        }]
    }

    fn listing_lines(&self) -> Vec<Line> {
        let line = |listing: &Listing| {
            let pages = spread(listing.pages_ms.iter().copied())?;
            Some(Line {
                what: format!(
                    "a listing page of {} among {} records, {}: ms",
                    listing.limit,
                    grouped(self.extent.records),
                    listing.what
                ),
                measured: format!("{} ({} pages)", spread_words(pages, 1), listing.pages_ms.len()),
                target: "≤ 50, the slowest too".to_owned(),
                standing: judge(LISTING_MS, pages.high, self.extent.records >= LISTING_RECORDS_PROMISED),
            })
        };
        self.listings.iter().filter_map(line).collect()
    }

    fn one_caller_lines(&self) -> Vec<Line> {
        let of = |of: fn(&OneCaller) -> f64| spread(self.one_caller.iter().map(of));
        let figures = (|| {
            Some([
                of(OneCaller::rest_ms)?,
                of(OneCaller::added_ms)?,
                of(|one| one.append_ms)?,
                of(|one| one.overwrite_ms)?,
                of(|one| one.hand_ms - one.plain_ms)?,
            ])
        })();
        let Some([rest, added, append, overwrite, hand]) = figures else { return Vec::new() };
        vec![Line {
            what: "one caller at a time: ms added to the bare handler, beyond two bare appends with fsync"
                .to_owned(),
            measured: format!(
                "{} (added {:.3}; a bare append {:.3}, a bare write in place {:.3}; hand-written adds {:.3})",
                spread_words(rest, 3),
                added.median,
                append.median,
                overwrite.median,
                hand.median
            ),
            target: "≤ 0.150".to_owned(),
            standing: REST_MS.standing(rest.median),
        }]
    }

    fn cost_lines(&self) -> Vec<Line> {
        let line = |what: &str, written: &Written, target: &str, standing| Line {
            what: format!("commits (syncs of the WAL) a request, {what}"),
            measured: format!(
                "{:.3} ({:.0} bytes written a request; {} checkpoints)",
                written.commits_each(),
                written.bytes_each(),
                written.checkpoints
            ),
            target: target.to_owned(),
            standing,
        };
        let Cost { many, one, replay, file_bytes, records } = &self.cost;
        vec![
            line("64 callers", many, "", Standing::Shown),
            line("one caller", one, "≤ 2", COMMITS_ONE.standing(one.commits_each())),
            line("replays", replay, "0", COMMITS_REPLAY.standing(replay.commits_each())),
            Line {
                what: "bytes on disk a record, the file at rest".to_owned(),
                measured: format!("{} ({} records)", file_bytes / (*records).max(1), grouped(*records)),
                target: String::new(),
                standing: Standing::Shown,
            },
        ]
    }

    pub(crate) fn json(&self) -> Value {
        let written = |written: Written| {
            json!({
                "requests": written.requests,
                "commits": written.commits,
                "checkpoints": written.checkpoints,
                "bytes": written.bytes,
            })
        };
        let one_caller = self.one_caller.iter().map(|one| {
            json!({
                "append_ms": one.append_ms,
                "overwrite_ms": one.overwrite_ms,
                "plain_ms": one.plain_ms,
                "layer_ms": one.layer_ms,
                "hand_ms": one.hand_ms,
            })
        });
        let kills = self.kills.iter().map(|kill| {
            json!({
                "ready_ms": kill.ready_ms,
                "plain_ready_ms": kill.plain_ready_ms,
                "wal_bytes": kill.wal_bytes,
                "abandoned": kill.abandoned,
            })
        });
        let listings = self.listings.iter().map(
            |listing| json!({ "what": listing.what, "limit": listing.limit, "pages_ms": listing.pages_ms }),
        );
        json!({
            "cores": cores(),
            "records": self.extent.records,
            "rounds": self.extent.rounds,
            "seconds": self.extent.seconds,
            "lines": self.lines().iter().map(Line::json).collect::<Vec<_>>(),
            "sizes": self.sizes.iter().map(Pair::json).collect::<Vec<_>>(),
            "reaping": self.reaping.json(),
            "asking": self.asking.json(),
            "kills": kills.collect::<Vec<_>>(),
            "listings": listings.collect::<Vec<_>>(),
            "one_caller": one_caller.collect::<Vec<_>>(),
            "cost": {
                "many": written(self.cost.many),
                "one": written(self.cost.one),
                "replay": written(self.cost.replay),
                "file_bytes": self.cost.file_bytes,
                "records": self.cost.records,
            },
        })
    }

    /// For the terminal.
    pub(crate) fn table(&self) -> String {
        lines::table(&self.lines())
    }

    /// For the page, between its marks.
    pub(crate) fn section(&self) -> String {
        let Extent { rounds, seconds, .. } = self.extent;
        let head = format!(
            "Measured on {} cores, which wrk shares: median of {rounds} rounds of {seconds} s each, lowest and highest in\n\
             brackets.\n\n",
            cores()
        );
        head + &lines::section("layer on SQLite", &self.lines())
    }
}

impl Written {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn commits_each(&self) -> f64 {
        self.commits as f64 / self.requests as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn bytes_each(&self) -> f64 {
        self.bytes as f64 / self.requests as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Sample;
    use crate::reaping::tests::reaping;

    fn sample(rps: f64, p99_ms: f64) -> Sample {
        Sample { rps, p50_ms: 1.0, p99_ms, cpu_us: 1.0, requests: 1 }
    }

    /// Three rounds on so many records, of which the larger store has `rps` to 100, and all else is as it should be.
    fn results(records: u64, rps: f64) -> Results {
        let written = |commits| Written { requests: 100, commits, checkpoints: 1, bytes: 1000 };
        let one =
            OneCaller { append_ms: 0.1, overwrite_ms: 0.08, plain_ms: 0.05, layer_ms: 0.3, hand_ms: 0.5 };
        let kill = Kill { ready_ms: 20.0, plain_ready_ms: 5.0, wal_bytes: 4_000_000, abandoned: 64 };
        Results {
            extent: Extent { records, rounds: 3, seconds: 1 },
            cost: Cost {
                many: written(10),
                one: written(200),
                replay: written(0),
                file_bytes: 7000,
                records: 10,
            },
            one_caller: vec![one; 3],
            sizes: vec![Pair { without: sample(100.0, 1.0), with: sample(rps, 1.2) }; 3],
            kills: vec![kill; 3],
            listings: vec![Listing { what: "by route".to_owned(), limit: 50, pages_ms: vec![4.0, 5.0, 9.0] }],
            reaping: reaping(1.4, 0),
            asking: asking(1.2),
        }
    }

    /// Three rounds in which p99 is so many times that of a gateway with nothing to ask about.
    fn asking(p99_ms: f64) -> Asking {
        let pair = Pair { without: sample(100.0, 1.0), with: sample(90.0, p99_ms) };
        Asking { pairs: vec![pair; 3], questions: vec![900, 800, 1_000] }
    }

    fn standing_of(results: &Results, what: &str) -> Standing {
        let line = results.lines().into_iter().find(|line| line.what.contains(what));
        line.unwrap().standing
    }

    #[test]
    fn what_falls_short_says_so() {
        let short = results(10_000_000, 40.0);
        assert_eq!(standing_of(&short, "RPS"), Standing::ShortOfPromise);
        assert!(!short.keeps_its_promises());
        assert!(short.section().contains("| 0.50 → ≥ 0.90 | FALLS SHORT"), "{}", short.section());
        assert_eq!(standing_of(&results(10_000_000, 60.0), "RPS"), Standing::ShortOfGoal);
        let good = results(10_000_000, 95.0);
        assert!(good.keeps_its_promises());
        for what in [
            "RPS",
            "to 10,000: p99",
            "reaped",
            "left",
            "SIGKILL",
            "unknown outcomes",
            "a listing page of 50 among 10,000,000 records, by route",
            "one caller at a time",
            "a request, one caller",
            "replays",
        ] {
            assert_eq!(standing_of(&good, what), Standing::Reached, "{what}");
        }
    }

    #[test]
    fn fewer_records_than_promised_can_only_fall_short() {
        assert_eq!(standing_of(&results(1_000_000, 95.0), "RPS"), Standing::Shown);
        assert_eq!(standing_of(&results(1_000_000, 40.0), "RPS"), Standing::ShortOfPromise);
        assert!(results(1_000_000, 95.0).table().contains("promised for 10,000,000"));
    }

    #[test]
    fn the_slowest_start_counts() {
        let mut slow = results(1_000_000, 95.0);
        slow.kills[0].ready_ms = 150.0;
        assert_eq!(standing_of(&slow, "SIGKILL"), Standing::ShortOfPromise);
    }

    #[test]
    fn asking_that_doubles_the_p99_falls_short() {
        let standing = |p99_ms| {
            standing_of(&Results { asking: asking(p99_ms), ..results(1_000_000, 95.0) }, "unknown outcomes")
        };
        assert_eq!(
            [standing(1.4), standing(1.9), standing(2.1)],
            [Standing::Reached, Standing::ShortOfGoal, Standing::ShortOfPromise]
        );
        let line = results(1_000_000, 95.0).table();
        assert!(line.contains("at least 800 questions a second"), "{line}");
    }

    #[test]
    fn the_slowest_page_of_a_listing_counts() {
        let mut slow = results(1_000_000, 95.0);
        slow.listings[0].pages_ms[0] = 51.0;
        assert_eq!(standing_of(&slow, "a listing page"), Standing::ShortOfPromise);
        assert_eq!(standing_of(&results(100_000, 95.0), "a listing page"), Standing::Shown);
    }

    #[test]
    fn a_fresh_request_of_one_caller_costs_two_syncs_and_little_more() {
        let mut slow = results(1_000_000, 95.0);
        slow.one_caller.iter_mut().for_each(|one| one.layer_ms += 0.15);
        assert_eq!(standing_of(&slow, "one caller at a time"), Standing::ShortOfPromise);
        let mut three = results(1_000_000, 95.0);
        three.cost.one.commits = 300;
        assert_eq!(standing_of(&three, "a request, one caller"), Standing::ShortOfPromise);
    }
}
