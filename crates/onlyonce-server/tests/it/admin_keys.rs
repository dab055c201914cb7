//! Looking: lists, one record, its stored answer, the audit log, the overview.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeSet;
use std::time::Duration;

use onlyonce::store::Store;
use onlyonce_core::machine;
use onlyonce_core::record::{Seen, StateName, Verdict};
use serde_json::{Value, json};

use crate::admin_world::{OPERATOR, READER, ROUTE, SOON, World, encoded, moment, scope};
use crate::engines::{Engine, on_every_engine};

on_every_engine! {
    futures {
        a_query_that_is_not_understood_is_refused_with_everything_that_is_wrong,
        records_are_found_by_what_somebody_has_in_hand,
        following_the_pages_shows_everything_once_while_others_write,
        a_cursor_of_another_list_or_another_store_is_refused,
        a_key_of_another_scope_is_not_found_as_one_that_never_was,
        one_record_is_told_with_its_time_line_and_what_may_be_done,
        a_stored_answer_is_shown_as_a_replay_and_that_somebody_looked_is_in_the_log,
        the_audit_log_is_read_newest_first_and_filtered,
        the_overview_names_what_is_stuck_and_since_when,
        half_done_work_is_a_dead_letter_and_not_unknown,
        dead_letters_are_listed_counted_and_asked_anew,
        expired_records_are_listed_only_where_they_are_asked_for,
    }
}

/// O06: a filter that is not understood shows nothing.
async fn a_query_that_is_not_understood_is_refused_with_everything_that_is_wrong(engine: Engine) {
    let world = World::new(engine).await;
    world.record("acme", "k-1", StateName::Unknown).await;
    let path = format!("/v1/keys/{}/k-1", scope("acme"));
    for (target, paths) in [
        ("/v1/keys?sate=unknown".to_owned(), &["query.sate"][..]),
        (
            "/v1/keys?state=lost&limit=0&scope=ab&q=&dead_letter=1".to_owned(),
            &["query.state", "query.limit", "query.scope", "query.q", "query.dead_letter"],
        ),
        ("/v1/keys?state=unknown&state=unknown".to_owned(), &["query.state"]),
        ("/v1/keys?limit=501".to_owned(), &["query.limit"]),
        ("/v1/keys?q=%ff".to_owned(), &["query.q"]),
        ("/v1/keys?cursor=x".to_owned(), &["query.cursor"]),
        (
            "/v1/audit?after=yesterday&before=2026-01-01&action=delete&key=".to_owned(),
            &["query.after", "query.before", "query.action", "query.key"],
        ),
        ("/v1/overview?x=1".to_owned(), &["query.x"]),
        ("/v1/events?x=1".to_owned(), &["query.x"]),
        ("/v1/openapi.json?x=1".to_owned(), &["query.x"]),
        ("/metrics?x=1".to_owned(), &["query.x"]),
        (format!("{path}?x=1"), &["query.x"]),
        (format!("{path}/response?x=1"), &["query.x"]),
        ("/v1/keys/abc/k-1".to_owned(), &["path.scope"]),
        (format!("/v1/keys/{}/%zz", scope("acme")), &["path.key"]),
        (format!("/v1/keys/{}/%ff", scope("acme")), &["path.key"]),
    ] {
        let answer = world.get(&*target).await;
        assert_eq!(answer.told(), (400, "admin_request_invalid".to_owned()), "{target}");
        let body = answer.json();
        let faults: Vec<_> = body["faults"].as_array().unwrap().iter().map(|fault| &fault["path"]).collect();
        assert_eq!(faults, paths, "{target}");
        assert!(body["faults"].as_array().unwrap().iter().all(|fault| fault["detail"].is_string()));
        assert_eq!(body["type"], "https://onlyonce.dev/problems/admin-request-invalid");
    }
}

