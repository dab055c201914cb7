//! Every released encoding stays readable, and nothing else decodes.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::conformance::random::Random;
use crate::seal::Keyring;
use onlyonce_core::record::Id;

/// Each fixture was written once, by the release that brought its version. They are never written again: a change of
/// the shape is a new version with fixtures of its own beside these.
macro_rules! fixtures {
    ($($test:ident: $file:literal => $rest:expr;)*) => {
        $(
            /// P07
            #[test]
            fn $test() {
                let blob = unhex(include_str!(concat!("../../tests/fixtures/", $file)));
                assert_eq!(read(&blob).unwrap(), $rest);
                assert_eq!(clear(&$rest), blob);
            }
        )*
    };
}

fixtures! {
    a_rest_of_version_1_is_read: "rest-v1.hex" => bare();
    a_full_rest_of_version_1_is_read: "rest-v1-full.hex" => full();
    a_rest_of_version_2_is_read: "rest-v2.hex" => traced();
}

fn read(blob: &[u8]) -> Result<Rest, Error> {
    decode(blob, &mut Opener::new(None, Id([1; 32])))
}

fn clear(rest: &Rest) -> Vec<u8> {
    encode(rest, &Sealed::default())
}

/// L05: an answer in a rest is encrypted for its record and its place; without its key the rest can be read apart from it.
#[test]
fn an_encrypted_answer_is_left_out_without_its_key_and_refused_where_it_does_not_belong() {
    let (rest, id) = (full(), Id([1; 32]));
    let keyring = Keyring::new([[7; 32]]).unwrap();
    let seal = |id, kind| Some(keyring.seal(&id, kind, &encode_response(&response())));
    let sealed = Sealed { found: seal(id, Kind::Found), evidence: seal(id, Kind::Evidence) };
    let blob = encode(&rest, &sealed);
    assert!(!blob.windows(4).any(|bytes| bytes == b"paid"));
    let mut opener = Opener::new(Some(&keyring), id);
    assert_eq!(decode(&blob, &mut opener).unwrap(), rest);
    assert_eq!(opener.missing(|_| true), None);
    let mut opener = Opener::new(None, id);
    let evidence = Some(Box::new(evidence(Verdict::Happened(None), Source::Webhook)));
    assert_eq!(decode(&blob, &mut opener).unwrap(), Rest { found: None, evidence, ..rest.clone() });
    assert_eq!(opener.missing(|kind| kind == Kind::Found), Some(keyring.first()));
    let swapped = Sealed { found: seal(id, Kind::Evidence), evidence: seal(id, Kind::Found) };
    let elsewhere = Sealed { found: seal(Id([2; 32]), Kind::Found), evidence: None };
    for sealed in [swapped, elsewhere] {
        let error = decode(&encode(&rest, &sealed), &mut Opener::new(Some(&keyring), id)).unwrap_err();
        assert!(error.to_string().contains("has a found response that was altered"), "{error}");
    }
}

fn bare() -> Rest {
    Rest {
        fingerprint: Fingerprint { version: 1, raw: [0xf0; 32], canonical: None },
        lease: Duration::from_secs(30),
        deadline: Duration::from_secs(300),
        horizon: Duration::from_secs(30),
        downstream_retention: Duration::from_secs(82_800),
        reconcile_first: None,
        relies_on_memory: false,
        calling: None,
        found: None,
        evidence: None,
        retry_after: None,
        asking: Asking::default(),
        accepted: None,
        history: History::default(),
        trace: None,
    }
}

fn traced() -> Rest {
    Rest { trace: Some(TraceId([0x7a; 16])), ..bare() }
}

fn full() -> Rest {
    Rest {
        fingerprint: Fingerprint { version: 7, raw: [3; 32], canonical: Some([4; 32]) },
        relies_on_memory: true,
        calling: Some(Calling { phase: "charge".into(), effects: Effects::Queryable }),
        found: Some(response()),
        reconcile_first: Some(Duration::from_millis(1_500)),
        evidence: Some(Box::new(evidence(Verdict::Happened(Some(response())), Source::Webhook))),
        retry_after: Some(Duration::from_millis(1_250)),
        asking: Asking { answers: 3, failures: 300, anew_at: Some(at(7)) },
        accepted: Some(Accepted { until: at(8), pause_max: Duration::from_secs(300) }),
        history: history(),
        ..bare()
    }
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(1_762_000_000_000_000 + micros)
}

fn evidence(verdict: Verdict, by: Source) -> Evidence {
    Evidence { verdict, by, at: at(1), attempt: 2, source: Some("stripe".into()) }
}

/// An entry of each kind, and of each statement.
fn history() -> History {
    let entry = |(number, what): (u32, What)| Entry {
        said: Said::ALL.get(usize::try_from(number).unwrap()).copied(),
        contradicts: number == 2,
        who: (number == 5).then(|| "ann".into()),
        source: (number == 4).then(|| "stripe".into()),
        detail: (number == 4).then(|| "charge.failed evt_1".into()),
        ..Entry::new(at(i64::from(number)), 1 + number / 6, what, Source::ALL[number as usize % 5])
    };
    let entries = (0..).zip(What::ALL.iter().copied()).map(entry).collect();
    History { entries, left_out: 300, tokens: vec![Token([1; 16]), Token([0xfe; 16])] }
}

