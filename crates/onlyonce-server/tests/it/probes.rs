//! Probes behind a URL, asked by the program.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use onlyonce_testkit::http::Answer;
use serde_json::{Value, json};

use crate::engines::{Engine, on_every_engine};
use crate::gateways::{Gateways, post};
use crate::provider::{SOON, head};
use crate::webhooks::{deliver, now, signed};

on_every_engine! {
    functions {
        an_unknown_outcome_is_settled_by_asking_the_provider,
        a_failing_probe_settles_nothing_and_is_told_until_it_answers,
        did_not_happen_is_believed_in_time_and_no_answer_at_all_ends_with_a_person,
        happened_without_an_answer_gets_it_from_the_probe,
    }
}

const HAPPENED: &str = r#"{"verdict":"happened","response":{"status":201,"headers":{"content-type":"text/plain"},"body":"paid"}}"#;

const AUTH: &str = "Bearer of-the-probe";

/// A probe that answers the same to everybody, once it is let to.
#[derive(Clone)]
struct Asked {
    address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    answer: String,
    is_open: bool,
    /// Path and query, and the header `authorization`.
    questions: Vec<(String, String)>,
    now: usize,
    most: usize,
}

impl Asked {
    fn start(body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let state = State { answer: body.to_owned(), is_open: true, questions: Vec::new(), now: 0, most: 0 };
        let asked = Self {
            address: listener.local_addr().expect("bound"),
            shared: Arc::new((Mutex::new(state), Condvar::new())),
        };
        let serving = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (serving, stream) = (serving.clone(), stream.expect("a connection"));
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        asked
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let Some((path, headers)) = head(&mut reader) else { return };
        let mut state = self.shared.0.lock().unwrap();
        state.questions.push((path, headers.get("authorization").cloned().unwrap_or_default()));
        state.now += 1;
        state.most = state.most.max(state.now);
        self.shared.1.notify_all();
        let mut state = self.shared.1.wait_while(state, |state| !state.is_open).unwrap();
        state.now -= 1;
        let body = &state.answer;
        let answer =
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let _ = reader.get_mut().write_all(answer.as_bytes());
    }

    /// Waits for it.
    fn until(&self, is_so: impl Fn(&State) -> bool) {
        let (_state, out) = self
            .shared
            .1
            .wait_timeout_while(self.shared.0.lock().unwrap(), SOON, |state| !is_so(state))
            .unwrap();
        assert!(!out.timed_out(), "what was waited for did not come");
    }

    fn set(&self, change: impl Fn(&mut State)) {
        change(&mut self.shared.0.lock().unwrap());
        self.shared.1.notify_all();
    }

    fn questions(&self) -> Vec<(String, String)> {
        self.shared.0.lock().unwrap().questions.clone()
    }
}

struct World(Gateways);

impl World {
    fn new(engine: Engine, settings: &str) -> Self {
        Self(Gateways::new(engine, settings, &[("PROBE_AUTH", AUTH)]))
    }

    /// What a node says needs somebody, since its probe fails.
    fn failing(&self) -> Option<Value> {
        let (_, told) = self.0.told("GET", "/v1/overview", &Value::Null);
        told["needs_you"].as_array().unwrap().iter().find(|need| need["what"] == "probe_failing").cloned()
    }

    fn post(&self, key: &str) -> Answer {
        self.0.post("/lost/1", key)
    }

