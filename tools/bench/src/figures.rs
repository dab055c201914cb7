//! What was measured, as ratios to the baseline, and how that stands to what was promised.

use serde_json::{Value, json};

use crate::findings;
use crate::lines::Line;
use crate::subjects::{Series, Subject, Target};

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) rps: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// CPU time a request.
    pub(crate) cpu_us: f64,
    pub(crate) requests: u64,
}

/// Everything one run of the bench found.
pub(crate) struct Figures {
    pub(crate) series: &'static Series,
    pub(crate) rounds: u32,
    pub(crate) seconds: u64,
    /// What could not be had, and why.
    pub(crate) missing: Vec<(&'static Subject, String)>,
    /// In the order of the rounds.
    samples: Vec<(&'static Subject, &'static str, Sample)>,
    pub(crate) storms: Vec<(&'static Subject, Value)>,
    /// The same with `Prefer: wait`.
    pub(crate) waiting_storms: Vec<(&'static Subject, Value)>,
    pub(crate) crowds: Vec<(&'static Subject, Value)>,
    /// What is held after many keys.
    pub(crate) keys: Vec<(&'static Subject, Value)>,
    /// What is held while a large body passes.
    pub(crate) uploads: Vec<(&'static Subject, Value)>,
    /// What a setting costs, beside the same without it.
    pub(crate) options: Vec<Line>,
}

/// The middle of several rounds, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// One subject under one workload.
pub(crate) struct Row {
    pub(crate) subject: &'static Subject,
    pub(crate) workload: &'static str,
    pub(crate) rps: Spread,
    pub(crate) p50_ms: Spread,
    pub(crate) p99_ms: Spread,
    pub(crate) cpu_us: Spread,
    pub(crate) rps_ratio: Spread,
    pub(crate) cpu_ratio: Spread,
    pub(crate) target: Option<&'static Target>,
}

/// How a figure stands to what was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing was promised.
    Shown,
    Reached,
    /// The promise is kept, the goal is not reached.
    ShortOfGoal,
    ShortOfPromise,
}

impl Figures {
    pub(crate) fn new(series: &'static Series, rounds: u32, seconds: u64) -> Self {
        Self {
            series,
            rounds,
            seconds,
            missing: Vec::new(),
            samples: Vec::new(),
            storms: Vec::new(),
            waiting_storms: Vec::new(),
            crowds: Vec::new(),
            keys: Vec::new(),
            uploads: Vec::new(),
            options: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, subject: &'static Subject, workload: &'static str, sample: Sample) {
        self.samples.push((subject, workload, sample));
    }

    /// By workload, then by subject.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let series = self.series;
        let pairs = series
            .workloads
            .iter()
            .flat_map(|workload| series.subjects.iter().map(move |subject| (subject, *workload)));
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
            rps_ratio: self.to(self.series.baseline, subject.name, workload, |sample| sample.rps)?,
            cpu_ratio: self.to(self.series.baseline, subject.name, workload, |sample| sample.cpu_us)?,
            target: self.series.target(subject.name, workload),
        })
    }

    fn of(&self, subject: &str, workload: &str) -> Vec<Sample> {
        let samples = self.samples.iter().filter(|(own, load, _)| own.name == subject && *load == workload);
        samples.map(|(_, _, sample)| *sample).collect()
    }

    /// Ratios of the same rounds.
    pub(crate) fn to(
        &self,
        base: &str,
        subject: &str,
        workload: &str,
        of: fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let (base, own) = (self.of(base, workload), self.of(subject, workload));
        spread(own.iter().zip(&base).map(|(own, base)| of(own) / of(base)))
    }

    pub(crate) fn keeps_its_promises(&self) -> bool {
        let rows = self.rows();
        let standings = rows
            .iter()
            .map(Row::standing)
            .chain(findings::of(self).into_iter().map(|finding| finding.standing));
        !standings.into_iter().any(|standing| standing == Standing::ShortOfPromise)
    }

    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows().iter().map(Row::json).collect();
        let findings: Vec<Value> = findings::of(self)
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
            "keys": by_name(&self.keys),
            "uploads": by_name(&self.uploads),
            "options": self.options.iter().map(Line::json).collect::<Vec<_>>(),
            "findings": findings,
        })
    }
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Row {
    pub(crate) fn standing(&self) -> Standing {
        let Some(target) = self.target else { return Standing::Shown };
        if self.rps_ratio.median < target.rps_floor {
            return Standing::ShortOfPromise;
        }
        let is_lean = target.cpu_goal.is_none_or(|goal| self.cpu_ratio.median <= goal);
        let reached = self.rps_ratio.median >= target.rps_goal && is_lean;
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
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Self::Shown => "",
            Self::Reached => "reached",
            Self::ShortOfGoal => "falls short of the goal",
            Self::ShortOfPromise => "FALLS SHORT of the promise",
        }
    }
}

pub(crate) fn spread(values: impl Iterator<Item = f64>) -> Option<Spread> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    Some(Spread { median: *values.get(values.len() / 2)?, low: *values.first()?, high: *values.last()? })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::subjects::LAYER;

    /// Three rounds in which the baseline gives 100 requests a second and our layer `rps`, at `cpu_us` to 10.
    pub(crate) fn figures(rps: [f64; 3], cpu_us: f64) -> Figures {
        let mut figures = Figures::new(&LAYER, 3, 1);
        for rps in rps {
            let sample = |rps, cpu_us| Sample { rps, p50_ms: 1.0, p99_ms: 2.0, cpu_us, requests: 1 };
            figures.add(&LAYER.subjects[0], "unique", sample(100.0, 10.0));
            figures.add(&LAYER.subjects[1], "unique", sample(rps, cpu_us));
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
        assert_eq!(figures([54.0; 3], 10.0).rows()[1].standing(), Standing::ShortOfPromise);
        assert_eq!(figures([70.0; 3], 10.0).rows()[1].standing(), Standing::ShortOfGoal);
        assert_eq!(figures([80.0; 3], 17.0).rows()[1].standing(), Standing::ShortOfGoal);
        assert!(!figures([54.0; 3], 10.0).keeps_its_promises());
        assert!(figures([70.0; 3], 10.0).keeps_its_promises());
    }
}
