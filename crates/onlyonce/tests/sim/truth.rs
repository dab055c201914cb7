//! The one store behind every node, and what is written in it.
//!
//! Nothing fails here, and everything happens at once: faults are the links', this is what a store really did. Whoever
//! commits something together with a record, as a transaction would, does so here.

use std::sync::Arc;

use futures_util::FutureExt;
use onlyonce::store::clock::Clock;
use onlyonce::store::memory::Memory;
use onlyonce::store::result::PhaseResult;
use onlyonce::store::{Change, Count, EpochSeen, Page, Promises, Query, Store, Swapped};
use onlyonce_core::record::{
    Draft, Id, Record, Response, Revision, Seen, Source, State as RecordState, StateName,
};
use onlyonce_core::time::Timestamp;
use tokio::time::Instant;

use crate::history::{By, Said, State, What, Written};
use crate::stage::Stage;

const START_MICROS: i64 = 1_790_000_000_000_000;

#[derive(Clone)]
pub(crate) struct Truth {
    memory: Arc<Memory>,
    stage: Arc<Stage>,
}

#[derive(Debug)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(START_MICROS).plus(self.0.elapsed())
    }
}

impl Truth {
    pub(crate) fn new(stage: Arc<Stage>) -> Self {
        Self { memory: Arc::new(Memory::with_clock(TokioClock(Instant::now()))), stage }
    }

    pub(crate) fn load(&self, id: Id) -> Option<Seen> {
        now(self.memory.load(id)).unwrap()
    }

    pub(crate) fn swap(&self, id: Id, change: Change) -> Swapped {
        self.swap_with(id, change, None)
    }

    /// Swaps, and where that applies, `with` happened in the same transaction.
    pub(crate) fn swap_with(&self, id: Id, change: Change, with: Option<What>) -> Swapped {
        let before = self.load(id);
        let swapped = now(self.memory.swap(id, change)).unwrap();
        if let Swapped::Applied(seen) = &swapped {
            let subject = self.stage.subject(id).number;
            let is_used_anew = before.is_some_and(|before| {
                before.record.created_at != seen.record.created_at && has_expired(&before)
            });
            if is_used_anew {
                self.stage.note(subject, What::Expired);
            }
            if let Some(with) = with {
                self.stage.note(subject, with);
            }
            self.stage.note(subject, What::Wrote(self.written(&seen.record)));
        }
        swapped
    }

    /// Writes `next` over what was seen.
    pub(crate) fn write(&self, seen: &Seen, next: Box<Draft>, with: Option<What>) -> bool {
        let id = Id::of(&seen.record.scope, &seen.record.key);
        let revision = Revision(seen.revision.0.wrapping_add(1));
        let change = Change::new(Some(seen.revision), revision, next);
        matches!(self.swap_with(id, change, with), Swapped::Applied(_))
    }

    pub(crate) fn scan(&self, query: Query) -> Page {
        now(self.memory.scan(query)).unwrap()
    }

    pub(crate) fn results(&self, id: Id, used_at: Timestamp) -> Vec<PhaseResult> {
        now(self.memory.results(id, used_at)).unwrap()
    }

    pub(crate) fn request(&self, id: Id, used_at: Timestamp) -> Option<bytes::Bytes> {
        now(self.memory.request(id, used_at)).unwrap()
    }

    pub(crate) fn requests(&self, limit: usize) -> usize {
        now(self.memory.requests(limit)).unwrap()
    }

    pub(crate) fn count(&self) -> Vec<(StateName, Count)> {
        now(self.memory.count()).unwrap()
    }

    pub(crate) fn promises(&self) -> Promises {
        self.memory.promises()
    }

    pub(crate) fn epoch(&self) -> EpochSeen {
        now(self.memory.epoch()).unwrap()
    }

    pub(crate) fn raise_epoch(&self) {
        now(self.memory.raise_epoch()).unwrap();
    }

    pub(crate) fn reap(&self, limit: usize) -> usize {
        let subjects = &self.stage.subjects;
        let before: Vec<_> = subjects.iter().filter(|subject| self.load(subject.id).is_some()).collect();
        let count = now(self.memory.reap(limit)).unwrap();
        for subject in before.into_iter().filter(|subject| self.load(subject.id).is_none()) {
            self.stage.note(subject.number, What::Expired);
        }
        count
    }

    fn written(&self, record: &Record) -> Written {
        let state = match &record.state {
            RecordState::Running { lapses_at } => {
                State::Running { until: millis((*lapses_at).min(record.deadline_at())) }
            }
            RecordState::Completed { response, by, expires_at } => State::Completed {
                said: response.as_deref().map(said),
                by: if *by == Source::Attempt { By::Attempt } else { By::Verdict },
                expires_at: millis(*expires_at),
            },
            RecordState::Retryable { expires_at, .. } => State::Retryable { expires_at: millis(*expires_at) },
            RecordState::Unknown { .. } => State::Unknown,
            RecordState::Pending { .. } => unreachable!("nothing is accepted for later"),
        };
        Written { token: self.stage.token(record.token), attempt: record.attempt, state }
    }
}

fn has_expired(seen: &Seen) -> bool {
    match &seen.record.state {
        RecordState::Completed { expires_at, .. } | RecordState::Retryable { expires_at, .. } => {
            seen.now >= *expires_at
        }
        RecordState::Pending { .. } | RecordState::Running { .. } | RecordState::Unknown { .. } => false,
    }
}

/// Since the beginning.
fn millis(moment: Timestamp) -> u64 {
    u64::try_from((moment.as_micros() - START_MICROS) / 1000).unwrap()
}

pub(crate) fn said(response: &Response) -> Said {
    Said { status: response.status, body: String::from_utf8(response.body.to_vec()).unwrap() }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the memory store never waits")
}
