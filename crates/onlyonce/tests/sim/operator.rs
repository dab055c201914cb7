//! Those who find out: a person, a probe and a webhook. They tell the truth, though not always the whole of it, and
//! not always in time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce::Effects;
use onlyonce_core::machine::{self, About, Backoff, Force, Ruled, Ruling, Statement};
use onlyonce_core::record::{Response, Seen, Source, State, StateName, Token, Verdict};

use crate::bank::{Bank, Call};
use crate::history::{self, Said, What};
use crate::stage::Subject;
use crate::tally::Count;
use crate::truth::said;

const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(8),
    tries_max: 3,
    jitter_permille: 1000,
};

/// Settles what is unknown, for ever.
pub(crate) async fn operate(bank: Arc<Bank>) {
    loop {
        bank.stage.pass(500..=2_500).await;
        for subject in bank.stage.subjects.clone() {
            let seen = bank.truth.load(subject.id);
            // What was seen may be old by the time of the verdict.
            bank.stage.pass(0..=40).await;
            // Once the faults have stopped, what lapsed is left for the sweepers to find.
            let is_open = |seen: &Seen| match seen.record.state.name() {
                StateName::Unknown => true,
                StateName::Running => bank.stage.is_faulty(),
                StateName::Pending | StateName::Completed | StateName::Retryable => false,
            };
            if let Some(seen) = seen.filter(is_open) {
                settle(&bank, &subject, &seen);
            }
        }
    }
}

fn settle(bank: &Bank, subject: &Subject, seen: &Seen) {
    let is_unknown = seen.record.state.name() == StateName::Unknown;
    let found = bank.found(subject.id, seen.now.since(seen.record.created_at) + Duration::from_millis(50));
    let is_told_without_answer = bank.stage.random().percent(10);
    // Finding out takes a person longer than it takes us to ask: meanwhile the attempt itself may come back.
    let looks_on = bank.stage.fault(80);
    let verdict = match found {
        Some(_) if looks_on => Verdict::StillUnknown,
        Some(_) if is_told_without_answer => Verdict::Happened(None),
        Some(said) => Verdict::Happened(Some(response(&said))),
        // Only a downstream that can be asked can swear.
        None if is_unknown && subject.effects == Effects::Queryable && bank.stage.random().percent(20) => {
            bank.fence(seen.record.token);
            Verdict::DidNotHappen { never_will: true }
        }
        None if bank.stage.random().percent(20) => Verdict::StillUnknown,
        None => Verdict::DidNotHappen { never_will: false },
    };
    let by = if subject.effects == Effects::Queryable { Source::Probe } else { Source::Operator };
    rule(bank, seen, verdict, by);
}

/// Downstream tells by itself that it acted.
pub(crate) async fn webhook(bank: Arc<Bank>, call: Call, said: Said) {
    if !bank.stage.random().percent(40) {
        return;
    }
    bank.stage.pass(0..=3_000).await;
    let Some(seen) = bank.truth.load(call.id) else { return };
    if seen.record.token == call.token {
        bank.stage.count(Count::Webhook);
        rule(&bank, &seen, Verdict::Happened(Some(response(&said))), Source::Webhook);
    }
}

fn rule(bank: &Bank, seen: &Seen, verdict: Verdict, by: Source) {
    let told = match &verdict {
        Verdict::Happened(response) => Some(history::Verdict::Happened(response.as_deref().map(said))),
        Verdict::DidNotHappen { .. } => Some(history::Verdict::DidNotHappen),
        Verdict::StillUnknown => None,
    };
    let ruling = Ruling {
        verdict,
        about: About::Attempt(seen.record.token),
        statement: Statement::by(by),
        force: Force::No,
        token: Token([0; 16]),
        probe: Some(BACKOFF),
    };
    match machine::verdict(seen, &ruling) {
        Ruled::Settles(draft) | Ruled::Keeps(draft) | Ruled::Notes(draft, _) | Ruled::Contradicts(draft) => {
            // "Asked again later" is no verdict that was taken.
            let is_taken = !matches!(draft.state, State::Unknown { .. });
            bank.truth.write(seen, draft, told.filter(|_| is_taken).map(What::Ruled));
        }
        Ruled::Ignores(_, draft) => {
            if let Some(draft) = draft {
                bank.truth.write(seen, draft, None);
            }
        }
        Ruled::TooEarly(_) => bank.stage.count(Count::EarlyVerdict),
        Ruled::StillRunning | Ruled::Settled | Ruled::Already | Ruled::NothingToAsk | Ruled::Absent => {}
    }
}

fn response(said: &Said) -> Arc<Response> {
    Arc::new(Response { status: said.status, headers: Vec::new(), body: Bytes::from(said.body.clone()) })
}