    /// The retry that is not refused any more: neither because nobody knows, nor because a busy database was slow to answer.
    fn settled(&self, key: &str) -> Answer {
        let began = Instant::now();
        loop {
            let answer = self.post(key);
            if !matches!(answer.status, 409 | 503) {
                return answer;
            }
            assert!(began.elapsed() < SOON, "it is not settled");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn counted(&self, line: &str) -> u64 {
        self.0.sum(line)
    }
}

fn settings(probe: &Asked, headers: &str) -> String {
    format!(
        "[background]\nreconcile_first = \"50ms\"\n[[route]]\nmatch = \"POST /lost/*\"\neffects = \"queryable\"\n\
         probe = \"http://{}/probe?v=1\"\n{headers}\n",
        probe.address
    )
}

/// U05, M03: the service dies after the work is done, and the probe finds out.
fn an_unknown_outcome_is_settled_by_asking_the_provider(engine: Engine) {
    let probe = Asked::start(HAPPENED);
    let world =
        World::new(engine, &settings(&probe, "probe_headers = { authorization = \"env:PROBE_AUTH\" }"));
    assert_eq!(world.post("k/1").status, 502);
    let replay = world.settled("k/1");
    assert_eq!(
        (replay.status, &replay.body[..], replay.header("content-type")),
        (201, &b"paid"[..], Some("text/plain"))
    );
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(world.0.provider.runs("k/1"), 1, "it ran once");
    let told = world.0.provider.told("k/1", 1);
    let expected = format!(
        "/probe?v=1&scope={}&key=k%2F1&token={}&attempt=1&route=POST%20%2Flost%2F%2A",
        told.scope, told.token
    );
    assert_eq!(probe.questions(), [(expected, AUTH.to_owned())]);
    assert_eq!(world.counted(r#"onlyonce_probes_total{result="happened"}"#), 1);
    assert_eq!(world.counted(r#"onlyonce_reconcile_total{result="resolved",by="probe"}"#), 1);
}

/// M03: of many that are unknown, four questions go to one host at once.
#[test]
fn four_questions_go_to_one_host_at_once() {
    let probe = Asked::start(HAPPENED);
    probe.set(|state| state.is_open = false);
    let world = World::new(Engine::Memory, &settings(&probe, ""));
    for key in 0..24 {
        assert_eq!(world.post(&format!("k-{key}")).status, 502);
    }
    probe.until(|state| state.now == 4);
    probe.set(|state| state.is_open = true);
    for key in 0..24 {
        assert_eq!(world.settled(&format!("k-{key}")).status, 201);
    }
    assert_eq!(probe.shared.0.lock().unwrap().most, 4);
    assert_eq!(probe.questions().len(), 24, "one question each");
}

/// G04, M03: a reload brings another probe, whose answers are believed from then on.
#[test]
fn a_reload_changes_who_is_asked() {
    let silent = Asked::start(r#"{"verdict":"unknown"}"#);
    let mut world = World::new(Engine::Memory, &settings(&silent, ""));
    assert_eq!(world.post("k-1").status, 502);
    silent.until(|state| !state.questions.is_empty());
    assert_eq!(world.post("k-1").status, 409);
    let knowing = Asked::start(HAPPENED);
    let changed = settings(&knowing, "probe_headers = { authorization = \"Basic new\" }");
    std::fs::write(world.0.folder.path().join("onlyonce.toml"), changed).unwrap();
    world.0.nodes[0].signal("HUP");
    world.0.nodes[0].says("reloaded");
    assert_eq!(world.settled("k-1").status, 201);
    assert_eq!(knowing.questions()[0].1, "Basic new");
}

/// U06, M03, O02: a probe that fails decides nothing. Five failures in a row need somebody, and the first answer ends that.
fn a_failing_probe_settles_nothing_and_is_told_until_it_answers(engine: Engine) {
    let probe = Asked::start("<html>it happened</html>");
    let world = World::new(engine, &settings(&probe, ""));
    let keys: Vec<_> = (0..6).map(|number| format!("k-{number}")).collect();
    for key in &keys {
        assert_eq!(world.post(key).status, 502);
    }
    let failing = soon(|| world.failing());
    assert_eq!(failing["route"], "POST /lost/*", "{failing}");
    assert!(failing["count"].as_u64().unwrap() >= 5 && failing["since"].is_string(), "{failing}");
    assert_eq!(world.post("k-1").status, 409);
    assert!(world.counted(r#"onlyonce_probes_total{result="failed"}"#) >= 5);
    assert!(world.counted(r#"onlyonce_reconcile_total{result="failed",by="probe"}"#) >= 5);
    let (_, dead) = world.0.told("GET", "/v1/keys?dead_letter=true", &Value::Null);
    assert_eq!(dead["items"], json!([]), "an outage of the probe flags nothing");
    probe.set(|state| state.answer = HAPPENED.to_owned());
    for key in &keys {
        assert_eq!(world.settled(key).status, 201);
    }
    // Of many nodes, those that had nothing left to ask have not heard of it.
    if engine.nodes() == 1 {
        assert_eq!(world.failing(), None, "cleared by the first answer");
    }
}

/// U05, U06, M03: "did not happen" is asked for again when it can be believed; "unknown" so often, and then a person has to decide.
fn did_not_happen_is_believed_in_time_and_no_answer_at_all_ends_with_a_person(engine: Engine) {
    let probe = Asked::start(r#"{"verdict":"did-not-happen"}"#);
    let more = "[policy]\ndeadline = \"2s\"\nhorizon = \"0s\"\n";
    let often = "reconcile_max = \"5s\"\nreconcile_tries_max = 3\n[[route]]";
    let world =
        World::new(engine, &(more.to_owned() + &settings(&probe, "").replacen("[[route]]", often, 1)));
    let began = Instant::now();
    assert_eq!(world.post("k-1").status, 502);
    assert_eq!((world.settled("k-1").status, world.0.provider.runs("k-1")), (502, 2), "it runs again");
    assert!(began.elapsed() >= Duration::from_secs(2), "not before the attempt can act no more");
    probe.set(|state| state.answer = r#"{"verdict":"did-not-happen","final":true}"#.to_owned());
    assert_eq!(world.post("k-2").status, 502);
    assert_eq!(
        (world.settled("k-2").status, world.0.provider.runs("k-2")),
        (502, 2),
        "a final word frees it"
    );

    probe.set(|state| state.answer = r#"{"verdict":"unknown"}"#.to_owned());
    assert_eq!(world.post("k-3").status, 502);
    let dead = || world.0.told("GET", "/v1/keys?dead_letter=true&q=k-3", &Value::Null).1["items"][0].clone();
    let flagged = soon(|| Some(dead()).filter(|item| !item.is_null()));
    assert_eq!(
        (&flagged["state"], &flagged["asked"], &flagged["ask_at"]),
        (&json!("unknown"), &json!(3), &Value::Null)
    );
    let paid =
        json!({ "verdict": "happened", "reason": "seen", "response": { "status": 201, "body": "paid" } });
    let (_, told) = world.0.told("POST", &format!("{}/verdict", world.0.path("k-3")), &paid);
    assert_eq!(told["result"], "applied");
    assert_eq!((dead(), world.post("k-3").status), (Value::Null, 201), "the truth still settles it");
}

/// U06, M03: a webhook and a person bring the news, and the probe the answer.
fn happened_without_an_answer_gets_it_from_the_probe(engine: Engine) {
    let probe = Asked::start(HAPPENED);
    let webhooks = "[webhooks.bank]\nsecrets = [\"env:PROBE_AUTH\"]\n";
    let settings = settings(&probe, "").replace("50ms", "1h").replace("/lost/*", "/*/1");
    let world = World::new(engine, &(settings + webhooks));
    let hear = |key: &str| {
        let body = json!({ "token": world.0.provider.told(key, 1).token, "verdict": "happened", "id": key })
            .to_string();
        let signature = signed(AUTH, now(), &body);
        let headers = [("Onlyonce-Signature", &*signature)];
        deliver(world.0.node().admin(), "/v1/webhooks/bank", &headers, &body).1["result"].clone()
    };
    let replayed = |path: &str, key: &str| {
        let replay = world.0.post(path, key);
        (replay.status, String::from_utf8(replay.body).unwrap())
    };
    let paid = (201, "paid".to_owned());
    assert_eq!(world.post("told").status, 502);
    assert_eq!((hear("told"), replayed("/lost/1", "told")), (json!("applied"), paid.clone()));
    assert_eq!(probe.questions().len(), 1, "asked once");

    let address = world.0.node().address();
    let client = std::thread::spawn(move || post(address, "/held/1", "early"));
    assert_eq!(hear("early"), "evidence");
    assert_eq!(probe.questions().len(), 1, "while the attempt runs nobody is asked");
    world.0.provider.let_go();
    client.join().unwrap();
    assert_eq!((replayed("/held/1", "early"), probe.questions().len()), (paid.clone(), 2));

    for (key, ask, expected) in [("asked", true, Some(paid)), ("unasked", false, None)] {
        assert_eq!(world.post(key).status, 502);
        let verdict = json!({ "verdict": "happened", "reason": "seen", "ask": ask });
        let path = format!("{}/verdict", world.0.path(key));
        assert_eq!(world.0.told("POST", &path, &verdict).1["result"], "applied");
        assert_eq!(Some(replayed("/lost/1", key)).filter(|(status, _)| *status == 201), expected, "{key}");
    }
    assert_eq!(probe.questions().len(), 3, "a person says whether to ask");
}

/// Waits for it.
fn soon<T>(look: impl Fn() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < SOON, "it never comes");
        std::thread::yield_now();
    }
}
