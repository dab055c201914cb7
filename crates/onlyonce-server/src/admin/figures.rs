//! Which metrics there are, and those that are counted when somebody asks.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use onlyonce::record::Source;
use onlyonce::scope::Scope;
use onlyonce::store::Error;
use onlyonce::store::outbox::Census;
use onlyonce::{Engine, Limit};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::overview::{DeadLetters, dead_messages, short};
use super::refusal::Code;
use super::traffic::Minute;
use crate::metric::{Family, Registry, Samples};

/// How long counts of records are cached: a scrape does not count them again.
const CENSUS_EVERY: Duration = Duration::from_secs(30);
/// How long a scrape waits for the counts.
const CENSUS_WITHIN: Duration = Duration::from_secs(2);
/// The metrics of this process.
pub(crate) struct Figures {
    registry: Arc<Registry>,
    counted_at: Mutex<Option<Instant>>,
}

impl Figures {
    /// Installs the recorder. Once per process.
    pub(crate) fn install() -> Result<Self> {
        let registry = Arc::<Registry>::default();
        metrics::set_global_recorder(registry.clone())
            .context("another metrics recorder is installed in this process")?;
        describe();
        start_at_zero();
        Ok(Self { registry, counted_at: Mutex::new(None) })
    }

    /// Metrics that nobody counts in: for tests that serve several admin ports in one process.
    pub(crate) fn detached() -> Self {
        Self { registry: Arc::default(), counted_at: Mutex::new(None) }
    }

    /// All metrics, with the records as they were last counted, and with the scopes that send most duplicates.
    pub(super) fn families(&self, engine: &Engine, minute: &Minute, is_ready: bool) -> Vec<Family> {
        gauge!("onlyonce_ready").set(f64::from(u8::from(is_ready)));
        for (worker, round) in engine.rounds() {
            let ago = round.ended_at.elapsed();
            gauge!("onlyonce_worker_ran_seconds", "worker" => worker).set(ago.as_secs_f64());
        }
        let mut families = self.registry.families();
        families.extend(busiest(&minute.busiest(&engine.traffic())));
        families
    }

