//! `onlyonce doctor`: what is wrong with the settings, the store, the services and the running gateway, and what to do about it.
//!
//! 1. Each check has an id and ends as ok, warn, fail or skip; one that finds several things has a line for each, the worst first.
//! 2. Nothing is changed: a store is read as a guest, services and probes are connected to and left, and the gateway is asked by GET.
//! 3. A check that lacks what it looks at (the settings that it needs have faults, the gateway is away) is skipped and says so.

mod cache;
mod gateway;
mod machine;
mod settings;
mod store;

use std::io::{self, Write};

use serde_json::{Value, json};

use super::failure::Failure;
use super::text::{Colour, Progress, clean};
use crate::Ended;
use crate::cli::Doctor;
use crate::config::{self, Config};

pub(crate) async fn run(arguments: &Doctor) -> Result<Ended, Failure> {
    let mut progress = Progress::new();
    let checks = checks(arguments, &mut progress).await?;
    drop(progress);
    let has_failed = checks.iter().any(|check| check.level == Level::Fail);
    let mut out = io::stdout().lock();
    if arguments.json {
        let told: Vec<_> = checks.iter().map(Check::as_json).collect();
        writeln!(out, "{:#}", json!({ "ok": !has_failed, "checks": told }))?;
    } else {
        write_text(&mut out, &checks)?;
    }
    Ok(if has_failed { Ended::No } else { Ended::Yes })
}

async fn checks(arguments: &Doctor, progress: &mut Progress) -> Result<Vec<Check>, Failure> {
    let sources = arguments.sources();
    let (loaded, parts) = (config::load(&sources), config::parts(&sources));
    let mut all = Checks::default();
    all.add("settings", settings::found(&loaded));
    let config = loaded.ok().map(|loaded| loaded.config);
    progress.tell("asking the gateway");
    let asked = gateway::ask(arguments, parts.admin).await?;
    all.add("gateway", asked.found());
    progress.tell("reading the store");
    let store = match (&parts.store, &parts.encryption) {
        (Some(url), Some(encryption)) => store::look(url, encryption.as_ref(), &asked, progress).await,
        (None, _) | (_, None) => store::Looked::skipped(),
    };
    all.add("store", store.found);
    all.add("durability", store.durability);
    all.add("clock", store.clock);
    if let (Some(Some(cache)), Some(encryption)) = (&parts.cache, &parts.encryption) {
        progress.tell("asking the cache");
        all.add("cache", cache::look(cache, encryption.as_ref()).await);
    }
    progress.tell("connecting to services and probes");
    let (upstreams, mut probes) = match &config {
        Some(config) => (machine::upstreams(config).await, machine::probes(config).await),
        None => (faulty(), faulty()),
    };
    probes.extend(gateway::failing_probes(&asked));
    all.add("upstream", upstreams);
    all.add("probes", probes);
    all.add("webhooks", unless_faulty(&parts.webhooks, |webhooks| gateway::webhooks(webhooks, &asked)));
    all.add("tokens", unless_faulty(&parts.admin_tokens, |tokens| settings::tokens(tokens)));
    all.add(
        "encryption",
        unless_faulty(&parts.encryption, |encryption| {
            settings::encryption(encryption.is_some(), config.as_ref(), store.keys.as_deref())
        }),
    );
    all.add("scope", unless_faulty(&config, settings::scope));
    all.add("workers", unless_faulty(&parts.background, |background| gateway::workers(background, &asked)));
    all.add("stuck", gateway::stuck(&asked));
    let limits = parts.limits.zip(parts.store);
    all.add("limits", unless_faulty(&limits, |(limits, url)| settings::limits(limits, url)));
    all.add("files", unless_faulty(&parts.listener, |listener| machine::files(listener, store.holder)));
    Ok(all.0)
}

/// The check of a part of the settings, where that part has no fault.
fn unless_faulty<T>(part: &Option<T>, check: impl FnOnce(&T) -> Vec<Told>) -> Vec<Told> {
    part.as_ref().map_or_else(faulty, check)
}

