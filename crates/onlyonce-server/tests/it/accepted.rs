//! Accepted work behind the gateway: on every engine, on one node and on three, across kills, stops and reloads.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onlyonce_testkit::http::{self, Answer, Request};
use serde_json::Value;

use crate::engines::{Engine, on_every_engine};
use crate::gateways::{json_of, text};
use crate::program::{Folder, onlyonce};
use crate::provider::{Provider, SOON};
use crate::serve::Serving;

/// Base64 of 32 bytes.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const KEY_ID: &str = "d193ec225d68e067";
const OTHER_KEY: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
const ANN: &str = "Bearer ann";
const BOB: &str = "Bearer bob";

struct World {
    engine: Engine,
    store: String,
    provider: Provider,
    nodes: Vec<Serving>,
    turn: AtomicUsize,
    folder: Folder,
}

impl World {
    fn new(engine: Engine, settings: &str) -> Self {
        let folder = Folder::new();
        let store = engine.store(&folder);
        let provider = Provider::start();
        let mut world =
            Self { engine, store, provider, nodes: Vec::new(), turn: AtomicUsize::new(0), folder };
        world.set(settings);
        world.start();
        world
    }

    fn set(&self, settings: &str) {
        self.set_with_key("KEY", settings);
    }

    fn set_with_key(&self, key: &str, settings: &str) {
        let settings = format!("{settings}\n[encryption]\nkeys = [\"env:{key}\"]\n");
        std::fs::write(self.folder.path().join("onlyonce.toml"), settings)
            .expect("the folder can be written");
    }

    /// Starts every node that there is to be.
    fn start(&mut self) {
        let file = self.folder.path().join("onlyonce.toml");
        let file = file.to_str().expect("text");
        let arguments = ["--config", file, "--upstream", &self.provider.url(), "--store", &self.store];
        let node = |_| {
            let mut command = onlyonce();
            command.envs([("KEY", KEY), ("OTHER", OTHER_KEY)]);
            Serving::start_as(command, &arguments)
        };
        self.nodes = (0..self.engine.nodes()).map(node).collect();
    }

    fn kill(&mut self) {
        for node in &mut self.nodes {
            node.signal("KILL");
            node.ended();
        }
    }

