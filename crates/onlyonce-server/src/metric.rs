//! The metrics of this process: counted here, shown as Prometheus' text or sent to a collector.
//!
//! A recorder for the façade `metrics`. A counter or a gauge is an atomic number. A histogram is one for each of its buckets,
//! so nothing that was measured waits to be summed up, and memory grows with the number of series alone.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// From a read of this process' memory to a store that is about to time out.
const SECONDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 1.0, 2.5,
];
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
/// What sums of histograms are kept in.
const BILLIONTH: f64 = 1e-9;

/// Every series that was ever counted in.
#[derive(Default)]
pub(crate) struct Registry {
    series: RwLock<HashMap<Key, Series>>,
    helps: Mutex<HashMap<String, String>>,
}

enum Series {
    Counter(Arc<AtomicU64>),
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

/// All series of one name, as they stand now.
#[derive(Debug, PartialEq)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) samples: Samples,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Samples {
    Counter(Vec<(Labels, u64)>),
    Gauge(Vec<(Labels, f64)>),
    Histogram(Vec<(Labels, Distribution)>),
}

/// Names and values.
pub(crate) type Labels = Vec<(String, String)>;

/// What was measured.
#[derive(Debug, PartialEq)]
pub(crate) struct Distribution {
    pub(crate) bounds: &'static [f64],
    /// How many were at or below each bound and above the one before; the last one: above all bounds.
    pub(crate) counts: Vec<u64>,
    pub(crate) sum: f64,
}

impl Registry {
    /// Everything as it stands now, by name and labels.
    pub(crate) fn families(&self) -> Vec<Family> {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let mut by_name: BTreeMap<&str, Vec<(Labels, &Series)>> = BTreeMap::new();
        for (key, series) in &*series {
            let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned()));
            by_name.entry(key.name()).or_default().push((labels.collect(), series));
        }
        let helps = self.helps.lock().unwrap_or_else(PoisonError::into_inner);
        let family = |(name, mut series): (&str, Vec<(Labels, &Series)>)| {
            series.sort_by(|(one, _), (other, _)| one.cmp(other));
            let help = helps.get(name).cloned().unwrap_or_default();
            Family { name: name.to_owned(), help, samples: Samples::of(series) }
        };
        by_name.into_iter().map(family).collect()
    }

    /// Finds a series, or makes it.
    fn series<T>(
        &self,
        key: &Key,
        new: impl Fn() -> Series,
        find: impl Fn(&Series) -> Option<T>,
    ) -> Option<T> {
        if let Some(series) = self.series.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return find(series);
        }
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        find(series.entry(key.clone()).or_insert_with(new))
    }

    fn describe(&self, name: &KeyName, help: &SharedString) {
        let mut helps = self.helps.lock().unwrap_or_else(PoisonError::into_inner);
        helps.insert(name.as_str().to_owned(), help.to_string());
    }
}

/// A name that is counted in as another kind of metric than before counts nowhere; there is none.
impl Recorder for Registry {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let found = self.series(
            key,
            || Series::Counter(Arc::default()),
            |series| match series {
                Series::Counter(counter) => Some(counter.clone()),
                Series::Gauge(_) | Series::Histogram(_) => None,
            },
        );
        found.map_or_else(Counter::noop, Counter::from_arc)
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let found = self.series(
            key,
            || Series::Gauge(Arc::default()),
            |series| match series {
                Series::Gauge(gauge) => Some(gauge.clone()),
                Series::Counter(_) | Series::Histogram(_) => None,
            },
        );
        found.map_or_else(Gauge::noop, Gauge::from_arc)
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let bounds = if key.name().ends_with("_seconds") { SECONDS } else { ROWS };
        let found = self.series(
            key,
            || Series::Histogram(Arc::new(Buckets::new(bounds))),
            |series| match series {
                Series::Histogram(buckets) => Some(buckets.clone()),
                Series::Counter(_) | Series::Gauge(_) => None,
            },
        );
        found.map_or_else(Histogram::noop, Histogram::from_arc)
    }
}

/// A histogram: its buckets, and the sum in billionths.
struct Buckets {
    bounds: &'static [f64],
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Buckets {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates, and is not negative"
        )]
        self.sum.fetch_add((value / BILLIONTH) as u64, Ordering::Relaxed);
    }
}

impl Samples {
    /// Of series of one kind, which those of one name are.
    fn of(series: Vec<(Labels, &Series)>) -> Self {
        let (mut counters, mut gauges, mut histograms) = (Vec::new(), Vec::new(), Vec::new());
        for (labels, series) in series {
            match series {
                Series::Counter(counter) => counters.push((labels, counter.load(Ordering::Relaxed))),
                Series::Gauge(gauge) => gauges.push((labels, f64::from_bits(gauge.load(Ordering::Relaxed)))),
                Series::Histogram(buckets) => histograms.push((labels, Distribution::of(buckets))),
            }
        }
        match (counters.is_empty(), gauges.is_empty()) {
            (false, _) => Self::Counter(counters),
            (true, false) => Self::Gauge(gauges),
            (true, true) => Self::Histogram(histograms),
        }
    }
}

