//! Webhooks, as a provider sends them to the program.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::net::SocketAddr;
use std::ops::Deref;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use onlyonce_testkit::disk::Disk;
use onlyonce_testkit::http::{self, Request};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::engines::{Engine, on_every_engine};
use crate::gateways::{Gateways, json_of, post, text};
use crate::program::{Folder, onlyonce};
use crate::provider::{Provider, SOON};
use crate::serve::Serving;

on_every_engine! {
    functions {
        happened_settles_an_unknown_record_and_its_answer_is_replayed,
        did_not_happen_is_noted_while_it_is_early_and_then_applied,
        happened_about_a_record_that_may_run_again_completes_it,
        what_is_said_while_the_attempt_runs_counts_if_the_attempt_is_lost,
        without_a_token_scope_and_key_and_the_time_count,
        what_is_refused_changes_nothing,
        what_says_nothing_about_the_outcome_is_ignored,
        stripes_events_settle_what_they_are_about,
        a_public_source_is_served_on_the_gateways_port_and_no_other_exists_there,
        what_happened_is_neither_run_again_nor_taken_back,
        a_captured_webhook_does_not_settle_the_next_use_of_its_key,
    }
}

const SECRET: &str = "whsec_a secret of the tests";
const SETTINGS: &str = r#"
[policy]
deadline = "2s"
horizon = "0s"

[[route]]
match = "POST /failing"
effects = "keyed"

[[route]]
match = "POST /held/keyed"
effects = "keyed"

[webhooks.bank]
secrets = ["env:WEBHOOK_SECRET"]
public = true

[webhooks.inside]
secrets = ["env:OTHER_SECRET", "env:WEBHOOK_SECRET"]
time_pointer = "/when"

[webhooks.stripe]
secrets = ["env:WEBHOOK_SECRET"]
public = true
"#;

/// Gateways in front of a provider, who sends webhooks.
struct World(Gateways);

impl Deref for World {
    type Target = Gateways;

    fn deref(&self) -> &Gateways {
        &self.0
    }
}

impl World {
    fn new(engine: Engine, settings: &str) -> Self {
        Self(Gateways::new(engine, settings, &[("WEBHOOK_SECRET", SECRET), ("OTHER_SECRET", "another")]))
    }

    /// What is said of an event that was seen before: each node remembers its own, and the record stands for all.
    fn again(&self) -> &'static str {
        if self.engine.nodes() == 1 { "duplicate" } else { "already" }
    }

    /// What needs somebody, as the overview of a node has it.
    fn needs_you(&self, what: &str) -> Value {
        let (_, told) = self.told("GET", "/v1/overview", &Value::Null);
        let needs = told["needs_you"].as_array().unwrap();
        needs.iter().find(|need| need["what"] == what).cloned().unwrap_or_default()
    }

    /// What a webhook of `bank` is answered.
    fn says(&self, body: &Value) -> (u16, Value) {
        self.sent("bank", &body.to_string())
    }

    fn sent(&self, source: &str, body: &str) -> (u16, Value) {
        let signature = signed(SECRET, now(), body);
        let name = if source == "stripe" { "Stripe-Signature" } else { "Onlyonce-Signature" };
        self.raw(source, &[(name, &signature)], body)
    }

    fn raw(&self, source: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        deliver(self.node().admin(), &format!("/v1/webhooks/{source}"), headers, body)
    }

    /// What all nodes have counted.
    fn counted(&self, source: &str, result: &str) -> u64 {
        self.sum(&format!("onlyonce_webhooks_total{{source=\"{source}\",result=\"{result}\"}}"))
    }
}

pub(crate) fn deliver(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
    let answer = http::send(&address.to_string(), Request { method: "POST", path, headers, body }).unwrap();
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    (answer.status, json_of(&answer))
}

pub(crate) fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

pub(crate) fn signed(secret: &str, at: i64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{at}.{body}").as_bytes());
    let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={at},v1={hex}")
}

