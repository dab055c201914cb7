//! Which masters this node has met, to tell a failover from a restart.
//!
//! A history of writes has an id (`master_replid`). A replica that is promoted begins a new one, and names the one that it
//! continues (`master_replid2`).

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The histories of the masters that this node was connected to.
#[derive(Debug, Default)]
pub(super) struct Lineages(Mutex<HashSet<String>>);

impl Lineages {
    /// A connection to a master was made, which tells this by `INFO replication`. Whether it was a replica of one that this
    /// node has met; true once for each.
    pub(super) fn connected(&self, info: &str) -> bool {
        let field =
            |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
        let Some(id) = field("master_replid") else { return false };
        let mut met = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        met.insert(id.to_owned()) && field("master_replid2").is_some_and(|before| met.contains(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X01
    #[test]
    fn a_replica_that_took_over_is_told_from_a_server_that_was_restarted() {
        let met = Lineages::default();
        let info = |id: &str, before: &str| {
            format!(
                "role:master\r\nmaster_replid:{id}\r\nmaster_replid2:{before}\r\nmaster_repl_offset:1\r\n"
            )
        };
        assert!(!met.connected(&info("a", "0000")), "the first one");
        assert!(!met.connected(&info("a", "0000")), "another connection");
        assert!(!met.connected(&info("b", "0000")), "restarted");
        assert!(met.connected(&info("c", "b")), "a replica of it was promoted");
        assert!(!met.connected(&info("c", "b")), "told once");
    }
}
