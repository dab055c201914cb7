//! `onlyonce sweep` and `onlyonce reap`: a gateway's own work, on a store that no gateway has.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::json;

use super::world::{World, run};
use crate::engines::{Engine, on_every_stored_engine};
use crate::program::onlyonce;

on_every_stored_engine! {
    functions {
        expired_records_are_counted_and_then_deleted,
        without_once_it_goes_on_until_it_is_stopped,
    }
}

/// A store with two expired records and one that is not.
fn expired(engine: Engine) -> super::world::Rest {
    let world = World::begin(
        engine,
        &[
            "--set",
            r#"route=[{match="POST /brief",retention="1s",downstream_retention="1s"}]"#,
            "--set",
            "background.reap_every=1h",
        ],
    );
    for key in ["brief-1", "brief-2"] {
        assert_eq!(world.post("ann", "/brief", key), 201);
    }
    assert_eq!(world.post("ann", "/pay", "paid"), 201);
    let rest = world.rest();
    let began = std::time::Instant::now();
    while rest.run(&["keys", "list", "--json"]).json()["items"].as_array().map(Vec::len) != Some(1) {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "they do not expire");
    }
    rest
}

/// M02
fn expired_records_are_counted_and_then_deleted(engine: Engine) {
    let rest = expired(engine);
    assert_eq!(rest.run(&["reap", "--dry-run", "--json"]).json(), json!({ "done": 2 }));
    assert_eq!(rest.run(&["reap", "--dry-run"]).done(), "2 records would be deleted; nothing was changed\n");
    assert_eq!(rest.run(&["reap", "--once", "--json"]).json(), json!({ "done": 2 }));
    assert_eq!(rest.run(&["reap", "--once"]).done(), "0 records deleted\n");
    assert_eq!(rest.run(&["keys", "list", "--json"]).json()["items"][0]["key"], "paid");
}

/// M02: it goes on until it is stopped, and is done then.
fn without_once_it_goes_on_until_it_is_stopped(engine: Engine) {
    let rest = expired(engine);
    let mut child = onlyonce()
        .args(["reap", "--json", "--store", &rest.store])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stderr.take().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "2 records deleted\n");
    assert!(Command::new("kill").arg(child.id().to_string()).status().expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON"),
        json!({ "done": 2 })
    );
}

/// M01, U04: what a killed gateway left running is settled by whoever takes the file.
#[test]
fn a_sweep_settles_what_a_killed_gateway_left() {
    let world = World::begin(Engine::Sqlite, &[]);
    let World { folder: _folder, serving, store, .. } = world;
    let request = "POST /hang HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer ann\r\nIdempotency-Key: hung\r\nContent-Length: 0\r\n\r\n";
    let waiting = serving.send(request);
    let state = || run(&["keys", "list", "--json", "--store", &store]).json()["items"][0]["state"].clone();
    let began = std::time::Instant::now();
    while state() != "running" {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "it does not begin");
    }
    let ended = run(&["sweep", "--dry-run", "--json", "--store", &store]);
    assert_eq!(ended.json(), json!({ "done": 0 }), "its gateway lives");
    // SIGKILL.
    drop((serving, waiting));
    assert_eq!(state(), "running", "reading settles nothing");
    assert_eq!(run(&["sweep", "--dry-run", "--json", "--store", &store]).json(), json!({ "done": 1 }));
    assert_eq!(state(), "running");
    assert_eq!(run(&["sweep", "--once", "--json", "--store", &store]).json(), json!({ "done": 1 }));
    assert_eq!(state(), "unknown");
    assert_eq!(run(&["sweep", "--once", "--store", &store]).done(), "0 records settled\n");
}

/// The store is found where serve would find it.
#[test]
fn the_store_comes_from_the_settings() {
    let world = World::begin(Engine::Sqlite, &[]);
    assert_eq!(world.post("ann", "/pay", "paid"), 201);
    let file = world.folder.path().join("a.toml");
    std::fs::write(&file, format!("store = \"{}\"\n[background]\nreap_batch = 0\n", world.store))
        .expect("written");
    let config = file.to_str().expect("text");
    let ended = run(&["reap", "--dry-run", "--config", config]);
    assert!(ended.code == 2 && ended.err.contains("reap_batch"), "{ended:?}");
    std::fs::write(&file, format!("store = \"{}\"\n[policy]\nlease = \"never\"\n", world.store))
        .expect("written");
    assert_eq!(run(&["reap", "--dry-run", "--config", config, "--json"]).json(), json!({ "done": 0 }));
}
