//! The requests of a step, and how they are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;

use super::check::code_of;
use super::client::{After, Answer, Request, Wire};
use super::data::{Caller, HangUp, OneOrMany, Step};
use super::http2::Http2;
use super::payload::{padding, unescaped};
use super::upstream::{STEP, Shared};

/// An answer, or why there is none.
pub(crate) type Heard = Result<Answer, String>;

/// The body of a request that names none.
pub(crate) const BODY: &str = r#"{"item":"darjeeling","amount":1}"#;

/// Requests per HTTP/2 connection: fewer than any server allows.
const STREAMS_MAX: usize = 100;
const AGAIN_FOR: Duration = Duration::from_secs(15);
const AGAIN_EVERY: Duration = Duration::from_millis(20);

/// The placeholders of a case and their fresh values.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    id: String,
    callers: Vec<Known>,
}

/// A caller and its credentials.
#[derive(Clone, Debug)]
struct Known {
    caller: Caller,
    token: String,
    subject: &'static str,
}

const CALLERS: [(Caller, &str, &str); 4] = [
    (Caller::T1, "t1-credential-5b7c", "t1"),
    (Caller::T2, "t2-credential-90ae", "t2"),
    (Caller::A1, "a1-credential-77d0", "t1"),
    (Caller::A2, "a2-credential-1c3f", "t1"),
];

impl Words {
    /// `token` makes a caller's token from its credential and its subject.
    pub(crate) fn of(id: &str, token: impl Fn(&str, &str) -> String) -> Self {
        let known =
            |(caller, credential, subject)| Known { caller, token: token(credential, subject), subject };
        Self { id: id.to_ascii_lowercase(), callers: CALLERS.map(known).to_vec() }
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = &str> {
        self.callers.iter().map(|known| &*known.token)
    }

    /// The subject, which is the tenant, is sent beside the credential; it counts only if the settings say so. An anonymous caller sends nothing.
    fn credentials(&self, caller: Caller) -> Vec<(String, Vec<u8>)> {
        let known = self.callers.iter().find(|known| known.caller == caller);
        let Some(Known { token, subject, .. }) = known else { return Vec::new() };
        let bearer = format!("Bearer {token}").into_bytes();
        vec![("Authorization".to_owned(), bearer), ("X-Tenant".to_owned(), subject.as_bytes().to_vec())]
    }

    fn key(&self, number: usize) -> String {
        format!("{number}c9e-{}-8f41d2", self.id)
    }

    /// The fresh keys.
    pub(crate) fn keys(&self) -> [String; 3] {
        [1, 2, 3].map(|number| self.key(number))
    }

    /// `{K}`, `{K2}`, `{K3}` are fresh keys, `{i}` is the number of the repetition, `{now}` the time in unix seconds.
    pub(crate) fn fill(&self, text: &str, i: usize) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        text.replace("{K}", &self.key(1))
            .replace("{K2}", &self.key(2))
            .replace("{K3}", &self.key(3))
            .replace("{i}", &i.to_string())
            .replace("{now}", &now.as_secs().to_string())
    }
}

/// Everything needed to run a step without the case.
pub(crate) struct Plan {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) requests: Vec<Request>,
    pub(crate) step: Step,
    pub(crate) upstream: Shared,
    pub(crate) progress: Arc<Progress>,
    /// Whether the connection is tried again after each answer.
    pub(crate) tries_after: bool,
}

/// The progress of a background step.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) sent: AtomicUsize,
    pub(crate) answered: AtomicUsize,
}

/// The requests a step sends.
pub(crate) fn requests(step: &Step, name: &str, words: &Words) -> Vec<Request> {
    (0..step.times.unwrap_or(1)).map(|i| request(step, name, words, i)).collect()
}

fn request(step: &Step, name: &str, words: &Words, i: usize) -> Request {
    let fill = |text: &str| words.fill(text, i);
    let send = fill(step.send.as_deref().unwrap_or("POST /orders"));
    let (method, target) = send.split_once(' ').unwrap_or_else(|| panic!("send {send:?} has no path"));
    let mut headers = vec![(STEP.to_owned(), name.as_bytes().to_vec())];
    for key in step.key.as_ref().map_or(&[][..], OneOrMany::as_slice) {
        headers.push(("Idempotency-Key".to_owned(), unescaped(&fill(key))));
    }
    headers.extend(step.headers.iter().map(|(name, value)| (name.clone(), unescaped(&fill(value)))));
    headers.extend(padding(step.pad_headers).map(|(name, value)| (name, value.into_bytes())));
    headers.extend(words.credentials(step.caller.unwrap_or_default()));
    let has_body = matches!(method, "POST" | "PUT" | "PATCH");
    let body = match &step.body {
        Some(body) => body.bytes(fill),
        None if has_body => BODY.as_bytes().to_vec(),
        None => Vec::new(),
    };
    let mut request = Request {
        method: method.to_owned(),
        target: target.to_owned(),
        headers,
        body,
        chunked: step.chunked,
    };
    if !request.body.is_empty() && !request.has("content-type") {
        request.headers.push(("Content-Type".to_owned(), b"application/json".to_vec()));
    }
    request
}

