//! The server under test: the one thing that differs between suites.

use std::net::SocketAddr;
use std::sync::Arc;

use super::data::{Case, Suite};
use super::store::{Engine, Faulty};
use super::upstream::Shared;

/// A server under test, with its own handle of the case's store.
pub(crate) trait Node: Sized {
    /// The prefix of its tests' names.
    const NAME: &'static str;
    /// Which cases are for it, and whether U is behind a socket.
    const SUITE: Suite;

    /// Starts it. `socket` is U's address, if U is behind one.
    async fn start(case: &Case, store: Arc<Faulty>, upstream: &Shared, socket: Option<SocketAddr>) -> Self;

    fn address(&self) -> SocketAddr;

    /// Stops accepting; running requests continue.
    fn stop(&mut self);

    /// Waits until the requests that ran at the stop have ended and everything is written.
    async fn stopped(&mut self);

    /// Why a case cannot run on it.
    fn obstacle(_: &Case) -> Option<&'static str> {
        None
    }

    /// The case, adapted to it.
    fn fitted(case: Case) -> Case {
        case
    }

    /// The engine of its store.
    fn store(engine: Engine) -> Engine {
        engine
    }

    /// The token of `credential`'s owner.
    fn token(_: &Case, credential: &str, _subject: &str) -> String {
        credential.to_owned()
    }

    /// Logs from outside this process.
    fn logs(&self) -> String {
        String::new()
    }
}
