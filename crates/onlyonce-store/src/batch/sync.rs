//! The lock, tasks and clock of the batcher: shuttle's in this crate's unit tests, where `shuttle` runs many schedules and
//! the clock is random; otherwise those of the standard library and tokio.

#[cfg(test)]
use std::sync::LazyLock;
#[cfg(test)]
use std::time::Duration;
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

/// A random time around the limit below which a batch is prompt.
#[cfg(test)]
pub(super) fn now() -> Instant {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    let millis = shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 0..3);
    *BEGINNING + Duration::from_millis(millis)
}
