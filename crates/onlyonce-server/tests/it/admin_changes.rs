//! Changing: verdicts, forgetting, purging; each with its entry in the audit log, or not at all.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::machine;
use onlyonce_core::record::{Response, StateName, Verdict};
use serde_json::{Value, json};

use crate::admin_world::{Made, World, moment, scope};
use crate::engines::{Engine, on_every_engine};

on_every_engine! {
    futures {
        a_verdict_is_judged_by_the_state_of_the_record,
        an_attempt_that_nobody_came_back_for_is_judged_as_unknown,
        force_passes_the_hour_and_the_lease_and_nothing_else,
        refusals_say_what_to_do_next,
        what_came_too_early_is_believed_in_time_or_with_force,
        happened_stores_the_answer_that_retries_get,
        a_retryable_record_is_completed_only_by_whoever_names_its_last_attempt,
        unknown_asks_the_probe_and_happened_may_ask_it_for_the_answer,
        an_order_for_a_record_that_has_changed_is_refused,
        an_order_that_is_not_understood_changes_nothing,
        a_body_that_is_too_large_is_refused_whether_or_not_it_says_so,
        a_forgotten_key_is_as_if_it_had_never_been_used,
        a_purge_forgets_a_scope_and_keeps_what_is_open_unless_forced,
    }
}

const STATES: [StateName; 5] = StateName::ALL;

fn said(verdict: &str) -> Value {
    match verdict {
        "final" => json!({ "verdict": "did-not-happen", "final": true, "reason": "it never can" }),
        _ => json!({ "verdict": verdict, "reason": "checked with the bank" }),
    }
}

/// U05, U06, U09: the table of the contract, with and without a probe.
async fn a_verdict_is_judged_by_the_state_of_the_record(engine: Engine) {
    const TABLE: &[(StateName, [(u16, &str); 4])] = &[
        (StateName::Pending, [(409, "record_settled"); 4]),
        (StateName::Running, [(409, "record_running"); 4]),
        (StateName::Completed, [(409, "record_settled"); 4]),
        (StateName::Retryable, [(409, "record_settled"); 4]),
        (
            StateName::Unknown,
            [(200, "applied"), (200, "applied"), (409, "verdict_too_early"), (409, "nothing_to_ask")],
        ),
    ];
    let world = World::new(engine).await;
    for (state, answers) in TABLE {
        for (verdict, (status, word)) in
            ["happened", "final", "did-not-happen", "unknown"].iter().zip(answers)
        {
            let made = world.record("acme", &format!("{state}-{verdict}"), *state).await;
            let before = world.audit().await.len();
            let would = world.verdict(&made, "?dry_run=true", &said(verdict)).await;
            assert_eq!(
                world.seen(&made).await.unwrap().revision,
                made.seen.revision,
                "a dry run writes nothing"
            );
            assert_eq!(world.audit().await.len(), before, "a dry run is not in the audit log");
            let answer = world.verdict(&made, "", &said(verdict)).await;
            let told = format!("{state} {verdict}: {}", answer.body);
            assert_eq!(answer.told(), (*status, (*word).to_owned()), "{told}");
            let would_word = if *status == 200 { "would-apply" } else { word };
            assert_eq!(would.told(), (*status, would_word.to_owned()), "{told}");
            let log = world.audit().await;
            assert_eq!(log.len(), before + 1, "refused orders are in the log too: {told}");
            let entry = log.last().unwrap();
            let (result, code) = if *status == 200 { (*word, None) } else { ("refused", Some(*word)) };
            assert_eq!(
                (&*entry.action, &*entry.result, entry.code.as_deref()),
                ("verdict", result, code),
                "{told}"
            );
            let revision = world.seen(&made).await.unwrap().revision;
            assert_eq!(revision == made.seen.revision, *status == 409, "{told}");
        }
    }
}

