//! What is wrong, risky or worth knowing about a server, and what of it is refused at the start.

use std::collections::HashMap;

use redis::Pipeline;

use super::connection::{Answers, Link};
use super::failure::Failure;
use super::layout::{Keys, LAYOUT};
use super::server::info_text;
use super::url::{Database, Durability};
use crate::{Error, ErrorKind, Finding, Level};

/// The oldest servers that have `SET … NX GET` and flags of scripts.
const REDIS_MIN: [u32; 2] = [7, 0];
const VALKEY_MIN: [u32; 2] = [7, 2];
/// Settings that the promises depend on.
const SETTINGS: [&str; 5] =
    ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy", "min-replicas-to-write"];

/// Whether it is a member of a cluster.
const CLUSTER: &str = "cluster_enabled";

/// What a server tells of itself.
struct Told {
    /// Its host, where it is one of several.
    member: Option<String>,
    info: HashMap<String, String>,
    /// None where it may not be asked.
    settings: Option<HashMap<String, String>>,
}

impl Told {
    async fn ask(member: Option<String>, link: &Link) -> Result<Self, Error> {
        let mut trip = Pipeline::new();
        trip.cmd("INFO");
        for setting in SETTINGS {
            trip.cmd("CONFIG").arg("GET").arg(setting);
        }
        let mut answers = link.ask(trip).await?;
        let info = info_text(&answers.value()?).ok_or_else(|| answers.misunderstood())?;
        let info = info.lines().filter_map(|line| line.trim().split_once(':'));
        let info = info.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Self { member, info, settings: settings(&mut answers)? })
    }

    fn info(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref()?.get(name).map(String::as_str)
    }
}

/// None where a role may not ask for settings.
fn settings(answers: &mut Answers) -> Result<Option<HashMap<String, String>>, Error> {
    let mut settings = HashMap::new();
    for _ in SETTINGS {
        match answers.strings() {
            Ok(words) => {
                let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
                settings.extend(words.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))));
            }
            Err(failure) if matches!(failure.kind, ErrorKind::Misconfigured | ErrorKind::Other) => {
                return Ok(None);
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(Some(settings))
}

/// Refuses a server on which a promise would not hold.
///
/// # Errors
///
/// `Misconfigured`, with the first finding that is an error.
pub(super) async fn refuse(link: &Link, keys: &Keys) -> Result<(), Error> {
    let database = link.database();
    let told = ask_all(link).await?;
    for told in &told {
        refuse_version(database, told)?;
    }
    let wrong =
        all_findings(link, keys, &told).await?.into_iter().find(|finding| finding.level == Level::Error);
    match wrong {
        None => Ok(()),
        Some(Finding { says, remedy, .. }) => {
            let message = format!("Redis at {}: {says}; {remedy}", database.shown);
            Err(Failure::refused(ErrorKind::Misconfigured, message).into())
        }
    }
}

/// Every master.
async fn ask_all(link: &Link) -> Result<Vec<Told>, Error> {
    let mut told = Vec::new();
    for (member, link) in link.masters().await? {
        told.push(Told::ask(member, &link).await?);
    }
    Ok(told)
}

fn refuse_version(database: &Database, told: &Told) -> Result<(), Failure> {
    let (name, version, oldest) = match told.info("valkey_version") {
        "" => ("Redis", told.info("redis_version"), REDIS_MIN),
        valkey => ("Valkey", valkey, VALKEY_MIN),
    };
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let parts = [parts.next().unwrap_or(0), parts.next().unwrap_or(0)];
    if parts >= oldest {
        return Ok(());
    }
    let [major, minor] = oldest;
    let message = format!(
        "Redis at {}: it is {name} \"{version}\"; use {name} {major}.{minor} or newer",
        database.shown
    );
    Err(Failure::refused(ErrorKind::Misconfigured, message))
}

pub(super) async fn examine(link: &Link, keys: &Keys) -> Result<Vec<Finding>, Error> {
    all_findings(link, keys, &ask_all(link).await?).await
}

