//! `onlyonce serve`: the ready line, signals, reloads, and mistakes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::program::{Folder, onlyonce, text};

const SOON: Duration = Duration::from_secs(20);

/// A gateway that was started, and is killed with the test at the latest.
pub(crate) struct Serving {
    child: Child,
    ready: String,
    /// What it logs, line by line. Read all the time: a process whose log nobody reads stops at a full pipe.
    errors: Receiver<String>,
}

impl Serving {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_as(onlyonce(), arguments)
    }

    /// The same with a command that may have more in its environment.
    pub(crate) fn start_as(mut onlyonce: Command, arguments: &[&str]) -> Self {
        let mut child = onlyonce
            .arg("serve")
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("a ready line");
        let errors = lines(child.stderr.take().expect("piped"));
        Self { child, ready, errors }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let url = self.ready.split_whitespace().nth(2).expect("the ready line has a URL");
        url.strip_prefix("http://").expect("unencrypted").parse().expect("an address")
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()
            .expect("kill can be run");
        assert!(sent.success());
    }

    /// Reads on until a line that contains this.
    pub(crate) fn says(&mut self, words: &str) -> String {
        let mut all = String::new();
        while !all.contains(words) {
            let line = self.errors.recv_timeout(SOON);
            all.push_str(&line.unwrap_or_else(|_| panic!("not said: {words:?}: {all}")));
        }
        all
    }

    /// What it has said since, once it has ended.
    pub(crate) fn rest(&mut self) -> String {
        self.errors.iter().collect()
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            match self.child.try_wait().expect("it can be waited for") {
                Some(status) => return status,
                None => assert!(began.elapsed() < SOON, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it as an operator would; its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal("TERM");
        self.ended().code()
    }

    pub(crate) fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address()).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a time-out");
        stream.write_all(request.as_bytes()).expect("it reads");
        stream
    }

    /// Where operators come in.
    pub(crate) fn admin(&self) -> SocketAddr {
        let url = self.ready.split_whitespace().nth(4).expect("the ready line has a second URL");
        url.strip_prefix("http://").expect("unencrypted").parse().expect("an address")
    }

    pub(crate) fn answer(&self, request: &str) -> String {
        read(self.send(request))
    }
}

/// Each line of it, with its end.
fn lines(errors: ChildStderr) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        let mut errors = BufReader::new(errors);
        loop {
            let mut line = String::new();
            let is_line = errors.read_line(&mut line).is_ok_and(|read| read > 0);
            // Once the test has gone nobody listens.
            if !is_line || send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Drop for Serving {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All of an answer to a request that asked for the connection to be closed.
fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in time");
    answer
}

pub(crate) fn post(key: &str) -> String {
    format!(
        "POST /orders HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nauthorization: Bearer ann\r\nidempotency-key: {key}\r\n\
         content-length: 2\r\n\r\n{{}}"
    )
}

/// A service that tells of each request, and answers with its name once it is let to.
pub(crate) struct Service {
    address: SocketAddr,
    pub(crate) came: Receiver<()>,
    go_on: Sender<()>,
}

impl Service {
    pub(crate) fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (comes, came) = channel();
        let (go_on, goes_on) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.expect("a connection"));
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    line.clear();
                }
                let ended = comes.send(()).and(goes_on.recv().map_err(|_| std::sync::mpsc::SendError(())));
                if ended.is_err() {
                    return;
                }
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{name}",
                    name.len()
                );
                // Whoever has gone does not read it.
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Self { address, came, go_on }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn lets(&self, count: usize) {
        (0..count).for_each(|_| self.go_on.send(()).expect("it serves"));
    }
}

/// G01
#[test]
fn the_ready_line_says_where_everything_is() {
    let service = Service::start("one");
    let folder = Folder::new();
    let store = folder.url("onlyonce.db");
    let serving = Serving::start(&["--upstream", &service.url(), "--store", &store]);
    let words: Vec<_> = serving.ready.split_whitespace().collect();
    let [ready, gateway, at, admin, admin_at, kept, in_store] = words[..] else {
        panic!("{}", serving.ready)
    };
    assert_eq!(
        (ready, gateway, admin, kept, in_store),
        ("ready:", "gateway", "admin", "store", store.as_str())
    );
    assert!(at.starts_with("http://127.0.0.1:") && !at.ends_with(":0"), "{at}");
    assert!(admin_at.starts_with("http://127.0.0.1:"), "{admin_at}");
    service.lets(1);
    assert!(serving.answer(&post("k-1")).ends_with("one"));
    assert!(serving.answer(&post("k-1")).contains("idempotent-replayed: true"));
}

/// G04, P05
#[test]
fn a_stop_finishes_what_is_under_way_and_exits_0() {
    for signal in ["TERM", "INT"] {
        let service = Service::start("one");
        let folder = Folder::new();
        let store = folder.url("onlyonce.db");
        let mut serving = Serving::start(&["--upstream", &service.url(), "--store", &store]);
        let under_way = serving.send(&post("k-1"));
        service.came.recv_timeout(SOON).unwrap();
        serving.signal(signal);
        let refused = Instant::now();
        while TcpStream::connect(serving.address()).is_ok() {
            assert!(refused.elapsed() < SOON, "it still accepts");
        }
        service.lets(1);
        assert!(read(under_way).ends_with("one"));
        assert_eq!(serving.ended().code(), Some(0));
        let again = Serving::start(&["--upstream", &service.url(), "--store", &store]);
        assert!(again.answer(&post("k-1")).contains("idempotent-replayed: true"));
    }
}

