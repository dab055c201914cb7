//! Where engines differ, as data: the suite, the operators' tools and the docs read it and cannot disagree.

use std::time::Duration;

/// What an engine promises where engines differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// Whose clock judges leases and expiry.
    pub clock: Clock,
    /// What an acknowledged write survives.
    pub survives: Survives,
    /// When a write shows in listings.
    pub listing: Listing,
    /// Who deletes what has expired.
    pub expiry: Expiry,
    /// A record can be completed inside a transaction of the user's own.
    pub transactions: bool,
    /// Several processes may reserve keys in it at once.
    pub shared: bool,
    /// Answers, requests, results and payloads are encrypted before they leave the process, or never leave it. Nothing is
    /// accepted for later otherwise: a request has credentials.
    pub encrypts: bool,
}

/// Whose clock judges leases and expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// One clock for all nodes: the server's, or that of the one process that has the store.
    One,
    /// The nodes are told the server's time, and differ by at most so much.
    Told {
        /// How far two nodes may differ.
        within: Duration,
    },
}

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// A crash of the store, and the loss of one machine where the store has a replica that confirms writes.
    Failover,
    /// A crash of the process and of the machine; not the loss of the disk.
    Crash,
    /// Nothing: it lives as long as the process.
    Nothing,
}

/// When a write shows in listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// At once.
    Immediate,
    /// Later.
    Late {
        /// How much later, usually.
        usually: Duration,
    },
}

/// Who deletes what has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// [`crate::Store::reap`] deletes, and counts what it deleted.
    Ours,
    /// The server deletes by itself; `reap` may answer 0.
    Theirs,
}

/// What is wrong, risky or worth knowing about a store as it is set up now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// A stable name, such as `sqlite.sync_failed`.
    pub code: &'static str,
    /// What was found.
    pub says: String,
    /// What to do about it.
    pub remedy: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth knowing.
    Note,
    /// Risky.
    Warning,
    /// A promise does not hold: a node refuses to start, and one that runs is not ready.
    Error,
}

impl Level {
    /// Its name in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}
