//! Against the admin port of a running gateway.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use super::world::{Ended, OPERATOR, READER, TOKENS, World};
use crate::engines::{Engine, on_every_stored_engine};
use crate::program::onlyonce;

on_every_stored_engine! {
    functions {
        a_running_gateway_is_operated_by_commands,
        a_store_answers_as_its_gateway_does,
        a_token_that_may_not_is_an_error,
        the_log_is_followed,
    }
}

/// Runs a command with a token against the admin port.
fn with_token(world: &World, token: &str, arguments: &[&str]) -> Ended {
    let mut command = onlyonce();
    command.env("USER", "ann").env("SHOWN", token).args(arguments).args([
        "--token",
        "env:SHOWN",
        "--admin",
        &world.admin(),
    ]);
    Ended::of(&command.stdin(Stdio::null()).output().expect("it starts"))
}

/// O09, U05, U09, L04: the whole way, by the admin port of a gateway that goes on serving.
fn a_running_gateway_is_operated_by_commands(engine: Engine) {
    let mut world = World::begin(engine, &[]);
    assert_eq!((world.post("ann", "/pay", "paid"), world.post("ann", "/lost", "lost-1")), (201, 502));
    let lines = world.serving.says("it is unknown whether this request did its work");
    let (_, line) = lines.split_once("it is unknown whether this request did its work").expect("it was said");
    let (_, digest) = line.split_once("record=").expect("it is in the line");
    let digest = digest.split_whitespace().next().expect("a word");
    let shown = world.on_admin(&["keys", "show", digest, "--json"]).json();
    assert_eq!((&shown["key"], &shown["state"]), (&json!("lost-1"), &json!("unknown")));
    assert_eq!(
        world.on_store(&["keys", "show", digest, "--json"]).json()["revision"],
        shown["revision"],
        "both see one record"
    );
    let listed = world.on_admin(&["keys", "list", "--json"]).json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    let scope = shown["scope"].as_str().expect("a text").to_owned();

    let told = world.on_admin(&["keys", "show", &scope[..8], "lost-1"]);
    let command =
        format!("onlyonce keys verdict {scope} lost-1 happened --reason 'WHY' --admin {}", world.admin());
    assert!(told.done().lines().any(|line| line == command), "{command}\n{told:?}");
    let verdict = [
        "keys",
        "verdict",
        &scope[..8],
        "lost-1",
        "happened",
        "--reason",
        "seen",
        "--status",
        "202",
        "--body",
        "done",
    ];
    let planned = world.on_admin(&[&verdict[..], &["--dry-run"]].concat());
    assert!(planned.done().contains("from unknown to completed; nothing was changed"), "{planned:?}");
    let told = world.on_admin(&verdict);
    assert!(told.done().contains("retries get 202 with 4 bytes"), "{told:?}");
    assert!(told.done().contains("applied: unknown, now completed; audit entry "), "{told:?}");
    assert_eq!(world.retry("ann", "/lost", "lost-1"), 202, "the verdict is the client's answer");
    assert_eq!(world.on_admin(&["keys", "show", &scope, "lost-1", "--response", "-"]).done(), "done");
    let forgotten =
        world.on_admin(&["keys", "forget", &scope[..8], "paid", "--reason", "again", "--json"]).json();
    assert_eq!(
        (&forgotten["result"], &forgotten["before"]["state"]),
        (&json!("forgotten"), &json!("completed"))
    );
    let purged = world.on_admin(&["keys", "purge", &scope[..8], "--reason", "erase", "--json"]).json();
    assert_eq!((&purged["result"], &purged["forgotten"]), (&json!("done"), &json!(1)));
    let log = world.on_admin(&["log", "--json"]).json();
    let entries = log["items"].as_array().expect("a list");
    let told: Vec<_> = entries.iter().map(|entry| (&entry["action"], &entry["via"], &entry["as"])).collect();
    let (cli, ann) = (json!("cli"), json!("ann"));
    let actions = ["purge", "forget", "read_response", "verdict"].map(Value::from);
    assert_eq!(told, actions.iter().map(|action| (action, &cli, &ann)).collect::<Vec<_>>());
    assert_eq!(world.on_admin(&["keys", "list"]).done(), "no records\n");
}

