//! The settings of the gateways under test, and the spans that everybody else counts with.
//!
//! Everything is short, so that in two minutes leases lapse, deadlines pass and a wait ends in every way it can.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::kind::Kind;
use crate::store::Store;

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
/// The destination of messages.
pub(crate) const DESTINATION: &str = "receipts";
/// Of a whole delivery; a claim lasts for 5 s then.
pub(crate) const DELIVERY_TIMEOUT: Duration = Duration::from_secs(2);
/// What the destination asks for when it asks to wait.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Where the service is asked whether work happened.
pub(crate) const PROBE: &str = "/probe";

/// Where the parts listen that the gateways call, and the file with the secret that deliveries are signed with.
pub(crate) struct Places<'a> {
    pub(crate) service: u16,
    pub(crate) destination: SocketAddr,
    pub(crate) secret: &'a Path,
}

/// The file that every node reads.
pub(crate) fn file(store: Store, places: &Places<'_>) -> String {
    let Places { service, destination, secret } = places;
    let (lease, deadline) = (LEASE.as_secs(), DEADLINE.as_secs());
    let routes: String = Kind::on(store).iter().map(|kind| kind.route(*service)).collect();
    let timeout = DELIVERY_TIMEOUT.as_secs();
    let destinations = format!(
        "[destinations.{DESTINATION}]\nurl = \"http://{destination}/{DESTINATION}\"\nsecrets = [\"file:{}\"]\n\
         timeout = \"{timeout}s\"\nattempts_max = 10000\nretry_first = \"200ms\"\nretry_max = \"2s\"\n",
        secret.display()
    );
    let destinations = if store.has_local_work() { destinations } else { String::new() };
    format!(
        "stop_after = \"3s\"\n\
         [policy]\nrequired = true\nlease = \"{lease}s\"\ndeadline = \"{deadline}s\"\nhorizon = \"1s\"\n\
         store_timeout = \"1s\"\nwait_max = \"4s\"\nretention = \"24h\"\ndownstream_retention = \"23h\"\n\
         response_bytes_max = \"{}KiB\"\n\
         [background]\nsweep_every = \"1s\"\nreap_every = \"2s\"\nreconcile_first = \"500ms\"\n\
         reconcile_max = \"4s\"\nreconcile_tries_max = 1000\nrelay_every = \"200ms\"\n\
         {destinations}{routes}",
        RESPONSE_BYTES_MAX >> 10
    )
}
