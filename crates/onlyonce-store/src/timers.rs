//! Time-outs that hardly ever come, and so cost hardly anything.
//!
//! To arm a timer and to disarm it is twice the runtime's lock and its wheel, which nobody else keeps warm: for a lone write,
//! with two time-outs around each of its statements, two per cent of the whole. So a timer is not disarmed when what it
//! watched has ended. It is kept as it is, and whoever needs one next takes it: as it was armed earlier it goes off
//! too early, and only then is it armed anew. On a busy node that is once in a span, and not once in a statement.
//!
//! 1. No time-out comes early or late for it: a timer that goes off early is looked at with the clock, and one that would go
//!    off late is armed anew at once.
//! 2. A kept timer that goes off wakes who had it last, once, for nothing.
//! 3. A timer belongs to the runtime it was made in. One of another runtime, which may be gone, is not used: tokio numbers its
//!    runtimes, and uses no number twice in a process.
//! 4. What is ready at once has no timer.

use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

/// The most timers that are kept: where so many wait at once, arming them is not what takes the time.
const KEPT_MAX: usize = 64;

/// Longer than anybody waits, and not so long that no clock could tell its end.
const SPAN_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Timers that are kept; see the module's documentation.
#[derive(Debug, Default)]
pub struct Timers(Mutex<Vec<Timer>>);

#[derive(Debug)]
struct Timer {
    sleep: Pin<Box<Sleep>>,
    runtime: Id,
}

impl Timers {
    /// What is asked for within a span; none past it. It is asked for here: handed in, it would have its room twice.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with a clock, where it is not ready at once.
    pub async fn within<F: Future>(&self, span: Duration, ask: impl FnOnce() -> F) -> Option<F::Output> {
        let mut asked = pin!(ask());
        let mut over = Over { timers: self, span, armed: None };
        std::future::poll_fn(|context| match asked.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => over.poll(context).map(|()| None),
        })
        .await
    }

    fn take(&self, ends_at: Instant) -> Timer {
        let runtime = Handle::current().id();
        let kept = self.kept().pop();
        match kept.filter(|timer| timer.runtime == runtime) {
            Some(mut timer) => {
                if timer.sleep.deadline() > ends_at {
                    timer.sleep.as_mut().reset(ends_at);
                }
                timer
            }
            None => Timer { sleep: Box::pin(sleep_until(ends_at)), runtime },
        }
    }

    fn keep(&self, timer: Timer) {
        let mut kept = self.kept();
        if kept.len() < KEPT_MAX {
            kept.push(timer);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Timer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a span, which begins when it is polled first.
struct Over<'a> {
    timers: &'a Timers,
    span: Duration,
    armed: Option<(Instant, Timer)>,
}

impl Over<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (ends_at, timer) = self.armed.get_or_insert_with(|| {
            let ends_at = Instant::now() + self.span.min(SPAN_MAX);
            (ends_at, self.timers.take(ends_at))
        });
        // What is waited for may have spent all that tokio lets a task do in one go: the time-out is looked at all the same.
        while pin!(unconstrained(timer.sleep.as_mut())).poll(context).is_ready() {
            if Instant::now() >= *ends_at {
                return Poll::Ready(());
            }
            timer.sleep.as_mut().reset(*ends_at);
        }
        Poll::Pending
    }
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if let Some((_, timer)) = self.armed.take() {
            self.timers.keep(timer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const SPAN: Duration = Duration::from_secs(5);
    const STEP: Duration = Duration::from_millis(700);

    /// How long it took to time out.
    async fn timed_out(timers: &Timers, span: Duration) -> Duration {
        let began_at = Instant::now();
        assert_eq!(timers.within(span, pending::<()>).await, None);
        began_at.elapsed()
    }

    fn is_due(taken: Duration, span: Duration) -> bool {
        // The runtime's wheel turns once in a millisecond.
        (span..=span + Duration::from_millis(1)).contains(&taken)
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_out_comes_when_it_is_due_however_its_timer_was_armed_before() {
        let timers = Timers::default();
        for span in [SPAN, SPAN / 2, SPAN, SPAN * 2] {
            // Left armed by what ended in time: earlier than it is needed next, later, and gone off.
            for rest in [Duration::ZERO, STEP, SPAN * 3] {
                let ends = async || tokio::time::sleep(STEP).await;
                assert_eq!(timers.within(SPAN, ends).await, Some(()));
                tokio::time::sleep(rest).await;
                let taken = timed_out(&timers, span).await;
                assert!(is_due(taken, span), "{taken:?} of {span:?} after {rest:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_behind_the_other_share_a_timer_and_those_at_once_have_their_own() {
        let timers = Timers::default();
        for _ in 0..20 {
            timers.within(SPAN, async || tokio::time::sleep(STEP).await).await;
        }
        assert_eq!(timers.kept().len(), 1);
        let (one, other) = tokio::join!(timed_out(&timers, SPAN), timed_out(&timers, SPAN / 2));
        assert!(is_due(one, SPAN) && is_due(other, SPAN / 2), "{one:?} {other:?}");
        assert_eq!(timers.kept().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_span_without_an_end_is_waited_for() {
        let timers = Timers::default();
        let ends = async || tokio::time::sleep(SPAN).await;
        assert_eq!(timers.within(Duration::MAX, ends).await, Some(()));
    }

    #[tokio::test]
    async fn what_is_ready_at_once_has_no_timer() {
        let timers = Timers::default();
        assert_eq!(timers.within(SPAN, || ready(7)).await, Some(7));
        assert!(timers.kept().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_kept_than_is_of_use() {
        let timers = std::sync::Arc::new(Timers::default());
        let tasks: Vec<_> = (0..KEPT_MAX * 2)
            .map(|_| {
                tokio::spawn({
                    let timers = timers.clone();
                    async move { timed_out(&timers, SPAN).await }
                })
            })
            .collect();
        for task in tasks {
            let taken = task.await.unwrap();
            assert!(is_due(taken, SPAN), "{taken:?}");
        }
        assert_eq!(timers.kept().len(), KEPT_MAX);
    }

    #[test]
    fn a_timer_of_a_runtime_that_is_gone_is_not_used() {
        let timers = Timers::default();
        for _ in 0..3 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let span = Duration::from_millis(5);
            runtime.block_on(async {
                let ends = async || tokio::task::yield_now().await;
                assert_eq!(timers.within(SPAN, ends).await, Some(()));
                assert!(timed_out(&timers, span).await >= span);
            });
        }
    }

    /// A task that never lets others have their turn is stopped by tokio's budget, and is timed out all the same.
    #[tokio::test]
    async fn who_spends_all_of_their_turn_is_timed_out_all_the_same() {
        let timers = Timers::default();
        let span = Duration::from_millis(20);
        let busy = async || {
            loop {
                tokio::task::consume_budget().await;
            }
        };
        assert_eq!(timers.within::<_>(span, busy).await, None::<()>);
    }
}
