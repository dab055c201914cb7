//! The alert rules and the board that ship: they use only what `/metrics` has, and every alert has its place in the runbook.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::{BTreeMap, BTreeSet};

use onlyonce_testkit::http;
use serde_json::Value;

use crate::documents::page;
use crate::engines::Engine;
use crate::gateways::{Gateways, text};

const ALERTS: [&str; 14] = [
    "OnlyonceUnknownTooOld",
    "OnlyonceDeadLetters",
    "OnlyonceContradiction",
    "OnlyonceStoreErrors",
    "OnlyonceNotReady",
    "OnlyonceMessagesStuck",
    "OnlyonceProbeFailing",
    "OnlyonceWebhooksRefused",
    "OnlyonceWorkerSilent",
    "OnlyonceKeyMisuse",
    "OnlyonceReplaySurge",
    "OnlyonceLimited",
    "OnlyonceUndecryptable",
    "OnlyonceSuperseded",
];

const SETTINGS: &str = "[webhooks.stripe]\nscheme = \"stripe\"\nsecrets = [\"env:HOOK\"]\n\
    [destinations.mail]\nurl = \"http://127.0.0.1:1/\"\n\
    [[route]]\nmatch = \"POST /ok\"\n";

/// The metrics of a gateway that has served a request and its retry: of each name, the labels with their values.
fn metrics() -> (String, Metrics) {
    let gateways = Gateways::new(Engine::Sqlite, SETTINGS, &[("HOOK", "whsec_secret")]);
    let before = shown(&gateways);
    for _ in 0..2 {
        assert_eq!(gateways.post("/ok", "k-1").status, 201);
    }
    (before, Metrics::read(&shown(&gateways)))
}

fn shown(gateways: &Gateways) -> String {
    text(&http::get(&gateways.node().admin().to_string(), "/metrics").unwrap())
}

struct Metrics(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Metrics {
    fn read(text: &str) -> Self {
        let mut metrics = BTreeMap::<_, BTreeMap<_, BTreeSet<_>>>::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let known = metrics.entry(name.to_owned()).or_default();
            for (label, value) in matchers(labels.trim_end_matches('}')) {
                known.entry(label).or_default().insert(value);
            }
        }
        Self(metrics)
    }

    /// Everything in an expression that is not so on `/metrics`.
    fn check(&self, expression: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut labels_of_all = BTreeSet::from(["instance".to_owned(), "job".to_owned()]);
        for (name, selector) in selectors(expression) {
            let Some(known) = self.0.get(&name) else {
                wrong.push(format!("{name} is no metric"));
                continue;
            };
            labels_of_all.extend(known.keys().cloned());
            for (label, value) in matchers(&selector) {
                // Prometheus itself adds the instance; what begins with a dollar is a variable of the board.
                if label == "instance" || value.starts_with('$') {
                    continue;
                }
                let values = known.get(&label).cloned().unwrap_or_default();
                let missing = value.split('|').filter(|value| !values.contains(*value));
                wrong.extend(missing.map(|value| format!("{name} has no {label}=\"{value}\"")));
            }
        }
        for label in grouped(expression) {
            if !labels_of_all.contains(&label) {
                wrong.push(format!("there is no label {label} in {expression}"));
            }
        }
        wrong
    }
}

/// `a="b",c=~"d|e"`
fn matchers(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((label, after)) = rest.split_once('=') {
        let quoted = after.trim_start_matches('~').strip_prefix('"').unwrap();
        let (value, after) = quoted.split_once('"').unwrap();
        found.push((label.trim_matches([',', ' ', '!']).to_owned(), value.to_owned()));
        rest = after;
    }
    found
}

/// Names of ours, each with what stands in braces behind it.
fn selectors(expression: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("onlyonce_") {
        rest = &rest[at..];
        let end = rest.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let selector = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        found.push((name.to_owned(), selector.map_or("", |(selector, _)| selector).to_owned()));
        rest = after;
    }
    found
}

/// The labels of every `by (…)`.
fn grouped(expression: &str) -> Vec<String> {
    let lists = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    lists.flat_map(|(list, _)| list.split(',').map(|label| label.trim().to_owned())).collect()
}

/// The anchors of a page's headings, as the forge makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    let kept = |char: &char| char.is_alphanumeric() || matches!(char, ' ' | '-');
    headings
        .map(|heading| heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// The values of a member of the rules, in their order. The file is ours, and has one on a line.
fn members<'a>(rules: &'a str, name: &str) -> Vec<&'a str> {
    let lines = rules.lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("- ");
        line.strip_prefix(name)?.strip_prefix(": ")
    });
    lines.map(|value| value.trim_matches('\'')).collect()
}

