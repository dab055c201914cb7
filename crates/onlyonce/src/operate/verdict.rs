//! A person says what became of a record's work.

use std::sync::Arc;

use onlyonce_core::history::shortened;
use onlyonce_core::machine::{self, About, Force, Refused, Ruled, Ruling, Statement};
use onlyonce_core::record::{Draft, Id, Seen, Source, Token, Verdict};
use onlyonce_store::{Error, Swapped, failpoint};

use super::order::{Applied, Order, Refusal, standing};
use super::{STORE_TIMEOUT, SWAPS_MAX};
use crate::counts;
use crate::engine::{Engine, contended, fresh_token};

/// What a person says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saying {
    /// What became of the work; "still unknown" has the probe asked.
    pub verdict: Verdict,
    /// The attempt that is meant, where the person names one.
    pub token: Option<Token>,
    /// Whether the probe is asked for the answer first, where the person has none.
    pub ask: bool,
}

/// What became of a person's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The record is settled by it, or would be.
    Applied(Applied),
    /// The record stays unknown, and its probe is asked at once, or would be.
    Noted(Applied),
    /// Nothing was changed.
    Refused(Refusal),
}

impl Engine {
    /// Judges a person's verdict and carries it out. A forced one is ready after a few seconds, when every node knows.
    ///
    /// # Errors
    ///
    /// Where the store does not answer. Whether it was applied is in the audit log.
    pub async fn verdict(&self, id: Id, saying: Saying, order: &Order) -> Result<Judged, Error> {
        let mut saying = saying;
        let mut seen = self.find(id).await?;
        for _ in 0..SWAPS_MAX {
            let Some(found) = seen else { return Ok(Judged::Refused(Refusal::Absent)) };
            let entry = order.entry("verdict", &found.record);
            if order.expected.is_some_and(|expected| expected != found.revision) {
                let refusal = Refusal::Changed(found);
                return Ok(Judged::Refused(self.refuse(order, Some(entry), refusal).await));
            }
            let mut ruling = self.ruling(&found, &saying, order);
            if saying.ask && !order.dry_run {
                saying.ask = !self.has_asked_for_answer(&found, &mut ruling).await;
                saying.verdict = ruling.verdict.clone();
            }
            let (draft, settles) = match machine::verdict(&found, &ruling) {
                Ruled::Settles(draft) => (draft, true),
                Ruled::Keeps(draft) | Ruled::Notes(draft, _) => (draft, false),
                Ruled::Absent => return Ok(Judged::Refused(Refusal::Absent)),
                refused @ (Ruled::Contradicts(_)
                | Ruled::Ignores(..)
                | Ruled::Already
                | Ruled::StillRunning
                | Ruled::TooEarly(_)
                | Ruled::Settled
                | Ruled::NothingToAsk) => {
                    let refusal = Refusal::Refused(refused_as(&refused), found);
                    return Ok(Judged::Refused(self.refuse(order, Some(entry), refusal).await));
                }
            };
            let result: Arc<str> = if settles { "applied" } else { "noted" }.into();
            let becomes = draft.state.name();
            let after = standing(becomes, draft.attempt, answer(&draft));
            let entry = onlyonce_store::audit::Entry { result, after: Some(after), ..entry };
            let judged = |after: Seen, audit| {
                let applied = Applied { before: found.record.clone(), after, becomes, audit };
                if settles { Judged::Applied(applied) } else { Judged::Noted(applied) }
            };
            if order.dry_run {
                return Ok(judged(found.clone(), None));
            }
            failpoint!("verdict.before");
            let swapped =
                self.swap_with(&id, Some(&found), draft, Some(entry.clone()), STORE_TIMEOUT).await?;
            failpoint!("verdict.after");
            match swapped {
                Swapped::Applied(now) => {
                    self.tell_settled(id, &found, &now, Source::Operator, settles);
                    let audit = entry.id.clone();
                    self.tell_change(entry, now.record.written_at);
                    if order.force == Force::Yes {
                        self.tell_every_node(STORE_TIMEOUT).await?;
                    }
                    return Ok(judged(now, Some(audit)));
                }
                Swapped::Lost(now) => seen = now,
            }
        }
        Err(contended())
    }

    fn ruling(&self, seen: &Seen, saying: &Saying, order: &Order) -> Ruling {
        Ruling {
            verdict: saying.verdict.clone(),
            about: saying.token.map_or(About::Work, About::Attempt),
            statement: Statement {
                by: Source::Operator,
                who: Some(order.operator.who.clone()),
                source: None,
                detail: Some(shortened(&order.reason)),
            },
            force: order.force,
            token: fresh_token(),
            probe: self.backoff(seen),
        }
    }

    /// Whether "happened" without an answer would settle the record, so that its probe was asked. The answer, where the probe
    /// has it, is in the ruling then. Whatever else the probe says is not what was asked.
    pub(super) async fn has_asked_for_answer(&self, seen: &Seen, ruling: &mut Ruling) -> bool {
        let is_wanted = matches!(ruling.verdict, Verdict::Happened(None))
            && matches!(machine::verdict(seen, ruling), Ruled::Settles(_));
        if is_wanted && let Some(answer) = self.ask_for_answer(seen).await {
            ruling.verdict = Verdict::Happened(Some(answer));
        }
        is_wanted
    }

    /// A record was settled by a statement: logged, counted and told once.
    pub(crate) fn tell_settled(&self, id: Id, before: &Seen, after: &Seen, by: Source, settles: bool) {
        if !settles {
            return;
        }
        counts::reconcile("resolved", by);
        tracing::info!(
            record = %id.short(),
            route = after.record.route.as_deref().unwrap_or_default(),
            attempt = after.record.attempt,
            was = %before.record.state.name(),
            is = %after.record.state.name(),
            by = by.as_str(),
            "the outcome of this request is settled"
        );
        self.tell_transition(id, before.record.state.name(), &after.record, by);
    }
}

/// An answer by its status and size, as the audit log has it.
fn answer(draft: &Draft) -> Option<(u16, usize)> {
    machine::stored_in(draft).map(|response| (response.status, response.body.len()))
}

fn refused_as(ruled: &Ruled) -> Refused {
    match ruled {
        Ruled::StillRunning => Refused::StillRunning,
        Ruled::TooEarly(believed_at) => Refused::TooEarly(*believed_at),
        Ruled::NothingToAsk => Refused::NothingToAsk,
        Ruled::Settles(_)
        | Ruled::Keeps(_)
        | Ruled::Notes(..)
        | Ruled::Contradicts(_)
        | Ruled::Ignores(..)
        | Ruled::Already
        | Ruled::Settled
        | Ruled::Absent => Refused::Settled,
    }
}
