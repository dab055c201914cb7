//! The answer to come.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;

use crate::body::Body;
use crate::buffered::Held;
use crate::headers;
use crate::keyed::Keyed;

pin_project! {
    /// The answer to come. Dropped while an attempt is under way, the attempt goes on without it: a client that hangs
    /// up changes nothing.
    pub struct ResponseFuture<F, R: 'static, E: 'static> {
        #[pin]
        way: Way<F, R, E>,
    }
}

pin_project! {
    #[project = WayProjected]
    enum Way<F, R: 'static, E: 'static> {
        /// Not ours: as if we were not there.
        Passing { #[pin] future: F, held: Option<Held> },
        /// Its body is read, since its key may stand there. Who hangs up meanwhile has asked for nothing.
        Reading { reading: Reading<F, R, E> },
        /// Answered already.
        Answered { response: Option<Response<Body<R>>> },
        /// Ours.
        Ours { ours: Ours<R, E> },
    }
}

type Reading<F, R, E> = Pin<Box<dyn Future<Output = ResponseFuture<F, R, E>> + Send>>;
type Answering<R, E> = Pin<Box<dyn Future<Output = Result<Response<Body<R>>, E>> + Send>>;

/// A request under way that we answer. A keyed one outlives its client, while it must not be lost.
struct Ours<R: 'static, E: 'static> {
    future: Option<Answering<R, E>>,
    /// None for a question about a key, which may end at any time.
    keyed: Option<Arc<Keyed>>,
}

/// Whether a request must be carried on without its client: from before the reservation until the outcome is written.
#[derive(Debug, Default)]
pub(crate) struct Hold(AtomicBool);

impl Hold {
    pub(crate) fn set(&self, must_go_on: bool) {
        self.0.store(must_go_on, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(crate) fn passing(future: F) -> Self {
        Self::passing_with(future, None)
    }

    /// The same for a request whose body is held.
    pub(crate) fn passing_with(future: F, held: Option<Held>) -> Self {
        Self { way: Way::Passing { future, held } }
    }

    pub(crate) fn answered(response: Response<Body<R>>) -> Self {
        Self { way: Way::Answered { response: Some(response) } }
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    /// What a request turns out to be once its body has been read.
    pub(crate) fn reading(reading: impl Future<Output = Self> + Send + 'static) -> Self {
        Self { way: Way::Reading { reading: Box::pin(reading) } }
    }

    /// The answer to a keyed request, or to accepted work.
    pub(crate) fn keyed(
        future: impl Future<Output = Result<Response<Body<R>>, E>> + Send + 'static,
        keyed: Arc<Keyed>,
    ) -> Self {
        Self { way: Way::Ours { ours: Ours { future: Some(Box::pin(future)), keyed: Some(keyed) } } }
    }

    /// The answer to a question about a key.
    pub(crate) fn told(future: impl Future<Output = Result<Response<Body<R>>, E>> + Send + 'static) -> Self {
        Self { way: Way::Ours { ours: Ours { future: Some(Box::pin(future)), keyed: None } } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let WayProjected::Reading { reading } = self.as_mut().project().way.project() {
            // What it turned out to be is never read again.
            let read = ready!(reading.as_mut().poll(cx));
            self.as_mut().project().way.set(read.way);
        }
        match self.project().way.project() {
            WayProjected::Reading { .. } => unreachable!("a body is read once"),
            WayProjected::Passing { future, held } => {
                let mut response = ready!(future.poll(cx))?;
                *held = None;
                headers::strip_control(response.headers_mut());
                Poll::Ready(Ok(response.map(Body::passed)))
            }
            WayProjected::Answered { response } => {
                Poll::Ready(Ok(response.take().expect("a future is not polled again once it is ready")))
            }
            WayProjected::Ours { ours } => {
                let future = ours.future.as_mut().expect("a future is not polled again once it is ready");
                let answered = ready!(future.as_mut().poll(cx));
                ours.future = None;
                Poll::Ready(answered)
            }
        }
    }
}

impl<R, E> Drop for Ours<R, E> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else { return };
        let held = self.keyed.as_ref().filter(|keyed| keyed.hold.is_set());
        if let Some(keyed) = held {
            keyed.engine().tasks.spawn_answering(future);
        }
    }
}
