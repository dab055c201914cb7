//! The faults have stopped: every key is asked for until it has come to an end, and then once more at every gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use onlyonce_testkit::history::{Answer, What};

use crate::client::{Question, ask};
use crate::exchange::Manner;
use crate::kind::Kind;
use crate::run::{Run, Subject, locked};
use crate::service::Service;
use crate::settings::{DEADLINE, LEASE};

/// How many keys are asked for at a time.
const ASKERS: usize = 24;
/// Nothing fails any more: a key that has not ended within this never will. "Did not happen" is believed only once the
/// horizon is over.
const ENDED_WITHIN: Duration = Duration::from_secs(90);
const ASK_EVERY: Duration = Duration::from_millis(500);
const IDLE_WITHIN: Duration = Duration::from_secs(60);

/// The final state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalState {
    /// Completed, with a stored answer of this status.
    Completed(u16),
    /// Completed; its answer was too large to be kept.
    CompletedUnkept,
    /// Unknown: it runs again only after a verdict.
    Unknown,
    /// None within the time: a fault.
    Never,
}

impl FinalState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::CompletedUnkept => "completed, its answer not kept",
            Self::Unknown => "unknown, until a verdict",
            Self::Never => "NO END",
        }
    }
}

/// Waits until the effects of the faults are over: attempts that were cut off have lapsed, breakers have closed, and the
/// service has finished its work.
pub(crate) fn settle(run: &Run, service: &Service) {
    let began = Instant::now();
    while !service.is_idle() {
        if began.elapsed() > IDLE_WITHIN {
            run.wrong("the service is never idle".to_owned());
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    // Not for luck: by the settings, earlier attempts may go on for a lease and a deadline.
    thread::sleep(DEADLINE + 2 * LEASE);
    run.subjects().iter().for_each(|subject| run.note(subject, What::Healed));
}

/// Asks for every key until it has ended.
pub(crate) fn ends(run: &Run, gateways: &[SocketAddr]) -> Vec<(Arc<Subject>, FinalState)> {
    let (left, ended) = (Mutex::new(run.subjects()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..ASKERS {
            scope.spawn(|| {
                loop {
                    let Some(subject) = locked(&left).pop() else { return };
                    let end = end(run, gateways, &subject);
                    locked(&ended).push((subject, end));
                }
            });
        }
    });
    let mut ended = ended.into_inner().unwrap_or_default();
    ended.sort_by_key(|(subject, _)| subject.number);
    ended
}

fn end(run: &Run, gateways: &[SocketAddr], subject: &Subject) -> FinalState {
    let began = Instant::now();
    let mut body = 1;
    let mut turn = subject.number;
    while began.elapsed() < ENDED_WITHIN {
        turn += 1;
        let gateway = gateways[turn % gateways.len()];
        let answer = ask(run, gateway, subject, &Question { body, manner: Manner::Patient, wait: None });
        match answer.as_ref().map(read) {
            // Its probe can be asked: nobody has to wait for a person.
            Some(Read::End(FinalState::Unknown)) if subject.kind == Kind::Queryable => {
                thread::sleep(ASK_EVERY);
            }
            Some(Read::End(end)) => return last(run, gateways, subject, body, end),
            // The key is the other request's.
            Some(Read::OtherBody) => body = 3 - body,
            Some(Read::Again) | None => thread::sleep(ASK_EVERY),
        }
    }
    run.note(subject, What::GaveUp { request: run.requests() });
    FinalState::Never
}

/// Asks every gateway once more; their answers are judged later, with the history.
fn last(run: &Run, gateways: &[SocketAddr], subject: &Subject, body: u32, mut end: FinalState) -> FinalState {
    for gateway in gateways {
        let question = Question { body, manner: Manner::Patient, wait: None };
        let answer = ask(run, *gateway, subject, &question);
        match answer.as_ref().map(read) {
            Some(Read::End(now)) => end = now,
            // It may have expired just now, and run anew.
            Some(Read::OtherBody | Read::Again) | None if subject.kind == Kind::Brief => {}
            Some(Read::OtherBody | Read::Again) | None => {
                run.wrong(format!(
                    "{}/{} had ended as {end:?}, and then: {answer:?}",
                    subject.caller, subject.key
                ));
            }
        }
    }
    end
}

/// What an answer says about the final state.
enum Read {
    End(FinalState),
    OtherBody,
    Again,
}

fn read(answer: &Answer) -> Read {
    match answer.code.as_deref() {
        Some("idempotency_outcome_unknown") => Read::End(FinalState::Unknown),
        Some("idempotency_response_not_stored") => Read::End(FinalState::CompletedUnkept),
        Some("idempotency_key_reused") => Read::OtherBody,
        Some(_) => Read::Again,
        // The first answer does not count: it must be replayed.
        None if answer.is_replay => Read::End(FinalState::Completed(answer.said.status)),
        None => Read::Again,
    }
}
