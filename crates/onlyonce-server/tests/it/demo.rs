//! `onlyonce demo` from outside: exit codes, output, sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::program::{Folder, onlyonce, run, text};

/// R02, R03, R07, P01, P02, F06, S02, S06, U03, C03
#[test]
fn every_promise_of_the_story_holds() {
    let output = run(&["demo", "--tour"]);
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}");
    assert!(story.contains("2 requests, card charged 1 time\n"), "{story}");
    assert!(story.contains("64 requests, card charged 1 time\n"), "{story}");
    assert!(story.contains("2 requests, card charged 2 times\n"), "{story}");
    assert!(story.contains(" ms after the charge\n"), "{story}");
    assert!(story.contains("it moved 15 times. Every promise held."), "{story}");
    assert!(!story.contains('\u{1b}'), "colours are for terminals: {story}");
    assert_eq!(text(&output.stderr), "");
    let (_, place) = story.split_once("Records in sqlite:").expect("it says where its records are");
    let (file, _) = place.split_once(", removed when it ends.\n").expect("and what becomes of them");
    let folder = Path::new(file).parent().expect("a file is in a folder");
    assert!(!folder.exists(), "{} was left behind", folder.display());
}

/// P05: each run has keys of its own, so a store may be used again.
#[test]
fn the_story_can_be_played_again_on_a_store_that_remembers() {
    let folder = Folder::new();
    for _ in 0..2 {
        let output = folder.run(&["demo", "--tour", "--store", "sqlite:onlyonce.db"]);
        let story = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{story}");
        assert!(story.contains("Records in sqlite:onlyonce.db, kept.\n"), "{story}");
    }
}

#[test]
fn the_story_in_memory_kills_no_gateway_and_says_so() {
    let output = run(&["demo", "--tour", "--store", "memory:"]);
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}");
    assert!(story.contains("Not played: the death of the gateway"), "{story}");
    assert!(story.contains("it moved 13 times. Every promise held."), "{story}");
}

