//! `onlyonce doctor`: what is wrong, and what to do about it.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use onlyonce::worker::{Background, Workers};
use onlyonce_core::record::StateName;
use onlyonce_testkit::engines::postgres::Server;
use serde_json::Value;

use super::world::{Ended, READER, TOKENS, World, run};
use crate::admin_world;
use crate::engines::Engine;
use crate::program::{Folder, onlyonce};

const IDS: [&str; 15] = [
    "settings",
    "gateway",
    "store",
    "durability",
    "clock",
    "upstream",
    "probes",
    "webhooks",
    "tokens",
    "encryption",
    "scope",
    "workers",
    "stuck",
    "limits",
    "files",
];

/// The worst level of a check, and what it says.
fn level<'a>(told: &'a Value, id: &str) -> (&'a str, String) {
    let mut checks = told["checks"].as_array().expect("a list").iter().filter(|check| check["id"] == id);
    let first = checks.next().unwrap_or_else(|| panic!("no {id}: {told:#}"));
    let says = [Some(first)].into_iter().flatten().chain(checks).map(|check| {
        let text = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
        format!("{} · {}", text("says"), text("remedy"))
    });
    (first["level"].as_str().expect("a level"), says.collect::<Vec<_>>().join("\n"))
}

fn is(told: &Value, id: &str, expected: &str, words: &str) {
    let (level, says) = level(told, id);
    assert!(
        level == expected && says.contains(words),
        "{id} is {level}, not {expected} with {words:?}: {says}"
    );
}

/// A port at which something accepts connections.
fn service() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    (listener, url)
}

/// E07: a healthy gateway on every kind of store, while it runs.
#[test]
fn a_healthy_gateway_has_no_failure() {
    for engine in [Engine::Memory, Engine::Sqlite, Engine::Postgres] {
        let world = World::begin(engine, &[]);
        assert_eq!(world.post("ann", "/pay", "paid"), 201);
        let (_listener, upstream) = service();
        let arguments =
            ["doctor", "--store", &world.store, "--upstream", &upstream, "--admin", &world.admin(), "--json"];
        let told = run(&arguments).json();
        assert_eq!(told["ok"], true, "{engine:?}: {told:#}");
        for id in IDS {
            let (level, says) = level(&told, id);
            assert_ne!(level, "fail", "{engine:?}: {id}: {says}");
        }
        let order: Vec<_> = told["checks"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|check| check["id"].as_str())
            .collect();
        let mut kinds = order.clone();
        kinds.dedup();
        assert_eq!(kinds, IDS, "one after the other: {order:?}");
        is(&told, "gateway", "ok", "ready");
        is(&told, "upstream", "ok", &upstream);
        is(&told, "workers", "ok", "");
        is(&told, "stuck", "ok", "nothing");
        is(&told, "scope", "warn", "jwt:sub");
        is(&told, "durability", if engine == Engine::Memory { "warn" } else { "ok" }, "");
        let text = run(&arguments[..arguments.len() - 1]);
        assert!(text.out.contains("ok    gateway     ready"), "{text:?}");
    }
}

