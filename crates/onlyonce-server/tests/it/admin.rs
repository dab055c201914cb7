//! The admin port of `onlyonce serve`, and what is published to clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use onlyonce_testkit::disk::Disk;
use serde_json::Value;

use crate::program::Folder;
use crate::serve::Serving;

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

fn json(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// A service that answers everything with 201, for as long as the test lives.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            if stream.read(&mut head).is_ok_and(|read| read > 0) {
                let _ = stream
                    .write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            }
        }
    });
    address
}

fn pay(serving: &Serving, path: &str, key: &str) -> String {
    serving.answer(&format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ann\r\nIdempotency-Key: {key}\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    ))
}

/// X06, O04: a sync that failed is the last one: the gateway is not ready, says why, and refuses until it is restarted.
#[test]
fn a_gateway_whose_store_could_not_be_synced_is_not_ready_until_a_restart() {
    let folder = Folder::new();
    let disk = Disk::new(folder.path(), &folder.path().join("onlyonce.db"));
    let mut command = crate::program::onlyonce();
    command.envs(disk.environment());
    let (upstream, store) = (format!("http://{}", service()), folder.url("onlyonce.db"));
    let arguments = ["--upstream", &upstream, "--store", &store];
    let mut serving = Serving::start_as(command, &arguments);
    assert!(pay(&serving, "/", "before").contains("201 Created"));
    disk.fail("-wal");
    assert!(pay(&serving, "/", "meanwhile").contains("503 "));
    disk.recover();
    assert!(pay(&serving, "/", "afterwards").contains("503 "));
    let (status, body) = get(serving.admin(), "/readyz");
    let told = &json(&body)["store"];
    assert_eq!((status, &told["code"]), (503, &Value::from("sqlite.sync_failed")), "{body}");
    assert!(told["detail"].as_str().unwrap().contains("restart this process"), "{body}");
    assert!(
        serving.says("a sync of the store file failed").contains("onlyonce.db"),
        "the log names the file"
    );
    drop(serving);
    let serving = Serving::start(&arguments);
    assert_eq!(get(serving.admin(), "/readyz").0, 200);
    let replay = pay(&serving, "/", "before");
    assert!(replay.to_lowercase().contains("idempotent-replayed: true"), "{replay}");
    assert!(pay(&serving, "/", "afterwards").contains("201 Created"));
}

/// O04
#[test]
fn it_is_alive_and_ready_while_its_store_answers() {
    let serving = Serving::start(&["--upstream", "http://127.0.0.1:1", "--store", "memory:"]);
    let (status, body) = get(serving.admin(), "/healthz");
    assert_eq!((status, &json(&body)["status"]), (200, &Value::from("alive")));
    let (status, body) = get(serving.admin(), "/readyz");
    assert_eq!((status, &json(&body)["store"]["state"]), (200, &Value::from("ok")), "{body}");
    let (status, body) = get(serving.admin(), "/nowhere");
    assert_eq!((status, &json(&body)["status"]), (404, &Value::from(404)));
}

