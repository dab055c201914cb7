//! Webhooks: a provider tells what became of a request whose outcome is unknown.
//!
//! A webhook is believed for its signature and for nothing else: no token, no address. It is served at
//! `POST /v1/webhooks/{source}` of the admin port and, where its source is `public`, at
//! `POST /_onlyonce/webhooks/{source}` of the gateway's.
//!
//! In this order, and the first that fails is the answer; what is refused has changed nothing:
//!
//! 1. The source is known (404). On the gateway's port, one that is not public does not exist.
//! 2. The body is not too large (413), and there is room for it beside all others (429).
//! 3. The signature is right (401), and its time within the tolerance (401): `signature.rs`.
//! 4. The body is JSON, and what the pointers lead to can be used (400): `event.rs`.
//! 5. It names one record (422).
//!
//! What then follows from it is the engine's to say ([`Engine::hear`]).

mod answer;
mod event;
pub(crate) mod preset;
mod recent;
pub(crate) mod signature;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::any;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body::Body as HttpBody;
use http_body_util::BodyExt;
use metrics::{counter, describe_counter};
use onlyonce::Engine;
use onlyonce::operate::{Heard, Statement, Subject};
use onlyonce::record::Verdict;
use onlyonce::time::Timestamp;
use tokio::time::timeout;

use self::answer::{Refusal, Told};
use self::event::{Beside, Event, Says, Unusable};
use self::recent::{Fingerprint, Recent};
use self::signature::Distrust;
use crate::config::{Config, Webhook};
use crate::whole::{self, Unread};

/// What a body may have beyond the largest answer that is kept.
const BYTES_BESIDE_ANSWER: u64 = 64 << 10;
/// How long a body may take to come.
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// How much of a body that is too large is read to its end.
const DRAINED_MAX: usize = 8 << 20;
const DRAINED_WITHIN: Duration = Duration::from_secs(2);
const COUNTER: &str = "onlyonce_webhooks_total";

/// The port a webhook came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Admin,
    Gateway,
}

/// Takes webhooks, on both ports, with the settings as they are now.
pub(crate) struct Webhooks {
    engine: Arc<Engine>,
    sources: RwLock<Arc<Sources>>,
    recent: Recent,
    /// How many bytes of bodies are held, of all webhooks together.
    held: AtomicU64,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").finish_non_exhaustive()
    }
}

/// The sources by name.
struct Sources {
    by_name: HashMap<Arc<str>, Webhook>,
    bytes_max: u64,
    /// Of all bodies together.
    held_max: u64,
}

impl Sources {
    fn new(config: &Config) -> Self {
        let routes = config.routes.iter().chain([&config.default]);
        let largest = routes.map(|route| route.policy.response_bytes_max).max().unwrap_or_default();
        let by_name: HashMap<_, _> =
            config.webhooks.iter().map(|source| (source.name.clone(), source.clone())).collect();
        by_name.keys().for_each(start_at_zero);
        let bytes_max = largest.saturating_add(BYTES_BESIDE_ANSWER);
        // One always has room: a buffer is up to twice as large as what is in it.
        let held_max = config.listener.buffered_bytes_max.max(bytes_max.saturating_mul(2));
        Self { by_name, bytes_max, held_max }
    }
}

/// Registers counters at zero: an alert on a missing counter never fires.
fn start_at_zero(source: &Arc<str>) {
    describe_counter!(COUNTER, "Webhooks by their source in the settings and what became of them.");
    for result in answer::Result::ALL {
        counter!(COUNTER, "source" => source.to_string(), "result" => result.as_str()).absolute(0);
    }
    // Sources that are not known have no name.
    counter!(COUNTER, "source" => "", "result" => answer::Result::Refused.as_str()).absolute(0);
}

