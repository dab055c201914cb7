//! The results of `cargo xtask bench postgres`, beside what was promised.

use anyhow::Result;
use onlyonce_testkit::repository;
use serde_json::{Value, json};

use crate::database::Counts;
use crate::figures::{Figures, Standing};
use crate::growth::Extent;
use crate::lines::{self, Bound, Line, Pair, grouped, medians, ratios, spread_words};
use crate::reaping::Reaping;
use crate::subjects::WAKE_ACROSS_MS_MAX;
use crate::{chart, findings, page};

const ONE_CALLER: Bound = Bound::AtMost { floor: 1.25, goal: 1.1 };
/// A fresh request has two commits and two round trips. The margin is for what else is counted meanwhile: what a node asks when
/// it starts, and its workers.
const TWO_EACH: Bound = Bound::AtMost { floor: 2.05, goal: 2.05 };
const NONE_EACH: Bound = Bound::AtMost { floor: 0.01, goal: 0.01 };

/// The results of one run.
pub(crate) struct Results {
    pub(crate) extent: Extent,
    pub(crate) figures: Figures,
    pub(crate) hand: Cost,
    pub(crate) layer: Cost,
    /// By hand, and by the layer.
    pub(crate) one_caller: Vec<Pair>,
    /// One node, and two.
    pub(crate) two_nodes: Vec<Pair>,
    pub(crate) storm_across: Value,
    /// On few records, and on many.
    pub(crate) sizes: Vec<Pair>,
    pub(crate) touched: Touched,
    pub(crate) reaping: Reaping,
    /// Without a long-running reader, and with one.
    pub(crate) reader: Vec<Pair>,
    pub(crate) sweep: SweepTimes,
}

/// What the server counts for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) many: Counts,
    pub(crate) one: Counts,
    pub(crate) replay: Counts,
}

/// WAL for a request on many records: right after a checkpoint, and later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    /// In between.
    pub(crate) requests: u64,
    pub(crate) first_bytes: f64,
    pub(crate) last_bytes: f64,
}

/// How long the sweeper takes to look for lapsed leases on the vacuumed table, after a load without and with a long-running
/// reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SweepTimes {
    pub(crate) requests: u64,
    pub(crate) without_ms: f64,
    pub(crate) with_ms: f64,
}

impl Results {
    pub(crate) fn keeps_its_promises(&self) -> bool {
        let is_short = |line: &Line| line.standing == Standing::ShortOfPromise;
        self.figures.keeps_its_promises() && !self.lines().iter().any(is_short)
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = self.one_caller_line().into_iter().collect();
        lines.push(self.storm_line());
        lines.extend(self.two_nodes_line());
        lines.extend(lines::of_sizes(self.extent.records, &self.sizes));
        lines.push(self.touched_line());
        lines.extend(self.reaping.lines());
        lines.extend(self.reader_line());
        lines.extend(self.cost_lines());
        lines
    }

    fn one_caller_line(&self) -> Option<Line> {
        let ratio = ratios(&self.one_caller, |sample| sample.p50_ms)?;
        let [hand, layer] = medians(&self.one_caller, |sample| sample.p50_ms)?;
        Some(Line {
            what: "one caller at a time: p50 to the hand-written".to_owned(),
            measured: format!(
                "{} ({layer:.2} ms to {hand:.2}; {} rounds)",
                spread_words(ratio, 2),
                self.one_caller.len()
            ),
            target: "1.25 → ≤ 1.1".to_owned(),
            standing: ONE_CALLER.standing(ratio.median),
        })
    }

    fn storm_line(&self) -> Line {
        let storm = &self.storm_across;
        let kept = findings::is_woken_within(WAKE_ACROSS_MS_MAX, storm);
        Line {
            what: format!(
                "storm of {} on one key across two nodes, with `Prefer: wait`",
                storm["connections"]
            ),
            measured: format!(
                "{} runs, answers {}, the last {:.1} ms after the first (worst round {:.1} ms)",
                storm["runs_per_key_max"],
                storm["statuses"],
                storm["spread_ms_median"].as_f64().unwrap_or(f64::NAN),
                storm["spread_ms_max"].as_f64().unwrap_or(f64::NAN)
            ),
            target: format!("1 run, ≤ {WAKE_ACROSS_MS_MAX} ms"),
            standing: if kept { Standing::Reached } else { Standing::ShortOfPromise },
        }
    }