impl Plan {
    /// Sends everything and returns the answers, in the order of the requests.
    pub(crate) async fn carry_out(self) -> Vec<Heard> {
        if let Some(raw) = &self.step.raw {
            let pad = "x".repeat(self.step.raw_pad.unwrap_or(0));
            return vec![self.send_raw(&unescaped(&raw.replace("{pad}", &pad))).await];
        }
        if self.step.http == 2 {
            return self.over_http2().await;
        }
        if self.step.parallel {
            return join_all(self.requests.iter().map(|request| self.alone(request))).await;
        }
        let (mut heard, mut wire) = (Vec::new(), None);
        for request in &self.requests {
            heard.push(self.repeatedly(request, &mut wire).await);
        }
        heard
    }

    /// Concurrent requests share connections, to use few sockets; sequential ones share one.
    async fn over_http2(&self) -> Vec<Heard> {
        let groups = self.requests.chunks(STREAMS_MAX).map(|group| self.over_connection(group));
        join_all(groups).await.concat()
    }

    async fn over_connection(&self, requests: &[Request]) -> Vec<Heard> {
        let connection = match Http2::connect(self.address).await {
            Ok(connection) => connection,
            Err(error) => return vec![Err(error.to_string()); requests.len()],
        };
        if self.step.parallel {
            return join_all(requests.iter().map(|request| self.over_stream(&connection, request))).await;
        }
        let mut heard = Vec::new();
        for request in requests {
            heard.push(self.over_stream(&connection, request).await);
        }
        heard
    }

    async fn over_stream(&self, connection: &Http2, request: &Request) -> Heard {
        let started = Instant::now();
        self.progress.sent.fetch_add(1, Ordering::AcqRel);
        let heard = connection.exchange(request).await;
        self.progress.answered.fetch_add(1, Ordering::AcqRel);
        heard.map(|answer| Answer { took: started.elapsed(), ..answer }).map_err(|error| error.to_string())
    }

    async fn alone(&self, request: &Request) -> Heard {
        self.once(request, &mut None).await
    }

    async fn repeatedly(&self, request: &Request, wire: &mut Option<Wire>) -> Heard {
        let started = Instant::now();
        loop {
            let heard = self.once(request, wire).await;
            let Some(code) = &self.step.again_while else { return heard };
            let is_over = heard.as_ref().map_or(true, |answer| code_of(answer).as_ref() != Some(code));
            if is_over || started.elapsed() > AGAIN_FOR {
                return heard;
            }
            tokio::time::sleep(AGAIN_EVERY).await;
        }
    }

    async fn once(&self, request: &Request, wire: &mut Option<Wire>) -> Heard {
        let started = Instant::now();
        let heard = match self.step.hang_up {
            Some(hang_up) => self.send_and_hang_up(request, hang_up).await,
            None => self.over_http1(request, wire).await,
        };
        self.progress.answered.fetch_add(1, Ordering::AcqRel);
        heard.map(|answer| Answer { took: started.elapsed(), ..answer })
    }

    /// Sequential requests of a step share a connection while it stays open.
    async fn over_http1(&self, request: &Request, kept: &mut Option<Wire>) -> Heard {
        let mut wire = match kept.take() {
            Some(wire) => wire,
            None => Wire::connect(self.address).await.map_err(|error| error.to_string())?,
        };
        let early = wire.send(request).await.map_err(|error| format!("sending: {error}"))?;
        self.progress.sent.fetch_add(1, Ordering::AcqRel);
        let mut answer = match early {
            Some(answer) if answer.status > 0 => answer,
            early => {
                let answer = wire.answer(&request.method).await.map_err(|error| error.to_string())?;
                let first = early.map(|early| early.interim).unwrap_or_default();
                Answer { interim: [first, answer.interim.clone()].concat(), ..answer }
            }
        };
        if self.tries_after {
            answer.after = Some(wire.after().await);
        }
        let closes = answer.text("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if !closes && answer.after.is_none_or(|after| after == After::Reusable) {
            *kept = Some(wire);
        }
        Ok(answer)
    }

    async fn send_and_hang_up(&self, request: &Request, hang_up: HangUp) -> Heard {
        let mut wire = Wire::connect(self.address).await.map_err(|error| error.to_string())?;
        let exec = self.upstream.exec();
        let (mut bytes, framed) = (request.head(), request.framed());
        let length = match hang_up {
            HangUp::MidBody => framed.len() / 2,
            HangUp::BeforeAnswer => framed.len(),
        };
        bytes.extend(&framed[..length]);
        wire.write(&bytes).await.map_err(|error| error.to_string())?;
        while hang_up == HangUp::BeforeAnswer && self.upstream.exec() == exec {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        wire.hang_up().await;
        Err("hung up".to_owned())
    }

    async fn send_raw(&self, bytes: &[u8]) -> Heard {
        let mut wire = Wire::connect(self.address).await.map_err(|error| error.to_string())?;
        wire.write(bytes).await.map_err(|error| error.to_string())?;
        self.progress.sent.fetch_add(1, Ordering::AcqRel);
        if self.step.hang_up.is_some() {
            wire.hang_up().await;
            return Err("hung up".to_owned());
        }
        let method = String::from_utf8_lossy(bytes.split(|byte| *byte == b' ').next().unwrap_or_default());
        let mut answer = wire.answer(&method).await.map_err(|error| error.to_string())?;
        answer.after = Some(wire.after().await);
        Ok(answer)
    }
}
