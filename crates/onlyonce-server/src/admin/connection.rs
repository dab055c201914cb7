//! Connections of the admin port, and how long each may stay.
//!
//! 1. A head that does not come in time, and a connection on which nothing is asked, are closed: nobody can hold one without
//!    having been let in.
//! 2. A connection whose peer does not take what is sent to it is closed: an event stream that nobody reads would otherwise
//!    stay for ever.
//! 3. There are at most [`CONNECTIONS_MAX`]. For one more, the one that has been idle longest is closed, so that a question about health is
//!    answered whoever else is connected.

use std::convert::Infallible;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tower_service::Service;

use crate::gateway::{Connections, Entered, Seldom};

/// More than operators and their tools have, and less than the descriptors that are left for them.
const CONNECTIONS_MAX: usize = 128;
/// How long a request's head may take, and how long nothing may be asked.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long a peer may take nothing of what is sent to it.
const TAKES_WITHIN: Duration = Duration::from_secs(30);
/// How long a peer that was answered may go on sending before the connection is closed.
const LINGERS: Duration = Duration::from_secs(5);
const DISCARDED_AT_ONCE: usize = 64 * 1024;
/// The pause after a connection could not be accepted: there may be no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a request came from.
pub(super) type Peer = ConnectInfo<SocketAddr>;

/// Serves until `ended` is ready, and then what is under way to its end. Dropped, it ends everything at once.
pub(super) async fn serve<E>(listener: TcpListener, routes: Router, ended: impl Fn() -> E)
where
    E: Future<Output = ()> + Send + 'static,
{
    let connections = Connections::new(CONNECTIONS_MAX);
    let failed = Seldom::default();
    let mut open = JoinSet::new();
    let mut over = pin!(ended());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    // Where every one is in use, this one is closed.
                    if let Some(entered) = connections.enter().await {
                        open.spawn(serve_one(stream, peer, routes.clone(), ended(), entered));
                    }
                }
                Err(error) => {
                    if let Some(times) = failed.due() {
                        tracing::warn!(%error, times, "a connection to the admin port was not accepted");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = open.join_next(), if !open.is_empty() => {}
            () = &mut over => break,
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    routes: Router,
    ended: impl Future<Output = ()>,
    entered: Entered,
) {
    let Entered { place: _place, activity, told } = entered;
    let asked = activity.clone();
    let answer = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        let (answering, under_way) = (routes.clone().call(request), asked.request());
        async move {
            let Ok(response) = answering.await;
            // It is under way until its body has ended.
            let held = move |frame| {
                let _ = &under_way;
                frame
            };
            Ok::<_, Infallible>(response.map(|body| body.map_frame(held)))
        }
    });
    let connection = Connection::new(stream);
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(connection), answer);
    let mut serving = pin!(serving);
    // How a connection ends is its peer's affair.
    tokio::select! {
        _ = &mut serving => return,
        // What was asked just before is answered.
        _ = told => if activity.idle_since().is_some() { return },
        () = ended => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = serving.await;
}

/// The bytes of a connection.
struct Connection {
    stream: Option<TcpStream>,
    /// Since a write could not be made: when it is too late.
    stalled: Option<Pin<Box<Sleep>>>,
    /// The peer sends nothing more.
    has_ended: bool,
    /// We send nothing more.
    is_shut: bool,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self { stream: Some(stream), stalled: None, has_ended: false, is_shut: false }
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.stream.as_mut().expect("the stream is taken only when this is dropped"))
    }

    /// A write that was tried. While it cannot be made, its time runs.
    fn tried(&mut self, cx: &mut Context<'_>, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(TAKES_WITHIN)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read what is sent")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Closing a connection while its peer still sends causes a reset, which can overtake the answer: a refusal of a large body
/// would not be read. So what arrives after the answer is read and discarded for a while.
impl Drop for Connection {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        if self.has_ended || !self.is_shut {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(timeout(LINGERS, async move {
            let mut discarded = vec![0; DISCARDED_AT_ONCE];
            while stream.read(&mut discarded).await.is_ok_and(|bytes| bytes > 0) {}
        }));
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(self.stream().poll_read(cx, buffer))?;
        self.has_ended |= buffer.filled().len() == before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = self.stream().poll_write(cx, bytes);
        self.tried(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = self.stream().poll_write_vectored(cx, slices);
        self.tried(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.is_shut = true;
        self.stream().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// L06
    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (_peer, mut connection) = (peer.unwrap(), Connection::new(accepted.unwrap().0));
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        let failed = loop {
            if let Err(error) = connection.write_all(&[0; 65_536]).await {
                break error;
            }
        };
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        assert!(began.elapsed() >= TAKES_WITHIN);
    }

    /// L06
    #[tokio::test]
    async fn those_that_ask_nothing_keep_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, Router::new(), std::future::pending::<()>));
        let mut held = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        serving.abort();
    }

    /// L06
    #[tokio::test]
    async fn a_peer_that_was_told_to_close_while_it_asks_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut peer, (stream, from)) = (peer.unwrap(), accepted.unwrap());
        let Entered { place, activity, .. } = Connections::new(1).enter().await.unwrap();
        let (leave, told) = tokio::sync::oneshot::channel();
        let leave = std::sync::Arc::new(std::sync::Mutex::new(Some(leave)));
        // It is told while its answer is being made.
        let answer = move || async move {
            leave.lock().unwrap().take().unwrap().send(()).unwrap();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            "answered"
        };
        let routes = Router::new().route("/", axum::routing::get(answer));
        let entered = Entered { place, activity, told };
        let serving = tokio::spawn(serve_one(stream, from, routes, std::future::pending(), entered));
        peer.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("answered"), "{answer}");
        serving.await.unwrap();
    }

    /// L06
    #[tokio::test]
    async fn a_peer_that_asks_nothing_or_half_a_question_is_cut_off() {
        for said in
            [&b""[..], b"GET / HTTP/1.1\r\nHost: localh", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"]
        {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = tokio::spawn(serve(listener, Router::new(), std::future::pending::<()>));
            let mut peer = TcpStream::connect(address).await.unwrap();
            peer.write_all(said).await.unwrap();
            let mut byte = [0];
            if said.ends_with(b"\r\n\r\n") {
                // It is answered first.
                peer.read_exact(&mut byte).await.unwrap();
            }
            tokio::time::pause();
            let mut rest = Vec::new();
            // A connection that is closed, or reset: either way nobody holds it.
            let _ = peer.read_to_end(&mut rest).await;
            tokio::time::resume();
            serving.abort();
        }
    }
}
