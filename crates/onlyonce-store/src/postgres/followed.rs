//! What this node knows of the rows that it has listed: which of them are done.
//!
//! Nearly every record is completed by the node that reserved it, a moment later. Then its row of the list (`due.rs`) need not
//! be looked into: the node remembers which ids of a row are still open, and tells the list of rows that have none left, many
//! at once. It is a short cut and nothing relies on it: what a node forgets, or takes with it when it dies, is looked at
//! when it is due.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;

use super::due::Place;
use crate::hash::ById;

/// More open records than this are not followed, nor more rows that are done: where nobody sweeps, nobody asks for them.
const IDS_MAX: usize = 1 << 18;
const DONE_MAX: usize = 1 << 16;

/// The rows of one node.
#[derive(Debug, Default)]
pub(super) struct Followed {
    rows: Mutex<Rows>,
    is_being_told: AtomicBool,
}

/// Who tells the list beside the requests: one at a time.
pub(super) struct Telling(Arc<Followed>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.is_being_told.store(false, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct Rows {
    rows: HashMap<Place, Row>,
    /// Which row lists an id that is open.
    open: HashMap<Id, Place, ById>,
    done: Vec<Done>,
    /// The latest moment that the store has told.
    now: Option<Timestamp>,
}

#[derive(Debug)]
struct Row {
    left: usize,
    expires_at: Option<Timestamp>,
}

/// A row all of whose records are completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) due_at: Timestamp,
    pub(super) number: i64,
    /// Of the first of them.
    pub(super) expires_at: Timestamp,
}

impl Followed {
    /// These ids were listed in a row at this moment.
    pub(super) fn listed(&self, number: i64, due_at: Timestamp, now: Timestamp, ids: &[Id]) {
        let mut all = self.lock();
        all.now = all.now.max(Some(now));
        if ids.is_empty() || all.open.len() + ids.len() > IDS_MAX {
            return;
        }
        all.open.extend(ids.iter().map(|id| (*id, (due_at, number))));
        all.rows.insert((due_at, number), Row { left: ids.len(), expires_at: None });
    }

    /// A record was completed.
    pub(super) fn completed(&self, id: Id, expires_at: Timestamp) {
        let mut all = self.lock();
        let Some(place) = all.open.remove(&id) else { return };
        let Some(row) = all.rows.get_mut(&place) else { return };
        row.left = row.left.saturating_sub(1);
        let first = row.expires_at.map_or(expires_at, |first| first.min(expires_at));
        row.expires_at = Some(first);
        if row.left == 0 {
            let done = Done { due_at: place.0, number: place.1, expires_at: first };
            all.rows.remove(&place);
            if all.done.len() < DONE_MAX {
                all.done.push(done);
            }
        }
    }

    /// For whoever is to tell the list now: so many rows are done, and nobody else does.
    pub(super) fn telling(self: &Arc<Self>, least: usize) -> Option<Telling> {
        let is_due = self.lock().done.len() >= least;
        (is_due && !self.is_being_told.swap(true, Ordering::AcqRel)).then(|| Telling(self.clone()))
    }

    /// Up to `limit` rows that are done, for once, where there are at least so many. What is due by now is anybody's, and
    /// forgotten.
    pub(super) fn take_done(&self, least: usize, limit: usize) -> Vec<Done> {
        let mut all = self.lock();
        if all.done.len() < least {
            return Vec::new();
        }
        let Rows { rows, open, done, now } = &mut *all;
        rows.retain(|(due_at, _), _| Some(*due_at) > *now);
        open.retain(|_, place| rows.contains_key(place));
        let count = done.len().min(limit);
        done.drain(..count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_row_is_done_when_all_its_records_are_completed() {
        let (followed, ids) = (Followed::default(), [Id([1; 32]), Id([2; 32])]);
        followed.listed(7, at(100), at(10), &ids);
        followed.completed(ids[1], at(900));
        followed.completed(ids[1], at(1));
        assert_eq!(followed.take_done(0, 9), []);
        followed.completed(ids[0], at(800));
        let done = Done { due_at: at(100), number: 7, expires_at: at(800) };
        assert_eq!(followed.take_done(2, 9), [], "too few");
        assert_eq!(followed.take_done(1, 9), [done]);
        assert_eq!(followed.take_done(0, 9), [], "told once");
    }

    #[test]
    fn one_at_a_time_tells_and_not_before_it_is_worth_it() {
        let (followed, id) = (Arc::new(Followed::default()), Id([1; 32]));
        followed.listed(7, at(100), at(10), &[id]);
        assert!(followed.telling(1).is_none());
        followed.completed(id, at(900));
        assert!(followed.telling(2).is_none());
        let telling = followed.telling(1);
        assert!(telling.is_some() && followed.telling(1).is_none());
        drop(telling);
        assert!(followed.telling(1).is_some());
    }

    /// A node without workers grows no further.
    #[test]
    fn where_nobody_sweeps_it_is_bounded() {
        let (followed, id) = (Followed::default(), Id([1; 32]));
        for number in 0..2 * i64::try_from(DONE_MAX).unwrap() {
            followed.listed(number, at(100), at(10), &[id]);
            followed.completed(id, at(900));
        }
        assert_eq!(followed.take_done(0, usize::MAX).len(), DONE_MAX);
        assert!(followed.lock().open.is_empty() && followed.lock().rows.is_empty());
    }

    #[test]
    fn what_is_due_is_no_longer_followed() {
        let (followed, id) = (Followed::default(), Id([1; 32]));
        followed.listed(7, at(100), at(10), &[id]);
        followed.listed(8, at(300), at(200), &[]);
        assert_eq!(followed.take_done(0, 9), []);
        followed.completed(id, at(900));
        assert_eq!(followed.take_done(0, 9), []);
        assert!(followed.lock().open.is_empty());
    }
}