impl Distribution {
    #[expect(clippy::cast_precision_loss, reason = "a sum of seconds need not be exact")]
    fn of(buckets: &Buckets) -> Self {
        Self {
            bounds: buckets.bounds,
            counts: buckets.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: buckets.sum.load(Ordering::Relaxed) as f64 * BILLIONTH,
        }
    }
}

/// Prometheus' text format.
pub(crate) fn text(families: &[Family]) -> String {
    let mut out = String::new();
    for family in families {
        write_family(&mut out, family).expect("a string takes everything");
    }
    out
}

fn write_family(out: &mut String, family: &Family) -> std::fmt::Result {
    let Family { name, help, samples } = family;
    if !help.is_empty() {
        writeln!(out, "# HELP {name} {help}")?;
    }
    match samples {
        Samples::Counter(samples) => {
            writeln!(out, "# TYPE {name} counter")?;
            for (labels, value) in samples {
                writeln!(out, "{name}{} {value}", Shown(labels, None))?;
            }
        }
        Samples::Gauge(samples) => {
            writeln!(out, "# TYPE {name} gauge")?;
            for (labels, value) in samples {
                writeln!(out, "{name}{} {value}", Shown(labels, None))?;
            }
        }
        Samples::Histogram(samples) => {
            writeln!(out, "# TYPE {name} histogram")?;
            for (labels, Distribution { bounds, counts, sum }) in samples {
                let mut below = 0;
                let bounds = bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
                for (bound, count) in bounds.zip(counts) {
                    below += count;
                    writeln!(out, "{name}_bucket{} {below}", Shown(labels, Some(&bound)))?;
                }
                writeln!(out, "{name}_sum{} {sum}", Shown(labels, None))?;
                writeln!(out, "{name}_count{} {below}", Shown(labels, None))?;
            }
        }
    }
    writeln!(out)
}

/// Labels as they stand behind a name, with a bucket's bound.
struct Shown<'a>(&'a Labels, Option<&'a str>);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut separator = '{';
        for (name, value) in own.chain(self.1.map(|bound| ("le", bound))) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(f, "{separator}{name}=\"{value}\"")?;
            separator = ',';
        }
        if separator == ',' { f.write_str("}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use metrics::{counter, describe_counter, gauge, histogram, with_local_recorder};

    use super::*;

    /// O01
    #[test]
    fn what_is_counted_is_shown_as_prometheus_reads_it() {
        let registry = Registry::default();
        with_local_recorder(&registry, || {
            describe_counter!("requests_total", "Requests.");
            counter!("requests_total", "route" => "POST \"x\\y\n", "decision" => "ran").increment(2);
            counter!("requests_total", "route" => "POST \"x\\y\n", "decision" => "ran").increment(1);
            counter!("requests_total", "route" => "b", "decision" => "ran").absolute(0);
            gauge!("oldest_seconds").set(1.5);
            for value in [0.000_01, 0.2, 7.0] {
                histogram!("store_seconds", "operation" => "load").record(value);
            }
            histogram!("batch_size").record(3.0);
        });
        let text = text(&registry.families());
        let lines = |name: &str| -> Vec<String> {
            text.lines().filter(|line| line.contains(name)).map(str::to_owned).collect()
        };
        assert_eq!(
            lines("requests_total"),
            [
                "# HELP requests_total Requests.",
                "# TYPE requests_total counter",
                "requests_total{route=\"POST \\\"x\\\\y\\n\",decision=\"ran\"} 3",
                "requests_total{route=\"b\",decision=\"ran\"} 0",
            ]
        );
        assert_eq!(lines("oldest_seconds"), ["# TYPE oldest_seconds gauge", "oldest_seconds 1.5"]);
        let seconds = lines("store_seconds");
        assert_eq!(seconds[1], "store_seconds_bucket{operation=\"load\",le=\"0.00001\"} 1");
        assert_eq!(seconds[14], "store_seconds_bucket{operation=\"load\",le=\"0.25\"} 2");
        assert_eq!(seconds[17], "store_seconds_bucket{operation=\"load\",le=\"+Inf\"} 3");
        assert!(seconds[18].starts_with("store_seconds_sum{operation=\"load\"} 7.2000"), "{}", seconds[18]);
        assert_eq!(seconds[19], "store_seconds_count{operation=\"load\"} 3");
        assert_eq!(lines("batch_size")[3], "batch_size_bucket{le=\"4\"} 1");
    }
}
