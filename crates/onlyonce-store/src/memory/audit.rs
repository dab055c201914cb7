//! The audit log of the memory engine, in the order it was written.

use std::time::Duration;

use onlyonce_core::time::Timestamp;

use crate::audit::{Entry, Page, Query, Written};
use crate::{Cursor, Error, listing};

#[derive(Debug, Default)]
pub(super) struct Log {
    /// Each with its number, from 1. Numbers rise, and none comes back.
    entries: Vec<(u64, Written)>,
    last: u64,
}

impl Log {
    pub(super) fn write(&mut self, entry: Entry, now: Timestamp) {
        if self.entries.iter().rev().any(|(_, written)| written.entry.id == entry.id) {
            return;
        }
        self.last += 1;
        self.entries.push((self.last, Written { at: now, entry }));
    }

    pub(super) fn list(&self, query: &Query) -> Result<Page, Error> {
        let before = match &query.after {
            None => u64::MAX,
            Some(Cursor(bytes)) => {
                bytes.as_ref().try_into().map(u64::from_be_bytes).map_err(|_| listing::foreign())?
            }
        };
        let rest = self.entries.iter().rev().filter(|(number, _)| *number < before);
        let mut found: Vec<_> =
            rest.filter(|(_, written)| query.covers(written)).take(query.limit.saturating_add(1)).collect();
        let has_next = found.len() > query.limit;
        found.truncate(query.limit);
        let next = found.last().filter(|_| has_next).map(|(number, _)| Cursor(number.to_be_bytes().into()));
        Ok(Page { entries: found.into_iter().map(|(_, written)| written.clone()).collect(), next })
    }

    pub(super) fn reap(&mut self, age: Duration, limit: usize, now: Timestamp) -> usize {
        let old =
            self.entries.iter().take_while(|(_, written)| now.since(written.at) > age).count().min(limit);
        self.entries.drain(..old);
        old
    }

    /// Takes keys and labels out of the entries of a scope.
    pub(super) fn erase(&mut self, scope: [u8; 32]) {
        for (_, written) in self.entries.iter_mut().filter(|(_, written)| written.entry.scope == Some(scope))
        {
            written.entry.key = None;
            written.entry.scope_label = None;
        }
    }
}
