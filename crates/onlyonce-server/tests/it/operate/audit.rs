//! `onlyonce audit`: an OpenAPI document against what protects it.

use std::fs;

use serde_json::{Value, json};

use super::world::{Ended, World, run};
use crate::engines::Engine;
use crate::program::Folder;

const DOCUMENT: &str = "
openapi: 3.1.0
info: {title: Payments, version: 2024-11-01}
servers: [{url: 'https://api.example.com/v1'}]
paths:
  /payments:
    get: {operationId: list}
    post:
      operationId: pay
      parameters: [{$ref: '#/components/parameters/Key'}]
      responses: {201: {description: paid}}
  /payments/{id}/refunds:
    post: {operationId: refund}
  /notes/{id}:
    parameters: [{name: id, in: path}]
    put: {operationId: note}
    delete: {}
  /orders/{id}:
    post: {operationId: order}
  /observed:
    post: {}
  /ignored:
    patch: {}
components:
  parameters:
    Key: {name: idempotency-key, in: header, required: true}
";

const SETTINGS: &str = r#"
upstream = "http://127.0.0.1:1"
[[route]]
match = "POST /v1/payments/**"
required = true
effects = "keyed"
[[route]]
match = "/v1/orders/express"
required = true
[[route]]
match = "/v1/observed"
mode = "observe"
[[route]]
match = "/v1/ignored"
methods = ["POST"]
"#;

struct Desk {
    folder: Folder,
}

impl Desk {
    fn new() -> Self {
        let desk = Self { folder: Folder::new() };
        desk.write("openapi.yaml", DOCUMENT);
        desk.write("onlyonce.toml", SETTINGS);
        desk
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).expect("it can be written");
    }

    fn audit(&self, arguments: &[&str]) -> Ended {
        Ended::of(&self.folder.run(&[&["audit"], arguments].concat()))
    }
}

/// `POST /payments required`, and `!` where it is a finding.
fn judged(told: &Value) -> Vec<String> {
    let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let line = |item: &Value| {
        let finding = if item["finding"] == true { " !" } else { "" };
        format!("{} {} {}{finding}", text(item, "method"), text(item, "path"), text(item, "protection"))
    };
    told["operations"].as_array().expect("a list").iter().map(line).collect()
}

const JUDGED: [&str; 7] = [
    "POST /payments required",
    "POST /payments/{id}/refunds required",
    "PUT /notes/{id} optional",
    "DELETE /notes/{id} optional",
    "POST /orders/{id} partly !",
    "POST /observed observed !",
    "PATCH /ignored none !",
];

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_unstable();
    lines
}

/// O08
#[test]
fn every_write_that_nothing_protects_is_listed() {
    let desk = Desk::new();
    let told = desk.audit(&["openapi.yaml", "--config", "onlyonce.toml", "--json"]).no();
    let expected = sorted(JUDGED.map(str::to_owned).to_vec());
    assert_eq!(sorted(judged(&told)), expected, "{told:#}");
    assert_eq!(
        (&told["findings"], &told["document"]),
        (&json!(3), &json!({ "title": "Payments", "version": "2024-11-01" }))
    );
    let pay = &told["operations"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|item| item["operation_id"] == "pay")
        .expect("it is there");
    assert_eq!(
        (&pay["route"], &pay["effects"], &pay["declared"]),
        (&json!("POST /v1/payments/**"), &json!("keyed"), &json!(true))
    );
    let refund = &told["operations"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|item| item["operation_id"] == "refund")
        .expect("it is there");
    assert_eq!(refund["declared"], false);

    let text = desk.audit(&["openapi.yaml", "--config", "onlyonce.toml"]);
    assert_eq!(text.code, 1, "{text:?}");
    for words in [
        "Payments 2024-11-01: 7 writes, 3 findings",
        "POST /orders/{id} (order): partly",
        "match = \"POST /v1/orders/*\", required = true",
        "mode = \"enforce\"",
        "methods = [\"POST\", \"PATCH\"], required = true",
        "POST /payments/{id}/refunds (refund): required; the document does not list the header",
    ] {
        assert!(text.out.contains(words), "{words}: {}", text.out);
    }
    // What it says to set is what closes the finding.
    let closed = format!(
        "{}\n{}",
        SETTINGS.replace("[[route]]\nmatch = \"/v1/orders/express\"", "[[route]]\nmatch = \"POST /v1/orders/*\"\nrequired = true\n[[route]]\nmatch = \"/v1/orders/express\"")
            .replace("mode = \"observe\"", "mode = \"enforce\"\nrequired = true")
            .replace("methods = [\"POST\"]", "methods = [\"POST\", \"PATCH\"]\nrequired = true"),
        ""
    );
    desk.write("onlyonce.toml", &closed);
    let told = desk.audit(&["openapi.yaml", "--config", "onlyonce.toml", "--json"]).json();
    assert_eq!(told["findings"], 0, "{told:#}");
}

