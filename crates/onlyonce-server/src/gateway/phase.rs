//! How far a gateway is on its way to its end.

use tokio::sync::watch;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are served.
    Serving,
    /// What is under way is finished, and nothing new is begun.
    Finishing,
    /// What is still under way is given up.
    Ending,
}

/// Tells when the end has come.
#[derive(Clone, Debug)]
pub(crate) struct Ending(watch::Receiver<Phase>);

impl Ending {
    pub(crate) fn of(phase: &watch::Sender<Phase>) -> Self {
        Self(phase.subscribe())
    }

    pub(crate) fn has_come(&self) -> bool {
        *self.0.borrow() == Phase::Ending
    }

    /// Ready once it has come; also where nobody is left who could say so.
    pub(crate) async fn come(&self) {
        // Either way it is over.
        let _ = self.0.clone().wait_for(|phase| *phase == Phase::Ending).await;
    }
}
