//! Tasks that outlive the request that began them, and somebody who waits for them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Work that goes on behind the requests: attempts whose client hung up, writes the store did not take yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks(Arc<Counted>);

#[derive(Debug, Default)]
struct Counted {
    open: AtomicUsize,
    none: Notify,
}

impl Tasks {
    /// Goes on behind the request. Outside a runtime there is nowhere to go on: the lease lapses, and the rules say
    /// what then holds.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let open = Open::new(self.0.clone());
        runtime.spawn(async move {
            task.await;
            drop(open);
        });
    }

    /// The same for a request whose client is gone: its answer has nobody to go to.
    pub(crate) fn spawn_answering<T: 'static>(&self, answering: Pin<Box<dyn Future<Output = T> + Send>>) {
        self.spawn(async move { drop(answering.await) });
    }

    /// Ready once nothing is open.
    pub(crate) async fn idle(&self) {
        loop {
            let none = self.0.none.notified();
            if self.0.open.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }
}

/// Counts itself, also where its task is dropped or panics.
struct Open(Arc<Counted>);

impl Open {
    fn new(counted: Arc<Counted>) -> Self {
        counted.open.fetch_add(1, Ordering::AcqRel);
        Self(counted)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
