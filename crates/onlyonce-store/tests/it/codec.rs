//! The stored shape: what was ever released stays readable, and nothing else is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Calling, Draft, Effects, Evidence, Progress, Reason, Record, Response, Source, State, Terms, Token,
    Verdict,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::conformance::random::Random;
use onlyonce_store::{ErrorKind, codec};
use proptest::prelude::*;

/// Each fixture was written once, by the release that brought its version. They are never written again: a change of
/// the shape is a new version with fixtures of its own beside these.
macro_rules! fixtures {
    ($($test:ident: $file:literal => $draft:expr;)*) => {
        $(
            /// P07
            #[test]
            fn $test() {
                let blob = unhex(include_str!(concat!("../fixtures/", $file)));
                assert_eq!(codec::decode(&blob).unwrap(), $draft);
                assert_eq!(codec::encode(&$draft), blob);
            }
        )*
    };
}

fixtures! {
    a_pending_record_of_version_1_is_read: "record-v1-pending.hex" => pending();
    a_running_record_of_version_1_is_read: "record-v1-running.hex" => running();
    a_completed_record_of_version_1_is_read: "record-v1-completed.hex" => completed();
    a_completed_record_without_body_of_version_1_is_read: "record-v1-completed-bare.hex" => completed_bare();
    a_retryable_record_of_version_1_is_read: "record-v1-retryable.hex" => retryable();
    an_unknown_record_of_version_1_is_read: "record-v1-unknown.hex" => unknown();
    a_dead_letter_of_version_1_is_read: "record-v1-dead-letter.hex" => dead_letter();
}

fn at(micros: i64) -> When {
    When::At(Timestamp::from_micros(1_762_000_000_000_000 + micros))
}

fn bare(state: State<When>) -> Draft {
    Record {
        scope: Scope::stored([0x5c; 32], None),
        key: Key::stored("8e03978e-40d5-43e8-bc93-6894a57f9324"),
        route: None,
        fingerprint: Fingerprint { version: 1, raw: [0xf0; 32], canonical: None },
        terms: Terms {
            effects: Effects::Opaque,
            lease: Duration::from_secs(30),
            deadline: Duration::from_secs(300),
            horizon: Duration::from_secs(30),
            retention: Duration::from_secs(86_400),
            downstream_retention: Duration::from_secs(82_800),
        },
        attempt: 0,
        token: Token([0x70; 16]),
        relies_on_memory: false,
        created_at: When::WRITE,
        began_at: When::WRITE,
        written_at: When::WRITE,
        progress: Progress::default(),
        evidence: None,
        state,
    }
}

fn full(state: State<When>) -> Draft {
    Record {
        scope: Scope::stored([0xa1; 32], Some("acme ⚙".into())),
        route: Some("POST /payments/*".into()),
        fingerprint: Fingerprint { version: 2, raw: [0xf1; 32], canonical: Some([0xf2; 32]) },
        terms: Terms {
            effects: Effects::Keyed,
            lease: Duration::from_micros(1_500_001),
            ..bare(state.clone()).terms
        },
        attempt: 300,
        relies_on_memory: true,
        created_at: at(1),
        began_at: at(2),
        progress: Progress {
            recovery_point: Some("ride_created".into()),
            calling: Some(Calling { phase: "charge".into(), effects: Effects::Queryable }),
            found: Some(response()),
        },
        evidence: heard(Verdict::Happened(Some(response())), Source::Webhook),
        ..bare(state)
    }
}

fn heard(verdict: Verdict, by: Source) -> Option<Box<Evidence>> {
    Some(Box::new(Evidence { verdict, by }))
}

