//! The first failure after which nothing may be trusted any more.
//!
//! When a sync fails, the system may drop the pages it could not write and mark them clean: the next sync succeeds, and
//! what was in them is gone. SQLite would then take a checkpoint for done and begin its WAL anew, over the only copy of
//! acknowledged answers. So the first failed sync is final. No checkpoint is made after it and nothing is written; the WAL
//! keeps all that was acknowledged, and the next process recovers from it. A file that SQLite calls damaged is treated
//! the same way.

use std::sync::{Arc, OnceLock};

use super::failure::Failure;
use crate::ErrorKind;

/// Shared by all that write to the file. Set once, never reset.
#[derive(Clone, Debug, Default)]
pub(super) struct Latch(Arc<OnceLock<Failure>>);

impl Latch {
    /// Refuses to go on once it is set.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.failure().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// What it was set by.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.0.get()
    }

    /// Sets it where this failure is one of those after which nothing may be trusted.
    pub(super) fn judge(&self, failure: &Failure) {
        if failure.is_failed_sync {
            self.sync_failed(&failure.message);
        } else if failure.kind == ErrorKind::Corrupt && self.0.set(failure.clone()).is_ok() {
            tracing::error!(
                error = failure.message,
                "the store file is damaged: nothing more is written to it"
            );
        }
    }

    /// A sync has failed.
    pub(super) fn sync_failed(&self, message: &str) {
        let message = format!(
            "{message}; a sync of the store file failed, so nothing more is written: everything acknowledged is in its WAL; \
             check the disk, then restart this process, which recovers from the WAL"
        );
        if self.0.set(Failure::new(ErrorKind::Unavailable, message.clone())).is_ok() {
            tracing::error!(
                error = message,
                "a sync of the store file failed: no more checkpoints and no more writes"
            );
        }
    }
}
