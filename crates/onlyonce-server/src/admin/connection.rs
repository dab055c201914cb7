//! Connections of the admin port. One whose peer does not take what is sent to it is closed: an event stream that nobody
//! reads would otherwise stay for ever.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};

/// How long a peer may take nothing of what is sent to it.
const TAKES_WITHIN: Duration = Duration::from_secs(30);

/// Where operators come in.
#[derive(Debug)]
pub(super) struct Door(pub(super) TcpListener);

impl Listener for Door {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.0).await;
        (Connection { stream, stalled: None }, peer)
    }

    fn local_addr(&self) -> Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, Door>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// The bytes of a connection.
pub(super) struct Connection {
    stream: TcpStream,
    /// Since a write could not be made: when it is too late.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    /// A write that was tried. While it cannot be made, its time runs.
    fn tried(&mut self, cx: &mut Context<'_>, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(TAKES_WITHIN)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the peer does not take what is sent")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.tried(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.tried(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// O01
    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_cut_off() {
        let mut door = Door(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = door.local_addr().unwrap();
        let (peer, (mut connection, _)) = tokio::join!(TcpStream::connect(address), door.accept());
        let _peer = peer.unwrap();
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
}