/// U05, O09
async fn records_are_found_by_what_somebody_has_in_hand(engine: Engine) {
    let world = World::new(engine).await;
    let unknown = world.record("acme", "pay-17", StateName::Unknown).await;
    world.pass(Duration::from_secs(1)).await;
    world.record("acme", "pay-170", StateName::Unknown).await;
    world.record("acme", "pay-9", StateName::Completed).await;
    world.record("umbrella", "pay-17", StateName::Running).await;
    world.record("umbrella", "acme", StateName::Retryable).await;
    world.record("umbrella", "späti/1", StateName::Pending).await;
    world.pass(Duration::from_secs(1)).await;
    for number in 2..6 {
        world.record("umbrella", &format!("später/{number}"), StateName::Pending).await;
        world.pass(Duration::from_secs(1)).await;
    }
    let acme = scope("acme").to_string();
    let id = unknown.id.to_string();
    let found = async |query: String| {
        let answer = world.get(format!("/v1/keys?{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        assert_eq!(answer.json()["next"], Value::Null, "{query}");
        answer.keys()
    };
    let set = |keys: Vec<String>| keys.into_iter().collect::<BTreeSet<_>>();
    let pending = ["späti/1", "später/2", "später/3", "später/4", "später/5"];
    let all = [&["acme", "pay-17", "pay-170", "pay-9"][..], &pending].concat();
    assert_eq!(set(found(String::new()).await), all.into_iter().map(str::to_owned).collect());
    // The oldest first.
    assert_eq!(found("state=unknown".to_owned()).await, ["pay-17", "pay-170"]);
    assert_eq!(found("state=running".to_owned()).await, ["pay-17"]);
    assert_eq!(found("state=pending".to_owned()).await, pending);
    assert_eq!(set(found(format!("scope={acme}")).await).len(), 3);
    assert_eq!(found(format!("scope={}&state=completed", acme.to_uppercase())).await, ["pay-9"]);
    assert_eq!(found(format!("route={}", encoded(ROUTE))).await.len(), 10);
    assert_eq!(found("route=POST%20/other".to_owned()).await.len(), 0);
    assert_eq!(found("dead_letter=true".to_owned()).await.len(), 0);
    assert_eq!(found("dead_letter=false&state=unknown".to_owned()).await.len(), 2);
    // A whole key before those that only begin with it; in every scope.
    let keys = found("q=pay-17".to_owned()).await;
    assert_eq!((&keys[..2], keys.len()), (&["pay-17".to_owned(), "pay-17".to_owned()][..], 3));
    assert_eq!(found("q=pa".to_owned()).await.len(), 0, "too short to be the beginning of one");
    assert_eq!(found(format!("q={}", encoded("späti/1"))).await, ["späti/1"]);
    // A whole label, and a key of the same text: both are exact.
    assert_eq!(found("q=acme".to_owned()).await.len(), 4);
    assert_eq!(found(format!("q={}&state=unknown", &acme[..8])).await, ["pay-17", "pay-170"]);
    assert_eq!(found(format!("q={}", &acme[..7])).await.len(), 0);
    assert_eq!(found(format!("q={}", &id[..12])).await, ["pay-17"], "by the digest of a log line");
    assert_eq!(found(format!("q={}", unknown.token())).await, ["pay-17"]);
    assert_eq!(found(format!("q={}&state=completed", unknown.token())).await.len(), 0);
    assert_eq!(found(format!("q={}.{}", "0".repeat(64), "0".repeat(32))).await.len(), 0);
}

/// U05: following the pages shows everything that stood there all the while exactly once.
async fn following_the_pages_shows_everything_once_while_others_write(engine: Engine) {
    let world = World::new(engine).await;
    for number in 0..40 {
        world.record("acme", &format!("old-{number}"), StateName::Unknown).await;
        // A server's clock goes on by itself.
        if matches!(engine, Engine::Memory | Engine::Sqlite) {
            world.pass(Duration::from_millis(1)).await;
        }
    }
    for filters in ["", "state=unknown&", "q=old-&", "dead_letter=false&"] {
        let mut seen = Vec::new();
        let mut cursor = String::new();
        for page in 0.. {
            assert!(page < 100, "the list has no end");
            let answer = world.get(format!("/v1/keys?{filters}limit=7{cursor}")).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            let keys = answer.keys();
            assert!(keys.len() <= 7);
            seen.extend(keys.into_iter().filter(|key| key.starts_with("old-")));
            world.record("umbrella", &format!("new-{filters}-{page}"), StateName::Unknown).await;
            let Some(next) = answer.json()["next"].as_str().map(str::to_owned) else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(seen.len(), 40, "{filters}");
        if filters == "state=unknown&" {
            let ordered: Vec<_> = (0..40).map(|number| format!("old-{number}")).collect();
            assert_eq!(seen, ordered);
        }
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>().len(), 40, "{filters}");
    }
}

/// O06
async fn a_cursor_of_another_list_or_another_store_is_refused(engine: Engine) {
    let world = World::new(engine).await;
    for number in 0..3 {
        world.record("acme", &format!("k-{number}"), StateName::Unknown).await;
        world.get(format!("/v1/keys/{}/k-{number}/response", scope("acme"))).await;
    }
    let next = |answer: &Value| answer["next"].as_str().expect("there is more").to_owned();
    let cursor = next(&world.get("/v1/keys?state=unknown&limit=1").await.json());
    let good = world.get(format!("/v1/keys?limit=2&cursor={cursor}&state=unknown")).await;
    assert_eq!((good.status, good.keys().len()), (200, 2), "the limit may change");
    let elsewhere = World::new(engine).await;
    elsewhere.record("acme", "k", StateName::Unknown).await;
    for (world, target) in [
        (&world, format!("/v1/keys?cursor={cursor}")),
        (&world, format!("/v1/keys?state=running&cursor={cursor}")),
        (&world, format!("/v1/keys?state=unknown&q=k-1&cursor={cursor}")),
        (&world, format!("/v1/audit?cursor={cursor}")),
        (&world, format!("/v1/keys?state=unknown&cursor={}", &cursor[1..])),
        (&world, format!("/v1/keys?state=unknown&cursor=B{}", &cursor[1..])),
        (&elsewhere, format!("/v1/keys?state=unknown&cursor={cursor}")),
    ] {
        let answer = world.get(&*target).await;
        assert_eq!(answer.told(), (400, "admin_request_invalid".to_owned()), "{target}");
        assert_eq!(answer.json()["faults"][0]["path"], "query.cursor");
    }
}

/// S06: whoever asks for a key of another scope is told what it would be told of a key that never existed.
async fn a_key_of_another_scope_is_not_found_as_one_that_never_was(engine: Engine) {
    let world = World::new(engine).await;
    world.record("acme", "k-1", StateName::Completed).await;
    let other = scope("umbrella");
    for (method, more) in
        [("GET", ""), ("GET", "/response"), ("POST", "/verdict"), ("DELETE", "?reason=r&dry_run=true")]
    {
        let answers = [("k-1", "k-1"), ("k-2", "k-2")].map(async |(key, _)| {
            let body = json!({ "verdict": "happened", "reason": "r" });
            let answer = world.ask(method, format!("/v1/keys/{other}/{key}{more}")).json(&body).send().await;
            (answer.told(), answer.body.replace(key, "KEY"), answer.headers.len())
        });
        let [theirs, nobodys] = answers;
        let (theirs, nobodys) = (theirs.await, nobodys.await);
        assert_eq!(theirs, nobodys, "{method} {more}");
        assert_eq!(theirs.0, (404, "record_not_found".to_owned()));
    }
    assert_eq!(world.audit().await, []);
}

/// U05, U09
async fn one_record_is_told_with_its_time_line_and_what_may_be_done(engine: Engine) {
    let world = World::new(engine).await;
    let made = world.record("acme", "pay/17 %", StateName::Unknown).await;
    let answer = world.get(made.path()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let record = answer.json();
    assert_eq!(record["key"], "pay/17 %");
    assert_eq!((&record["state"], &record["reason"]), (&json!("unknown"), &json!("connection_lost")));
    assert_eq!(record["scope_label"], "acme");
    assert_eq!(record["token"], json!(made.token()));
    assert_eq!(answer.header("etag").unwrap(), format!("\"{}\"", record["revision"].as_str().unwrap()));
    assert!(
        record["why"].as_str().unwrap().contains("It is unknown whether attempt 1 did the work"),
        "{record}"
    );
    let whats: BTreeSet<_> =
        record["evidence"].as_array().unwrap().iter().filter_map(|entry| entry["what"].as_str()).collect();
    assert_eq!(whats, ["attempt", "unknown"].into());
    let action = |name: &str| {
        let actions = record["actions"].as_array().unwrap();
        actions.iter().find(|action| action["action"] == name).unwrap().clone()
    };
    assert_eq!(action("happened")["allowed"], true);
    assert_eq!(action("did-not-happen")["code"], "verdict_too_early");
    assert_eq!(action("did-not-happen")["from"], record["believed_at"]);
    assert_eq!(action("ask")["code"], "nothing_to_ask");
    assert_eq!(action("forget")["code"], "record_unknown");
    world.probe(Verdict::StillUnknown);
    let record = world.get(made.path()).await.json();
    assert!(
        record["actions"].as_array().unwrap().contains(&json!({ "action": "ask", "allowed": true })),
        "{record}"
    );
    // Neither a body nor a header's value is told.
    let completed = world.record("acme", "done", StateName::Completed).await;
    let answer = world.get(completed.path()).await;
    assert_eq!(
        answer.json()["response"],
        json!({ "status": 201, "bytes": 18, "headers": ["content-type", "cache-control"] })
    );
    assert!(!answer.body.contains("the answer") && !answer.body.contains("text/plain"), "{}", answer.body);
    // Expired is gone.
    world.pass(Duration::from_secs(30 * 24 * 3600)).await;
    assert_eq!(world.get(completed.path()).await.told(), (404, "record_not_found".to_owned()));
    assert_eq!(world.get("/v1/keys?q=done").await.keys(), [""; 0]);
}

/// L04: stored answers hold what customers bought.
async fn a_stored_answer_is_shown_as_a_replay_and_that_somebody_looked_is_in_the_log(engine: Engine) {
    let world = World::with_tokens(engine).await;
    let made = world.record("acme", "k", StateName::Completed).await;
    let show = format!("{}/response", made.path());
    assert_eq!(world.ask("GET", &*show).token(READER).send().await.status, 403);
    let answer =
        world.ask("GET", &*show).token(OPERATOR).header("User-Agent", "onlyonce-cli/0.1.0").send().await;
    assert_eq!((answer.status, &*answer.body), (201, "the answer to k"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    assert_eq!(answer.header("idempotent-replayed"), Some("true"));
    assert_eq!(answer.header("cache-control"), Some("no-store"), "whatever was stored");
    assert_eq!(answer.header("content-security-policy"), Some("sandbox; default-src 'none'"));
    assert!(answer.header("idempotency-key-created").unwrap().ends_with(" GMT"), "{answer:?}");
    if engine == Engine::Memory {
        assert_eq!(answer.header("idempotency-key-created"), Some("Thu, 01 Jan 2026 00:00:00 GMT"));
    }
    let log = world.audit().await;
    let entry = log.last().unwrap();
    assert_eq!(
        (&*entry.action, &*entry.result, &*entry.who, &*entry.via),
        ("read_response", "applied", "ann", "cli")
    );
    assert_eq!((entry.key.as_deref(), entry.record), (Some("k"), Some(made.id)));
    assert_eq!(entry.after.as_deref(), Some(r#"{"bytes":15,"status":201}"#));
    for state in [StateName::Pending, StateName::Running, StateName::Retryable, StateName::Unknown] {
        let made = world.record("acme", state.as_str(), state).await;
        let answer = world.ask("GET", format!("{}/response", made.path())).token(OPERATOR).send().await;
        assert_eq!(answer.told(), (404, "record_not_found".to_owned()), "{state}");
        assert_eq!(answer.header("idempotent-replayed"), None);
    }
    assert_eq!(world.audit().await.len(), log.len(), "nothing was shown");
}

/// L04, U09
async fn the_audit_log_is_read_newest_first_and_filtered(engine: Engine) {
    let world = World::with_tokens(engine).await;
    for number in 0..5 {
        let made = world.record("acme", &format!("k-{number}"), StateName::Unknown).await;
        let body = json!({ "verdict": "happened", "reason": format!("reason {number}") });
        let ask = world.ask("POST", format!("{}/verdict", made.path())).json(&body);
        let ask = ask.token(if number == 3 { READER } else { OPERATOR }).header("Onlyonce-As", "Ann Å.");
        assert_eq!(ask.send().await.status, if number == 3 { 403 } else { 200 });
        world.pass(Duration::from_secs(60)).await;
    }
    let list = async |query: &str| {
        let answer = world.ask("GET", format!("/v1/audit?{query}")).token(READER).send().await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        answer.json()
    };
    let keys = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        items.map(|item| item["target"]["key"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let all = list("").await;
    assert_eq!(keys(&all), ["k-4", "k-3", "k-2", "k-1", "k-0"]);
    let entry = &all["items"][0];
    assert_eq!(
        (&entry["who"], &entry["as"], &entry["role"]),
        (&json!("ann"), &json!("Ann Å."), &json!("operate"))
    );
    assert_eq!(
        (&entry["before"]["state"], &entry["after"]["state"]),
        (&json!("unknown"), &json!("completed"))
    );
    assert_eq!((&entry["reason"], &entry["result"]), (&json!("reason 4"), &json!("applied")));
    assert_eq!(keys(&list("who=rob").await), ["k-3"]);
    assert_eq!(keys(&list("action=forget").await).len(), 0);
    assert_eq!(keys(&list("key=k-1").await), ["k-1"]);
    assert_eq!(keys(&list(&format!("scope={}&key=k-2", scope("acme"))).await), ["k-2"]);
    assert_eq!(keys(&list(&format!("scope={}", scope("umbrella"))).await).len(), 0);
    let at = |place: usize| all["items"][place]["at"].as_str().unwrap().to_owned();
    let between = format!("after={}&before={}", at(3), at(1).replace('Z', "%2B00:00"));
    assert_eq!(keys(&list(&between).await), ["k-2", "k-1"]);
    let mut cursor = String::new();
    let mut paged = Vec::new();
    loop {
        let page = list(&format!("who=ann&limit=3{cursor}")).await;
        paged.extend(keys(&page));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, ["k-4", "k-2", "k-1", "k-0"]);
}

/// O02
async fn the_overview_names_what_is_stuck_and_since_when(engine: Engine) {
    let world = World::new(engine).await;
    let calm = world.get("/v1/overview").await.json();
    assert_eq!((&calm["oldest_unknown"], &calm["needs_you"]), (&Value::Null, &json!([])));
    assert_eq!(calm["store"]["state"], "ok");
    let oldest = world.record("acme", "oldest", StateName::Unknown).await;
    world.pass(Duration::from_secs(700)).await;
    world.record("acme", "younger", StateName::Unknown).await;
    world.record("acme", "done", StateName::Completed).await;
    world.pass(Duration::from_millis(34_250)).await;
    let told = world.get("/v1/overview").await.json();
    assert_eq!(told["oldest_unknown"]["key"], "oldest");
    let age = told["oldest_unknown"]["age_seconds"].as_f64().unwrap();
    assert!((734.25..734.25 + SOON.as_secs_f64()).contains(&age), "{age}");
    let since = |seen: &Seen| moment(machine::unknown_since(&seen.record).unwrap());
    let since = since(&world.seen(&oldest).await.unwrap());
    assert_eq!(
        told["records"],
        json!({ "pending": 0, "running": 0, "completed": 1, "retryable": 0, "unknown": 2 })
    );
    assert_eq!(told["needs_you"], json!([{ "what": "unknown", "count": 2, "since": since }]));
    let messages = world.store.outbox().map(|_| 0);
    assert_eq!(told["dead_letters"], json!({ "keys": 0, "messages": messages }));
    assert_eq!(told["added_latency_seconds"], json!({ "p50": null, "p99": null }));
    let node = told["node"].as_str().unwrap();
    let ports: Vec<_> = world.addresses().iter().map(|address| format!(":{}", address.port())).collect();
    assert!(ports.iter().any(|port| node.ends_with(port)), "{told}");
}

/// O02, W10: half-done work that nobody came back for waits for a person too, and its outcome is not in doubt.
async fn half_done_work_is_a_dead_letter_and_not_unknown(engine: Engine) {
    let world = World::new(engine).await;
    let half_done = world.half_done("acme", "half-done").await;
    let since = moment(machine::unknown_since(&half_done.seen.record).unwrap());
    let needed = json!({ "what": "dead_letter", "count": 1, "is_more": false, "since": since });
    let told = world.get("/v1/overview").await.json();
    assert_eq!((&told["oldest_unknown"], &told["needs_you"]), (&Value::Null, &json!([needed])));
    world.record("acme", "unknown", StateName::Unknown).await;
    let told = world.get("/v1/overview").await.json();
    assert_eq!(told["oldest_unknown"]["key"], "unknown");
    let needs: Vec<_> = told["needs_you"].as_array().unwrap().iter().map(|need| &need["what"]).collect();
    assert_eq!(needs, ["unknown", "dead_letter"]);
    assert_eq!(world.get("/v1/keys?state=unknown").await.keys(), ["unknown"]);
    assert_eq!(world.get("/v1/keys?dead_letter=true").await.keys(), ["half-done"]);
}

/// U05, O02: what was given up on stays until a person ends it, and is told apart.
async fn dead_letters_are_listed_counted_and_asked_anew(engine: Engine) {
    let world = World::new(engine).await;
    world.record("acme", "patient", StateName::Unknown).await;
    world.pass(Duration::from_secs(1)).await;
    let dead = world.dead_letter("acme", "dead").await;
    assert_eq!(world.get("/v1/keys?dead_letter=true").await.keys(), ["dead"]);
    assert_eq!(world.get("/v1/keys?dead_letter=false").await.keys(), ["patient"]);
    assert_eq!(world.get("/v1/keys?state=completed&dead_letter=true").await.keys(), [""; 0]);
    let told = world.get("/v1/overview").await.json();
    assert_eq!(told["dead_letters"]["keys"], 1);
    let since = machine::unknown_since(&dead.seen.record).unwrap();
    assert_eq!(
        told["needs_you"][1],
        json!({ "what": "dead_letter", "count": 1, "is_more": false, "since": moment(since) })
    );
    let record = world.get(dead.path()).await.json();
    assert_eq!((&record["dead_letter"], &record["ask_at"]), (&json!(true), &Value::Null));
    world.broken_probe();
    let asked =
        world.verdict(&dead, "", &json!({ "verdict": "unknown", "reason": "the bank is back" })).await;
    assert_eq!(asked.told(), (200, "noted".to_owned()));
    assert_eq!(world.get("/v1/keys?dead_letter=true").await.keys(), [""; 0]);
    // A probe that fails again and again needs somebody too: whoever asks it knows.
    world.keep_to_one_node();
    for number in 0..5 {
        let made = world.record("acme", &format!("k-{number}"), StateName::Unknown).await;
        let happened = json!({ "verdict": "happened", "reason": "r", "ask": true });
        assert_eq!(world.verdict(&made, "", &happened).await.told(), (200, "applied".to_owned()));
    }
    let told = world.get("/v1/overview").await.json();
    let failing = told["needs_you"].as_array().unwrap().last().unwrap();
    assert_eq!((&failing["what"], &failing["route"]), (&json!("probe_failing"), &json!(ROUTE)));
    assert_eq!((&failing["count"], &failing["detail"]), (&json!(5), &json!("the bank answered 503")));
}

/// O01: whoever asks what became of a key that has expired finds it, as long as it is kept.
async fn expired_records_are_listed_only_where_they_are_asked_for(engine: Engine) {
    let world = World::new(engine).await;
    let old = world.record("acme", "old", StateName::Completed).await;
    world.record("umbrella", "older", StateName::Retryable).await;
    world.record("acme", "doubtful", StateName::Unknown).await;
    world.pass(Duration::from_secs(60 * 24 * 3600)).await;
    world.record("acme", "new", StateName::Completed).await;
    let found = async |query: &str| {
        let (mut keys, mut cursor) = (BTreeSet::new(), String::new());
        for page in 0.. {
            assert!(page < 20, "the list has no end");
            let answer = world.get(format!("/v1/keys?limit=1&{query}{cursor}")).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            keys.extend(answer.keys());
            let Some(next) = answer.json()["next"].as_str().map(str::to_owned) else { break };
            cursor = format!("&cursor={next}");
        }
        keys.into_iter().collect::<Vec<_>>()
    };
    let is_archived = engine.has_archive();
    for is_reaped in [false, true] {
        if is_reaped {
            assert_eq!(world.store.reap(100).await.unwrap(), 2);
        }
        let expired = if !is_reaped || is_archived { &["old", "older"][..] } else { &[] };
        assert_eq!(found("expired=true").await, expired, "reaped: {is_reaped}");
        assert_eq!(found("expired=false").await, ["doubtful", "new"]);
        assert_eq!(found("").await, ["doubtful", "new"]);
        for query in [
            "expired=true&state=completed".to_owned(),
            "expired=true&q=old&state=completed".to_owned(),
            format!("expired=true&scope={}", scope("acme")),
            format!("expired=true&q={}", old.token()),
        ] {
            assert_eq!(
                found(&query).await,
                expired.get(..1).unwrap_or_default(),
                "{query}, reaped: {is_reaped}"
            );
        }
        for nothing in ["expired=true&state=unknown", "expired=true&dead_letter=true", "expired=true&q=new"] {
            assert_eq!(found(nothing).await, [""; 0], "{nothing}");
        }
    }
    assert_eq!(world.get(old.path()).await.told(), (404, "record_not_found".to_owned()));
}
