//! Everything in a record survives being stored.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::{self, Entry, History, Said, What};
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Accepted, Asking, Calling, Draft, Effects, Evidence, Id, Progress, Reason, Response, Source, State,
    Token, Verdict,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::{Timestamp, When};

use super::random::Random;
use super::world::{Shared, completed, draft, everything, insert, list, look, mint_token, seed, unknown};

/// How many random records are stored.
const RANDOM_RECORDS: usize = 60;

/// P01, P07
pub async fn every_field_of_every_state_survives(store: Shared) {
    for (number, draft) in samples().into_iter().enumerate() {
        survives(&store, number, Box::new(draft)).await;
    }
}

/// P01
pub async fn header_values_that_are_not_text_survive(store: Shared) {
    let odd: Vec<u8> = (0x20..=0xff).filter(|byte| *byte != 0x7f).chain([b'\t']).collect();
    let headers = [&odd[..], b"", b"x", b"\xff\xfe"].map(|value| {
        (HeaderName::from_static("x-odd"), HeaderValue::from_bytes(value).expect("no control characters"))
    });
    let response = Response { status: 200, headers: headers.to_vec(), body: Bytes::new() };
    survives(&store, 0, done(response)).await;
}

/// U09: as many entries as are kept, each as long as it may be.
pub async fn a_long_history_survives(store: Shared) {
    let text: Arc<str> = "é".repeat(history::TEXT_CHARS_MAX).into();
    let entry = |number: usize| Entry {
        who: Some(text.clone()),
        source: Some(text.clone()),
        ..Entry::new(
            Timestamp::from_micros(1_700_000_000_000_000),
            u32::try_from(number).expect("small"),
            What::Probe,
            Source::Probe,
        )
        .with_detail(&text)
    };
    let tokens = (0..history::TOKENS_KEPT).map(|_| mint_token()).collect();
    let entries = (0..history::FIRST_KEPT + history::LAST_KEPT).map(entry).collect();
    let kept = History { entries, left_out: 1, tokens };
    for (number, state) in
        [unknown(None), completed(When::AfterWrite(Duration::from_secs(9)))].into_iter().enumerate()
    {
        let (_, mut draft) = draft("k", state);
        draft.history = kept.clone();
        survives(&store, number, draft).await;
    }
}

/// P01, L01
pub async fn bodies_of_any_size_survive(store: Shared) {
    let all: Vec<u8> = (0..=255).collect();
    for (number, size) in [0, 1, 127, 128, 255, 65_535, 65_536, 1 << 20].into_iter().enumerate() {
        let body: Vec<u8> = all.iter().copied().cycle().take(size).collect();
        let response = Response { status: 200, headers: Vec::new(), body: body.into() };
        survives(&store, number, done(response)).await;
    }
}

/// E07
pub async fn random_records_survive(store: Shared) {
    let mut random = Random::new(seed());
    for number in 0..RANDOM_RECORDS {
        survives(&store, number, random.draft()).await;
    }
}

/// The record is the same in the swap's answer, in a read and in a listing.
async fn survives(store: &Shared, number: usize, mut draft: Box<Draft>) {
    draft.key = Key::stored(&format!("{number} {}", draft.key.as_str()));
    let id = Id::of(&draft.scope, &draft.key);
    let seen = insert(store, (id, draft.clone())).await;
    let expected = draft.stamp(seen.record.written_at);
    assert_eq!(*seen.record, expected, "as the swap answered");
    assert_eq!(*look(store, id).await.record, expected, "as a look shows it");
    let listed = list(store, everything(100)).await;
    let listed = listed.into_iter().find(|(listed, _)| *listed == id).expect("it is listed");
    assert_eq!(*listed.1.record, expected, "as a listing shows it");
    assert_eq!(listed.1.revision, seen.revision);
}

fn done(response: Response) -> Box<Draft> {
    let expires_at = When::AfterWrite(Duration::from_secs(9));
    draft("k", State::Completed { response: Some(Arc::new(response)), by: Source::Webhook, expires_at }).1
}

