//! A client's connection: its bytes, its raw head, and a graceful close.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::head::Head;
use crate::tls::Stream;

/// How long a refused client may go on sending before the connection is closed.
const LINGERS: Duration = Duration::from_secs(5);
const DISCARDED_AT_ONCE: usize = 64 * 1024;

/// The bytes of a client's connection.
pub(crate) struct Client {
    stream: Option<Stream>,
    head: Head,
    has_ended: bool,
    is_shut: bool,
}

impl Client {
    pub(crate) fn new(stream: Stream, head: Head) -> Self {
        Self { stream: Some(stream), head, has_ended: false, is_shut: false }
    }

    fn stream(&mut self) -> Pin<&mut Stream> {
        Pin::new(self.stream.as_mut().expect("the stream is taken only when this is dropped"))
    }

    fn wrote(&mut self, written: Result<usize>) -> Poll<Result<usize>> {
        self.head.wrote();
        Poll::Ready(written)
    }
}

/// Closing a connection while its client still sends causes a reset, which can overtake the answer. So data that arrives
/// after the answer is read and discarded for a while.
impl Drop for Client {
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

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(self.stream().poll_read(cx, buffer))?;
        let read = &buffer.filled()[before..];
        self.head.read(read);
        self.has_ended |= read.is_empty();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = ready!(self.stream().poll_write(cx, bytes));
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = ready!(self.stream().poll_write_vectored(cx, slices));
        self.wrote(written)
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
