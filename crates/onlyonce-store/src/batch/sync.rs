//! What the batcher takes from its surroundings: in this crate's own tests, where `shuttle` plays every schedule, a
//! lock and tasks that shuttle schedules, and a clock that says what shuttle likes; otherwise those of the standard library
//! and of tokio.

use std::time::Duration;

#[cfg(not(test))]
pub(super) use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
pub(super) use shuttle::sync::{Mutex, MutexGuard};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the queue")
}

#[cfg(not(test))]
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

#[cfg(test)]
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    drop(shuttle::future::spawn(task));
}

#[cfg(not(test))]
pub(super) use tokio::task::yield_now;

#[cfg(test)]
pub(super) use shuttle::future::yield_now;

/// When something began.
#[cfg(not(test))]
#[derive(Clone, Copy)]
pub(super) struct Began(tokio::time::Instant);

#[cfg(not(test))]
impl Began {
    pub(super) fn now() -> Self {
        Self(tokio::time::Instant::now())
    }

    pub(super) fn took_less_than(self, span: Duration) -> bool {
        self.0.elapsed() < span
    }
}

#[cfg(test)]
#[derive(Clone, Copy)]
pub(super) struct Began;

#[cfg(test)]
impl Began {
    pub(super) fn now() -> Self {
        Self
    }

    pub(super) fn took_less_than(self, _: Duration) -> bool {
        shuttle::rand::Rng::gen_bool(&mut shuttle::rand::thread_rng(), 0.5)
    }
}
