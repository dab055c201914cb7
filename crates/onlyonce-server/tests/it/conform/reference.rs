//! A small service that does it right, and the faults that can be planted in it, one at a time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a fault concerns one place, and no other")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long the work takes: long enough for others to come meanwhile.
const WORK: Duration = Duration::from_millis(60);
const HANGS_UP_WITHIN: Duration = Duration::from_secs(2);
const RETENTION: Duration = Duration::from_secs(1);

/// What is wrong with it, by the check that must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    NoKeys,
    KeyIgnored,
    CaseFolded,
    ShortKeysOnly,
    EmptyKeyTaken,
    TwoKeysTaken,
    LongKeyTaken,
    UnclosedTaken,
    MalformedIs500,
    MalformedIs422,
    MissingIs403,
    ReplayIs200,
    ReplayRewritten,
    ReplayedOnce,
    ReplayIsText,
    ReplayWithoutLocation,
    Unmarked,
    ReplaySetsCookie,
    BodyIgnored,
    OtherBodyRuns,
    OtherBodyForgets,
    RefusalQuotesFirst,
    ReusedIs409,
    ReusedIsHtml,
    BytesCompared,
    QueryIgnored,
    CallersShared,
    OtherCallerRefused,
    LastCallerWins,
    NobodyServed,
    NoReservation,
    InProgressIs500,
    InProgressIs200,
    StormForgets,
    InProgressIs423,
    NoRetryAfter,
    HangUpForgets,
    HangUpLocks,
    HalfRuns,
    HalfLocks,
    KeptASecond,
    ExpiryUntold,
    NeverExpires,
}

pub(super) struct Reference {
    pub(super) address: SocketAddr,
}

#[derive(Clone)]
enum Record {
    InProgress { request: String },
    Done { request: String, caller: String, answer: Stored, at: Instant, replays: u32 },
}

#[derive(Clone)]
struct Stored {
    body: String,
    location: String,
}

struct Service {
    fault: Fault,
    runs: Mutex<u64>,
    records: Mutex<HashMap<(String, String), Record>>,
}

struct Request {
    path: String,
    query: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    is_whole: bool,
}

impl Reference {
    pub(super) fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let service = Arc::new(Service { fault, runs: Mutex::default(), records: Mutex::default() });
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let service = service.clone();
                thread::spawn(move || service.serve(&stream));
            }
        });
        Self { address }
    }
}

impl Service {
    fn serve(&self, mut stream: &TcpStream) {
        let Some(request) = read(stream) else { return };
        let answer = match request.path.as_str() {
            "/count" => text(200, "", &self.runs.lock().unwrap().to_string()),
            _ => self.pay(&request, stream),
        };
        // Whoever has hung up is not answered.
        let _ = stream.write_all(answer.as_bytes());
    }

    fn pay(&self, request: &Request, stream: &TcpStream) -> String {
        let fault = self.fault;
        let caller = request.header("authorization");
        let keys = request.all("idempotency-key");
        if fault == Fault::NoKeys {
            return if request.is_whole { self.run(request).answer(201, &[]) } else { String::new() };
        }
        if keys.is_empty() {
            return match fault {
                Fault::MissingIs403 => text(403, "", "no"),
                _ => self.run(request).answer(201, &[]),
            };
        }
        if let Some(refused) = self.malformed(&keys) {
            return refused;
        }
        if caller.is_empty() && fault != Fault::NobodyServed {
            return text(401, "", "who are you");
        }
        let name = self.name(&caller, &String::from_utf8_lossy(&keys[0]), request);
        if !request.is_whole {
            return self.half(name, request);
        }
        self.keyed(name, &caller, request, stream)
    }

    fn malformed(&self, keys: &[Vec<u8>]) -> Option<String> {
        let fault = self.fault;
        let key = &keys[0];
        let longest = if fault == Fault::ShortKeysOnly { 64 } else { 255 };
        let is_malformed = (keys.len() > 1 && fault != Fault::TwoKeysTaken)
            || (key.is_empty() && fault != Fault::EmptyKeyTaken)
            || (key.len() > longest && !(fault == Fault::LongKeyTaken && key.len() == 5_000))
            || (key.starts_with(b"\"") && fault != Fault::UnclosedTaken)
            || key.iter().any(|byte| !(0x20..0x7f).contains(byte));
        is_malformed.then(|| match fault {
            Fault::MalformedIs500 => text(500, "", "oops"),
            Fault::MalformedIs422 => text(422, "", "bad key"),
            _ => text(400, "", "bad key"),
        })
    }

