//! Streaming bodies: nothing is buffered or copied.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::activity::Running;
use super::inbound::{Broken, Inbound};
use super::pool::Lent;

/// A request body for a service: buffered by the layer if keyed, otherwise streamed from the client.
pub(crate) struct Upload {
    body: onlyonce::Body<Inbound>,
    progress: Option<Arc<Progress>>,
}

/// When a streaming body last made progress.
pub(crate) struct Progress {
    since: Instant,
    moved_ms: AtomicU64,
}

impl Progress {
    fn moved(&self) {
        let moved_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(moved_ms, Ordering::Relaxed);
    }

    /// How long there was no progress.
    pub(crate) fn still_for(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.moved_ms.load(Ordering::Relaxed)))
    }
}

impl Upload {
    /// A buffered or empty body.
    pub(crate) fn whole(body: onlyonce::Body<Inbound>) -> Self {
        Self { body, progress: None }
    }

    /// A streamed body and its progress.
    pub(crate) fn streaming(body: onlyonce::Body<Inbound>) -> (Self, Arc<Progress>) {
        let progress = Arc::new(Progress { since: Instant::now(), moved_ms: AtomicU64::new(0) });
        (Self { body, progress: Some(progress.clone()) }, progress)
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(progress) = &self.progress {
            progress.moved();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response body: streamed from the service, or a short one of our own.
pub(crate) enum Body {
    Service {
        body: Incoming,
        /// The connection of the body, which is reused once the body has ended.
        lent: Option<Lent>,
        /// Its request counts as running until the body is dropped.
        _running: Option<Running>,
    },
    Own(Option<Bytes>),
}

impl Body {
    pub(crate) fn service(body: Incoming, lent: Option<Lent>) -> Self {
        let lent = give_back_at_end(&body, lent);
        Self::Service { body, lent, _running: None }
    }

    /// One whose request counts as running while there is more of it to come.
    pub(crate) fn counted(self, running: Option<Running>) -> Self {
        match self {
            Self::Service { body, lent, .. } => Self::Service { body, lent, _running: running },
            Self::Own(bytes) => Self::Own(bytes),
        }
    }

    pub(crate) fn own(bytes: Bytes) -> Self {
        Self::Own(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

fn give_back_at_end(body: &Incoming, lent: Option<Lent>) -> Option<Lent> {
    if !body.is_end_stream() {
        return lent;
    }
    if let Some(lent) = lent {
        lent.give_back();
    }
    None
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let (body, lent) = match &mut *self {
            Self::Service { body, lent, .. } => (body, lent),
            Self::Own(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => *lent = give_back_at_end(body, lent.take()),
            None => {
                if let Some(lent) = lent.take() {
                    lent.give_back();
                }
            }
            // After an error the connection cannot be reused.
            Some(Err(_)) => drop(lent.take()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Service { body, .. } => body.is_end_stream(),
            Self::Own(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Service { body, .. } => body.size_hint(),
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}