fn response() -> Arc<Response> {
    let header = |name, value| (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
    Arc::new(Response {
        status: 201,
        headers: vec![
            header("content-type", b"text/plain"),
            header("x-odd", b"\xff\t "),
            header("x-odd", b""),
        ],
        body: Bytes::from_static(b"paid\x00\xff"),
    })
}

fn pending() -> Draft {
    bare(State::Pending { expires_at: When::AfterWrite(Duration::from_millis(86_400_500)) })
}

fn running() -> Draft {
    full(State::Running { lapses_at: When::AfterWrite(Duration::from_secs(30)) })
}

fn completed() -> Draft {
    full(State::Completed { response: Some(response()), by: Source::Attempt, expires_at: at(3) })
}

fn completed_bare() -> Draft {
    let state = State::Completed { response: None, by: Source::Sweeper, expires_at: When::WRITE };
    let evidence = heard(Verdict::Happened(None), Source::Probe);
    Draft { evidence, created_at: When::At(Timestamp::from_micros(-1)), ..bare(state) }
}

fn retryable() -> Draft {
    let state = State::Retryable { retry_after: Some(Duration::from_millis(1_250)), expires_at: at(4) };
    let terms = Terms { effects: Effects::Local, ..bare(state.clone()).terms };
    let evidence = heard(Verdict::DidNotHappen { never_will: true }, Source::Operator);
    Draft { evidence, terms, ..bare(state) }
}

fn unknown() -> Draft {
    let reason = Reason::Status(504);
    let state = State::Unknown { reason, since: at(5), asked: 3, ask_at: Some(at(6)), dead_letter: false };
    Draft { evidence: heard(Verdict::StillUnknown, Source::Webhook), ..full(state) }
}

fn dead_letter() -> Draft {
    let reason = Reason::DownstreamForgot;
    bare(State::Unknown { reason, since: at(7), asked: u32::MAX, ask_at: None, dead_letter: true })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

/// P07: every tag there is, told apart.
#[test]
fn every_reason_source_and_kind_of_effects_survives() {
    use Reason::{
        AnswerBroken, ConnectionLost, Deadline, DownstreamForgot, Lapsed, Panicked, Said, Status, Stopped,
    };
    let reasons = [
        Lapsed,
        Deadline,
        Panicked,
        ConnectionLost,
        AnswerBroken,
        Status(0),
        Status(u16::MAX),
        Said,
        Stopped,
    ];
    for reason in reasons.into_iter().chain([DownstreamForgot]) {
        survives(&bare(State::Unknown { reason, since: at(0), asked: 0, ask_at: None, dead_letter: false }));
    }
    for by in [Source::Attempt, Source::Probe, Source::Webhook, Source::Operator, Source::Sweeper] {
        survives(&bare(State::Completed { response: None, by, expires_at: at(0) }));
    }
    for effects in [Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque] {
        let mut draft = pending();
        draft.terms.effects = effects;
        survives(&draft);
    }
}

/// P07
#[test]
fn the_ends_of_every_range_survive() {
    for moment in [i64::MIN, -1, 0, 1, i64::MAX].map(Timestamp::from_micros) {
        survives(&bare(State::Pending { expires_at: When::At(moment) }));
    }
    for span in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        survives(&bare(State::Pending { expires_at: When::AfterWrite(span) }));
    }
    survives(&Draft { attempt: u32::MAX, ..pending() });
}

fn survives(draft: &Draft) {
    assert_eq!(codec::decode(&codec::encode(draft)).unwrap(), *draft);
}

/// P07
#[test]
fn a_record_of_a_newer_release_says_so() {
    let mut blob = codec::encode(&running());
    blob[0] = codec::VERSION + 1;
    let error = codec::decode(&blob).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(
        error.to_string(),
        "stored record has schema version 2, this release reads up to 1: \
         it was written by a newer release; upgrade this node"
    );
}

/// P07
#[test]
fn what_is_wrong_and_what_to_do_is_said() {
    let blob = codec::encode(&pending());
    let longer = [&blob[..], b"xx"].concat();
    let mut flag = blob.clone();
    flag[33] = 9;
    for (blob, says) in [
        (&[][..], "is cut short in its schema version"),
        (&[0], "has schema version 0, which no release has written"),
        (&blob[..20], "is cut short in its scope"),
        (&longer, "has 2 bytes after its end"),
        (&flag, "has the unknown tag 9 for its scope label"),
    ] {
        let error = codec::decode(blob).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let expected = format!("stored record {says}; restore the record from a backup, or forget its key");
        assert_eq!(error.to_string(), expected);
    }
}

/// P07: a length or a number of headers that the blob cannot hold is refused before room is made for it.
#[test]
fn an_absurd_length_is_refused_and_not_allocated() {
    let blob = codec::encode(&pending());
    let key_at = 1 + 32 + 1;
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let absurd = [&blob[..key_at], &huge, &blob[key_at + 1..]].concat();
    assert_eq!(codec::decode(&absurd).unwrap_err().kind(), ErrorKind::Corrupt);
    let overlong = [&blob[..key_at], &[blob[key_at] | 0x80, 0], &blob[key_at + 1..]].concat();
    let error = codec::decode(&overlong).unwrap_err();
    assert!(error.to_string().contains("a malformed integer in its key"), "{error}");
}

proptest! {
    /// P07
    #[test]
    fn any_draft_survives(seed: u64) {
        let draft = Random::new(seed).draft();
        prop_assert_eq!(codec::decode(&codec::encode(&draft)).unwrap(), *draft);
    }

    /// P07
    #[test]
    fn any_bytes_are_a_draft_or_corrupt(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for version in [None, Some(codec::VERSION)] {
            if let (Some(first), Some(version)) = (bytes.first_mut(), version) {
                *first = version;
            }
            check(&bytes)?;
        }
    }

    /// P07: one encoding for one draft. What a change leaves readable is another draft, exactly as it stands there.
    #[test]
    fn a_changed_byte_is_another_draft_or_corrupt(seed: u64, at: prop::sample::Index, byte: u8) {
        let mut blob = codec::encode(&Random::new(seed).draft());
        let at = at.index(blob.len());
        blob[at] = byte;
        check(&blob)?;
    }

    /// P07
    #[test]
    fn a_record_that_is_cut_short_is_corrupt(seed: u64, at: prop::sample::Index) {
        let blob = codec::encode(&Random::new(seed).draft());
        let error = codec::decode(&blob[..at.index(blob.len())]).unwrap_err();
        prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

fn check(blob: &[u8]) -> Result<(), TestCaseError> {
    match codec::decode(blob) {
        Ok(draft) => prop_assert_eq!(codec::encode(&draft), blob),
        Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
    }
    Ok(())
}