    /// The node whose turn it is: what comes next seldom reaches the one that came first.
    fn node(&self) -> SocketAddr {
        self.nodes[self.turn.fetch_add(1, Ordering::SeqCst) % self.nodes.len()].address()
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let body = if method == "POST" { r#"{"amount":5}"# } else { "" };
        let request = Request { method, path, headers, body };
        http::send(&self.node().to_string(), request).expect("an answer")
    }

    fn post(&self, path: &str, key: &str, caller: &str) -> Answer {
        let headers = [("Authorization", caller), ("Idempotency-Key", key), ("Prefer", "respond-async")];
        self.ask("POST", path, &headers)
    }

    fn accept(&self, path: &str, key: &str) {
        let accepted = self.post(path, key, ANN);
        assert_eq!(accepted.status, 202, "{}", text(&accepted));
    }

    fn status(&self, key: &str, caller: &str) -> (u16, Value) {
        let answer = self.ask("GET", &format!("/_onlyonce/keys/{key}"), &[("Authorization", caller)]);
        (answer.status, json_of(&answer))
    }

    fn state(&self, key: &str) -> String {
        self.status(key, ANN).1["state"].as_str().unwrap_or("none").to_owned()
    }

    fn response(&self, key: &str) -> Answer {
        self.ask("GET", &format!("/_onlyonce/keys/{key}/response"), &[("Authorization", ANN)])
    }

    /// Waits until a key is in this state, without sending its request again.
    fn becomes(&self, key: &str, state: &str) {
        let began = Instant::now();
        while self.state(key) != state {
            assert!(began.elapsed() < SOON, "{key} is {} and never {state}", self.state(key));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

on_every_engine!(functions {
    accepted_work_is_run_as_it_would_have_been,
    work_that_did_not_run_is_run_again,
    a_caller_cancels_its_own_work,
    no_scope_takes_every_place,
    what_was_not_run_in_time_is_told_so_and_expires,
    a_duplicate_of_what_runs_is_accepted_where_the_policy_says_so,
    no_more_waits_than_is_allowed,
});

/// What outlives a process.
mod stored {
    use super::{
        a_stop_finishes_what_runs_and_leaves_the_rest, what_was_accepted_survives_a_kill,
        work_whose_key_is_missing_waits_for_it, work_whose_route_is_gone_waits_for_a_reload,
    };
    use crate::engines::on_every_stored_engine;

    on_every_stored_engine!(functions {
        what_was_accepted_survives_a_kill,
        a_stop_finishes_what_runs_and_leaves_the_rest,
        work_whose_route_is_gone_waits_for_a_reload,
        work_whose_key_is_missing_waits_for_it,
    });
}

const GONE: &str = "its route is not in the settings";
const ALLOWED: &str = "[policy]\naccept = \"allowed\"\n";

/// W07, R03, O05
fn accepted_work_is_run_as_it_would_have_been(engine: Engine) {
    let world = World::new(engine, ALLOWED);
    let headers = [
        ("Authorization", ANN),
        ("Idempotency-Key", "k"),
        ("Prefer", "respond-async"),
        ("Content-Type", "application/json"),
        ("X-Custom", "kept"),
        ("Onlyonce-Token", "forged"),
    ];
    let accepted = world.ask("POST", "/slow/a%2Fb/../c?x=%20", &headers);
    assert_eq!(accepted.status, 202, "{}", text(&accepted));
    assert_eq!(accepted.header("location"), Some("/_onlyonce/keys/k"));
    assert_eq!(accepted.header("retry-after"), Some("1"));
    assert_eq!(json_of(&accepted)["state"], "pending");
    let told = world.provider.told("k", 1);
    assert_eq!((told.target.as_str(), told.body.as_str()), ("/slow/c?x=%20", r#"{"amount":5}"#));
    let header = |name: &str| told.headers.get(name).map(String::as_str);
    assert_eq!(header("authorization"), Some(ANN));
    assert_eq!(header("idempotency-key"), Some("k"));
    assert_eq!(header("x-custom"), Some("kept"));
    assert_eq!(header("content-type"), Some("application/json"));
    assert_eq!(header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(header("onlyonce-attempt"), Some("1"));
    assert_eq!(told.token.len(), 97, "{told:?}");
    world.becomes("k", "running");
    assert_eq!(world.status("k", ANN).0, 202);
    assert_eq!(world.status("k", BOB).0, 404, "it is nobody else's");
    let duplicate = world.ask("POST", "/slow/c?x=%20", &headers);
    assert_eq!(duplicate.status, 202, "{}", text(&duplicate));
    world.provider.let_go();
    world.becomes("k", "completed");
    let (status, told) = world.status("k", ANN);
    assert_eq!((status, &told["status"], &told["attempt"]), (200, &201.into(), &1.into()));
    let answer = world.response("k");
    assert_eq!((answer.status, text(&answer).as_str()), (201, "ok"));
    assert_eq!(answer.header("idempotent-replayed"), Some("true"));
    let replayed = world.ask("POST", "/slow/c?x=%20", &headers);
    assert_eq!((replayed.status, replayed.header("idempotent-replayed")), (201, Some("true")));
    let waited = [("Authorization", ANN), ("Idempotency-Key", "w"), ("Prefer", "respond-async, wait=9")];
    assert_eq!(world.ask("POST", "/ok", &waited).status, 201, "it was done in time");
    assert_eq!((world.provider.runs("k"), world.provider.runs("w")), (1, 1));
}

/// W07
fn work_that_did_not_run_is_run_again(engine: Engine) {
    let world = World::new(engine, ALLOWED);
    world.accept("/flaky", "k");
    world.becomes("k", "completed");
    assert_eq!(world.provider.runs("k"), 2);
    assert_eq!(world.status("k", ANN).1["attempt"], 2);
    assert_eq!(world.response("k").status, 201);
    world.accept("/lost", "opaque");
    world.becomes("opaque", "unknown");
    assert_eq!(world.response("opaque").status, 409);
    assert_eq!(world.provider.runs("opaque"), 1);
}

/// W07
fn a_caller_cancels_its_own_work(engine: Engine) {
    let world = World::new(engine, &format!("{ALLOWED}[background]\naccepted_at_once = 1\n"));
    let cancel = |key: &str, caller: &str| {
        world.ask("DELETE", &format!("/_onlyonce/keys/{key}"), &[("Authorization", caller)])
    };
    // One that keeps every place of every node.
    for number in 0..engine.nodes() {
        world.accept("/slow", &format!("busy{number}"));
        world.provider.told(&format!("busy{number}"), 1);
    }
    world.accept("/ok", "k");
    assert_eq!(cancel("k", BOB).status, 404);
    assert_eq!(cancel("busy0", ANN).status, 409);
    assert_eq!(cancel("k", ANN).status, 204);
    let again = cancel("k", ANN);
    assert_eq!((again.status, json_of(&again)["state"].as_str()), (409, Some("completed")));
    let answer = world.response("k");
    assert_eq!((answer.status, json_of(&answer)["code"].as_str()), (408, Some("idempotency_not_run")));
    assert!(text(&answer).contains("cancelled"), "{}", text(&answer));
    for _ in 0..engine.nodes() {
        world.provider.let_go();
    }
    world.becomes("busy0", "completed");
    assert_eq!(world.provider.runs("k"), 0);
}

/// W07: while others wait, a scope has half of the places of a node.
fn no_scope_takes_every_place(engine: Engine) {
    let world = World::new(engine, &format!("{ALLOWED}[background]\naccepted_at_once = 2\n"));
    for number in 0..4 * engine.nodes() {
        world.accept("/slow", &format!("k{number}"));
    }
    let bobs = world.post("/ok", "bobs", BOB);
    assert_eq!(bobs.status, 202, "{}", text(&bobs));
    // A place of ann's becomes free on each node, and bob's is next on one of them.
    for _ in 0..2 * engine.nodes() {
        world.provider.let_go();
    }
    let began = Instant::now();
    while world.status("bobs", BOB).1["state"] != "completed" {
        assert!(began.elapsed() < SOON, "bob waits for ann");
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..2 * engine.nodes() {
        world.provider.let_go();
    }
    for number in 0..4 * engine.nodes() {
        world.becomes(&format!("k{number}"), "completed");
        assert_eq!(world.provider.runs(&format!("k{number}")), 1);
    }
}

/// W07, T04: what nobody ran, and what never succeeded, is a 408 that says which; then it expires.
fn what_was_not_run_in_time_is_told_so_and_expires(engine: Engine) {
    let settings = "[policy]\naccept = \"allowed\"\nretention = \"2s\"\nlease = \"2s\"\n\
                    [background]\naccepted_at_once = 1\nsweep_every = \"1s\"\nreap_every = \"1s\"\n";
    let world = World::new(engine, settings);
    world.accept("/failing", "fails");
    world.provider.told("fails", 1);
    // One that keeps every place of every node.
    for number in 0..engine.nodes() {
        world.accept("/slow", &format!("busy{number}"));
        world.provider.told(&format!("busy{number}"), 1);
    }
    world.accept("/ok", "waits");
    let attempts = world.provider.runs("fails");
    // Both are looked at in turns: each expires a moment after it is given up.
    let reasons = [("waits", "nothing was run"), ("fails", "no attempt succeeded in time")];
    let began = Instant::now();
    let mut answers = [None, None];
    while answers.iter().any(Option::is_none) {
        assert!(began.elapsed() < SOON, "one is never given up: {answers:?}");
        for (answer, (key, _)) in answers.iter_mut().zip(reasons) {
            if answer.is_none() {
                *answer = Some(world.response(key)).filter(|answer| answer.status != 202);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for (answer, (_, why)) in answers.into_iter().flatten().zip(reasons) {
        let told = json_of(&answer);
        assert_eq!((answer.status, &told["code"]), (408, &"idempotency_not_run".into()), "{told}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.header("idempotent-replayed"), Some("true"), "a retry is told the same");
        assert_eq!(told["retryable"], false);
        assert!(told["detail"].as_str().is_some_and(|detail| detail.contains(why)), "{told}");
    }
    world.becomes("waits", "none");
    assert_eq!((world.provider.runs("waits"), world.provider.runs("fails")), (0, attempts));
    (0..engine.nodes()).for_each(|_| world.provider.let_go());
}

/// R03: whichever node the duplicate reaches.
fn a_duplicate_of_what_runs_is_accepted_where_the_policy_says_so(engine: Engine) {
    let world = World::new(engine, "[policy]\nin_flight = \"accept\"\n");
    let headers = [("Authorization", ANN), ("Idempotency-Key", "k")];
    let node = world.node();
    let first = std::thread::spawn(move || {
        let request = Request { method: "POST", path: "/slow", headers: &headers, body: r#"{"amount":5}"# };
        http::send(&node.to_string(), request).expect("an answer")
    });
    world.provider.told("k", 1);
    for _ in 0..engine.nodes() {
        let duplicate = world.ask("POST", "/slow", &headers);
        assert_eq!((duplicate.status, &json_of(&duplicate)["state"]), (202, &"running".into()));
        assert_eq!(duplicate.header("location"), Some("/_onlyonce/keys/k"));
        let wait = duplicate.header("retry-after").and_then(|wait| wait.parse::<u64>().ok());
        assert!(wait.is_some_and(|wait| wait >= 1), "{wait:?}");
    }
    world.provider.let_go();
    assert_eq!(first.join().expect("no panic").status, 201);
    for _ in 0..engine.nodes() {
        let replayed = world.ask("POST", "/slow", &headers);
        assert_eq!((replayed.status, replayed.header("idempotent-replayed")), (201, Some("true")));
    }
    assert_eq!(world.provider.runs("k"), 1);
}

/// W07, L02: what is refused left nothing behind, and is accepted once there is room.
fn no_more_waits_than_is_allowed(engine: Engine) {
    const MOST: usize = 2;
    let settings = format!("pending_max = {MOST}\n{ALLOWED}[background]\naccepted_at_once = 1\n");
    let world = World::new(engine, &settings);
    for number in 0..engine.nodes() {
        world.accept("/slow", &format!("busy{number}"));
        world.provider.told(&format!("busy{number}"), 1);
    }
    // One node never exceeds it, several by what the others accept before they have counted.
    let (mut accepted, mut refused) = (Vec::new(), Vec::new());
    for number in 0..MOST * engine.nodes() + 4 {
        let key = format!("waits{number}");
        let answer = world.post("/ok", &key, ANN);
        match answer.status {
            202 => accepted.push(key),
            _ => {
                assert_eq!((answer.status, &json_of(&answer)["limit"]), (429, &"pending_max".into()));
                assert_eq!(json_of(&answer)["code"], "idempotency_limit_reached");
                assert!(answer.header("retry-after").is_some());
                refused.push(key);
            }
        }
    }
    assert!((1..=MOST * engine.nodes()).contains(&accepted.len()), "{accepted:?}");
    let last = refused.last().expect("more were sent than may wait");
    assert_eq!(world.status(last, ANN).0, 404);
    (0..engine.nodes()).for_each(|_| world.provider.let_go());
    for key in &accepted {
        world.becomes(key, "completed");
    }
    let began = Instant::now();
    while world.post("/ok", last, ANN).status == 429 {
        assert!(began.elapsed() < SOON, "there is never room again");
        std::thread::sleep(Duration::from_millis(10));
    }
    world.becomes(last, "completed");
    assert_eq!(world.provider.runs(last), 1);
}

/// W07, L05: nothing is run and nothing lost while no node can read the request.
fn work_whose_key_is_missing_waits_for_it(engine: Engine) {
    let settings = format!("{ALLOWED}[background]\naccepted_at_once = 1\n");
    let mut world = World::new(engine, &settings);
    for number in 0..engine.nodes() {
        world.accept("/slow/busy", &format!("busy{number}"));
        world.provider.told(&format!("busy{number}"), 1);
    }
    world.accept("/ok", "k");
    world.kill();
    (0..engine.nodes()).for_each(|_| world.provider.let_go());
    world.set_with_key("OTHER", &settings);
    world.start();
    let said = world.nodes[0].says("accepted work did not begin");
    assert!(said.contains(KEY_ID), "{said}");
    world.accept("/ok", "other");
    world.becomes("other", "completed");
    assert_eq!((world.state("k").as_str(), world.provider.runs("k")), ("pending", 0));
    world.kill();
    world.set(&settings);
    world.start();
    world.becomes("k", "completed");
    assert_eq!((world.provider.runs("k"), world.response("other").status), (1, 503));
}

/// W07, P05: what waits is run by the next life, and what ran is judged by its effects.
fn what_was_accepted_survives_a_kill(engine: Engine) {
    let settings = "[policy]\naccept = \"always\"\nlease = \"1s\"\nstore_timeout = \"500ms\"\n\
                    [background]\naccepted_at_once = 1\nsweep_every = \"1s\"\n\
                    [[route]]\nmatch = \"POST /slow/keyed\"\neffects = \"keyed\"\n";
    for (path, ends) in [("/slow/opaque", "unknown"), ("/slow/keyed", "completed")] {
        let mut world = World::new(engine, settings);
        for number in 0..engine.nodes() {
            world.accept(path, &format!("runs{number}"));
            world.provider.told(&format!("runs{number}"), 1);
        }
        for number in 0..5 {
            world.accept("/ok", &format!("waits{number}"));
        }
        world.kill();
        // Those that were abandoned, and those that run again.
        (0..2 * engine.nodes()).for_each(|_| world.provider.let_go());
        world.start();
        for number in 0..5 {
            world.becomes(&format!("waits{number}"), "completed");
            assert_eq!(world.provider.runs(&format!("waits{number}")), 1);
        }
        for number in 0..engine.nodes() {
            world.becomes(&format!("runs{number}"), ends);
        }
    }
}

/// W07: SIGTERM finishes what runs, and the rest is run by the next life.
fn a_stop_finishes_what_runs_and_leaves_the_rest(engine: Engine) {
    let mut world = World::new(engine, &format!("{ALLOWED}[background]\naccepted_at_once = 1\n"));
    for number in 0..engine.nodes() {
        world.accept("/slow", &format!("runs{number}"));
        world.provider.told(&format!("runs{number}"), 1);
    }
    world.accept("/ok", "waits");
    for node in &world.nodes {
        node.signal("TERM");
        let began = Instant::now();
        while http::get(&node.admin().to_string(), "/readyz").expect("an answer").status != 503 {
            assert!(began.elapsed() < SOON, "it does not stop");
        }
    }
    (0..engine.nodes()).for_each(|_| world.provider.let_go());
    for node in &mut world.nodes {
        assert_eq!(node.ended().code(), Some(0));
    }
    assert_eq!(world.provider.runs("waits"), 0, "nothing is begun once the node stops");
    world.start();
    world.becomes("waits", "completed");
    for number in 0..engine.nodes() {
        assert_eq!(world.state(&format!("runs{number}")), "completed");
        assert_eq!(world.provider.runs(&format!("runs{number}")), 1);
    }
}

/// W07: nothing is run and nothing lost where the route of accepted work is gone.
fn work_whose_route_is_gone_waits_for_a_reload(engine: Engine) {
    let route =
        "[[route]]\nmatch = \"POST /ok/*\"\naccept = \"always\"\n[background]\naccepted_at_once = 1\n";
    let mut world =
        World::new(engine, &format!("{route}[[route]]\nmatch = \"POST /slow\"\naccept = \"always\"\n"));
    for number in 0..engine.nodes() {
        world.accept("/slow", &format!("busy{number}"));
        world.provider.told(&format!("busy{number}"), 1);
    }
    world.accept("/ok/1", "k");
    world.set("[[route]]\nmatch = \"POST /slow\"\naccept = \"always\"\n");
    let reload = |node: &mut Serving| {
        node.signal("HUP");
        node.says("reloaded: the new settings apply")
    };
    let said: Vec<String> = world.nodes.iter_mut().map(reload).collect();
    (0..engine.nodes()).for_each(|_| world.provider.let_go());
    // It may have been tried before the reload was told.
    if !said[0].contains(GONE) {
        world.nodes[0].says(GONE);
    }
    assert_eq!((world.state("k").as_str(), world.provider.runs("k")), ("pending", 0));
    world.set(route);
    for node in &mut world.nodes {
        node.signal("HUP");
    }
    world.becomes("k", "completed");
    assert_eq!(world.provider.runs("k"), 1);
}