/// The admin API and a store itself answer in the same shapes.
fn a_store_answers_as_its_gateway_does(engine: Engine) {
    let world = World::begin(engine, &[]);
    assert_eq!((world.post("ann", "/pay", "paid"), world.post("ann", "/lost", "lost-1")), (201, 502));
    let scope = world.scope("paid");
    for verb in [
        &["keys", "list"][..],
        &["keys", "list", "--state", "unknown"],
        &["keys", "show", &scope, "paid"],
        &["keys", "show", &scope, "lost-1"],
        &["log"],
    ] {
        let arguments = [verb, &["--json"]].concat();
        assert_eq!(world.on_admin(&arguments).json(), world.on_store(&arguments).json(), "{verb:?}");
    }
    fn dry<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [more, &["--reason", "r", "--dry-run", "--json"]].concat()
    }
    let orders = [
        dry(&["keys", "verdict", &scope, "lost-1", "happened"]),
        dry(&["keys", "forget", &scope, "paid"]),
        dry(&["keys", "purge", &scope]),
        dry(&["keys", "verdict", &scope, "lost-1", "did-not-happen"]),
        dry(&["keys", "verdict", &scope, "paid", "happened"]),
        dry(&["keys", "forget", &scope, "lost-1"]),
        dry(&["keys", "forget", &scope, "nothing"]),
    ];
    let by_admin: Vec<_> = orders.iter().map(|order| world.on_admin(order)).collect();
    let rest = world.rest();
    for (order, by_admin) in orders.iter().zip(by_admin) {
        let by_store = rest.run(order);
        assert_eq!(by_admin.code, by_store.code, "{order:?}: {by_admin:?} {by_store:?}");
        if by_admin.code == 0 {
            assert_eq!(by_admin.json(), by_store.json(), "{order:?}");
            continue;
        }
        let (mut one, mut other) = (by_admin.error(), by_store.error());
        // The words may differ: one speaks of parameters, the other of flags.
        one["detail"].take();
        other["detail"].take();
        assert_eq!(one, other, "{order:?}");
    }
}

/// L04: who may not gets 2, and what was refused to a known token is in the log.
fn a_token_that_may_not_is_an_error(engine: Engine) {
    let world = World::begin(engine, &TOKENS);
    assert_eq!(world.post("ann", "/pay", "paid"), 201);
    let scope = world.scope("paid");
    for (ended, code, status) in [
        (world.on_admin(&["keys", "list", "--json"]), "admin_unauthorized", 401),
        (with_token(&world, "guess", &["keys", "list", "--json"]), "admin_unauthorized", 401),
        (
            with_token(&world, READER, &["keys", "forget", &scope, "paid", "--reason", "r", "--json"]),
            "admin_forbidden",
            403,
        ),
        (
            with_token(&world, READER, &["keys", "show", &scope, "paid", "--response", "x", "--json"]),
            "admin_forbidden",
            403,
        ),
    ] {
        let error = ended.error();
        assert_eq!(
            (ended.code, &error["code"], &error["status"]),
            (2, &json!(code), &json!(status)),
            "{error}"
        );
    }
    let told = world.on_admin(&["keys", "list"]);
    assert!(
        told.err.starts_with("error: ") && told.err.contains("--token env:NAME or file:PATH"),
        "{told:?}"
    );
    assert_eq!(
        with_token(&world, READER, &["keys", "show", &scope, "paid", "--json"]).json()["state"],
        "completed"
    );
    let done = with_token(&world, OPERATOR, &["keys", "forget", &scope, "paid", "--reason", "r"]);
    assert!(done.done().contains("forgotten: key \"paid\""), "{done:?}");
    let missing =
        with_token(&world, OPERATOR, &["keys", "forget", &scope, "paid", "--reason", "r", "--json"]);
    assert_eq!((missing.code, &missing.error()["code"]), (1, &json!("record_not_found")));
    let log = with_token(&world, READER, &["log", "--who", "eye", "--json"]).json();
    let refused: Vec<_> =
        log["items"].as_array().expect("a list").iter().map(|entry| &entry["code"]).collect();
    assert_eq!(refused, ["admin_forbidden", "admin_forbidden"]);
}

/// L04: what comes is shown when it comes, and once.
fn the_log_is_followed(engine: Engine) {
    let world = World::begin(engine, &[]);
    for key in ["one", "two"] {
        assert_eq!(world.post("ann", "/pay", key), 201);
    }
    let scope = world.scope("one");
    world.on_admin(&["keys", "forget", &scope, "one", "--reason", "first"]).done();
    let mut follower = onlyonce()
        .args(["log", "--follow", "--json", "--admin", &world.admin()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(follower.stdout.take().expect("piped")).lines();
    let mut reason = || -> Value {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str::<Value>(&line).expect("a JSON document a line")["reason"].clone()
    };
    assert_eq!(reason(), "first");
    world.on_admin(&["keys", "forget", &scope, "two", "--reason", "second"]).done();
    assert_eq!(reason(), "second");
    let sent = std::process::Command::new("kill")
        .args(["-INT", &follower.id().to_string()])
        .status()
        .expect("kill runs");
    assert!(sent.success());
    assert_eq!(follower.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_gateway_without_tls_is_not_asked_with_it() {
    let world = World::begin(Engine::Sqlite, &[]);
    let url = world.admin().replace("http://", "https://");
    let ended = super::world::run(&["keys", "list", "--json", "--admin", &url]);
    assert_eq!((ended.code, &ended.error()["code"]), (2, &json!("gateway_unreachable")), "{ended:?}");
}
