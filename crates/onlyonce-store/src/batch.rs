//! Natural batching: while one batch is under way, the next fills.
//!
//! A durable write costs the same wait for one row as for a hundred. So what comes while a flush is under way goes
//! together with the next one; and since nothing waits for company, a lone write goes at once and pays nothing.
//!
//! 1. A write goes at once where nothing is under way, or one write alone and there is a place. There are no timers.
//! 2. At most [`Limits::in_flight_max`] batches are under way, each of at most [`Limits::rows_max`] rows and
//!    [`Limits::bytes_max`] bytes; a row that is larger than that goes alone. Beside a batch goes only another that is
//!    at least as large: a batch costs what many rows do. When one has ended and many wait, they go at once, and
//!    those that it carried are told meanwhile. Where few wait, or batches take long, since the disk is slow, those are
//!    told first and may come along, and beside a batch goes only one that is twice as large: then it counts how many
//!    share the next.
//! 3. Writes of one id keep their order: the second waits until the batch that carries the first has ended. One id is
//!    never in two batches at once, nor in one batch twice.
//!    What has no order, such as a look, takes no id ([`Batcher::ask`]).
//! 4. Nobody is answered before the flush that carried the write has ended, and each has an answer of its own: one
//!    bad row fails alone.
//! 5. What was handed in is carried out, also where its caller goes away. A flush that panics, answers too few, or
//!    is dropped with its runtime answers its callers with `Unavailable`: nobody knows what was written.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use onlyonce_core::record::Id;
//! use onlyonce_store::batch::{Batcher, Limits};
//!
//! let limits = Limits { rows_max: 256, bytes_max: 1 << 20, in_flight_max: 2 };
//! let batcher = Batcher::new(limits, async |rows: Vec<u32>| {
//!     // One statement for all rows would stand here, and a commit.
//!     rows.into_iter().map(|row| Ok(row * 2)).collect()
//! });
//! assert_eq!(batcher.submit(Id([1; 32]), 4, 21).await.unwrap(), 42);
//! # });
//! ```
//!
//! # Who drives
//!
//! Where nothing is under way and there are two places, a write is carried by its caller: no task, no channel, nobody to wake
//! up. Where the caller goes away meanwhile, a task takes over. One who stays and does not come to carry it keeps one place
//! from the others, and never the last: what comes meanwhile is carried by tasks.
//!
//! Every other batch is a task of its own, spawned by whoever finds a free place and something waiting: a caller that hands
//! in a write, or a batch that has ended. It could be carried by one of its callers too, and would have to be handed over
//! whenever that one goes away; a task belongs to no client. Nothing is left running: a task ends with its batch.
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
use self::sync::{Mutex, lock, now, spawn, spawn_or_drop, yield_now};
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
        let goes_alone = lock(&self.shared.queue).go_alone(id);
        if goes_alone {
            return Alone::new(&self.shared, id, item).await;
        }
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
        self.shared.hand_in(|queue| push(queue, Waiting { item, caller }));
        answer.await.unwrap_or_else(|_| Err(unanswered("the batch was dropped while it was under way")))
    }
}

impl<T: Send + 'static, R: Send + 'static> Shared<T, R> {
    fn hand_in(self: &Arc<Self>, push: impl FnOnce(&mut Queue<Waiting<T, R>>)) {
        let batches = {
            let mut queue = lock(&self.queue);
            push(&mut queue);
            queue.take_all()
        };
        self.launch(batches);
    }

    /// A batch has ended: its ids and its place are free. What waited for them goes now.
    ///
    /// Freeing and taking happen under one lock, and so do handing in and taking: whatever waits while a place is free
    /// is seen by one of the two.
    fn land(self: &Arc<Self>, ids: &[Id]) {
        let batches = {
            let mut queue = lock(&self.queue);
            queue.end(ids);
            queue.take_all()
        };
        self.launch(batches);
    }