async fn all_findings(link: &Link, keys: &Keys, told: &[Told]) -> Result<Vec<Finding>, Error> {
    let database = link.database();
    let mut found: Vec<Finding> = Vec::new();
    found.extend(told.iter().find_map(|told| disagreement(database, told)));
    if found.is_empty() {
        let mut trip = Pipeline::new();
        trip.cmd("GET").arg(keys.layout());
        found.extend(other_layout(database, link.ask(trip).await?.bytes()?.as_deref()));
    }
    if database.durability == Durability::None {
        found.push(Finding {
            level: Level::Warning,
            code: "redis.durability",
            says: "the URL says durability=none: records may be lost, and their requests may then run again"
                .to_owned(),
            remedy: "leave the parameter out, unless that is harmless".to_owned(),
        });
    }
    found.extend(told.iter().flat_map(|told| findings(database, told)));
    Ok(found)
}

/// A cluster and a URL for a single server.
fn disagreement(database: &Database, told: &Told) -> Option<Finding> {
    (told.info(CLUSTER) == "1" && !database.is_cluster).then(|| Finding {
        level: Level::Error,
        code: "redis.cluster",
        says: "it is a member of a Redis Cluster, and the URL is that of a single server".to_owned(),
        remedy: format!("write {}://", database.other_scheme()),
    })
}

fn other_layout(database: &Database, layout: Option<&[u8]>) -> Option<Finding> {
    let layout = String::from_utf8_lossy(layout.filter(|layout| *layout != LAYOUT.as_bytes())?);
    Some(Finding {
        level: Level::Error,
        code: "redis.layout",
        says: format!(
            "prefix \"{}\" has layout \"{layout}\", this release has layout \"{LAYOUT}\"",
            database.prefix
        ),
        remedy: "upgrade this node, or use another prefix".to_owned(),
    })
}

/// What is found at one server.
fn findings(database: &Database, told: &Told) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |level, code, says: String, remedy: &str| {
        let says = told.member.as_ref().map_or_else(|| says.clone(), |member| format!("{member}: {says}"));
        findings.push(Finding { level, code, says, remedy: remedy.to_owned() });
    };
    if told.info("role") != "master" {
        add(
            Level::Error,
            "redis.replica",
            "it has become a replica: nothing can be written there, and what it shows may be old".to_owned(),
            "use the master's URL, or list all hosts in it",
        );
    }
    durability(database, told, &mut add);
    replicas(database, told, &mut add);
    if !matches!(told.info("maxmemory"), "" | "0") {
        let (used, most) = (told.info("used_memory_human"), told.info("maxmemory_human"));
        add(
            Level::Note,
            "redis.memory",
            format!("it uses {used} of {most} of memory; when that is full, nothing can be reserved"),
            "raise maxmemory before it is",
        );
    }
    findings
}

