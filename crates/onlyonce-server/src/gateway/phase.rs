//! The phases of a gateway's shutdown.

use tokio::sync::watch;

/// The current phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are served.
    Serving,
    /// Requests in flight are finished, and no new ones accepted.
    Finishing,
    /// Requests still in flight are abandoned.
    Ending,
}

/// Signals the phase `Ending`.
#[derive(Clone, Debug)]
pub(crate) struct Ending(watch::Receiver<Phase>);

impl Ending {
    pub(crate) fn of(phase: &watch::Sender<Phase>) -> Self {
        Self(phase.subscribe())
    }

    pub(crate) fn is_ending(&self) -> bool {
        *self.0.borrow() == Phase::Ending
    }

    /// Waits for it; also returns if the gateway was dropped.
    pub(crate) async fn wait(&self) {
        // Either result means that the gateway ends.
        let _ = self.0.clone().wait_for(|phase| *phase == Phase::Ending).await;
    }
}