    fn name(&self, caller: &str, key: &str, request: &Request) -> (String, String) {
        let caller = match self.fault {
            Fault::CallersShared
            | Fault::LastCallerWins
            | Fault::OtherCallerRefused
            | Fault::NobodyServed => "",
            _ => caller,
        };
        let key = match self.fault {
            Fault::CaseFolded => key.to_lowercase(),
            Fault::KeyIgnored => request.meaning(self.fault),
            _ => key.to_owned(),
        };
        (caller.to_owned(), key)
    }

    /// A request that broke off in its body.
    fn half(&self, name: (String, String), request: &Request) -> String {
        match self.fault {
            Fault::HalfRuns => drop(self.run(request)),
            Fault::HalfLocks => {
                let record = Record::InProgress { request: request.meaning(self.fault) };
                self.records.lock().unwrap().insert(name, record);
            }
            _ => {}
        }
        String::new()
    }

    fn keyed(&self, name: (String, String), caller: &str, request: &Request, stream: &TcpStream) -> String {
        let (fault, meaning) = (self.fault, request.meaning(self.fault));
        let mut records = self.records.lock().unwrap();
        let kept = match fault {
            Fault::NeverExpires => Duration::MAX,
            Fault::KeptASecond => Duration::from_secs(1),
            // Its retention is tested by itself.
            _ if name.1.ends_with("-expired") => RETENTION,
            _ => Duration::from_secs(3600),
        };
        let seen = records.get(&name).cloned();
        let seen = seen.filter(|seen| !matches!(seen, Record::Done { at, .. } if at.elapsed() > kept));
        match seen {
            Some(Record::InProgress { request }) if request != meaning && fault != Fault::BodyIgnored => {
                self.reused(None)
            }
            Some(Record::InProgress { .. }) if fault == Fault::NoReservation => {
                drop(records);
                self.work(name, caller, meaning, request, stream)
            }
            Some(Record::InProgress { .. }) => in_progress(fault),
            Some(Record::Done { request: first, answer, .. }) if first != meaning => match fault {
                Fault::BodyIgnored => self.replay(&answer),
                Fault::OtherBodyRuns => {
                    drop(records);
                    drop(self.run(request));
                    self.reused(None)
                }
                Fault::OtherBodyForgets => {
                    records.remove(&name);
                    self.reused(None)
                }
                _ => self.reused(Some(&answer)),
            },
            Some(Record::Done { caller: own, .. }) if own != caller && fault == Fault::LastCallerWins => {
                drop(records);
                self.work(name, caller, meaning, request, stream)
            }
            Some(Record::Done { caller: own, .. }) if own != caller && fault == Fault::OtherCallerRefused => {
                text(409, "", "taken")
            }
            Some(Record::Done { replays: 1.., .. }) if fault == Fault::ReplayedOnce => {
                drop(records);
                self.work(name, caller, meaning, request, stream)
            }
            Some(Record::Done { request, caller, answer, at, replays }) => {
                let told = self.replay(&answer);
                records.insert(name, Record::Done { request, caller, answer, at, replays: replays + 1 });
                told
            }
            None => {
                records.insert(name.clone(), Record::InProgress { request: meaning.clone() });
                drop(records);
                self.work(name, caller, meaning, request, stream)
            }
        }
    }

    fn work(
        &self,
        name: (String, String),
        caller: &str,
        meaning: String,
        request: &Request,
        stream: &TcpStream,
    ) -> String {
        let answer = self.run(request);
        let hangs_up = matches!(self.fault, Fault::HangUpForgets | Fault::HangUpLocks);
        let is_gone = hangs_up && has_hung_up(stream);
        let mut records = self.records.lock().unwrap();
        match self.fault {
            Fault::HangUpForgets if is_gone => drop(records.remove(&name)),
            Fault::HangUpLocks if is_gone => {}
            Fault::StormForgets if name.1.ends_with("-at-once") => drop(records.remove(&name)),
            _ => {
                let done = Record::Done {
                    request: meaning,
                    caller: caller.to_owned(),
                    answer: answer.clone(),
                    at: Instant::now(),
                    replays: 0,
                };
                records.insert(name, done);
            }
        }
        let expires = ("Idempotency-Key-Expires", "Thu, 19 Nov 2026 10:00:00 GMT");
        answer
            .answer(201, if self.fault == Fault::ExpiryUntold { &[] } else { std::slice::from_ref(&expires) })
    }