/// Whether an acknowledged write survives a failover.
fn replicas(database: &Database, told: &Told, add: &mut impl FnMut(Level, &'static str, String, &str)) {
    let connected: u32 = told.info("connected_slaves").parse().unwrap_or(0);
    let wanted = database.replicas;
    if wanted > connected {
        add(
            Level::Warning,
            "redis.replicas_away",
            format!(
                "the URL says replicas={wanted}, and {connected} are connected: requests with a key are refused"
            ),
            "see to it that the replicas run and are connected",
        );
    } else if wanted < connected {
        let says = match wanted {
            0 => format!(
                "it has {connected} replicas, and the URL does not say that they confirm what is written"
            ),
            _ => format!("it has {connected} replicas, and {wanted} of them confirm what is written"),
        };
        add(
            Level::Warning,
            "redis.replicas",
            format!(
                "{says}: a failover may lose what the new master had not received, and a key that was completed in that moment may \
                 then run again"
            ),
            &format!("write replicas={connected} in the URL where that must not happen, or use PostgreSQL"),
        );
    }
    if wanted == 0 && connected > 0 && told.setting("min-replicas-to-write") == Some("0") {
        add(
            Level::Warning,
            "redis.min_replicas",
            "min-replicas-to-write is 0: a master that is cut off from its replicas goes on acknowledging what a failover then \
             loses"
                .to_owned(),
            "set min-replicas-to-write 1 (CONFIG SET, and redis.conf)",
        );
    }
}

/// Whether an acknowledged write survives a crash of the server.
fn durability(database: &Database, told: &Told, add: &mut impl FnMut(Level, &'static str, String, &str)) {
    let level = match database.durability {
        Durability::None => Level::Warning,
        Durability::Checked | Durability::Vouched => Level::Error,
    };
    let policy = told.setting("maxmemory-policy").unwrap_or(told.info("maxmemory_policy"));
    if policy.starts_with("allkeys-") {
        add(
            level,
            "redis.maxmemory_policy",
            format!(
                "maxmemory-policy is {policy}: it deletes records when memory is full, and their requests run again"
            ),
            "set maxmemory-policy noeviction (CONFIG SET, and redis.conf)",
        );
    }
    if told.settings.is_none() && database.durability != Durability::None {
        let (level, remedy) = match database.durability {
            Durability::Vouched => {
                (Level::Warning, "see to it that every write is on disk before it is answered")
            }
            Durability::Checked | Durability::None => (
                Level::Error,
                "grant +config|get, or write durability=vouched in the URL if you know that they do",
            ),
        };
        let says = "its settings cannot be read, so nobody knows whether answers that were acknowledged survive a crash";
        add(level, "redis.settings", says.to_owned(), remedy);
    }
    for (name, code, safe, means) in [
        (
            "appendonly",
            "redis.appendonly",
            "yes",
            "a crash loses all that was written since the last snapshot",
        ),
        ("appendfsync", "redis.appendfsync", "always", "a crash loses answers that were acknowledged"),
        (
            "no-appendfsync-on-rewrite",
            "redis.no_appendfsync_on_rewrite",
            "no",
            "a crash while it rewrites its file loses answers that were acknowledged",
        ),
    ] {
        if let Some(value) = told.setting(name).filter(|value| *value != safe) {
            let remedy = format!("set {name} {safe} (CONFIG SET, and redis.conf)");
            add(level, code, format!("{name} is {value}: {means}"), &remedy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(info: &[(&str, &str)]) -> Told {
        let info = info.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Told { member: None, info, settings: None }
    }

    /// E07
    #[test]
    fn a_server_that_is_too_old_is_told_by_its_version() {
        let database = Database::parse("redis://localhost").unwrap();
        for (name, version, is_fine) in [
            ("redis_version", "7.0.15", true),
            ("redis_version", "8.2.1", true),
            ("redis_version", "6.2.14", false),
            ("redis_version", "", false),
            ("valkey_version", "7.2.4", true),
            ("valkey_version", "9.0.0", true),
            ("valkey_version", "7.1.0", false),
        ] {
            let refused = refuse_version(&database, &told(&[(name, version)]));
            assert_eq!(refused.is_ok(), is_fine, "{name} {version}");
            if let Err(failure) = refused {
                assert!(failure.to_string().contains(&format!("\"{version}\"; use ")), "{failure}");
            }
        }
    }

    /// X01
    #[test]
    fn replicas_that_do_not_confirm_or_are_away_are_found() {
        for (url, connected, code) in [
            ("redis://localhost?durability=none", "0", None),
            ("redis://localhost?durability=none", "1", Some("redis.replicas")),
            ("redis://localhost?durability=none&replicas=1", "2", Some("redis.replicas")),
            ("redis://localhost?durability=none&replicas=2", "2", None),
            ("redis://localhost?durability=none&replicas=2", "1", Some("redis.replicas_away")),
        ] {
            let told = told(&[("role", "master"), ("connected_slaves", connected)]);
            let found = findings(&Database::parse(url).unwrap(), &told);
            assert_eq!(found.first().map(|found| found.code), code, "{url} {connected}");
        }
    }

    /// X01
    #[test]
    fn a_server_that_has_become_a_replica_is_found() {
        let database = Database::parse("redis://localhost?durability=none").unwrap();
        let codes = |role| {
            findings(&database, &told(&[("role", role)])).iter().map(|found| found.code).collect::<Vec<_>>()
        };
        assert_eq!(codes("master"), [""; 0]);
        assert_eq!(codes("slave"), ["redis.replica"]);
    }
}
