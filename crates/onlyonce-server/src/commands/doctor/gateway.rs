//! What a running gateway says of itself: whether it is ready, its overview and its metrics.

use std::net::SocketAddr;
use std::time::Duration;

use onlyonce::worker::Background;
use serde_json::Value;

use super::super::failure::Failure;
use super::super::target::Gateway;
use super::super::text::span;
use super::{Told, or_well, parted};
use crate::cli::{Doctor, Where};
use crate::config::Webhook;

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
/// From when on an undelivered message is stuck.
const MESSAGE_SECONDS_MAX: f64 = 600.0;
/// How often the reconciler looks for work.
const RECONCILE_EVERY: Duration = Duration::from_secs(1);
/// A worker that is silent for less is not judged: one round may take a while.
const SILENT_SECONDS_MIN: f64 = 15.0;
const PERIODS: f64 = 3.0;

/// What the gateway answered.
pub(super) struct Asked {
    found: Vec<Told>,
    /// None where it cannot be had.
    overview: Option<Value>,
    metrics: Option<String>,
    pub(super) is_running: bool,
}

impl Asked {
    fn lost(told: Told) -> Self {
        Self { found: vec![told], overview: None, metrics: None, is_running: false }
    }

    pub(super) fn found(&self) -> Vec<Told> {
        self.found.clone()
    }

    /// How the store is doing, by the gateway.
    pub(super) fn store(&self) -> Option<&Value> {
        Some(&self.overview.as_ref()?["store"])
    }

    /// What somebody has to do something about.
    fn needs<'a>(&'a self, what: &'a str) -> impl Iterator<Item = &'a Value> {
        let needs = self.overview.as_ref().and_then(|overview| overview["needs_you"].as_array());
        needs.into_iter().flatten().filter(move |need| need["what"] == what)
    }

    fn seconds(&self, pointer: &str) -> Option<f64> {
        self.overview.as_ref()?.pointer(pointer)?.as_f64()
    }
}

/// Asks the gateway of `--admin`, or else of these settings; `configured` is none where the setting has a fault.
pub(super) async fn ask(arguments: &Doctor, configured: Option<SocketAddr>) -> Result<Asked, Failure> {
    let admin = match (&arguments.admin, configured) {
        (Some(admin), _) => admin.clone(),
        (None, Some(address)) if address.port() == 0 => {
            let says = "admin has port 0, which the gateway picks at its start; give the address of its ready line with --admin";
            return Ok(Asked::lost(Told::skip(says)));
        }
        (None, Some(address)) => Where::url_of(address),
        (None, None) => {
            let says = "admin has a fault, so the address of the gateway is not known";
            return Ok(Asked::lost(Told::skip(says)));
        }
    };
    let place = Where {
        admin: Some(admin),
        token: arguments.token.clone(),
        store: None,
        config: arguments.config.clone(),
        json: arguments.json,
    };
    let gateway = Gateway::new(&place)?;
    let ready = match gateway.ready().await {
        Ok(ready) => ready,
        Err(failure) => {
            let failure = failure.to_string();
            let remedy = "start it, or give its admin port with --admin";
            return Ok(Asked::lost(Told::fail(parted(&failure).0, remedy)));
        }
    };
    let mut found = Vec::new();
    if !ready.is_ready {
        let store = &ready.body["store"];
        let why = store["detail"].as_str().unwrap_or("it is stopping");
        found.push(Told::fail(
            format!("it is not ready: {why}"),
            "see docs/runbook.md, \"Not ready\", and its log",
        ));
    }
    let overview = match gateway.overview().await {
        Ok(overview) => Some(overview),
        Err(failure) => {
            let remedy = "give a token of role read with --token env:NAME or file:PATH";
            let failure = failure.to_string();
            found.push(Told::warn(format!("its overview cannot be read: {}", parted(&failure).0), remedy));
            None
        }
    };
    let version = overview.as_ref().and_then(|overview| overview["version"].as_str()).unwrap_or_default();
    if !version.is_empty() && version != env!("CARGO_PKG_VERSION") {
        found.push(Told::warn(
            format!("its version is {version}, but this program is {}", env!("CARGO_PKG_VERSION")),
            "use the same release for both",
        ));
    }
    let metrics = if overview.is_some() { gateway.metrics().await.ok() } else { None };
    let found = or_well(found, format!("ready, version {}", env!("CARGO_PKG_VERSION")));
    Ok(Asked { found, overview, metrics, is_running: true })
}

fn away() -> Vec<Told> {
    vec![Told::skip("only a running gateway knows")]
}

/// Probes that give no usable answer.
pub(super) fn failing_probes(asked: &Asked) -> Vec<Told> {
    let failing = asked.needs("probe_failing").map(|failing| {
        let text = |name: &str| failing[name].as_str().unwrap_or_default();
        let (route, count, detail) = (text("route"), &failing["count"], text("detail"));
        Told::warn(
            format!("the probe of \"{route}\" failed {count} times in a row: {detail}"),
            "see docs/runbook.md, \"A probe fails\"",
        )
    });
    failing.collect()
}