    fn run(&self, _: &Request) -> Stored {
        let number = {
            let mut runs = self.runs.lock().unwrap();
            *runs += 1;
            *runs
        };
        thread::sleep(WORK);
        Stored { body: format!(r#"{{"id":"pay_{number:08}"}}"#), location: format!("/pay/{number}") }
    }

    fn replay(&self, answer: &Stored) -> String {
        let marked = ("Idempotent-Replayed", "true");
        match self.fault {
            Fault::ReplayIs200 => answer.answer(200, &[marked]),
            Fault::ReplayRewritten => {
                Stored { body: answer.body.replace(':', ": "), ..answer.clone() }.answer(201, &[marked])
            }
            Fault::ReplayIsText => answer.answer(201, &[marked]).replace("application/json", "text/plain"),
            Fault::ReplayWithoutLocation => {
                answer.answer(201, &[marked]).replace(&format!("Location: {}\r\n", answer.location), "")
            }
            Fault::Unmarked => answer.answer(201, &[]),
            Fault::ReplaySetsCookie => answer.answer(201, &[marked, ("Set-Cookie", "session=1")]),
            _ => answer.answer(201, &[marked]),
        }
    }

    fn reused(&self, first: Option<&Stored>) -> String {
        let problem = "Content-Type: application/problem+json\r\n";
        match (self.fault, first) {
            (Fault::RefusalQuotesFirst, Some(first)) => {
                text(422, problem, &format!(r#"{{"title":"reused","first":{}}}"#, first.body))
            }
            (Fault::ReusedIs409, _) => text(409, problem, r#"{"title":"reused"}"#),
            (Fault::ReusedIsHtml, _) => text(422, "Content-Type: text/html\r\n", "<p>reused"),
            _ => text(422, problem, r#"{"title":"reused"}"#),
        }
    }
}

impl Stored {
    fn answer(&self, status: u16, fields: &[(&str, &str)]) -> String {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("Content-Type: application/json\r\nLocation: {}\r\n{fields}", self.location);
        text(status, &head, &self.body)
    }
}

impl Request {
    fn all(&self, name: &str) -> Vec<Vec<u8>> {
        self.headers.iter().filter(|(own, _)| own == name).map(|(_, value)| value.clone()).collect()
    }

    fn header(&self, name: &str) -> String {
        self.all(name).first().map_or_else(String::new, |value| String::from_utf8_lossy(value).into_owned())
    }

    /// What must be the same in a retry.
    fn meaning(&self, fault: Fault) -> String {
        let bytes = || String::from_utf8_lossy(&self.body).into_owned();
        let body = match fault {
            Fault::BytesCompared => bytes(),
            _ => {
                serde_json::from_slice::<Value>(&self.body).map_or_else(|_| bytes(), |json| json.to_string())
            }
        };
        let query = if fault == Fault::QueryIgnored { "" } else { &self.query };
        format!("{query}\n{body}")
    }
}

fn in_progress(fault: Fault) -> String {
    match fault {
        Fault::InProgressIs500 => text(500, "", "locked"),
        Fault::InProgressIs200 => text(200, "", ""),
        Fault::InProgressIs423 => text(423, "Retry-After: 1\r\n", "locked"),
        Fault::NoRetryAfter => text(409, "", "in progress"),
        _ => text(409, "Retry-After: 1\r\n", "in progress"),
    }
}

fn text(status: u16, fields: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} -\r\n{fields}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let line = |reader: &mut BufReader<_>| {
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line).ok().filter(|count| *count > 0)?;
        Some(line.trim_ascii_end().to_vec())
    };
    let first = String::from_utf8(line(&mut reader)?).ok()?;
    let target = first.split(' ').nth(1)?.to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (mut headers, mut length) = (Vec::new(), 0);
    loop {
        let line = line(&mut reader)?;
        if line.is_empty() {
            break;
        }
        let at = line.iter().position(|byte| *byte == b':')?;
        let name = String::from_utf8(line[..at].to_vec()).ok()?.to_lowercase();
        let value = line[at + 1..].trim_ascii().to_vec();
        if name == "content-length" {
            length = String::from_utf8_lossy(&value).parse().ok()?;
        }
        headers.push((name, value));
    }
    let mut body = vec![0; length];
    let mut read = 0;
    while read < length {
        match reader.read(&mut body[read..]) {
            Ok(count @ 1..) => read += count,
            _ => break,
        }
    }
    body.truncate(read);
    let (path, query) = (path.to_owned(), query.to_owned());
    Some(Request { path, query, headers, body, is_whole: read == length })
}

/// Waits for it: on a busy machine a client hangs up later than it means to.
fn has_hung_up(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(HANGS_UP_WITHIN)).expect("a socket");
    let is_gone = match stream.peek(&mut [0]) {
        Ok(bytes) => bytes == 0,
        // A connection that was reset is gone too.
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    };
    stream.set_read_timeout(None).expect("a socket");
    is_gone
}
