//! What a fingerprint costs: `cargo bench -p onlyonce-core --bench fingerprint`.

use std::hint::black_box;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, header};
use onlyonce_core::fingerprint::{Secret, Settings, Subject, canonical_json};

/// 194 bytes, as in the load tests; its metadata is out of order.
const BODY: &[u8] = br#"{"amount":4999,"currency":"usd","customer":"cus_0a1b2c3d4e5f60718293","description":"Order 20077 / 3 items / express shipping","metadata":{"order_id":"20077","channel":"web","cart":"c0ffee-42"}}"#;
const RESPELLED: &[u8] = br#"{"amount":4999.0,"currency":"usd","customer":"cus_0a1b2c3d4e5f60718293","description":"Order 20077 / 3 items / express shipping","metadata":{"order_id":"20077","channel":"web","cart":"c0ffee-42"}}"#;
const ROUNDS: u32 = 200_000;
const REPEATS: usize = 7;

fn main() {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let subject = |body| Subject { method: "POST", path: "/payments", query: None, headers: &headers, body };

    let secret = Secret::new(b"a secret for measuring with").expect("it is not empty");
    let keyed = Settings { secrets: vec![secret], ..Settings::default() };
    for (name, settings) in [("plain", Settings::default()), ("keyed", keyed)] {
        let stored = settings.candidates(subject(BODY)).fingerprint();
        measure(&format!("{name}: fingerprint, both digests"), || {
            settings.candidates(black_box(subject(BODY))).fingerprint()
        });
        measure(&format!("{name}: matches, same bytes"), || {
            settings.candidates(black_box(subject(BODY))).matches(&stored)
        });
        measure(&format!("{name}: matches, other spelling"), || {
            settings.candidates(black_box(subject(RESPELLED))).matches(&stored)
        });
    }
    measure("canonical form alone", || canonical_json(black_box(BODY), &[]));
    hostile();
}

/// Bodies of about a megabyte that are as dear as we know how to make them.
fn hostile() {
    let pad = format!("[{}1]", "1,".repeat(500_000));
    let nested = (0..127).fold(pad, |inner, _| format!("{{\"b\":0,\"a\":{inner}}}"));
    let members = |name: &dyn Fn(u32) -> String, count: u32| {
        let members: Vec<String> = (0..count).rev().map(|at| format!("\"{}\":0", name(at))).collect();
        format!("{{{}}}", members.join(","))
    };
    let prefix = "\\u0001".repeat(150);
    for (name, body) in [
        ("backward names", members(&|at| format!("{at:06}"), 90_000)),
        ("long names alike and escaped", members(&|at| format!("{prefix}{at:06}"), 1_100)),
        ("unordered at every depth", nested),
        ("numbers that grow", format!("[{}1]", "1e20,".repeat(200_000))),
        ("one long number", format!("{}.5", "1".repeat(1_000_000))),
        ("one long string", format!("\"{}\"", "é\\n".repeat(250_000))),
    ] {
        let began = Instant::now();
        let written = canonical_json(black_box(body.as_bytes()), &[]).map(|written| written.len());
        let took = began.elapsed();
        println!("hostile: {name:30} {:8} bytes to {written:?} in {took:?}", body.len());
    }
}

/// Prints the best and the median of a few runs, in nanoseconds a round; the machine may have other things to do.
fn measure<T>(name: &str, round: impl Fn() -> T) {
    let run = || {
        let began = Instant::now();
        (0..ROUNDS).for_each(|_| drop(black_box(round())));
        began.elapsed().as_nanos() / u128::from(ROUNDS)
    };
    let mut nanoseconds: Vec<u128> = (0..REPEATS).map(|_| run()).collect();
    nanoseconds.sort_unstable();
    println!("{name:32} {:5} ns, median {:5} ns", nanoseconds[0], nanoseconds[REPEATS / 2]);
}
