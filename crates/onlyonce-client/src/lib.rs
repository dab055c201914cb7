//! A client that keeps its key: a tower layer around any HTTP client.
//!
//! A retry is safe only under the key of the first try. This layer makes the key before anything is sent, and sends it with
//! every try of the same request.
//!
//! 1. POST, PATCH, PUT and DELETE get a key, 128 random bits, unless the request has one. Other methods pass untouched.
//! 2. With [`Retries::save_keys`] the key is saved before the first try. After a restart, send the request again with the saved key in
//!    its header: it is kept.
//! 3. Tried again: a connection that broke, a try that took longer than [`Retries::try_timeout`], and an answer that says so, by
//!    `retryable` in its problem document or by its status (409 and 425 with `Retry-After`, 429, 500, 502, 503, 504).
//! 4. Not tried again: every other answer. A key that was refused (400, 422, 409 without `Retry-After`) is the caller's mistake, and
//!    no retry corrects it.
//! 5. Between tries it waits as long as `Retry-After` says, otherwise with exponential back-off and jitter. It gives up after
//!    [`Retries::tries_max`] tries, or where the next one would begin later than [`Retries::give_up_after`]; then the last answer is
//!    returned, or an [`Error`] that names the key.
//!
//! The server must honour the key. Where it does not, a retry may run the request again: use this layer only for such servers.
//!
//! ```
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use onlyonce_client::Retries;
//! use tower::{Layer, Service, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Any client: hyper's, or reqwest's by `service_fn`. This one stands for a server that is busy at first.
//! let mut tries = 0;
//! let client = service_fn(move |request: http::Request<Full<Bytes>>| {
//!     tries += 1;
//!     let status = if tries == 1 { 503 } else { 201 };
//!     let key = request.headers()["idempotency-key"].clone();
//!     let answer = http::Response::builder().status(status).header("x-key", key).body(Full::<Bytes>::default());
//!     async move { answer }
//! });
//! let mut client = Retries::new().layer(client);
//! let payment = http::Request::post("http://127.0.0.1/payments").body(Full::from(r#"{"amount":1200}"#))?;
//! let answer = client.ready().await?.call(payment).await?;
//! assert_eq!(answer.status(), 201);
//! # Ok(())
//! # }
//! ```
//!
//! `reqwest` by it:
//!
//! ```no_run
//! # use bytes::Bytes;
//! # use onlyonce_client::Retries;
//! # use tower::{Layer, ServiceExt, service_fn};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let reqwest = reqwest::Client::new();
//! let client = service_fn(move |request: http::Request<Bytes>| {
//!     let reqwest = reqwest.clone();
//!     async move { reqwest.execute(request.try_into()?).await.map(http::Response::<reqwest::Body>::from) }
//! });
//! let client = Retries::new().layer(client);
//! let payment = http::Request::post("http://127.0.0.1:8080/payments").body(Bytes::from_static(b"{}"))?;
//! let answer = client.oneshot(payment).await?;
//! # Ok(())
//! # }
//! ```

mod answer;

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderValue, Method, Request, Response};
use http_body::Body;
use http_body_util::{Either, Full};
use tokio::time::{Instant, sleep, timeout};
use tower_layer::Layer;
use tower_service::Service;

use self::answer::{Next, judged};

/// An error of the user's own code.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

type Saving = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
type Save = dyn Fn(&Request<()>, &str) -> Saving + Send + Sync;

/// How requests are retried; the layer. See the [crate documentation](crate).
#[derive(Clone)]
pub struct Retries {
    header: HeaderName,
    tries_max: u32,
    pause_first: Duration,
    pause_max: Duration,
    give_up_after: Duration,
    try_timeout: Duration,
    save: Option<Arc<Save>>,
}

/// A client with retries; made by [`Retries`].
#[derive(Clone, Debug)]
pub struct KeepsKey<S> {
    retries: Retries,
    client: S,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error<E> {
    /// The key could not be saved. Nothing was sent.
    #[error("the key could not be saved, and nothing was sent: {0}")]
    NotSaved(#[source] BoxError),
    /// The last try broke. Whether it ran is not known: send the request again with this key.
    #[error("no answer, and it may have run; send it again with the key {key}: {source}")]
    Broke {
        /// The key of every try.
        key: String,
        /// What the client said of the last one.
        source: E,
    },
    /// The last try took too long. Whether it ran is not known: send the request again with this key.
    #[error("no answer within {after:?}, and it may have run; send it again with the key {key}")]
    TimedOut {
        /// The key of every try.
        key: String,
        /// How long the last try was waited for.
        after: Duration,
    },
    /// A request without a key failed: its method has none.
    #[error(transparent)]
    Unkeyed(E),
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            header: HeaderName::from_static("idempotency-key"),
            tries_max: 8,
            pause_first: Duration::from_millis(200),
            pause_max: Duration::from_secs(20),
            give_up_after: Duration::from_secs(120),
            try_timeout: Duration::from_secs(30),
            save: None,
        }
    }
}

impl Retries {
    /// Eight tries within two minutes, each of 30 s at most.
    pub fn new() -> Self {
        Self::default()
    }

    /// The header of the key, where the server wants another one than `Idempotency-Key`.
    #[must_use]
    pub fn header(self, header: HeaderName) -> Self {
        Self { header, ..self }
    }

