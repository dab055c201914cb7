//! The faults have stopped: every key is asked for until it has come to an end, and then once more at every gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use onlyonce_testkit::history::{Answer, What};

use super::client::{Question, ask};
use super::exchange::Manner;
use super::kind::Kind;
use super::service::Service;
use super::settings::{DEADLINE, LEASE};
use super::stage::{Stage, Subject, locked};

/// How many ask at a time.
const ASKERS: usize = 24;
/// Nothing fails any more: a key that has not ended within this never will.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(500);
const IDLE_WITHIN: Duration = Duration::from_secs(60);

/// Where a key has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its answer is on record, with this status.
    Completed(u16),
    /// It is done, and its answer was too large to be kept.
    CompletedUnkept,
    /// Nobody knows: it waits for a verdict, and runs no more until there is one.
    Unknown,
    /// Nothing of the kind, however often it was asked for.
    Never,
}

impl End {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::CompletedUnkept => "completed, its answer not kept",
            Self::Unknown => "unknown, until a verdict",
            Self::Never => "NO END",
        }
    }
}

/// Waits until what was broken is over with: attempts that were cut off have lapsed, breakers have closed, and the
/// service has done what it had been given.
pub(super) fn settle(stage: &Stage, service: &Service) {
    let began = Instant::now();
    while !service.is_idle() {
        if began.elapsed() > IDLE_WITHIN {
            stage.wrong("the service is never idle".to_owned());
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    // Not for luck: a lease and a deadline are how long the past may go on, by the settings.
    thread::sleep(DEADLINE + 2 * LEASE);
    stage.subjects().iter().for_each(|subject| stage.note(subject, What::Healed));
}

/// Asks for every key until it has ended.
pub(super) fn ends(stage: &Stage, gateways: &[SocketAddr]) -> Vec<(Arc<Subject>, End)> {
    let (left, ended) = (Mutex::new(stage.subjects()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..ASKERS {
            scope.spawn(|| {
                loop {
                    let Some(subject) = locked(&left).pop() else { return };
                    let end = end(stage, gateways, &subject);
                    locked(&ended).push((subject, end));
                }
            });
        }
    });
    let mut ended = ended.into_inner().unwrap_or_default();
    ended.sort_by_key(|(subject, _)| subject.number);
    ended
}

fn end(stage: &Stage, gateways: &[SocketAddr], subject: &Subject) -> End {
    let began = Instant::now();
    let mut body = 1;
    let mut turn = subject.number;
    while began.elapsed() < ENDED_WITHIN {
        turn += 1;
        let gateway = gateways[turn % gateways.len()];
        let answer = ask(stage, gateway, subject, &Question { body, manner: Manner::Patient, wait: None });
        match answer.as_ref().map(read) {
            Some(Read::End(end)) => return last(stage, gateways, subject, body, end),
            // The key is the other request's.
            Some(Read::OtherBody) => body = 3 - body,
            Some(Read::Again) | None => thread::sleep(ASK_EVERY),
        }
    }
    stage.note(subject, What::GaveUp { request: stage.requests() });
    End::Never
}

/// Every gateway is asked once more: the history is judged later, here it is only seen where it stands.
fn last(stage: &Stage, gateways: &[SocketAddr], subject: &Subject, body: u32, mut end: End) -> End {
    for gateway in gateways {
        let question = Question { body, manner: Manner::Patient, wait: None };
        let answer = ask(stage, *gateway, subject, &question);
        match answer.as_ref().map(read) {
            Some(Read::End(now)) => end = now,
            // It may have expired just now, and run anew.
            Some(Read::OtherBody | Read::Again) | None if subject.kind == Kind::Brief => {}
            Some(Read::OtherBody | Read::Again) | None => {
                stage.wrong(format!(
                    "{}/{} had ended as {end:?}, and then: {answer:?}",
                    subject.caller, subject.key
                ));
            }
        }
    }
    end
}

/// What an answer says of the end.
enum Read {
    End(End),
    OtherBody,
    Again,
}

fn read(answer: &Answer) -> Read {
    match answer.code.as_deref() {
        Some("idempotency_outcome_unknown") => Read::End(End::Unknown),
        Some("idempotency_response_not_stored") => Read::End(End::CompletedUnkept),
        Some("idempotency_key_reused") => Read::OtherBody,
        Some(_) => Read::Again,
        // The answer of a run counts once it is told again.
        None if answer.is_replay => Read::End(End::Completed(answer.said.status)),
        None => Read::Again,
    }
}
