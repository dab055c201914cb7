//! Unknown outcomes on three gateways: whichever is told, all of them know.

use std::net::SocketAddr;

use onlyonce_testkit::engines::server::Engine;
use ring::hmac;
use serde_json::{Value, json};

use crate::client::{Answer, pay, paying, send, until};
use crate::node::{Node, Site, on_every_server};
use crate::service::Service;

/// Leases are short, so that what a dead node left is soon unknown.
const SHORT: [&str; 4] =
    ["policy.lease=1s", "policy.store_timeout=500ms", "policy.deadline=10s", "background.sweep_every=50ms"];

pub(crate) async fn ask(node: &Node, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n{headers}\r\n{body}"
    );
    send(node.admin, &request).await.expect("an answer")
}

pub(crate) fn read(answer: &Answer) -> Value {
    // Chunked or not, the document is the longest line.
    let body = answer.body.lines().max_by_key(|line| line.len()).unwrap_or_default();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// Kills a node in the middle of these payments, after the service was called, and waits until they are unknown.
async fn lose(site: &Site<'_>, service: &Service, keys: &[&str]) {
    let dies = site.node().await;
    service.hold();
    let lost: Vec<_> = keys.iter().map(|key| paying(dies.address, key, "")).collect();
    service.called(keys.iter().map(|key| (*key).to_owned())).await;
    dies.kill().await;
    for lost in lost {
        assert!(lost.await.unwrap().is_none(), "nobody answers for a dead process");
    }
    service.go_on();
}

/// The path of the record of a key, once it is unknown.
async fn unknown(node: &Node, key: &str) -> String {
    let mut path = String::new();
    until("it is unknown", async || {
        let listed = read(&ask(node, "GET", "/v1/keys?state=unknown", "", "").await);
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        let found = items.iter().find(|item| item["key"] == key);
        path = found
            .map_or_else(String::new, |item| format!("/v1/keys/{}/{key}", item["scope"].as_str().unwrap()));
        !path.is_empty()
    })
    .await;
    path
}

async fn is_replayed_by(nodes: &[SocketAddr], key: &str, body: &str) {
    for node in nodes {
        let answer = pay(*node, key).await.unwrap();
        assert!(answer.status == 201 && answer.is_replay() && answer.body.contains(body), "{answer:?}");
    }
}

fn addresses(nodes: &[Node]) -> Vec<SocketAddr> {
    nodes.iter().map(|node| node.address).collect()
}

/// U05, U06, U09, L04, E03, E04, E08: a person tells one node, and every node answers so.
async fn a_verdict_given_to_one_node_is_the_answer_of_all(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &SHORT);
    let nodes = site.nodes::<3>().await;
    lose(&site, &service, &["judged"]).await;
    let path = unknown(&nodes[0], "judged").await;
    let verdict = json!({
        "verdict": "happened",
        "response": { "status": 201, "body": "settled" },
        "reason": "checked with the bank",
    });
    let judged = ask(&nodes[1], "POST", &format!("{path}/verdict"), "", &verdict.to_string()).await;
    assert_eq!(read(&judged)["result"], "applied", "{judged:?}");
    is_replayed_by(&addresses(&nodes), "judged", "settled").await;
    let again = ask(&nodes[2], "POST", &format!("{path}/verdict"), "", &verdict.to_string()).await;
    assert_eq!((again.status, &read(&again)["code"]), (409, &json!("record_settled")));
    let log = read(&ask(&nodes[2], "GET", "/v1/audit", "", "").await);
    let results: Vec<_> =
        log["items"].as_array().unwrap().iter().map(|entry| entry["result"].clone()).collect();
    assert_eq!(results, ["refused", "applied"], "one log for all nodes, newest first");
    assert_eq!(service.calls("judged"), 1);
}