fn faulty() -> Vec<Told> {
    vec![Told::skip("the settings that it needs have faults")]
}

/// Every check, in the order of the report; that of the cache only where there is one.
const IDS: [&str; 16] = [
    "settings",
    "gateway",
    "store",
    "durability",
    "clock",
    "cache",
    "upstream",
    "probes",
    "webhooks",
    "tokens",
    "encryption",
    "scope",
    "workers",
    "stuck",
    "limits",
    "files",
];

/// How a check ended, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Skip,
    Warn,
    Fail,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What a check has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    level: Level,
    says: String,
    remedy: String,
}

impl Told {
    fn ok(says: impl Into<String>) -> Self {
        Self { level: Level::Ok, says: says.into(), remedy: String::new() }
    }

    fn skip(says: impl Into<String>) -> Self {
        Self { level: Level::Skip, says: says.into(), remedy: String::new() }
    }

    fn warn(says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warn, says: says.into(), remedy: remedy.into() }
    }

    fn fail(says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Fail, says: says.into(), remedy: remedy.into() }
    }
}

/// What is wrong, and the remedy that a message of ours ends with; empty where it has none.
fn parted(message: &str) -> (&str, &str) {
    message.rsplit_once("; ").unwrap_or((message, ""))
}

#[derive(Debug)]
struct Check {
    id: &'static str,
    level: Level,
    says: String,
    remedy: String,
}

impl Check {
    fn as_json(&self) -> Value {
        let remedy = if self.remedy.is_empty() { Value::Null } else { self.remedy.as_str().into() };
        json!({ "id": self.id, "level": self.level.as_str(), "says": self.says, "remedy": remedy })
    }
}

#[derive(Debug, Default)]
struct Checks(Vec<Check>);

impl Checks {
    /// What a check found: whatever is wrong, or else what is well.
    fn add(&mut self, id: &'static str, mut told: Vec<Told>) {
        debug_assert!(IDS.contains(&id) && !told.is_empty(), "{id}");
        told.sort_by_key(|told| std::cmp::Reverse(told.level));
        let is_bad = told.iter().any(|told| told.level > Level::Skip);
        let shown = told.into_iter().filter(|told| !is_bad || told.level > Level::Skip);
        self.0.extend(shown.map(|Told { level, says, remedy }| Check { id, level, says, remedy }));
    }
}

/// What is wrong, or else that nothing is.
fn or_well(told: Vec<Told>, well: impl Into<String>) -> Vec<Told> {
    if told.is_empty() { vec![Told::ok(well)] } else { told }
}

/// Every route, with the one of all other requests.
fn routes(config: &Config) -> impl Iterator<Item = &config::Route> {
    config.routes.iter().chain([&config.default])
}

fn write_text(out: &mut impl Write, checks: &[Check]) -> io::Result<()> {
    let colour = Colour::of_stdout();
    for check in checks {
        let level = colour.level(check.level.as_str(), &format!("{:<4}", check.level.as_str()));
        writeln!(out, "{level}  {:<10}  {}", check.id, clean(&check.says))?;
        if !check.remedy.is_empty() {
            writeln!(out, "                  {}", clean(&check.remedy))?;
        }
    }
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    let (failed, warned, skipped) = (count(Level::Fail), count(Level::Warn), count(Level::Skip));
    writeln!(out, "\n{failed} failed, {warned} warned, {skipped} skipped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_what_is_well_is_not_told_beside_it() {
        let mut all = Checks::default();
        all.add("store", vec![Told::ok("a"), Told::warn("b", "do"), Told::fail("c", "do")]);
        all.add("clock", vec![Told::ok("d")]);
        let told: Vec<_> = all.0.iter().map(|check| (check.id, check.level, &*check.says)).collect();
        assert_eq!(
            told,
            [("store", Level::Fail, "c"), ("store", Level::Warn, "b"), ("clock", Level::Ok, "d")]
        );
    }
}
