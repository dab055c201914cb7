//! Metrics, in Prometheus' format.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use onlyonce::Engine;
use onlyonce::record::Source;
use onlyonce::store::Error;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::overview::DeadLetters;
use super::refusal::Code;

/// How long counts of records are cached: a scrape does not count them again.
const CENSUS_EVERY: Duration = Duration::from_secs(30);
/// How long a scrape waits for the counts.
const CENSUS_WITHIN: Duration = Duration::from_secs(2);
/// From a read of this process' memory to a store that is about to time out.
const SECONDS: [f64; 16] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 1.0, 2.5,
];
const ROWS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// The metrics of this process.
pub(crate) struct Figures {
    handle: PrometheusHandle,
    counted_at: Mutex<Option<Instant>>,
}

impl Figures {
    /// Installs the recorder. Once per process.
    pub(crate) fn install() -> Result<Self> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Full("onlyonce_batch_size".to_owned()), &ROWS)
            })
            .context("the buckets of the histograms are wrong")?
            .build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).context("something else counts in this process already")?;
        describe();
        start_at_zero();
        Ok(Self { handle, counted_at: Mutex::new(None) })
    }

    /// Metrics that nobody counts in: for tests that serve several admin ports in one process.
    pub(crate) fn detached() -> Self {
        Self { handle: PrometheusBuilder::new().build_recorder().handle(), counted_at: Mutex::new(None) }
    }

    /// Folds measured times into histograms. Done often: otherwise each is kept, even if `/metrics` is never read.
    pub(crate) fn sum(&self) {
        self.handle.run_upkeep();
    }

    /// All metrics, with the counts of records if those are recent enough.
    pub(crate) async fn render(&self, engine: &Engine) -> String {
        self.count_records(engine).await;
        for (worker, round) in engine.rounds() {
            let ago = round.ended_at.elapsed();
            gauge!("onlyonce_worker_ran_seconds", "worker" => worker).set(ago.as_secs_f64());
        }
        self.handle.run_upkeep();
        self.handle.render()
    }

    async fn count_records(&self, engine: &Engine) {
        let mut counted_at = self.counted_at.lock().await;
        if counted_at.is_some_and(|at| at.elapsed() < CENSUS_EVERY) {
            return;
        }
        *counted_at = Some(Instant::now());
        let counted = async {
            let census = engine.census().await?;
            let dead_letters = match census.oldest_unknown {
                Some(_) => DeadLetters::count(engine).await?,
                None => DeadLetters::default(),
            };
            Ok::<_, Error>((census, dead_letters))
        };
        match timeout(CENSUS_WITHIN, counted).await {
            Ok(Ok((census, dead_letters))) => {
                for (state, count) in census.records {
                    // Counts that an engine does not know are left out.
                    if let Some(count) = count.number() {
                        gauge!("onlyonce_records", "state" => state.as_str()).set(as_float(count));
                    }
                }
                let oldest = census.oldest_unknown.unwrap_or_default();
                gauge!("onlyonce_oldest_unknown_seconds").set(oldest.as_secs_f64());
                gauge!("onlyonce_dead_letters", "kind" => "key").set(as_float(dead_letters.count));
            }
            Ok(Err(error)) => tracing::warn!(%error, "the records could not be counted"),
            Err(_) => tracing::warn!("the records could not be counted in time; their figures are old"),
        }
    }
}

/// Registers counters at zero: an alert on a missing counter never fires.
fn start_at_zero() {
    for name in ["superseded", "lapsed", "reaped", "unknown_opened", "contradictions"] {
        counter!(format!("onlyonce_{name}_total")).absolute(0);
    }
    for operation in ["load", "swap", "scan", "reap", "epoch"] {
        counter!("onlyonce_store_errors_total", "operation" => operation).absolute(0);
    }
    for (result, by) in [
        ("scheduled", Source::Probe),
        ("failed", Source::Probe),
        ("resolved", Source::Probe),
        ("resolved", Source::Webhook),
        ("resolved", Source::Operator),
        ("resolved", Source::Attempt),
    ] {
        counter!("onlyonce_reconcile_total", "result" => result, "by" => by.as_str()).absolute(0);
    }
    for result in ["happened", "did_not_happen", "unknown", "failed"] {
        counter!("onlyonce_probes_total", "result" => result).absolute(0);
    }
    for (action, results) in CHANGES {
        for result in *results {
            counter!("onlyonce_admin_changes_total", "action" => *action, "result" => *result).absolute(0);
        }
    }
    for code in Code::ALL {
        counter!("onlyonce_admin_refused_total", "code" => code.as_str()).absolute(0);
    }
    gauge!("onlyonce_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// How each order of an operator may end.
const CHANGES: &[(&str, &[&str])] = &[
    ("verdict", &["applied", "noted", "refused"]),
    ("forget", &["applied", "refused"]),
    ("purge", &["applied", "refused"]),
    ("read_response", &["applied", "refused"]),
    ("reload", &["applied"]),
];

/// Exact up to 2^53, which no store holds.
fn as_float(count: u64) -> f64 {
    count as f64
}

fn describe() {
    describe_counter!(
        "onlyonce_requests_total",
        "Requests with a key, or without one where it is required, by what was decided."
    );
    describe_counter!(
        "onlyonce_observed_total",
        "Requests in observe mode, by what enforcing would have decided."
    );
    describe_counter!("onlyonce_superseded_total", "Attempts that ended after a later one had begun.");
    describe_counter!("onlyonce_lapsed_total", "Records nobody came back for, settled by the sweeper.");
    describe_counter!("onlyonce_reaped_total", "Expired records deleted.");
    describe_counter!("onlyonce_unknown_opened_total", "Records that became unknown.");
    describe_counter!("onlyonce_store_errors_total", "Store calls that failed.");
    describe_gauge!("onlyonce_records", "Records in the store, by state; counted at most twice a minute.");
    describe_gauge!(
        "onlyonce_clock_departure_seconds",
        Unit::Seconds,
        "How far the wall clock is ahead of the time that the embedded store counts; nothing lapses or expires by it."
    );
    describe_gauge!(
        "onlyonce_oldest_unknown_seconds",
        Unit::Seconds,
        "For how long the outcome has been unknown that has been so the longest; 0 where none is."
    );
    describe_counter!(
        "onlyonce_reconcile_total",
        "Questions to probes scheduled, records settled and by whom, probes that failed."
    );
    describe_counter!("onlyonce_probes_total", "Questions to probes, by what they answered.");
    describe_counter!("onlyonce_contradictions_total", "Statements that disagree with a settled record.");
    describe_counter!("onlyonce_admin_changes_total", "What operators ordered, and how it ended.");
    describe_counter!(
        "onlyonce_admin_refused_total",
        "Requests to the admin port that were refused, by code."
    );
    describe_gauge!(
        "onlyonce_dead_letters",
        "What was given up on and waits for a person; counted at most twice a minute."
    );
    describe_gauge!("onlyonce_build_info", "The version of this program; always 1.");
    describe_gauge!(
        "onlyonce_worker_ran_seconds",
        Unit::Seconds,
        "How long ago a worker of this node last came to the end of a round."
    );
    describe_histogram!("onlyonce_probe_seconds", Unit::Seconds, "What a question to a probe took.");
    describe_histogram!(
        "onlyonce_added_latency_seconds",
        Unit::Seconds,
        "What was added to the time the work itself took, by decision."
    );
    describe_histogram!("onlyonce_store_seconds", Unit::Seconds, "What a store call took, by operation.");
    describe_histogram!("onlyonce_batch_size", "Writes that shared one commit of the store.");
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}
