//! Natural batching: while one batch is in flight, the next one fills.
//!
//! A durable write waits as long for one row as for a hundred. So writes that arrive during a flush share the next one.
//! Nothing waits to fill a batch: a lone write is sent at once.
//!
//! 1. A write is sent at once if nothing is in flight, or if only one lone write is and a slot is free. There are no
//!    timers.
//! 2. At most [`Limits::in_flight_max`] batches are in flight, each of at most [`Limits::rows_max`] rows and
//!    [`Limits::bytes_max`] bytes; a larger row is sent alone. A second batch is sent only if it is at least as large as
//!    what is in flight, since a batch has a fixed cost. When a batch ends and many writes wait, the next batch is sent
//!    before the callers of the first are answered. If few wait, or batches are slow (a slow disk), the callers are
//!    answered first, so that their next writes can join, and a second batch must be twice as large.
//! 3. Writes of one id keep their order: the second waits until the batch with the first has ended. An id is never in two
//!    batches at once, nor twice in one batch.
//!    Reads have no order and take no id ([`Batcher::ask`]).
//! 4. A caller is answered only after the flush with its write has ended, and each has an answer of its own: one bad row
//!    fails alone.
//! 5. A submitted write is carried out even if its caller is cancelled. If a flush panics, returns too few answers, or is
//!    dropped with its runtime, its callers get `Unavailable`: what was written is unknown.
//!
//! Every batch is a task of its own, spawned by a caller that submits a write or by a batch that has ended. A task ends with
//! its batch.
//!
//! The rules are in `queue.rs`, which has no async code. The queue and the tasks are tested under `shuttle`'s schedules.

mod queue;
mod sync;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use onlyonce_core::record::Id;
use tokio::sync::oneshot;

use self::queue::Queue;
use self::sync::{Mutex, lock, now, spawn, yield_now};
use crate::{Error, ErrorKind};

/// The limits of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most rows of a batch; at least one.
    pub(crate) rows_max: usize,
    /// Most bytes of a batch of more than one row.
    pub(crate) bytes_max: usize,
    /// Most batches in flight; at least one.
    pub(crate) in_flight_max: usize,
}

/// Collects writes into batches; see the module's documentation. Clones share the queue.
pub(crate) struct Batcher<T, R> {
    shared: Arc<Shared<T, R>>,
}

type Answers<R> = Vec<Result<R, Error>>;
type Flush<T, R> = dyn Fn(Vec<T>) -> Pin<Box<dyn Future<Output = Answers<R>> + Send>> + Send + Sync;

struct Shared<T, R> {
    queue: Mutex<Queue<Waiting<T, R>>>,
    flush: Box<Flush<T, R>>,
}

/// A write and the channel of its caller.
struct Waiting<T, R> {
    item: T,
    caller: oneshot::Sender<Result<R, Error>>,
}

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// A batcher that calls `flush`, which returns one answer for each item, in order.
    pub(crate) fn new<F>(limits: Limits, flush: impl Fn(Vec<T>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Answers<R>> + Send + 'static,
    {
        let flush: Box<Flush<T, R>> = Box::new(move |items| Box::pin(flush(items)));
        Self { shared: Arc::new(Shared { queue: Mutex::new(Queue::new(limits)), flush }) }
    }

    /// Submits a write of the record `id`, of about `bytes` bytes, and waits for its answer.
    ///
    /// # Errors
    ///
    /// The flush's answer for this item; [`ErrorKind::Unavailable`] if the flush ended without one.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[cfg(any(feature = "mysql", feature = "postgres", test))]
    pub(crate) async fn submit(&self, id: Id, bytes: usize, item: T) -> Result<R, Error> {
        self.enqueue(item, |queue, waiting| queue.push(id, bytes, waiting)).await
    }

    /// Submits an item that has no order, such as a read: two reads of one record may share a batch.
    ///
    /// # Errors
    ///
    /// As for [`Batcher::submit`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[cfg(any(feature = "postgres", feature = "redis", test))]
    pub(crate) async fn ask(&self, bytes: usize, item: T) -> Result<R, Error> {
        self.enqueue(item, |queue, waiting| queue.push_free(bytes, waiting)).await
    }

    async fn enqueue(
        &self,
        item: T,
        push: impl FnOnce(&mut Queue<Waiting<T, R>>, Waiting<T, R>),
    ) -> Result<R, Error> {
        let (caller, answer) = oneshot::channel();
        self.shared.change(|queue| push(queue, Waiting { item, caller }));
        answer.await.unwrap_or_else(|_| Err(unanswered("the batch was dropped while it was in flight")))
    }
}

impl<T: Send + 'static, R: Send + 'static> Shared<T, R> {
    /// Changes the queue, and sends every batch that has a slot now.
    ///
    /// Both happen under one lock, whether a write is submitted or a batch frees its slot: a write that waits while a slot is
    /// free is seen by one of the two.
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Queue<Waiting<T, R>>)) {
        let batches = {
            let mut queue = lock(&self.queue);
            change(&mut queue);
            queue.take_all()
        };
        for batch in batches {
            let (items, callers) =
                batch.loads.into_iter().map(|Waiting { item, caller }| (item, caller)).unzip();
            let in_flight = InFlight { shared: self.clone(), ids: batch.ids, has_ended: false };
            spawn(in_flight.run(items, callers));
        }
    }
}

