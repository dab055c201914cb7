//! Records, moments and statements for the tests of the machine.
//!
//! Lease 30 s, deadline 5 min, horizon 30 s, retention 24 h, downstream retention 23 h; the probe is first asked after 5 s.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::History;
use onlyonce_core::key::Key;
use onlyonce_core::machine::{About, Backoff, Force, Ruling, Statement};
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{
    Accepted, Asking, Draft, Effects, Evidence, Progress, Reason, Record, Response, Revision, Seen, Source,
    State, Token, Verdict,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::Timestamp;

pub(crate) const NOW: i64 = 1_000_000;
pub(crate) const HOUR: i64 = 3_600;
/// The longest pause between two attempts of accepted work.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(4);
/// From when on "did not happen" is believed, in seconds after the attempt began.
pub(crate) const BELIEVED: i64 = 330;

/// The token of a record's last attempt.
pub(crate) const OWN: Token = Token([1; 16]);
/// A token of nobody in this record.
pub(crate) const FOREIGN: Token = Token([2; 16]);
/// A token nobody has used before.
pub(crate) const FRESH: Token = Token([3; 16]);
/// The token of an earlier attempt of the record.
pub(crate) const EARLIER: Token = Token([4; 16]);

/// The first pause 5 s, the longest 300 s, 20 tries, as the settings have it; not stretched.
pub(crate) const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(5),
    max: Duration::from_secs(300),
    tries_max: 20,
    jitter_permille: 1000,
};

pub(crate) fn at(seconds_from_now: i64) -> Timestamp {
    Timestamp::from_micros((NOW + seconds_from_now) * 1_000_000)
}

pub(crate) fn answer(status: u16) -> Arc<Response> {
    Arc::new(Response { status, headers: Vec::new(), body: Bytes::new() })
}

pub(crate) fn print(byte: u8) -> Fingerprint {
    Fingerprint { version: 1, raw: [byte; 32], canonical: None }
}

pub(crate) fn policy(effects: Effects) -> Policy {
    Policy { effects, reconcile_first: Some(BACKOFF.first), ..Policy::default() }
}

pub(crate) fn seen(record: Record, now: Timestamp) -> Seen {
    Seen { record: Arc::new(record), revision: Revision(1), now }
}

/// What stands there once `draft` was written at the moment of the look.
pub(crate) fn written(draft: Box<Draft>, now: Timestamp) -> Seen {
    seen(draft.stamp(now), now)
}

/// A record that was reserved `began` seconds ago.
pub(crate) fn record(effects: Effects, began: i64, state: State) -> Record {
    Record {
        scope: Scope::stored([7; 32], None),
        key: Key::stored("order-42"),
        route: None,
        fingerprint: print(1),
        terms: policy(effects).terms(),
        attempt: 1,
        token: OWN,
        relies_on_memory: false,
        created_at: at(-began),
        began_at: at(-began),
        written_at: at(-began),
        progress: Progress::default(),
        evidence: None,
        accepted: None,
        history: History::default(),
        trace: None,
        state,
    }
}

pub(crate) fn running(effects: Effects) -> Record {
    record(effects, 10, State::Running { lapses_at: at(20) })
}

pub(crate) fn lapsed(effects: Effects) -> Record {
    record(effects, 30, State::Running { lapses_at: at(0) })
}

pub(crate) fn unknown(effects: Effects) -> Record {
    let state = State::Unknown {
        reason: Reason::Lapsed,
        since: at(-10),
        asking: Asking::default(),
        ask_at: Some(at(1)),
        dead_letter: false,
    };
    record(effects, 60, state)
}

pub(crate) fn retryable(effects: Effects) -> Record {
    record(effects, 60, State::Retryable { retry_after: None, expires_at: at(HOUR), stuck_since: None })
}

pub(crate) fn completed(effects: Effects, response: Option<Arc<Response>>) -> Record {
    record(effects, 60, State::Completed { response, by: Source::Attempt, expires_at: at(HOUR) })
}

/// Accepted, and no attempt has begun.
pub(crate) fn pending(effects: Effects) -> Record {
    let state = State::Pending { expires_at: at(HOUR) };
    Record { attempt: 0, ..record(effects, 60, state) }
}

/// The same record as accepted work that is run again for so many seconds.
pub(crate) fn accepted(record: Record, seconds: i64) -> Record {
    Record { accepted: Some(Accepted { until: at(seconds), pause_max: PAUSE_MAX }), ..record }
}

/// The same record after a webhook said so while its attempt ran.
pub(crate) fn heard(record: Record, verdict: Verdict) -> Record {
    let evidence =
        Evidence { verdict, by: Source::Webhook, at: at(-5), attempt: record.attempt, source: None };
    Record { evidence: Some(Box::new(evidence)), ..record }
}

/// The same record as the second attempt, after one with the token [`EARLIER`].
pub(crate) fn second(mut record: Record) -> Record {
    record.attempt = 2;
    record.history.tokens = vec![EARLIER];
    record
}

/// The same record as the second attempt, the first of which was lost and may have reached downstream.
pub(crate) fn in_doubt(record: Record) -> Record {
    Record { relies_on_memory: true, ..second(record) }
}

/// What a statement says, by its name in the tables.
pub(crate) fn said(word: &str) -> Verdict {
    match word {
        "happened" => Verdict::Happened(Some(answer(201))),
        "happened bare" => Verdict::Happened(None),
        "declined" => Verdict::Happened(Some(answer(402))),
        "did not" => Verdict::DidNotHappen { never_will: false },
        "never will" => Verdict::DidNotHappen { never_will: true },
        "unknown" => Verdict::StillUnknown,
        other => panic!("nobody says {other:?}"),
    }
}

/// A statement about the record's last attempt, on a route that has a probe.
pub(crate) fn ruling(by: Source, verdict: Verdict) -> Ruling {
    Ruling {
        verdict,
        about: About::Attempt(OWN),
        statement: Statement::by(by),
        force: Force::No,
        token: FRESH,
        probe: Some(BACKOFF),
    }
}
