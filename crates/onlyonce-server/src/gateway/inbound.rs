//! A request's body as it comes from the client, and how long it may take.
//!
//! Only bodies that are held whole have a time-out here: those of keyed requests and webhooks. A body that is passed on as it comes may
//! take any time while it moves (`forward.rs`), also when its answer came before its end.
//!
//! 1. It may stand still for `body_timeout` at most.
//! 2. Beyond that, it must come at [`BYTES_PER_SECOND_MIN`]: a byte at a time holds no place. Not so where requests are only observed.
//! 3. While it is waited for, its connection counts as idle: it is closed when there is no place for another.
//! 4. One that nobody asked for is read before the answer is sent (`unread.rs`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::Activity;

const BYTES_PER_SECOND_MIN: u64 = 1024;

pub(crate) struct Inbound {
    /// Until it is dropped.
    body: Option<Incoming>,
    /// Whether anybody asked for it.
    is_asked: bool,
    activity: Arc<Activity>,
    bound: Bound,
    /// Since the client was first waited for.
    waited: Option<Box<Waited>>,
}

/// Which time-out it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// It is passed on as it comes, and may take any time.
    Passing,
    /// It may stand still for so long.
    Observed(Duration),
    /// It may stand still for so long, and must not be slow.
    Held(Duration),
}

struct Waited {
    began: Instant,
    moved: Instant,
    bytes: u64,
    timer: Pin<Box<Sleep>>,
    is_waiting: bool,
}

/// Why a body ended before its end.
#[derive(Debug, Error)]
pub(crate) enum Broken {
    #[error("the body could not be read")]
    Connection(#[source] hyper::Error),
    #[error("the body did not arrive in time")]
    Late,
}

impl Inbound {
    /// One that is passed on as it comes.
    pub(crate) fn new(body: Incoming, activity: Arc<Activity>) -> Self {
        Self { body: Some(body), is_asked: false, activity, bound: Bound::Passing, waited: None }
    }

    pub(crate) fn bound(self, bound: Bound) -> Self {
        let mut bounded = self;
        bounded.bound = bound;
        bounded
    }

    fn body(&self) -> &Incoming {
        self.body.as_ref().expect("the body is taken only when this is dropped")
    }

    fn moved(&mut self, frame: Option<&Frame<Bytes>>) {
        self.activity.body_moves();
        let Some(waited) = &mut self.waited else { return };
        if waited.is_waiting {
            waited.is_waiting = false;
            self.activity.goes_on();
        }
        waited.moved = Instant::now();
        waited.bytes += frame.and_then(Frame::data_ref).map_or(0, |data| data.len() as u64);
    }

    /// Whether it is too late for more of it.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (body_timeout, is_paced) = match self.bound {
            Bound::Passing => return Poll::Pending,
            Bound::Observed(body_timeout) => (body_timeout, false),
            Bound::Held(body_timeout) => (body_timeout, true),
        };
        let waited = self.waited.get_or_insert_with(|| Waited::new(body_timeout));
        if !waited.is_waiting {
            waited.is_waiting = true;
            // Until now it was not asked for: a service that takes its time makes nobody late.
            waited.moved = Instant::now();
            self.activity.waits();
        }
        waited.poll(body_timeout, is_paced, cx)
    }
}

impl Waited {
    fn new(body_timeout: Duration) -> Box<Self> {
        let began = Instant::now();
        let timer = Box::pin(sleep_until(began + body_timeout));
        Box::new(Self { began, moved: began, bytes: 0, timer, is_waiting: false })
    }

    fn poll(&mut self, body_timeout: Duration, is_paced: bool, cx: &mut Context<'_>) -> Poll<()> {
        let at_rate = Duration::from_millis(self.bytes.saturating_mul(1000) / BYTES_PER_SECOND_MIN);
        let last = if is_paced { self.moved.min(self.began + at_rate) } else { self.moved };
        let due = last + body_timeout;
        if due != self.timer.deadline() {
            self.timer.as_mut().reset(due);
        }
        self.timer.as_mut().poll(cx)
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        if self.waited.as_ref().is_some_and(|waited| waited.is_waiting) {
            self.activity.goes_on();
        }
        if !self.is_asked
            && let Some(body) = self.body.take()
        {
            self.activity.leave_unread(body);
        }
    }
}

impl HttpBody for Inbound {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.is_asked = true;
        let body = self.body.as_mut().expect("the body is taken only when this is dropped");
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            self.moved(frame.as_ref().and_then(|frame| frame.as_ref().ok()));
            return Poll::Ready(frame.map(|frame| frame.map_err(Broken::Connection)));
        }
        if self.poll_late(cx).is_pending() {
            return Poll::Pending;
        }
        self.activity.is_late();
        Poll::Ready(Some(Err(Broken::Late)))
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::poll;
    use tokio::time::{advance, pause};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// For how many seconds a body is waited for, up to a hundred, of which so many bytes come each second.
    async fn waited_for(bytes: u64, is_paced: bool) -> usize {
        let mut waited = Waited::new(3 * SECOND);
        for second in 1..=100 {
            advance(SECOND).await;
            if poll!(poll_fn(|cx| waited.poll(3 * SECOND, is_paced, cx))).is_ready() {
                return second;
            }
            waited.moved = Instant::now();
            waited.bytes += bytes;
        }
        100
    }

    /// L06
    #[tokio::test]
    async fn a_body_that_is_held_must_come_at_a_pace_and_one_that_is_observed_need_not() {
        pause();
        assert!(waited_for(1, true).await <= 4, "a byte a second gains nothing");
        assert!(waited_for(BYTES_PER_SECOND_MIN / 2, true).await <= 7);
        assert_eq!(waited_for(BYTES_PER_SECOND_MIN, true).await, 100);
        assert_eq!(waited_for(1, false).await, 100);
    }
}