    fn launch(self: &Arc<Self>, batches: Vec<queue::Batch<Waiting<T, R>>>) {
        for batch in batches {
            let (items, callers) =
                batch.loads.into_iter().map(|Waiting { item, caller }| (item, caller)).unzip();
            spawn(Flight::new(self, batch.ids).fly(items, callers));
        }
    }

    fn flush(&self, items: Vec<T>) -> Flushing<R> {
        let rows = items.len();
        Flushing { rows, flush: catch_unwind(AssertUnwindSafe(|| (self.flush)(items))).ok() }
    }
}

/// A flush under way: its answers, as many as there are items; one that panics has none to give.
struct Flushing<R> {
    rows: usize,
    flush: Option<Pin<Box<dyn Future<Output = Answers<R>> + Send>>>,
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

/// A write that its caller carries. Dropped before its end, it is carried on by a task.
struct Alone<T: Send + 'static, R: Send + 'static> {
    /// None once it has landed, or was handed over.
    under_way: Option<(Flight<T, R>, Flushing<R>)>,
}

impl<T: Send + 'static, R: Send + 'static> Alone<T, R> {
    fn new(shared: &Arc<Shared<T, R>>, id: Id, item: T) -> Self {
        let flight = Flight::new(shared, vec![id]);
        flight.tell_size(1);
        Self { under_way: Some((flight, shared.flush(vec![item]))) }
    }
}

impl<T: Send + 'static, R: Send + 'static> Future for Alone<T, R> {
    type Output = Result<R, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((_, flushing)) = &mut self.under_way else { return Poll::Pending };
        let Poll::Ready(mut answers) = Pin::new(flushing).poll(context) else { return Poll::Pending };
        if let Some((mut flight, _)) = self.under_way.take() {
            flight.land();
        }
        Poll::Ready(answers.pop().unwrap_or_else(|| Err(unanswered("the flush did not answer"))))
    }
}

impl<T: Send + 'static, R: Send + 'static> Drop for Alone<T, R> {
    fn drop(&mut self) {
        let Some((mut flight, flushing)) = self.under_way.take() else { return };
        spawn_or_drop(async move {
            flushing.await;
            flight.land();
        });
    }
}

/// A batch under way.
struct Flight<T: Send + 'static, R: Send + 'static> {
    shared: Arc<Shared<T, R>>,
    ids: Vec<Id>,
    is_under_way: bool,
}

impl<T: Send + 'static, R: Send + 'static> Flight<T, R> {
    fn new(shared: &Arc<Shared<T, R>>, ids: Vec<Id>) -> Self {
        Self { shared: shared.clone(), ids, is_under_way: true }
    }

    /// Of writes: how many share a commit.
    fn tell_size(&self, rows: usize) {
        if !self.ids.is_empty() {
            metrics::histogram!("onlyonce_batch_size").record(u32::try_from(rows).unwrap_or(u32::MAX));
        }
    }

    async fn fly(mut self, items: Vec<T>, callers: Vec<oneshot::Sender<Result<R, Error>>>) {
        self.tell_size(items.len());
        let sent_at = now();
        let answers = self.shared.flush(items).await;
        let goes_on = lock(&self.shared.queue).answered(self.ids.len(), sent_at, now());
        if goes_on {
            self.land();
        }
        for (caller, answer) in callers.into_iter().zip(answers) {
            // A caller that went away does not want its answer.
            let _ = caller.send(answer);
        }
        if self.is_under_way {
            // Many of those that were told have their next write ready at once: a handler that was waited for, and is
            // done. They come along in the next batch, if it lets them have their turn.
            yield_now().await;
            self.land();
        }
    }

    fn land(&mut self) {
        self.is_under_way = false;
        self.shared.land(&self.ids);
    }
}

impl<T: Send + 'static, R: Send + 'static> Drop for Flight<T, R> {
    /// Dropped under way, as a runtime does when it shuts down: its callers find their channel closed. Where it was
    /// the last batch, nobody is left to carry what waits: that is answered the same way, and the queue is as new.
    fn drop(&mut self) {
        if !self.is_under_way {
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
