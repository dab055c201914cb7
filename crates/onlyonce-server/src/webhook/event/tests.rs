//! What bodies say, and what they cannot be used for.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::webhook::tests::source;

const AT: Timestamp = Timestamp::from_micros(1_763_350_000_000_000);
const HANDLE: &str =
    "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5.0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f";
const SCOPE: &str = "00000000000000000000000000000000000000000000000000000000000000ff";

fn read(settings: &str, body: &Value) -> Read<Event> {
    super::read(&source(settings), Signed { at: AT, id: None }, body.to_string().as_bytes())
}

fn verdict(settings: &str, body: &Value) -> Verdict {
    match read(settings, body).unwrap_or_else(|unusable| panic!("{body}: {unusable:?}")).says {
        Says::Verdict(verdict) => verdict,
        Says::Nothing(why) => panic!("{body}: {why}"),
    }
}

fn id() -> Id {
    let mut digest = [0; 32];
    digest[31] = 0xff;
    Id::of(&Scope::stored(digest, None), &Key::stored("k-1"))
}

/// U05
#[test]
fn our_own_words_say_what_they_mean() {
    let body = |word: &str| json!({ "token": HANDLE, "verdict": word, "id": "evt_1" });
    assert_eq!(verdict("", &body("happened")), Verdict::Happened(None));
    assert_eq!(verdict("", &body("did-not-happen")), Verdict::DidNotHappen { never_will: false });
    assert_eq!(verdict("", &body("did-not-happen-final")), Verdict::DidNotHappen { never_will: true });
    assert_eq!(verdict("", &body("unknown")), Verdict::StillUnknown);
    let last = json!({ "token": HANDLE, "verdict": "did-not-happen", "final": true });
    assert_eq!(verdict("", &last), Verdict::DidNotHappen { never_will: true });
    for (word, why) in [("ignore", "mapped to ignore"), ("Happened", "not mapped"), ("paid", "not mapped")] {
        let Says::Nothing(told) = read("", &body(word)).unwrap().says else { panic!("{word}") };
        assert!(told.contains(why), "{told}");
    }
    let event = read("", &body("happened")).unwrap();
    assert_eq!((event.about, event.at), (Subject::Attempt(HANDLE.parse().unwrap()), AT));
    assert_eq!((event.id.as_deref(), &*event.detail), (Some("evt_1"), "happened evt_1"));
    let answer =
        json!({ "token": HANDLE, "verdict": "happened", "response": { "status": 201, "body": "ok" } });
    let Verdict::Happened(Some(answer)) = verdict("", &answer) else { panic!("an answer") };
    assert_eq!((answer.status, &answer.body[..]), (201, &b"ok"[..]));
}

/// U05
#[test]
fn a_providers_words_are_mapped_and_its_members_found() {
    let settings = "verdict_pointer = '/event/what'\nkey_pointer = '/order/keys/1'\nscope_pointer = '/who'\n\
                    time_pointer = '/when'\nid_pointer = '/event/nr'\n\
                    [webhooks.bank.verdicts]\nPAID = 'happened'\n2 = 'unknown'\ntrue = 'did-not-happen-final'";
    let body = |word: Value, when: Value| json!({ "event": { "what": word, "nr": 7 }, "order": { "keys": ["x", "k-1"] }, "who": SCOPE, "when": when });
    let event = read(settings, &body(json!("PAID"), json!(1_763_000_000))).unwrap();
    assert_eq!(event.says, Says::Verdict(Verdict::Happened(None)));
    assert_eq!((event.about, event.beside), (Subject::Work(id()), Beside::Nothing));
    assert_eq!((event.at.as_micros(), event.id.as_deref()), (1_763_000_000_000_000, Some("7")));
    assert_eq!(verdict(settings, &body(json!(2), json!("1763000000"))), Verdict::StillUnknown);
    let late = read(settings, &body(json!(true), json!("2025-11-17T03:26:40.5+00:00"))).unwrap();
    assert_eq!(late.says, Says::Verdict(Verdict::DidNotHappen { never_will: true }));
    assert_eq!(late.at.as_micros(), 1_763_350_000_500_000);
    assert!(matches!(read(settings, &body(json!("happened"), json!(1))).unwrap().says, Says::Nothing(_)));
}

