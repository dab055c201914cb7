//! One HTTP/2 connection, all in one task.
//!
//! hyper splits a connection to a service into several tasks. Between two steps of one of them, a `GOAWAY` read by
//! another can make a request look as if it had not been sent when it had. In one task nothing is read between those
//! steps, so what the error says of a request is true.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;

type Part = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Parts of a connection that were not polled yet.
#[derive(Clone, Default)]
pub(crate) struct Together(Arc<Mutex<Vec<Part>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Together {
    fn execute(&self, part: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(part));
    }
}

impl Together {
    /// Runs `connection` and every part that it spawns, in one task.
    pub(crate) async fn run<T>(self, connection: impl Future<Output = T>) {
        let mut connection = pin!(connection);
        let mut has_ended = false;
        let mut parts = FuturesUnordered::<Part>::new();
        std::future::poll_fn(|cx| {
            loop {
                has_ended = has_ended || connection.as_mut().poll(cx).is_ready();
                parts.extend(self.waiting());
                while let Poll::Ready(Some(())) = parts.poll_next_unpin(cx) {}
                if self.is_empty() {
                    break;
                }
            }
            if has_ended && parts.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn waiting(&self) -> Vec<Part> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
