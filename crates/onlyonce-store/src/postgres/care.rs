//! Whether batches look out for rows that somebody holds.
//!
//! To skip such rows a batch looks each row up and locks it before it is written: a tenth of the server's work, for what hardly
//! ever happens. So only those look out that follow one who met such a row, which had to give up and be sent again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Who has met a row that somebody holds may well meet another.
const CAREFUL_FOR: Duration = Duration::from_secs(60);

/// How a batch is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    /// It waits for a row that somebody holds, and gives up soon.
    None,
    /// It skips such rows.
    Taken,
}

/// When a batch last met a row that somebody held.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<Option<Instant>>);

impl Held {
    /// Somebody was met.
    pub(super) fn met(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// How the next batch is sent.
    pub(super) fn care(&self) -> Care {
        let met_at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if met_at.is_some_and(|at| at.elapsed() < CAREFUL_FOR) { Care::Taken } else { Care::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn care_is_taken_for_a_minute_after_somebody_was_met() {
        let held = Held::default();
        assert_eq!(held.care(), Care::None);
        for _ in 0..2 {
            held.met();
            tokio::time::advance(CAREFUL_FOR / 2).await;
            assert_eq!(held.care(), Care::Taken);
        }
        tokio::time::advance(CAREFUL_FOR / 2).await;
        assert_eq!(held.care(), Care::None);
    }
}