/// O01, O02, K09: ADM-08, a scripted run, and exactly its counts.
#[test]
fn the_counters_equal_a_scripted_run_exactly_and_name_no_key() {
    let folder = Folder::new();
    let upstream = format!("http://{}", service());
    let route = r#"route=[{match="POST /payments/*",required=true}]"#;
    let serving =
        Serving::start(&["--upstream", &upstream, "--store", &folder.url("onlyonce.db"), "--set", route]);
    for (path, key) in [
        ("/payments/1", "first-key"),
        ("/payments/1", "first-key"),
        ("/payments/1", "first-key"),
        ("/payments/2", "first-key"),
        ("/payments/1", "\"broken"),
        ("/orders/17", "second-key"),
        ("/orders/18", "third-key"),
    ] {
        pay(&serving, path, key);
    }
    let (status, text) = get(serving.admin(), "/metrics");
    assert_eq!(status, 200);
    let mut requests: Vec<_> =
        text.lines().filter(|line| line.starts_with("onlyonce_requests_total")).collect();
    requests.sort_unstable();
    // Every counter is there from the beginning, at zero.
    let (counted, zero): (Vec<_>, Vec<_>) = requests.into_iter().partition(|line| !line.ends_with(" 0"));
    assert!(zero.contains(&r#"onlyonce_requests_total{route="*",decision="unknown"} 0"#), "{zero:?}");
    assert_eq!(
        counted,
        [
            r#"onlyonce_requests_total{route="*",decision="executed"} 2"#,
            r#"onlyonce_requests_total{route="POST /payments/*",decision="executed"} 1"#,
            r#"onlyonce_requests_total{route="POST /payments/*",decision="invalid"} 1"#,
            r#"onlyonce_requests_total{route="POST /payments/*",decision="key_reused"} 1"#,
            r#"onlyonce_requests_total{route="POST /payments/*",decision="replayed"} 2"#,
        ]
    );
    for line in [
        r#"onlyonce_records{state="completed"} 3"#,
        r#"onlyonce_records{state="unknown"} 0"#,
        "onlyonce_oldest_unknown_seconds 0",
        "onlyonce_superseded_total 0",
        "onlyonce_lapsed_total 0",
        "onlyonce_unknown_opened_total 0",
        r#"onlyonce_store_errors_total{operation="swap"} 0"#,
        r#"onlyonce_added_latency_seconds_count{decision="replayed"} 2"#,
    ] {
        assert!(text.lines().any(|said| said == line), "{line} is not in\n{text}");
    }
    assert!(
        text.contains("onlyonce_batch_size_bucket") && text.contains("onlyonce_store_seconds_bucket"),
        "{text}"
    );
    for secret in ["first-key", "second-key", "/orders/17", "ann"] {
        assert!(!text.contains(secret), "{secret}");
    }
    // Who retries most: two replays and a key that was used for another request.
    let told = json(&get(serving.admin(), "/v1/overview").1);
    let listed = json(&get(serving.admin(), "/v1/keys?q=first-key").1);
    let scope = &listed["items"][0]["scope"].as_str().expect("a scope")[..16];
    let busiest = serde_json::json!([{ "scope": scope, "scope_label": null, "duplicates_per_minute": 3 }]);
    assert_eq!(told["busiest"], busiest, "{told}");
    let line = format!("onlyonce_busiest_scope_duplicates{{scope=\"{scope}\"}} 3");
    assert!(text.lines().any(|said| said == line), "{line} is not in\n{text}");
}

/// G03: ADM-11
#[test]
fn observe_lets_everything_pass_and_counts_what_enforce_would_do() {
    let upstream = format!("http://{}", service());
    let serving =
        Serving::start(&["--upstream", &upstream, "--store", "memory:", "--set", "policy.mode=observe"]);
    for (path, key) in [("/a", "k"), ("/a", "k"), ("/b", "k"), ("/a", "\"x")] {
        let answer = pay(&serving, path, key);
        assert!(answer.starts_with("HTTP/1.1 201 Created") && !answer.contains("idempot"), "{answer}");
    }
    let (_, text) = get(serving.admin(), "/metrics");
    let mut counted: Vec<_> =
        text.lines().filter(|line| line.starts_with("onlyonce_observed_total")).collect();
    counted.sort_unstable();
    assert_eq!(
        counted,
        [
            r#"onlyonce_observed_total{route="*",decision="executed"} 1"#,
            r#"onlyonce_observed_total{route="*",decision="invalid"} 1"#,
            r#"onlyonce_observed_total{route="*",decision="key_reused"} 1"#,
            r#"onlyonce_observed_total{route="*",decision="replayed"} 1"#,
        ]
    );
    assert!(text.contains(r#"onlyonce_requests_total{route="*",decision="observed"} 4"#), "{text}");
}

/// O07
#[test]
fn which_routes_are_covered_and_how_is_published() {
    let serving = Serving::start(&[
        "--upstream",
        "http://127.0.0.1:1",
        "--store",
        "memory:",
        "--set",
        r#"route=[{match="POST /payments/*",required=true,effects="keyed"},{match="/files/**",mode="observe"}]"#,
    ]);
    let published = |path: &str| {
        let answer = serving.answer(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        json(answer.split_once("\r\n\r\n").expect("a head and a body").1)
    };
    let policy = published("/_onlyonce/policy");
    assert_eq!(policy["routes"][0]["match"], "POST /payments/*");
    assert_eq!(policy["routes"][0]["required"], serde_json::json!(["POST", "PATCH"]));
    assert_eq!(policy["routes"][0]["effects"], "keyed");
    assert_eq!(policy["routes"][1]["mode"], "observe");
    assert_eq!(policy["default"]["retention_seconds"], 86_400);
    assert!(!policy.to_string().contains("127.0.0.1"), "no upstream is named");

    let openapi = published("/_onlyonce/openapi.json");
    assert_eq!(openapi["openapi"], "3.1.0");
    let payment = &openapi["paths"]["/payments/{p1}"];
    assert_eq!(payment["parameters"][0]["name"], "p1");
    assert_eq!(payment["post"]["parameters"][0]["name"], "idempotency-key");
    assert_eq!(payment["post"]["parameters"][0]["required"], true);
    assert!(
        payment["post"]["responses"]["422"]["description"]
            .as_str()
            .is_some_and(|text| text.contains("reused"))
    );
    assert!(payment["delete"].is_null(), "the route is about POST alone");
    assert!(openapi["paths"]["/files/{rest}"]["put"]["responses"]["422"].is_null(), "observed, not enforced");
    assert!(openapi["paths"]["/{path}"]["post"].is_object());
}