#[test]
fn the_story_is_also_told_to_machines() {
    let output = run(&["demo", "--tour", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let story: Value = serde_json::from_slice(&output.stdout).expect("--json prints JSON and nothing else");
    assert_eq!(story["held"], true);
    assert!(story["store"].as_str().is_some_and(|store| store.starts_with("sqlite:")), "{story}");
    let acts = story["acts"].as_array().expect("a list of acts");
    let names: Vec<_> = acts.iter().filter_map(|act| act["act"].as_str()).collect();
    let expected = [
        "retry",
        "storm",
        "waiting_storm",
        "reused_key",
        "other_caller",
        "hang_up",
        "bank_closed",
        "service_away",
        "service_dies",
        "probe",
        "webhook",
        "person",
        "killed_afterwards",
        "killed_in_the_middle",
    ];
    assert_eq!(names, expected);
    for act in acts {
        assert_eq!(act["charged"], act["charged_expected"], "{act}");
        let promises = act["promises"].as_array().expect("a list of promises");
        assert!(!promises.is_empty() && promises.iter().all(|promise| promise["held"] == true), "{act}");
    }
}

#[test]
fn help_names_the_verb_and_the_exit_codes() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    assert!(
        help.contains("demo")
            && help.contains("Exit codes: 0 success; 1 not found, refused or check failed; 2 error."),
        "{help}"
    );
    let output = run(&["demo", "--help"]);
    let help = text(&output.stdout);
    for flag in ["--tour", "--listen", "--admin", "--service", "--store", "--json"] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
}

#[test]
fn what_it_does_not_understand_is_an_error() {
    for arguments in [
        &["demo", "--fast"][..],
        &["pay"],
        &[],
        &["demo", "--json"],
        &["demo", "--tour", "--listen", "127.0.0.1:0"],
        &["demo", "--listen", "nowhere"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_taken_port_is_named_with_its_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    for (flag, others) in [
        ("--listen", ["--admin", "--service"]),
        ("--admin", ["--listen", "--service"]),
        ("--service", ["--listen", "--admin"]),
    ] {
        let [first, second] = others;
        let output = run(&["demo", flag, &address, first, "127.0.0.1:0", second, "127.0.0.1:0"]);
        assert_eq!(output.status.code(), Some(2), "{flag}");
        let error = text(&output.stderr);
        assert!(
            error.contains("cannot listen on") && error.contains(&format!("\"{address}\"")),
            "{flag}: {error}"
        );
    }
}

#[cfg(unix)]
#[test]
fn the_gateway_in_front_of_the_sample_service_answers_until_it_is_interrupted() {
    let mut served = Served::begin(&[]);
    let first = served.pay();
    assert!(first.starts_with("HTTP/1.1 201 Created\r\n"), "{first}");
    assert!(!first.contains("idempotent-replayed"), "{first}");
    let again = served.pay();
    assert!(again.contains("idempotent-replayed: true\r\n"), "{again}");
    assert_eq!(Served::body(&first), Served::body(&again));
    assert_eq!(served.interrupt(), Some(0));
}

/// O10: the page is named first, each decision is a line, and an unknown one comes with what settles it.
#[cfg(unix)]
#[test]
fn the_terminal_tells_each_decision_and_how_an_unknown_outcome_is_settled() {
    let mut served = Served::begin(&[]);
    let intro = served.lines_until("The ledger is in memory");
    let page = intro.find(&format!("http://{}/\n", served.admin())).expect("the page is named");
    assert!(intro.find("curl").is_some_and(|curl| page < curl), "{intro}");
    for card in ["plain", "slow", "closed", "crashing"] {
        assert!(intro.contains(&format!("\"card\":\"{card}\"")), "{card}: {intro}");
    }
    assert!(intro.contains("/payments/asked"), "{intro}");
    let line = |served: &mut Served, word: &str| {
        let lines = served.lines_until(word);
        lines.lines().last().unwrap_or_default().to_owned()
    };
    served.pay();
    let ran = line(&mut served, "executed");
    assert!(ran.contains("201") && ran.contains("POST /payments") && ran.contains("k-1"), "{ran}");
    served.pay();
    assert!(line(&mut served, "replayed").contains("nothing ran"));
    served.pay_with("k-1", "closed");
    assert!(line(&mut served, "key_reused").contains("422"));
    served.pay_with("closed-1", "closed");
    assert!(line(&mut served, "executed").contains("503"));
    served.pay_with("closed-1", "closed");
    assert!(line(&mut served, "retried").contains("attempt 2"));
    served.pay_with("lost-1", "crashing");
    let lost = served.lines_until("onlyonce keys verdict");
    assert!(
        lost.contains(&format!("http://{}/#/keys/", served.admin())) && lost.contains("/lost-1\n"),
        "{lost}"
    );
    // The command works as it is printed.
    let command = lost.lines().last().unwrap_or_default().trim();
    let ran = Command::new("sh").args(["-c", command]).output();
    let ran = ran.expect("a shell");
    assert_eq!(ran.status.code(), Some(0), "{command}: {}", text(&ran.stderr));
    assert!(served.pay_with("lost-1", "crashing").contains("idempotent-replayed: true"));
    served.pay_with("", "plain");
    assert!(line(&mut served, "missing").contains("400"));
    assert_eq!(served.terminate(), Some(0));
}

/// O10: SIGTERM ends the demo as Ctrl-C does, and its folder is removed.
#[cfg(unix)]
#[test]
fn a_terminated_demo_leaves_nothing_behind() {
    let mut served = Served::begin(&[]);
    let intro = served.lines_until("removed when it ends");
    let (_, place) = intro.split_once("Records are in sqlite:").expect("it says where its records are");
    let (file, _) = place.split_once(", removed when it ends").expect("and what becomes of them");
    let folder = Path::new(file).parent().expect("a file is in a folder").to_owned();
    assert!(folder.exists());
    served.pay();
    assert_eq!(served.terminate(), Some(0));
    assert!(!folder.exists(), "{} was left behind", folder.display());
}

/// A gateway in front of its sample service, gone when the test is.
#[cfg(unix)]
pub(crate) struct Served {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
    admin: String,
}

#[cfg(unix)]
impl Served {
    pub(crate) fn begin(arguments: &[&str]) -> Self {
        let mut child = onlyonce()
            .args(["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut ready = String::new();
        out.read_line(&mut ready).expect("a ready line");
        let mut addresses = ready.split(' ').filter_map(|word| word.strip_prefix("http://"));
        let (Some(address), Some(admin)) = (addresses.next(), addresses.next()) else {
            panic!("not a ready line: {ready}")
        };
        let (address, admin) = (address.to_owned(), admin.to_owned());
        Self { child, out, address, admin }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where the dashboard is.
    pub(crate) fn admin(&self) -> &str {
        &self.admin
    }

    /// What it prints, up to a line with this text.
    pub(crate) fn lines_until(&mut self, wanted: &str) -> String {
        let mut text = String::new();
        loop {
            let from = text.len();
            let read = self.out.read_line(&mut text).expect("it prints text");
            assert!(read > 0, "it ended before it printed {wanted:?}: {text}");
            if text[from..].contains(wanted) {
                return text;
            }
        }
    }

    pub(crate) fn pay(&self) -> String {
        self.pay_with("k-1", "plain")
    }

    /// Pays an order that is named like its key; without a key where that is empty.
    pub(crate) fn pay_with(&self, key: &str, card: &str) -> String {
        let body = format!("{{\"order\":\"order-of-{key}\",\"card\":\"{card}\",\"amount\":1200}}");
        let key = if key.is_empty() { String::new() } else { format!("idempotency-key: {key}\r\n") };
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        write!(
            stream,
            "POST /payments HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ann\r\n{key}\
             content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    pub(crate) fn body(answer: &str) -> Option<&str> {
        answer.split_once("\r\n\r\n").map(|(_, body)| body)
    }

    pub(crate) fn interrupt(&mut self) -> Option<i32> {
        self.signal("-INT")
    }

    pub(crate) fn terminate(&mut self) -> Option<i32> {
        self.signal("-TERM")
    }

    fn signal(&mut self, signal: &str) -> Option<i32> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill can be run");
        assert!(sent.success());
        self.child.wait().expect("a child of this test").code()
    }
}

#[cfg(unix)]
impl Drop for Served {
    fn drop(&mut self) {
        // Gone already where it was interrupted. Waited for, so that its store is free.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
