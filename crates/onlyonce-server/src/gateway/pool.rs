//! Connections to one service, kept for the next request.
//!
//! A pool of our own, since general pools do not report exactly whether any byte of a request was sent. hyper's connection
//! returns a request if it has not begun to write it, and only such a request is sent on another connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, interval, timeout};

use super::body::Upload;
use super::connections::Outgoing;
use super::interim::{Bounded, Heads, Heard};
use super::phase::Ending;
use super::together::Together;
use crate::config::{Protocol, Upstream};
use crate::tls::Connector;

/// Services close idle connections after 5 s (Node) to 75 s (nginx). A request sent at that moment is lost, so ours are
/// closed earlier.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Most idle connections.
const IDLE_COUNT_MAX: usize = 1024;

pub(crate) struct Pool {
    upstream: Upstream,
    connector: Connector,
    ending: Ending,
    outgoing: Outgoing,
    idle: Mutex<Vec<Idle>>,
    /// When the service last answered 5xx, or lost a request.
    failed_at: Mutex<Option<Instant>>,
    /// The one HTTP/2 connection that all requests share.
    shared: tokio::sync::Mutex<Option<Http2>>,
    /// With TLS, the handshake decides which version is used.
    speaks_http1: AtomicBool,
}

struct Idle {
    sender: Http1,
    since: Instant,
}

/// A connection for a request.
pub(crate) enum Sender {
    Http1(Http1),
    Http2(Http2),
}

/// A connection of HTTP/1.1, and how much came on it since the last request.
pub(crate) struct Http1 {
    sender: http1::SendRequest<Upload>,
    heard: Heard,
}

/// One of HTTP/2, which requests share, and how many heads may come on it.
#[derive(Clone)]
pub(crate) struct Http2 {
    sender: http2::SendRequest<Upload>,
    heads: Heads,
}

/// Whether the connection was kept or is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Kept,
    Fresh,
}

/// A connection that returns to its pool.
pub(crate) struct Lent {
    pool: Arc<Pool>,
    sender: Http1,
}

impl Pool {
    pub(crate) fn new(
        upstream: Upstream,
        connector: Connector,
        ending: Ending,
        outgoing: Outgoing,
    ) -> Arc<Self> {
        let speaks_http1 = match (upstream.protocol, upstream.uri.scheme_str()) {
            (Protocol::Http1, _) | (Protocol::Auto, Some("http") | None) => true,
            (Protocol::Http2, _) | (Protocol::Auto, Some(_)) => false,
        };
        let pool = Arc::new(Self {
            upstream,
            connector,
            ending,
            outgoing,
            idle: Mutex::default(),
            failed_at: Mutex::default(),
            shared: tokio::sync::Mutex::default(),
            speaks_http1: AtomicBool::new(speaks_http1),
        });
        tokio::spawn(close_idle(Arc::downgrade(&pool)));
        pool
    }

    /// The service answered 5xx, or a connection was lost: its process may have crashed, and is about to close all others.
    pub(crate) fn failed(&self) {
        *self.lock_failed_at() = Some(Instant::now());
    }

    /// The connection for this attempt. A retry gets a new one while connections from before a failure may be kept: what is
    /// sent on a connection of a crashed process is in doubt for nothing. An HTTP/2 connection is for all requests, and says
    /// of each whether it was looked at.
    pub(crate) fn wanted(&self, attempt: u32) -> Origin {
        if attempt == 1 || !self.speaks_http1.load(Ordering::Relaxed) {
            return Origin::Kept;
        }
        match *self.lock_failed_at() {
            Some(at) if at.elapsed() < IDLE_MAX => Origin::Fresh,
            Some(_) | None => Origin::Kept,
        }
    }

