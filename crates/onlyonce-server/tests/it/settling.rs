//! What an operator orders at one gateway is what clients get at every other.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use serde_json::{Value, json};

use crate::engines::{Engine, on_every_engine};
use crate::gateways::{Gateways, post, text};

on_every_engine! {
    functions {
        a_verdict_decides_what_retries_get,
        a_forced_verdict_supersedes_the_attempt_that_runs,
        what_is_forgotten_runs_anew_and_what_is_in_doubt_is_not_forgotten,
        a_purged_scope_runs_anew_and_its_keys_are_nowhere,
    }
}

/// The status, and the code of a refusal or the result of an order.
fn order(world: &Gateways, method: &str, path: &str, body: &Value) -> (u16, String) {
    let (status, told) = world.told(method, path, body);
    let word = told["code"].as_str().or(told["result"].as_str()).unwrap_or_default();
    (status, word.to_owned())
}

fn is_replay(answer: &onlyonce_testkit::http::Answer) -> bool {
    answer.header("idempotent-replayed") == Some("true")
}

/// U05, U06, U09, L04: every kind of verdict, from the doubt to the retry and the audit log.
fn a_verdict_decides_what_retries_get(engine: Engine) {
    let world = Gateways::new(engine, "", &[]);
    let happened = json!({ "verdict": "happened", "reason": "seen" });
    let paid =
        json!({ "verdict": "happened", "reason": "seen", "response": { "status": 201, "body": "paid" } });
    let did_not = json!({ "verdict": "did-not-happen", "reason": "not seen" });
    let never = json!({ "verdict": "did-not-happen", "final": true, "reason": "it cannot" });
    let unknown = json!({ "verdict": "unknown", "reason": "ask" });
    let table = [
        ("paid", "", &paid, (200, "applied"), 201, 1),
        ("happened", "", &happened, (200, "applied"), 409, 1),
        ("final", "", &never, (200, "applied"), 502, 2),
        ("early", "", &did_not, (409, "verdict_too_early"), 409, 1),
        ("forced", "?force=true", &did_not, (200, "applied"), 502, 2),
        ("asked", "", &unknown, (409, "nothing_to_ask"), 409, 1),
        ("dry", "?dry_run=true", &paid, (200, "would-apply"), 409, 1),
    ];
    for (key, query, verdict, (status, word), retried, runs) in table {
        world.unknown(key);
        let path = format!("{}/verdict{query}", world.path(key));
        assert_eq!(order(&world, "POST", &path, verdict), (status, word.to_owned()), "{key}");
        let retry = world.post("/lost", key);
        assert_eq!((retry.status, is_replay(&retry)), (retried, key == "paid"), "{key}: {}", text(&retry));
        assert_eq!(world.provider.runs(key), runs, "{key}");
    }
    assert_eq!(text(&world.post("/lost", "paid")), "paid");
    let shown = world.ask("GET", &format!("{}/response", world.path("paid")), &Value::Null);
    assert_eq!((shown.status, text(&shown).as_str()), (201, "paid"));
    let (_, log) = world.told("GET", "/v1/audit?action=verdict", &Value::Null);
    let entries: Vec<_> = log["items"].as_array().unwrap().iter().rev().collect();
    let expected = table.iter().filter(|(key, ..)| *key != "dry");
    let expected: Vec<_> = expected
        .map(|(key, query, _, (status, word), ..)| match status {
            200 => (json!(key), json!(word), Value::Null, !query.is_empty()),
            _ => (json!(key), json!("refused"), json!(word), false),
        })
        .collect();
    let told: Vec<_> = entries
        .iter()
        .map(|entry| {
            let forced = entry["forced"].as_bool().unwrap();
            (entry["target"]["key"].clone(), entry["result"].clone(), entry["code"].clone(), forced)
        })
        .collect();
    assert_eq!(told, expected, "one log for all nodes");
}

