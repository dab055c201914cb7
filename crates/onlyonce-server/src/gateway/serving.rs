//! The answer to a request: its connection is busy until all of it has been sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::activity::{Pieces, UnderWay};
use super::body::Body;
use super::own;
use super::unread::{self, Unread};

pin_project! {
    /// The answer to come.
    pub(crate) struct Serving<F> {
        #[pin]
        future: F,
        under_way: Option<UnderWay>,
        // The answer, while the body of its request is read.
        unread: Option<Box<Unread<onlyonce::Body<Body>>>>,
    }
}

impl<F> Serving<F> {
    pub(crate) fn new(future: F, under_way: UnderWay) -> Self {
        Self { future, under_way: Some(under_way), unread: None }
    }
}

impl<F> Future for Serving<F>
where
    F: Future<Output = Result<Response<onlyonce::Body<Body>>, Infallible>>,
{
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.unread.is_none() {
            let Ok(mut response) = ready!(this.future.poll(cx));
            let under_way = this.under_way.as_ref().expect("it is not asked again after it has answered");
            // A body that is late ends its request at once, so it was this one's.
            // One that was being passed on has an answer of its own.
            if under_way.activity().was_late() && response.status() == StatusCode::BAD_REQUEST {
                response = own::late().map(onlyonce::Body::whole);
            }
            match unread::before(response, under_way.activity()) {
                Ok(response) => return Poll::Ready(Ok(Answer::to(response, this.under_way.take()))),
                Err(unread) => *this.unread = Some(unread),
            }
        }
        let unread = this.unread.as_mut().expect("otherwise it has answered");
        let response = ready!(unread.poll(cx));
        *this.unread = None;
        Poll::Ready(Ok(Answer::to(response, this.under_way.take())))
    }
}

/// The body of an answer.
pub(crate) struct Answer {
    body: onlyonce::Body<Body>,
    under_way: Option<UnderWay>,
    /// Where it has more than one.
    pieces: Option<Pieces>,
}

impl Answer {
    fn to(response: Response<onlyonce::Body<Body>>, under_way: Option<UnderWay>) -> Response<Self> {
        response.map(|body| Self { body, under_way, pieces: None })
    }

    /// A piece was given, and there may be another.
    fn gave(&mut self) {
        if self.pieces.is_none() {
            self.pieces = self.under_way.as_ref().map(Pieces::of);
        }
        if let Some(pieces) = &self.pieces {
            pieces.gives();
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(pieces) = &self.pieces {
            pieces.is_asked();
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if matches!(frame, Some(Ok(_))) && !self.body.is_end_stream() {
            self.gave();
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
