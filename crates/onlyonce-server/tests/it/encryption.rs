//! Encryption at rest, as clients and operators of a gateway see it: on a file, a database, and three nodes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs;

use onlyonce_testkit::http::{self, Answer};
use serde_json::Value;

use crate::engines::{Engine, on_every_stored_engine};
use crate::gateways::{json_of, post, text};
use crate::program::{Folder, onlyonce, run};
use crate::provider::Provider;
use crate::serve::Serving;

/// The keys of these tests, and their ids.
const KEYS: [(&str, &str); 3] = [
    ("KEY_A", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
    ("KEY_B", "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8="),
    ("KEY_C", "QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8="),
];
const ID_A: &str = "d193ec225d68e067";

on_every_stored_engine! {
    functions {
        a_missing_key_refuses_its_records_and_nothing_else,
        keys_are_changed_while_gateways_serve,
    }
}

/// A store, its provider and the settings of its nodes.
struct World {
    engine: Engine,
    provider: Provider,
    store: String,
    folder: Folder,
}

impl World {
    fn new(engine: Engine) -> Self {
        let (folder, provider) = (Folder::new(), Provider::start());
        let store = engine.store(&folder);
        Self { engine, provider, store, folder }
    }

    /// A settings file with these keys.
    fn settings(&self, keys: &[&str]) -> String {
        let file = self.folder.path().join(format!("{}.toml", keys.join("-")));
        let keys: Vec<_> = keys.iter().map(|key| format!("\"env:{key}\"")).collect();
        let encryption = match keys.is_empty() {
            true => String::new(),
            false => format!("[encryption]\nkeys = [{}]\n", keys.join(", ")),
        };
        // What is replayed from memory says nothing about the store.
        fs::write(&file, format!("[policy]\nstore_down = \"run\"\n{encryption}")).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// A node with these keys.
    fn start(&self, keys: &[&str]) -> Serving {
        let mut command = onlyonce();
        command.envs(KEYS);
        let (file, upstream) = (self.settings(keys), self.provider.url());
        let arguments = ["--config", &file, "--upstream", &upstream, "--store", &self.store];
        Serving::start_as(command, &arguments)
    }

    /// All nodes, with the keys that each of them has. A file has one node at a time.
    fn start_all(&self, keys: [&[&str]; 3]) -> Vec<Serving> {
        keys[..self.engine.nodes()].iter().map(|keys| self.start(keys)).collect()
    }

    /// A command on the store itself.
    fn command(&self, words: &[&str], keys: &[&str]) -> (Option<i32>, Value) {
        let file = self.settings(keys);
        let mut command = onlyonce();
        command.envs(KEYS).args(words).args(["--store", &self.store, "--config", &file, "--json"]);
        let output = command.output().unwrap();
        let out = serde_json::from_slice(&output.stdout);
        (output.status.code(), out.unwrap_or_else(|_| panic!("{output:?}")))
    }
}

fn stop(nodes: Vec<Serving>) {
    for mut node in nodes {
        assert_eq!(node.stop(), Some(0));
    }
}

fn is_replay(answer: &Answer) -> bool {
    answer.status == 201 && answer.header("idempotent-replayed") == Some("true") && text(answer) == "ok"
}

/// L05: also where `store_down` lets work run without the store: the record is there.
fn a_missing_key_refuses_its_records_and_nothing_else(engine: Engine) {
    let world = World::new(engine);
    let nodes = world.start_all([&["KEY_A"]; 3]);
    assert_eq!(post(nodes[0].address(), "/ok", "paid").status, 201);
    assert!(nodes.iter().all(|node| is_replay(&post(node.address(), "/ok", "paid"))));
    stop(nodes);

    for keys in [&[][..], &["KEY_B"]] {
        let nodes = world.start_all([keys; 3]);
        for node in &nodes {
            let answer = post(node.address(), "/ok", "paid");
            assert_eq!(answer.status, 503, "{}", text(&answer));
            assert!(answer.header("retry-after").is_some());
            let code = json_of(&answer)["type"].as_str().unwrap().to_owned();
            assert!(code.contains("idempotency-store-unavailable"), "{code}");
            assert!(!text(&answer).contains(ID_A), "a client learns nothing of keys");
            let admin = node.admin().to_string();
            let metrics = text(&http::get(&admin, "/metrics").unwrap());
            let count = metrics.lines().find_map(|line| line.strip_prefix("onlyonce_undecryptable_total "));
            assert!(count.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
            assert_eq!(http::get(&admin, "/readyz").unwrap().status, 200, "the node serves the rest");
            let list = json_of(&http::get(&admin, "/v1/keys").unwrap());
            let item = list["items"].as_array().unwrap().iter().find(|item| item["key"] == "paid").unwrap();
            assert!(item["unreadable"].as_str().unwrap().contains(ID_A), "{item}");
            assert_eq!((&item["state"], &item["status"]), (&"completed".into(), &201.into()));
            let path = format!("/v1/keys/{}/paid", item["scope"].as_str().unwrap());
            let shown = json_of(&http::get(&admin, &path).unwrap());
            assert_eq!(shown["response"]["bytes"], 2);
            assert!(shown["why"].as_str().unwrap().contains(ID_A), "{shown}");
            let answer = http::get(&admin, &format!("{path}/response")).unwrap();
            assert_eq!((answer.status, &json_of(&answer)["code"]), (503, &"record_undecryptable".into()));
        }
        let key = format!("other-{}", keys.len());
        assert_eq!(post(nodes[0].address(), "/ok", &key).status, 201);
        assert!(nodes.iter().all(|node| is_replay(&post(node.address(), "/ok", &key))));
        let mut nodes = nodes;
        assert!(nodes[0].says(ID_A).contains("which encryption.keys does not have; add that key"));
        stop(nodes);
        assert_eq!(world.provider.runs("paid"), 1, "nothing has run");
    }

    let (code, used) = world.command(&["store", "keys"], &["KEY_B"]);
    assert_eq!(code, Some(1));
    let missing = used["keys"].as_array().unwrap().iter().find(|key| key["id"] == ID_A).unwrap();
    assert_eq!((&missing["rows"], &missing["known"]), (&1.into(), &false.into()));
    assert_eq!(world.command(&["store", "keys"], &["KEY_A", "KEY_B"]).0, Some(0));
    for (keys, level, says) in [
        (&["KEY_B"][..], "fail", format!("the encryption key {ID_A} is not configured")),
        (&["KEY_B", "KEY_A"], "ok", "every key that stored rows need is configured".to_owned()),
    ] {
        let (_, told) = world.command(&["doctor", "--admin", "http://127.0.0.1:1"], keys);
        let mut checks = told["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["id"] == "encryption").unwrap();
        assert_eq!(check["level"], level, "{keys:?}: {told:#}");
        assert!(check["says"].as_str().unwrap().contains(&says), "{keys:?}: {check:#}");
    }

    let nodes = world.start_all([&["KEY_B", "KEY_A"]; 3]);
    assert!(nodes.iter().all(|node| is_replay(&post(node.address(), "/ok", "paid"))), "the key is back");
    stop(nodes);
}

/// L05: new key last everywhere, new key first everywhere, old key out; each node is restarted by itself.
fn keys_are_changed_while_gateways_serve(engine: Engine) {
    let world = World::new(engine);
    let mut keys: [&[&str]; 3] = [&["KEY_A"]; 3];
    let mut nodes = world.start_all(keys);
    let mut sent: Vec<String> = Vec::new();
    let steps: [&[&str]; 3] = [&["KEY_A", "KEY_B"], &["KEY_B", "KEY_A"], &["KEY_B"]];
    for (step, next) in steps.into_iter().enumerate() {
        if step == 2 {
            forget(&world, &nodes[0], &mut sent);
        }
        for place in 0..nodes.len() {
            let key = format!("{step}-{place}");
            let answer = post(nodes[place].address(), "/ok", &key);
            assert_eq!(answer.status, 201, "{}", text(&answer));
            sent.push(key);
            assert_eq!(nodes[place].stop(), Some(0));
            keys[place] = next;
            nodes[place] = world.start(next);
            for (node, key) in nodes.iter().flat_map(|node| sent.iter().map(move |key| (node, key))) {
                let answer = post(node.address(), "/ok", key);
                assert!(is_replay(&answer), "step {step}, key {key}: {} {}", answer.status, text(&answer));
            }
        }
    }
    stop(nodes);
    let (code, used) = world.command(&["store", "keys"], &["KEY_B"]);
    assert_eq!((code, used["keys"].as_array().map(Vec::len)), (Some(0), Some(1)), "{used}");
}

/// Forgets, as expiry would, what the old key encrypted: the keys of the first two steps up to the switch of their node.
fn forget(world: &World, node: &Serving, sent: &mut Vec<String>) {
    let admin = format!("http://{}", node.admin());
    for key in sent.drain(..) {
        let scope = world.provider.told(&key, 1).scope;
        let forgotten = run(&["keys", "forget", &scope, &key, "--reason", "rotation", "--admin", &admin]);
        assert!(forgotten.status.success(), "{forgotten:?}");
    }
    // A forgotten record stands until it is reaped, without its answer.
}
