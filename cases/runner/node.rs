//! What a case runs on: the one thing that differs from suite to suite.

use std::net::SocketAddr;
use std::sync::Arc;

use super::data::{Case, Suite};
use super::store::{Engine, Faulty};
use super::upstream::Shared;

/// A server that is under test, with a way of its own to the case's store.
pub(crate) trait Node: Sized {
    /// The names of its tests begin with it.
    const NAME: &'static str;
    /// Which cases are for it, and whether U is behind a socket.
    const SUITE: Suite;

    /// One that serves. `socket` is where U is, for those whose U is behind one.
    async fn start(case: &Case, store: Arc<Faulty>, upstream: &Shared, socket: Option<SocketAddr>) -> Self;

    fn address(&self) -> SocketAddr;

    /// Stops accepting; what runs goes on.
    fn stop(&mut self);

    /// Ready once what ran when it was stopped has ended, and nothing is left to be written.
    async fn stopped(&mut self);

    /// Why a case cannot be run on it.
    fn obstacle(_: &Case) -> Option<&'static str> {
        None
    }

    /// The case as it can be run on it.
    fn fitted(case: Case) -> Case {
        case
    }

    /// The engine of the store it is handed.
    fn store(engine: Engine) -> Engine {
        engine
    }

    /// The token that the owner of `credential` shows.
    fn token(_: &Case, credential: &str, _subject: &str) -> String {
        credential.to_owned()
    }

    /// What it has logged elsewhere than in this process.
    fn logs(&self) -> String {
        String::new()
    }
}
