//! A gateway in front of a service that loses some of its answers, so that there are records of every kind.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Output;

use serde_json::Value;

use crate::engines::Engine;
use crate::program::{Folder, onlyonce, text};
use crate::serve::Serving;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn of(output: &Output) -> Self {
        let code = output.status.code().expect("it ended by itself");
        Self { code, out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// What it printed as JSON, and nothing else, having done it.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What it printed as JSON where the answer is no.
    pub(crate) fn no(&self) -> Value {
        assert_eq!(self.code, 1, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What it told as an error in JSON, with nothing on stdout.
    pub(crate) fn error(&self) -> Value {
        assert_eq!(self.out, "", "stdout is for results: {self:?}");
        let told: Value = serde_json::from_str(&self.err).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        told["error"].clone()
    }

    /// Its text, having done it.
    pub(crate) fn done(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.out
    }
}

/// Runs the program, by nobody in particular.
pub(crate) fn run(arguments: &[&str]) -> Ended {
    Ended::of(
        &onlyonce()
            .env("USER", "ann")
            .args(arguments)
            .stdin(std::process::Stdio::null())
            .output()
            .expect("it starts"),
    )
}

/// A service that answers 201 (402 to `/declined`, 503 to `/down`), hangs up on whatever is about `/lost`, and never answers what is
/// about `/hang`.
pub(crate) fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut hung = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap_or_default();
            if head.starts_with(b"POST /hang") {
                hung.push(stream);
                continue;
            }
            let status = match head {
                _ if read == 0 || head.starts_with(b"POST /lost") => continue,
                _ if head.starts_with(b"POST /declined") => "402 Payment Required",
                _ if head.starts_with(b"POST /down") => "503 Service Unavailable",
                _ => "201 Created",
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{{\"id\": 1}}"
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

/// A gateway, its store, and the folder of both. Where there are three gateways, requests go to the first, operators speak to
/// the second, and retries go to the third.
pub(crate) struct World {
    pub(crate) folder: Folder,
    pub(crate) serving: Serving,
    others: Vec<Serving>,
    pub(crate) store: String,
}

impl World {
    /// On a store that nobody else has.
    pub(crate) fn begin(engine: Engine, settings: &[&str]) -> Self {
        let folder = Folder::new();
        let store = engine.store(&folder);
        Self::on(engine, folder, &store, settings)
    }

    pub(crate) fn on(engine: Engine, folder: Folder, store: &str, settings: &[&str]) -> Self {
        let upstream = format!("http://{}", service());
        let arguments = [&["--upstream", &upstream, "--store", store], settings].concat();
        let start = |_| {
            let mut command = onlyonce();
            command.env("READER", READER).env("OPERATOR", OPERATOR);
            Serving::start_as(command, &arguments)
        };
        let (serving, others) = (start(0), (1..engine.nodes()).map(start).collect());
        Self { folder, serving, others, store: store.to_owned() }
    }

    /// Sends a request of a caller with a key; its status.
    pub(crate) fn post(&self, caller: &str, path: &str, key: &str) -> u16 {
        Self::post_to(&self.serving, caller, path, key)
    }

    /// The same once more, to another gateway.
    pub(crate) fn retry(&self, caller: &str, path: &str, key: &str) -> u16 {
        Self::post_to(self.others.last().unwrap_or(&self.serving), caller, path, key)
    }

    fn post_to(serving: &Serving, caller: &str, path: &str, key: &str) -> u16 {
        let answer = serving.answer(&format!(
            "POST {path} HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {caller}\r\nIdempotency-Key: {key}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n"
        ));
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
    }

    /// Runs a command on its store.
    pub(crate) fn on_store(&self, arguments: &[&str]) -> Ended {
        run(&[arguments, &["--store", &self.store]].concat())
    }

    /// Runs a command against its admin port.
    pub(crate) fn on_admin(&self, arguments: &[&str]) -> Ended {
        run(&[arguments, &["--admin", &self.admin()]].concat())
    }

    pub(crate) fn admin(&self) -> String {
        format!("http://{}", self.others.first().unwrap_or(&self.serving).admin())
    }

    /// The scope of a key.
    pub(crate) fn scope(&self, key: &str) -> String {
        let listed = self.on_store(&["keys", "list", "--query", key, "--json"]).json();
        listed["items"][0]["scope"].as_str().expect("there is one").to_owned()
    }

    /// Lets every gateway end.
    pub(crate) fn rest(mut self) -> Rest {
        for serving in self.others.iter_mut().chain([&mut self.serving]) {
            assert_eq!(serving.stop(), Some(0));
        }
        Rest { store: self.store, folder: self.folder }
    }
}

/// The values of two tokens.
pub(crate) const READER: &str = "a-token-that-may-only-read";
pub(crate) const OPERATOR: &str = "a-token-that-may-do-everything";
/// Settings with both.
pub(crate) const TOKENS: [&str; 2] = [
    "--set",
    r#"admin_token=[{name="eye",token="env:READER",role="read"},{name="on-call",token="env:OPERATOR",role="operate"}]"#,
];

/// A store that nobody has.
pub(crate) struct Rest {
    pub(crate) store: String,
    pub(crate) folder: Folder,
}

impl Rest {
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        run(&[arguments, &["--store", &self.store]].concat())
    }
}