/// Sends until the answer is such, which must be soon.
fn until(send: impl Fn() -> (u16, Value), is_such: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let (_, answer) = send();
        if is_such(&answer) {
            return answer;
        }
        assert!(began.elapsed() < SOON, "{answer}");
        std::thread::yield_now();
    }
}

/// U05, U06: the provider tells, and the client's retry gets its answer.
fn happened_settles_an_unknown_record_and_its_answer_is_replayed(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    let token = world.unknown("k-1");
    let response = json!({ "status": 201, "headers": { "content-type": "application/json" }, "body": "{\"paid\":true}" });
    let event = json!({ "token": token, "verdict": "happened", "id": "evt_1", "response": response });
    let (status, told) = world.says(&event);
    assert_eq!(status, 200, "{told}");
    assert_eq!(told, json!({ "result": "applied", "state": "completed", "why": null, "earliest": null }));
    let replay = world.post("/lost", "k-1");
    assert_eq!((replay.status, text(&replay).as_str()), (201, "{\"paid\":true}"));
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(replay.header("content-type"), Some("application/json"));
    assert_eq!(world.provider.runs("k-1"), 1, "it ran once");

    assert_eq!(world.says(&event).1["result"], world.again(), "the very same event");
    let another = json!({ "token": token, "verdict": "happened", "id": "evt_2" });
    assert_eq!(
        world.says(&another).1,
        json!({ "result": "already", "state": "completed", "why": null, "earliest": null })
    );
    let (_, told) = world.says(&json!({ "token": token, "verdict": "did-not-happen", "id": "evt_3" }));
    assert_eq!((&told["result"], &told["state"]), (&json!("contradiction"), &json!("completed")));
    let (_, told) = world.says(&json!({ "token": token, "verdict": "declined", "id": "evt_4" }));
    assert_eq!(told["result"], "contradiction");
    assert_eq!(text(&world.post("/lost", "k-1")), "{\"paid\":true}", "nothing was changed");
    assert_eq!(
        ["applied", "duplicate", "already", "contradiction", "refused"]
            .map(|result| world.counted("bank", result)),
        if world.again() == "duplicate" { [1, 1, 1, 2, 0] } else { [1, 0, 2, 2, 0] }
    );
    assert_eq!(world.sum("onlyonce_contradictions_total"), 2);
    for _ in &world.nodes {
        let told = world.needs_you("contradiction");
        assert_eq!((&told["count"], &told["is_more"]), (&json!(2), &json!(false)), "{told}");
        assert_eq!(
            (&told["records"][0]["key"], &told["records"][0]["source"]),
            (&json!("k-1"), &json!("bank")),
            "{told}"
        );
    }
}

/// U05, U06: "did not happen" is believed once the attempt can no longer act, unless it is final.
fn did_not_happen_is_noted_while_it_is_early_and_then_applied(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    let token = world.unknown("k-1");
    let event = json!({ "token": token, "verdict": "did-not-happen", "id": "evt_1" });
    let (_, told) = world.says(&event);
    assert_eq!((&told["result"], &told["state"]), (&json!("noted"), &json!("unknown")));
    assert!(told["earliest"].as_str().is_some_and(|earliest| earliest.ends_with('Z')), "{told}");
    assert_eq!(world.state("k-1"), "unknown");
    let told = until(|| world.says(&event), |told| told["result"] != "noted");
    assert_eq!((&told["result"], &told["state"]), (&json!("applied"), &json!("retryable")));
    assert_eq!(world.post("/ok", "k-2").status, 201);
    assert_eq!(world.post("/lost", "k-1").status, 502, "it runs again");
    assert_eq!(world.provider.runs("k-1"), 2);

    let token = world.unknown("k-3");
    let last = json!({ "token": token, "verdict": "did-not-happen", "final": true, "id": "evt_2" });
    assert_eq!(world.says(&last).1["result"], "applied", "a final word needs no waiting");
    let (_, told) = world.says(&json!({ "token": token, "verdict": "did-not-happen", "id": "evt_3" }));
    assert_eq!((&told["result"], &told["state"]), (&json!("already"), &json!("retryable")));
}

