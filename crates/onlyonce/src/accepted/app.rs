//! A whole service, with the layer in it, as what runs accepted work.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;

use bytes::Bytes;
use http::{Request, Response};
use tower_service::Service;

use super::{Running, Runs, Work};
#[cfg(doc)]
use crate::Engine;

/// Hands requests of accepted work to a service that has the layer in it: an axum router, for example. Middleware in front of
/// the layer sees them as it sees any other request. The layer runs them as accepted work also where its policy has changed.
///
/// Keep the route under the layer while accepted work waits for it. A handler that is reached without the layer runs without
/// a claim: the log says so as an error, and the work is not handed over again before the next call of
/// [`Engine::run_accepted_with`] or the next start.
#[derive(Clone)]
pub struct App<S, B> {
    service: S,
    body: PhantomData<fn() -> B>,
}

impl<S, B> App<S, B> {
    /// This service, whose requests have bodies of type `B`.
    pub fn new(service: S) -> Self {
        Self { service, body: PhantomData }
    }
}

impl<S, B, R> Runs for App<S, B>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: From<Bytes> + Send + 'static,
    R: Send,
{
    fn run(&self, work: Work) -> Result<Running, Work> {
        let mut service = self.service.clone();
        Ok(Box::pin(async move {
            let Ok(()) = poll_fn(|cx| service.poll_ready(cx)).await;
            let Ok(response) = service.call(work.clone().into_request()).await;
            work.answered(response.status());
        }))
    }
}

impl<S, B> fmt::Debug for App<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").finish_non_exhaustive()
    }
}
