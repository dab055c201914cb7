//! How the store is doing, for whoever must decide whether to send requests here, and what is in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, StateName};
use onlyonce_core::time::Timestamp;
use onlyonce_store::{Count, Error, Level, Page, Query};
use tokio::time::{Instant, timeout};

use crate::engine::{Engine, chain};

/// How the store is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Well {
        /// How long it took.
        took: Duration,
    },
    /// It answers, late.
    Slow {
        /// How long it took.
        took: Duration,
    },
    /// It does not answer in time: stalled, cut off, or hopelessly behind.
    Stalled {
        /// How long was waited.
        waited: Duration,
    },
    /// It answers, but one of its promises does not hold: see [`onlyonce_store::Finding`].
    Unfit {
        /// The name of what is wrong.
        code: &'static str,
        /// What is wrong, for operators: it may name hosts and files.
        says: String,
        /// What to do about it.
        remedy: String,
    },
    /// It answers that it cannot.
    Failed {
        /// What it said, for operators: it may name hosts and files.
        error: String,
    },
}

impl Health {
    /// Whether keyed requests can be served.
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Well { .. } | Self::Slow { .. } => true,
            Self::Stalled { .. } | Self::Unfit { .. } | Self::Failed { .. } => false,
        }
    }
}

/// A look takes well under a millisecond on this machine, and a few across a network.
const SLOW: Duration = Duration::from_millis(250);
/// A write that failed counts so long, unless one has succeeded since. Past that, only the next request can tell.
const TROUBLE_LASTS: Duration = Duration::from_secs(5);

/// The last write that failed, while none has succeeded since. A store that can be read may still take no writes.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    is_open: AtomicBool,
    last: Mutex<Option<(Instant, String)>>,
}

impl Trouble {
    /// A write was answered. While all is well that costs one look at a flag.
    pub(crate) fn heard(&self, error: Option<&Error>) {
        match error {
            None if !self.is_open.load(Ordering::Relaxed) => {}
            None => {
                self.is_open.store(false, Ordering::Relaxed);
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            Some(error) => {
                let told = Some((Instant::now(), chain(error)));
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = told;
                self.is_open.store(true, Ordering::Relaxed);
            }
        }
    }

    fn recent(&self) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < TROUBLE_LASTS).map(|(_, error)| error.clone())
    }
}

/// What is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// How many records there are in each state.
    pub records: Vec<(StateName, Count)>,
    /// The age of the oldest unknown record, if there is one.
    pub oldest_unknown: Option<Duration>,
    /// How long the oldest accepted work has waited, if any waits.
    pub oldest_pending: Option<Duration>,
}

impl Engine {
    /// Asks the store, past the breaker, and waits at most `patience`.
    pub async fn health(&self, patience: Duration) -> Health {
        let asked_at = Instant::now();
        // An id that no scope and key have: the look itself is what counts.
        match timeout(patience, self.store().load(Id([0; 32]))).await {
            Err(_) => return Health::Stalled { waited: patience },
            Ok(Err(error)) => return Health::Failed { error: chain(&error) },
            Ok(Ok(_)) => {}
        }
        let took = asked_at.elapsed();
        let findings = match timeout(patience, self.store().examine()).await {
            Err(_) => return Health::Stalled { waited: patience },
            Ok(Err(error)) => return Health::Failed { error: chain(&error) },
            Ok(Ok(findings)) => findings,
        };
        if let Some(wrong) = findings.into_iter().find(|finding| finding.level == Level::Error) {
            return Health::Unfit { code: wrong.code, says: wrong.says, remedy: wrong.remedy };
        }
        if let Some(error) = self.trouble.recent() {
            return Health::Failed { error };
        }
        if took < SLOW { Health::Well { took } } else { Health::Slow { took } }
    }

    /// Counts what is in the store.
    pub async fn census(&self) -> Result<Census, Error> {
        let records = self.store().count().await?;
        // Half-done work is listed beside what is unknown.
        let unknown = Query { states: machine::ASKED, ..Query::unknown_since(1) };
        let oldest = self.store().scan(unknown).await?;
        let oldest_unknown = oldest_of(&oldest, machine::unknown_since);
        let oldest = self.store().scan(Query::pending_since(1)).await?;
        let oldest_pending = oldest_of(&oldest, machine::pending_since);
        Ok(Census { records, oldest_unknown, oldest_pending })
    }
}

/// How long ago the first record of a page began to be what it is listed for; also one whose encryption key is missing.
fn oldest_of(page: &Page, since: impl Fn(&Record) -> Option<Timestamp>) -> Option<Duration> {
    let readable = page.records.iter().map(|(_, seen)| (&seen.record, seen.now));
    let unreadable = page.unreadable.iter().map(|unreadable| (&unreadable.record, unreadable.now));
    let (record, now) = readable.chain(unreadable).next()?;
    since(record).map(|since| now.since(since))
}