/// U05, U06: the late truth beats "may run again", also about an earlier attempt.
fn happened_about_a_record_that_may_run_again_completes_it(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    assert_eq!(world.post("/failing", "k-1").status, 503);
    assert_eq!(world.state("k-1"), "retryable");
    let token = world.provider.told("k-1", 1).token;
    let (_, told) = world.says(&json!({ "token": token, "verdict": "happened", "id": "evt_1" }));
    assert_eq!((&told["result"], &told["state"]), (&json!("applied"), &json!("completed")));
    assert_eq!(world.provider.runs("k-1"), 1);
    assert_eq!(world.post("/failing", "k-1").status, 409, "done, and no answer is stored");
    assert_eq!(world.provider.runs("k-1"), 1, "and it is not run again");

    assert_eq!(world.post("/failing", "k-2").status, 503);
    assert_eq!(world.post("/failing", "k-2").status, 503);
    let first = world.provider.told("k-2", 1).token;
    let (_, told) = world.says(&json!({ "token": first, "verdict": "unknown", "id": "evt_2" }));
    assert_eq!((&told["result"], &told["why"]), (&json!("ignored"), &json!("about an earlier attempt")));
    let (_, told) = world.says(&json!({ "token": first, "verdict": "happened", "id": "evt_3" }));
    assert_eq!(told["result"], "applied", "the work is done, whichever attempt did it");
}

/// U05, U06: a webhook may be faster than the answer, which then never comes.
fn what_is_said_while_the_attempt_runs_counts_if_the_attempt_is_lost(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    let address = world.node().address();
    let client = std::thread::spawn(move || post(address, "/held", "k-1"));
    let token = world.provider.told("k-1", 1).token;
    for (verdict, id) in [
        ("did-not-happen", "evt_1"),
        ("happened", "evt_2"),
        ("unknown", "evt_3"),
        ("did-not-happen-final", "evt_4"),
    ] {
        let event = json!({ "token": token, "verdict": verdict, "id": id, "response": { "status": 201, "body": "paid" } });
        let (_, told) = world.says(&event);
        assert_eq!((&told["result"], &told["state"]), (&json!("evidence"), &json!("running")), "{verdict}");
    }
    world.provider.let_go();
    client.join().unwrap();
    assert_eq!(world.state("k-1"), "completed", "the strongest counts, and not the last");
    let replay = world.post("/held", "k-1");
    assert_eq!((replay.status, text(&replay).as_str()), (201, "paid"));
    assert_eq!(world.provider.runs("k-1"), 1);
}

/// U05, U06: work that is known to be done is not run again, also where that would be safe, and whatever the attempt says.
fn what_happened_is_neither_run_again_nor_taken_back(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    for (number, (path, contradictions)) in [("/held/keyed", 0), ("/refusing", 1)].into_iter().enumerate() {
        let (key, address) = (format!("k-{number}"), world.node().address());
        let client = std::thread::spawn({
            let key = key.clone();
            move || post(address, path, &key)
        });
        let token = world.provider.told(&key, 1).token;
        let event = json!({ "token": token, "verdict": "happened", "id": key, "response": { "status": 201, "body": "paid" } });
        assert_eq!(world.says(&event).1["result"], "evidence", "{path}");
        world.provider.let_go();
        client.join().unwrap();
        assert_eq!(world.state(&key), "completed", "{path}");
        let replay = world.post(path, &key);
        assert_eq!((replay.status, text(&replay).as_str()), (201, "paid"), "{path}");
        assert_eq!(world.provider.runs(&key), 1, "{path}");
        assert_eq!(world.sum("onlyonce_contradictions_total"), contradictions, "{path}");
    }
    let told = world.needs_you("contradiction");
    assert_eq!((&told["count"], &told["records"][0]["key"]), (&json!(1), &json!("k-1")), "{told}");
    let (_, log) = world.told("GET", "/v1/audit?action=contradiction", &Value::Null);
    assert_eq!(log["items"].as_array().unwrap().len(), 1, "{log}");
}

