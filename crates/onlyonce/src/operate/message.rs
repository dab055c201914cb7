//! What operators may do to messages: look, redrive a dead letter, discard one.

use std::sync::Arc;

use onlyonce_store::outbox::{Census, Changed, Item, Page, Payload, Query, State};
use onlyonce_store::{Error, ErrorKind, Outbox, audit, failpoint};

use super::STORE_TIMEOUT;
use super::order::{Order, own_time};
use crate::counts::{self, Operation};
use crate::engine::Engine;

/// What is done to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A dead letter is delivered again.
    Redrive,
    /// It is deleted.
    Discard,
}

impl Action {
    /// The action, as the audit log has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }

    /// Why it was refused, as the API has it.
    const fn refusal(self) -> &'static str {
        match self {
            Self::Redrive => "message_not_dead",
            Self::Discard => "message_claimed",
        }
    }

    /// What became of the message.
    pub const fn done(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Discard => "discarded",
        }
    }
}

/// What became of an order about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was done, or would be.
    Done {
        /// The message before.
        before: Item,
        /// The id of the audit entry; none on a dry run.
        audit: Option<Arc<str>>,
    },
    /// The message is not in a state for it.
    Refused(Item),
    /// There is no such message.
    Absent,
}

impl Engine {
    /// Messages, for people.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, has no outbox, or the cursor is none of its own.
    pub async fn messages(&self, query: Query) -> Result<Page, Error> {
        self.guarded(Operation::Scan, STORE_TIMEOUT, self.outbox()?.list(query)).await
    }

    /// How the outbox stands; none where the store has no outbox.
    ///
    /// # Errors
    ///
    /// Where the store does not answer.
    pub async fn message_census(&self) -> Result<Option<Census>, Error> {
        let Some(outbox) = self.store().outbox() else { return Ok(None) };
        self.guarded(Operation::Scan, STORE_TIMEOUT, outbox.census()).await.map(Some)
    }

    /// One message.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or has no outbox.
    pub async fn message(&self, number: u64) -> Result<Option<Item>, Error> {
        self.guarded(Operation::Scan, STORE_TIMEOUT, self.outbox()?.item(number)).await
    }

    /// The payload of a message. Who looks writes it to the audit log first ([`Engine::write_audit`]).
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or has no outbox.
    pub async fn message_payload(&self, number: u64) -> Result<Option<Payload>, Error> {
        self.guarded(Operation::Scan, STORE_TIMEOUT, self.outbox()?.payload(number)).await
    }

    /// Redrives or discards a message, with its entry of the audit log.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or has no outbox.
    pub async fn change_message(&self, number: u64, action: Action, order: &Order) -> Result<Change, Error> {
        let outbox = self.outbox()?;
        let Some(before) = self.message(number).await? else { return Ok(Change::Absent) };
        let entry = order.entry_of_message(action, &before);
        if order.dry_run {
            return Ok(match may(action, &before) {
                true => Change::Done { before, audit: None },
                false => Change::Refused(before),
            });
        }
        failpoint!("message.change.before");
        let change = match action {
            Action::Redrive => outbox.redrive(number, entry.clone()),
            Action::Discard => outbox.discard(number, entry.clone()),
        };
        let changed = self.guarded(Operation::Outbox, STORE_TIMEOUT, change).await?;
        failpoint!("message.change.after");
        match changed {
            Changed::Applied => {
                let audit = Some(entry.id.clone());
                counts::message(action.done(), &before.destination);
                self.tell_change(entry, own_time());
                self.wake_relay();
                Ok(Change::Done { before, audit })
            }
            Changed::Refused => {
                let code = Some(action.refusal().into());
                let refused = audit::Entry { result: "refused".into(), code, after: None, ..entry };
                self.write_audit(refused).await?;
                Ok(Change::Refused(before))
            }
            Changed::Absent => Ok(Change::Absent),
        }
    }

    fn outbox(&self) -> Result<&dyn Outbox, Error> {
        let none = || Error::new(ErrorKind::Misconfigured, "this store has no outbox; use another engine");
        self.store().outbox().ok_or_else(none)
    }
}

/// Whether it would be done, as far as can be told without doing it: only the store knows whether a claim has lapsed.
fn may(action: Action, item: &Item) -> bool {
    match (action, item.state) {
        (Action::Redrive, State::Dead)
        | (Action::Discard, State::Waiting | State::Delivered | State::Dead) => true,
        (Action::Redrive, State::Waiting | State::Claimed | State::Delivered)
        | (Action::Discard, State::Claimed) => false,
    }
}

impl Order {
    /// The entry of an order about a message.
    fn entry_of_message(&self, action: Action, item: &Item) -> audit::Entry {
        let standing = |state: &str| -> Arc<str> {
            let Item { number, destination, deliveries, .. } = item;
            let standing = serde_json::json!({
                "message": number, "destination": &**destination, "state": state, "deliveries": deliveries,
            });
            standing.to_string().into()
        };
        audit::Entry {
            key: Some(item.key.clone()),
            record: item.record,
            before: Some(standing(item.state.as_str())),
            after: match action {
                Action::Redrive => Some(standing("waiting")),
                Action::Discard => None,
            },
            ..self.bare_entry(action.as_str())
        }
    }
}