/// A flush in flight: one answer for each item. If it panics, each answer is an error.
struct Flushing<R> {
    rows: usize,
    flush: Option<Pin<Box<dyn Future<Output = Answers<R>> + Send>>>,
}

impl<R> Flushing<R> {
    fn new<T>(shared: &Shared<T, R>, items: Vec<T>) -> Self {
        let rows = items.len();
        Self { rows, flush: catch_unwind(AssertUnwindSafe(|| (shared.flush)(items))).ok() }
    }
}

impl<R> Future for Flushing<R> {
    type Output = Answers<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answers<R>> {
        let rows = self.rows;
        let all_unanswered = |why| Poll::Ready((0..rows).map(|_| Err(unanswered(why))).collect());
        let Some(flush) = &mut self.flush else { return all_unanswered("the flush panicked") };
        // Nothing of a flush is used after it panicked.
        match catch_unwind(AssertUnwindSafe(|| flush.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(answers)) if answers.len() == rows => Poll::Ready(answers),
            Ok(Poll::Ready(_)) => all_unanswered("the flush did not answer each of its rows"),
            Err(_) => all_unanswered("the flush panicked"),
        }
    }
}

/// A batch in flight.
struct InFlight<T: Send + 'static, R: Send + 'static> {
    shared: Arc<Shared<T, R>>,
    ids: Vec<Id>,
    has_ended: bool,
}

impl<T: Send + 'static, R: Send + 'static> InFlight<T, R> {
    async fn run(mut self, items: Vec<T>, callers: Vec<oneshot::Sender<Result<R, Error>>>) {
        // Of writes: how many share a commit.
        if !self.ids.is_empty() {
            metrics::histogram!("onlyonce_batch_size").record(u32::try_from(items.len()).unwrap_or(u32::MAX));
        }
        let sent_at = now();
        let answers = Flushing::new(&self.shared, items).await;
        let sends_next = lock(&self.shared.queue).answered(self.ids.len(), sent_at, now());
        if sends_next {
            self.end();
        }
        for (caller, answer) in callers.into_iter().zip(answers) {
            // A cancelled caller has dropped its receiver.
            let _ = caller.send(answer);
        }
        if !sends_next {
            // Many of the callers just answered have their next write ready. Yield, so that those writes join the next
            // batch.
            yield_now().await;
            self.end();
        }
    }

    /// Frees its ids and its slot, and sends the batches that waited for them.
    fn end(&mut self) {
        self.has_ended = true;
        self.shared.change(|queue| queue.end(&self.ids));
    }
}

impl<T: Send + 'static, R: Send + 'static> Drop for InFlight<T, R> {
    /// Dropped while in flight, as a runtime does at shutdown: its callers find their channel closed. If it was the last
    /// batch, the queued writes are dropped too, since no batch is left to send them.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let abandoned = lock(&self.shared.queue).abandon(&self.ids);
        drop(abandoned);
    }
}

impl<T, R> Clone for Batcher<T, R> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T, R> fmt::Debug for Batcher<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").finish_non_exhaustive()
    }
}

fn unanswered(why: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{why}, and whether the write took place is not known; look again"),
    )
}

#[cfg(test)]
mod tests;
