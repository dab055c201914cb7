//! Whether a write looks out for what hardly ever happens. Only those do that follow one who met it.
//!
//! - **A row that somebody holds.** To skip such rows a batch looks each row up and locks it before it is written: a tenth of
//!   the server's work. One that meets such a row has to give up and is sent again.
//! - **A key that is taken**, and was not tried here before (`tried.rs`). To show in the same trip what stands there, a lone
//!   insert takes a look along, which is a fifteenth of a request's CPU. One that is lost without it looks in a trip of its own.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Who has met one may well meet another.
const CAREFUL_FOR: Duration = Duration::from_secs(60);

/// How a write is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    /// Of a batch: it waits for a row that somebody holds, and gives up soon. Of a lone insert: it does not look.
    None,
    /// Of a batch: it skips such rows. Of a lone insert: a look goes along.
    Taken,
}

/// When it was last met.
#[derive(Debug, Default)]
pub(super) struct Lately(Mutex<Option<Instant>>);

impl Lately {
    pub(super) fn met(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// How the next one is sent.
    pub(super) fn care(&self) -> Care {
        let met_at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if met_at.is_some_and(|at| at.elapsed() < CAREFUL_FOR) { Care::Taken } else { Care::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn care_is_taken_for_a_minute_after_it_was_met() {
        let lately = Lately::default();
        assert_eq!(lately.care(), Care::None);
        for _ in 0..2 {
            lately.met();
            tokio::time::advance(CAREFUL_FOR / 2).await;
            assert_eq!(lately.care(), Care::Taken);
        }
        tokio::time::advance(CAREFUL_FOR / 2).await;
        assert_eq!(lately.care(), Care::None);
    }
}