/// U05, E03, E04, E08: the provider reaches whichever node its webhook is routed to.
async fn a_webhook_at_one_node_settles_what_another_began(engine: Engine) {
    const SECRET: &str = "a-secret-of-the-bank";
    let file = std::env::temp_dir().join(format!("onlyonce-bank-{}", std::process::id()));
    std::fs::write(&file, SECRET).unwrap();
    let secrets = format!("webhooks.bank.secrets=[\"file:{}\"]", file.display());
    let settings = [&SHORT[..], &[&secrets]].concat();
    let service = Service::open().await;
    let site = Site::new(engine, &service, &settings);
    let nodes = site.nodes::<3>().await;
    lose(&site, &service, &["told"]).await;
    let path = unknown(&nodes[0], "told").await;
    let token = read(&ask(&nodes[0], "GET", &path, "", "").await)["token"].clone();
    let event = json!({ "id": "event-1", "token": token, "verdict": "happened",
        "response": { "status": 201, "body": "told by the bank" } });
    let event = event.to_string();
    let signed = |secret: &str| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, format!("{now}.{event}").as_bytes());
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("Onlyonce-Signature: t={now},v1={hex}\r\n")
    };
    let forged = ask(&nodes[1], "POST", "/v1/webhooks/bank", &signed("another-secret"), &event).await;
    assert_eq!(forged.status, 401, "{forged:?}");
    let heard = ask(&nodes[1], "POST", "/v1/webhooks/bank", &signed(SECRET), &event).await;
    assert_eq!(read(&heard)["result"], "applied", "{heard:?}");
    let again = ask(&nodes[2], "POST", "/v1/webhooks/bank", &signed(SECRET), &event).await;
    assert_eq!(read(&again)["result"], "already", "another node has not seen the event, and sees the record");
    is_replayed_by(&addresses(&nodes), "told", "told by the bank").await;
    assert_eq!(service.calls("told"), 1);
    std::fs::remove_file(&file).unwrap();
}

/// M03, M04, E03, E04, E08: of three reconcilers one asks about each record, once.
async fn three_reconcilers_ask_about_each_record_once(engine: Engine) {
    let service = Service::open().await;
    let route = format!(
        "route=[{{ match = \"POST /payments\", effects = \"queryable\", probe = \"http://{}/probe\" }}]",
        service.address
    );
    let settings = [&SHORT[..], &[&route]].concat();
    let site = Site::new(engine, &service, &settings);
    let nodes = site.nodes::<3>().await;
    let keys: Vec<_> = (0..20).map(|number| format!("asked-{number}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    lose(&site, &service, &keys).await;
    for key in &keys {
        until("it is found out", async || pay(nodes[0].address, key).await.unwrap().status == 201).await;
        is_replayed_by(&addresses(&nodes), key, &format!("found {key}")).await;
        assert_eq!((service.calls(key), service.asked(key)), (1, 1), "{key}");
    }
}

/// X04, L04, E03, E04, E08: once forgetting is reported by one node, no other replays.
async fn what_one_node_was_told_to_forget_no_other_replays(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &[]);
    let nodes = site.nodes::<3>().await;
    assert_eq!(pay(nodes[0].address, "forgotten").await.unwrap().status, 201);
    is_replayed_by(&addresses(&nodes), "forgotten", "\"call\":1").await;
    let listed = read(&ask(&nodes[0], "GET", "/v1/keys?q=forgotten", "", "").await);
    let scope = listed["items"][0]["scope"].as_str().unwrap().to_owned();
    let path = format!("/v1/keys/{scope}/forgotten");
    let refused = ask(&nodes[1], "DELETE", &path, "", "").await;
    assert_eq!((refused.status, &read(&refused)["code"]), (400, &json!("reason_missing")));
    let forgotten = ask(&nodes[1], "DELETE", &format!("{path}?reason=by%20request"), "", "").await;
    assert_eq!(read(&forgotten)["result"], "forgotten", "{forgotten:?}");
    let anew = pay(nodes[2].address, "forgotten").await.unwrap();
    assert!(anew.status == 201 && !anew.is_replay(), "{anew:?}");
    assert_eq!(service.calls("forgotten"), 2);
}

on_every_server!({
    a_verdict_given_to_one_node_is_the_answer_of_all,
    a_webhook_at_one_node_settles_what_another_began,
    three_reconcilers_ask_about_each_record_once,
    what_one_node_was_told_to_forget_no_other_replays,
});