fn response() -> Arc<Response> {
    let header = |name, value| (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
    Arc::new(Response {
        status: 201,
        headers: vec![header("content-type", b"text/plain"), header("x-odd", b"\xff\t ")],
        body: Bytes::from_static(b"paid\x00\xff"),
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

/// P07: every tag is distinct.
#[test]
fn every_source_verdict_and_kind_of_effects_survives() {
    let verdicts = [
        Verdict::Happened(None),
        Verdict::DidNotHappen { never_will: true },
        Verdict::DidNotHappen { never_will: false },
        Verdict::StillUnknown,
    ];
    for verdict in verdicts {
        for by in Source::ALL {
            survives(&Rest { evidence: Some(Box::new(evidence(verdict.clone(), by))), ..bare() });
        }
    }
    for effects in Effects::ALL {
        survives(&Rest { calling: Some(Calling { phase: "p".into(), effects }), ..bare() });
    }
}

/// P07: words are numbered by their place, and none is added but at the end.
#[test]
fn words_of_a_history_keep_their_numbers() {
    assert_eq!(
        What::ALL.iter().map(|what| what.as_str()).collect::<Vec<_>>().join(" "),
        "attempt lapsed unknown probe webhook verdict dead_letter completed retryable superseded forced"
    );
    assert_eq!(
        Said::ALL.iter().map(|said| said.as_str()).collect::<Vec<_>>().join(" "),
        "happened did-not-happen did-not-happen-final unknown ignored failed"
    );
}

/// P07
#[test]
fn the_ends_of_every_range_survive() {
    for span in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        survives(&Rest { lease: span, retry_after: Some(span), ..bare() });
    }
    for moment in [i64::MIN, -1, 0, i64::MAX].map(Timestamp::from_micros) {
        let asking = Asking { answers: u32::MAX, failures: u32::MAX, anew_at: Some(moment) };
        let entries = vec![Entry::new(moment, u32::MAX, What::Forced, Source::Operator)];
        let history = History { entries, left_out: u32::MAX, tokens: Vec::new() };
        survives(&Rest { asking, history, ..bare() });
    }
}

fn survives(rest: &Rest) {
    assert_eq!(read(&clear(rest)).unwrap(), *rest);
}

/// P07
#[test]
fn a_rest_of_a_newer_release_says_so() {
    let mut blob = clear(&full());
    blob[0] = VERSION_TRACED + 1;
    let error = read(&blob).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(
        error.to_string(),
        "column \"rest\" has version 3, this release reads up to 2: \
         it was written by a newer release; upgrade this node"
    );
}

/// P07
#[test]
fn what_is_wrong_and_what_to_do_is_said() {
    let blob = clear(&bare());
    let longer = [&blob[..], b"xx"].concat();
    let mut flag = blob.clone();
    flag[34] = 9;
    for (blob, says) in [
        (&[][..], "is cut short in its version"),
        (&[0], "has version 0, which no release has written"),
        (&blob[..20], "is cut short in its fingerprint"),
        (&longer, "has 2 bytes after its end"),
        (&flag, "has the unknown tag 9 for its fingerprint"),
    ] {
        let error = read(blob).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let expected = format!("column \"rest\" {says}; restore the record from a backup, or forget its key");
        assert_eq!(error.to_string(), expected);
    }
}

/// P07: a length larger than the blob is refused before anything is allocated.
#[test]
fn an_absurd_length_is_refused_and_not_allocated() {
    let calling = Some(Calling { phase: "p".into(), effects: Effects::Local });
    let blob = clear(&Rest { calling, ..bare() });
    let length_at = blob.iter().rposition(|byte| *byte == b'p').unwrap() - 1;
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let absurd = [&blob[..length_at], &huge, &blob[length_at + 1..]].concat();
    assert_eq!(read(&absurd).unwrap_err().kind(), ErrorKind::Corrupt);
    let overlong = [&blob[..length_at], &[blob[length_at] | 0x80, 0], &blob[length_at + 1..]].concat();
    let error = read(&overlong).unwrap_err();
    assert!(error.to_string().contains("a malformed integer in its calling phase"), "{error}");
}

proptest! {
    /// P07
    #[test]
    fn any_bytes_are_a_rest_or_corrupt(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for version in [None, Some(VERSION), Some(VERSION_TRACED)] {
            if let (Some(first), Some(version)) = (bytes.first_mut(), version) {
                *first = version;
            }
            check(&bytes)?;
        }
    }

    /// P07: a rest has one encoding. If changed bytes still decode, they are the encoding of another rest.
    #[test]
    fn a_changed_byte_is_another_rest_or_corrupt(seed: u64, at: prop::sample::Index, byte: u8) {
        let mut blob = crate::sql::Columns::of(&Random::new(seed).draft(), None).rest;
        let at = at.index(blob.len());
        blob[at] = byte;
        check(&blob)?;
    }

    /// P07
    #[test]
    fn a_rest_that_is_cut_short_is_corrupt(seed: u64, at: prop::sample::Index) {
        let blob = crate::sql::Columns::of(&Random::new(seed).draft(), None).rest;
        let error = read(&blob[..at.index(blob.len())]).unwrap_err();
        prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

fn check(blob: &[u8]) -> Result<(), TestCaseError> {
    let mut opener = Opener::new(None, Id([1; 32]));
    match decode(blob, &mut opener) {
        // An answer that is encrypted is not there to be encoded again.
        Ok(_) if opener.missing(|_| true).is_some() => {}
        Ok(rest) => prop_assert_eq!(clear(&rest), blob),
        Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
    }
    Ok(())
}
