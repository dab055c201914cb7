//! The kinds of work, each with a route of its own.
//!
//! Not here: `local` effects, which behind the gateway need the completion in the application's own transaction, and
//! there is no function for that yet.

use onlyonce_testkit::history::Effects;
use onlyonce_testkit::random::Random;

use crate::settings::{PROBE, QUERYABLE_HORIZON};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Opaque,
    Keyed,
    /// Its service can be asked, so none of it stays unknown.
    Queryable,
    /// Opaque work that is kept for some seconds only: its keys are used anew, while they are reaped.
    Brief,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Opaque, Self::Keyed, Self::Queryable, Self::Brief];

    /// There are few brief keys, since each is used again and again.
    pub(crate) fn of(random: &Random) -> Self {
        random.weighed(&[(30, Self::Opaque), (30, Self::Keyed), (30, Self::Queryable), (5, Self::Brief)])
    }

    pub(crate) const fn effects(self) -> Effects {
        match self {
            Self::Opaque | Self::Brief => Effects::Opaque,
            Self::Keyed => Effects::Keyed,
            Self::Queryable => Effects::Queryable,
        }
    }

    /// As in its path.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Opaque => "opaque",
            Self::Keyed => "keyed",
            Self::Queryable => "queryable",
            Self::Brief => "brief",
        }
    }

    /// Its route in the settings; the service, which can be asked, listens on this port.
    pub(crate) fn route(self, service: u16) -> String {
        let (effects, more) = match self {
            Self::Opaque => ("opaque", String::new()),
            Self::Keyed => ("keyed", String::new()),
            Self::Queryable => {
                let horizon = QUERYABLE_HORIZON.as_secs();
                let probe = format!("http://127.0.0.1:{service}{PROBE}");
                ("queryable", format!("probe = \"{probe}\"\nhorizon = \"{horizon}s\"\n"))
            }
            Self::Brief => ("opaque", "retention = \"3s\"\n".to_owned()),
        };
        format!("[[route]]\nmatch = \"POST /{}\"\neffects = \"{effects}\"\n{more}", self.name())
    }
}
