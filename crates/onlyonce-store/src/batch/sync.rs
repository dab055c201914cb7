//! What the batcher takes from its surroundings: in this crate's own tests, where `shuttle` plays every schedule, a
//! lock and tasks that shuttle schedules, and a clock that says what shuttle likes; otherwise those of the standard library
//! and of tokio.

use std::time::Instant;

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

#[cfg(not(test))]
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// About as late as it may be or not be for a batch to be called prompt.
#[cfg(test)]
pub(super) fn now() -> Instant {
    static BEGINNING: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    let millis = shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 0..3);
    *BEGINNING + std::time::Duration::from_millis(millis)
}
