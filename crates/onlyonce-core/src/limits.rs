//! How much callers may ask for: by scope, and in all.
//!
//! ```
//! use onlyonce_core::limits::Limits;
//!
//! let limits = Limits { keys_per_second: Some(50), in_flight_total: Some(0), ..Limits::default() };
//! assert_eq!(
//!     limits.check().unwrap_err().to_string(),
//!     r#"limits.in_flight_total: "0" lets nothing run; raise it, or remove it for no limit"#
//! );
//! ```

use std::fmt;

use crate::policy::{Fault, Faults};

/// How much callers may ask for. What is not set has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// New keys a second, of one scope.
    pub keys_per_second: Option<u64>,
    /// New keys a second, of all scopes.
    pub keys_per_second_total: Option<u64>,
    /// Questions about a key and requests whose key exists, a second, of one scope.
    pub lookups_per_second: Option<u64>,
    /// The same of all scopes.
    pub lookups_per_second_total: Option<u64>,
    /// Records that are kept and have not expired, of one scope.
    pub keys_alive: Option<u64>,
    /// The same of all scopes.
    pub keys_alive_total: Option<u64>,
    /// Attempts under way, of one scope.
    pub in_flight: Option<u64>,
    /// Attempts under way, of all scopes.
    pub in_flight_total: Option<u64>,
    /// How many nodes share the rates and what is in flight: each allows its part.
    pub nodes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys_per_second: None,
            keys_per_second_total: None,
            lookups_per_second: None,
            lookups_per_second_total: None,
            keys_alive: None,
            keys_alive_total: None,
            in_flight: None,
            in_flight_total: None,
            nodes: 1,
        }
    }
}

/// One of the [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    /// `keys_per_second`
    KeysPerSecond,
    /// `keys_per_second_total`
    KeysPerSecondTotal,
    /// `lookups_per_second`
    LookupsPerSecond,
    /// `lookups_per_second_total`
    LookupsPerSecondTotal,
    /// `keys_alive`
    KeysAlive,
    /// `keys_alive_total`
    KeysAliveTotal,
    /// `in_flight`
    InFlight,
    /// `in_flight_total`
    InFlightTotal,
    /// `listener.buffered_bytes_max`: what is held of all bodies together.
    BufferedBytesMax,
    /// Keyed requests that run for one HTTP/2 connection, those included whose stream was reset. It cannot be set.
    Streams,
    /// `pending_max`, which is a setting outside `[limits]`
    PendingMax,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::KeysPerSecond,
        Self::KeysPerSecondTotal,
        Self::LookupsPerSecond,
        Self::LookupsPerSecondTotal,
        Self::KeysAlive,
        Self::KeysAliveTotal,
        Self::InFlight,
        Self::InFlightTotal,
        Self::BufferedBytesMax,
        Self::Streams,
        Self::PendingMax,
    ];

    /// Its name: in settings, in problem documents and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeysPerSecond => "keys_per_second",
            Self::KeysPerSecondTotal => "keys_per_second_total",
            Self::LookupsPerSecond => "lookups_per_second",
            Self::LookupsPerSecondTotal => "lookups_per_second_total",
            Self::KeysAlive => "keys_alive",
            Self::KeysAliveTotal => "keys_alive_total",
            Self::InFlight => "in_flight",
            Self::InFlightTotal => "in_flight_total",
            Self::BufferedBytesMax => "buffered_bytes_max",
            Self::Streams => "streams",
            Self::PendingMax => "pending_max",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::KeysPerSecond => "limits.keys_per_second",
            Self::KeysPerSecondTotal => "limits.keys_per_second_total",
            Self::LookupsPerSecond => "limits.lookups_per_second",
            Self::LookupsPerSecondTotal => "limits.lookups_per_second_total",
            Self::KeysAlive => "limits.keys_alive",
            Self::KeysAliveTotal => "limits.keys_alive_total",
            Self::InFlight => "limits.in_flight",
            Self::InFlightTotal => "limits.in_flight_total",
            Self::BufferedBytesMax => "listener.buffered_bytes_max",
            Self::Streams => "streams",
            Self::PendingMax => "pending_max",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Limits {
    /// What `limit` is set to; none for those of the listener.
    pub const fn of(&self, limit: Limit) -> Option<u64> {
        match limit {
            Limit::KeysPerSecond => self.keys_per_second,
            Limit::KeysPerSecondTotal => self.keys_per_second_total,
            Limit::LookupsPerSecond => self.lookups_per_second,
            Limit::LookupsPerSecondTotal => self.lookups_per_second_total,
            Limit::KeysAlive => self.keys_alive,
            Limit::KeysAliveTotal => self.keys_alive_total,
            Limit::InFlight => self.in_flight,
            Limit::InFlightTotal => self.in_flight_total,
            // Not of `[limits]`: whoever judges it knows it.
            Limit::BufferedBytesMax | Limit::Streams | Limit::PendingMax => None,
        }
    }

    /// Whether any of them is set.
    pub fn is_any_set(&self) -> bool {
        Limit::ALL.into_iter().any(|limit| self.of(limit).is_some())
    }

    /// Whether the store is asked how many records there are.
    pub const fn counts_records(&self) -> bool {
        self.keys_alive.is_some() || self.keys_alive_total.is_some()
    }

    /// Every fault at once.
    pub fn check(&self) -> Result<(), Faults> {
        let zero = Limit::ALL.into_iter().filter(|limit| self.of(*limit) == Some(0));
        let mut faults: Vec<_> = zero
            .map(|limit| Fault {
                path: limit.path(),
                value: "0".into(),
                remedy: "lets nothing run; raise it, or remove it for no limit".into(),
            })
            .collect();
        if self.nodes == 0 {
            let remedy = "is not a number of gateways; set at least 1";
            faults.push(Fault { path: "limits.nodes", value: "0".into(), remedy: remedy.into() });
        }
        if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L02: a limit of nought is a fault, each names its setting, and all are told at once.
    #[test]
    fn a_limit_of_nought_is_a_fault() {
        let limits = Limits {
            keys_per_second: Some(0),
            keys_per_second_total: Some(0),
            lookups_per_second: Some(0),
            lookups_per_second_total: Some(0),
            keys_alive: Some(0),
            keys_alive_total: Some(0),
            in_flight: Some(0),
            in_flight_total: Some(0),
            nodes: 0,
        };
        let paths: Vec<_> = limits.check().unwrap_err().0.iter().map(|fault| fault.path).collect();
        let set = Limit::ALL.into_iter().filter(|limit| limits.of(*limit).is_some());
        let mut expected: Vec<_> = set.map(|limit| format!("limits.{limit}")).collect();
        expected.push("limits.nodes".to_owned());
        assert_eq!(paths, expected);
    }

    #[test]
    fn no_limits_are_no_fault_and_none_is_set() {
        let limits = Limits::default();
        assert!(limits.check().is_ok());
        assert!(!limits.is_any_set() && !limits.counts_records());
    }
}
