//! What can be seen of the store, which is only read.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onlyonce::machine;
use onlyonce::store::seal::Keyring;
use onlyonce::store::sqlite::{Guest, Holder};
use onlyonce::store::{Finding, KeyUse, Level, Query, Store};

use super::super::text::{Progress, span};
use super::gateway::Asked;
use super::{Told, faulty, or_well, parted};
use crate::store::{self, Url};

/// An answer that takes longer is slow.
const SLOW: Duration = Duration::from_millis(500);
const BACKLOG_MAX: Duration = Duration::from_secs(3600);
/// How far the clocks of this machine and of the store may be apart.
const APART_WARN: Duration = Duration::from_secs(1);
const APART_FAIL: Duration = Duration::from_secs(10);
/// The share of a disk that is to be free.
const FREE_PERCENT_MIN: u64 = 10;

/// What was seen.
pub(super) struct Looked {
    pub(super) found: Vec<Told>,
    pub(super) durability: Vec<Told>,
    pub(super) clock: Vec<Told>,
    /// Which encryption keys it needs; none where that could not be read.
    pub(super) keys: Option<Vec<KeyUse>>,
    /// Who has the file.
    pub(super) holder: Option<Holder>,
}

impl Looked {
    /// Where the settings do not say which store, or how to decrypt it.
    pub(super) fn skipped() -> Self {
        Self { found: faulty(), durability: faulty(), clock: faulty(), keys: None, holder: None }
    }
}

pub(super) async fn look(
    url: &Url,
    encryption: Option<&Keyring>,
    asked: &Asked,
    progress: &mut Progress,
) -> Looked {
    let holder = url.holder().ok().flatten();
    let lost = |told: Told, durability: Told| Looked {
        found: vec![told],
        durability: vec![durability],
        clock: vec![Told::skip("the store could not be read")],
        keys: None,
        holder,
    };
    match url {
        Url::Memory => {
            let durability = Told::warn(
                "memory: loses all records when the process ends, so a retry runs again",
                "use sqlite:PATH or postgres://…",
            );
            let told =
                slow(asked).unwrap_or_else(|| Told::skip("memory: exists only inside its gateway's process"));
            return Looked { keys: Some(Vec::new()), ..lost(told, durability) };
        }
        Url::Sqlite(_) | Url::Server(..) => {}
    }
    let opened = match url.open_for_reading(encryption).await {
        Ok(opened) => opened,
        Err(error) => {
            let message = format!("{error:#}");
            let (wrong, remedy) = parted(&message);
            let remedy = match (url, asked.is_running) {
                (Url::Sqlite(path), false) if !path.exists() => {
                    "start the gateway, which creates it, or correct store"
                }
                (Url::Sqlite(_) | Url::Server(..) | Url::Memory, _) if remedy.is_empty() => {
                    "correct store, or see docs/runbook.md, \"The store does not answer\""
                }
                (Url::Sqlite(_) | Url::Server(..) | Url::Memory, _) => remedy,
            };
            return lost(Told::fail(wrong, remedy), Told::skip("the store could not be read"));
        }
    };
    let mut looked = read(url, &opened, asked, progress).await;
    looked.holder = holder;
    if let Err(error) = store::close(opened).await {
        looked.found.push(Told::warn(format!("{error:#}"), "try again"));
    }
    looked
}

async fn read(url: &Url, opened: &Arc<dyn Store>, asked: &Asked, progress: &mut Progress) -> Looked {
    let began = Instant::now();
    let epoch = opened.epoch().await;
    let took = began.elapsed();
    let mut found: Vec<Told> = slow(asked).into_iter().collect();
    let clock = match &epoch {
        Ok(seen) => clock(url, seen.now.as_micros(), took),
        Err(error) => {
            found.push(Told::fail(
                format!("it does not answer: {error}"),
                "see docs/runbook.md, \"The store does not answer\"",
            ));
            vec![Told::skip("the store could not be read")]
        }
    };
    if took > SLOW {
        let says = format!("it took {} ms to answer", took.as_millis());
        found.push(Told::warn(says, "check what else uses that machine, its disk and the network to it"));
    }
    found.extend(backlog(opened).await);
    if let Url::Sqlite(path) = url {
        found.extend(file(path));
        progress.tell("reading all of the store's file");
        found.extend(damage(path).await);
    }
    let durability = match opened.examine().await {
        Ok(findings) => or_well(
            findings.iter().filter(|finding| finding.code != CLOCK).filter_map(told).collect(),
            "acknowledged answers survive a crash",
        ),
        Err(error) => {
            vec![Told::fail(format!("its settings cannot be read: {error}"), "allow this role to read them")]
        }
    };
    progress.tell("finding out which encryption keys the store needs");
    let keys = opened.keys_in_use().await.ok();
    let found = or_well(found, format!("{url} answers, and its schema is up to date"));
    Looked { found, durability, clock, keys, holder: None }
}

/// What a gateway that runs says of its store.
fn slow(asked: &Asked) -> Option<Told> {
    let store = asked.store()?;
    match store["state"].as_str()? {
        "slow" => Some(Told::warn(
            format!("the gateway waits {} ms for it", store["millis"]),
            "check what else uses that machine, its disk and the network to it",
        )),
        _ => None,
    }
}

