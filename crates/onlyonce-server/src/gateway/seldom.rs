//! Log lines that clients can cause: written seldom, with how often there was reason to.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

/// At most one line in this time.
const EVERY: Duration = Duration::from_secs(10);

/// Something that may happen often.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    count: u64,
    logged_at: Option<Instant>,
}

impl Seldom {
    /// It happened. How often it did since the last line, if one is due.
    pub(crate) fn due(&self) -> Option<u64> {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.count += 1;
        if times.logged_at.is_some_and(|logged_at| logged_at.elapsed() < EVERY) {
            return None;
        }
        times.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut times.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L06
    #[tokio::test]
    async fn what_happens_often_is_logged_seldom() {
        tokio::time::pause();
        let seldom = Seldom::default();
        assert_eq!(seldom.due(), Some(1));
        assert!((0..1000).all(|_| seldom.due().is_none()));
        tokio::time::advance(EVERY).await;
        assert_eq!(seldom.due(), Some(1001));
    }
}
