//! Who orders a change and why, and the entry of the audit log it leaves.

use std::sync::Arc;

use onlyonce_core::machine::{Force, Refused};
use onlyonce_core::record::{Id, Record, Revision, Seen, StateName};
use onlyonce_core::time::Timestamp;
use onlyonce_store::{Error, audit};

use super::STORE_TIMEOUT;
use crate::counts::{self, Operation};
use crate::engine::Engine;
use crate::events::Event;

/// Who orders a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The name of the token, or `local`.
    pub who: Arc<str>,
    /// The token's role.
    pub role: Arc<str>,
    /// What the person calls itself; nobody has verified it.
    pub claims: Option<Arc<str>>,
    /// The address it came from.
    pub from: Option<Arc<str>>,
    /// `api`, `cli` or `store`.
    pub via: Arc<str>,
}

/// An order to change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Who orders it.
    pub operator: Operator,
    /// Why.
    pub reason: Arc<str>,
    /// Whether a live lease, an early hour or doubt may stand in the way.
    pub force: Force,
    /// The revision that the operator has seen, where it must still stand.
    pub expected: Option<Revision>,
    /// Only to be told what would happen.
    pub dry_run: bool,
}

/// What an order did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The record before.
    pub before: Arc<Record>,
    /// The record after, as the store has it; on a dry run as it was.
    pub after: Seen,
    /// The state it has afterwards, also where that was only asked.
    pub becomes: StateName,
    /// The id of the audit entry; none on a dry run.
    pub audit: Option<Arc<str>>,
}

/// Why an order was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such record.
    Absent,
    /// The record is no longer as the operator saw it.
    Changed(Seen),
    /// The rules refuse it.
    Refused(Refused, Seen),
}

impl Refusal {
    /// The code, as the API has it.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Absent => "record_not_found",
            Self::Changed(_) => "record_changed",
            Self::Refused(refused, _) => refused.code(),
        }
    }

    /// From when on it would not be refused, where that is known.
    pub fn earliest(&self) -> Option<Timestamp> {
        match self {
            Self::Refused(Refused::TooEarly(earliest), _) => Some(*earliest),
            Self::Absent | Self::Changed(_) | Self::Refused(..) => None,
        }
    }
}

/// The id of a new audit entry: 26 characters that sort by the time they were made, and are never made twice.
pub fn entry_id() -> Arc<str> {
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let random: u128 = rand::random::<u128>() >> 48;
    let number = (since_epoch.as_millis() << 80) | random;
    let digit = |place: u32| char::from(DIGITS[(number >> (5 * place) & 31) as usize]);
    (0..26).rev().map(digit).collect::<String>().into()
}

impl Order {
    /// The entry of an order about a record.
    pub(super) fn entry(&self, action: &str, record: &Record) -> audit::Entry {
        audit::Entry {
            scope: Some(*record.scope.digest()),
            scope_label: record.scope.label().map(Arc::from),
            key: Some(record.key.as_str().into()),
            record: Some(Id::of(&record.scope, &record.key)),
            before: Some(standing(record.state.name(), record.attempt, None)),
            ..self.bare_entry(action)
        }
    }

    /// The entry of an order that is about no record.
    pub(super) fn bare_entry(&self, action: &str) -> audit::Entry {
        let Operator { who, role, claims, from, via } = self.operator.clone();
        audit::Entry {
            id: entry_id(),
            who,
            role,
            claims,
            from,
            via,
            action: action.into(),
            reason: Some(self.reason.clone()),
            forced: self.force == Force::Yes,
            result: "applied".into(),
            ..audit::Entry::default()
        }
    }
}

/// How a record stands, as the log has it. An answer is told by its status and size.
pub(super) fn standing(state: StateName, attempt: u32, answer: Option<(u16, usize)>) -> Arc<str> {
    let answer =
        answer.map_or_else(String::new, |(status, bytes)| format!(r#","status":{status},"bytes":{bytes}"#));
    format!(r#"{{"state":"{state}","attempt":{attempt}{answer}}}"#).into()
}

impl Engine {
    /// Writes an entry of something that changed no record: an order that was refused, a look at a stored answer.
    ///
    /// # Errors
    ///
    /// Where the store does not take it. Then what it tells of must not be done.
    pub async fn write_audit(&self, entry: audit::Entry) -> Result<(), Error> {
        self.guarded(Operation::Swap, STORE_TIMEOUT, self.store().audit().write(entry.clone())).await?;
        self.tell_change(entry, own_time());
        Ok(())
    }

    /// Entries of the audit log, newest first.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or the cursor is none of its own.
    pub async fn read_audit(&self, query: audit::Query) -> Result<audit::Page, Error> {
        self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().audit().list(query)).await
    }

    /// An entry is in the log.
    pub(super) fn tell_change(&self, entry: audit::Entry, at: Timestamp) {
        counts::admin_change(&entry.action, &entry.result);
        self.tell(Event::Change(audit::Written { at, entry }));
    }

    /// An order was refused: that is in the log too. Where it cannot be written there, the order is still refused.
    pub(super) async fn refuse(
        &self,
        order: &Order,
        entry: Option<audit::Entry>,
        refusal: Refusal,
    ) -> Refusal {
        let Some(entry) = entry.filter(|_| !order.dry_run) else { return refusal };
        let entry = audit::Entry { result: "refused".into(), code: Some(refusal.code().into()), ..entry };
        if let Err(error) = self.write_audit(entry).await {
            tracing::warn!(error = %crate::engine::chain(&error), "a change was refused, but the audit entry could not be written");
        }
        refusal
    }
}

/// The time by this node's clock.
pub(super) fn own_time() -> Timestamp {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(0).plus(since_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entrys_id_is_unique_and_sorts_by_time() {
        let first = entry_id();
        std::thread::spawn(|| while *entry_id() < *"0" {}).join().unwrap();
        let second = entry_id();
        assert_eq!(first.len(), 26);
        assert_ne!(first, second);
        assert!(first[..10] <= second[..10], "{first} {second}");
    }
}
