//! Who is believed, by vectors and by every way to get it wrong.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::Secret;
use crate::webhook::tests::source;

const BODY: &[u8] = br#"{"verdict":"happened","token":"t","id":"evt_1"}"#;
const SECRET: &str = "our-own-secret";
const AT: i64 = 1_763_350_000;
const RIGHT: &str = "33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721";

fn secret(text: &[u8]) -> Secret {
    Secret { source: "env:S".to_owned(), bytes: text.to_vec() }
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    let mut headers = HeaderMap::new();
    for (name, value) in lines.iter().map(line) {
        headers.append(name, value);
    }
    headers
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

/// What becomes of `onlyonce`'s header with this value, now.
fn shown(value: &str) -> Result<Timestamp, Distrust> {
    let source = Webhook { secrets: vec![secret(SECRET.as_bytes())], ..source("") };
    verify(&source, &headers(&[("Onlyonce-Signature", value)]), BODY, at(AT)).map(|signed| signed.at)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

/// U05: the contract's vectors, one a scheme.
#[test]
fn the_vectors_of_every_scheme_are_believed() {
    assert_eq!(shown(&format!("t={AT},v1={RIGHT}")), Ok(at(AT)));

    let stripe = Webhook { secrets: vec![secret(b"whsec_test_secret")], ..source("preset = 'stripe'") };
    let signature = "t=1763350000,v1=309207624ba4d48616f1c6f67b700e8346d665bb125fc2d3d4ab64e633f53efa";
    let body = br#"{"id":"evt_1","type":"payment_intent.succeeded"}"#;
    let lines = headers(&[("Stripe-Signature", signature)]);
    let signed = verify(&stripe, &lines, body, at(AT));
    assert_eq!(signed, Ok(Signed { at: at(AT), id: None }));

    let file = "[webhooks.x]\nscheme = 'standard'\nsecrets = ['env:S']\n";
    let standard = crate::webhook::tests::read(file, &[("S", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]);
    let lines = [
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ];
    let lines = headers(&lines);
    let signed = verify(&standard, &lines, br#"{"test": 2432232314}"#, at(1_614_265_330));
    assert_eq!(signed, Ok(Signed { at: at(1_614_265_330), id: Some("msg_p5jXN8AQM9LWM0D4loKWxJek") }));
}

/// U05
#[test]
fn what_is_no_signature_is_not_believed() {
    for wrong in [
        "",
        ",",
        "t=,v1=",
        "t=1763350000",
        "v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=1763350000,v1=",
        "t=1763350000,v1=33",
        "t=1763350000,v1=3303zafb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=1763350000,v1=23030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=1763350000,v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db0972",
        "t=1763350000,v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db0972100",
        "t=1763350000,v0=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=1763350000,v1a=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=1763350000,V1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=1763350001,v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=1763350000,t=1763350000,v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=+1763350000,v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=1763350000.0,v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=01763350000,v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
        "t=99999999999999999999,v1=33030afb288a6da08f5781b0ce3e1aa22edf6eeefdf335cf6302c52c5db09721",
    ] {
        assert_eq!(shown(wrong), Err(Distrust::Invalid), "{wrong}");
    }
    let source = Webhook { secrets: vec![secret(SECRET.as_bytes())], ..source("") };
    let line = format!("t={AT},v1={RIGHT}");
    let twice = headers(&[("onlyonce-signature", &line), ("onlyonce-signature", &line)]);
    assert_eq!(verify(&source, &twice, BODY, at(AT)), Err(Distrust::Invalid), "two lines are none");
    assert_eq!(verify(&source, &HeaderMap::new(), BODY, at(AT)), Err(Distrust::Invalid));
    let once = headers(&[("onlyonce-signature", &line)]);
    for body in [&BODY[..BODY.len() - 1], &[BODY, b"\n"].concat(), b""] {
        assert_eq!(verify(&source, &once, body, at(AT)), Err(Distrust::Invalid), "another body");
    }
    let other = Webhook { secrets: vec![secret(b"our-own-secret ")], ..source };
    assert_eq!(verify(&other, &once, BODY, at(AT)), Err(Distrust::Invalid), "another secret");
}

/// U05: while a secret is changed, the provider signs with both, or we know both.
#[test]
fn any_secret_and_any_signature_may_match() {
    let other = "00".repeat(32);
    assert_eq!(shown(&format!("t={AT},v1={other},v1={RIGHT}")), Ok(at(AT)));
    assert_eq!(shown(&format!("v1={RIGHT},v1={other},t={AT},v0=x,odd,=")), Ok(at(AT)));
    assert_eq!(shown(&format!("t={AT}, v1={}", RIGHT.to_uppercase())), Ok(at(AT)));
    let old_and_new = vec![secret(b"new"), secret(SECRET.as_bytes())];
    let source = Webhook { secrets: old_and_new, ..source("") };
    let line = headers(&[("onlyonce-signature", &format!("t={AT},v1={RIGHT}"))]);
    assert!(verify(&source, &line, BODY, at(AT)).is_ok());
}

/// U05
#[test]
fn a_time_out_of_tolerance_is_refused_both_ways_and_a_wrong_signature_first() {
    let source = Webhook {
        secrets: vec![secret(SECRET.as_bytes())],
        tolerance: Duration::from_secs(300),
        ..source("")
    };
    let line = headers(&[("onlyonce-signature", &format!("t={AT},v1={RIGHT}"))]);
    let now =
        |offset: i64| verify(&source, &line, BODY, Timestamp::from_micros(AT * 1_000_000 + offset)).map(drop);
    for good in [0, 300_000_000, -300_000_000, 1] {
        assert_eq!(now(good), Ok(()), "{good}");
    }
    for far in [300_000_001, -300_000_001, 86_400_000_000, i64::MIN / 2, i64::MAX / 2 - AT * 1_000_000] {
        assert_eq!(now(far), Err(Distrust::TooOld), "{far}");
    }
    let wrong = headers(&[("onlyonce-signature", &format!("t=1,v1={RIGHT}"))]);
    assert_eq!(verify(&source, &wrong, BODY, at(AT)), Err(Distrust::Invalid));
}

/// U05
#[test]
fn standard_webhooks_need_an_id_and_a_time_once_each() {
    let source = Webhook { secrets: vec![secret(b"raw")], ..source("scheme = 'standard'") };
    let signature = |id: &str, time: &str| {
        format!("v1,{}", STANDARD.encode(mac(b"raw", &[id.as_bytes(), b".", time.as_bytes(), b".", BODY])))
    };
    let time = AT.to_string();
    let right = signature("msg_1", &time);
    let judged = |lines: &[(&str, &str)]| {
        verify(&source, &headers(lines), BODY, at(AT)).map(|signed| signed.id.map(str::to_owned))
    };
    let all = [("webhook-id", "msg_1"), ("webhook-timestamp", &time), ("webhook-signature", &right)];
    assert_eq!(judged(&all), Ok(Some("msg_1".to_owned())));
    let rotated = format!("v1,AAAA v1a,{} {right}", &right[3..]);
    assert!(judged(&[all[0], all[1], ("webhook-signature", &rotated)]).is_ok());
    for without in 0..3 {
        let left: Vec<_> = (0..3).filter(|at| *at != without).map(|at| all[at]).collect();
        assert_eq!(judged(&left), Err(Distrust::Invalid), "{left:?}");
        let twice: Vec<_> = all.iter().copied().chain([all[without]]).collect();
        assert_eq!(judged(&twice), Err(Distrust::Invalid), "{twice:?}");
    }
    for wrong in [
        [("webhook-id", "msg_2"), all[1], all[2]],
        [("webhook-id", ""), all[1], ("webhook-signature", &signature("", &time))],
        [all[0], ("webhook-timestamp", "x"), ("webhook-signature", &signature("msg_1", "x"))],
        [all[0], all[1], ("webhook-signature", &right[3..])],
        [all[0], all[1], ("webhook-signature", &right.replace("v1,", "v2,"))],
    ] {
        assert_eq!(judged(&wrong), Err(Distrust::Invalid), "{wrong:?}");
    }
    let svix = Webhook { header: HeaderName::from_static("svix-signature"), ..source.clone() };
    let lines = headers(&[("svix-id", "msg_1"), ("svix-timestamp", &time), ("svix-signature", &right)]);
    assert!(verify(&svix, &lines, BODY, at(AT)).is_ok());
}

proptest! {
    /// Whatever is signed is believed, and with any byte of it changed it is not.
    #[test]
    fn what_was_signed_is_believed_and_nothing_near_it(
        key in prop::collection::vec(any::<u8>(), 1..80), body in prop::collection::vec(any::<u8>(), 0..200),
        flipped in any::<prop::sample::Index>(), bit in 0_u8..8, seconds in 0_i64..4_000_000_000,
    ) {
        let time = seconds.to_string();
        let signature = mac(&key, &[time.as_bytes(), b".", &body]);
        let source = Webhook { secrets: vec![secret(&key)], ..source("") };
        let line = |signature: &[u8]| headers(&[("onlyonce-signature", &format!("t={time},v1={}", hex(signature)))]);
        prop_assert!(verify(&source, &line(&signature), &body, at(seconds)).is_ok());
        let mut other = signature.clone();
        other[flipped.index(32)] ^= 1 << bit;
        prop_assert_eq!(verify(&source, &line(&other), &body, at(seconds)).map(drop), Err(Distrust::Invalid));
        let changed = [&body[..], &[0]].concat();
        prop_assert_eq!(verify(&source, &line(&signature), &changed, at(seconds)).map(drop), Err(Distrust::Invalid));
    }

    /// No header makes it panic, and none that was not signed is believed.
    #[test]
    fn no_header_is_believed_by_chance(value in "[ -~]{0,120}", parts in "(t=[0-9]{0,20}|v1=[0-9a-f]{0,70}|v1,[A-Za-z0-9+/=]{0,50}|[,= ]){0,8}") {
        for value in [value, parts] {
            prop_assert_eq!(shown(&value), Err(Distrust::Invalid));
            let source = source("scheme = 'standard'");
            let lines = [("webhook-id", "m"), ("webhook-timestamp", "1763350000"), ("webhook-signature", &*value)];
            prop_assert_eq!(verify(&source, &headers(&lines), BODY, at(AT)).map(drop), Err(Distrust::Invalid));
        }
    }
}
