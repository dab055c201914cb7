//! `cache`: a Redis in front of the store, as operators of the program see it; and `onlyonce epoch raise`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::net::TcpListener;

use onlyonce_testkit::engines::redis::Server;
use onlyonce_testkit::http;
use serde_json::Value;

use crate::engines::Engine;
use crate::gateways::{Gateways, post};
use crate::program::{Folder, text};

/// So many keys at most are tried until one is replayed from the cache: on a busy machine a look may take longer than a request waits.
const KEYS_MAX: usize = 300;

fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// E04: three gateways share the cache. What one has replayed, another one replays from there.
#[test]
fn a_gateway_replays_from_the_cache_what_another_one_has_replayed() {
    let cache = Server::shared().fresh_prefix();
    let gateways = Gateways::new(Engine::ThreeNodes, &format!("cache = \"{cache}\"\n"), &[]);
    let hits = || -> f64 {
        let hits = gateways.nodes.iter().map(|node| {
            let metrics = http::get(&node.admin().to_string(), "/metrics").unwrap();
            let metrics = String::from_utf8(metrics.body).unwrap();
            let hits =
                metrics.lines().find_map(|line| line.strip_prefix("onlyonce_cache_total{result=\"hit\"} "));
            hits.unwrap_or_else(|| panic!("no hits in {metrics}")).parse::<f64>().unwrap()
        });
        hits.sum()
    };
    for number in 0..KEYS_MAX {
        let key = format!("key-{number}");
        let answers: Vec<_> = gateways.nodes.iter().map(|node| post(node.address(), "/ok", &key)).collect();
        for answer in &answers {
            assert_eq!((answer.status, &answer.body), (answers[0].status, &answers[0].body), "{key}");
        }
        assert_eq!(gateways.provider.runs(&key), 1, "{key}");
        if hits() > 0.0 {
            return;
        }
    }
    panic!("no gateway has used a copy of another one");
}

/// E04: told before anything is served, with the remedy and without the password.
#[test]
fn a_cache_that_cannot_be_used_is_refused_at_the_start() {
    let folder = Folder::new();
    let server = Server::start(&[("requirepass", "right")]).unwrap();
    let nobody = format!("redis://:hunter2@127.0.0.1:{}", closed_port());
    let serve = |store: &str, cache: &str| {
        let set = format!("cache={cache}");
        let free = "127.0.0.1:0";
        let upstream = "http://127.0.0.1:3000";
        folder.run(&[
            "serve",
            "--upstream",
            upstream,
            "--store",
            store,
            "--listen",
            free,
            "--admin",
            free,
            "--set",
            &set,
        ])
    };
    for (store, cache, told) in [
        (
            "memory:",
            "redis://:hunter2@127.0.0.1:6379",
            "is a cache for an SQL store, and store is memory:; unset cache",
        ),
        ("redis://127.0.0.1:6379", "redis://:hunter2@127.0.0.1:6379", "is a cache for an SQL store"),
        ("sqlite:a.db", "memcached://:hunter2@h", "cache \"memcached://…\" is not a Redis; write redis://"),
        ("sqlite:a.db", "redis://:hunter2@cache.example.org", "not encrypted"),
        ("sqlite:a.db", &server.url_of(":hunter2@"), "does not accept the login; check user and password"),
        ("sqlite:a.db", &nobody, "check that it runs and can be reached from here"),
    ] {
        let output = serve(store, cache);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{store} {cache}: {error}");
        assert!(error.contains("cache") && error.contains(told), "{store} {cache}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

/// E07
#[test]
fn doctor_looks_at_the_cache() {
    let folder = Folder::new();
    folder.run(&["migrate", "--store", "sqlite:a.db"]);
    let server = Server::shared();
    let doctor = |cache: &str| -> Vec<(String, String)> {
        let set = format!("cache={cache}");
        let output = folder.run(&["doctor", "--store", "sqlite:a.db", "--set", &set, "--json"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of_cache = told["checks"].as_array().unwrap().iter().filter(|check| check["id"] == "cache");
        let text = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
        of_cache.map(|check| (text(check, "level"), text(check, "says"))).collect()
    };
    let store = server.fresh_prefix();
    let [(level, says)] = &doctor(&store)[..] else { panic!("one finding") };
    assert!(level == "warn" && says.contains("evicts nothing: maxmemory is 0"), "{says}");
    let migrated = folder.run(&["migrate", "--store", &store]);
    assert_eq!(migrated.status.code(), Some(0), "{}", text(&migrated.stderr));
    assert!(doctor(&store).iter().any(|(_, says)| says.contains("is a store as well")));
    let [(level, says)] = &doctor(&format!("redis://127.0.0.1:{}", closed_port()))[..] else {
        panic!("one finding")
    };
    assert_eq!(level, "fail", "{says}");
}

/// L05: settings are printed without the passwords of store and cache.
#[test]
fn what_check_prints_has_no_password() {
    let folder = Folder::new();
    let output = folder.run(&[
        "check",
        "--print",
        "--upstream",
        "http://127.0.0.1:3000",
        "--store",
        "postgres://ann:hunter2@127.0.0.1/pay",
        "--set",
        "cache=redis://bob:hunter2@127.0.0.1:6379",
    ]);
    let told = text(&output.stdout);
    assert!(told.contains("store = \"postgres://…@127.0.0.1/pay\""), "{told}");
    assert!(told.contains("cache = \"redis://…@127.0.0.1:6379\""), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
}

/// X04: for a backup that was restored.
#[test]
fn the_epoch_is_raised_by_an_operator() {
    let folder = Folder::new();
    folder.run(&["migrate", "--store", "sqlite:a.db"]);
    let raise = |flags: &[&str]| {
        folder.run(&[&["epoch", "raise", "--store", "sqlite:a.db", "--json"], flags].concat())
    };
    let told = |output: std::process::Output| -> Value { serde_json::from_slice(&output.stdout).unwrap() };
    let planned = told(raise(&["--dry-run"]));
    assert_eq!((&planned["done"], &planned["before"]), (&false.into(), &planned["after"]));
    let done = told(raise(&[]));
    assert_eq!((&done["done"], &done["before"]), (&true.into(), &planned["before"]));
    assert!(done["after"].as_u64() > done["before"].as_u64(), "{done}");
    assert_eq!(told(raise(&["--dry-run"]))["before"], done["after"]);
    assert_eq!(folder.run(&["epoch", "raise", "--store", "sqlite:none.db"]).status.code(), Some(2));
    let memory = folder.run(&["epoch", "raise", "--store", "memory:", "--dry-run"]);
    assert_eq!(memory.status.code(), Some(2), "{}", text(&memory.stdout));
}