/// U05, U06: neither by its token nor by its scope and key.
fn a_captured_webhook_does_not_settle_the_next_use_of_its_key(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    let token = world.unknown("k-1");
    let (scope, when) = (world.provider.told("k-1", 1).scope, now() - 6);
    let forget = format!("{}?reason=again&force=true", world.path("k-1"));
    assert_eq!(world.told("DELETE", &forget, &Value::Null).0, 200);
    world.unknown("k-1");
    let next = world.provider.told("k-1", 2).token;
    assert_ne!(token, next);
    let by_token = json!({ "token": token, "verdict": "happened", "id": "evt_1" });
    let by_key = json!({ "scope": scope, "key": "k-1", "when": when, "verdict": "happened", "id": "evt_2" })
        .to_string();
    for (_, told) in [world.says(&by_token), world.sent("inside", &by_key)] {
        assert_eq!(
            (&told["result"], &told["why"]),
            (&json!("ignored"), &json!("about an earlier use of the key"))
        );
    }
    assert_eq!(world.state("k-1"), "unknown");
    assert_eq!(
        world.says(&json!({ "token": next, "verdict": "happened", "id": "evt_3" })).1["result"],
        "applied"
    );
}

/// U05: by scope and key, and never about an earlier use of the key.
fn without_a_token_scope_and_key_and_the_time_count(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    world.unknown("k-1");
    let scope = world.provider.told("k-1", 1).scope;
    let event = |when: i64, id: &str| {
        json!({ "scope": scope, "key": "k-1", "verdict": "happened", "id": id, "when": when }).to_string()
    };
    let (_, told) = world.sent("inside", &event(now() - 60, "evt_1"));
    assert_eq!(
        (&told["result"], &told["why"]),
        (&json!("ignored"), &json!("about an earlier use of the key"))
    );
    assert_eq!(world.state("k-1"), "unknown");
    assert_eq!(
        world.sent("inside", &event(now() - 2, "evt_2")).1["result"],
        "applied",
        "clocks may differ a little"
    );

    world.unknown("k-2");
    let by_signature = json!({ "scope": scope, "key": "k-2", "verdict": "happened" });
    assert_eq!(world.says(&by_signature).1["result"], "applied", "without a time, the signature's counts");
    let elsewhere = json!({ "scope": scope, "key": "k-9", "verdict": "happened" });
    assert_eq!(
        world.says(&elsewhere).1,
        json!({ "result": "ignored", "state": null, "why": "no record matches", "earliest": null })
    );
    let nobody =
        json!({ "token": format!("{}.{}", "ab".repeat(32), "cd".repeat(16)), "verdict": "happened" });
    assert_eq!(world.says(&nobody).1["why"], "no record matches");
}

