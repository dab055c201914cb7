//! How many clients may be connected, and which one is closed for the next.
//!
//! 1. Each connection has a place until its descriptor is closed: while it is served, while it is a tunnel, and while what a refused client
//!    still sends is discarded.
//! 2. Where every place is taken, the connection that has been idle longest is told to close, and the new one is served. Where none is
//!    idle, the new one is closed.
//! 3. Clients and services have descriptors of their own, and leave some for the store, the admin port and logs (`descriptors.rs`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use super::activity::Activity;

/// How long a connection that was told to close may take. The listener waits for it.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);
/// At most a 16th of all may be discarding what a refused client still sends.
const SHARE_LINGERING: usize = 16;
/// A 64th of all connections is told to close at once, so that a flood does not cause a search for each.
const SHARE_CLOSED: usize = 64;

/// All connections of clients.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    open: Mutex<Open>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    lingering: usize,
    /// When some were last told to close.
    told_at: Option<Instant>,
    by_number: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    activity: Arc<Activity>,
    /// None once it was told.
    leave: Option<oneshot::Sender<()>>,
}

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Place {
    connections: Arc<Connections>,
    number: u64,
    is_lingering: bool,
}

/// A connection that was let in.
pub(crate) struct Entered {
    pub(crate) place: Place,
    pub(crate) activity: Arc<Activity>,
    /// Ready when it is to close for another.
    pub(crate) told: oneshot::Receiver<()>,
}

impl Connections {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default(), freed: Notify::new() })
    }

    /// A place for a new connection; none where all are taken by connections that are not idle.
    pub(crate) async fn enter(self: &Arc<Self>) -> Option<Entered> {
        if let Some(entered) = self.try_enter() {
            return Some(entered);
        }
        let wait = async {
            loop {
                let freed = self.freed.notified();
                if let Some(entered) = self.try_enter() {
                    return Some(entered);
                }
                if !self.tell_idle() {
                    return None;
                }
                freed.await;
            }
        };
        timeout(CLOSES_WITHIN, wait).await.ok().flatten()
    }

    fn try_enter(self: &Arc<Self>) -> Option<Entered> {
        let mut open = self.open();
        if open.by_number.len() >= self.max {
            return None;
        }
        let (activity, number) = (Activity::new(), open.next);
        let (leave, told) = oneshot::channel();
        open.next += 1;
        open.by_number.insert(number, Entry { activity: activity.clone(), leave: Some(leave) });
        Some(Entered {
            place: Place { connections: self.clone(), number, is_lingering: false },
            activity,
            told,
        })
    }

    /// Tells those to close that have been idle longest. False where none is idle and none was told just before.
    fn tell_idle(&self) -> bool {
        let mut open = self.open();
        let is_leaving = open.told_at.is_some_and(|told_at| told_at.elapsed() < CLOSES_WITHIN);
        if is_leaving && open.by_number.values().any(|entry| entry.leave.is_none()) {
            return true;
        }
        let mut idle: Vec<_> = open.by_number.iter().filter_map(Entry::idle).collect();
        idle.sort_unstable();
        idle.truncate((self.max / SHARE_CLOSED).max(1));
        for (_, number) in &idle {
            let leave = open.by_number.get_mut(number).and_then(|entry| entry.leave.take());
            if let Some(leave) = leave {
                // One that has just ended by itself frees its place all the same.
                let _ = leave.send(());
            }
        }
        open.told_at = Some(Instant::now());
        !idle.is_empty()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Since when it is idle, if it can be told to close. A tunnel cannot, nor one that ends already.
    fn idle((number, entry): (&u64, &Self)) -> Option<(Instant, u64)> {
        entry.leave.as_ref().filter(|leave| !leave.is_closed())?;
        Some((entry.activity.idle_since()?, *number))
    }
}

impl Place {
    /// Whether what the client still sends may be discarded for a while, before its connection is closed.
    pub(crate) fn may_linger(&mut self) -> bool {
        let mut open = self.connections.open();
        self.is_lingering = open.lingering < (self.connections.max / SHARE_LINGERING).max(1);
        open.lingering += usize::from(self.is_lingering);
        self.is_lingering
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        open.by_number.remove(&self.number);
        open.lingering -= usize::from(self.is_lingering);
        drop(open);
        self.connections.freed.notify_one();
    }
}

/// Connections to services: counted, so that requests of few clients cannot take every descriptor either.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing(Arc<Places>);

#[derive(Debug)]
struct Places {
    max: usize,
    taken: AtomicUsize,
}

/// The place of one connection to a service.
#[derive(Debug)]
pub(crate) struct Taken(Outgoing);

impl Outgoing {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Places { max, taken: AtomicUsize::new(0) }))
    }

    pub(crate) fn take(&self) -> Option<Taken> {
        let taken = Taken(self.clone());
        // Dropped, it gives the place back.
        (self.0.taken.fetch_add(1, Ordering::Relaxed) < self.0.max).then_some(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L06
    #[tokio::test]
    async fn the_connection_that_has_been_idle_longest_makes_room() {
        let connections = Connections::new(2);
        let first = connections.enter().await.unwrap();
        let mut second = connections.enter().await.unwrap();
        let request = first.activity.request();
        // The second is told, and leaves.
        let (third, ()) = tokio::join!(connections.enter(), async {
            (&mut second.told).await.unwrap();
            drop(second);
        });
        let third = third.unwrap();
        drop(request);
        let newer = third.activity.request();
        let (fourth, ()) = tokio::join!(connections.enter(), async {
            let Entered { place, told, .. } = first;
            told.await.unwrap();
            drop(place);
        });
        assert!(fourth.is_some());
        drop(newer);
    }

    /// L06
    #[tokio::test]
    async fn where_none_is_idle_the_new_one_is_refused() {
        let connections = Connections::new(1);
        let only = connections.enter().await.unwrap();
        let request = only.activity.request();
        assert!(connections.enter().await.is_none());
        only.activity.waits();
        // It does not leave, although it was told.
        tokio::time::pause();
        assert!(connections.enter().await.is_none());
        drop((request, only));
        assert!(connections.enter().await.is_some());
    }

    /// L06
    #[test]
    fn connections_to_services_are_counted() {
        let outgoing = Outgoing::new(1);
        let taken = outgoing.take().unwrap();
        assert!(outgoing.take().is_none());
        drop(taken);
        assert!(outgoing.take().is_some());
    }
}
