//! What was measured, as ratios to the baseline, and how that stands to what was promised.

use serde_json::{Value, json};

use super::subjects::{
    BASELINE, SUBJECTS, Subject, Target, WAITERS_BYTES_MAX, WAKE_MS_MAX, WORKLOADS, target,
};

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) rps: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// CPU time a request.
    pub(super) cpu_us: f64,
    pub(super) requests: f64,
}

/// Everything one run of the bench found.
pub(super) struct Figures {
    pub(super) rounds: u32,
    pub(super) seconds: u64,
    /// What did not build.
    pub(super) missing: Vec<&'static Subject>,
    /// In the order of the rounds.
    samples: Vec<(&'static Subject, &'static str, Sample)>,
    pub(super) storms: Vec<(&'static Subject, Value)>,
    /// The same with `Prefer: wait`.
    pub(super) waiting_storms: Vec<(&'static Subject, Value)>,
    pub(super) crowds: Vec<(&'static Subject, Value)>,
}

/// The middle of several rounds, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// One subject under one workload.
pub(super) struct Row {
    pub(super) subject: &'static Subject,
    pub(super) workload: &'static str,
    pub(super) rps: Spread,
    pub(super) p50_ms: Spread,
    pub(super) p99_ms: Spread,
    pub(super) cpu_us: Spread,
    pub(super) rps_ratio: Spread,
    pub(super) cpu_ratio: Spread,
    pub(super) target: Option<&'static Target>,
}

/// How a figure stands to what was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing was promised.
    Shown,
    Reached,
    /// The promise is kept, the goal is not reached.
    ShortOfGoal,
    ShortOfPromise,
}

/// A figure that is no row of the table.
pub(super) struct Finding {
    pub(super) text: String,
    pub(super) standing: Standing,
}

impl Figures {
    pub(super) fn new(rounds: u32, seconds: u64, missing: Vec<&'static Subject>) -> Self {
        let (samples, storms, waiting_storms, crowds) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { rounds, seconds, missing, samples, storms, waiting_storms, crowds }
    }

    pub(super) fn add(&mut self, subject: &'static Subject, workload: &'static str, sample: Sample) {
        self.samples.push((subject, workload, sample));
    }

    /// By workload, then by subject.
    pub(super) fn rows(&self) -> Vec<Row> {
        let pairs = WORKLOADS
            .into_iter()
            .flat_map(|workload| SUBJECTS.iter().map(move |subject| (subject, workload)));
        pairs.filter_map(|(subject, workload)| self.row(subject, workload)).collect()
    }

    fn row(&self, subject: &'static Subject, workload: &'static str) -> Option<Row> {
        let samples = self.of(subject.name, workload);
        Some(Row {
            subject,
            workload,
            rps: spread(samples.iter().map(|sample| sample.rps))?,
            p50_ms: spread(samples.iter().map(|sample| sample.p50_ms))?,
            p99_ms: spread(samples.iter().map(|sample| sample.p99_ms))?,
            cpu_us: spread(samples.iter().map(|sample| sample.cpu_us))?,
            rps_ratio: self.to(BASELINE, subject.name, workload, |sample| sample.rps)?,
            cpu_ratio: self.to(BASELINE, subject.name, workload, |sample| sample.cpu_us)?,
            target: target(subject.name, workload),
        })
    }

    fn of(&self, subject: &str, workload: &str) -> Vec<Sample> {
        let samples = self.samples.iter().filter(|(own, load, _)| own.name == subject && *load == workload);
        samples.map(|(_, _, sample)| *sample).collect()
    }

    /// The storms, the waiting, and what could not be measured.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let beside = SUBJECTS.iter().flat_map(|subject| self.beside(subject));
        let storms = self.storms.iter().map(|(subject, storm)| storm_finding(subject, storm));
        let waiting = self.waiting_storms.iter().map(|(subject, storm)| waiting_finding(subject, storm));
        let crowds = self.crowds.iter().map(|(subject, crowd)| crowd_finding(subject, crowd));
        let missing = self.missing.iter().map(|subject| Finding {
            text: format!("{}: not measured, it does not build", subject.name),
            standing: if subject.is_ours { Standing::ShortOfPromise } else { Standing::Shown },
        });
        beside.chain(storms).chain(waiting).chain(crowds).chain(missing).collect()
    }

    /// A subject beside another that is not the baseline.
    fn beside(&self, subject: &'static Subject) -> Vec<Finding> {
        let Some(other) = subject.beside else { return Vec::new() };
        let finding = |workload| {
            let rps = self.to(other, subject.name, workload, |sample| sample.rps)?;
            let cpu = self.to(other, subject.name, workload, |sample| sample.cpu_us)?;
            Some(Finding {
                text: format!(
                    "{}: {workload}: {:.2} ({:.2}–{:.2}) times the RPS of {other}, {:.2} ({:.2}–{:.2}) of its CPU a request",
                    subject.name, rps.median, rps.low, rps.high, cpu.median, cpu.low, cpu.high
                ),
                standing: Standing::Shown,
            })
        };
        WORKLOADS.into_iter().filter_map(finding).collect()
    }

    /// Ratios of the same rounds.
    fn to(&self, base: &str, subject: &str, workload: &str, of: fn(&Sample) -> f64) -> Option<Spread> {
        let (base, own) = (self.of(base, workload), self.of(subject, workload));
        spread(own.iter().zip(&base).map(|(own, base)| of(own) / of(base)))
    }

    pub(super) fn keeps_its_promises(&self) -> bool {
        let rows = self.rows();
        let standings =
            rows.iter().map(Row::standing).chain(self.findings().into_iter().map(|finding| finding.standing));
        !standings.into_iter().any(|standing| standing == Standing::ShortOfPromise)
    }

    pub(super) fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows().iter().map(Row::json).collect();
        let findings: Vec<Value> = self
            .findings()
            .iter()
            .map(|finding| json!({ "text": finding.text, "standing": finding.standing.words() }))
            .collect();
        let by_name = |values: &[(&Subject, Value)]| -> Value {
            values.iter().map(|(subject, value)| (subject.name.to_owned(), value.clone())).collect()
        };
        json!({
            "cores": cores(),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "rows": rows,
            "storm": by_name(&self.storms),
            "storm_waiting": by_name(&self.waiting_storms),
            "waiters": by_name(&self.crowds),
            "findings": findings,
        })
    }
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn storm_finding(subject: &Subject, storm: &Value) -> Finding {
    let runs = &storm["runs_per_key_max"];
    let kept = runs == 1;
    Finding {
        text: format!(
            "{}: storm of {} on one key: {runs} runs, answers {}",
            subject.name, storm["connections"], storm["statuses"]
        ),
        standing: judge(subject, kept),
    }
}

fn waiting_finding(subject: &Subject, storm: &Value) -> Finding {
    let (median, worst) = (storm["spread_ms_median"].as_f64(), storm["spread_ms_max"].as_f64());
    let everyone =
        storm["rounds"].as_u64().zip(storm["connections"].as_u64()).map(|(rounds, all)| rounds * all);
    let kept = storm["statuses"]["201"].as_u64() == everyone && median.is_some_and(|ms| ms <= WAKE_MS_MAX);
    Finding {
        text: format!(
            "{}: storm of {} with `Prefer: wait`: answers {}, the last {:.1} ms after the first (worst round {:.1} ms; at most {WAKE_MS_MAX} ms)",
            subject.name,
            storm["connections"],
            storm["statuses"],
            median.unwrap_or(f64::NAN),
            worst.unwrap_or(f64::NAN),
        ),
        standing: judge(subject, kept && storm["runs_per_key_max"] == 1),
    }
}

/// What counts is what the open requests cost beyond their idle connections: those are the clients' own.
fn crowd_finding(subject: &Subject, crowd: &Value) -> Finding {
    let bytes = |name: &str| crowd[name].as_u64().unwrap_or(0);
    let idle = bytes("memory_connected_bytes");
    let waiting = bytes("memory_waiting_bytes").saturating_sub(idle);
    let waiters = bytes("waiters").max(1);
    let answered =
        crowd["statuses"]["201"].as_u64() == Some(waiters + 1) && crowd["everyone_in_time"] == true;
    let what = if subject.is_ours { "waiting duplicates" } else { "open requests, each running" };
    Finding {
        text: format!(
            "{}: {waiters} {what}: {} MB, {} bytes each (at most {} MB), beside {} MB for their idle connections; \
             answers {}, the last {:.0} ms after the first",
            subject.name,
            waiting / 1_000_000,
            waiting / waiters,
            WAITERS_BYTES_MAX / 1_000_000,
            idle.saturating_sub(bytes("memory_before_bytes")) / 1_000_000,
            crowd["statuses"],
            crowd["wake_ms"].as_f64().unwrap_or(f64::NAN),
        ),
        standing: judge(subject, answered && crowd["runs"] == 1 && waiting < WAITERS_BYTES_MAX),
    }
}

fn judge(subject: &Subject, kept: bool) -> Standing {
    match (subject.is_ours, kept) {
        (false, _) => Standing::Shown,
        (true, true) => Standing::Reached,
        (true, false) => Standing::ShortOfPromise,
    }
}

impl Row {
    pub(super) fn standing(&self) -> Standing {
        let Some(target) = self.target else { return Standing::Shown };
        if self.rps_ratio.median < target.rps_floor {
            return Standing::ShortOfPromise;
        }
        let reached = self.rps_ratio.median >= target.rps_goal && self.cpu_ratio.median <= target.cpu_goal;
        if reached { Standing::Reached } else { Standing::ShortOfGoal }
    }