/// U05, U06: each refusal in its order; nothing is changed by any.
fn what_is_refused_changes_nothing(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    let token = world.unknown("k-1");
    let other = world.unknown("k-2");
    let scope = world.provider.told("k-1", 1).scope;
    let happened = json!({ "token": token, "verdict": "happened", "id": "evt_1" }).to_string();
    let right = signed(SECRET, now(), &happened);
    let header = |value: &str| world.raw("bank", &[("Onlyonce-Signature", value)], &happened);
    let told =
        |(status, body): (u16, Value)| format!("{status} {}", body["code"].as_str().unwrap_or_default());
    for (answer, expected) in [
        (world.sent("nobody", &happened), "404 webhook_source_unknown"),
        (world.raw("bank", &[], &happened), "401 webhook_signature_invalid"),
        (header("t=1"), "401 webhook_signature_invalid"),
        (header(&signed("wrong", now(), &happened)), "401 webhook_signature_invalid"),
        (header(&format!("t={},{right}", now())), "401 webhook_signature_invalid"),
        (header(&signed(SECRET, now() - 310, &happened)), "401 webhook_too_old"),
        (header(&signed(SECRET, now() + 310, &happened)), "401 webhook_too_old"),
        (
            world.raw("bank", &[("Onlyonce-Signature", &right), ("Onlyonce-Signature", &right)], &happened),
            "401 webhook_signature_invalid",
        ),
        (
            world.raw("bank", &[("Onlyonce-Signature", &right)], &happened.replace("evt_1", "evt_2")),
            "401 webhook_signature_invalid",
        ),
        (world.raw("bank", &[("Authorization", "Bearer x")], &happened), "401 webhook_signature_invalid"),
        (world.sent("bank", "{"), "400 webhook_malformed"),
        (world.sent("bank", "{}"), "400 webhook_malformed"),
        (world.says(&json!({ "token": "t", "verdict": "happened" })), "400 webhook_malformed"),
        (world.says(&json!({ "token": token })), "400 webhook_malformed"),
        (
            world.says(&json!({ "token": token, "verdict": "happened", "response": { "status": 9 } })),
            "400 webhook_malformed",
        ),
        (world.says(&json!({ "key": "k-1", "verdict": "happened" })), "422 webhook_ambiguous"),
        (
            world.says(&json!({ "token": other, "scope": scope, "key": "k-1", "verdict": "happened" })),
            "422 webhook_ambiguous",
        ),
        (
            world.says(&json!({ "token": other, "key": "k-1", "verdict": "happened" })),
            "422 webhook_ambiguous",
        ),
        (
            world.says(&json!({ "token": other, "scope": "00".repeat(32), "verdict": "happened" })),
            "422 webhook_ambiguous",
        ),
    ] {
        assert_eq!(told(answer), expected);
    }
    let large = json!({ "token": token, "verdict": "happened", "more": "x".repeat(1_200_000) }).to_string();
    assert_eq!(told(world.sent("bank", &large)), "413 admin_body_too_large");
    let get = http::get(&world.node().admin().to_string(), "/v1/webhooks/bank").unwrap();
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    assert_eq!((world.state("k-1"), world.state("k-2")), ("unknown".to_owned(), "unknown".to_owned()));
    assert_eq!(world.counted("bank", "refused"), 20);
    assert_eq!(world.counted("", "refused"), 1, "the name of no source is a label");
    assert_eq!(
        told(world.says(&json!({ "token": token, "scope": scope, "key": "k-1", "verdict": "happened" }))),
        "200 "
    );
    assert_eq!(world.state("k-1"), "completed");
}

/// U05: what is ours to decide and is not said, and what is said twice.
fn what_says_nothing_about_the_outcome_is_ignored(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    let token = world.unknown("k-1");
    for (verdict, why) in
        [("ignore", "the value is mapped to ignore"), ("pending", "the value is not mapped to a verdict")]
    {
        let (status, told) = world.says(&json!({ "token": token, "verdict": verdict, "id": verdict }));
        assert_eq!((status, &told["result"], &told["why"]), (200, &json!("ignored"), &json!(why)));
    }
    let (_, told) = world.says(&json!({ "token": token, "verdict": "unknown", "id": "evt_1" }));
    assert_eq!(
        (&told["result"], &told["state"], &told["earliest"]),
        (&json!("noted"), &json!("unknown"), &Value::Null)
    );
    assert_eq!(world.state("k-1"), "unknown");
    assert_eq!(world.counted("bank", "ignored"), 2);
    // The second secret of a source verifies too.
    assert_eq!(
        world.sent("inside", &json!({ "token": token, "verdict": "happened" }).to_string()).1["result"],
        "applied"
    );
}

/// An event of Stripe's, as Stripe sends it.
fn stripe(id: &str, kind: &str, token: &str, more: &Value) -> String {
    let mut object = json!({
        "id": "pi_3MtwBwLkdIwHu7ix28a3tqPa", "object": "payment_intent", "amount": 2000, "currency": "usd",
        "metadata": { "onlyonce_token": token, "order_id": "6735" }, "last_payment_error": null, "status": "processing",
    });
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "id": id, "object": "event", "api_version": "2025-10-29", "created": now(), "data": { "object": object }, "livemode": true,
        "pending_webhooks": 1, "request": { "id": "req_1", "idempotency_key": "the service's own" }, "type": kind,
    })
    .to_string()
}

