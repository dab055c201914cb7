//! An index by due time, updated in batches.
//!
//! A record is written twice within milliseconds, each time with another due time. Updating a tree at every write would be
//! three changes per request, two of them useless. So a write only notes its row, and noted rows are indexed together: when
//! there are many, and before the index is read.

use std::collections::BTreeSet;
use std::ops::Bound;

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;

use super::{Row, Rows};

/// Noted rows are indexed at this number: few enough that the write that does it is not slow.
const NOTED_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Due {
    ordered: BTreeSet<(Timestamp, Id)>,
    /// Rows whose due time may differ from the index, each once.
    noted: Vec<Id>,
}

/// Where the index has a row.
#[derive(Clone, Copy)]
pub(super) struct Position {
    at: Option<Timestamp>,
    is_noted: bool,
}

impl Position {
    /// Not indexed: a new row.
    pub(super) const NONE: Self = Self { at: None, is_noted: false };
}

impl Due {
    /// Notes that a row was written.
    pub(super) fn note(&mut self, id: Id, row: &mut Row) {
        if row.due_at != row.position.at && !row.position.is_noted {
            row.position.is_noted = true;
            self.noted.push(id);
        }
    }

    /// Whether the noted rows should be indexed now.
    pub(super) fn is_full(&self) -> bool {
        self.noted.len() >= NOTED_MAX
    }

    /// Indexes the noted rows. Until the next write, the index has exactly the rows that will ever be due.
    pub(super) fn arrange(&mut self, rows: &mut Rows) {
        for id in self.noted.drain(..) {
            let row =
                rows.get_mut(&id).expect("a row that is noted is deleted by nobody before it is in order");
            if row.due_at != row.position.at {
                if let Some(at) = row.position.at {
                    self.ordered.remove(&(at, id));
                }
                self.ordered.extend(row.due_at.map(|due_at| (due_at, id)));
            }
            row.position = Position { at: row.due_at, is_noted: false };
        }
    }

    /// The indexed rows after this bound, in order.
    pub(super) fn after(&self, after: Bound<(Timestamp, Id)>) -> impl Iterator<Item = &(Timestamp, Id)> {
        self.ordered.range((after, Bound::Unbounded))
    }

    /// Removes a deleted row.
    pub(super) fn remove(&mut self, entry: &(Timestamp, Id)) {
        self.ordered.remove(entry);
    }
}
