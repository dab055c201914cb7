//! Descriptors: how many the process may have, and who may use how many of them.
//!
//! A client may need three: its own connection, the one to its service, and one more of a service that is kept for the next request.
//! Some are left for the store, the admin port and logs, whatever clients do.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Listener;

/// For the store, the admin port, probes, relays and files that are opened while the gateway runs.
const RESERVED: u64 = 192;
/// Of few descriptors, at least this share is left.
const SHARE_RESERVED: u64 = 4;
const OF_A_CLIENT: u64 = 3;
const FEWER: &str = "fewer connections than listener.connections_max are served; raise the limit of file descriptors (LimitNOFILE, ulimit -n)";

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) clients: usize,
    pub(crate) services: usize,
}

/// Raises what the process may have up to what so many clients need, as far as it may, and divides it.
pub(crate) fn shared(connections_max: usize) -> Shares {
    let wanted = wanted(connections_max);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if current.is_some_and(|current| current < raised) {
        let limit = Rlimit { current: Some(raised), maximum };
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, wanted = raised, "the limit of file descriptors cannot be raised");
        }
    }
    // Without a limit, as many as are wanted.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let shares = divided(limit, open(), connections_max);
    let Shares { clients, .. } = shares;
    if clients < connections_max {
        let is_asked_for = connections_max != Listener::default().connections_max;
        // A default does not warn.
        if is_asked_for {
            tracing::warn!(descriptors = limit, connections = clients, "{FEWER}");
        } else {
            tracing::info!(descriptors = limit, connections = clients, "{FEWER}");
        }
    }
    shares
}

fn wanted(connections_max: usize) -> u64 {
    (connections_max as u64).saturating_add(RESERVED).saturating_mul(OF_A_CLIENT + 1)
}

fn divided(limit: u64, open: u64, connections_max: usize) -> Shares {
    let left = limit.saturating_sub(open);
    let reserved = RESERVED.min((left / SHARE_RESERVED).max(1));
    let free = left.saturating_sub(reserved);
    let clients = (free / OF_A_CLIENT).max(1).min(connections_max as u64);
    let services = free.saturating_sub(clients).max(1);
    let count = |places| usize::try_from(places).unwrap_or(usize::MAX);
    Shares { clients: count(clients), services: count(services) }
}

/// How many are open; where the system does not say, few.
fn open() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(RESERVED / 2, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L06
    #[test]
    fn some_descriptors_are_left_whatever_clients_do() {
        let shares = divided(wanted(10_000), 50, 10_000);
        assert_eq!(shares.clients, 10_000);
        assert!(shares.services >= 20_000);
        for limit in [64, 150, 256, 1024, 65_536] {
            let Shares { clients, services } = divided(limit, 40, 1_000_000);
            let used = (clients + services + 40) as u64;
            assert!(clients >= 1 && services >= 2 * clients, "{limit}: {clients}, {services}");
            assert!(
                used + (limit - 40) / SHARE_RESERVED <= limit || used + RESERVED <= limit,
                "{limit}: {used}"
            );
        }
        // A process that has none left serves somebody all the same.
        assert_eq!(divided(10, 40, 5), Shares { clients: 1, services: 1 });
    }
}
