//! What is due when, in order.
//!
//! A record is written twice within milliseconds, and each time is due at another moment: in order at once, that would be
//! three changes of a tree for one request, of which two are for nothing. So a row that was written is only noted, and
//! those that were noted are put in order together: where many are, and before anybody looks.

use std::collections::BTreeSet;
use std::ops::Bound;

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;

use super::{Row, Rows};

/// So many rows are noted before they are put in order: few enough that nobody waits long for it.
const NOTED_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Due {
    ordered: BTreeSet<(Timestamp, Id)>,
    /// Rows that may be due at another moment than the one they stand at, each once.
    noted: Vec<Id>,
}

/// Where the order has a row.
#[derive(Clone, Copy)]
pub(super) struct Position {
    at: Option<Timestamp>,
    is_noted: bool,
}

impl Position {
    /// Nowhere, as a new row.
    pub(super) const NONE: Self = Self { at: None, is_noted: false };
}

impl Due {
    /// A row was written.
    pub(super) fn note(&mut self, id: Id, row: &mut Row) {
        if row.due_at != row.position.at && !row.position.is_noted {
            row.position.is_noted = true;
            self.noted.push(id);
        }
    }

    /// Whether what is noted should be put in order.
    pub(super) fn is_full(&self) -> bool {
        self.noted.len() >= NOTED_MAX
    }

    /// Puts what is noted in order. From here until the next write, the order has exactly the rows that are ever due.
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

    /// The rows in order, of those that have been put in order.
    pub(super) fn after(&self, after: Bound<(Timestamp, Id)>) -> impl Iterator<Item = &(Timestamp, Id)> {
        self.ordered.range((after, Bound::Unbounded))
    }

    /// A row is deleted.
    pub(super) fn remove(&mut self, entry: &(Timestamp, Id)) {
        self.ordered.remove(entry);
    }
}
