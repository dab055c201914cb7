//! A body that nobody asked for, since its request was refused by its head alone.
//!
//! It is read before the answer is sent. Otherwise the connection would have to be closed in the middle of the body, and some
//! clients that are still sending lose the answer then: Go's, and so proxies written in Go.
//!
//! 1. Only what is small and comes at once is read: [`BYTES_MAX`], within [`WITHIN`]. After that the answer is sent, and the
//!    connection is closed as before.
//! 2. A client that waits for `100 Continue` is not told to go on.
//! 3. A request that cannot be told from the next one is never read on: its answer closes the connection.
//! 4. While it is waited for, its connection counts as idle.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response, Version};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::activity::Activity;

const BYTES_MAX: u64 = 64 * 1024;
const WITHIN: Duration = Duration::from_secs(1);

/// An answer that waits for the end of its request's body.
pub(crate) struct Unread<A> {
    body: Incoming,
    read: u64,
    timer: Pin<Box<Sleep>>,
    activity: Arc<Activity>,
    answer: Option<Response<A>>,
}

/// Whether its body, if nobody asks for it, may be read before the answer. In HTTP/2 there is no need: streams end by themselves.
pub(crate) fn may_be_read(request: &Request<Incoming>) -> bool {
    request.version() != Version::HTTP_2
        && !request.body().is_end_stream()
        && !request.headers().contains_key(EXPECT)
}

/// The answer, at once or once the body of its request has been read.
pub(crate) fn before<A>(
    answer: Response<A>,
    activity: &Arc<Activity>,
) -> Result<Response<A>, Box<Unread<A>>> {
    let Some(body) = activity.take_unread() else { return Ok(answer) };
    let closes = answer.headers().get(CONNECTION).is_some_and(|value| value == "close");
    if closes || body.size_hint().lower() > BYTES_MAX {
        return Ok(closing(answer));
    }
    activity.waits();
    let timer = Box::pin(sleep(WITHIN));
    Err(Box::new(Unread { body, read: 0, timer, activity: activity.clone(), answer: Some(answer) }))
}

/// The client is told: hyper does not see in time that nobody reads on.
fn closing<A>(mut answer: Response<A>) -> Response<A> {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

impl<A> Unread<A> {
    /// The answer, once the body has ended, broken, or become too long or too late.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Response<A>> {
        let has_ended = match self.poll_end(cx) {
            Poll::Ready(has_ended) => has_ended,
            Poll::Pending if self.timer.as_mut().poll(cx).is_ready() => false,
            Poll::Pending => return Poll::Pending,
        };
        let answer = self.answer.take().expect("it is not asked again after it has answered");
        Poll::Ready(if has_ended { answer } else { closing(answer) })
    }

    /// Whether the body came to its end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        while self.read <= BYTES_MAX {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.read += frame.data_ref().map_or(0, |data| data.len() as u64);
                }
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(false)
    }
}

impl<A> Drop for Unread<A> {
    fn drop(&mut self) {
        self.activity.goes_on();
    }
}
