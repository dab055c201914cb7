//! A client's connection: its bytes, its raw head, and a graceful close.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::activity::Activity;
use super::connections::Place;
use super::head::Head;
use crate::tls::Stream;

/// How long a refused client may go on sending before the connection is closed.
const LINGERS: Duration = Duration::from_secs(5);
const DISCARDED_AT_ONCE: usize = 64 * 1024;
/// The preface of HTTP/2.
const PREFACE_BYTES: usize = 24;

/// The bytes of a client's connection.
pub(crate) struct Client {
    stream: Option<Stream>,
    head: Head,
    activity: Arc<Activity>,
    /// Until its descriptor is closed, also after it has become a tunnel.
    place: Option<Place>,
    /// How many bytes were read, up to the preface of HTTP/2.
    begun: usize,
    has_ended: bool,
    is_shut: bool,
}

impl Client {
    pub(crate) fn new(stream: Stream, head: Head, activity: Arc<Activity>, place: Place) -> Self {
        let (stream, place) = (Some(stream), Some(place));
        Self { stream, head, activity, place, begun: 0, has_ended: false, is_shut: false }
    }

    fn stream(&mut self) -> Pin<&mut Stream> {
        Pin::new(self.stream.as_mut().expect("the stream is taken only when this is dropped"))
    }

    fn wrote(&mut self, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if written.is_pending() {
            self.activity.stalls();
            return Poll::Pending;
        }
        self.activity.wrote();
        self.head.wrote();
        written
    }

    /// Notes which part of the client's requests these bytes may be. In HTTP/2 only the preface is a part of its own.
    fn received(&mut self, bytes: usize, is_http2: bool) {
        self.begun = self.begun.saturating_add(bytes).min(PREFACE_BYTES);
        if is_http2 && self.begun == PREFACE_BYTES {
            self.activity.head_ends();
        } else {
            self.activity.head_moves();
        }
    }
}

/// Closing a connection while its client still sends causes a reset, which can overtake the answer. So data that arrives
/// after the answer is read and discarded for a while.
impl Drop for Client {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        if self.has_ended || !self.is_shut || self.activity.is_cut() {
            return;
        }
        let Some(mut place) = self.place.take() else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        if !place.may_linger() {
            return;
        }
        runtime.spawn(timeout(LINGERS, async move {
            let mut discarded = vec![0; DISCARDED_AT_ONCE];
            while stream.read(&mut discarded).await.is_ok_and(|bytes| bytes > 0) {}
            drop((stream, place));
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
        let is_http2 = self.head.read(read);
        self.has_ended |= read.is_empty();
        self.received(read.len(), is_http2);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = self.stream().poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = self.stream().poll_write_vectored(cx, slices);
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
