//! Captures the log of a case, to be searched.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Level;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

/// Our own crates at the trace level, others at an operator's level.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    /// Captures what this thread logs while the guard lives. A case runs on one thread.
    pub(crate) fn capture(&self) -> DefaultGuard {
        let targets = Targets::new().with_default(Level::INFO).with_targets(
            ["onlyonce", "onlyonce_core", "onlyonce_server", "onlyonce_store"]
                .map(|target| (target, Level::TRACE)),
        );
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(self.clone());
        tracing::subscriber::set_default(tracing_subscriber::registry().with(lines).with(targets))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