/// O08: a base of one's own, what is allowed, settings without a service, and a document in JSON of the older format.
#[test]
fn what_is_asked_for_decides() {
    let desk = Desk::new();
    let elsewhere =
        desk.audit(&["openapi.yaml", "--config", "onlyonce.toml", "--base", "/v2", "--json"]).no();
    assert_eq!(elsewhere["findings"], 5, "{elsewhere:#}");
    let told = desk.audit(&["openapi.yaml", "--set", "policy.required=true", "--json"]).json();
    assert_eq!(told["findings"], 0, "{told:#}");
    let told = desk.audit(&["openapi.yaml", "--json"]).no();
    assert_eq!(told["findings"], 5, "{told:#}");
    assert_eq!(desk.audit(&["openapi.yaml", "--allow", "optional", "--json"]).json()["findings"], 0);
    let observed = ["openapi.yaml", "--set", "policy.mode=observe", "--json"];
    assert_eq!(desk.audit(&observed).no()["findings"], 7);
    assert_eq!(
        desk.audit(&[&observed[..], &["--allow", "optional,observed"]].concat()).json()["findings"],
        0
    );
    desk.write(
        "old.json",
        r#"{"swagger":"2.0","info":{"title":"Old"},"basePath":"/v1","paths":{"/payments/x":{"post":{}}}}"#,
    );
    let told = desk.audit(&["old.json", "--config", "onlyonce.toml", "--json"]).json();
    assert_eq!(judged(&told), ["POST /payments/x required"]);
}

/// O08: a running gateway is asked what protects its clients, and says the same as its settings.
#[test]
fn a_running_gateway_is_audited_by_what_it_publishes() {
    let desk = Desk::new();
    let config = desk.folder.path().join("onlyonce.toml");
    let world = World::begin(
        Engine::Memory,
        &["--config", config.to_str().expect("text"), "--set", "path_case=fold"],
    );
    let gateway = format!("http://{}", world.serving.address());
    let told = desk.audit(&["openapi.yaml", "--gateway", &gateway, "--json"]).no();
    let own = desk.audit(&["openapi.yaml", "--config", "onlyonce.toml", "--json"]).no();
    assert_eq!(told, own);
    let shouted = desk.audit(&["openapi.yaml", "--gateway", &gateway, "--base", "/V1", "--json"]).no();
    assert_eq!(shouted["findings"], 3, "the gateway folds the case: {shouted:#}");
    let ended = desk.audit(&["openapi.yaml", "--gateway", &world.admin(), "--json"]);
    assert!(ended.code == 2 && ended.err.contains("not its admin port"), "{ended:?}");
    let ended = desk.audit(&["openapi.yaml", "--gateway", "http://127.0.0.1:1", "--json"]);
    assert_eq!((ended.code, &ended.error()["code"]), (2, &json!("gateway_unreachable")));
}

/// O08: what is no document is told in a line, and never counts as protected.
#[test]
fn what_is_no_openapi_document_is_an_error() {
    let desk = Desk::new();
    for (text, words) in [
        ("", "is empty"),
        ("just text", "is not an OpenAPI document"),
        ("a: b: c", "is not YAML"),
        ("{\"openapi\":\"3.0.0\"", "is not JSON"),
        ("title: x\n", "neither \"openapi\" nor \"swagger\""),
        ("openapi: 3.0.0\n", "has no paths"),
        ("openapi: 3.0.0\npaths: {/a: {$ref: 'b.yaml'}}\n", "bundle both into one first"),
    ] {
        desk.write("odd", text);
        let ended = desk.audit(&["odd", "--json"]);
        assert_eq!(ended.code, 2, "{text}: {ended:?}");
        let error = ended.error();
        assert!(error["detail"].as_str().is_some_and(|told| told.contains(words)), "{words}: {error}");
    }
    fs::write(desk.folder.path().join("odd"), b"\xff\xfe\x00").expect("it can be written");
    assert!(desk.audit(&["odd"]).err.contains("is not text in UTF-8"));
    let ended = desk.audit(&["nowhere.yaml", "--json"]);
    assert!(ended.code == 2 && ended.err.contains("cannot be read"), "{ended:?}");
    let ended = run(&["audit", "x.yaml", "--gateway", "http://h", "--config", "c", "--json"]);
    assert!(ended.code == 2 && ended.err.contains("cannot be used with"), "{ended:?}");
    let ended = desk.audit(&["openapi.yaml", "--set", "policy.lease=odd", "--json"]);
    assert_eq!((ended.code, &ended.error()["code"]), (2, &json!("settings_invalid")));
}
