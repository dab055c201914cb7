//! What is sent to an admin port, and what is made of its answers: a server that plays its part word for word.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use super::world::{Ended, run};
use crate::program::onlyonce;

const SCOPE: &str = "516eb950d18cc63e2fd05f889a35f14e0cc72d7738759cc6b5dbaedca508dd12";

/// A request as it came.
struct Came {
    line: String,
    headers: Vec<String>,
    body: String,
}

impl Came {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A server that gives these answers, one a connection, and shows what it was asked.
struct Scripted {
    address: SocketAddr,
    came: Receiver<Came>,
}

impl Scripted {
    fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (comes, came) = channel();
        std::thread::spawn(move || {
            for answer in answers {
                let Ok((stream, _)) = listener.accept() else { return };
                let mut reader = BufReader::new(stream);
                let mut lines = Vec::new();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).expect("a head");
                    if line.trim_end().is_empty() {
                        break;
                    }
                    lines.push(line.trim_end().to_owned());
                }
                let length =
                    lines.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body).expect("a body");
                let line = lines.remove(0);
                let _ =
                    comes.send(Came { line, headers: lines, body: String::from_utf8(body).expect("text") });
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Self { address, came }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn came(&self) -> Came {
        self.came.recv_timeout(std::time::Duration::from_secs(20)).expect("it was asked")
    }
}

fn answer(status: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn ok(body: &Value) -> String {
    answer("200 OK", "application/json", &body.to_string())
}

fn problem(status: u16, body: &Value) -> String {
    answer(&format!("{status} x"), "application/problem+json", &body.to_string())
}

fn asked(arguments: &[&str], answers: Vec<String>) -> (Ended, Vec<Came>) {
    let count = answers.len();
    let server = Scripted::start(answers);
    let ended = run(&[arguments, &["--admin", &server.url()]].concat());
    (ended, (0..count).map(|_| server.came()).collect())
}

/// Every filter is passed on, and every page followed.
#[test]
fn a_listing_is_asked_for_page_by_page() {
    let page = |keys: &[&str], next: Value| {
        let items: Vec<_> = keys.iter().map(|key| json!({ "key": key, "state": "unknown" })).collect();
        ok(&json!({ "items": items, "next": next }))
    };
    let pages = vec![page(&["a"], json!("c 1")), page(&[], json!("c2")), page(&["b"], Value::Null)];
    let arguments = [
        "keys",
        "list",
        "--state",
        "unknown",
        "--scope",
        SCOPE,
        "--route",
        "POST /payments/*",
        "--query",
        "or&der",
        "--dead",
        "--limit",
        "0",
        "--json",
    ];
    let (ended, came) = asked(&arguments, pages);
    let listed = ended.json();
    assert_eq!((&listed["items"][1]["key"], &listed["next"]), (&json!("b"), &Value::Null));
    let filters =
        format!("state=unknown&scope={SCOPE}&route=POST%20%2Fpayments%2F%2A&q=or%26der&dead_letter=true");
    assert_eq!(came[0].line, format!("GET /v1/keys?{filters}&limit=500 HTTP/1.1"));
    assert_eq!(came[1].line, format!("GET /v1/keys?{filters}&cursor=c%201&limit=500 HTTP/1.1"));
    assert_eq!(came[0].header("user-agent"), Some(concat!("onlyonce-cli/", env!("CARGO_PKG_VERSION"))));
    assert_eq!(came[0].header("authorization"), None);
    let (ended, came) =
        asked(&["log", "--who", "on-call", "--limit", "7", "--json"], vec![page(&[], Value::Null)]);
    ended.json();
    assert_eq!(came[0].line, "GET /v1/audit?who=on-call&limit=7 HTTP/1.1");
}

/// L04, U05
#[test]
fn a_change_says_what_why_and_who() {
    let done = json!({ "result": "applied", "before": { "state": "unknown" }, "after": { "state": "completed" }, "audit": "01J" });
    let arguments = [
        "keys",
        "verdict",
        SCOPE,
        "a/b ?",
        "happened",
        "--reason",
        "seen",
        "--status",
        "201",
        "--header",
        "Content-Type: x/y",
        "--body",
        "{}",
        "--force",
        "--dry-run",
        "--as",
        "Zoë",
        "--json",
    ];
    let (ended, came) = asked(&arguments, vec![ok(&done)]);
    assert_eq!(ended.json(), done, "the API's answer as it is");
    assert_eq!(
        came[0].line,
        format!("POST /v1/keys/{SCOPE}/a%2Fb%20%3F/verdict?force=true&dry_run=true HTTP/1.1")
    );
    assert_eq!(
        (came[0].header("content-type"), came[0].header("onlyonce-as")),
        (Some("application/json"), Some("Zoë"))
    );
    let body: Value = serde_json::from_str(&came[0].body).expect("JSON");
    assert_eq!(
        body,
        json!({ "verdict": "happened", "reason": "seen",
                "response": { "status": 201, "headers": { "content-type": ["x/y"] }, "body": "{}" } })
    );
    let (_, came) = asked(
        &["keys", "verdict", SCOPE, "k", "did-not-happen", "--final", "--reason", "r"],
        vec![ok(&done)],
    );
    let body: Value = serde_json::from_str(&came[0].body).expect("JSON");
    assert_eq!(body, json!({ "verdict": "did-not-happen", "reason": "r", "final": true }));
    assert_eq!(came[0].header("onlyonce-as"), Some("ann"), "the user's name by default");
    let (_, came) =
        asked(&["keys", "verdict", SCOPE, "k", "happened", "--ask", "--reason", "r"], vec![ok(&done)]);
    let body: Value = serde_json::from_str(&came[0].body).expect("JSON");
    assert_eq!(body["ask"], true);
    let gone = json!({ "result": "forgotten", "before": { "state": "completed" }, "audit": "01J" });
    let (ended, came) =
        asked(&["keys", "forget", SCOPE, "..", "--reason", "a b", "--force"], vec![ok(&gone)]);
    assert!(ended.done().ends_with("which was completed; audit entry 01J\n"), "{ended:?}");
    assert_eq!(came[0].line, format!("DELETE /v1/keys/{SCOPE}/%2E%2E?reason=a%20b&force=true HTTP/1.1"));
    let purged =
        json!({ "result": "partly", "forgotten": 5, "kept": { "running": 1, "unknown": 0 }, "audit": "01J" });
    let (ended, came) = asked(&["keys", "purge", SCOPE, "--reason", "r"], vec![ok(&purged), ok(&purged)]);
    assert!(
        ended.done().starts_with("5 records forgotten, kept without --force: 1 running, 0 unknown; audit"),
        "{ended:?}"
    );
    assert_eq!(came[0].line, format!("DELETE /v1/scopes/{SCOPE}?reason=r&dry_run=true HTTP/1.1"));
    assert_eq!(came[1].line, format!("DELETE /v1/scopes/{SCOPE}?reason=r HTTP/1.1"));
}

/// Exit 1 where the answer is no, 2 where there is none.
#[test]
fn a_refusal_is_told_with_its_code_and_its_exit_code() {
    for (status, code, more, exit) in [
        (404, "record_not_found", json!({}), 1),
        (409, "record_running", json!({ "lapses_at": "then" }), 1),
        (412, "record_changed", json!({}), 1),
        (
            400,
            "admin_request_invalid",
            json!({ "faults": [{ "path": "query.x", "detail": "is not known" }] }),
            2,
        ),
        (401, "admin_unauthorized", json!({}), 2),
        (403, "admin_forbidden", json!({ "needs": "operate" }), 2),
        (404, "admin_not_found", json!({}), 2),
        (421, "admin_host_refused", json!({}), 2),
        (503, "store_unavailable", json!({}), 2),
    ] {
        let mut body = json!({ "type": "about:blank", "title": "t", "status": status, "detail": "the detail", "code": code });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let (ended, _) = asked(&["keys", "show", SCOPE, "k", "--json"], vec![problem(status, &body)]);
        let error = ended.error();
        assert_eq!(
            (ended.code, &error["code"], &error["status"]),
            (exit, &json!(code), &json!(status)),
            "{error}"
        );
        assert!(error["detail"].as_str().is_some_and(|detail| detail.starts_with("the detail")), "{error}");
        for (name, value) in more.as_object().expect("an object") {
            assert_eq!(error[name], *value, "{error}");
        }
        let (ended, _) = asked(&["keys", "show", SCOPE, "k"], vec![problem(status, &body)]);
        let told = if exit == 1 { "no: the detail" } else { "error: the detail" };
        assert!(ended.code == exit && ended.out.is_empty() && ended.err.starts_with(told), "{ended:?}");
    }
    let unauthorized = json!({ "status": 401, "detail": "d", "code": "admin_unauthorized" });
    let (ended, _) = asked(&["keys", "list"], vec![problem(401, &unauthorized)]);
    assert!(ended.err.contains("--token env:NAME or file:PATH"), "{ended:?}");
}

#[test]
fn something_else_that_answers_there_is_no_gateway() {
    for odd in [
        answer("200 OK", "text/html", "<html>"),
        answer("404 Not Found", "text/html", "nothing here"),
        answer("502 Bad Gateway", "application/json", "{}"),
        answer("302 Found", "text/plain", ""),
        ok(&json!([])),
    ] {
        let (ended, _) = asked(&["keys", "list", "--json"], vec![odd]);
        assert_eq!((ended.code, &ended.error()["code"]), (2, &json!("gateway_unknown")), "{ended:?}");
    }
    let (ended, _) = asked(&["keys", "forget", SCOPE, "k", "--reason", "r", "--json"], vec![String::new()]);
    let error = ended.error();
    assert_eq!((ended.code, &error["code"]), (2, &json!("gateway_unanswered")));
    assert!(error["detail"].as_str().is_some_and(|detail| detail.contains("the audit log shows")), "{error}");
}

/// L04: a token goes into the header and nowhere else.
#[test]
fn a_token_is_read_from_where_it_is() {
    let folder = crate::program::Folder::new();
    let file = folder.path().join("token");
    std::fs::write(&file, "from-a-file\n").expect("written");
    for (place, expected) in
        [("env:T", "Bearer from-a-variable"), (&format!("file:{}", file.display()), "Bearer from-a-file")]
    {
        let server = Scripted::start(vec![ok(&json!({ "items": [], "next": null }))]);
        let output = onlyonce()
            .env("T", "from-a-variable")
            .args(["keys", "list", "--token", place, "--admin", &server.url()])
            .output()
            .expect("it starts");
        assert_eq!(Ended::of(&output).done(), "no records\n");
        assert_eq!(server.came().header("authorization"), Some(expected));
    }
}

/// What a client chose as its key does not act on the operator's terminal.
#[test]
fn text_of_somebody_elses_is_escaped() {
    let item = json!({ "state": "unknown", "key": "a\u{1b}]0;owned\u{7}", "scope_label": "x\r\ny", "scope": SCOPE, "attempt": 1,
                       "route": "POST /\u{9b}", "reason": "\u{202e}" });
    let (ended, _) = asked(&["keys", "list"], vec![ok(&json!({ "items": [item], "next": null }))]);
    assert!(ended.done().contains(r"a\u{1b}]0;owned\u{7}"), "{ended:?}");
    assert!(!ended.out.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}'), "{ended:?}");
    let detail = json!({ "status": 404, "code": "record_not_found", "detail": "no \u{1b}[2J" });
    let (ended, _) = asked(&["keys", "show", SCOPE, "k"], vec![problem(404, &detail)]);
    assert_eq!(ended.err, "no: no \\u{1b}[2J\n");
}

/// What is stored is shown as it is, also where it looks like a refusal of the API.
#[test]
fn a_stored_answer_is_told_from_a_refusal() {
    let record = ok(&json!({ "key": "k", "state": "completed" }));
    let stored = answer(
        "404 Not Found\r\nIdempotent-Replayed: true",
        "application/problem+json",
        r#"{"code":"record_not_found"}"#,
    );
    let (ended, came) = asked(&["keys", "show", SCOPE, "k", "--response", "-"], vec![record.clone(), stored]);
    assert_eq!(ended.done(), r#"{"code":"record_not_found"}"#);
    assert_eq!(came[1].line, format!("GET /v1/keys/{SCOPE}/k/response HTTP/1.1"));
    let none =
        problem(404, &json!({ "status": 404, "code": "record_not_found", "detail": "has no stored answer" }));
    let (ended, _) = asked(&["keys", "show", SCOPE, "k", "--response", "-"], vec![record, none]);
    assert!(
        ended.code == 1 && ended.out.is_empty() && ended.err.contains("has no stored answer"),
        "{ended:?}"
    );
}