    /// Counts records, unless that was done recently.
    pub(super) async fn count_records(&self, engine: &Engine) {
        let mut counted_at = self.counted_at.lock().await;
        if counted_at.is_some_and(|at| at.elapsed() < CENSUS_EVERY) {
            return;
        }
        *counted_at = Some(Instant::now());
        let counted = async {
            let census = engine.census().await?;
            let dead_letters = DeadLetters::count(engine).await?;
            let messages = engine.message_census().await?;
            Ok::<_, Error>((census, dead_letters, messages))
        };
        match timeout(CENSUS_WITHIN, counted).await {
            Ok(Ok((census, dead_letters, messages))) => {
                for (state, count) in census.records {
                    // Counts that an engine does not know are left out.
                    if let Some(count) = count.number() {
                        gauge!("onlyonce_records", "state" => state.as_str()).set(as_float(count));
                    }
                }
                let oldest = census.oldest_unknown.unwrap_or_default();
                gauge!("onlyonce_oldest_unknown_seconds").set(oldest.as_secs_f64());
                let oldest = census.oldest_pending.unwrap_or_default();
                gauge!("onlyonce_oldest_pending_seconds").set(oldest.as_secs_f64());
                gauge!("onlyonce_dead_letters", "kind" => "key").set(as_float(dead_letters.count));
                if let Some(messages) = &messages {
                    tell_messages(messages);
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "the records could not be counted"),
            Err(_) => tracing::warn!("the records could not be counted in time; their figures are old"),
        }
    }
}

/// Made anew each time: a registry would keep every scope that was ever among the busiest.
fn busiest(scopes: &[(Scope, u64)]) -> Option<Family> {
    let samples =
        scopes.iter().map(|(scope, count)| (vec![("scope".to_owned(), short(scope))], as_float(*count)));
    (!scopes.is_empty()).then(|| Family {
        name: "onlyonce_busiest_scope_duplicates".to_owned(),
        help: "Duplicates in the last minute, of the scopes that sent the most.".to_owned(),
        samples: Samples::Gauge(samples.collect()),
    })
}

fn tell_messages(census: &Census) {
    for (state, count) in &census.counts {
        if let Some(count) = count.number() {
            gauge!("onlyonce_messages", "state" => state.as_str()).set(as_float(count));
        }
    }
    if let Some(dead) = dead_messages(census) {
        gauge!("onlyonce_dead_letters", "kind" => "message").set(as_float(dead));
    }
    let oldest = census.oldest.as_ref().map(|oldest| oldest.age).unwrap_or_default();
    gauge!("onlyonce_oldest_message_seconds").set(oldest.as_secs_f64());
}

/// Registers counters at zero: an alert on a missing counter never fires.
fn start_at_zero() {
    for name in [
        "accepted",
        "superseded",
        "lapsed",
        "reaped",
        "unknown_opened",
        "contradictions",
        "undecryptable",
        "spans_dropped",
        "store_failovers",
    ] {
        counter!(format!("onlyonce_{name}_total")).absolute(0);
    }
    for limit in Limit::ALL {
        counter!("onlyonce_limited_total", "limit" => limit.as_str()).absolute(0);
    }
    for operation in ["load", "swap", "scan", "reap", "epoch", "outbox"] {
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
    // Webhooks of a source that nobody has configured.
    counter!("onlyonce_webhooks_total", "source" => "", "result" => "refused").absolute(0);
    // What was measured is there before anything was.
    let _ = histogram!("onlyonce_probe_seconds");
    gauge!("onlyonce_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// How each order of an operator may end.
const CHANGES: &[(&str, &[&str])] = &[
    ("verdict", &["applied", "noted", "refused"]),
    ("forget", &["applied", "refused"]),
    ("purge", &["applied", "refused"]),
    ("read_response", &["applied", "refused"]),
    ("redrive", &["applied", "refused"]),
    ("discard", &["applied", "refused"]),
    ("read_payload", &["applied", "refused"]),
    ("reload", &["applied"]),
];

/// Exact up to 2^53, which no store holds.
fn as_float(count: u64) -> f64 {
    count as f64
}

fn describe() {
    describe_counter!(
        "onlyonce_requests_total",
        "Requests with a key, or without a required one, by decision."
    );
    describe_counter!(
        "onlyonce_observed_total",
        "Requests in observe mode, by the decision that enforce would have made."
    );
    describe_counter!(
        "onlyonce_limited_total",
        "Requests, and status requests for a key, refused because of a limit."
    );
    describe_counter!("onlyonce_accepted_total", "Requests that were accepted, to be run by a worker.");
    describe_counter!("onlyonce_superseded_total", "Attempts that ended after a later attempt had begun.");
    describe_counter!("onlyonce_lapsed_total", "Records whose attempt was lost, settled by the sweeper.");
    describe_counter!("onlyonce_reaped_total", "Expired records deleted.");
    describe_counter!("onlyonce_unknown_opened_total", "Records that became unknown.");
    describe_counter!("onlyonce_store_errors_total", "Store calls that failed.");
    describe_counter!(
        "onlyonce_store_failovers_total",
        "Redis: how often a replica was found to have taken over from its master."
    );
    describe_gauge!("onlyonce_records", "Records in the store, by state; counted at most twice a minute.");
    describe_gauge!(
        "onlyonce_clock_departure_seconds",
        Unit::Seconds,
        "How far the wall clock is ahead of the embedded store's own clock, which decides when records lapse and expire."
    );
    describe_gauge!(
        "onlyonce_oldest_unknown_seconds",
        Unit::Seconds,
        "Age of the oldest unknown outcome; 0 if there is none."
    );
    describe_gauge!(
        "onlyonce_oldest_pending_seconds",
        Unit::Seconds,
        "How long the oldest accepted request has waited; 0 if none waits."
    );
    describe_gauge!("onlyonce_messages", "Messages of the outbox by state; counted at most twice a minute.");
    describe_gauge!(
        "onlyonce_oldest_message_seconds",
        Unit::Seconds,
        "How long ago the oldest undelivered message that is not dead first fell due; 0 if there is none."
    );
    describe_counter!(
        "onlyonce_outbox_total",
        "Deliveries of messages by result, and operators' changes of messages."
    );
    describe_counter!(
        "onlyonce_reconcile_total",
        "Probe calls scheduled, records settled by source, probe calls failed."
    );
    describe_counter!("onlyonce_probes_total", "Probe calls, by answer.");
    describe_counter!(
        "onlyonce_completed_outside_total",
        "Local work answered with 2xx but not completed in its own transaction, by route: a bug in the service."
    );
    describe_counter!("onlyonce_contradictions_total", "Statements that contradict a settled record.");
    describe_counter!(
        "onlyonce_undecryptable_total",
        "Reads of records or messages whose encryption key this node does not have."
    );
    describe_counter!(
        "onlyonce_cache_total",
        "Look-ups in the cache in front of the store: hit, missed, disbelieved (expired, altered or of an older epoch), failed."
    );
    describe_counter!(
        "onlyonce_spans_dropped_total",
        "Spans that the collector did not accept, or that were dropped because its queue was full."
    );
    describe_counter!("onlyonce_admin_changes_total", "Operators' changes, by result.");
    describe_counter!(
        "onlyonce_admin_refused_total",
        "Requests to the admin port that were refused, by code."
    );
    describe_gauge!(
        "onlyonce_dead_letters",
        "Dead letters, which wait for a person; counted at most twice a minute."
    );
    describe_gauge!("onlyonce_ready", "Whether /readyz is 200: 1 or 0.");
    describe_gauge!("onlyonce_build_info", "The version of this program; always 1.");
    describe_gauge!(
        "onlyonce_worker_ran_seconds",
        Unit::Seconds,
        "How long ago a worker of this node last finished a round."
    );
    describe_histogram!("onlyonce_probe_seconds", Unit::Seconds, "How long a probe call took.");
    describe_histogram!(
        "onlyonce_added_latency_seconds",
        Unit::Seconds,
        "Latency that Onlyonce added to the work itself, by decision."
    );
    describe_histogram!("onlyonce_store_seconds", Unit::Seconds, "How long a store call took, by operation.");
    describe_histogram!("onlyonce_batch_size", "Writes that shared one commit of the store.");
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}
