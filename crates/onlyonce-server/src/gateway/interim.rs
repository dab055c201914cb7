//! A connection to a service, and how much it may say before its answer.
//!
//! A service may send interim answers (1xx) before the one that counts. hyper discards them, and reads on for as long as there are
//! any: a flood would keep the thread from others, and the request from its end. So what a service sends between a request and the
//! head of its answer is bounded: in HTTP/1.1 by its bytes, in HTTP/2, where answers share a connection, by the number of heads.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::Taken;
use crate::tls::Stream;

/// The most bytes before an answer: more than the head of any answer, and thousands of interim ones.
const BYTES_MAX: usize = 128 * 1024;
/// An answer is there: what follows is its body.
const ANSWERED: usize = usize::MAX;

/// How many bytes came since the last request was sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<AtomicUsize>);

impl Heard {
    /// A request is about to be sent.
    pub(crate) fn asked(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The head of its answer is there.
    pub(crate) fn answered(&self) {
        self.0.store(ANSWERED, Ordering::Relaxed);
    }

    fn is_too_much(&self) -> bool {
        (BYTES_MAX..ANSWERED).contains(&self.0.load(Ordering::Relaxed))
    }

    fn add(&self, bytes: usize) {
        let heard = self.0.load(Ordering::Relaxed);
        if heard != ANSWERED {
            self.0.store(heard.saturating_add(bytes).min(ANSWERED - 1), Ordering::Relaxed);
        }
    }
}

/// How many heads may still come on an HTTP/2 connection that do not end their stream: an answer has one, and any number of
/// interim ones before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heads(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Requests without an answer.
    asked: AtomicUsize,
    /// How many heads may come for those that were asked, beyond [`HEADS_SPARE`].
    left: AtomicIsize,
}

/// Heads of one request.
const HEADS_MAX: isize = 64;
/// For answers to requests that were given up.
const HEADS_SPARE: isize = 1024;

/// A request without an answer.
pub(crate) struct Asked(Heads);

impl Heads {
    /// A request is about to be sent.
    pub(crate) fn asked(&self) -> Asked {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        self.0.left.fetch_add(HEADS_MAX, Ordering::Relaxed);
        Asked(self.clone())
    }

    /// So many heads came. Whether that is too many.
    fn came(&self, heads: usize) -> bool {
        let heads = isize::try_from(heads).unwrap_or(isize::MAX);
        self.0.left.fetch_sub(heads, Ordering::Relaxed).saturating_sub(heads) < -HEADS_SPARE
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Counts { asked, left } = &*self.0.0;
        let others = asked.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
        let others = isize::try_from(others).unwrap_or(isize::MAX);
        left.fetch_min(others.saturating_mul(HEADS_MAX), Ordering::Relaxed);
    }
}

/// Where in the frames of HTTP/2 the bytes that came are.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; FRAME_HEADER],
    /// How much of the header is there.
    filled: usize,
    /// How much of the payload is to come.
    payload: usize,
}

const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;

impl Frames {
    /// How many heads begin in these bytes that do not end their stream.
    fn heads(&mut self, mut bytes: &[u8]) -> usize {
        let mut heads = 0;
        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            let taken = (FRAME_HEADER - self.filled).min(bytes.len());
            self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == FRAME_HEADER {
                let [high, middle, low, kind, flags, ..] = self.header;
                self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.filled = 0;
                heads += usize::from(kind == HEADERS && flags & END_STREAM == 0);
            }
        }
        heads
    }
}

/// The bytes of a connection.
pub(crate) struct Bounded {
    stream: Stream,
    bound: Bound,
    /// Until its descriptor is closed, also after it has become a tunnel.
    _place: Taken,
}

enum Bound {
    Http1(Heard),
    Http2(Heads, Frames),
}

impl Bounded {
    pub(crate) fn http1(stream: Stream, place: Taken, heard: Heard) -> Self {
        Self { stream, bound: Bound::Http1(heard), _place: place }
    }

    pub(crate) fn http2(stream: Stream, place: Taken, heads: Heads) -> Self {
        Self { stream, bound: Bound::Http2(heads, Frames::default()), _place: place }
    }
}

fn too_much() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "too much came before an answer")
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, bound, .. } = &mut *self;
        if let Bound::Http1(heard) = bound
            && heard.is_too_much()
        {
            return Poll::Ready(Err(too_much()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buffer))?;
        let read = &buffer.filled()[before..];
        match bound {
            Bound::Http1(heard) => heard.add(read.len()),
            Bound::Http2(heads, frames) => {
                if heads.came(frames.heads(read)) {
                    return Poll::Ready(Err(too_much()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::Outgoing;
    use super::*;

    /// L06: a tunnel is the stream without its connection.
    #[tokio::test]
    async fn a_place_is_taken_until_the_stream_is_closed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let outgoing = Outgoing::new(1);
        let place = outgoing.take().unwrap();
        let bounded = Bounded::http1(Stream::Plain(tcp), place, Heard::default());
        assert!(outgoing.take().is_none());
        drop(bounded);
        assert!(outgoing.take().is_some());
    }

    /// L06
    #[test]
    fn heads_are_counted_in_whatever_pieces_they_come() {
        let frame = |kind: u8, flags: u8, length: u8| {
            let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
            frame.extend(std::iter::repeat_n(HEADERS, usize::from(length)));
            frame
        };
        let bytes = [
            frame(4, 0, 0),
            frame(HEADERS, 4, 3),
            frame(0, 0, 40),
            frame(HEADERS, 4, 0),
            frame(HEADERS, 4 | END_STREAM, 9),
            frame(0, END_STREAM, 0),
        ]
        .concat();
        for size in 1..=bytes.len() {
            let mut frames = Frames::default();
            assert_eq!(bytes.chunks(size).map(|piece| frames.heads(piece)).sum::<usize>(), 2, "{size}");
        }
    }

    /// L06
    #[test]
    fn each_request_may_have_some_heads_and_given_up_ones_leave_few() {
        let heads = Heads::default();
        let asked: Vec<_> = (0..5000).map(|_| heads.asked()).collect();
        assert!(!heads.came(5000), "an answer to each");
        drop(asked);
        assert!(!heads.came(1024));
        assert!(heads.came(1));
        let heads = Heads::default();
        let _asked = heads.asked();
        assert!(!heads.came(64 + 1024));
        assert!(heads.came(1));
    }
}
