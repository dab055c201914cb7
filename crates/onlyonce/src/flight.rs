//! The table of what runs here.
//!
//! The first request with a key takes off and talks to the store; duplicates that arrive while it is in the air find it
//! here. So a storm on one key costs one store write, and duplicates that wait are woken when it lands, not polling.
//!
//! The table is never the truth either: it only spares the store questions whose answer this node knows already, and
//! what it does not know for sure, the store is asked.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onlyonce_core::record::{Id, Seen};
use onlyonce_core::refusal::Refusal;
use onlyonce_store::hash::ById;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Enough shards that two cores seldom meet at one.
const SHARDS: usize = 64;

/// Those in the air whose ids begin alike. Each shard is counted on its own: on one count for all of them, every request of
/// every core would wait.
type Shard = Arc<Mutex<HashMap<Id, Arc<Flight>, ById>>>;

#[derive(Debug)]
pub(crate) struct Flights {
    shards: Box<[Shard]>,
}

/// One request under way on this node.
#[derive(Debug)]
pub(crate) struct Flight {
    leg: Mutex<Leg>,
    changed: Notify,
}

/// How far a flight has come.
#[derive(Clone, Debug)]
pub(crate) enum Leg {
    /// The store has not answered yet.
    Asking,
    /// It runs; what the store last showed, and when that was by this node's clock.
    Running(Seen, Instant),
    /// The store could not be asked.
    Failed(Refusal),
    /// It has landed: look again.
    Landed,
}

/// What boarding came to.
pub(crate) enum Boarding {
    /// The first: it asks the store.
    Pilot(Pilot),
    /// Another request is in the air with this key.
    Passenger(Arc<Flight>),
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    pub(crate) fn board(&self, id: &Id) -> Boarding {
        let shard = self.shard(id);
        match lock(shard).entry(*id) {
            Entry::Occupied(entry) => Boarding::Passenger(entry.get().clone()),
            Entry::Vacant(entry) => {
                let flight = Arc::new(Flight { leg: Mutex::new(Leg::Asking), changed: Notify::new() });
                entry.insert(flight.clone());
                Boarding::Pilot(Pilot { shard: shard.clone(), id: *id, flight })
            }
        }
    }

    pub(crate) fn find(&self, id: &Id) -> Option<Arc<Flight>> {
        lock(self.shard(id)).get(id).cloned()
    }

    /// Whether anybody but its pilot and this table looks at what is in the air.
    pub(crate) fn has_passengers(&self, id: &Id) -> bool {
        lock(self.shard(id)).get(id).is_some_and(has_passengers)
    }

    fn shard(&self, id: &Id) -> &Shard {
        // The hash of the table takes the last bytes; the shard takes the first.
        &self.shards[usize::from(id.0[0]) % SHARDS]
    }
}

/// Whether anybody but its pilot and the table holds it.
fn has_passengers(flight: &Arc<Flight>) -> bool {
    Arc::strong_count(flight) > 2
}

impl Flight {
    /// How far it has come, once the store has answered its pilot.
    pub(crate) async fn answered(&self) -> Leg {
        loop {
            let changed = self.changed.notified();
            let leg = self.leg();
            match leg {
                Leg::Asking => changed.await,
                Leg::Running(..) | Leg::Failed(_) | Leg::Landed => return leg,
            }
        }
    }

    /// Ready once it has landed.
    pub(crate) async fn landed(&self) {
        loop {
            let changed = self.changed.notified();
            if self.has_ended() {
                return;
            }
            changed.await;
        }
    }

    fn leg(&self) -> Leg {
        lock(&self.leg).clone()
    }

    fn has_ended(&self) -> bool {
        match &*lock(&self.leg) {
            Leg::Asking | Leg::Running(..) => false,
            Leg::Failed(_) | Leg::Landed => true,
        }
    }
}

/// Who flies. Dropping it lands the flight, whatever became of it, so no duplicate waits for nobody.
#[derive(Debug)]
pub(crate) struct Pilot {
    shard: Shard,
    id: Id,
    flight: Arc<Flight>,
}

impl Pilot {
    /// What the store showed: the reservation, or a renewal.
    pub(crate) fn runs(&self, seen: Seen, at: Instant) {
        let before = std::mem::replace(&mut *lock(&self.flight.leg), Leg::Running(seen, at));
        if matches!(before, Leg::Asking) {
            self.flight.changed.notify_waiters();
        }
    }

    /// Whether anybody else looks at what is in the air.
    pub(crate) fn has_passengers(&self) -> bool {
        has_passengers(&self.flight)
    }

    /// The store could not be asked: whoever waits for its answer gets this one.
    pub(crate) fn failed(self, refusal: Refusal) {
        self.end(Leg::Failed(refusal));
    }

    fn end(&self, leg: Leg) {
        lock(&self.shard).remove(&self.id);
        *lock(&self.flight.leg) = leg;
        self.flight.changed.notify_waiters();
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        if !self.flight.has_ended() {
            self.end(Leg::Landed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while holding it leaves no half-made change behind: every change is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
