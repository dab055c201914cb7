//! A service behind the gateway that does what the path says, and remembers what the gateway told it.
//!
//! | path | what it does |
//! |---|---|
//! | `/ok…` | answers 201 |
//! | `/lost…` | closes the connection without an answer, whatever it has done |
//! | `/held…` | the same, once it is let to |
//! | `/failing…` | answers 503 |
//! | `/flaky…` | answers 503 to the first attempt, and 201 to the next |
//! | `/slow…` | answers 201, once it is let to |
//! | `/refusing…` | answers 503, once it is let to |

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Nothing in these tests takes so long, unless it hangs.
pub(crate) const SOON: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// What was told of each key's attempts, in order.
    told: HashMap<String, Vec<Told>>,
    /// How many of those that are held may go on.
    may_go: usize,
}

/// What the gateway says of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) token: String,
    pub(crate) scope: String,
    /// The request itself.
    pub(crate) target: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Provider {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let provider = Self { address, shared: Arc::default() };
        let serving = provider.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (serving, stream) = (serving.clone(), stream.expect("a connection"));
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        provider
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let Some((path, headers)) = head(&mut reader) else { return };
        let header = |name: &str| headers.get(name).cloned().unwrap_or_default();
        let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut body).expect("a body");
        let told = Told {
            token: header("onlyonce-token"),
            scope: header("onlyonce-scope"),
            target: path.clone(),
            headers: headers.clone(),
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        self.state().told.entry(header("idempotency-key")).or_default().push(told);
        self.shared.1.notify_all();
        let status = match path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default() {
            "held" => {
                self.wait(|state| state.may_go > 0).may_go -= 1;
                return;
            }
            "slow" => {
                self.wait(|state| state.may_go > 0).may_go -= 1;
                "201 Created"
            }
            "refusing" => {
                self.wait(|state| state.may_go > 0).may_go -= 1;
                "503 Service Unavailable"
            }
            "failing" => "503 Service Unavailable",
            "flaky" if header("onlyonce-attempt") == "1" => "503 Service Unavailable",
            "ok" | "flaky" => "201 Created",
            _ => return,
        };
        let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok");
        let _ = reader.get_mut().write_all(answer.as_bytes());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().expect("no thread of the provider panicked")
    }

    fn wait(&self, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let (state, out) =
            self.shared.1.wait_timeout_while(self.state(), SOON, |state| !is_so(state)).expect("no panic");
        assert!(!out.timed_out(), "what was waited for did not come");
        state
    }

    /// What it was told of an attempt of this key; it waits for that.
    pub(crate) fn told(&self, key: &str, attempt: usize) -> Told {
        let has = |state: &State| state.told.get(key).is_some_and(|told| told.len() >= attempt);
        self.wait(has).told[key][attempt - 1].clone()
    }

    /// How often it was asked to do the work of this key.
    pub(crate) fn runs(&self, key: &str) -> usize {
        self.state().told.get(key).map_or(0, Vec::len)
    }

    /// Lets one that is held or slow go on.
    pub(crate) fn let_go(&self) {
        self.state().may_go += 1;
        self.shared.1.notify_all();
    }
}

/// The path and the headers of a request.
pub(crate) fn head(reader: &mut impl BufRead) -> Option<(String, HashMap<String, String>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { return Some((path, headers)) };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
}