/// G04
#[test]
fn a_second_signal_ends_it_at_once() {
    let service = Service::start("one");
    let mut serving = Serving::start(&["--upstream", &service.url(), "--store", "memory:"]);
    let _under_way = serving.send(&post("k-1"));
    service.came.recv_timeout(SOON).unwrap();
    serving.signal("TERM");
    while TcpStream::connect(serving.address()).is_ok() {}
    serving.signal("TERM");
    assert_eq!(serving.ended().code(), Some(1));
}

/// G04: ADM-09
#[test]
fn settings_are_read_again_and_a_bad_file_changes_nothing() {
    let [one, two] = [Service::start("one"), Service::start("two")];
    let folder = Folder::new();
    let file = folder.path().join("onlyonce.toml");
    fs::write(&file, format!("upstream = \"{}\"\nstore = \"memory:\"\n", one.url())).unwrap();
    let mut serving = Serving::start(&["--config", file.to_str().unwrap()]);
    let under_way = serving.send(&post("k-1"));
    one.came.recv_timeout(SOON).unwrap();
    fs::write(&file, "upstream = \"ftp://x\"\nstore = \"memory:\"\n[policy]\nleas = \"5s\"\n").unwrap();
    serving.signal("HUP");
    let told = serving.says("not reloaded");
    assert!(told.contains("upstream") && told.contains("leas"), "every fault is told: {told}");
    fs::write(&file, format!("upstream = \"{}\"\nstore = \"sqlite:other.db\"\n", two.url())).unwrap();
    serving.signal("HUP");
    let told = serving.says("reloaded: the new settings apply");
    assert!(told.contains("needs a restart; the old value stays in effect setting=\"store\""), "{told}");
    two.lets(1);
    assert!(serving.answer(&post("k-2")).ends_with("two"));
    one.lets(1);
    assert!(read(under_way).ends_with("one"));
    assert!(!folder.path().join("other.db").exists());
    serving.signal("TERM");
    assert_eq!(serving.ended().code(), Some(0));
}

/// L05: a reload does not let a process that stores unencrypted accept work, whose requests have credentials.
#[test]
fn a_reload_accepts_no_work_where_the_process_has_no_keys() {
    let service = Service::start("one");
    let folder = Folder::new();
    let file = folder.path().join("onlyonce.toml");
    let settings = format!("upstream = \"{}\"\nstore = \"memory:\"\n", service.url());
    fs::write(&file, &settings).unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
    let mut serving = Serving::start(&["--config", file.to_str().unwrap()]);
    let keys = format!("[encryption]\nkeys = [\"file:{}\"]\n", key.display());
    fs::write(&file, format!("{settings}[policy]\naccept = \"always\"\n{keys}")).unwrap();
    serving.signal("HUP");
    let told = serving.says("accept needs encryption.keys");
    assert!(told.contains("restart it"), "{told}");
    service.lets(1);
    assert!(serving.answer(&post("k-1")).ends_with("one"), "it runs while its client waits, as before");
    serving.signal("TERM");
    assert_eq!(serving.ended().code(), Some(0));
}

#[test]
fn what_cannot_be_started_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = onlyonce()
        .args(["serve", "--upstream", "http://127.0.0.1:1", "--store", "memory:", "--admin", "127.0.0.1:0"])
        .args(["--listen", &address])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = text(&output.stderr);
    assert!(
        told.contains(&format!("cannot listen on \"{address}\"; set listen to a free address")),
        "{told}"
    );
}

/// G04: ADM-09
#[test]
fn settings_with_faults_are_refused_with_every_fault_at_its_place() {
    let folder = Folder::new();
    let text_of_file =
        "store = \"sqlite:onlyonce.db\"\nupstream = \"nonsense\"\n[policy]\nleas = \"5s\"\nretention = 5\n";
    fs::write(folder.path().join("a.toml"), text_of_file).unwrap();
    let output = folder.run(&["serve", "--config", "a.toml", "--set", "policy.on_5xx=perhaps"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "", "it is not ready");
    let told = text(&output.stderr);
    for (fault, place) in [
        ("upstream: \"nonsense\"", "(a.toml line 2)"),
        ("policy.leas", "(a.toml line 4)"),
        ("policy.retention: \"5\"", "(a.toml line 5)"),
        ("policy.on_5xx: \"perhaps\"", "(--set)"),
    ] {
        let line = told.lines().find(|line| line.trim_start().starts_with(fault));
        assert!(line.is_some_and(|line| line.ends_with(place)), "{fault} at {place}: {told}");
    }
    assert!(told.starts_with("error: 4 faults in the settings\n"), "{told}");
    assert_eq!(folder.contents().len(), 1, "nothing is opened");
}