pub(super) fn webhooks(webhooks: &[Webhook], asked: &Asked) -> Vec<Told> {
    if webhooks.is_empty() {
        return vec![Told::ok("none is configured")];
    }
    let Some(metrics) = &asked.metrics else { return away() };
    let is_waiting = asked.seconds("/oldest_unknown/age_seconds").is_some_and(|age| age > DAY);
    let mut told = Vec::new();
    for webhook in webhooks {
        let (all, refused) = counted(metrics, &webhook.name);
        let name = &webhook.name;
        if all == 0.0 && is_waiting {
            told.push(Told::warn(
                format!("no webhook of {name} has arrived since the gateway started, but a record has been unknown for more than a day"),
                "check in the provider's dashboard where it sends its events, and whether it can reach that URL",
            ));
        }
        if refused * 10.0 > all {
            told.push(Told::warn(
                format!("{refused} of {all} webhooks of {name} were refused"),
                "see docs/runbook.md, \"Webhooks are refused\": usually the secret differs",
            ));
        }
    }
    or_well(told, "all that arrived were accepted")
}

/// How many webhooks of a source came, and how many of them were refused.
fn counted(metrics: &str, source: &str) -> (f64, f64) {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("onlyonce_webhooks_total{"));
    let of_source = lines.filter(|line| line.contains(&format!("source=\"{source}\"")));
    of_source.fold((0.0, 0.0), |(all, refused), line| {
        let count: f64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0.0);
        let is_refused = line.contains("result=\"refused\"");
        (all + count, if is_refused { refused + count } else { refused })
    })
}

pub(super) fn workers(background: &Background, asked: &Asked) -> Vec<Told> {
    let Some(overview) = &asked.overview else { return away() };
    let moment = |value: &Value| value.as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let Some(now) = moment(&overview["at"]) else { return away() };
    let mut told = Vec::new();
    for (worker, every) in [
        ("sweeper", background.sweep_every),
        ("reaper", background.reap_every),
        ("reconciler", RECONCILE_EVERY),
    ] {
        // A worker that has not ended its first round yet is not told of.
        let Some(ran_at) = moment(&overview["workers"][worker]["ran_at"]) else { continue };
        let silent = now.duration_since(ran_at).as_secs_f64();
        if silent > (every.as_secs_f64() * PERIODS).max(SILENT_SECONDS_MIN) {
            let since = span(Duration::try_from_secs_f64(silent).unwrap_or_default());
            told.push(Told::fail(
                format!("the {worker} has not finished a round for {since}"),
                "see docs/runbook.md, \"A worker is silent\"",
            ));
        }
    }
    or_well(told, "sweeper, reaper and reconciler are running")
}

pub(super) fn stuck(asked: &Asked) -> Vec<Told> {
    let Some(overview) = &asked.overview else { return away() };
    let mut told = Vec::new();
    let age = |seconds: f64| span(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    if let Some(seconds) = asked.seconds("/oldest_unknown/age_seconds").filter(|seconds| *seconds > HOUR) {
        let key = overview["oldest_unknown"]["key"].as_str().unwrap_or_default();
        told.push(Told::warn(
            format!("the outcome of key \"{key}\" has been unknown for {}", age(seconds)),
            "onlyonce keys list --state unknown shows all of them, and onlyonce keys show says what can be done",
        ));
    }
    for (kind, command) in
        [("keys", "onlyonce keys list --dead"), ("messages", "onlyonce outbox list --state dead")]
    {
        let count = overview["dead_letters"][kind].as_u64().unwrap_or(0);
        if count > 0 {
            told.push(Told::warn(
                format!("dead letters among {kind}: {count}"),
                format!("{command} shows them"),
            ));
        }
    }
    if let Some(seconds) = asked.seconds("/oldest_message_seconds").filter(|age| *age > MESSAGE_SECONDS_MAX) {
        told.push(Told::warn(
            format!("a message has been waiting for {}", age(seconds)),
            "see docs/runbook.md, \"Messages are not delivered\"",
        ));
    }
    or_well(told, "nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_counted_by_their_source() {
        let metrics = "# TYPE onlyonce_webhooks_total counter\n\
                       onlyonce_webhooks_total{source=\"bank\",result=\"applied\"} 7\n\
                       onlyonce_webhooks_total{source=\"bank\",result=\"refused\"} 2\n\
                       onlyonce_webhooks_total{source=\"banker\",result=\"refused\"} 40\n";
        assert_eq!(counted(metrics, "bank"), (9.0, 2.0));
        assert_eq!(counted(metrics, "nobody"), (0.0, 0.0));
    }
}
