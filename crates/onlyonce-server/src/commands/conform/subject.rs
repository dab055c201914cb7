//! The API under test: requests to it, how many of them there may be, and how often they ran.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::Uri;
use onlyonce::dialect::Dialect;
use serde_json::Value;

use super::count::Counter;
use super::wire::{self, Answer, Manner};
use crate::cli::Field;
use crate::tls::Connector;

/// Where the key is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Header(String),
    /// The name of a member at the top of a JSON body.
    Member(String),
    Query(String),
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    First,
    Other,
    /// Without any header of a caller.
    Nobody,
}

/// The key of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key<'a> {
    None,
    Text(&'a str),
    /// Header lines, as they are.
    Lines(&'a [&'a [u8]]),
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) key: Key<'a>,
    /// None: the usual one.
    pub(super) body: Option<&'a [u8]>,
    pub(super) caller: Caller,
    pub(super) manner: Manner,
    /// Added to the query.
    pub(super) query: Option<&'a str>,
}

impl<'a> Ask<'a> {
    pub(super) fn with(key: &'a str) -> Self {
        Self { key: Key::Text(key), body: None, caller: Caller::First, manner: Manner::Patient, query: None }
    }
}

/// Why a check came to no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// As many writes were sent as may be.
    Writes,
    /// There was no answer, or no count.
    Lost(String),
}

/// One request and its answer, for the report.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) at: SystemTime,
    pub(super) took: Duration,
    /// As it was sent, without what is secret.
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    pub(super) answer: Result<Option<Answer>, String>,
}

pub(super) struct Subject {
    pub(super) url: Uri,
    pub(super) connector: Connector,
    pub(super) method: String,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
    pub(super) other_body: Option<Vec<u8>>,
    pub(super) headers: Vec<Field>,
    pub(super) other_caller: Vec<Field>,
    pub(super) place: Place,
    pub(super) dialect: Dialect,
    pub(super) counter: Option<Counter>,
    pub(super) timeout: Duration,
    pub(super) retention: Option<Duration>,
    /// Whether the document of the API lists the key; none where there is no document.
    pub(super) is_listed: Option<bool>,
    /// What all keys of this test begin with.
    pub(super) run: String,
    pub(super) writes_max: u32,
    pub(super) said: Mutex<Said>,
}

/// What was sent so far.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) writes: u32,
    pub(super) keys: Vec<String>,
    pub(super) exchanges: Vec<Exchange>,
    /// Whether answers of different keys differ.
    pub(super) has_identity: bool,
}

impl Subject {
    /// A key that nobody has used, and that says what it is for.
    pub(super) fn key(&self, what: &str) -> String {
        let mut said = self.said();
        let key = format!("conform-{}-{}-{what}", self.run, said.keys.len() + 1);
        said.keys.push(key.clone());
        key
    }

    /// Sends it, and gives the answer.
    pub(super) async fn call(&self, ask: Ask<'_>) -> Result<Answer, Halt> {
        match self.send(ask).await? {
            Some(answer) => Ok(answer),
            None => Err(Halt::Lost("nobody waited for the answer".to_owned())),
        }
    }

    /// Sends it. None where nobody waited for the answer.
    pub(super) async fn send(&self, ask: Ask<'_>) -> Result<Option<Answer>, Halt> {
        {
            let mut said = self.said();
            if said.writes >= self.writes_max {
                return Err(Halt::Writes);
            }
            said.writes += 1;
        }
        let body = self.body_of(ask);
        let (head, shown) = (self.head(ask, body.len(), false), self.head(ask, body.len(), true));
        let (at, began) = (SystemTime::now(), Instant::now());
        let parts = (&head[..], &body[..]);
        let answer = wire::exchange(&self.url, &self.connector, parts, ask.manner, self.timeout).await;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        let exchange = Exchange { at, took: began.elapsed(), head: shown, body, answer: answer.clone() };
        self.said().exchanges.push(exchange);
        answer.map_err(Halt::Lost)
    }

    /// The count of runs; none where nobody counts.
    pub(super) async fn count(&self) -> Result<Option<u64>, Halt> {
        match &self.counter {
            Some(counter) => counter.settled().await.map(Some).map_err(Halt::Lost),
            None => Ok(None),
        }
    }

    /// How often it ran since `before` was counted.
    pub(super) async fn ran_since(&self, before: Option<u64>) -> Result<Option<u64>, Halt> {
        let (Some(before), Some(now)) = (before, self.count().await?) else { return Ok(None) };
        let ran = now.checked_sub(before);
        ran.map(Some).ok_or_else(|| Halt::Lost(format!("the count went backwards, from {before} to {now}")))
    }

    pub(super) fn has_identity(&self) -> bool {
        self.said().has_identity
    }

    pub(super) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn body_of(&self, ask: Ask<'_>) -> Vec<u8> {
        let body = ask.body.unwrap_or(&self.body);
        match (&self.place, ask.key) {
            (Place::Member(name), Key::Text(key)) => {
                with_member(body, name, key).unwrap_or_else(|| body.to_vec())
            }
            (Place::Header(_) | Place::Query(_) | Place::Member(_), _) => body.to_vec(),
        }
    }

    /// The request line and the header lines; `masked`, as they may be shown.
    fn head(&self, ask: Ask<'_>, body_bytes: usize, masked: bool) -> Vec<u8> {
        let host = self.url.authority().map_or("", |authority| authority.as_str());
        let mut path = self.url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let mut query = ask.query.map(str::to_owned).into_iter().collect::<Vec<_>>();
        if let (Place::Query(name), Key::Text(key)) = (&self.place, ask.key) {
            query.push(format!("{name}={key}"));
        }
        for part in query {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(&part);
        }
        let mut head = format!(
            "{} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: onlyonce-conform/{}\r\nAccept: */*\r\n\
             Content-Type: {}\r\nContent-Length: {body_bytes}\r\nConnection: close\r\n",
            self.method,
            env!("CARGO_PKG_VERSION"),
            self.content_type
        )
        .into_bytes();
        for Field { name, value } in self.fields(ask.caller) {
            let value = if masked { "(masked)" } else { &value };
            head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if let Place::Header(name) = &self.place {
            let lines: Vec<&[u8]> = match ask.key {
                Key::None => Vec::new(),
                Key::Text(key) => vec![key.as_bytes()],
                Key::Lines(lines) => lines.to_vec(),
            };
            for line in lines {
                head.extend_from_slice(name.as_bytes());
                head.extend_from_slice(b": ");
                head.extend_from_slice(line);
                head.extend_from_slice(b"\r\n");
            }
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    fn fields(&self, caller: Caller) -> Vec<Field> {
        match caller {
            Caller::First => self.headers.clone(),
            Caller::Nobody => Vec::new(),
            Caller::Other => {
                let is_other = |field: &&Field| {
                    self.other_caller.iter().any(|own| own.name.eq_ignore_ascii_case(&field.name))
                };
                let kept = self.headers.iter().filter(|field| !is_other(field)).cloned();
                kept.chain(self.other_caller.iter().cloned()).collect()
            }
        }
    }
}

/// A JSON object with this member; none where the body is no object.
pub(super) fn with_member(body: &[u8], name: &str, value: &str) -> Option<Vec<u8>> {
    let Value::Object(mut object) = serde_json::from_slice(body).ok()? else { return None };
    object.insert(name.to_owned(), Value::String(value.to_owned()));
    serde_json::to_vec(&object).ok()
}