    /// A connection for a request: a kept one, unless a new one is wanted.
    pub(crate) async fn connection(&self, wanted: Origin) -> Result<(Sender, Origin)> {
        if self.speaks_http1.load(Ordering::Relaxed) {
            if let (Origin::Kept, Some(sender)) = (wanted, self.kept()) {
                return Ok((Sender::Http1(sender), Origin::Kept));
            }
            return Ok((self.connect().await?, Origin::Fresh));
        }
        // Other requests wait here while the connection is made, rather than making another.
        let mut shared = self.shared.lock().await;
        match &*shared {
            Some(shared) if shared.sender.is_ready() && wanted == Origin::Kept => {
                return Ok((Sender::Http2(shared.clone()), Origin::Kept));
            }
            Some(_) | None => {}
        }
        let sender = self.connect().await?;
        match &sender {
            Sender::Http2(sender) => *shared = Some(sender.clone()),
            Sender::Http1(_) => self.speaks_http1.store(true, Ordering::Relaxed),
        }
        Ok((sender, Origin::Fresh))
    }

    /// The most recently used one, so that the others become idle and can be closed.
    fn kept(&self) -> Option<Http1> {
        let mut idle = self.idle();
        while let Some(kept) = idle.pop() {
            if kept.sender.sender.is_ready() && kept.since.elapsed() < IDLE_MAX {
                return Some(kept.sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<Sender> {
        let place = self.outgoing.take().context("the maximum number of connections to services is open")?;
        let connected = tokio::select! {
            connected = self.connector.connect(&self.upstream) => connected?,
            () = self.ending.wait() => bail!("the gateway is stopping"),
        };
        let ending = self.ending.clone();
        if connected.version == Version::HTTP_2 {
            let parts = Together::default();
            let heads = Heads::default();
            let io = TokioIo::new(Bounded::http2(connected.stream, place, heads.clone()));
            let (sender, connection) = http2::handshake(parts.clone(), io).await?;
            // Requests get the connection's errors, also when it is dropped.
            tokio::spawn(async move {
                tokio::select! { () = parts.run(connection) => {}, () = ending.wait() => {} }
            });
            return Ok(Sender::Http2(Http2 { sender, heads }));
        }
        let heard = Heard::default();
        let io = TokioIo::new(Bounded::http1(connected.stream, place, heard.clone()));
        let (sender, connection) = http1::handshake(io).await?;
        let connection = connection.with_upgrades();
        tokio::spawn(async move {
            tokio::select! { _ = connection => {}, () = ending.wait() => {} }
        });
        Ok(Sender::Http1(Http1 { sender, heard }))
    }

    fn keep(&self, sender: Http1) {
        let mut idle = self.idle();
        if idle.len() < IDLE_COUNT_MAX {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }

    fn lock_failed_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.failed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes idle connections while the pool exists.
async fn close_idle(pool: Weak<Pool>) {
    let mut rounds = interval(IDLE_MAX / 4);
    loop {
        rounds.tick().await;
        let Some(pool) = pool.upgrade() else { return };
        pool.idle().retain(|kept| kept.since.elapsed() < IDLE_MAX && !kept.sender.sender.is_closed());
    }
}

impl Sender {
    /// Sends a request. If it is returned, nothing of it was sent.
    pub(crate) async fn send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Upload>>> {
        match self {
            Self::Http1(Http1 { sender, heard }) => {
                heard.asked();
                let answered = sender.try_send_request(request).await;
                heard.answered();
                answered
            }
            Self::Http2(Http2 { sender, heads }) => {
                let _asked = heads.asked();
                sender.try_send_request(request).await
            }
        }
    }

    pub(crate) fn version(&self) -> Version {
        match self {
            Self::Http1(_) => Version::HTTP_11,
            Self::Http2(_) => Version::HTTP_2,
        }
    }

    /// To be given back once the answer has been read.
    pub(crate) fn lent(self, pool: &Arc<Pool>) -> Option<Lent> {
        match self {
            Self::Http1(sender) => Some(Lent { pool: pool.clone(), sender }),
            Self::Http2(_) => None,
        }
    }
}

impl Lent {
    /// The answer was read to its end. The connection may still be busy while the service reads a body whose end it did not
    /// wait for.
    pub(crate) fn give_back(self) {
        let Self { pool, mut sender } = self;
        if sender.sender.is_ready() {
            return pool.keep(sender);
        }
        if sender.sender.is_closed() {
            return;
        }
        tokio::spawn(async move {
            if let Ok(Ok(())) = timeout(IDLE_MAX, sender.sender.ready()).await {
                pool.keep(sender);
            }
        });
    }
}
