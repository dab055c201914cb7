//! `--store postgres://`: read and changed as a node would, beside the nodes.

use onlyonce_testkit::engines::postgres::Server;
use serde_json::Value;

use super::world::{World, run};
use crate::engines::Engine;
use crate::program::Folder;

fn schema_of(url: &str) -> &str {
    url.split_once("schema=").expect("a URL with a schema").1
}

/// U05, E02, X04: nodes go on, and replay nothing that was forgotten.
#[test]
fn a_database_is_read_and_changed_beside_its_nodes() {
    let url = Server::shared().fresh_schema();
    let world = World::on(Engine::Postgres, Folder::new(), &url, &[]);
    assert_eq!((world.post("ann", "/pay", "paid"), world.post("ann", "/lost", "lost-1")), (201, 502));
    let scope = world.scope("paid");
    let shown = world.on_store(&["keys", "show", &scope[..8], "lost-1", "--json"]).json();
    assert_eq!(shown["state"], "unknown");
    let told = world.on_store(&["keys", "show", &scope[..8], "lost-1"]);
    assert!(told.done().contains("onlyonce keys verdict "), "{told:?}");
    let verdict = [
        "keys", "verdict", &scope, "lost-1", "happened", "--reason", "seen", "--status", "202", "--body",
        "done",
    ];
    assert_eq!(
        world.on_store(&[&verdict[..], &["--dry-run", "--json"]].concat()).json()["result"],
        "would-apply"
    );
    assert_eq!(world.on_store(&[&verdict[..], &["--json"]].concat()).json()["result"], "applied");
    assert_eq!(world.post("ann", "/lost", "lost-1"), 202, "the node that runs knows");
    let forgotten = world.on_store(&["keys", "forget", &scope, "paid", "--reason", "again", "--json"]).json();
    assert_eq!(forgotten["result"], "forgotten");
    assert_eq!(world.post("ann", "/lost", "paid"), 502, "it runs anew, and no copy answers");
    let log = world.on_store(&["log", "--json"]).json();
    let actions: Vec<_> =
        log["items"].as_array().expect("a list").iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["forget", "verdict"]);
    assert_eq!(world.on_store(&["sweep", "--once", "--json"]).json()["done"], 0);
    assert_eq!(world.on_store(&["reap", "--dry-run", "--json"]).json()["done"], 0);
}

/// A command about one record creates no schema and migrates none.
#[test]
fn a_schema_that_is_missing_or_older_is_told_and_left_alone() {
    let server = Server::shared();
    let url = server.fresh_schema();
    let schema = schema_of(&url);
    let scope = "5".repeat(64);
    let verbs = [
        &["keys", "list"][..],
        &["log"],
        &["keys", "forget", &scope, "k", "--reason", "r"],
        &["sweep", "--once"],
    ];
    for verb in verbs {
        let ended = run(&[verb, &["--store", &url, "--json"]].concat());
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(
            ended.error()["detail"].as_str().is_some_and(|told| told.contains("has no Onlyonce tables")),
            "{ended:?}"
        );
    }
    let tables = server.sql(&format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'"));
    assert_eq!(tables, "0");
}

#[test]
fn a_database_that_is_away_is_an_error_without_its_password() {
    let ended = run(&[
        "keys",
        "list",
        "--json",
        "--store",
        "postgres://ann:s3cret@127.0.0.1:1/pay?connect_timeout=1",
    ]);
    let error = ended.error();
    assert_eq!(
        (ended.code, &error["code"], &error["status"]),
        (2, &Value::from("store_unavailable"), &503.into()),
        "{error}"
    );
    assert!(!ended.err.contains("s3cret"), "{ended:?}");
}
