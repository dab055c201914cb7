//! The settings of the gateways under test, and the spans that everybody else counts with.
//!
//! Everything is short, so that in two minutes leases lapse, deadlines pass and a wait ends in every way it can.

use std::time::Duration;

use crate::kind::Kind;

/// How many gateways share the database.
pub(crate) const NODES: usize = 3;
pub(crate) const LEASE: Duration = Duration::from_secs(2);
pub(crate) const DEADLINE: Duration = Duration::from_secs(6);
/// What the service's memory is worth to the gateway, and what it is in truth: longer than any run.
pub(crate) const DOWNSTREAM_REMEMBERS: Duration = Duration::from_secs(24 * 3600);
/// Some rounds of the sweeper, one of which may have to wait for a call that stalled before the faults stopped.
pub(crate) const SWEPT_WITHIN: Duration = Duration::from_secs(10);
/// An answer above this is not kept.
pub(crate) const RESPONSE_BYTES_MAX: usize = 4 << 10;
/// A stop may take `stop_after`, and the store has to be closed.
pub(crate) const STOPPED_WITHIN: Duration = Duration::from_secs(20);
/// A client that has waited this long has lost its answer: a deadline, `wait_max`, and some patience.
pub(crate) const PATIENCE: Duration = Duration::from_secs(14);

/// How long after its deadline an attempt of queryable work may still take effect: a request may be held on its way to the
/// service, which may then take longer than the deadline.
pub(crate) const QUERYABLE_HORIZON: Duration = Duration::from_secs(12);
/// Where the service is asked whether work happened.
pub(crate) const PROBE: &str = "/probe";

/// The file that every node reads; the service listens on this port.
pub(crate) fn file(service: u16) -> String {
    let (lease, deadline) = (LEASE.as_secs(), DEADLINE.as_secs());
    let routes = Kind::ALL.map(|kind| kind.route(service));
    format!(
        "stop_after = \"3s\"\n\
         [policy]\nrequired = true\nlease = \"{lease}s\"\ndeadline = \"{deadline}s\"\nhorizon = \"1s\"\n\
         store_timeout = \"1s\"\nwait_max = \"4s\"\nretention = \"24h\"\ndownstream_retention = \"23h\"\n\
         response_bytes_max = \"{}KiB\"\n\
         [background]\nsweep_every = \"1s\"\nreap_every = \"2s\"\nreconcile_first = \"500ms\"\n\
         reconcile_max = \"4s\"\nreconcile_tries_max = 1000\n{}",
        RESPONSE_BYTES_MAX >> 10,
        routes.concat()
    )
}