/// E07: each thing that is wrong is found, by name.
#[test]
fn what_is_wrong_is_found() {
    let folder = Folder::new();
    let store = folder.url("onlyonce.db");
    run(&["migrate", "--store", &store]).done();
    fs::set_permissions(folder.path().join("onlyonce.db"), fs::Permissions::from_mode(0o644))
        .expect("it is ours");
    let (_listener, upstream) = service();
    let settings = format!(
        r#"
        upstream = "{upstream}"
        store = "{store}"
        [policy]
        personal_data = "allow"
        [[route]]
        match = "POST /asked/*"
        effects = "queryable"
        [[route]]
        match = "POST /probed/*"
        effects = "queryable"
        probe = "http://127.0.0.1:1/probe"
        upstream = "http://127.0.0.1:1"
        [[admin_token]]
        name = "all"
        token = "env:SHORT"
        role = "operate"
        [limits]
        keys_per_second_total = 5
        [listener]
        connections_max = 1000000
        buffered_bytes_max = "256MiB"
        "#
    );
    let config = folder.path().join("onlyonce.toml");
    fs::write(&config, settings).expect("it can be written");
    let ended = onlyonce()
        .env("SHORT", "short")
        .args([
            "doctor",
            "--config",
            config.to_str().expect("text"),
            "--admin",
            "http://127.0.0.1:1",
            "--json",
        ])
        .output()
        .expect("it starts");
    let told = Ended::of(&ended).no();
    assert_eq!(told["ok"], false);
    is(&told, "settings", "warn", "admin_token[0].token");
    is(&told, "gateway", "fail", "no gateway answers at http://127.0.0.1:1");
    is(&told, "store", "warn", "mode 644");
    is(&told, "store", "warn", "chmod 600");
    is(&told, "upstream", "fail", "http://127.0.0.1:1");
    is(&told, "probes", "fail", "http://127.0.0.1:1");
    is(&told, "probes", "fail", "\"POST /asked/*\" is queryable and has no probe");
    is(&told, "tokens", "warn", "shorter than 16 characters");
    is(&told, "tokens", "warn", "every admin token has the role operate");
    is(&told, "encryption", "warn", "personal data");
    is(&told, "workers", "skip", "only a running gateway knows");
    is(&told, "stuck", "skip", "only a running gateway knows");
    is(&told, "files", "fail", "need 4000000");
    assert!(!ended.stdout.windows(7).any(|part| part == b"\"short\""), "a token is never shown");
}

/// E07: a store that is not there, is damaged, or is none of ours.
#[test]
fn a_store_that_cannot_be_used_fails() {
    let folder = Folder::new();
    let (_listener, upstream) = service();
    let doctor = |store: &str| {
        run(&["doctor", "--store", store, "--upstream", &upstream, "--admin", "http://127.0.0.1:1", "--json"])
            .no()
    };
    let missing = doctor(&folder.url("missing.db"));
    is(&missing, "store", "fail", "start the gateway, which creates it");
    is(&missing, "clock", "skip", "could not be read");
    assert!(!folder.path().join("missing.db").exists(), "nothing is created");
    fs::write(folder.path().join("odd.db"), vec![7; 8192]).expect("it can be written");
    is(&doctor(&folder.url("odd.db")), "store", "fail", "");
    is(&doctor("postgres://ann:s3cret@127.0.0.1:1/pay?connect_timeout=1"), "store", "fail", "");
    is(&doctor(&Server::shared().fresh_schema()), "store", "fail", "has no Onlyonce tables");
    is(&doctor("memory:"), "durability", "warn", "loses all records");
    is(&doctor("sqlite:/nowhere/at/all/a.db"), "settings", "fail", "which does not exist");
}

/// E07: the role's sessions lose what applications commit, and rates are each gateway's own.
#[test]
fn what_postgresql_does_not_promise_is_told() {
    let server = Server::shared();
    let url = server.fresh_schema();
    run(&["migrate", "--store", &url]).done();
    let (_listener, upstream) = service();
    let separator = if url.contains('?') { '&' } else { '?' };
    let off = format!("{url}{separator}options=-csynchronous_commit%3Doff");
    let doctor = |store: &str| {
        let limits = ["--set", "limits.keys_per_second_total=5"];
        run(&[
            &["doctor", "--store", store, "--upstream", &upstream, "--admin", "http://127.0.0.1:1", "--json"],
            &limits[..],
        ]
        .concat())
        .no()
    };
    is(&doctor(&url), "durability", "ok", "survive a crash");
    is(&doctor(&url), "limits", "warn", "limits.nodes");
    is(&doctor(&off), "durability", "warn", "synchronous_commit = off");
}

