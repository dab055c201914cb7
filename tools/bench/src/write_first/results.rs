//! The results of `cargo xtask bench write-first`, beside what was promised.

use serde_json::{Value, json};

use super::MESSAGES_FEW;
use crate::figures::{Standing, cores, spread};
use crate::growth::Extent;
use crate::lines::{self, Bound, Line, Pair, grouped, judge, medians, ratios, spread_words};

const ONE_CALLER: Bound = Bound::AtLeast { floor: 0.9, goal: 0.9 };
const MANY_CALLERS: Bound = Bound::AtLeast { floor: 1.5, goal: 1.5 };
const RELAY: Bound = Bound::AtLeast { floor: 2.0, goal: 2.0 };
const CLAIM: Bound = Bound::AtMost { floor: 1.5, goal: 1.2 };
/// What the promise about a claim is about.
const MESSAGES_PROMISED: u64 = 1_000_000;

/// The results of one run.
pub(crate) struct Results {
    /// Its records are the messages of the large backlog.
    pub(crate) extent: Extent,
    /// Round trips a request.
    pub(crate) trips: Sides,
    /// By hand, and by the layer.
    pub(crate) one_caller: Vec<Pair>,
    pub(crate) many_callers: Vec<Pair>,
    /// Messages a second.
    pub(crate) relay: Vec<Sides>,
    /// Milliseconds a claim.
    pub(crate) claim: Vec<Sides>,
}

/// The same figure by hand and by us, or with few messages and with many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides {
    pub(crate) without: f64,
    pub(crate) with: f64,
}

impl Results {
    pub(crate) fn keeps_its_promises(&self) -> bool {
        !self.lines().iter().any(|line| line.standing == Standing::ShortOfPromise)
    }

    fn lines(&self) -> Vec<Line> {
        let one = request_line("one caller", &self.one_caller, "≥ 0.90", ONE_CALLER);
        let many = request_line("64 callers", &self.many_callers, "≥ 1.50", MANY_CALLERS);
        let requests = one.into_iter().chain(many).chain([self.trips_line()]);
        requests.chain(self.relay_line()).chain(self.claim_line()).collect()
    }

    fn trips_line(&self) -> Line {
        let Sides { without, with } = self.trips;
        Line {
            what: "round trips a request, one caller".to_owned(),
            measured: format!("{with:.2} (by hand {without:.2})"),
            target: String::new(),
            standing: Standing::Shown,
        }
    }

    fn relay_line(&self) -> Option<Line> {
        let ratio = spread(self.relay.iter().map(Sides::ratio))?;
        let [hand, relay] = middle(&self.relay)?;
        Some(Line {
            what: "relay, 64 in flight, to claims one by one by hand: messages a second".to_owned(),
            measured: format!("{} ({relay:.0} to {hand:.0})", spread_words(ratio, 2)),
            target: "≥ 2.00".to_owned(),
            standing: RELAY.standing(ratio.median),
        })
    }

    fn claim_line(&self) -> Option<Line> {
        let (ratio, many) = (spread(self.claim.iter().map(Sides::ratio))?, self.extent.records);
        let [few_ms, many_ms] = middle(&self.claim)?;
        let promised = many >= MESSAGES_PROMISED;
        let note = if promised { "" } else { ", promised for 1,000,000" };
        Some(Line {
            what: format!("a claim, {} messages waiting to {}: ms", grouped(many), grouped(MESSAGES_FEW)),
            measured: format!("{} ({many_ms:.2} to {few_ms:.2})", spread_words(ratio, 2)),
            target: format!("1.5 → ≤ 1.2{note}"),
            standing: judge(CLAIM, ratio.median, promised),
        })
    }

    pub(crate) fn json(&self) -> Value {
        let pairs = |pairs: &[Pair]| pairs.iter().map(Pair::json).collect::<Vec<_>>();
        let sides = |sides: &[Sides]| sides.iter().map(Sides::json).collect::<Vec<_>>();
        json!({
            "cores": cores(),
            "rounds": self.extent.rounds,
            "seconds": self.extent.seconds,
            "messages": self.extent.records,
            "lines": self.lines().iter().map(Line::json).collect::<Vec<_>>(),
            "round_trips": self.trips.json(),
            "one_caller": pairs(&self.one_caller),
            "many_callers": pairs(&self.many_callers),
            "relay_per_second": sides(&self.relay),
            "claim_ms": sides(&self.claim),
        })
    }

    /// For the terminal.
    pub(crate) fn table(&self) -> String {
        lines::table(&self.lines())
    }

    /// For the page, between its marks.
    pub(crate) fn section(&self) -> String {
        format!(
            "Measured on {} cores, which wrk shares: median of {} rounds of {} s each, lowest and highest in brackets.\n\n{}",
            cores(),
            self.extent.rounds,
            self.extent.seconds,
            lines::section("write first", &self.lines())
        )
    }
}

impl Sides {
    fn ratio(&self) -> f64 {
        self.with / self.without
    }

    fn json(&self) -> Value {
        json!({ "without": self.without, "with": self.with })
    }
}

fn request_line(callers: &str, pairs: &[Pair], target: &str, bound: Bound) -> Option<Line> {
    let ratio = ratios(pairs, |sample| sample.rps)?;
    let cpu = ratios(pairs, |sample| sample.cpu_us)?;
    let [hand, ours] = medians(pairs, |sample| sample.rps)?;
    Some(Line {
        what: format!("record and row in one transaction, {callers}, to the hand-written: RPS"),
        measured: format!(
            "{} ({ours:.0} to {hand:.0}; CPU {})",
            spread_words(ratio, 2),
            spread_words(cpu, 2)
        ),
        target: target.to_owned(),
        standing: bound.standing(ratio.median),
    })
}

fn middle(sides: &[Sides]) -> Option<[f64; 2]> {
    let without = spread(sides.iter().map(|sides| sides.without))?;
    let with = spread(sides.iter().map(|sides| sides.with))?;
    Some([without.median, with.median])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Sample;

    fn results([one, many, relay, claim]: [f64; 4], messages: u64) -> Results {
        let sample = |rps| Sample { rps, p50_ms: 1.0, p99_ms: 2.0, cpu_us: 1.0, requests: 1 };
        let pairs = |ratio| vec![Pair { without: sample(1.0), with: sample(ratio) }; 3];
        let sides = |with| vec![Sides { without: 1.0, with }; 3];
        Results {
            extent: Extent { records: messages, rounds: 3, seconds: 1 },
            trips: Sides { without: 5.0, with: 6.0 },
            one_caller: pairs(one),
            many_callers: pairs(many),
            relay: sides(relay),
            claim: sides(claim),
        }
    }

    #[test]
    fn each_promise_can_fall_short() {
        let kept = [0.9, 1.5, 2.0, 1.2];
        assert!(results(kept, MESSAGES_PROMISED).keeps_its_promises());
        for (place, short) in [0.89, 1.49, 1.99, 1.51].into_iter().enumerate() {
            let mut figures = kept;
            figures[place] = short;
            assert!(!results(figures, MESSAGES_PROMISED).keeps_its_promises(), "{figures:?}");
        }
    }

    #[test]
    fn a_claim_among_fewer_messages_than_promised_has_no_verdict() {
        let line = results([1.0, 2.0, 2.0, 1.0], 100_000).claim_line().unwrap();
        assert_eq!(line.standing, Standing::Shown, "{}", line.measured);
    }
}
