//! Clients' connections: HTTP/1.1 and HTTP/2, detected from the first bytes, or negotiated with TLS.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use super::client::Client;
use super::front::{Front, Sites};
use super::head::{self, Head};
use super::headers::Asker;
use super::phase::Phase;
use super::worker::{Load, Worker};
use crate::tls::{Accepted, Acceptor, Stream};

/// The time limit for a client to send the head of its next request, idle connections included. Longer than the minute for
/// which proxies keep idle connections: if the client closes first, no request is lost.
const HEAD_WITHIN: Duration = Duration::from_secs(75);
/// The pause after a failed accept, for example without free descriptors.
const REST: Duration = Duration::from_millis(50);

/// TLS with clients, if enabled.
pub(crate) type Acceptors = Arc<RwLock<Option<Acceptor>>>;

/// Accepts connections and hands each to the worker with the fewest.
pub(crate) struct Listener {
    pub(crate) tcp: TcpListener,
    pub(crate) workers: Vec<Worker>,
    pub(crate) acceptors: Acceptors,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) open: watch::Receiver<()>,
}

impl Listener {
    /// Accepts until the gateway stops.
    pub(crate) async fn accept(self) {
        let mut finishing = self.phase.clone();
        let mut finishing = pin!(finishing.wait_for(|phase| *phase >= Phase::Finishing));
        loop {
            let accepted = tokio::select! {
                accepted = self.next() => accepted,
                _ = &mut finishing => return,
            };
            match accepted {
                Ok((tcp, address)) => self.hand_over(tcp, address),
                Err(error) if is_of_one(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "no connection can be accepted");
                    sleep(REST).await;
                }
            }
        }
    }

    /// The next client, detached from the accepting runtime, since a worker serves it.
    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (tcp, address) = self.tcp.accept().await?;
        Ok((tcp.into_std()?, address))
    }

    fn hand_over(&self, tcp: TcpStream, address: SocketAddr) {
        let worker = self.workers.iter().min_by_key(|worker| worker.load());
        let worker = worker.expect("a gateway has at least one worker");
        worker.serve(tcp, address, |sites, load| Connection {
            sites,
            acceptor: self.acceptors.read().unwrap_or_else(PoisonError::into_inner).clone(),
            phase: self.phase.clone(),
            _open: self.open.clone(),
            _load: load,
        });
    }
}

/// Whether the error is about one client only.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A client's connection.
pub(crate) struct Connection {
    sites: Sites,
    acceptor: Option<Acceptor>,
    phase: watch::Receiver<Phase>,
    /// Counts open connections: a stop waits until all are dropped.
    _open: watch::Receiver<()>,
    _load: Load,
}

impl Connection {
    /// Serves the connection to its end on the current runtime.
    pub(crate) async fn serve(mut self, tcp: TcpStream, address: SocketAddr) {
        let Ok(()) = tcp.set_nodelay(true) else { return };
        let Ok(tcp) = tokio::net::TcpStream::from_std(tcp) else { return };
        let is_secure = self.acceptor.is_some();
        let accepted = match &self.acceptor {
            None => Ok(Accepted { stream: Stream::Plain(tcp), certificate: None }),
            Some(acceptor) => acceptor.accept(tcp).await,
        };
        let Accepted { stream, certificate } = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%address, %error, "no TLS with a client");
                return;
            }
        };
        let head = Head::default();
        let asker = Asker::new(address.ip(), is_secure);
        let front = Front { sites: self.sites.clone(), asker, certificate, head: head.clone() };
        let builder = builder();
        let io = TokioIo::new(Client::new(stream, head));
        let mut serving = pin!(builder.serve_connection_with_upgrades(io, front));
        let served = loop {
            let phase = tokio::select! {
                biased;
                served = serving.as_mut() => break served,
                changed = self.phase.changed() => changed.map_or(Phase::Ending, |()| *self.phase.borrow()),
            };
            match phase {
                Phase::Serving => {}
                Phase::Finishing => serving.as_mut().graceful_shutdown(),
                Phase::Ending => {
                    serving.as_mut().graceful_shutdown();
                    break serving.as_mut().await;
                }
            }
        };
        if let Err(error) = served {
            tracing::debug!(%address, %error, "a client's connection broke");
        }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(head::BYTES_MAX);
    builder.http2().timer(TokioTimer::new());
    builder
}