/// U05, U07
#[test]
fn declined_is_an_answer_and_names_the_providers_code() {
    let body = json!({ "token": HANDLE, "verdict": "declined" });
    let Verdict::Happened(Some(answer)) = verdict("declined_status = 422", &body) else {
        panic!("an answer")
    };
    assert_eq!(answer.status, 422);
    assert_eq!(answer.headers, [(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))]);
    let told: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(told["type"], "https://onlyonce.dev/problems/downstream-declined");
    assert_eq!(
        (&told["code"], &told["status"], &told["retryable"]),
        (&json!("downstream_declined"), &json!(422), &json!(false))
    );
    assert!(told.get("decline_code").is_none());
    let stripe = |kind: &str, object: Value| {
        let mut object = object;
        object["metadata"] = json!({ "onlyonce_token": HANDLE });
        let event = json!({ "id": "evt_1", "type": kind, "created": 1, "data": { "object": object } });
        let Verdict::Happened(Some(answer)) = verdict("preset = 'stripe'", &event) else {
            panic!("an answer")
        };
        assert_eq!(answer.status, 402);
        serde_json::from_slice::<Value>(&answer.body).unwrap()["decline_code"].clone()
    };
    let card = json!({ "last_payment_error": { "decline_code": "insufficient_funds" }, "failure_code": "x" });
    assert_eq!(stripe("payment_intent.payment_failed", card), "insufficient_funds");
    assert_eq!(stripe("charge.failed", json!({ "failure_code": "card_declined" })), "card_declined");
    assert_eq!(stripe("charge.failed", json!({ "failure_code": "<script>" })), Value::Null, "not a code");
    assert_eq!(stripe("payout.canceled", json!({ "failure_code": null })), Value::Null);
}

/// U05: every event of the contract's table, and none besides.
#[test]
fn the_events_of_stripe_mean_what_the_table_says() {
    let happened = "payment_intent.succeeded payment_intent.processing payment_intent.amount_capturable_updated charge.succeeded charge.captured setup_intent.succeeded refund.created transfer.created payout.created payout.paid invoice.paid checkout.session.completed";
    let declined = "payment_intent.payment_failed payment_intent.canceled charge.failed charge.expired setup_intent.setup_failed setup_intent.canceled refund.failed payout.failed payout.canceled transfer.reversed invoice.payment_failed invoice.voided";
    let ignored = "payment_intent.created payment_intent.requires_action charge.pending charge.dispute.created charge.refunded review.opened setup_intent.created account.updated";
    let says = |kind: &str| {
        let event = json!({ "id": "evt_1", "type": kind, "created": 1, "data": { "object": { "metadata": { "onlyonce_token": HANDLE } } } });
        read("preset = 'stripe'", &event).unwrap().says
    };
    for kind in happened.split(' ') {
        assert_eq!(says(kind), Says::Verdict(Verdict::Happened(None)), "{kind}");
    }
    for kind in declined.split(' ') {
        assert!(matches!(says(kind), Says::Verdict(Verdict::Happened(Some(_)))), "{kind}");
    }
    for kind in ignored.split(' ') {
        assert!(matches!(says(kind), Says::Nothing(_)), "{kind}");
    }
    let mapped: usize = crate::webhook::preset::STRIPE.verdicts.iter().map(|(_, events)| events.len()).sum();
    assert_eq!(mapped, happened.split(' ').count() + declined.split(' ').count());
}