    fn two_nodes_line(&self) -> Option<Line> {
        let rps = ratios(&self.two_nodes, |sample| sample.rps)?;
        let cpu = ratios(&self.two_nodes, |sample| sample.cpu_us)?;
        let [one, two] = medians(&self.two_nodes, |sample| sample.rps)?;
        Some(Line {
            what: "unique, two nodes to one, as many callers on the same cores: RPS".to_owned(),
            measured: format!(
                "{} ({two:.0} to {one:.0}; CPU {})",
                spread_words(rps, 2),
                spread_words(cpu, 2)
            ),
            target: String::new(),
            standing: Standing::Shown,
        })
    }

    fn touched_line(&self) -> Line {
        let Touched { requests, first_bytes, last_bytes } = self.touched;
        Line {
            what: format!("WAL bytes a request, {} records", grouped(self.extent.records)),
            measured: format!(
                "{last_bytes:.0} ({first_bytes:.0} right after a checkpoint, {} requests before)",
                grouped(requests)
            ),
            target: String::new(),
            standing: Standing::Shown,
        }
    }

    fn reader_line(&self) -> Vec<Line> {
        let Some(rps) = ratios(&self.reader, |sample| sample.rps) else { return Vec::new() };
        let Some(p99) = ratios(&self.reader, |sample| sample.p99_ms) else { return Vec::new() };
        let SweepTimes { requests, without_ms, with_ms } = self.sweep;
        let line = |what: &str, measured| Line {
            what: what.to_owned(),
            measured,
            target: String::new(),
            standing: Standing::Shown,
        };
        vec![
            line(
                "unique while a transaction elsewhere reads for long, to without: RPS",
                format!("{} (p99 {})", spread_words(rps, 2), spread_words(p99, 2)),
            ),
            line(
                "ms to find what has lapsed after that, vacuumed",
                format!(
                    "{with_ms:.2} with the reader, {without_ms:.2} without, after {} requests",
                    grouped(requests)
                ),
            ),
        ]
    }

    fn cost_lines(&self) -> Vec<Line> {
        let (layer, hand) = (&self.layer, &self.hand);
        vec![
            cost_line("64 callers", &layer.many, &hand.many),
            cost_line("one caller", &layer.one, &hand.one),
            cost_line("replays", &layer.replay, &hand.replay),
        ]
    }

    pub(crate) fn json(&self) -> Value {
        let pairs = |pairs: &[Pair]| pairs.iter().map(Pair::json).collect::<Vec<_>>();
        let cost = |cost: &Cost| json!({ "many": counts(&cost.many), "one": counts(&cost.one), "replay": counts(&cost.replay) });
        let mut json = self.figures.json();
        json["records"] = self.extent.records.into();
        json["lines"] = self.lines().iter().map(Line::json).collect();
        json["cost"] = json!({ "hand": cost(&self.hand), "layer": cost(&self.layer) });
        json["one_caller"] = pairs(&self.one_caller).into();
        json["two_nodes"] = pairs(&self.two_nodes).into();
        json["storm_across"] = self.storm_across.clone();
        json["sizes"] = pairs(&self.sizes).into();
        json["reaping"] = self.reaping.json();
        json["reader"] = pairs(&self.reader).into();
        json
    }

    pub(crate) fn draw(&self) -> Result<()> {
        let path = repository::root().join("docs").join(self.figures.series.chart);
        Ok(std::fs::write(path, chart::draw(&self.figures))?)
    }

    /// For the terminal.
    pub(crate) fn table(&self) -> String {
        page::table(&self.figures) + &lines::table(&self.lines())
    }

    /// For the page, between its marks.
    pub(crate) fn section(&self) -> String {
        format!("{}\n{}", page::section(&self.figures), lines::section("layer on PostgreSQL", &self.lines()))
    }
}