/// O01, O02, O03
#[test]
fn alerts_and_board_use_only_what_the_admin_port_shows() {
    let (_, metrics) = metrics();
    let rules = page("packaging/prometheus/onlyonce.rules.yml");
    assert_eq!(members(&rules, "alert"), ALERTS);
    let mut expressions: Vec<String> = members(&rules, "expr").into_iter().map(str::to_owned).collect();
    assert_eq!(expressions.len(), ALERTS.len());
    let board: Value = serde_json::from_str(&page("packaging/grafana/onlyonce.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    expressions.extend(targets.map(|target| target["expr"].as_str().unwrap().to_owned()));
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    expressions.extend(variables.filter_map(|variable| Some(variable["definition"].as_str()?.to_owned())));
    assert!(expressions.len() > 40, "{}", expressions.len());
    for expression in &expressions {
        assert!(!selectors(expression).is_empty(), "{expression}");
        assert_eq!(metrics.check(expression), Vec::<String>::new());
    }
    // The check itself finds what is wrong.
    for wrong in [
        "sum(onlyonce_request_total)",
        "onlyonce_requests_total{decision=\"replay\"}",
        "onlyonce_requests_total{decision=~\"replayed|replay\"}",
        "sum by (path) (onlyonce_requests_total)",
    ] {
        assert_eq!(metrics.check(wrong).len(), 1, "{wrong}");
    }
}

/// O03
#[test]
fn every_alert_says_what_it_means_and_leads_to_the_runbook() {
    let rules = page("packaging/prometheus/onlyonce.rules.yml");
    for member in ["for", "severity", "summary", "description"] {
        let values = members(&rules, member);
        assert_eq!(values.len(), ALERTS.len(), "{member}");
        assert!(values.iter().all(|value| !value.is_empty()), "{member}");
    }
    let anchors = anchors(&page("docs/runbook.md"));
    let links = members(&rules, "runbook_url");
    assert_eq!(links.len(), ALERTS.len());
    for link in links {
        let (path, anchor) = link.split_once('#').unwrap();
        assert!(path.ends_with("/docs/runbook.md"), "{link}");
        assert!(anchors.contains(anchor), "{link} leads to none of {anchors:?}");
    }
}

/// O01, O02: every metric that operators are promised is there before anything has happened, and counters are at nought; but for
/// what has no bound of its own (the busiest scopes) and what is measured only once something was done.
#[test]
fn every_metric_is_there_and_counters_begin_at_nought() {
    let (before, after) = metrics();
    let names = |text: &str| -> BTreeSet<String> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE onlyonce_"));
        types.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let there = names(&before);
    for name in [
        "requests_total",
        "superseded_total",
        "lapsed_total",
        "reaped_total",
        "unknown_opened_total",
        "reconcile_total",
        "outbox_total",
        "completed_outside_total",
        "webhooks_total",
        "admin_changes_total",
        "admin_refused_total",
        "limited_total",
        "probes_total",
        "probe_seconds",
        "contradictions_total",
        "undecryptable_total",
        "accepted_total",
        "oldest_pending_seconds",
        "build_info",
        "store_errors_total",
        "oldest_unknown_seconds",
        "oldest_message_seconds",
        "dead_letters",
        "messages",
        "records",
        "ready",
        "spans_dropped_total",
    ] {
        assert!(there.contains(name), "{name} is not among {there:?}");
    }
    for name in ["added_latency_seconds", "batch_size", "store_seconds"] {
        assert!(after.0.contains_key(&format!("onlyonce_{name}_count")), "{name}");
    }
    for name in ["worker_ran_seconds", "busiest_scope_duplicates"] {
        assert!(after.0.contains_key(&format!("onlyonce_{name}")), "{name}");
    }
    let counters = before.lines().filter(|line| line.contains("_total") && !line.starts_with('#'));
    for line in counters {
        assert!(line.ends_with(" 0"), "{line}");
    }
    let decisions = &Metrics::read(&before).0["onlyonce_requests_total"]["decision"];
    for decision in [
        "executed",
        "replayed",
        "in_progress",
        "key_reused",
        "unknown",
        "missing",
        "invalid",
        "limited",
        "retried",
        "store_unavailable",
        "observed",
    ] {
        assert!(decisions.contains(decision), "{decision}");
    }
    let outbox = &Metrics::read(&before).0["onlyonce_outbox_total"];
    assert_eq!(outbox["destination"], BTreeSet::from(["mail".to_owned()]));
    assert_eq!(outbox["result"].len(), 6);
    // Nothing that somebody else chooses is a label.
    assert!(!before.contains("k-1"));
}
