//! What a client's connection is doing, for its time-outs.
//!
//! 1. A connection without a request is *idle* since its last answer was sent, and is closed after `idle_timeout`.
//! 2. The head of a request, or the preface of HTTP/2, has begun with its first byte, and must be whole within `head_timeout`.
//! 3. A client that takes nothing of what is sent to it for `body_timeout` is cut off; in HTTP/2, nothing of one answer.
//! 4. A request whose body is waited for has a time-out of its own (`inbound.rs`).
//!
//! Requests only write down what they do. The connection's one timer comes round, looks, and sleeps until something would be
//! too late: no request starts or stops a timer. The numbers are read by the listener too, which closes the connection that has been
//! idle longest when there is no place for another.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use tokio::time::Instant;

use crate::config::Listener;

/// No moment.
const NEVER: u64 = u64::MAX;

/// What one connection is doing. Moments are milliseconds after `since`.
#[derive(Debug)]
pub(crate) struct Activity {
    since: Instant,
    /// Requests that are not answered whole.
    under_way: AtomicUsize,
    /// Those of them whose client is to send more of the body.
    waiting: AtomicUsize,
    /// Keyed requests that are not answered, those included whose client is gone.
    running: AtomicUsize,
    idle_ms: AtomicU64,
    /// When the first byte of the head came that is being read.
    head_ms: AtomicU64,
    /// Since when nothing could be written.
    stalled_ms: AtomicU64,
    /// Since when each answer of several pieces has not been asked for the next.
    untaken: Mutex<Vec<Arc<AtomicU64>>>,
    /// A body did not come in time.
    is_late: AtomicBool,
    /// It is closed by us: what its client still sends does not count.
    is_cut: AtomicBool,
    /// The body of the request that is under way, where nobody asked for it.
    unread: Mutex<Unread>,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    Head,
    Idle,
    Stalled,
}

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            under_way: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            idle_ms: AtomicU64::new(0),
            head_ms: AtomicU64::new(NEVER),
            stalled_ms: AtomicU64::new(NEVER),
            untaken: Mutex::default(),
            is_late: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            unread: Mutex::default(),
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }

    /// Bytes of a head came, unless a request is under way, which they may belong to.
    pub(crate) fn head_moves(&self) {
        if self.under_way.load(Ordering::Relaxed) == 0 && self.head_ms.load(Ordering::Relaxed) == NEVER {
            self.head_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// The head is whole.
    pub(crate) fn head_ends(&self) {
        self.head_ms.store(NEVER, Ordering::Relaxed);
    }

    /// A piece of a body came. Behind the answer to its request, it is no head, and its connection is not idle.
    pub(crate) fn body_moves(&self) {
        if !self.is_under_way() {
            self.head_ends();
            self.idle_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// Nothing can be written.
    pub(crate) fn stalls(&self) {
        if self.stalled_ms.load(Ordering::Relaxed) == NEVER {
            self.stalled_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    pub(crate) fn wrote(&self) {
        self.stalled_ms.store(NEVER, Ordering::Relaxed);
    }

    /// Since when nothing can be written, or a piece of an answer waits to be taken.
    fn stalled_since(&self) -> Option<u64> {
        let mut untaken = self.untaken.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody else holds has ended.
        untaken.retain(|since| Arc::strong_count(since) > 1);
        let pieces = untaken.iter().map(|since| since.load(Ordering::Relaxed));
        pieces.chain([self.stalled_ms.load(Ordering::Relaxed)]).min().filter(|ms| *ms != NEVER)
    }

    /// A request, until it is answered whole.
    pub(crate) fn request(self: &Arc<Self>) -> UnderWay {
        self.head_ends();
        if self.under_way.fetch_add(1, Ordering::Relaxed) == 0 {
            // While its body is waited for, it is idle since now.
            self.idle_ms.store(self.now_ms(), Ordering::Relaxed);
        }
        // One that came before its client heard of the end is answered.
        self.is_cut.store(false, Ordering::Relaxed);
        UnderWay(self.clone())
    }

    /// A keyed request, until it is answered or has gone on without its client to its end; none above `max`.
    pub(crate) fn run(self: &Arc<Self>, max: usize) -> Option<Running> {
        if self.running.fetch_add(1, Ordering::Relaxed) >= max {
            self.running.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Running(Arc::new(Counted(self.clone()))))
    }

    /// The client is to send more of a body.
    pub(crate) fn waits(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn goes_on(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// A body did not come in time.
    pub(crate) fn is_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Whether a body did not come in time, since this was last asked.
    pub(crate) fn was_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed) && self.is_late.swap(false, Ordering::Relaxed)
    }

    /// The request that begins now has a body, which is left here where nobody asks for it.
    pub(crate) fn await_unread(&self) {
        *self.unread() = Unread::Awaited;
    }

    /// A body that nobody asked for. Only that of the request that is under way is kept.
    pub(crate) fn leave_unread(&self, body: Incoming) {
        let mut unread = self.unread();
        if matches!(*unread, Unread::Awaited) {
            *unread = Unread::Left(body);
        }
    }

    /// The body that was left, if any. None is kept after this.
    pub(crate) fn take_unread(&self) -> Option<Incoming> {
        match std::mem::take(&mut *self.unread()) {
            Unread::Left(body) => Some(body),
            Unread::None | Unread::Awaited => None,
        }
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is to be closed at once.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Since when it has waited for its client alone; none while anything is done for it.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let is_idle = self.under_way.load(Ordering::Relaxed) <= self.waiting.load(Ordering::Relaxed);
        is_idle.then(|| self.since + Duration::from_millis(self.idle_ms.load(Ordering::Relaxed)))
    }

    /// When to look again, or why it is to be closed now.
    pub(crate) fn judge(&self, listener: &Listener) -> Result<Instant, Overdue> {
        let (now, is_under_way) = (Instant::now(), self.is_under_way());
        let at = |ms: &AtomicU64| Some(ms.load(Ordering::Relaxed)).filter(|ms| *ms != NEVER);
        let stalled = self.stalled_since().map(|ms| (ms, listener.body_timeout, Overdue::Stalled));
        let head = at(&self.head_ms).map(|ms| (ms, listener.head_timeout, Overdue::Head));
        let idle = at(&self.idle_ms).map(|ms| (ms, listener.idle_timeout, Overdue::Idle));
        let overdue = stalled.or(if is_under_way { None } else { head.or(idle) });
        // Never later than the shortest time-out after whatever begins next.
        let shortest = listener.head_timeout.min(listener.body_timeout).min(listener.idle_timeout);
        let Some((ms, timeout, why)) = overdue else { return Ok(now + shortest) };
        let due = self.since + Duration::from_millis(ms) + timeout;
        if due <= now { Err(why) } else { Ok(due.min(now + shortest)) }
    }
}

/// The body of a request that nobody asked for.
#[derive(Debug, Default)]
enum Unread {
    /// There is none, or it is not kept.
    #[default]
    None,
    /// It is kept if it is left.
    Awaited,
    Left(Incoming),
}

/// A request that is not answered whole.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Activity>);

impl UnderWay {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.0
    }
}

/// An answer of several pieces, each of which is to be taken in time.
#[derive(Debug)]
pub(crate) struct Pieces {
    activity: Arc<Activity>,
    since: Arc<AtomicU64>,
}

impl Pieces {
    pub(crate) fn of(under_way: &UnderWay) -> Self {
        let (activity, since) = (under_way.0.clone(), Arc::new(AtomicU64::new(NEVER)));
        activity.untaken.lock().unwrap_or_else(PoisonError::into_inner).push(since.clone());
        Self { activity, since }
    }

    /// A piece was given.
    pub(crate) fn gives(&self) {
        self.since.store(self.activity.now_ms(), Ordering::Relaxed);
    }

    /// The next one is asked for.
    pub(crate) fn is_asked(&self) {
        self.since.store(NEVER, Ordering::Relaxed);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.idle_ms.store(self.0.now_ms(), Ordering::Relaxed);
        }
    }
}

/// A keyed request that runs, whether or not its client is still there. It goes with the request, in its extensions.
#[derive(Clone, Debug)]
pub(crate) struct Running(#[expect(dead_code, reason = "it is counted while it is held")] Arc<Counted>);

#[derive(Debug)]
struct Counted(Arc<Activity>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, pause};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn listener() -> Listener {
        Listener {
            head_timeout: 2 * SECOND,
            body_timeout: 3 * SECOND,
            idle_timeout: 5 * SECOND,
            ..Listener::default()
        }
    }

    /// Follows the connection's timer, and says after how long the connection was closed.
    async fn closed(activity: &Activity) -> (Overdue, Duration) {
        let began = Instant::now();
        loop {
            match activity.judge(&listener()) {
                Ok(next) => advance(next.saturating_duration_since(Instant::now())).await,
                Err(why) => return (why, began.elapsed()),
            }
        }
    }

    /// L06
    #[tokio::test]
    async fn a_connection_is_closed_when_its_head_its_answer_or_its_next_request_is_too_late() {
        pause();
        let activity = Activity::new();
        assert_eq!(closed(&activity).await, (Overdue::Idle, 5 * SECOND));
        let activity = Activity::new();
        activity.head_moves();
        advance(SECOND).await;
        activity.head_moves();
        assert_eq!(closed(&activity).await, (Overdue::Head, SECOND), "a byte a second gains nothing");
        let activity = Activity::new();
        let request = activity.request();
        activity.stalls();
        assert_eq!(closed(&activity).await, (Overdue::Stalled, 3 * SECOND));
        activity.wrote();
        let pieces = Pieces::of(&request);
        pieces.gives();
        assert_eq!(closed(&activity).await, (Overdue::Stalled, 3 * SECOND));
        pieces.is_asked();
        advance(100 * SECOND).await;
        assert!(activity.judge(&listener()).is_ok(), "the service may take any time");
        pieces.gives();
        drop(pieces);
        advance(100 * SECOND).await;
        assert!(activity.judge(&listener()).is_ok(), "a request may take any time");
        drop(request);
        assert_eq!(closed(&activity).await, (Overdue::Idle, 5 * SECOND));
    }

    /// L06
    #[tokio::test]
    async fn whoever_waits_for_its_client_alone_is_idle() {
        let activity = Activity::new();
        assert!(activity.idle_since().is_some());
        let (one, other) = (activity.request(), activity.request());
        assert_eq!(activity.idle_since(), None);
        activity.waits();
        assert_eq!(activity.idle_since(), None);
        drop(other);
        assert!(activity.idle_since().is_some());
        activity.goes_on();
        assert_eq!(activity.idle_since(), None);
        drop(one);
        assert!(activity.idle_since().is_some());
    }

    /// L06
    #[tokio::test]
    async fn a_connection_that_was_just_used_again_is_not_the_longest_idle() {
        pause();
        let activity = Activity::new();
        drop(activity.request());
        advance(10 * SECOND).await;
        let _request = activity.request();
        activity.waits();
        assert_eq!(activity.idle_since(), Some(Instant::now()));
    }

    /// L06
    #[tokio::test]
    async fn a_body_that_moves_behind_its_answer_may_take_any_time() {
        pause();
        let activity = Activity::new();
        drop(activity.request());
        for _ in 0..10 {
            activity.head_moves();
            activity.body_moves();
            advance(4 * SECOND).await;
            assert!(activity.judge(&listener()).is_ok());
        }
        assert_eq!(closed(&activity).await, (Overdue::Idle, SECOND), "not where it stands still");
    }

    /// L06
    #[test]
    fn what_runs_is_counted_until_its_last_holder_is_gone() {
        let activity = Activity::new();
        let first = activity.run(2).unwrap();
        let second = activity.run(2).unwrap();
        assert!(activity.run(2).is_none());
        let held = first.clone();
        drop(first);
        assert!(activity.run(2).is_none());
        drop(held);
        assert!(activity.run(2).is_some());
        drop(second);
    }
}
