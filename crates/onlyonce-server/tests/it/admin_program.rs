//! The admin API of the program itself: an outcome that nobody knows is settled, and everything that is to be seen of it.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use onlyonce_testkit::http::{Answer, Request, send};
use serde_json::{Value, json};

use crate::program::Folder;
use crate::serve::{Service, Serving, post};

/// A service that reads a request and hangs up.
fn hangs_up() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    address
}

fn ask(serving: &Serving, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let address = serving.admin().to_string();
    send(&address, Request { method, path, headers, body })
        .unwrap_or_else(|error| panic!("{method} {path}: {error:#}"))
}

fn get(serving: &Serving, path: &str) -> (u16, Value) {
    let answer = ask(serving, "GET", path, &[], "");
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

/// U05, U06, U09, L04, O01, O02: from the doubt to the answer that the client gets, in the log and in the figures.
#[test]
fn a_person_settles_an_unknown_outcome_and_the_client_gets_the_answer() {
    let upstream = format!("http://{}", hangs_up());
    let mut serving = Serving::start(&[
        "--upstream",
        &upstream,
        "--store",
        "memory:",
        "--set",
        "policy.effects=opaque",
        "--set",
        "log.format=json",
    ]);
    let lost = serving.answer(&post("order-17"));
    assert!(lost.starts_with("HTTP/1.1 502"), "{lost}");
    let (_, list) = get(&serving, "/v1/keys?state=unknown");
    let record = &list["items"][0];
    assert_eq!(
        (&record["key"], &record["reason"]),
        (&json!("order-17"), &json!("connection_lost")),
        "{list}"
    );
    let (_, overview) = get(&serving, "/v1/overview");
    assert_eq!(overview["oldest_unknown"]["key"], "order-17");
    assert_eq!(overview["needs_you"][0]["what"], "unknown");
    assert_eq!(overview["decisions_per_minute"], json!({ "executed": 1 }));
    assert!(overview["added_latency_seconds"]["p50"].as_f64().is_some_and(|p50| p50 > 0.0), "{overview}");
    let path = format!("/v1/keys/{}/order-17", record["scope"].as_str().unwrap());
    let verdict = json!({
        "verdict": "happened",
        "reason": "seen in the bank's list",
        "response": { "status": 201, "headers": { "content-type": "text/plain" }, "body": "paid" },
    });
    let headers =
        [("Content-Type", "application/json"), ("User-Agent", "onlyonce-cli/0.1.0"), ("Onlyonce-As", "ann")];
    let judged = ask(&serving, "POST", &format!("{path}/verdict"), &headers, &verdict.to_string());
    assert_eq!(judged.status, 200, "{}", String::from_utf8_lossy(&judged.body));
    let again = ask(&serving, "POST", &format!("{path}/verdict"), &headers, &verdict.to_string());
    assert_eq!(again.status, 409);
    let replay = serving.answer(&post("order-17"));
    assert!(replay.starts_with("HTTP/1.1 201") && replay.ends_with("paid"), "{replay}");
    assert!(replay.to_lowercase().contains("idempotent-replayed: true"), "{replay}");

    let metrics = String::from_utf8(ask(&serving, "GET", "/metrics", &[], "").body).unwrap();
    for line in [
        r#"onlyonce_admin_changes_total{action="verdict",result="applied"} 1"#,
        r#"onlyonce_admin_changes_total{action="verdict",result="refused"} 1"#,
        r#"onlyonce_admin_changes_total{action="forget",result="applied"} 0"#,
        r#"onlyonce_admin_refused_total{code="record_settled"} 1"#,
        r#"onlyonce_admin_refused_total{code="admin_unauthorized"} 0"#,
        r#"onlyonce_reconcile_total{result="resolved",by="operator"} 1"#,
        r#"onlyonce_reconcile_total{result="failed",by="probe"} 0"#,
        r#"onlyonce_probes_total{result="happened"} 0"#,
        "onlyonce_contradictions_total 0",
        "onlyonce_unknown_opened_total 1",
        r#"onlyonce_dead_letters{kind="key"} 0"#,
        &format!(r#"onlyonce_build_info{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION")),
    ] {
        assert!(metrics.lines().any(|said| said == line), "{line} is not in\n{metrics}");
    }
    assert!(!metrics.contains("order-17") && !metrics.contains("ann"), "no key and no name is a label");

    let told = serving.says("record_settled");
    let entries: Vec<Value> = told
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .filter(|line| line["target"] == "onlyonce::audit")
        .map(|line| {
            serde_json::from_str(line["message"].as_str().expect("a text")).expect("an entry as JSON")
        })
        .collect();
    let results: Vec<_> = entries.iter().map(|entry| (&entry["result"], &entry["code"])).collect();
    assert_eq!(results, [(&json!("applied"), &Value::Null), (&json!("refused"), &json!("record_settled"))]);
    let entry = &entries[0];
    assert_eq!((&entry["who"], &entry["as"], &entry["via"]), (&json!("local"), &json!("ann"), &json!("cli")));
    assert_eq!(
        (&entry["target"]["key"], &entry["reason"]),
        (&json!("order-17"), &json!("seen in the bank's list"))
    );
    let (_, log) = get(&serving, "/v1/audit");
    assert_eq!(log["items"][1]["id"], entry["id"]);
    assert_eq!(
        log["items"][1]["after"],
        json!({ "state": "completed", "attempt": 1, "status": 201, "bytes": 4 })
    );
}

/// L04, G04: tokens are settings like others: a reload makes them count, and is in the audit log.
#[test]
fn tokens_count_from_a_reload_on_and_the_reload_is_in_the_audit_log() {
    let folder = Folder::new();
    let file = folder.path().join("onlyonce.toml");
    fs::write(folder.path().join("token"), "a-token-of-an-operator").unwrap();
    let bare = "upstream = \"http://127.0.0.1:1\"\nstore = \"memory:\"\n";
    fs::write(&file, bare).unwrap();
    let mut serving = Serving::start(&["--config", file.to_str().unwrap()]);
    assert_eq!(get(&serving, "/v1/keys").0, 200);
    let token = folder.path().join("token");
    let tokens = format!(
        "[[admin_token]]\nname = \"ann\"\ntoken = \"file:{}\"\nrole = \"operate\"\n",
        token.display()
    );
    fs::write(&file, format!("{bare}{tokens}")).unwrap();
    serving.signal("HUP");
    serving.says("reloaded: the new settings apply");
    assert_eq!(get(&serving, "/v1/keys").0, 401);
    assert_eq!(get(&serving, "/metrics").0, 401);
    assert_eq!(get(&serving, "/healthz").0, 200);
    let shown = [("Authorization", "Bearer a-token-of-an-operator")];
    let began = Instant::now();
    let log = loop {
        let log = ask(&serving, "GET", "/v1/audit?action=reload", &shown, "");
        let log: Value = serde_json::from_slice(&log.body).unwrap();
        if log["items"].as_array().is_some_and(|items| !items.is_empty()) {
            break log;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "it is not in the log: {log}");
    };
    let entry = &log["items"][0];
    assert_eq!(
        (&entry["who"], &entry["via"], &entry["result"]),
        (&json!("local"), &json!("signal"), &json!("applied"))
    );
    assert_ne!(entry["before"]["settings"], entry["after"]["settings"]);
    assert_eq!(entry["after"]["settings"].as_str().map(str::len), Some(16));
    assert!(!log.to_string().contains("a-token-of"), "{log}");
}

/// O04, G04
#[test]
fn it_is_not_ready_from_the_moment_it_is_stopped() {
    let service = Service::start("one");
    let mut serving = Serving::start(&["--upstream", &service.url(), "--store", "memory:"]);
    let _under_way = serving.send(&post("k-1"));
    service.came.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(get(&serving, "/readyz").0, 200);
    serving.signal("TERM");
    let began = Instant::now();
    while get(&serving, "/readyz").0 == 200 {
        assert!(began.elapsed() < Duration::from_secs(20), "it stays ready");
    }
    assert_eq!(get(&serving, "/healthz").0, 200, "it is alive until it has ended");
    service.lets(1);
    assert_eq!(serving.ended().code(), Some(0));
}
