//! What became of records, told as it happens: to the log, to whoever watches, and to the counters.
//!
//! Ordinary completions and replays are not told here. Each transition is told once, by the node that wrote it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, Source, StateName};
use onlyonce_core::time::Timestamp;
use onlyonce_store::audit;
use tokio::sync::broadcast;

use crate::counts;
use crate::engine::Engine;

/// How many events a slow watcher may be behind before it misses some.
const BEHIND_MAX: usize = 1_000;

/// Something that happened on this node.
#[derive(Clone, Debug)]
pub enum Event {
    /// A record became unknown, was settled, forgotten or given up on.
    Record(Transition),
    /// An operator changed something or was refused, or two sources disagree about a record: an entry of the audit log. Of one
    /// that came without a change, the moment is this node's.
    Change(audit::Written),
}

/// What became of a record.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The record's id.
    pub id: Id,
    /// The record as it is now.
    pub record: Arc<Record>,
    /// Its state before.
    pub from: StateName,
    /// Who brought it about.
    pub by: Source,
    /// When.
    pub at: Timestamp,
}

pub(crate) struct Events {
    sender: broadcast::Sender<Arc<Event>>,
    changed: OnceLock<Changed>,
}

type Changed = Box<dyn Fn(&audit::Written) + Send + Sync>;

impl Default for Events {
    fn default() -> Self {
        Self { sender: broadcast::channel(BEHIND_MAX).0, changed: OnceLock::new() }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl Engine {
    /// What happens on this node from now on.
    pub fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        self.events.sender.subscribe()
    }

    /// Calls this for every entry of the audit log that this node writes, before whoever ordered it is answered. Unlike a
    /// watcher of [`Engine::events`] it misses none. The first one stays.
    pub fn on_change(&self, changed: impl Fn(&audit::Written) + Send + Sync + 'static) {
        // Only the first is kept, as documented.
        let _ = self.events.changed.set(Box::new(changed));
    }

    /// Tells whoever watches.
    pub(crate) fn tell(&self, event: Event) {
        if let (Event::Change(written), Some(changed)) = (&event, self.events.changed.get()) {
            changed(written);
        }
        // Nobody may be watching.
        let _ = self.events.sender.send(Arc::new(event));
    }

    /// A write made a record unknown.
    pub(crate) fn tell_unknown(&self, id: Id, from: StateName, record: &Arc<Record>) {
        counts::unknown_opened();
        let facts = machine::facts(record);
        if facts.ask_at.is_some() {
            counts::reconcile("scheduled", Source::Probe);
        }
        tracing::warn!(
            record = %id.short(),
            route = record.route.as_deref().unwrap_or_default(),
            attempt = record.attempt,
            reason = facts.reason.map(|reason| reason.to_string()),
            "it is unknown whether this request did its work"
        );
        let by = record.history.entries.last().map_or(Source::Attempt, |entry| entry.by);
        self.tell_transition(id, from, record, by);
    }

    /// A statement or an order settled a record, or the reconciler gave up on it.
    pub(crate) fn tell_transition(&self, id: Id, from: StateName, record: &Arc<Record>, by: Source) {
        let at = record.written_at;
        self.tell(Event::Record(Transition { id, record: record.clone(), from, by, at }));
    }
}