/// The routes of the admin port. Neither a token nor Host or Origin is looked at: the signature counts.
pub(crate) fn router(webhooks: Arc<Webhooks>) -> Router {
    async fn take(
        State(webhooks): State<Arc<Webhooks>>,
        Path(source): Path<String>,
        request: axum::extract::Request,
    ) -> Response<axum::body::Body> {
        webhooks.take(Port::Admin, &source, request).await.map(axum::body::Body::from)
    }
    Router::new().route("/v1/webhooks/{source}", any(take)).with_state(webhooks)
}

/// The source that a path of the gateway's port names.
pub(crate) fn named_in(path: &str) -> Option<&str> {
    path.strip_prefix("/_onlyonce/webhooks/").filter(|name| !name.is_empty() && !name.contains('/'))
}

impl Webhooks {
    pub(crate) fn new(engine: Arc<Engine>, config: &Config) -> Arc<Self> {
        let sources = RwLock::new(Arc::new(Sources::new(config)));
        Arc::new(Self { engine, sources, recent: Recent::default(), held: AtomicU64::new(0) })
    }

    /// Goes by these settings from the next webhook on.
    pub(crate) fn reload(&self, config: &Config) {
        *self.sources.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Sources::new(config));
    }

    /// Answers a request to the path of a source.
    pub(crate) async fn take<B>(&self, port: Port, name: &str, request: Request<B>) -> Response<Bytes>
    where
        B: HttpBody<Data = Bytes>,
    {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner).clone();
        let is_served = |source: &&Webhook| port == Port::Admin || source.public;
        let Some(source) = sources.by_name.get(name).filter(is_served) else {
            // The name is somebody else's: it is no label.
            counter!(COUNTER, "source" => "", "result" => answer::Result::Refused.as_str()).increment(1);
            return Refusal::SourceUnknown.response();
        };
        let (result, response) = match self.judge(source, request, &sources).await {
            Ok(told) => {
                tracing::debug!(
                    source = name,
                    result = told.result.as_str(),
                    why = told.why,
                    "a webhook came"
                );
                (told.result, told.response())
            }
            Err(refusal) => {
                tracing::info!(source = name, code = refusal.code(), ?refusal, "a webhook was refused");
                (answer::Result::Refused, refusal.response())
            }
        };
        counter!(COUNTER, "source" => name.to_owned(), "result" => result.as_str()).increment(1);
        response
    }

    async fn judge<B>(
        &self,
        source: &Webhook,
        request: Request<B>,
        sources: &Sources,
    ) -> Result<Told, Refusal>
    where
        B: HttpBody<Data = Bytes>,
    {
        let (Parts { method, headers, .. }, body) = request.into_parts();
        if method != Method::POST {
            return Err(Refusal::Method);
        }
        let mut share = Share { held: &self.held, max: sources.held_max, bytes: 0 };
        let body = read(body, sources.bytes_max, &mut share).await?;
        self.hear(source, &headers, &body).await
    }

    async fn hear(&self, source: &Webhook, headers: &HeaderMap, body: &[u8]) -> Result<Told, Refusal> {
        let signed = signature::verify(source, headers, body, now()).map_err(|distrust| match distrust {
            Distrust::Invalid => Refusal::SignatureInvalid,
            Distrust::TooOld => Refusal::TooOld,
        })?;
        let event = match event::read(source, signed, body) {
            Ok(event) => event,
            Err(Unusable::Foreign) => return Ok(Told::ignored("it names no record of ours")),
            Err(Unusable::Malformed(detail)) => return Err(Refusal::Malformed(detail)),
            Err(Unusable::Ambiguous(detail)) => return Err(Refusal::Ambiguous(detail)),
        };
        let this = event.id.as_deref().map(|id| Fingerprint::of(&source.name, id, body));
        if this.is_some_and(|this| self.recent.has(&this)) {
            return Ok(Told::new(answer::Result::Duplicate));
        }
        self.compare(&event).await?;
        let Event { about, says, at, detail, .. } = event;
        let verdict = match says {
            Says::Verdict(verdict) => verdict,
            Says::Nothing(why) => return self.note(source, about, at, &detail, why).await,
        };
        let is_happened = matches!(verdict, Verdict::Happened(_));
        let statement = Statement { verdict, about, at, source: source.name.clone(), detail };
        let heard = self.engine.hear(statement).await.map_err(|error| unavailable(&error))?;
        if let Some(this) = this.filter(|_| is_final(heard, is_happened)) {
            self.recent.remember(this, source.tolerance.saturating_mul(2));
        }
        Ok(Told::heard(heard))
    }

    /// A token and a scope or key that name different records: it is not known which is meant.
    async fn compare(&self, event: &Event) -> Result<(), Refusal> {
        let (Subject::Attempt(handle), Beside::Scope(_) | Beside::Key(_)) = (event.about, &event.beside)
        else {
            return Ok(());
        };
        let seen = self.engine.find(handle.id).await.map_err(|error| unavailable(&error))?;
        let Some(seen) = seen else { return Ok(()) };
        let is_same = match &event.beside {
            Beside::Nothing => true,
            Beside::Scope(scope) => scope.digest() == seen.record.scope.digest(),
            Beside::Key(key) => *key == seen.record.key,
        };
        if is_same {
            return Ok(());
        }
        Err(Refusal::Ambiguous("The token and the scope or key name different records."))
    }

    /// An event that says nothing about the outcome is kept in the history of an unknown record: a person may want to know.
    async fn note(
        &self,
        source: &Webhook,
        about: Subject,
        at: Timestamp,
        detail: &Arc<str>,
        why: String,
    ) -> Result<Told, Refusal> {
        let noted = self.engine.note(about, at, &source.name, detail).await;
        noted.map_err(|error| unavailable(&error))?;
        Ok(Told::ignored(why))
    }
}

