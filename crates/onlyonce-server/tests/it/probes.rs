//! Probes behind a URL, asked by the program.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use onlyonce_testkit::http::{self, Answer, Request};

use crate::program::{Folder, onlyonce};
use crate::provider::{Provider, SOON, head};
use crate::serve::Serving;

const HAPPENED: &str = r#"{"verdict":"happened","response":{"status":201,"headers":{"content-type":"text/plain"},"body":"paid"}}"#;

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

struct World {
    provider: Provider,
    serving: Serving,
    folder: Folder,
}

impl World {
    fn new(store: &str, settings: &str) -> Self {
        let (folder, provider) = (Folder::new(), Provider::start());
        let store = if store == "sqlite:" { folder.url("onlyonce.db") } else { store.to_owned() };
        let file = folder.path().join("onlyonce.toml");
        std::fs::write(&file, settings).unwrap();
        let mut command = onlyonce();
        command.env("PROBE_AUTH", "Bearer of-the-probe");
        let arguments =
            ["--config", file.to_str().unwrap(), "--upstream", &provider.url(), "--store", &store];
        Self { serving: Serving::start_as(command, &arguments), provider, folder }
    }

    fn post(&self, key: &str) -> Answer {
        let headers = [("Authorization", "Bearer ann"), ("Idempotency-Key", key)];
        let request = Request { method: "POST", path: "/lost/1", headers: &headers, body: "{}" };
        http::send(&self.serving.address().to_string(), request).unwrap()
    }

    /// The retry that is not refused any more.
    fn settled(&self, key: &str) -> Answer {
        let began = Instant::now();
        loop {
            let answer = self.post(key);
            if answer.status != 409 {
                return answer;
            }
            assert!(began.elapsed() < SOON, "it is not settled");
            std::thread::yield_now();
        }
    }

    fn counted(&self, line: &str) -> u64 {
        let metrics = http::get(&self.serving.admin().to_string(), "/metrics").unwrap();
        let metrics = String::from_utf8(metrics.body).unwrap();
        let count = metrics.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        count.unwrap_or_else(|| panic!("{line}: {metrics}")).parse().unwrap()
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
#[test]
fn an_unknown_outcome_is_settled_by_asking_the_provider() {
    for store in ["memory:", "sqlite:"] {
        let probe = Asked::start(HAPPENED);
        let world =
            World::new(store, &settings(&probe, "probe_headers = { authorization = \"env:PROBE_AUTH\" }"));
        assert_eq!(world.post("k/1").status, 502);
        let replay = world.settled("k/1");
        assert_eq!(
            (replay.status, &replay.body[..], replay.header("content-type")),
            (201, &b"paid"[..], Some("text/plain"))
        );
        assert_eq!(replay.header("idempotent-replayed"), Some("true"));
        assert_eq!(world.provider.runs("k/1"), 1, "it ran once");
        let told = world.provider.told("k/1", 1);
        let expected = format!(
            "/probe?v=1&scope={}&key=k%2F1&token={}&attempt=1&route=POST%20%2Flost%2F%2A",
            told.scope, told.token
        );
        assert_eq!(probe.questions(), [(expected, "Bearer of-the-probe".to_owned())]);
        assert_eq!(world.counted(r#"onlyonce_probes_total{result="happened"}"#), 1);
        assert_eq!(world.counted(r#"onlyonce_reconcile_total{result="resolved",by="probe"}"#), 1);
    }
}

/// M03: of many that are unknown, four questions go to one host at once.
#[test]
fn four_questions_go_to_one_host_at_once() {
    let probe = Asked::start(HAPPENED);
    probe.set(|state| state.is_open = false);
    let world = World::new("memory:", &settings(&probe, ""));
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
    let mut world = World::new("memory:", &settings(&silent, ""));
    assert_eq!(world.post("k-1").status, 502);
    silent.until(|state| !state.questions.is_empty());
    assert_eq!(world.post("k-1").status, 409);
    let knowing = Asked::start(HAPPENED);
    let changed = settings(&knowing, "probe_headers = { authorization = \"Basic new\" }");
    std::fs::write(world.folder.path().join("onlyonce.toml"), changed).unwrap();
    world.serving.signal("HUP");
    world.serving.says("reloaded");
    assert_eq!(world.settled("k-1").status, 201);
    assert_eq!(knowing.questions()[0].1, "Basic new");
}

/// U06, M03: a probe that fails decides nothing.
#[test]
fn a_failing_probe_settles_nothing_and_is_counted() {
    let probe = Asked::start("<html>it happened</html>");
    let world = World::new("memory:", &settings(&probe, ""));
    assert_eq!(world.post("k-1").status, 502);
    probe.until(|state| state.questions.len() > 1);
    assert_eq!(world.post("k-1").status, 409);
    assert!(world.counted(r#"onlyonce_probes_total{result="failed"}"#) >= 1);
    assert!(world.counted(r#"onlyonce_reconcile_total{result="failed",by="probe"}"#) >= 1);
    probe.set(|state| state.answer = HAPPENED.to_owned());
    assert_eq!(world.settled("k-1").status, 201);
}