/// Each state, and every field at least once with a value of its own.
fn samples() -> Vec<Draft> {
    let at = |micros: i64| When::At(Timestamp::from_micros(1_700_000_000_000_000 + micros));
    let response = Arc::new(Response {
        status: 402,
        headers: vec![
            (HeaderName::from_static("content-type"), HeaderValue::from_static("application/json")),
            (HeaderName::from_static("link"), HeaderValue::from_static("<a>")),
            (HeaderName::from_static("link"), HeaderValue::from_static("<b>")),
        ],
        body: Bytes::from_static(b"{\"no\":\x00}"),
    });
    let (_, mut full) = draft("k", State::Running { lapses_at: at(1) });
    full.scope = Scope::stored([0xfe; 32], Some("acme ⚙".into()));
    full.fingerprint = Fingerprint { version: 7, raw: [3; 32], canonical: Some([4; 32]) };
    full.terms.effects = Effects::Keyed;
    full.attempt = u32::MAX;
    full.token = Token([0xff; 16]);
    full.relies_on_memory = true;
    full.created_at = at(2);
    full.began_at = at(3);
    full.progress = Progress {
        recovery_point: Some("ride_created".into()),
        calling: Some(Calling { phase: "charge".into(), effects: Effects::Queryable }),
        found: Some(response.clone()),
    };
    let verdict = Verdict::Happened(Some(response.clone()));
    full.evidence = Some(Box::new(evidence(verdict)));
    full.accepted = Some(Accepted {
        until: Timestamp::from_micros(1_700_000_000_000_013),
        pause_max: Duration::from_secs(300),
    });
    full.terms.reconcile_first = Some(Duration::from_millis(1_001));
    full.history = history();
    let (_, mut bare) = draft("k", State::Pending { expires_at: When::AfterWrite(Duration::from_micros(7)) });
    bare.route = None;
    bare.attempt = 0;
    let states = [
        State::Pending { expires_at: at(4) },
        State::Running { lapses_at: at(5) },
        State::Completed { response: Some(response), by: Source::Operator, expires_at: at(6) },
        State::Completed { response: None, by: Source::Probe, expires_at: When::WRITE },
        State::Retryable {
            retry_after: Some(Duration::from_millis(1_500)),
            expires_at: at(7),
            stuck_since: None,
        },
        State::Retryable { retry_after: None, expires_at: at(8), stuck_since: None },
        State::Unknown {
            reason: Reason::Status(504),
            since: at(9),
            asking: Asking {
                answers: 3,
                failures: 2,
                anew_at: Some(Timestamp::from_micros(1_700_000_000_000_012)),
            },
            ask_at: Some(at(10)),
            dead_letter: false,
        },
        State::Unknown {
            reason: Reason::Panicked,
            since: at(11),
            asking: Asking { answers: u32::MAX, failures: 0, anew_at: None },
            ask_at: None,
            dead_letter: true,
        },
    ];
    let verdicts = [
        Verdict::Happened(None),
        Verdict::DidNotHappen { never_will: true },
        Verdict::DidNotHappen { never_will: false },
        Verdict::StillUnknown,
    ];
    // Neither evidence of a running attempt nor an acceptance is kept once the record is completed.
    let of_state = states.map(|state| match state {
        State::Completed { .. } => Draft { state, evidence: None, accepted: None, ..Draft::clone(&full) },
        State::Pending { .. } | State::Running { .. } | State::Retryable { .. } | State::Unknown { .. } => {
            Draft { state, ..Draft::clone(&full) }
        }
    });
    let of_verdict =
        verdicts.map(|verdict| Draft { evidence: Some(Box::new(evidence(verdict))), ..Draft::clone(&full) });
    [*bare].into_iter().chain(of_state).chain(of_verdict).collect()
}

fn evidence(verdict: Verdict) -> Evidence {
    let at = Timestamp::from_micros(1_700_000_000_000_013);
    Evidence { verdict, by: Source::Webhook, at, attempt: 7, source: Some("stripe".into()) }
}

/// Every kind of entry, by every source, with every statement.
fn history() -> History {
    let entry = |(number, what): (u32, What)| {
        let place = usize::try_from(number).expect("small");
        Entry {
            at: Timestamp::from_micros(i64::from(number) - 3),
            attempt: number,
            what,
            by: Source::ALL[place % Source::ALL.len()],
            said: Said::ALL.get(place).copied(),
            contradicts: number % 2 == 0,
            who: (number % 2 == 0).then(|| "ann \u{0} ⚙".into()),
            source: (number % 3 == 0).then(|| "stripe".into()),
            detail: (number % 3 == 1).then(|| "".into()),
        }
    };
    let entries = (0..).zip(What::ALL.iter().copied()).map(entry).collect();
    History { entries, left_out: u32::MAX, tokens: vec![Token([0; 16]), Token([0xff; 16])] }
}