/// U05, U07: out of order and contradictory; a decline is an answer, and the first that settles it stands.
fn stripes_events_settle_what_they_are_about(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    let token = world.unknown("k-1");
    let result = |body: &str| world.sent("stripe", body).1["result"].as_str().unwrap().to_owned();
    let event = |id: &str, kind: &str| stripe(id, kind, &token, &json!({}));
    assert_eq!(result(&event("evt_1", "payment_intent.created")), "ignored");
    assert_eq!(world.state("k-1"), "unknown");
    let succeeded = event("evt_2", "payment_intent.succeeded");
    assert_eq!(result(&succeeded), "applied");
    assert_eq!(result(&succeeded), world.again());
    assert_eq!(result(&event("evt_3", "charge.succeeded")), "already");
    assert_eq!(
        result(&event("evt_4", "payment_intent.payment_failed")),
        "contradiction",
        "a late failure changes nothing"
    );
    assert_eq!(world.post("/lost", "k-1").status, 409, "done, and nobody has the answer");

    let token = world.unknown("k-2");
    let error = json!({ "last_payment_error": { "code": "card_declined", "decline_code": "insufficient_funds", "message": "Your card has insufficient funds." } });
    assert_eq!(result(&stripe("evt_5", "payment_intent.payment_failed", &token, &error)), "applied");
    assert_eq!(result(&stripe("evt_6", "payment_intent.succeeded", &token, &json!({}))), "contradiction");
    let declined = world.post("/lost", "k-2");
    assert_eq!((declined.status, declined.header("idempotent-replayed")), (402, Some("true")));
    assert_eq!(declined.header("content-type"), Some("application/problem+json"));
    let told = json_of(&declined);
    assert_eq!(
        (&told["code"], &told["decline_code"], &told["retryable"]),
        (&json!("downstream_declined"), &json!("insufficient_funds"), &json!(false))
    );

    let foreign = json!({ "id": "evt_7", "object": "event", "created": now(), "type": "customer.created", "data": { "object": { "id": "cus_1", "metadata": {} } } });
    let (status, told) = world.sent("stripe", &foreign.to_string());
    assert_eq!(
        (status, &told["result"], &told["why"]),
        (200, &json!("ignored"), &json!("it names no record of ours"))
    );
    let (status, told) = world.raw("stripe", &[("Onlyonce-Signature", &signed(SECRET, now(), "{}"))], "{}");
    assert_eq!(
        (status, &told["code"]),
        (401, &json!("webhook_signature_invalid")),
        "Stripe's header is another"
    );
}

/// U05: a provider reaches the gateway's port, and there only what is public.
fn a_public_source_is_served_on_the_gateways_port_and_no_other_exists_there(engine: Engine) {
    let world = World::new(engine, SETTINGS);
    let token = world.unknown("k-1");
    let body = json!({ "token": token, "verdict": "happened", "id": "evt_1" }).to_string();
    let signature = signed(SECRET, now(), &body);
    let headers = [("Onlyonce-Signature", &*signature)];
    let at = |path: &str| deliver(world.node().address(), path, &headers, &body);
    let (status, inside) = at("/_onlyonce/webhooks/inside");
    let (_, nobody) = at("/_onlyonce/webhooks/nobody");
    assert_eq!((status, &inside["code"]), (404, &json!("webhook_source_unknown")));
    assert_eq!(inside, nobody, "one that is not public is as one that does not exist");
    for path in ["/_onlyonce/webhooks", "/_onlyonce/webhooks/", "/_onlyonce/webhooks/bank/x"] {
        assert_ne!(at(path).0, 200, "{path}");
    }
    let get = http::get(&world.node().address().to_string(), "/_onlyonce/webhooks/bank").unwrap();
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    let large = format!("{body}{}", " ".repeat(1_200_000));
    let (status, told) = deliver(world.node().address(), "/_onlyonce/webhooks/bank", &headers, &large);
    assert_eq!((status, &told["code"]), (413, &json!("admin_body_too_large")));
    let (status, told) = deliver(world.node().address(), "/_onlyonce/webhooks/bank", &[], &body);
    assert_eq!((status, &told["code"]), (401, &json!("webhook_signature_invalid")));
    assert_eq!(world.state("k-1"), "unknown");
    let (status, told) = at("/x/../_onlyonce/webhooks/bank");
    assert_eq!((status, &told["result"]), (200, &json!("applied")));
    assert_eq!(world.state("k-1"), "completed");
    assert_eq!(world.provider.runs(""), 0, "nothing of it was forwarded");
}