    fn json(&self) -> Value {
        let spread =
            |spread: Spread| json!({ "median": spread.median, "low": spread.low, "high": spread.high });
        json!({
            "subject": self.subject.name,
            "workload": self.workload,
            "rps": spread(self.rps),
            "p50_ms": spread(self.p50_ms),
            "p99_ms": spread(self.p99_ms),
            "cpu_us": spread(self.cpu_us),
            "rps_ratio": spread(self.rps_ratio),
            "cpu_ratio": spread(self.cpu_ratio),
            "standing": self.standing().words(),
        })
    }
}

impl Standing {
    pub(super) fn words(&self) -> &'static str {
        match self {
            Self::Shown => "",
            Self::Reached => "reached",
            Self::ShortOfGoal => "falls short of the goal",
            Self::ShortOfPromise => "FALLS SHORT of the promise",
        }
    }
}

pub(super) fn spread(values: impl Iterator<Item = f64>) -> Option<Spread> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    Some(Spread { median: *values.get(values.len() / 2)?, low: *values.first()?, high: *values.last()? })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::subjects::{HAND_SQLITE, LAYER_SQLITE, named};
    use super::*;

    /// Three rounds in which the baseline gives 100 requests a second and our layer `rps`, at `cpu_us` to 10.
    pub(in crate::bench) fn figures(rps: [f64; 3], cpu_us: f64) -> Figures {
        let mut figures = Figures::new(3, 1, Vec::new());
        for rps in rps {
            let sample = |rps, cpu_us| Sample { rps, p50_ms: 1.0, p99_ms: 2.0, cpu_us, requests: rps };
            figures.add(&SUBJECTS[0], "unique", sample(100.0, 10.0));
            figures.add(&SUBJECTS[1], "unique", sample(rps, cpu_us));
        }
        figures
    }

    #[test]
    fn ratios_are_of_the_same_round_and_the_median_counts() {
        let figures = figures([90.0, 50.0, 80.0], 12.0);
        let row = &figures.rows()[1];
        assert_eq!(row.rps_ratio, Spread { median: 0.8, low: 0.5, high: 0.9 });
        assert_eq!(row.standing(), Standing::Reached);
    }

    #[test]
    fn what_falls_short_is_told_apart() {
        assert_eq!(figures([59.0; 3], 10.0).rows()[1].standing(), Standing::ShortOfPromise);
        assert_eq!(figures([70.0; 3], 10.0).rows()[1].standing(), Standing::ShortOfGoal);
        assert_eq!(figures([80.0; 3], 17.0).rows()[1].standing(), Standing::ShortOfGoal);
        assert!(!figures([59.0; 3], 10.0).keeps_its_promises());
        assert!(figures([70.0; 3], 10.0).keeps_its_promises());
    }

    #[test]
    fn a_layer_that_does_not_build_keeps_no_promise_and_a_rival_may() {
        let mut figures = figures([80.0; 3], 10.0);
        figures.missing = vec![&SUBJECTS[2]];
        assert!(figures.keeps_its_promises());
        figures.missing = vec![&SUBJECTS[1]];
        assert!(!figures.keeps_its_promises());
    }

    #[test]
    fn a_subject_is_told_beside_another_by_the_rounds_they_share() {
        let mut figures = Figures::new(3, 1, Vec::new());
        for rps in [10.0, 20.0, 30.0] {
            let sample = |rps| Sample { rps, p50_ms: 1.0, p99_ms: 2.0, cpu_us: 1.0, requests: rps };
            figures.add(named(LAYER_SQLITE), "unique", sample(rps * 4.0));
            figures.add(named(HAND_SQLITE), "unique", sample(rps));
        }
        let findings = figures.findings();
        assert!(
            findings[0].text.contains("4.00 (4.00–4.00) times the RPS of hand-written"),
            "{}",
            findings[0].text
        );
    }

    #[test]
    fn a_storm_that_runs_twice_falls_short() {
        let mut figures = figures([80.0; 3], 10.0);
        figures
            .storms
            .push((&SUBJECTS[1], json!({ "connections": 64, "runs_per_key_max": 2, "statuses": {} })));
        assert!(!figures.keeps_its_promises());
    }
}