/// E07: what is stuck at the gateway, and what a token is needed for.
#[test]
fn a_gateway_with_tokens_says_only_to_them_how_it_is_doing() {
    let world = World::begin(Engine::Sqlite, &TOKENS);
    let (_listener, upstream) = service();
    let admin = world.admin();
    let arguments = ["doctor", "--store", &world.store, "--upstream", &upstream, "--admin", &admin, "--json"];
    let told = run(&arguments).json();
    is(&told, "gateway", "warn", "--token");
    is(&told, "stuck", "skip", "");
    let ended = onlyonce()
        .env("T", READER)
        .args([&arguments[..], &["--token", "env:T"]].concat())
        .output()
        .expect("it starts");
    let told = Ended::of(&ended).json();
    is(&told, "gateway", "ok", "ready");
    is(&told, "stuck", "ok", "nothing");
    assert!(
        world.folder.contents().keys().all(|name| name.starts_with("onlyonce.db")),
        "it left nothing behind"
    );
}

/// Arguments and settings that cannot be meant.
#[test]
fn what_cannot_begin_is_an_error_and_faults_are_a_failure() {
    for (arguments, words) in [
        (&["--admin", "127.0.0.1:1"][..], "write http://127.0.0.1:1"),
        (&["--token", "s3cret"], "write env:NAME"),
        (&["--odd"], "--odd"),
    ] {
        let ended = run(&[
            &["doctor", "--upstream", "http://127.0.0.1:1", "--store", "memory:", "--json"],
            arguments,
        ]
        .concat());
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(
            ended.error()["detail"].as_str().is_some_and(|told| told.contains(words)),
            "{words}: {ended:?}"
        );
    }
    let told = run(&["doctor", "--set", "policy.effects=keyd", "--json"]).no();
    is(&told, "settings", "fail", "did you mean keyed?");
    is(&told, "settings", "fail", "is missing · give --upstream");
}

/// E07: a fault in one setting does not hide what is wrong elsewhere.
#[test]
fn checks_that_do_not_need_a_faulty_setting_still_run() {
    let world = World::begin(Engine::Sqlite, &[]);
    let admin = world.admin();
    let doctor = |faulty: &str, more: &[&str]| {
        let arguments = [&["doctor", "--set", faulty, "--store", &world.store, "--json"], more].concat();
        run(&arguments).no()
    };
    let told = doctor("policy.effects=keyd", &["--admin", &admin]);
    is(&told, "gateway", "ok", "ready");
    is(&told, "store", "ok", "its schema is up to date");
    is(&told, "durability", "ok", "survive a crash");
    for id in ["clock", "webhooks", "tokens", "encryption", "workers", "stuck", "limits", "files"] {
        is(&told, id, "ok", "");
    }
    for id in ["upstream", "probes", "scope"] {
        is(&told, id, "skip", "the settings that it needs have faults");
    }
    for (faulty, ids) in [
        ("admin=nowhere", &["gateway"][..]),
        ("store=nowhere:", &["store", "durability", "clock", "encryption", "limits"]),
        ("encryption.keys=[\"env:NOT_SET\"]", &["store", "durability", "clock", "encryption"]),
        ("background.sweep_every=never", &["workers"]),
        ("limits.keys_per_second_total=many", &["limits"]),
        ("listener.connections_max=none", &["files"]),
    ] {
        let store = if faulty.starts_with("store") { &[][..] } else { &["--store", &world.store] };
        let told = run(&[&["doctor", "--set", faulty, "--json"], store].concat()).no();
        for id in ids {
            is(&told, id, "skip", "");
        }
    }
}