/// U05
#[test]
fn what_cannot_be_used_is_malformed() {
    let malformed = |settings: &str, body: &Value, expected: &str| match read(settings, body) {
        Err(Unusable::Malformed(told)) => assert!(told.contains(expected), "{body}: {told}"),
        other => panic!("{body}: {other:?}"),
    };
    for (body, expected) in [
        (json!([]), "not a JSON object"),
        (json!({}), "neither a token nor"),
        (json!({ "verdict": "happened", "token": null }), "neither a token nor"),
        (json!({ "verdict": "happened", "token": 7 }), "\"/token\" is not a string"),
        (json!({ "verdict": "happened", "token": "" }), "not a handle"),
        (json!({ "verdict": "happened", "token": "abc" }), "not a handle"),
        (json!({ "verdict": "happened", "token": format!("{HANDLE}0") }), "not a handle"),
        (json!({ "verdict": "happened", "scope": "abc", "key": "k-1" }), "not 64 hex digits"),
        (json!({ "verdict": "happened", "scope": "+f".repeat(32), "key": "k-1" }), "not 64 hex digits"),
        (json!({ "verdict": "happened", "scope": "é".repeat(32), "key": "k-1" }), "not 64 hex digits"),
        (json!({ "token": HANDLE }), "no verdict"),
        (json!({ "token": HANDLE, "verdict": {} }), "\"/verdict\" is not a string"),
        (json!({ "token": HANDLE, "verdict": "happened", "id": [] }), "\"/id\" is not a string"),
        (json!({ "token": HANDLE, "verdict": "did-not-happen", "final": "yes" }), "final_pointer"),
        (
            json!({ "token": HANDLE, "verdict": "happened", "response": { "status": 1 } }),
            "response.status is not a final",
        ),
    ] {
        malformed("", &body, expected);
    }
    let timed = "time_pointer = '/when'";
    let body = |when: Value| json!({ "verdict": "happened", "scope": SCOPE, "key": "k-1", "when": when });
    for when in [json!("soon"), json!(1.5), json!([]), json!(i64::MAX)] {
        malformed(timed, &body(when), "value at time_pointer");
    }
    malformed(timed, &body(Value::Null), "no time at time_pointer");
    let by_token = json!({ "verdict": "happened", "token": HANDLE });
    assert_eq!(read(timed, &by_token).unwrap().at, AT, "a token needs no time");
    for text in [&b""[..], b"{", b"{} {}", b"\xff", b"null", "[".repeat(100_000).as_bytes()] {
        let read = super::read(&source(""), Signed { at: AT, id: None }, text);
        assert!(matches!(read, Err(Unusable::Malformed(_))), "{:?}", &text[..text.len().min(9)]);
    }
}

/// U05
#[test]
fn what_names_no_record_or_two_is_ambiguous() {
    let other = json!({ "verdict": "happened", "token": HANDLE, "scope": SCOPE, "key": "k-1" });
    let same = format!("{}.{}", id(), "0f".repeat(16));
    for body in [
        json!({ "verdict": "happened", "key": "k-1" }),
        json!({ "verdict": "ignore", "key": "k-1" }),
        json!({ "verdict": "happened", "scope": SCOPE }),
        other,
    ] {
        assert!(matches!(read("", &body), Err(Unusable::Ambiguous(_))), "{body}");
    }
    let agreeing = json!({ "verdict": "happened", "token": same, "scope": SCOPE, "key": "k-1" });
    assert!(read("", &agreeing).is_ok());
    let partly = json!({ "verdict": "happened", "token": HANDLE, "key": "k-1" });
    assert_eq!(read("", &partly).unwrap().beside, Beside::Key(Key::stored("k-1")));
    let foreign = json!({ "id": "evt_1", "type": "charge.succeeded", "created": 1, "data": { "object": { "metadata": {} } } });
    assert_eq!(read("preset = 'stripe'", &foreign), Err(Unusable::Foreign));
    let half = json!({ "id": "evt_1", "type": "charge.succeeded", "created": 1, "data": { "object": { "metadata": { "onlyonce_key": "k" } } } });
    assert!(matches!(read("preset = 'stripe'", &half), Err(Unusable::Ambiguous(_))));
}

/// Members that pointers lead to, with anything in them.
fn odd_value() -> impl Strategy<Value = Value> {
    let plain = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        Just(json!(HANDLE)),
        Just(json!(SCOPE)),
        Just(json!("happened")),
        Just(json!({ "status": 201, "body_base64": "eA==" })),
    ];
    plain.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z/~]{0,8}", inner, 0..4).prop_map(|members| json!(members)),
        ]
    })
}

proptest! {
    /// Whatever a body has, it is an event or it cannot be used.
    #[test]
    fn no_body_makes_reading_panic(
        members in prop::collection::hash_map("token|scope|key|verdict|final|response|id|data|type|created", odd_value(), 0..8),
        bytes in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        for settings in ["", "preset = 'stripe'", "time_pointer = '/id'\nfinal_pointer = '/response/x'"] {
            let _ = read(settings, &json!(members));
        }
        let _ = super::read(&source(""), Signed { at: AT, id: Some("m") }, &bytes);
    }
}
