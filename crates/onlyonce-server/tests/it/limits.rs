//! Limits and the age of requests, on every engine, on one node and on three.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::{Duration, Instant, SystemTime};

use onlyonce_testkit::http::{self, Answer, Request};
use serde_json::Value;

use crate::engines::{Engine, on_every_engine};
use crate::gateways::{Gateways, json_of, post, text};
use crate::provider::SOON;

on_every_engine! {
    functions {
        a_body_above_the_limit_leaves_nothing,
        new_keys_above_the_rate_run_nothing_and_leave_nothing,
        look_ups_above_the_rate_are_refused_before_the_store_is_asked,
        what_a_scope_keeps_is_bounded_and_what_expires_makes_room,
        what_a_scope_has_under_way_is_bounded_on_each_node,
        an_old_request_does_not_run_and_what_is_on_record_is_answered,
        in_observe_limits_are_counted_and_refuse_nothing,
    }
}

/// One token for each bucket, which comes back after an hour: no test is so slow that it meets a second one.
const ONE_EACH: &str = "[limits]\nkeys_per_second = 1\nlookups_per_second = 1\nnodes = 3600\n";

fn send(world: &Gateways, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = Request { method, path, headers, body: if method == "POST" { "{}" } else { "" } };
    http::send(&world.node().address().to_string(), request).expect("an answer")
}

fn post_as(world: &Gateways, who: &str, key: &str) -> Answer {
    send(world, "POST", "/ok", &[("Authorization", who), ("Idempotency-Key", key)])
}

/// 429 as the contract has it.
fn assert_limited(answer: &Answer, limit: &str) {
    assert_eq!(answer.status, 429, "{}", text(answer));
    let told = json_of(answer);
    assert_eq!(told["code"], "idempotency_limit_reached");
    assert_eq!(told["limit"], limit);
    assert_eq!(told["retryable"], true);
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!(wait >= 1);
}

fn limited(world: &Gateways, limit: &str) -> u64 {
    world.sum(&format!("onlyonce_limited_total{{limit=\"{limit}\"}}"))
}

fn records(world: &Gateways) -> usize {
    let (_, page) = world.told("GET", "/v1/keys?limit=500", &Value::Null);
    page["items"].as_array().unwrap().len()
}

/// L01
fn a_body_above_the_limit_leaves_nothing(engine: Engine) {
    let world = Gateways::new(engine, "[policy]\nrequest_bytes_max = \"1KiB\"\n", &[]);
    let body = "x".repeat(1025);
    let send = |headers: &[(&str, &str)], body: &str| {
        let request = Request { method: "POST", path: "/ok", headers, body };
        http::send(&world.node().address().to_string(), request).expect("an answer")
    };
    let keyed = [("Authorization", "Bearer ann"), ("Idempotency-Key", "k")];
    for _ in 0..engine.nodes() {
        let refused = send(&keyed, &body);
        assert_eq!((refused.status, &json_of(&refused)["code"]), (413, &"idempotency_body_too_large".into()));
    }
    assert_eq!((world.provider.runs("k"), records(&world)), (0, 0));
    assert_eq!(send(&[], &body).status, 201, "without a key there is no limit");
    assert_eq!(send(&keyed, &body[1..]).status, 201);
    assert_eq!((world.provider.runs("k"), records(&world)), (1, 1));
}

/// L02
fn new_keys_above_the_rate_run_nothing_and_leave_nothing(engine: Engine) {
    let world = Gateways::new(engine, ONE_EACH, &[]);
    assert_eq!(limited(&world, "keys_per_second"), 0, "it is there before it counts");
    // Each node has its part: one token.
    for node in 0..engine.nodes() {
        assert_eq!(world.post("/ok", &format!("first-{node}")).status, 201);
    }
    for attempt in 0..engine.nodes() {
        assert_limited(&world.post("/ok", "second"), "keys_per_second");
        assert_eq!(limited(&world, "keys_per_second"), attempt as u64 + 1);
    }
    assert_eq!(world.provider.runs("second"), 0);
    assert_eq!(records(&world), engine.nodes());
    assert_eq!(world.sum("onlyonce_requests_total{route=\"*\",decision=\"limited\"}"), engine.nodes() as u64);
    assert_eq!(post_as(&world, "Bearer bob", "second").status, 201, "another scope has tokens of its own");
    let replay = post(world.nodes[0].address(), "/ok", "first-0");
    assert_eq!((replay.status, replay.header("idempotent-replayed")), (201, Some("true")));
}

/// L03
fn look_ups_above_the_rate_are_refused_before_the_store_is_asked(engine: Engine) {
    let world = Gateways::new(engine, "[limits]\nlookups_per_second = 1\nnodes = 3600\n", &[]);
    assert_eq!(world.post("/ok", "k").status, 201);
    let node = world.nodes[0].address();
    let ask = |who: &str, key: &str| {
        let headers = [("Authorization", who)];
        let path = format!("/_onlyonce/keys/{key}");
        http::send(&node.to_string(), Request { method: "GET", path: &path, headers: &headers, body: "" })
            .unwrap()
    };
    assert_eq!(ask("Bearer ann", "k").status, 200);
    assert_limited(&ask("Bearer ann", "k"), "lookups_per_second");
    assert_limited(&ask("Bearer ann", "none"), "lookups_per_second");
    assert_limited(&post(node, "/ok", "k"), "lookups_per_second");
    assert_eq!(post(node, "/ok", "new").status, 201, "a new key is no look-up");
    assert_eq!(ask("Bearer bob", "k").status, 404);
    assert_limited(&ask("Bearer bob", "k"), "lookups_per_second");
    assert_eq!(limited(&world, "lookups_per_second"), 4);
    assert_eq!(world.provider.runs("k"), 1);
}

