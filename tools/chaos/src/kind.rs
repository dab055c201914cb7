//! The kinds of work, each with a route of its own.

use onlyonce_testkit::history::Effects;
use onlyonce_testkit::random::Random;

use crate::settings::{PROBE, QUERYABLE_HORIZON};
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Opaque,
    Keyed,
    /// Its service can be asked, so none of it stays unknown.
    Queryable,
    /// A transaction of the service's own in the store's database, which completes the key by SQL.
    Local,
    /// Opaque work that is kept for some seconds only: its keys are used anew, while they are reaped.
    Brief,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Opaque, Self::Keyed, Self::Queryable, Self::Brief, Self::Local];

    /// Those there are on this store.
    pub(crate) fn on(store: Store) -> &'static [Self] {
        if store.has_local_work() { &Self::ALL } else { &Self::ALL[..4] }
    }

    pub(crate) fn of(store: Store, random: &Random) -> Self {
        let weighed: Vec<_> = Self::on(store).iter().map(|kind| (kind.weight(), *kind)).collect();
        random.weighed(&weighed)
    }

    /// There are few brief keys, since each is used again and again.
    const fn weight(self) -> u64 {
        match self {
            Self::Opaque | Self::Keyed | Self::Queryable | Self::Local => 30,
            Self::Brief => 7,
        }
    }

    pub(crate) const fn effects(self) -> Effects {
        match self {
            Self::Opaque | Self::Brief => Effects::Opaque,
            Self::Keyed => Effects::Keyed,
            Self::Queryable => Effects::Queryable,
            Self::Local => Effects::Local,
        }
    }

    /// As in its path.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Opaque => "opaque",
            Self::Keyed => "keyed",
            Self::Queryable => "queryable",
            Self::Local => "local",
            Self::Brief => "brief",
        }
    }

    /// Its route in the settings; the service, which can be asked, listens on this port.
    pub(crate) fn route(self, service: u16) -> String {
        let (effects, more) = match self {
            Self::Opaque => ("opaque", String::new()),
            Self::Keyed => ("keyed", String::new()),
            Self::Local => ("local", String::new()),
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