/// U06: whether or not the sweeper has come.
async fn an_attempt_that_nobody_came_back_for_is_judged_as_unknown(engine: Engine) {
    const TABLE: [(&str, u16, &str, StateName); 4] = [
        ("happened", 200, "applied", StateName::Completed),
        ("final", 200, "applied", StateName::Retryable),
        ("did-not-happen", 409, "verdict_too_early", StateName::Running),
        ("unknown", 200, "noted", StateName::Unknown),
    ];
    let world = World::new(engine).await;
    let mut lapsed = Vec::new();
    for (verdict, ..) in TABLE {
        lapsed.push(world.record("acme", verdict, StateName::Running).await);
    }
    world.pass(onlyonce_core::policy::Policy::default().lease).await;
    for ((verdict, status, word, state), made) in TABLE.into_iter().zip(&lapsed) {
        let asked = world.verdict(made, "", &said("unknown")).await;
        assert_eq!(asked.told(), (409, "nothing_to_ask".to_owned()), "without a probe");
        if verdict == "unknown" {
            world.probe(Verdict::StillUnknown);
        }
        assert_eq!(
            world.verdict(made, "", &said(verdict)).await.told(),
            (status, word.to_owned()),
            "{verdict}"
        );
        assert_eq!(world.seen(made).await.unwrap().record.state.name(), state, "{verdict}");
    }
}

/// U06
async fn force_passes_the_hour_and_the_lease_and_nothing_else(engine: Engine) {
    let world = World::new(engine).await;
    for state in [StateName::Pending, StateName::Completed, StateName::Retryable] {
        for verdict in ["happened", "final", "did-not-happen", "unknown"] {
            let made = world.record("acme", &format!("{state}-{verdict}"), state).await;
            let answer = world.verdict(&made, "?force=true", &said(verdict)).await;
            assert_eq!(answer.told(), (409, "record_settled".to_owned()), "{state} {verdict}");
            assert_eq!(world.seen(&made).await.unwrap().revision, made.seen.revision, "{state} {verdict}");
        }
    }
}

/// U06, O06
async fn refusals_say_what_to_do_next(engine: Engine) {
    let world = World::new(engine).await;
    let running = world.record("acme", "running", StateName::Running).await;
    let body = world.verdict(&running, "", &said("happened")).await.json();
    let lapses_at = machine::facts(&running.seen.record).lapses_at.unwrap();
    assert_eq!(body["lapses_at"], moment(lapses_at), "{body}");
    assert!(body["deadline_at"].is_string(), "{body}");
    let unknown = world.record("acme", "unknown", StateName::Unknown).await;
    let body = world.verdict(&unknown, "", &said("did-not-happen")).await.json();
    let believed_at = world.get(unknown.path()).await.json()["believed_at"].clone();
    assert!(believed_at.is_string());
    assert_eq!(body["earliest"], believed_at);
    let completed = world.record("acme", "completed", StateName::Completed).await;
    let body = world.verdict(&completed, "", &said("happened")).await.json();
    assert_eq!((&body["state"], &body["by"]), (&json!("completed"), &json!("attempt")));
    let forget = world.ask("DELETE", format!("{}?reason=r", unknown.path())).send().await;
    assert_eq!(forget.told(), (409, "record_unknown".to_owned()));
    assert!(
        forget.json()["detail"].as_str().unwrap().contains("give the verdict happened or did-not-happen")
    );
    let forget = world.ask("DELETE", format!("{}?reason=r", running.path())).send().await;
    assert_eq!(forget.told(), (409, "record_running".to_owned()));
}

/// U06: "did not happen" is believed once the attempt can no longer act, also of an attempt that nobody came back for.
async fn what_came_too_early_is_believed_in_time_or_with_force(engine: Engine) {
    let world = World::new(engine).await;
    let forced = world.record("acme", "forced", StateName::Unknown).await;
    let answer = world.verdict(&forced, "?force=true", &said("did-not-happen")).await;
    assert_eq!(answer.told(), (200, "applied".to_owned()));
    assert_eq!(answer.json()["after"], json!({ "state": "retryable", "attempt": 1 }));
    assert!(world.audit().await.last().unwrap().forced);
    let running = world.record("acme", "running", StateName::Running).await;
    let answer = world.verdict(&running, "?force=true", &said("happened")).await;
    assert_eq!(answer.told(), (200, "applied".to_owned()));
    let token = world.seen(&running).await.unwrap().record.token;
    assert_ne!(token, running.seen.record.token, "the old attempt is superseded");
    let patient = world.record("acme", "patient", StateName::Unknown).await;
    let lapsed = world.record("acme", "lapsed", StateName::Running).await;
    world.pass(Duration::from_secs(24 * 3600)).await;
    for made in [&patient, &lapsed] {
        assert_eq!(
            world.verdict(made, "", &said("did-not-happen")).await.told(),
            (200, "applied".to_owned())
        );
        assert_eq!(world.get(made.path()).await.told().0, 200);
    }
    // Force passes the hour and the lease, and nothing else.
    let completed = world.record("acme", "completed", StateName::Completed).await;
    let answer = world.verdict(&completed, "?force=true", &said("happened")).await;
    assert_eq!(answer.told(), (409, "record_settled".to_owned()));
    let unknown = world.record("acme", "unknown", StateName::Unknown).await;
    assert_eq!(world.verdict(&unknown, "?force=true", &said("unknown")).await.told().1, "nothing_to_ask");
}

