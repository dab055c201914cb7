//! A master, as the trips of one purpose reach it: how they end, and what they wait for.
//!
//! Without `replicas=N`, trips share one connection. With it, a trip of a request ends when N replicas have all that it wrote and
//! all that it has shown: what was told is then not lost with the master.
//!
//! 1. `WAIT` holds up the connection that it is sent on. So trips that arrive meanwhile are sent together, with one `WAIT`
//!    (`batch.rs`), on two connections in turn.
//! 2. `WAIT` is about what its own connection wrote, and a look may show what another node wrote that no replica has yet. So a
//!    small write of our own comes before it ([`script::MARK`](super::script::MARK)): replicas receive writes in order.
//! 3. Fewer than N is `Unavailable`: what was written may stay, or be lost with the master.

use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;

use super::clock::Clock;
use super::cluster::key_of;
use super::failure::Failure;
use super::layout;
use super::server::{Reply, Server, Trip};
use super::url::{Database, Host};
use crate::batch::{Batcher, Limits};

/// How a trip ends, besides `TIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With nothing: a server that has become a replica refuses writes by itself.
    Time,
    /// With `ROLE`: what a server shows that has become a replica may be old.
    Role,
    /// With the confirmation of replicas.
    Wait,
}

const BATCHES: Limits = Limits { rows_max: 256, bytes_max: 4 << 20, in_flight_max: 2 };

/// A master; see the module's documentation.
pub(super) struct Master {
    pub(super) clock: Arc<Clock>,
    way: Way,
}

enum Way {
    Shared(Arc<Server>, Ending),
    Batches(Batcher<Trip, Result<Reply, Failure>>),
}

impl Master {
    /// The master at `host`, or the one among the hosts of the URL.
    pub(super) fn new(
        database: &Arc<Database>,
        clock: &Arc<Clock>,
        within: Duration,
        ending: Ending,
        host: Option<&Host>,
    ) -> Self {
        let server = || Server::new(database, clock, within, host.cloned());
        let way = match ending {
            Ending::Time | Ending::Role => Way::Shared(server(), ending),
            Ending::Wait => Way::Batches(batches([server(), server()])),
        };
        Self { clock: clock.clone(), way }
    }

    /// Sends a trip. Where it has to be confirmed, that is by this key, else by one beside its first. `is_asking` is as in
    /// [`Trip`].
    pub(super) async fn ask(
        &self,
        database: &Database,
        commands: Pipeline,
        marker: Option<Vec<u8>>,
        is_asking: bool,
    ) -> Result<Reply, Failure> {
        let reply = match &self.way {
            Way::Shared(server, ending) => {
                let commands = if is_asking { asking(&commands) } else { commands };
                server.ask(commands, *ending == Ending::Role).await
            }
            Way::Batches(batches) => {
                let beside = || layout::marker(commands.cmd_iter().find_map(key_of), &database.prefix);
                let marker = marker.unwrap_or_else(beside);
                let bytes = commands.get_packed_pipeline().len();
                let trip = Trip { commands, marker, is_asking };
                let dropped = |error: crate::Error| Err(Failure::doubt(database, &error.to_string()));
                batches.ask(bytes, trip).await.unwrap_or_else(dropped)
            }
        };
        let mut reply = reply?;
        if is_asking {
            let mut place = 0;
            reply.values.retain(|_| {
                place += 1;
                place % 2 == 0
            });
        }
        Ok(reply)
    }
}

/// Each of these commands after `ASKING`.
fn asking(commands: &Pipeline) -> Pipeline {
    let mut asking = Pipeline::new();
    for command in commands.cmd_iter() {
        asking.cmd("ASKING").add_command(command.clone());
    }
    asking
}

fn batches(lanes: [Arc<Server>; 2]) -> Batcher<Trip, Result<Reply, Failure>> {
    let lanes = Arc::new(lanes.map(tokio::sync::Mutex::new));
    Batcher::new(BATCHES, move |trips: Vec<Trip>| {
        let lanes = lanes.clone();
        async move {
            // No more batches are in flight than there are lanes.
            let lane = match lanes[0].try_lock() {
                Ok(lane) => lane,
                Err(_) => lanes[1].lock().await,
            };
            match lane.ask_and_wait(&trips).await {
                Ok(replies) => replies.into_iter().map(|reply| Ok(Ok(reply))).collect(),
                Err(failure) => trips.iter().map(|_| Ok(Err(failure.clone()))).collect(),
            }
        }
    })
}