/// L02: one node never exceeds it, several by what the others reserve in a second.
fn what_a_scope_keeps_is_bounded_and_what_expires_makes_room(engine: Engine) {
    const MOST: usize = 5;
    let settings = format!("[policy]\nretention = \"4s\"\n[limits]\nkeys_alive = {MOST}\n");
    let world = Gateways::new(engine, &settings, &[]);
    let (mut ran, mut refused) = (0, Vec::new());
    for number in 0..10 * MOST {
        let answer = world.post("/ok", &format!("k-{number}"));
        match answer.status {
            201 => ran += 1,
            _ => refused.push((format!("k-{number}"), answer)),
        }
    }
    assert!(ran >= MOST && ran <= MOST * engine.nodes(), "{ran} ran");
    for (key, answer) in &refused {
        assert_limited(answer, "keys_alive");
        assert_eq!(world.provider.runs(key), 0);
    }
    assert_eq!(post_as(&world, "Bearer bob", "k-0").status, 201, "another scope has room of its own");
    let (again, _) = refused.last().unwrap();
    let (since, mut waits) = (Instant::now(), Vec::new());
    loop {
        let answer = world.post("/ok", again);
        if answer.status == 201 {
            break;
        }
        assert_limited(&answer, "keys_alive");
        waits.push(answer.header("retry-after").unwrap().parse::<u64>().unwrap());
        assert!(since.elapsed() < SOON, "what expired made no room");
        std::thread::yield_now();
    }
    assert!(waits.iter().any(|wait| *wait <= 4), "nobody is told when the next one expires: {waits:?}");
    assert_eq!(world.provider.runs(again), 1);
}

/// L02
fn what_a_scope_has_under_way_is_bounded_on_each_node(engine: Engine) {
    let world = Gateways::new(engine, "[limits]\nin_flight = 1\nin_flight_total = 2\n", &[]);
    let node = world.nodes[0].address();
    let held = std::thread::spawn(move || post(node, "/held", "first"));
    world.provider.told("first", 1);
    let refused = post(node, "/ok", "second");
    assert_limited(&refused, "in_flight");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(world.provider.runs("second"), 0);
    let duplicate = post(node, "/held", "first");
    assert_eq!(json_of(&duplicate)["code"], "idempotency_key_in_progress", "a duplicate is no attempt");
    for other in &world.nodes[1..] {
        assert_eq!(post(other.address(), "/ok", "elsewhere").status, 201, "another node counts its own");
    }
    world.provider.let_go();
    assert_eq!(held.join().unwrap().status, 502);
    assert_eq!(post(node, "/ok", "second").status, 201, "it has ended, and its place is free");
}

/// T06
fn an_old_request_does_not_run_and_what_is_on_record_is_answered(engine: Engine) {
    let settings = "[policy]\nrequest_time_header = \"X-Time\"\nrequest_age_max = \"5m\"\n";
    let world = Gateways::new(engine, settings, &[]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let unix = |time: Duration| format!("{}.{:03}", time.as_secs(), time.subsec_millis());
    let at = |key: &str, times: &[&str]| {
        let mut headers = vec![("Authorization", "Bearer ann"), ("Idempotency-Key", key)];
        headers.extend(times.iter().map(|time| ("X-Time", *time)));
        send(&world, "POST", "/ok", &headers)
    };
    let old = unix(now - Duration::from_secs(301));
    let ahead = unix(now + Duration::from_secs(3600));
    for (times, why) in [
        (&[old.as_str()][..], "older than 5m"),
        (&[ahead.as_str()], "in the future"),
        (&[], "is missing"),
        (&[&unix(now), &unix(now)], "more than once"),
        (&["yesterday"], "is not a time"),
    ] {
        let refused = at("k", times);
        assert_eq!(refused.status, 400, "{why}: {}", text(&refused));
        let told = json_of(&refused);
        assert_eq!(told["code"], "idempotency_request_too_old");
        assert_eq!(told["retryable"], false);
        assert!(told["detail"].as_str().unwrap().contains(why), "{told}");
    }
    assert_eq!((world.provider.runs("k"), records(&world)), (0, 0), "nothing ran, nothing is reserved");
    let date = "Tue, 17 Nov 2015 03:26:40 GMT";
    assert_eq!(at("k", &[&unix(now)]).status, 201);
    for late in [&[old.as_str()][..], &[date], &["2015-11-17T03:26:40+01:00"], &[]] {
        let replay = at("k", late);
        assert_eq!((replay.status, replay.header("idempotent-replayed")), (201, Some("true")));
    }
    assert_eq!(world.provider.runs("k"), 1);
}

/// L02, T06
fn in_observe_limits_are_counted_and_refuse_nothing(engine: Engine) {
    let settings = format!("[policy]\nmode = \"observe\"\n{ONE_EACH}");
    let world = Gateways::new(engine, &settings, &[]);
    let sent = 2 * engine.nodes();
    for number in 0..sent {
        assert_eq!(world.post("/ok", &format!("k-{number}")).status, 201);
    }
    let observed = |decision: &str| {
        world.sum(&format!("onlyonce_observed_total{{route=\"*\",decision=\"{decision}\"}}"))
    };
    assert_eq!(observed("executed"), engine.nodes() as u64);
    assert_eq!(observed("limited"), engine.nodes() as u64);
    assert_eq!(limited(&world, "keys_per_second"), 0, "nobody was refused");
}