/// U06, U09, L04: the verdict is the client's answer.
async fn happened_stores_the_answer_that_retries_get(engine: Engine) {
    let world = World::new(engine).await;
    let made = world.record("acme", "k", StateName::Unknown).await;
    let body = json!({
        "verdict": "happened",
        "reason": "seen in the bank's list",
        "response": { "status": 202, "headers": { "Content-Type": "text/csv", "x-line": ["a", "b"] }, "body_base64": "YSxi" },
    });
    let answer = world
        .ask("POST", format!("{}/verdict", made.path()))
        .header("Onlyonce-As", "ann")
        .json(&body)
        .send()
        .await;
    assert_eq!(answer.told(), (200, "applied".to_owned()), "{}", answer.body);
    let told = answer.json();
    assert_eq!(
        (&told["before"], &told["after"]),
        (&json!({ "state": "unknown", "attempt": 1 }), &json!({ "state": "completed", "attempt": 1 }),)
    );
    let verdict = told["record"]["evidence"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["what"] == "verdict")
        .unwrap();
    assert_eq!(
        (&verdict["who"], &verdict["said"], &verdict["detail"], &verdict["by"]),
        (&json!("local"), &json!("happened"), &json!("seen in the bank's list"), &json!("operator"))
    );
    let log = world.audit().await;
    let entry = log.last().unwrap();
    assert_eq!(told["audit"], json!(&*entry.id));
    assert_eq!(entry.before.as_deref(), Some(r#"{"state":"unknown","attempt":1}"#));
    assert_eq!(entry.after.as_deref(), Some(r#"{"state":"completed","attempt":1,"status":202,"bytes":3}"#));
    assert_eq!(
        (&*entry.who, entry.claims.as_deref(), entry.reason.as_deref()),
        ("local", Some("ann"), Some("seen in the bank's list"))
    );
    let shown = world.get(format!("{}/response", made.path())).await;
    assert_eq!((shown.status, &*shown.body, shown.header("content-type")), (202, "a,b", Some("text/csv")));
    let lines: Vec<_> =
        shown.headers.iter().filter(|(name, _)| name == "x-line").map(|(_, value)| &**value).collect();
    assert_eq!(lines, ["a", "b"]);
}

/// U06
async fn a_retryable_record_is_completed_only_by_whoever_names_its_last_attempt(engine: Engine) {
    let world = World::new(engine).await;
    let with_token =
        |token: &str| json!({ "verdict": "happened", "reason": "it ran after all", "token": token });
    let made = world.record("acme", "k", StateName::Retryable).await;
    let other = world.record("acme", "other", StateName::Retryable).await;
    let (_, token) =
        made.token().split_once('.').map(|(id, token)| (id.to_owned(), token.to_owned())).unwrap();
    for wrong in [other.token(), format!("{}.{token}", other.id), format!("{}.{}", made.id, "0".repeat(32))] {
        let answer = world.verdict(&made, "", &with_token(&wrong)).await;
        assert_eq!(answer.told(), (409, "record_settled".to_owned()), "{wrong}");
    }
    let answer = world.verdict(&made, "", &with_token(&made.token())).await;
    assert_eq!(answer.told(), (200, "applied".to_owned()));
    let unknown = world.record("acme", "unknown", StateName::Unknown).await;
    assert_eq!(world.verdict(&unknown, "", &with_token(&made.token())).await.told().1, "record_settled");
    assert_eq!(world.verdict(&unknown, "", &with_token(&unknown.token())).await.told().1, "applied");
}

/// U05, U06: the probe may have the answer that a person has not.
async fn unknown_asks_the_probe_and_happened_may_ask_it_for_the_answer(engine: Engine) {
    let world = World::new(engine).await;
    let response = Response { status: 201, headers: Vec::new(), body: Bytes::from("from the probe") };
    world.probe(Verdict::Happened(Some(Arc::new(response))));
    let made = world.record("acme", "asked", StateName::Unknown).await;
    let answer = world.verdict(&made, "?dry_run=true", &said("unknown")).await;
    assert_eq!(answer.told(), (200, "would-apply".to_owned()));
    let answer = world.verdict(&made, "", &said("unknown")).await;
    assert_eq!(answer.told(), (200, "noted".to_owned()));
    assert!(answer.json()["record"]["ask_at"].is_string(), "{}", answer.body);
    assert_eq!(&*world.audit().await.last().unwrap().result, "noted");
    for (key, ask, expected) in [("with", true, json!(201)), ("without", false, Value::Null)] {
        let made = world.record("acme", key, StateName::Unknown).await;
        let body = json!({ "verdict": "happened", "reason": "r", "ask": ask });
        let answer = world.verdict(&made, "", &body).await;
        assert_eq!(
            (answer.told(), &answer.json()["record"]["status"]),
            ((200, "applied".to_owned()), &expected)
        );
    }
}

/// U09: two operators at once.
async fn an_order_for_a_record_that_has_changed_is_refused(engine: Engine) {
    let world = World::new(engine).await;
    let made = world.record("acme", "k", StateName::Unknown).await;
    let revision = world.get(made.path()).await.header("etag").unwrap().to_owned();
    let give = async |header: &str| {
        let ask = world.ask("POST", format!("{}/verdict", made.path())).json(&said("happened"));
        ask.header("If-Match", header).send().await
    };
    for other in ["\"0000000000000000\"", "\"\"", "\"x\"", "\"*\""] {
        let answer = give(other).await;
        assert_eq!(answer.told(), (412, "record_changed".to_owned()), "{other}");
        assert_eq!(format!("\"{}\"", answer.json()["revision"].as_str().unwrap()), revision);
        assert_eq!(answer.header("etag"), Some(&*revision));
        assert_eq!(world.audit().await.last().unwrap().code.as_deref(), Some("record_changed"));
    }
    for malformed in ["x", "", "\"a\" \"b\"", "W/\"0000000000000000\"", "\"a\", \"b\""] {
        let answer = give(malformed).await;
        assert_eq!(answer.told(), (400, "admin_request_invalid".to_owned()), "{malformed}");
        assert_eq!(answer.json()["faults"][0]["path"], "header.if-match");
    }
    assert_eq!(world.seen(&made).await.unwrap().revision, made.seen.revision);
    let delete =
        world.ask("DELETE", format!("{}?reason=r&force=true", made.path())).header("If-Match", "\"x\"");
    assert_eq!(delete.send().await.told(), (412, "record_changed".to_owned()));
    assert_eq!(give(&revision).await.told(), (200, "applied".to_owned()));
    assert_eq!(give(&revision).await.told(), (412, "record_changed".to_owned()), "the second operator");
    let unknown = world.record("acme", "any", StateName::Unknown).await;
    let ask = world.ask("POST", format!("{}/verdict", unknown.path())).json(&said("happened"));
    assert_eq!(ask.header("If-Match", "*").send().await.told(), (200, "applied".to_owned()));
}

/// O06, U06: bad input never changes anything.
async fn an_order_that_is_not_understood_changes_nothing(engine: Engine) {
    let world = World::new(engine).await;
    let made = world.record("acme", "k", StateName::Unknown).await;
    let path = format!("{}/verdict", made.path());
    let happened = said("happened").to_string();
    let post = |query: &str, content_type: &str, body: &str| {
        world.ask("POST", format!("{path}{query}")).body(content_type, body).send()
    };
    for content_type in
        ["text/plain", "application/jsonx", "application/json, text/plain", "multipart/form-data", ""]
    {
        let answer = post("", content_type, &happened).await;
        assert_eq!(answer.told(), (415, "admin_content_type".to_owned()), "{content_type}");
    }
    let bare = world.ask("POST", &*path).send().await;
    assert_eq!(bare.told(), (415, "admin_content_type".to_owned()));
    for (query, body) in [
        ("", ""),
        ("", "[]"),
        ("", "{"),
        ("?force=yes", &*happened),
        ("?forced=true", &*happened),
        ("?force=true&force=true", &*happened),
        ("?reason=r", &*happened),
        ("", r#"{"verdict":"happened","reason":"r","unknown_member":1}"#),
        ("", r#"{"verdict":"happened","reason":"r","response":{"status":99}}"#),
        ("", r#"{"verdict":"happened","verdict":"unknown","reason":"r"}"#),
        ("", r#"{"verdict":"maybe","reason":"r"}"#),
        ("?dry_run=2", r#"{"reason":""}"#),
    ] {
        let answer = post(query, "application/json", body).await;
        assert_eq!(answer.told(), (400, "admin_request_invalid".to_owned()), "{query} {body}");
        assert!(!answer.json()["faults"].as_array().unwrap().is_empty());
    }
    let all = post("?force=yes&x=1", "application/json", r#"{"verdict":"maybe","a":1}"#).await.json();
    let paths: Vec<_> = all["faults"].as_array().unwrap().iter().map(|fault| fault["path"].clone()).collect();
    assert_eq!(paths, ["query.force", "query.x", "body.a", "body.verdict", "body.reason"]);
    let long = format!(r#"{{"verdict":"happened","reason":"{}"}}"#, "x".repeat(1_001));
    for body in [r#"{"verdict":"happened"}"#, r#"{"verdict":"happened","reason":"  "}"#, &long] {
        let answer = post("", "application/json; charset=utf-8", body).await;
        assert_eq!(answer.told(), (400, "reason_missing".to_owned()), "{body}");
    }
    let scope_path = format!("/v1/scopes/{}", scope("acme"));
    for path in [&made.path(), &scope_path] {
        for (query, code) in [
            ("", "reason_missing"),
            ("?reason=", "reason_missing"),
            ("?reason=%20", "reason_missing"),
            ("?force=true", "reason_missing"),
            ("?reason=r&all=true", "admin_request_invalid"),
            ("?reason=r&reason=r", "admin_request_invalid"),
        ] {
            let answer = world.ask("DELETE", format!("{path}{query}")).send().await;
            assert_eq!(answer.told(), (400, code.to_owned()), "{path}{query}");
        }
    }
    assert_eq!(
        world.ask("DELETE", "/v1/scopes/acme?reason=r").send().await.told().1,
        "admin_request_invalid"
    );
    let named =
        world.ask("DELETE", format!("{}?reason=r", made.path())).header("Onlyonce-As", "x".repeat(101));
    assert_eq!(named.send().await.told(), (400, "admin_request_invalid".to_owned()));
    assert_eq!(world.seen(&made).await.unwrap().revision, made.seen.revision);
    assert_eq!(world.audit().await, []);
}

/// L06
async fn a_body_that_is_too_large_is_refused_whether_or_not_it_says_so(engine: Engine) {
    let world = World::new(engine).await;
    let made = world.record("acme", "k", StateName::Unknown).await;
    let policy = onlyonce_core::policy::Policy::default();
    let bytes_max = usize::try_from(policy.response_bytes_max).unwrap() + 64 * 1024;
    let with = |bytes: usize| {
        let bare = json!({ "verdict": "happened", "reason": "r", "response": { "status": 200, "body": "" } })
            .to_string();
        bare.replace("\"body\":\"\"", &format!("\"body\":\"{}\"", "x".repeat(bytes - bare.len())))
    };
    let path = format!("{}/verdict?dry_run=true", made.path());
    let answer = world.ask("POST", &*path).body("application/json", with(bytes_max + 1)).send().await;
    assert_eq!(answer.told(), (413, "admin_body_too_large".to_owned()));
    assert_eq!(answer.json()["bytes_max"], bytes_max);
    let answer = world.ask("POST", &*path).body("application/json", with(bytes_max)).send().await;
    assert_eq!(answer.told(), (200, "would-apply".to_owned()));
    // One that is refused before its body is read is told so too, and not cut off.
    let unread = world.ask("POST", "/v1/nowhere").body("application/json", with(16 * bytes_max)).send().await;
    assert_eq!(unread.told(), (404, "admin_not_found".to_owned()));
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    for (bytes, expected) in [(bytes_max + 1, 413), (bytes_max, 200)] {
        let answer =
            world.ask("POST", &*path).chunked(&format!("{}0\r\n\r\n", chunk(&with(bytes)))).send().await;
        assert_eq!(answer.status, expected, "{}", answer.body);
    }
}

/// L04
async fn a_forgotten_key_is_as_if_it_had_never_been_used(engine: Engine) {
    let world = World::new(engine).await;
    for state in STATES {
        let made = world.record("acme", state.as_str(), state).await;
        let is_open = matches!(state, StateName::Running | StateName::Unknown);
        let force = if is_open { "&force=true" } else { "" };
        let delete =
            |more: &str| world.ask("DELETE", format!("{}?reason=a+test{force}{more}", made.path())).send();
        let would = delete("&dry_run=true").await;
        assert_eq!(would.told(), (200, "would-apply".to_owned()), "{state}");
        assert_eq!(
            (&would.json()["audit"], &would.json()["before"]["state"]),
            (&Value::Null, &json!(state.as_str()))
        );
        assert_eq!(world.seen(&made).await.unwrap().revision, made.seen.revision, "a dry run writes nothing");
    }
    let made = world.record("acme", "k/1", StateName::Completed).await;
    let answer = world.ask("DELETE", format!("{}?reason=a+test", made.path())).send().await;
    assert_eq!(answer.told(), (200, "forgotten".to_owned()));
    assert_eq!(answer.json()["before"]["key"], "k/1");
    let log = world.audit().await;
    let entry = log.last().unwrap();
    assert_eq!(answer.json()["audit"], json!(&*entry.id));
    assert_eq!(
        (&*entry.action, &*entry.result, entry.reason.as_deref()),
        ("forget", "applied", Some("a test"))
    );
    assert_eq!(world.get(made.path()).await.told(), (404, "record_not_found".to_owned()));
    let again = world.ask("DELETE", format!("{}?reason=a+test", made.path())).send().await;
    assert_eq!(again.told(), (404, "record_not_found".to_owned()));
    assert_eq!(world.audit().await.len(), log.len());
}

/// L04, S06: a caller's records, and nobody else's.
async fn a_purge_forgets_a_scope_and_keeps_what_is_open_unless_forced(engine: Engine) {
    let world = World::new(engine).await;
    let mut made: Vec<Made> = Vec::new();
    for number in 0..120 {
        made.push(world.record("acme", &format!("k-{number}"), StateName::Completed).await);
    }
    world.record("acme", "running", StateName::Running).await;
    world.record("acme", "unknown-1", StateName::Unknown).await;
    world.record("acme", "unknown-2", StateName::Unknown).await;
    world.record("umbrella", "theirs", StateName::Completed).await;
    let purge = async |query: &str| {
        let answer =
            world.ask("DELETE", format!("/v1/scopes/{}?reason=gdpr{query}", scope("acme"))).send().await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let kept = json!({ "running": 1, "unknown": 2 });
    let would = purge("&dry_run=true").await;
    assert_eq!(would, json!({ "result": "would-apply", "forgotten": 120, "kept": kept, "audit": null }));
    assert_eq!(world.audit().await, []);
    // Somebody looked at one of them before: its key must not outlive it in the log.
    world.get(format!("{}/response", made[0].path())).await;
    let partly = purge("").await;
    assert_eq!(
        (&partly["result"], &partly["forgotten"], &partly["kept"]),
        (&json!("partly"), &json!(120), &kept)
    );
    let log = world.audit().await;
    assert_eq!(log.iter().filter(|entry| &*entry.action == "purge").count(), 1, "one entry for all");
    assert_eq!(
        log.last().unwrap().after.as_deref(),
        Some(r#"{"forgotten":120,"kept":{"running":1,"unknown":2}}"#)
    );
    assert!(log.iter().all(|entry| entry.key.is_none() && entry.scope_label.is_none()), "{log:?}");
    assert!(log[0].record.is_some(), "that it was done stays");
    let whole = purge("&force=true").await;
    assert_eq!((&whole["result"], &whole["forgotten"]), (&json!("done"), &json!(3)));
    assert_eq!(world.get(format!("/v1/keys?scope={}", scope("acme"))).await.keys().len(), 0);
    assert_eq!(world.get("/v1/keys").await.keys(), ["theirs"]);
    let nothing = purge("").await;
    assert_eq!((&nothing["result"], &nothing["forgotten"]), (&json!("done"), &json!(0)));
}
