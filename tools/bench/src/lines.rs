//! Figures in words, a line each, beside what was promised.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use crate::figures::{Sample, Spread, Standing, spread};
use crate::growth::RECORDS_FEW;

/// What the promise is about; on less it cannot be shown to be kept, only to be broken.
const RECORDS_PROMISED: u64 = 10_000_000;
const RPS_TO_FEW: Bound = Bound::AtLeast { floor: 0.5, goal: 0.9 };
const P99_TO_FEW: Bound = Bound::AtMost { floor: 1.5, goal: 1.5 };

/// The same load twice, in one round.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) without: Sample,
    pub(crate) with: Sample,
}

impl Pair {
    pub(crate) fn json(&self) -> Value {
        let sample = |sample: Sample| json!({ "rps": sample.rps, "p50_ms": sample.p50_ms, "p99_ms": sample.p99_ms, "cpu_us": sample.cpu_us });
        json!({ "without": sample(self.without), "with": sample(self.with) })
    }
}

/// What a figure must be.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtLeast { floor: f64, goal: f64 },
    AtMost { floor: f64, goal: f64 },
}

impl Bound {
    pub(crate) fn standing(self, figure: f64) -> Standing {
        let (keeps_floor, reaches_goal) = match self {
            Self::AtLeast { floor, goal } => (figure >= floor, figure >= goal),
            Self::AtMost { floor, goal } => (figure <= floor, figure <= goal),
        };
        match (keeps_floor, reaches_goal) {
            (_, true) => Standing::Reached,
            (true, false) => Standing::ShortOfGoal,
            (false, false) => Standing::ShortOfPromise,
        }
    }

    /// The same on less than what was promised: nothing is shown by having reached it.
    fn standing_on_less(self, figure: f64) -> Standing {
        match self.standing(figure) {
            Standing::ShortOfPromise => Standing::ShortOfPromise,
            Standing::Shown | Standing::Reached | Standing::ShortOfGoal => Standing::Shown,
        }
    }
}

/// One figure, in words.
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) measured: String,
    pub(crate) target: String,
    pub(crate) standing: Standing,
}

impl Line {
    pub(crate) fn json(&self) -> Value {
        json!({
            "what": self.what,
            "measured": self.measured,
            "target": self.target,
            "standing": self.standing.words(),
        })
    }
}

/// For the terminal.
pub(crate) fn table(lines: &[Line]) -> String {
    lines.iter().fold(String::new(), |mut text, line| {
        let target = if line.target.is_empty() { String::new() } else { format!(" [{}]", line.target) };
        let _ = writeln!(text, "{}: {}{target} {}", line.what, line.measured, line.standing.words());
        text
    })
}

/// For the page.
pub(crate) fn section(of: &str, lines: &[Line]) -> String {
    let head = format!("| {of} | measured | floor → goal | |\n|---|---|---|---|\n");
    lines.iter().fold(head, |mut text, line| {
        let Line { what, measured, target, standing } = line;
        let _ = writeln!(text, "| {what} | {measured} | {target} | {} |", standing.words());
        text
    })
}

/// Many records to few.
pub(crate) fn of_sizes(records: u64, sizes: &[Pair]) -> Vec<Line> {
    let promised = records >= RECORDS_PROMISED;
    let records = grouped(records);
    let note = if promised { "" } else { ", promised for 10,000,000" };
    let line = |what: &str, of: fn(&Sample) -> f64, digits, bound: Bound, target: &str| {
        let ratio = ratios(sizes, of)?;
        let [few, many] = medians(sizes, of)?.map(|figure| format!("{figure:.digits$}"));
        Some(Line {
            what: format!("unique, {records} records to {}: {what}", grouped(RECORDS_FEW)),
            measured: format!("{} ({many} to {few})", spread_words(ratio, 2)),
            target: format!("{target}{note}"),
            standing: judge(bound, ratio.median, promised),
        })
    };
    let rps = line("RPS", |sample| sample.rps, 0, RPS_TO_FEW, "0.50 → ≥ 0.90");
    let p99 = line("p99 ms", |sample| sample.p99_ms, 2, P99_TO_FEW, "≤ 1.5");
    rps.into_iter().chain(p99).collect()
}

pub(crate) fn judge(bound: Bound, figure: f64, is_as_promised: bool) -> Standing {
    if is_as_promised { bound.standing(figure) } else { bound.standing_on_less(figure) }
}

/// Of the rounds, each by itself.
pub(crate) fn ratios(pairs: &[Pair], of: fn(&Sample) -> f64) -> Option<Spread> {
    spread(pairs.iter().map(|pair| of(&pair.with) / of(&pair.without)))
}

/// Without, and with.
pub(crate) fn medians(pairs: &[Pair], of: fn(&Sample) -> f64) -> Option<[f64; 2]> {
    let without = spread(pairs.iter().map(|pair| of(&pair.without)))?;
    let with = spread(pairs.iter().map(|pair| of(&pair.with)))?;
    Some([without.median, with.median])
}

/// Measures a pair in each round, and prints it.
pub(crate) fn pairs(
    rounds: u32,
    names: [&str; 2],
    mut measure: impl FnMut(u32) -> Result<Pair>,
) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for round in 1..=rounds {
        let pair = measure(round)?;
        tell(round, names, &pair);
        pairs.push(pair);
    }
    Ok(pairs)
}

/// What a round measured, for the terminal.
pub(crate) fn tell(round: u32, names: [&str; 2], pair: &Pair) {
    for (name, sample) in names.into_iter().zip([pair.without, pair.with]) {
        eprintln!(
            "round {round} {name:<19} {:>7.0} RPS  p50 {:>6.2} ms  p99 {:>6.2} ms  {:>5.1} µs CPU",
            sample.rps, sample.p50_ms, sample.p99_ms, sample.cpu_us
        );
    }
}

pub(crate) fn spread_words(spread: Spread, digits: usize) -> String {
    let Spread { median, low, high } = spread;
    format!("{median:.digits$} ({low:.digits$}–{high:.digits$})")
}

/// 1,000,000.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 10_000_000].map(grouped), ["0", "999", "1,000", "10,000,000"]);
    }
}
