//! What the batcher takes from its surroundings: in this crate's own tests, where `shuttle` plays every schedule, a
//! lock and tasks that shuttle schedules; otherwise those of the standard library and of tokio.

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