/// U06: the client of the old attempt gets what the operator said.
fn a_forced_verdict_supersedes_the_attempt_that_runs(engine: Engine) {
    let world = Gateways::new(engine, "", &[]);
    let address = world.node().address();
    let client = std::thread::spawn(move || post(address, "/held", "held"));
    let path = format!("{}/verdict", world.path("held"));
    let said =
        json!({ "verdict": "happened", "reason": "seen", "response": { "status": 201, "body": "settled" } });
    assert_eq!(order(&world, "POST", &path, &said), (409, "record_running".to_owned()));
    let forced = format!("{path}?force=true");
    assert_eq!(order(&world, "POST", &forced, &said), (200, "applied".to_owned()));
    for _ in &world.nodes {
        let retry = world.post("/held", "held");
        assert_eq!((retry.status, text(&retry).as_str(), is_replay(&retry)), (201, "settled", true));
    }
    world.provider.let_go();
    let own = client.join().unwrap();
    assert_eq!((own.status, text(&own).as_str()), (201, "settled"));
    assert_eq!(world.provider.runs("held"), 1);
    assert_eq!(world.sum("onlyonce_superseded_total"), 1);
}

/// L04, X04
fn what_is_forgotten_runs_anew_and_what_is_in_doubt_is_not_forgotten(engine: Engine) {
    let world = Gateways::new(engine, "", &[]);
    assert_eq!(world.post("/ok", "paid").status, 201);
    for _ in &world.nodes {
        assert!(is_replay(&world.post("/ok", "paid")), "every node has a copy");
    }
    world.unknown("lost");
    let (paid, lost) =
        (format!("{}?reason=again", world.path("paid")), format!("{}?reason=again", world.path("lost")));
    assert_eq!(
        order(&world, "DELETE", &format!("{paid}&dry_run=true"), &Value::Null),
        (200, "would-apply".to_owned())
    );
    assert_eq!(order(&world, "DELETE", &lost, &Value::Null), (409, "record_unknown".to_owned()));
    assert_eq!(order(&world, "DELETE", &paid, &Value::Null), (200, "forgotten".to_owned()));
    let anew = world.post("/ok", "paid");
    assert_eq!((anew.status, is_replay(&anew), world.provider.runs("paid")), (201, false, 2));
    assert_eq!(
        order(&world, "DELETE", &format!("{lost}&force=true"), &Value::Null),
        (200, "forgotten".to_owned())
    );
    assert_eq!(order(&world, "DELETE", &lost, &Value::Null), (404, "record_not_found".to_owned()));
    assert_eq!((world.post("/lost", "lost").status, world.provider.runs("lost")), (502, 2));
}

/// L04, S06
fn a_purged_scope_runs_anew_and_its_keys_are_nowhere(engine: Engine) {
    let world = Gateways::new(engine, "", &[]);
    for key in ["one", "two"] {
        assert_eq!(world.post("/ok", key).status, 201);
    }
    world.unknown("lost");
    world.ask("GET", &format!("{}/response", world.path("one")), &Value::Null);
    let purge = format!("/v1/scopes/{}?reason=erase", world.provider.told("one", 1).scope);
    let (_, would) = world.told("DELETE", &format!("{purge}&dry_run=true"), &Value::Null);
    assert_eq!((&would["forgotten"], &would["kept"]["unknown"]), (&json!(2), &json!(1)), "{would}");
    let (_, partly) = world.told("DELETE", &purge, &Value::Null);
    assert_eq!((&partly["result"], &partly["forgotten"]), (&json!("partly"), &json!(2)), "{partly}");
    assert_eq!(world.state("lost"), "unknown");
    let anew = world.post("/ok", "one");
    assert_eq!((anew.status, is_replay(&anew), world.provider.runs("one")), (201, false, 2));
    let (_, done) = world.told("DELETE", &format!("{purge}&force=true"), &Value::Null);
    assert_eq!((&done["result"], &done["forgotten"]), (&json!("done"), &json!(2)), "{done}");
    let (_, log) = world.told("GET", "/v1/audit", &Value::Null);
    let entries = log["items"].as_array().unwrap();
    assert_eq!(entries.len(), 3, "one entry for each purge, and that somebody looked: {log}");
    assert!(entries.iter().all(|entry| entry["target"]["key"].is_null()), "{log}");
    let (_, left) = world.told("GET", "/v1/keys", &Value::Null);
    assert_eq!(left["items"], json!([]));
}