    /// How often a request is sent at most; at least once.
    #[must_use]
    pub fn tries_max(self, tries_max: u32) -> Self {
        Self { tries_max: tries_max.max(1), ..self }
    }

    /// The pause after the first try, and the longest one. The pause is drawn between nothing and a bound that doubles.
    #[must_use]
    pub fn pause(self, first: Duration, max: Duration) -> Self {
        Self { pause_first: first, pause_max: max, ..self }
    }

    /// No try begins later than this after the first.
    #[must_use]
    pub fn give_up_after(self, give_up_after: Duration) -> Self {
        Self { give_up_after, ..self }
    }

    /// How long a try may take until its answer begins.
    #[must_use]
    pub fn try_timeout(self, try_timeout: Duration) -> Self {
        Self { try_timeout, ..self }
    }

    /// Called with each new key before the request is first sent, to keep it where it survives a restart. If it fails, nothing
    /// is sent.
    #[must_use]
    pub fn save_keys<F, Fut>(self, save: F) -> Self
    where
        F: Fn(&Request<()>, &str) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self { save: Some(Arc::new(move |request, key| Box::pin(save(request, key)))), ..self }
    }

    /// The pause before the next try.
    fn pause_after(&self, tries: u32) -> Duration {
        let doubled = self.pause_first.saturating_mul(1_u32.checked_shl(tries - 1).unwrap_or(u32::MAX));
        doubled.min(self.pause_max).mul_f64(rand::random())
    }
}

impl fmt::Debug for Retries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { header, tries_max, pause_first, pause_max, give_up_after, try_timeout, save } = self;
        f.debug_struct("Retries")
            .field("header", header)
            .field("tries_max", tries_max)
            .field("pause_first", pause_first)
            .field("pause_max", pause_max)
            .field("give_up_after", give_up_after)
            .field("try_timeout", try_timeout)
            .field("saves_keys", &save.is_some())
            .finish()
    }
}

impl<S> Layer<S> for Retries {
    type Service = KeepsKey<S>;

    fn layer(&self, client: S) -> KeepsKey<S> {
        KeepsKey { retries: self.clone(), client }
    }
}

impl<S, Q, B> Service<Request<Q>> for KeepsKey<S>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Send,
    S::Future: Send,
    Q: Clone + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = Error<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.client.poll_ready(context).map_err(Error::Unkeyed)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let clone = self.client.clone();
        // The one that was ready is the one that is called.
        let mut client = mem::replace(&mut self.client, clone);
        if !has_key(request.method()) {
            let answer = client.call(request);
            return Box::pin(async { Ok(answer.await.map_err(Error::Unkeyed)?.map(Either::Left)) });
        }
        Box::pin(keyed(self.retries.clone(), client, request))
    }
}

fn has_key(method: &Method) -> bool {
    [Method::POST, Method::PATCH, Method::PUT, Method::DELETE].contains(method)
}

/// All tries of a request, of which the client is ready for the first.
async fn keyed<S, Q, B>(
    retries: Retries,
    mut client: S,
    mut request: Request<Q>,
) -> Result<Response<Either<B, Full<Bytes>>>, Error<S::Error>>
where
    S: Service<Request<Q>, Response = Response<B>>,
    Q: Clone,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let key = own_key(&retries, &mut request).await.map_err(Error::NotSaved)?;
    let began = Instant::now();
    let mut tries = 0;
    loop {
        tries += 1;
        let outcome = match timeout(retries.try_timeout, attempt(&mut client, request.clone())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(Error::Broke { key: key.clone(), source }),
            Err(_) => Err(Error::TimedOut { key: key.clone(), after: retries.try_timeout }),
        };
        let pause = match &outcome {
            Ok((_, Next::Done)) => None,
            Ok((_, Next::Again(wanted))) => Some(wanted.unwrap_or_else(|| retries.pause_after(tries))),
            Err(_) => Some(retries.pause_after(tries)),
        };
        let pause = pause.filter(|pause| {
            tries < retries.tries_max && began.elapsed().saturating_add(*pause) <= retries.give_up_after
        });
        let Some(pause) = pause else { return outcome.map(|(answer, _)| answer) };
        // What was answered is not needed any more: its connection may be used again.
        drop(outcome);
        sleep(pause).await;
    }
}

/// One try, and what its answer asks for.
async fn attempt<S, Q, B>(
    client: &mut S,
    request: Request<Q>,
) -> Result<(Response<Either<B, Full<Bytes>>>, Next), S::Error>
where
    S: Service<Request<Q>, Response = Response<B>>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    poll_fn(|context| client.poll_ready(context)).await?;
    let answer = client.call(request).await?;
    Ok(judged(answer).await)
}

/// The key that the request has; or a new one, which is saved and put into its header.
async fn own_key<Q>(retries: &Retries, request: &mut Request<Q>) -> Result<String, BoxError> {
    if let Some(key) = request.headers().get(&retries.header) {
        return Ok(String::from_utf8_lossy(key.as_bytes()).into_owned());
    }
    let key = format!("{:032x}", rand::random::<u128>());
    let value = HeaderValue::try_from(&key)?;
    request.headers_mut().insert(retries.header.clone(), value);
    if let Some(save) = &retries.save {
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.headers_mut() = request.headers().clone();
        save(&head, &key).await?;
    }
    Ok(key)
}
