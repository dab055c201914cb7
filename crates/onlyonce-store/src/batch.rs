//! Natural batching: while one batch is under way, the next fills.
//!
//! A durable write costs the same wait for one row as for a hundred. So what comes while a flush is under way goes
//! together with the next one; and since nothing waits for company, a lone write goes at once and pays nothing.
//!
//! 1. A write goes at once where nothing is under way, or one write alone and there is a place. There are no timers.
//! 2. At most [`Limits::in_flight_max`] batches are under way, each of at most [`Limits::rows_max`] rows and
//!    [`Limits::bytes_max`] bytes; a row that is larger than that goes alone. Beside a batch goes only another that is
//!    at least as large: a batch costs as much as many rows. Where batches are slow it must be twice as large.
//! 3. When a batch has ended and many writes wait, they go at once, and the callers of the batch are told meanwhile. Where few
//!    wait, or the batch was slow, the callers are told first: many have their next write ready at once, and it comes along.
//!    Rules 2 and 3 measure how long batches take, since neither answer is right for both a prompt store and a slow one.
//! 4. Writes of one id keep their order: the second waits until the batch that carries the first has ended. One id is
//!    never in two batches at once, nor in one batch twice.
//!    What has no order, such as a look, takes no id ([`Batcher::ask`]).
//! 5. Nobody is answered before the flush that carried the write has ended, and each has an answer of its own: one
//!    bad row fails alone.
//! 6. What was handed in is carried out, also where its caller goes away. A flush that panics, answers too few, or
//!    is dropped with its runtime answers its callers with `Unavailable`: nobody knows what was written.
//!
//! Each batch is a task of its own, spawned by whoever finds a free place and something waiting: a caller that hands
//! in a write, or a batch that has ended. Nothing is left running: a task ends with its batch.
//!
//! The rules are in `queue.rs`, which knows no async; it and the tasks around it are tested on the schedules that
//! `shuttle` makes up.

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

/// How much goes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The most rows of a batch; at least one.
    pub(crate) rows_max: usize,
    /// The most bytes of a batch, where it has more than one row.
    pub(crate) bytes_max: usize,
    /// The most batches under way at once; at least one.
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

/// A write and who waits for it.
struct Waiting<T, R> {
    item: T,
    caller: oneshot::Sender<Result<R, Error>>,
}

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// Collects writes for `flush`, which answers each item of a batch in its order.
    pub(crate) fn new<F>(limits: Limits, flush: impl Fn(Vec<T>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Answers<R>> + Send + 'static,
    {
        let flush: Box<Flush<T, R>> = Box::new(move |items| Box::pin(flush(items)));
        Self { shared: Arc::new(Shared { queue: Mutex::new(Queue::new(limits)), flush }) }
    }

    /// Hands in a write of the record `id`, about `bytes` large, and waits for its answer.
    ///
    /// # Errors
    ///
    /// What the flush answered for this item; [`ErrorKind::Unavailable`] where it ended without an answer.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) async fn submit(&self, id: Id, bytes: usize, item: T) -> Result<R, Error> {
        self.hand_in(item, |queue, waiting| queue.push(id, bytes, waiting)).await
    }

    /// The same for what has no order among its like: a look, of which two at one record may go together.
    ///
    /// # Errors
    ///
    /// As for [`Batcher::submit`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) async fn ask(&self, bytes: usize, item: T) -> Result<R, Error> {
        self.hand_in(item, |queue, waiting| queue.push_free(bytes, waiting)).await
    }

    async fn hand_in(
        &self,
        item: T,
        push: impl FnOnce(&mut Queue<Waiting<T, R>>, Waiting<T, R>),
    ) -> Result<R, Error> {
        let (caller, answer) = oneshot::channel();
        self.shared.change(|queue| push(queue, Waiting { item, caller }));
        answer.await.unwrap_or_else(|_| Err(unanswered("the batch was dropped while it was under way")))
    }
}

impl<T: Send + 'static, R: Send + 'static> Shared<T, R> {
    /// Changes the queue, and starts every batch that there is a place for now.
    ///
    /// Both happen under one lock, whether something is handed in or a place becomes free: whatever waits while a place is
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
            let under_way = UnderWay { shared: self.clone(), ids: batch.ids, has_ended: false };
            spawn(under_way.run(items, callers));
        }
    }
}

/// A batch under way.
struct UnderWay<T: Send + 'static, R: Send + 'static> {
    shared: Arc<Shared<T, R>>,
    ids: Vec<Id>,
    has_ended: bool,
}

impl<T: Send + 'static, R: Send + 'static> UnderWay<T, R> {
    async fn run(mut self, items: Vec<T>, callers: Vec<oneshot::Sender<Result<R, Error>>>) {
        // Of writes: how many share a commit.
        if !self.ids.is_empty() {
            metrics::histogram!("onlyonce_batch_size").record(u32::try_from(items.len()).unwrap_or(u32::MAX));
        }
        let (rows, sent_at) = (self.ids.len(), now());
        let answers = Flushing::new(&self.shared, items).await;
        let ends_first = lock(&self.shared.queue).answered(rows, sent_at, now());
        if ends_first {
            self.end();
        }
        for (caller, answer) in callers.into_iter().zip(answers) {
            // A caller that went away does not want its answer.
            let _ = caller.send(answer);
        }
        if !ends_first {
            yield_now().await;
            self.end();
        }
    }

    /// Its ids and its place are free, and what waited for them goes now.
    fn end(&mut self) {
        self.has_ended = true;
        self.shared.change(|queue| queue.end(&self.ids));
    }
}

impl<T: Send + 'static, R: Send + 'static> Drop for UnderWay<T, R> {
    /// Dropped under way, as a runtime does when it shuts down: its callers find their channel closed. Where it was
    /// the last batch, nobody is left to carry what waits: that is answered the same way, and the queue is as new.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let abandoned = lock(&self.shared.queue).abandon(&self.ids);
        drop(abandoned);
    }
}

/// A flush under way: its answers, as many as there are items; one that panics has none to give.
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
        // Nothing of a flush is used after it has panicked.
        match catch_unwind(AssertUnwindSafe(|| flush.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(answers)) if answers.len() == rows => Poll::Ready(answers),
            Ok(Poll::Ready(_)) => all_unanswered("the flush did not answer each of its rows"),
            Err(_) => all_unanswered("the flush panicked"),
        }
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