/// A finding about the machine's clock, which has a check of its own.
const CLOCK: &str = "clock.departed";

/// A finding of the store, as this command judges it. That the sessions of applications do not wait for the disk breaks no promise of
/// the gateway, and a page that may be torn breaks the whole database.
fn told(finding: &Finding) -> Option<Told> {
    let told = match (finding.level, finding.code) {
        (Level::Error, _) | (_, "postgres.full_page_writes") => Told::fail,
        (Level::Warning, _) | (_, "postgres.role_synchronous_commit") => Told::warn,
        (Level::Note, _) => return None,
    };
    Some(told(finding.says.clone(), finding.remedy.clone()))
}

fn clock(url: &Url, store: i64, took: Duration) -> Vec<Told> {
    let here = jiff::Timestamp::now().as_microsecond();
    // The store read its clock at some moment while it was asked.
    let apart = Duration::from_micros((here - store).unsigned_abs()).saturating_sub(took);
    let direction = if store > here { "ahead of" } else { "behind" };
    let says = match url {
        Url::Sqlite(_) => {
            format!("the last time stamp in the file is {} ahead of this machine's clock", span(apart))
        }
        Url::Server(..) | Url::Memory => {
            format!("the store's clock is {} {direction} this machine's", span(apart))
        }
    };
    let remedy = "synchronise both clocks with NTP";
    if apart > APART_FAIL {
        vec![Told::fail(says, remedy)]
    } else if apart > APART_WARN {
        vec![Told::warn(says, remedy)]
    } else {
        vec![Told::ok("this machine and the store agree")]
    }
}

/// How long the reaper is behind.
async fn backlog(opened: &Arc<dyn Store>) -> Option<Told> {
    let page = opened.scan(Query::due(machine::EXPIRING, 1)).await.ok()?;
    let (_, seen) = page.records.into_iter().next()?;
    let late = seen.now.since(machine::facts(&seen.record).expires_at?);
    (late > BACKLOG_MAX).then(|| {
        Told::warn(
            format!("a record that expired {} ago is still there: the reaper is behind", span(late)),
            "run a gateway, or onlyonce reap --once; a larger background.reap_batch deletes faster",
        )
    })
}

/// Who may read the file, and how full its disk is.
fn file(path: &Path) -> Vec<Told> {
    use std::os::unix::fs::PermissionsExt;
    let mut told = Vec::new();
    let mode = path.metadata().map(|metadata| metadata.permissions().mode() & 0o777).unwrap_or(0o600);
    if mode & 0o077 != 0 {
        told.push(Told::warn(
            format!("other users of this machine may read the file (mode {mode:o}), which holds answers"),
            format!("chmod 600 \"{}\"", path.display()),
        ));
    }
    if let Ok(disk) = rustix::fs::statvfs(path)
        && disk.f_bavail.saturating_mul(100) < disk.f_blocks.saturating_mul(FREE_PERCENT_MIN)
    {
        let percent = disk.f_bavail.saturating_mul(100) / disk.f_blocks.max(1);
        told.push(Told::warn(
            format!("{percent} % of its disk is free"),
            "free some space: on a full disk nothing is reserved and every keyed request gets 503",
        ));
    }
    told
}

async fn damage(path: &Path) -> Vec<Told> {
    let checked = match Guest::open(path) {
        Ok(guest) => guest.check().await,
        Err(error) => Err(error),
    };
    let remedy = "restore the file from a backup";
    match checked {
        Ok(health) => {
            health.faults.iter().map(|fault| Told::fail(format!("damaged: {fault}"), remedy)).collect()
        }
        Err(error) => vec![Told::fail(format!("it cannot be checked: {error}"), remedy)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level as Shown;
    use super::*;

    #[test]
    fn clocks_that_are_apart_are_told_by_how_far() {
        let now = jiff::Timestamp::now().as_microsecond();
        let url: Url = "postgres://db/pay".parse().unwrap();
        for (seconds, level) in
            [(0, Shown::Ok), (-4, Shown::Warn), (4, Shown::Warn), (-60, Shown::Fail), (60, Shown::Fail)]
        {
            let told = clock(&url, now + seconds * 1_000_000, Duration::ZERO);
            assert_eq!(told[0].level, level, "{seconds}: {told:?}");
        }
        assert!(clock(&url, now + 60_000_000, Duration::ZERO)[0].says.contains("ahead of"));
    }

    /// E07: what an engine cannot promise as it is set up is told.
    #[test]
    fn a_finding_of_the_store_is_judged_as_the_contract_has_it() {
        let finding = |level, code| Finding { level, code, says: "s".to_owned(), remedy: "r".to_owned() };
        for (level, code, expected) in [
            (Level::Error, "postgres.fsync", Some(Shown::Fail)),
            (Level::Warning, "postgres.full_page_writes", Some(Shown::Fail)),
            (Level::Note, "postgres.role_synchronous_commit", Some(Shown::Warn)),
            (Level::Warning, "other", Some(Shown::Warn)),
            (Level::Note, "postgres.functions", None),
        ] {
            assert_eq!(told(&finding(level, code)).map(|told| told.level), expected, "{code}");
        }
    }
}