/// Of one kind of request: what is promised is the number of commits and of round trips.
fn cost_line(what: &str, layer: &Counts, hand: &Counts) -> Line {
    let (target, standing) = match what {
        "one caller" => ("2 commits, 2 round trips", two_of_each(layer)),
        "replays" => ("no commit", NONE_EACH.standing(layer.commits)),
        _ => ("", Standing::Shown),
    };
    let words = |counts: &Counts| {
        format!(
            "{:.0} bytes of WAL, {:.2} commits, {:.2} round trips, {:.2} dead rows, {:.0} % HOT",
            counts.wal_bytes,
            counts.commits,
            counts.trips,
            counts.dead,
            100.0 * counts.hot / counts.updates.max(f64::MIN_POSITIVE)
        )
    };
    Line {
        what: format!("a request costs the server, {what}"),
        measured: format!("{} (by hand: {})", words(layer), words(hand)),
        target: target.to_owned(),
        standing,
    }
}

fn two_of_each(counts: &Counts) -> Standing {
    TWO_EACH.standing(counts.commits.max(counts.trips))
}

fn counts(counts: &Counts) -> Value {
    json!({
        "wal_bytes": counts.wal_bytes,
        "wal_pages": counts.wal_pages,
        "commits": counts.commits,
        "round_trips": counts.trips,
        "updates": counts.updates,
        "hot_updates": counts.hot,
        "dead_rows": counts.dead,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Sample;
    use crate::reaping::tests::reaping;
    use crate::subjects::POSTGRES;

    fn sample(rps: f64, p50_ms: f64) -> Sample {
        Sample { rps, p50_ms, p99_ms: 2.0 * p50_ms, cpu_us: 1.0, requests: 1 }
    }

    fn results(one_caller_ms: f64, trips: f64) -> Results {
        let pairs = |with: Sample| vec![Pair { without: sample(100.0, 1.0), with }; 3];
        let counts = |trips| Counts {
            wal_bytes: 1000.0,
            wal_pages: 0.0,
            commits: trips,
            trips,
            updates: 1.0,
            hot: 0.0,
            dead: 1.0,
        };
        let cost = |trips| Cost { many: counts(0.1), one: counts(trips), replay: counts(0.0) };
        Results {
            extent: Extent { records: 10_000_000, rounds: 3, seconds: 1 },
            figures: Figures::new(&POSTGRES, 3, 1),
            hand: cost(2.0),
            layer: cost(trips),
            one_caller: pairs(sample(100.0, one_caller_ms)),
            two_nodes: pairs(sample(100.0, 1.0)),
            storm_across: json!({
                "connections": 64, "rounds": 20, "runs_per_key_max": 1, "statuses": { "201": 1280 },
                "spread_ms_median": 20.0, "spread_ms_max": 70.0,
            }),
            sizes: pairs(sample(95.0, 1.0)),
            touched: Touched { requests: 9, first_bytes: 7000.0, last_bytes: 2000.0 },
            reaping: reaping(1.2, 0),
            reader: pairs(sample(99.0, 1.0)),
            sweep: SweepTimes { requests: 9, without_ms: 0.1, with_ms: 3.0 },
        }
    }

    fn standing_of(results: &Results, what: &str) -> Standing {
        results.lines().into_iter().find(|line| line.what.contains(what)).unwrap().standing
    }

    #[test]
    fn what_falls_short_says_so() {
        let good = results(1.05, 2.01);
        assert!(good.keeps_its_promises(), "{}", good.table());
        assert_eq!(standing_of(&good, "storm"), Standing::Reached);
        assert_eq!(standing_of(&good, "reaped"), Standing::Reached);
        assert_eq!(standing_of(&good, "left"), Standing::Reached);
        assert_eq!(standing_of(&results(1.2, 2.0), "one caller at a time"), Standing::ShortOfGoal);
        assert_eq!(standing_of(&results(1.3, 2.0), "one caller at a time"), Standing::ShortOfPromise);
        assert_eq!(standing_of(&results(1.0, 3.0), "server, one caller"), Standing::ShortOfPromise);
        assert!(results(1.2, 2.0).keeps_its_promises());
        assert!(!results(1.3, 2.0).keeps_its_promises());
    }

    #[test]
    fn a_storm_across_nodes_that_runs_twice_or_wakes_late_falls_short() {
        let mut twice = results(1.0, 2.0);
        twice.storm_across["runs_per_key_max"] = 2.into();
        assert_eq!(standing_of(&twice, "storm"), Standing::ShortOfPromise);
        let mut late = results(1.0, 2.0);
        late.storm_across["spread_ms_median"] = 51.0.into();
        assert_eq!(standing_of(&late, "storm"), Standing::ShortOfPromise);
    }
}