/// G04, U05: sources and secrets as the settings have them now.
#[test]
fn a_reload_changes_sources_and_secrets() {
    let mut world = World::new(Engine::Memory, SETTINGS);
    let token = world.unknown("k-1");
    let changed = SETTINGS
        .replace("[webhooks.inside]", "[webhooks.elsewhere]")
        .replace("public = true", "tolerance = \"1h\"");
    std::fs::write(world.folder.path().join("onlyonce.toml"), changed).unwrap();
    world.nodes[0].signal("HUP");
    world.0.nodes[0].says("reloaded");
    let body = json!({ "token": token, "verdict": "happened" }).to_string();
    assert_eq!(world.sent("inside", &body).0, 404);
    let old = signed(SECRET, now() - 1_800, &body);
    let (status, _) =
        deliver(world.node().address(), "/_onlyonce/webhooks/bank", &[("Onlyonce-Signature", &old)], &body);
    assert_eq!(status, 404, "it is not public any more");
    let by_second = world.raw(
        "elsewhere",
        &[("Onlyonce-Signature", &signed("another", now(), &body.replace("happened", "unknown")))],
        &body.replace("happened", "unknown"),
    );
    assert_eq!(by_second.1["result"], "noted");
    assert_eq!(world.raw("bank", &[("Onlyonce-Signature", &old)], &body).1["result"], "applied");
}

/// U05: what the store did not take is sent again.
#[test]
fn a_webhook_that_the_store_does_not_take_is_503_and_settles_when_it_comes_again() {
    let (folder, provider) = (Folder::new(), Provider::start());
    let disk = Disk::new(folder.path(), &folder.path().join("onlyonce.db"));
    let file = folder.path().join("onlyonce.toml");
    std::fs::write(&file, SETTINGS).unwrap();
    let store = folder.url("onlyonce.db");
    let start = || {
        let mut command = onlyonce();
        command.envs(disk.environment()).env("WEBHOOK_SECRET", SECRET).env("OTHER_SECRET", "another");
        let arguments =
            ["--config", file.to_str().unwrap(), "--upstream", &provider.url(), "--store", &store];
        Serving::start_as(command, &arguments)
    };
    let serving = start();
    assert_eq!(post(serving.address(), "/lost", "k-1").status, 502);
    let body =
        json!({ "token": provider.told("k-1", 1).token, "verdict": "happened", "id": "evt_1" }).to_string();
    let send = |serving: &Serving| {
        let signature = signed(SECRET, now(), &body);
        deliver(serving.admin(), "/v1/webhooks/bank", &[("Onlyonce-Signature", &signature)], &body)
    };
    disk.fail("-wal");
    let (status, told) = send(&serving);
    assert_eq!((status, &told["code"]), (503, &json!("store_unavailable")));
    disk.recover();
    drop(serving);
    let serving = start();
    // Whether a write that could not be synced is there after a restart is the disk's to say.
    let (_, told) = send(&serving);
    assert!(["applied", "already"].contains(&told["result"].as_str().unwrap()), "{told}");
    assert_eq!(told["state"], "completed");
}

/// A body that does not come is not waited for by anybody else.
#[test]
fn a_slow_webhook_holds_up_nobody() {
    use std::io::Write;
    let world = World::new(Engine::Memory, SETTINGS);
    let slow: Vec<_> = (0..64)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(world.node().address()).unwrap();
            write!(
                stream,
                "POST /_onlyonce/webhooks/bank HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{{"
            )
            .unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    assert_eq!(world.post("/ok", "k-1").status, 201);
    assert!(began.elapsed() < Duration::from_secs(10));
    drop(slow);
}