/// Whether the same event again would say nothing new. One that came too early, or before its record, may be sent again.
fn is_final(heard: Heard, is_happened: bool) -> bool {
    match heard {
        Heard::Applied(_) | Heard::Already(_) | Heard::Contradiction(_) => true,
        Heard::Evidence => is_happened,
        Heard::Noted(..) | Heard::Ignored(_) => false,
    }
}

/// What one webhook holds of the bytes that all of them may hold.
struct Share<'a> {
    held: &'a AtomicU64,
    max: u64,
    bytes: u64,
}

impl Share<'_> {
    /// Holds so many more. Whether all together are not too many.
    fn take(&mut self, bytes: u64) -> bool {
        self.bytes += bytes;
        self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.max
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The body, in memory.
async fn read<B>(body: B, bytes_max: u64, share: &mut Share<'_>) -> Result<Bytes, Refusal>
where
    B: HttpBody<Data = Bytes>,
{
    let mut body = pin!(body);
    if body.size_hint().lower() > bytes_max {
        drain(body.as_mut()).await;
        return Err(Refusal::TooLarge(bytes_max));
    }
    match timeout(BODY_WITHIN, whole::read(body.as_mut(), bytes_max, |bytes| share.take(bytes))).await {
        Ok(Ok(whole)) => Ok(whole),
        Ok(Err(Unread::TooLarge)) => {
            drain(body.as_mut()).await;
            Err(Refusal::TooLarge(bytes_max))
        }
        Ok(Err(Unread::NoRoom)) => Err(Refusal::NoRoom),
        Ok(Err(Unread::Broken)) => Err(Refusal::Malformed("it broke off".to_owned())),
        Err(_) => Err(Refusal::TooSlow),
    }
}

/// Reads on for a while without keeping anything: a sender that is still writing when the connection is closed does not read
/// its answer.
async fn drain<B: HttpBody<Data = Bytes>>(mut body: Pin<&mut B>) {
    let reading = async {
        let mut left = DRAINED_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    // Whoever is slower has no answer.
    let _ = timeout(DRAINED_WITHIN, reading).await;
}

fn unavailable(error: &onlyonce::store::Error) -> Refusal {
    tracing::warn!(%error, "a webhook could not be taken: the store did not answer");
    Refusal::StoreUnavailable
}

/// The node's own clock, which a signature is judged by.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
