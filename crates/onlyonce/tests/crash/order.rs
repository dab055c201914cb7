//! What a client sends, and what it hears.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// What the work touches; the victim has a route of that name for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Opaque,
    Keyed,
    Queryable,
    Local,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Opaque, Self::Keyed, Self::Queryable, Self::Local];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Opaque => "opaque",
            Self::Keyed => "keyed",
            Self::Queryable => "queryable",
            Self::Local => "local",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether work that was lost in the middle may run again.
    pub(crate) const fn runs_again(self) -> bool {
        match self {
            Self::Keyed | Self::Local => true,
            Self::Opaque | Self::Queryable => false,
        }
    }
}

/// A keyed request. What it wishes for goes in headers that are no part of its fingerprint: a retry may wish otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) kind: Kind,
    pub(crate) key: String,
    pub(crate) wish: Wish,
}

/// How an order is to be served, so that its process comes to the step that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// As usual.
    None,
    /// The ledger books it and never answers.
    Held,
    /// Its record expires almost at once.
    Brief,
    /// Its answer fills many pages.
    Large,
}

/// The header that carries a wish, from the client to the victim and on to the ledger.
pub(crate) const WISH: &str = "x-wish";

impl Wish {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Held => "held",
            Self::Brief => "brief",
            Self::Large => "large",
        }
    }

    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let name = headers.get(WISH).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let all = [Self::None, Self::Held, Self::Brief, Self::Large];
        all.into_iter().find(|wish| wish.name() == name).unwrap_or(Self::None)
    }
}

impl Order {
    pub(crate) fn request(&self) -> Request<Full<Bytes>> {
        let body = serde_json::json!({ "order": self.key }).to_string();
        Request::post(format!("/{}", self.kind.name()))
            .header(AUTHORIZATION, "Bearer client")
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", &self.key)
            .header(WISH, self.wish.name())
            .body(Full::new(body.into()))
            .expect("an order is a valid request")
    }

    /// The client's question what became of it.
    pub(crate) fn question(&self) -> Request<Full<Bytes>> {
        Request::get(format!("/_onlyonce/keys/{}", self.key))
            .header(AUTHORIZATION, "Bearer client")
            .body(Full::default())
            .expect("a question is a valid request")
    }
}

/// An answer, read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    /// The `code` of a refusal.
    pub(crate) fn code(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        body["code"].as_str().map(str::to_owned)
    }

    /// Whether its client was promised that a retry gets the same.
    pub(crate) fn is_stored(&self) -> bool {
        !self.headers.contains_key("idempotency-stored")
    }

    /// Whether its client is told to come back later.
    pub(crate) fn is_to_wait(&self) -> bool {
        let in_progress = self.code().as_deref() == Some("idempotency_key_in_progress");
        self.status == 503 || (self.status == 409 && in_progress)
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.status == 409 && self.code().as_deref() == Some("idempotency_outcome_unknown")
    }

    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.body[..self.body.len().min(200)];
        let replay = if self.is_replay() { " (replay)" } else { "" };
        write!(f, "{}{replay} {}", self.status, String::from_utf8_lossy(shown))
    }
}

/// The connection broke, or there was none: the client knows nothing.
#[derive(Debug)]
pub(crate) struct Lost;

/// How often a client tries.
const TRIES_MAX: usize = 10;

/// As a client does it: the same key, after the pause it is told, until there is an answer or the connection breaks.
pub(crate) async fn retry(to: SocketAddr, order: &Order) -> Result<Answer, Lost> {
    for _ in 0..TRIES_MAX {
        let answer = send(to, order.request()).await?;
        if !answer.is_to_wait() {
            return Ok(answer);
        }
        let wait = answer.retry_after().unwrap_or_else(|| panic!("{}: {answer} names no pause", order.key));
        sleep(Duration::from_secs(wait)).await;
    }
    panic!("{}: no answer after {TRIES_MAX} tries", order.key)
}

/// One request on a connection of its own, with no retries.
pub(crate) async fn send(to: SocketAddr, mut request: Request<Full<Bytes>>) -> Result<Answer, Lost> {
    let stream = TcpStream::connect(to).await.map_err(|_| Lost)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|_| Lost)?;
    // What goes wrong on the connection, its request is told.
    let connection = tokio::spawn(async move { drop(connection.await) });
    let host = http::HeaderValue::try_from(to.to_string()).expect("an address is visible ASCII");
    request.headers_mut().insert(HOST, host);
    let (head, body) = sender.send_request(request).await.map_err(|_| Lost)?.into_parts();
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    connection.abort();
    Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
}
