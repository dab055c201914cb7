//! Callers ask about their own keys, and what a key may not look like; on every engine, on one node and on three.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Instant;

use onlyonce_testkit::http::{self, Answer, Request};

use crate::engines::{Engine, on_every_engine};
use crate::gateways::{Gateways, json_of, post, text};
use crate::provider::SOON;

on_every_engine! {
    functions {
        a_caller_is_told_what_became_of_its_key,
        an_expired_key_is_told_as_gone_where_it_is_kept,
        a_key_that_looks_like_personal_data_is_refused_where_the_setting_says_so,
    }
}

fn ask_as(world: &Gateways, who: Option<&str>, path: &str) -> Answer {
    let path = format!("/_onlyonce/keys/{path}");
    let headers: Vec<_> = who.map(|who| ("Authorization", who)).into_iter().collect();
    let request = Request { method: "GET", path: &path, headers: &headers, body: "" };
    http::send(&world.node().address().to_string(), request).expect("an answer")
}

fn ask(world: &Gateways, path: &str) -> Answer {
    ask_as(world, Some("Bearer ann"), path)
}

/// O05: at any node, whichever ran it.
fn a_caller_is_told_what_became_of_its_key(engine: Engine) {
    let world = Gateways::new(engine, "", &[]);
    assert_eq!(ask(&world, "none").status, 404);
    let node = world.nodes[0].address();
    let held = std::thread::spawn(move || post(node, "/held", "held"));
    world.provider.told("held", 1);
    for path in ["held", "held/response"] {
        let running = ask(&world, path);
        assert_eq!((running.status, &json_of(&running)["state"]), (202, &"running".into()), "{path}");
        assert!(
            running.header("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok_and(|wait| wait >= 1))
        );
    }
    world.provider.let_go();
    assert_eq!(held.join().unwrap().status, 502);
    let unknown = ask(&world, "held");
    assert_eq!((unknown.status, &json_of(&unknown)["state"]), (200, &"unknown".into()));
    assert_eq!(json_of(&ask(&world, "held/response"))["code"], "idempotency_outcome_unknown");
    let first = world.post("/ok", "done");
    let completed = ask(&world, "done");
    let told = json_of(&completed);
    assert_eq!((completed.status, &told["state"], &told["status"]), (200, &"completed".into(), &201.into()));
    let stored = ask(&world, "done/response");
    assert_eq!((stored.status, &stored.body), (201, &first.body));
    assert_eq!(stored.header("idempotent-replayed"), Some("true"));
    assert_eq!(world.post("/failing", "again").status, 503);
    let retryable = ask(&world, "again");
    assert_eq!((retryable.status, &json_of(&retryable)["state"]), (200, &"retryable".into()));
    assert_eq!(ask(&world, "again/response").status, 404);
    for path in ["done", "done/response"] {
        assert_eq!(ask_as(&world, Some("Bearer bob"), path).status, 404, "another's key");
        assert_eq!(ask_as(&world, None, path).status, 401);
    }
}

/// O05
fn an_expired_key_is_told_as_gone_where_it_is_kept(engine: Engine) {
    let settings = "[policy]\nretention = \"1s\"\non_expired = \"gone\"\n[background]\nreap_every = \"1h\"\n";
    let world = Gateways::new(engine, settings, &[]);
    assert_eq!(world.post("/ok", "k").status, 201);
    let since = Instant::now();
    let gone = loop {
        let answer = ask(&world, "k");
        if answer.status != 200 {
            break answer;
        }
        assert!(since.elapsed() < SOON, "it does not expire");
        std::thread::yield_now();
    };
    assert_eq!((gone.status, &json_of(&gone)["code"]), (410, &"idempotency_key_expired".into()));
    assert_eq!(ask(&world, "k/response").status, 410);
    assert_eq!(world.provider.runs("k"), 1);
}

/// K08
fn a_key_that_looks_like_personal_data_is_refused_where_the_setting_says_so(engine: Engine) {
    for (setting, status) in [("refuse", 400), ("warn", 201), ("allow", 201)] {
        let world = Gateways::new(engine, &format!("[policy]\npersonal_data = \"{setting}\"\n"), &[]);
        for key in ["ada.lovelace@example.org", "+44 20 7946 0958", "4111 1111 1111 1111"] {
            let quoted = format!("\"{key}\"");
            let answer = world.post("/ok", &quoted);
            assert_eq!(answer.status, status, "{setting}: {key}: {}", text(&answer));
            assert!(!text(&answer).contains(key));
            assert_eq!(world.provider.runs(&quoted), usize::from(status == 201), "{setting}: {key}");
        }
        assert_eq!(world.post("/ok", "4d1f0c58-66a3-4d0e-9c2b-0a9b1f6f7a10").status, 201);
    }
}