/// A remedy is told once, below what is wrong.
#[test]
fn a_remedy_is_told_once() {
    let folder = Folder::new();
    let store = folder.url("missing.db");
    let faulty = run(&["doctor", "--set", "policy.effects=keyd", "--admin", "http://127.0.0.1:1"]);
    let missing = run(&[
        "doctor",
        "--upstream",
        "http://127.0.0.1:1",
        "--store",
        &store,
        "--admin",
        "http://127.0.0.1:1",
    ]);
    for (ended, once) in [
        (&faulty, "give --upstream http://HOST:PORT"),
        (&faulty, "did you mean keyed?"),
        (&faulty, "--admin"),
        (&missing, "start the gateway, which creates it"),
        (
            &missing,
            "cannot connect to http://127.0.0.1:1/: Connection refused (os error 111)\n                  start the service",
        ),
    ] {
        assert_eq!(ended.code, 1, "{ended:?}");
        assert_eq!(ended.out.matches(once).count(), 1, "{once}: {}", ended.out);
    }
    assert!(!missing.out.contains("use the file of a store"), "one remedy is enough: {}", missing.out);
}

/// What the admin port of a test's own engine makes doctor say.
async fn doctor(world: &admin_world::World, more: &'static [&'static str]) -> Ended {
    let admin = format!("http://{}", world.address());
    let run = move || {
        let (_listener, upstream) = service();
        let arguments =
            ["doctor", "--upstream", &upstream, "--store", "memory:", "--admin", &admin, "--json"];
        run(&[&arguments, more].concat())
    };
    tokio::task::spawn_blocking(run).await.expect("it ends")
}

const HOUR: Duration = Duration::from_secs(3600);

/// E07: what has been stuck for an hour is named, with the command that shows it.
#[tokio::test]
async fn a_record_that_is_unknown_for_an_hour_is_told() {
    let world = admin_world::World::new(Engine::Memory).await;
    world.record("acme", "order-4711", StateName::Unknown).await;
    world.pass(HOUR - Duration::from_secs(1)).await;
    is(&doctor(&world, &[]).await.json(), "stuck", "ok", "nothing");
    world.pass(Duration::from_secs(2)).await;
    let told = doctor(&world, &[]).await.json();
    is(&told, "stuck", "warn", "the outcome of key \"order-4711\" has been unknown for 1 h");
    is(&told, "stuck", "warn", "onlyonce keys list --state unknown");
    world.dead_letter("acme", "order-4712").await;
    world.dead_message("mail-1").await;
    let told = doctor(&world, &[]).await.json();
    is(&told, "stuck", "warn", "dead letters among keys: 1");
    is(&told, "stuck", "warn", "dead letters among messages: 1");
    world.stop().await;
}

/// E07: a probe that gives no usable answer is named by its route, also while settings have faults.
#[tokio::test]
async fn a_probe_that_fails_is_told() {
    let world = admin_world::World::new(Engine::Memory).await;
    for number in 0..4 {
        world.record("acme", &format!("order-{number}"), StateName::Unknown).await;
    }
    world.broken_probe();
    world.ask_probes().await;
    is(&doctor(&world, &[]).await.json(), "probes", "ok", "none is needed");
    world.ask_probes().await;
    let told = "the probe of \"POST /payments/*\" failed";
    is(&doctor(&world, &[]).await.json(), "probes", "warn", told);
    is(&doctor(&world, &[]).await.json(), "probes", "warn", "the bank answered 503");
    let faulty = doctor(&world, &["--set", "policy.effects=keyd"]).await.no();
    is(&faulty, "probes", "warn", told);
    world.stop().await;
}

/// E07: a worker that has not ended a round for three of its periods.
#[tokio::test]
async fn a_worker_that_is_silent_fails() {
    let world = admin_world::World::new(Engine::Memory).await;
    let workers = Workers::start(world.node(), &Background::default());
    while world.node().rounds().len() < 4 {
        tokio::task::yield_now().await;
    }
    drop(workers);
    is(&doctor(&world, &[]).await.json(), "workers", "ok", "");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    let told = doctor(&world, &[]).await.no();
    is(&told, "workers", "fail", "the sweeper has not finished a round for 1 min");
    is(&told, "workers", "fail", "the reconciler has not finished a round for 1 min");
    assert!(!level(&told, "workers").1.contains("reaper"), "its period is 30 s: {told:#}");
    world.stop().await;
}
