//! Clients' connections: HTTP/1.1 and HTTP/2, detected from the first bytes, or negotiated with TLS.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::FutureExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::activity::{Activity, Overdue};
use super::client::Client;
use super::connections::{Connections, Entered};
use super::front::{Front, Sites};
use super::head::{self, Head};
use super::headers::Asker;
use super::phase::Phase;
use super::seldom::Seldom;
use super::worker::{Load, Worker};
use crate::config;
use crate::tls::{Accepted, Acceptor, Stream};

/// How long a connection that is too late may take to end by itself, so that a client of HTTP/2 learns which requests were not
/// looked at.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// The most streams of one HTTP/2 connection, and the most keyed requests that run for it, those included whose stream was
/// reset.
pub(crate) const STREAMS_MAX: u16 = 200;
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
    pub(crate) connections: Arc<Connections>,
    pub(crate) bounds: config::Listener,
}

impl Listener {
    /// Accepts until the gateway is stopping.
    pub(crate) async fn accept(self) {
        let (refused, failed) = (Seldom::default(), Seldom::default());
        let mut finishing = self.phase.clone();
        let mut finishing = pin!(finishing.wait_for(|phase| *phase >= Phase::Finishing));
        loop {
            let accepted = tokio::select! {
                accepted = self.next() => accepted,
                _ = &mut finishing => return,
            };
            match accepted {
                Ok((tcp, address)) => match self.connections.enter().await {
                    Some(entered) => self.hand_over(tcp, address, entered),
                    None => {
                        if let Some(times) = refused.due() {
                            tracing::warn!(
                                times,
                                "connections were refused: the maximum number is reached and none is idle"
                            );
                        }
                    }
                },
                Err(error) if is_of_one(&error) => {}
                Err(error) => {
                    if let Some(times) = failed.due() {
                        tracing::error!(%error, times, "no connection can be accepted");
                    }
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

    fn hand_over(&self, tcp: TcpStream, address: SocketAddr, entered: Entered) {
        let worker = self.workers.iter().min_by_key(|worker| worker.load());
        let worker = worker.expect("a gateway has at least one worker");
        worker.serve(tcp, address, |sites, load| Connection {
            sites,
            acceptor: self.acceptors.read().unwrap_or_else(PoisonError::into_inner).clone(),
            phase: self.phase.clone(),
            bounds: self.bounds,
            entered,
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
    bounds: config::Listener,
    entered: Entered,
    /// Counts open connections: a stop waits until all are dropped.
    _open: watch::Receiver<()>,
    _load: Load,
}

impl Connection {
    /// Serves the connection to its end on the current runtime.
    pub(crate) async fn serve(self, tcp: TcpStream, address: SocketAddr) {
        let Self { sites, acceptor, mut phase, bounds, entered, _open, _load } = self;
        let Entered { place, activity, mut told } = entered;
        let Ok(()) = tcp.set_nodelay(true) else { return };
        let Ok(tcp) = tokio::net::TcpStream::from_std(tcp) else { return };
        let is_secure = acceptor.is_some();
        let accepted = tokio::select! {
            biased;
            accepted = accept(acceptor.as_ref(), tcp) => accepted,
            _ = &mut told => return,
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
        let io = TokioIo::new(Client::new(stream, head.clone(), activity.clone(), place));
        let body_timeout = bounds.body_timeout;
        let front = Front { sites, asker, certificate, head, activity: activity.clone(), body_timeout };
        let builder = builder();
        let mut serving = pin!(builder.serve_connection_with_upgrades(io, front));
        let mut watch = pin!(sleep_until(next_look(&activity, &bounds)));
        let mut is_told = false;
        let served = loop {
            let phase = tokio::select! {
                biased;
                served = serving.as_mut() => break served,
                changed = phase.changed() => changed.map_or(Phase::Ending, |()| *phase.borrow()),
                _ = &mut told, if !is_told => {
                    is_told = true;
                    // Whoever is idle is told so, if that can be written at once. What was asked just before is answered.
                    if activity.idle_since().is_some() {
                        activity.cut();
                    }
                    serving.as_mut().graceful_shutdown();
                    if let Some(served) = serving.as_mut().now_or_never() {
                        break served;
                    }
                    if activity.idle_since().is_none() {
                        continue;
                    }
                    tracing::debug!(%address, "an idle connection was closed to make room for a new one");
                    return;
                }
                () = watch.as_mut() => match activity.judge(&bounds) {
                    Ok(next) => {
                        watch.as_mut().reset(next);
                        continue;
                    }
                    Err(why) => {
                        tracing::debug!(%address, ?why, "a client's connection was closed by a time-out");
                        activity.cut();
                        serving.as_mut().graceful_shutdown();
                        match why {
                            Overdue::Idle => {
                                let ended = timeout(ENDS_WITHIN, serving.as_mut()).await;
                                // What a client of HTTP/2 asked before it heard of the end is answered.
                                if ended.is_err() && activity.is_under_way() {
                                    watch.as_mut().reset(next_look(&activity, &bounds));
                                    continue;
                                }
                            }
                            Overdue::Head | Overdue::Stalled => {}
                        }
                        return;
                    }
                },
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

async fn accept(acceptor: Option<&Acceptor>, tcp: tokio::net::TcpStream) -> io::Result<Accepted> {
    match acceptor {
        None => Ok(Accepted { stream: Stream::Plain(tcp), certificate: None }),
        Some(acceptor) => acceptor.accept(tcp).await,
    }
}

fn next_look(activity: &Activity, bounds: &config::Listener) -> Instant {
    activity.judge(bounds).unwrap_or_else(|_| Instant::now())
}

/// Time-outs are the connection's own: see [`Activity`].
fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(head::BYTES_MAX);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(u32::from(STREAMS_MAX));
    builder
}
