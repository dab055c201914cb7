//! Messages over the admin API.

use std::time::Duration;

use serde_json::json;

use crate::admin_world::{OPERATOR, READER, World};
use crate::engines::{Engine, on_every_engine_with_messages};

on_every_engine_with_messages! {
    futures {
        messages_are_listed_and_never_with_their_payload,
        a_payload_is_shown_to_operators_and_audited,
        dead_letters_are_redriven_and_discarded_with_their_entry,
        the_overview_tells_of_messages,
    }
}

/// O09, W06: listed by state and destination, in pages, without payloads.
async fn messages_are_listed_and_never_with_their_payload(engine: Engine) {
    let world = World::new(engine).await;
    for key in ["m1", "m2", "m3"] {
        world.dead_message(key).await;
    }
    world.claimed_message("m4").await;
    let dead = world.get("/v1/outbox?state=dead&destination=mail").await;
    assert_eq!(dead.keys(), ["m1", "m2", "m3"]);
    assert!(!dead.body.contains("to\\\":7"), "{}", dead.body);
    let item = &dead.json()["items"][0];
    assert_eq!((&item["id"], &item["deliveries"], &item["group"]), (&json!(1), &json!(1), &json!(null)));
    assert_eq!(item["errors"][0]["status"], 410);
    assert_eq!(item["errors"][0]["error"], "it answered 410");
    assert_eq!(item["record"].as_str().map(str::len), Some(64));
    assert_eq!(world.get("/v1/outbox?destination=other").await.keys(), [""; 0]);
    let first = world.get("/v1/outbox?state=dead&limit=2").await;
    let next = first.json()["next"].as_str().expect("there is more").to_owned();
    let second = world.get(format!("/v1/outbox?state=dead&limit=2&cursor={next}")).await;
    assert_eq!([first.keys(), second.keys()].concat(), ["m1", "m2", "m3"]);
    assert_eq!(world.get("/v1/outbox/1").await.json()["key"], "m1");
    for (target, path) in [
        ("/v1/outbox/x", "path.id"),
        ("/v1/outbox?state=due", "query.state"),
        ("/v1/outbox?stat=x", "query.stat"),
    ] {
        let answer = world.get(target).await;
        assert_eq!(answer.told(), (400, "admin_request_invalid".to_owned()), "{target}");
        assert_eq!(answer.json()["faults"][0]["path"], path);
    }
}

/// O01, W06: who looks at what a message says is in the audit log first.
async fn a_payload_is_shown_to_operators_and_audited(engine: Engine) {
    let world = World::with_tokens(engine).await;
    world.dead_message("m1").await;
    let refused = world.ask("GET", "/v1/outbox/1/payload").token(READER).send().await;
    assert_eq!(refused.told(), (403, "admin_forbidden".to_owned()));
    let shown = world.ask("GET", "/v1/outbox/1/payload").token(OPERATOR).send().await;
    assert_eq!((shown.status, &*shown.body), (200, "{\"to\":7}"));
    assert_eq!(shown.header("content-type"), Some("application/json"));
    let log = world.audit().await;
    let told: Vec<_> = log.iter().map(|entry| (&*entry.action, &*entry.result, &*entry.who)).collect();
    assert_eq!(told, [("read_payload", "refused", "rob"), ("read_payload", "applied", "ann")]);
}

/// W06, O01: each change has a reason and an entry, and a dry run has neither effect.
async fn dead_letters_are_redriven_and_discarded_with_their_entry(engine: Engine) {
    let world = World::new(engine).await;
    for key in ["m1", "m2", "m3"] {
        world.dead_message(key).await;
    }
    world.claimed_message("m4").await;
    let reason = json!({ "reason": "mail is back" });
    let post =
        async |target: &str, body: &serde_json::Value| world.ask("POST", target).json(body).send().await;
    let dry = post("/v1/outbox/1/redrive?dry_run=true", &reason).await.json();
    assert_eq!((&dry["result"], &dry["audit"]), (&json!("would-apply"), &json!(null)));
    assert_eq!(world.audit().await, []);
    assert_eq!(post("/v1/outbox/1/redrive", &reason).await.json()["result"], "redriven");
    assert_eq!(world.get("/v1/outbox/1").await.json()["state"], "waiting");
    assert_eq!(post("/v1/outbox/1/redrive", &reason).await.told(), (409, "message_not_dead".to_owned()));
    assert_eq!(post("/v1/outbox/9/redrive", &reason).await.told(), (404, "message_not_found".to_owned()));
    assert_eq!(post("/v1/outbox/1/redrive", &json!({})).await.told(), (400, "reason_missing".to_owned()));
    let many = json!({ "destination": "mail", "reason": "mail is back", "limit": 1, "dry_run": true });
    let told = post("/v1/outbox/redrive", &many).await.json();
    assert_eq!(told, json!({ "result": "would-apply", "count": 1, "is_more": true }));
    let many = json!({ "destination": "mail", "reason": "mail is back" });
    let told = post("/v1/outbox/redrive", &many).await.json();
    assert_eq!(told, json!({ "result": "redriven", "count": 2, "is_more": false }));
    for body in [json!({ "reason": "r" }), json!({ "destination": "", "reason": "r" })] {
        let refused = post("/v1/outbox/redrive", &body).await;
        assert_eq!(refused.told(), (400, "admin_request_invalid".to_owned()), "{body}");
    }
    let delete = async |target: &str| world.ask("DELETE", target).send().await;
    assert_eq!(delete("/v1/outbox/4?reason=r").await.told(), (409, "message_claimed".to_owned()));
    assert_eq!(delete("/v1/outbox/3").await.told(), (400, "reason_missing".to_owned()));
    assert_eq!(delete("/v1/outbox/3?reason=r").await.json()["result"], "discarded");
    assert_eq!(delete("/v1/outbox/3?reason=r").await.told(), (404, "message_not_found".to_owned()));
    let log = world.audit().await;
    let told: Vec<_> =
        log.iter().map(|entry| (&*entry.action, &*entry.result, entry.code.as_deref())).collect();
    assert_eq!(
        told,
        [
            ("redrive", "applied", None),
            ("redrive", "refused", Some("message_not_dead")),
            ("redrive", "applied", None),
            ("redrive", "applied", None),
            ("discard", "refused", Some("message_claimed")),
            ("discard", "applied", None),
        ]
    );
    assert!(log.iter().all(|entry| entry.reason.is_some() && entry.key.is_some()));
}

/// O02, O03: what is stuck among messages is on the first page.
async fn the_overview_tells_of_messages(engine: Engine) {
    let world = World::new(engine).await;
    let told = world.get("/v1/overview").await.json();
    assert_eq!(
        (&told["dead_letters"]["messages"], &told["oldest_message_seconds"]),
        (&json!(0), &json!(null))
    );
    world.dead_message("m1").await;
    world.claimed_message("m2").await;
    world.pass(Duration::from_secs(90)).await;
    let told = world.get("/v1/overview").await.json();
    assert_eq!(told["dead_letters"], json!({ "keys": 0, "messages": 1 }));
    let age = told["oldest_message_seconds"].as_f64().expect("one is due");
    assert!((90.0..120.0).contains(&age), "{age}");
    let need = &told["needs_you"][0];
    assert_eq!((&need["what"], &need["count"]), (&json!("dead_message"), &json!(1)));
}
