//! Forwards a request to its service, and reports exactly what is known of the outcome.
//!
//! | what happened | outcome | answer |
//! |---|---|---|
//! | no connection; the request handed back unsent; `REFUSED_STREAM`; `GOAWAY` below our stream | did not run | 502 `upstream_unreachable` |
//! | sent, then nothing until the deadline | unknown | 504 `upstream_outcome_unknown` |
//! | sent, then reset, closed, or an answer that is none | unknown | 502 `upstream_outcome_unknown` |
//!
//! A request of which any byte may have been sent is never sent again. One that a kept connection returned unsent is sent on
//! another.

use std::convert::Infallible;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HOST, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use onlyonce::refusal::{NoAnswer, Refusal, Resend};
use onlyonce::store::failpoint;
use onlyonce::{Attempt, Dialect, Effects, Policy, Reason, problem};
use tokio::time::timeout;

use super::activity::Running;
use super::body::{Body, Progress, Upload};
use super::headers;
use super::inbound::Inbound;
use super::phase::Ending;
use super::pool::{Origin, Pool, Sender};
use super::tunnel::Tunnels;
use crate::config;

/// How many kept connections may return a request unsent before a new connection is made.
const KEPT_TRIES_MAX: u32 = 2;

/// Forwards requests to one service.
#[derive(Clone)]
pub(crate) struct Forward(Arc<Target>);

struct Target {
    pool: Arc<Pool>,
    scheme: Scheme,
    authority: Authority,
    /// The upstream's path prefix; may be empty.
    prefix: String,
    dialect: Dialect,
    effects: Effects,
    deadline: Duration,
    tunnels: Tunnels,
    ending: Ending,
}

/// Why there is no answer.
#[derive(Debug)]
enum Failure {
    /// Nothing was sent, or the service says that it did not process the request.
    DidNotRun(String),
    /// It may have run.
    Unknown(Reason, String),
}

impl Forward {
    pub(crate) fn new(route: &config::Route, pool: Arc<Pool>, tunnels: Tunnels, ending: Ending) -> Self {
        let Policy { dialect, deadline, effects, .. } = &route.policy;
        let parts = route.upstream.uri.clone().into_parts();
        let prefix =
            parts.path_and_query.as_ref().map_or("", PathAndQuery::path).trim_end_matches('/').to_owned();
        Self(Arc::new(Target {
            pool,
            scheme: parts.scheme.unwrap_or(Scheme::HTTP),
            authority: parts.authority.expect("the settings were checked: an upstream has a host"),
            prefix,
            dialect: dialect.clone(),
            effects: *effects,
            deadline: *deadline,
            tunnels,
            ending,
        }))
    }
}

impl tower_service::Service<Request<onlyonce::Body<Inbound>>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<onlyonce::Body<Inbound>>) -> Self::Future {
        let target = self.0.clone();
        Box::pin(async move { Ok(target.forward(request).await) })
    }
}

impl Target {
    async fn forward(self: Arc<Self>, request: Request<onlyonce::Body<Inbound>>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let is_safe = parts.method.is_safe();
        // Counted as running until its answer has ended, or until it is known that there will be none.
        let running = parts.extensions.remove::<Running>();
        let attempt = parts.extensions.remove::<Attempt>();
        let upgraded = parts.extensions.remove::<OnUpgrade>();
        let upgrade = upgraded.as_ref().and_then(|_| headers::upgrade(&parts.headers));
        // The other extensions were for earlier layers.
        parts.extensions.clear();
        if let Some(attempt) = &attempt {
            headers::say_attempt(&mut parts.headers, attempt);
        }
        let (upload, progress) = match (&attempt, body.is_end_stream()) {
            (None, false) => {
                let (upload, progress) = Upload::streaming(body);
                (upload, Some(progress))
            }
            (Some(_), _) | (None, true) => (Upload::whole(body), None),
        };
        let is_upgrade = upgrade.is_some();
        let request = Request::from_parts(parts, upload);
        let wanted = self.pool.wanted(attempt.as_ref().map_or(1, Attempt::number));
        let answered = match self.in_time(request, upgrade, progress.as_deref(), wanted).await {
            Ok((response, sender)) => {
                let answered = self.answer(response, sender, upgraded.filter(|_| is_upgrade));
                answered.map(|response| response.map(|body| body.counted(running)))
            }
            Err(failure) => Err(failure),
        };
        answered.unwrap_or_else(|failure| self.tell(&failure, attempt.as_ref(), is_safe))
    }

    /// Sends the request and waits for the head of the answer until the deadline, which counts from the last progress of the
    /// client's body: an upload may take any time.
    async fn in_time(
        &self,
        request: Request<Upload>,
        upgrade: Option<HeaderValue>,
        progress: Option<&Progress>,
        wanted: Origin,
    ) -> Result<(Response<Incoming>, Sender), Failure> {
        let is_sent = AtomicBool::new(false);
        let mut sending = pin!(self.send(request, upgrade, &is_sent, wanted));
        let mut left = self.deadline;
        loop {
            if let Ok(sent) = timeout(left, sending.as_mut()).await {
                return sent;
            }
            left = progress.map_or(Duration::ZERO, |body| self.deadline.saturating_sub(body.still_for()));
            if left.is_zero() {
                let late = format!("no answer within {:?}", self.deadline);
                return Err(match is_sent.load(Ordering::Relaxed) {
                    true => Failure::Unknown(Reason::Deadline, late),
                    false => Failure::DidNotRun(late),
                });
            }
        }
    }

    /// Sends the request once. The service may have closed a kept connection; a request that it returns unsent is sent on
    /// another.
    async fn send(
        &self,
        mut request: Request<Upload>,
        upgrade: Option<HeaderValue>,
        is_sent: &AtomicBool,
        mut wanted: Origin,
    ) -> Result<(Response<Incoming>, Sender), Failure> {
        let came_by = request.version();
        let mut addressed_for = None;
        for tries in 0.. {
            let connection = self.pool.connection(wanted).await;
            let (mut sender, origin) =
                connection.map_err(|error| Failure::DidNotRun(format!("{error:#}")))?;
            let version = sender.version();
            match addressed_for.replace(version) {
                None => self.address(&mut request, came_by, version, upgrade.as_ref())?,
                Some(before) if before == version => {}
                Some(_) => {
                    return Err(Failure::DidNotRun("the service changed its HTTP version".into()));
                }
            }
            is_sent.store(true, Ordering::Relaxed);
            failpoint!("forward.before");
            let mut error = match sender.send(request).await {
                Ok(response) => {
                    failpoint!("forward.after");
                    return Ok((response, sender));
                }
                Err(error) => error,
            };
            match (error.take_message(), origin) {
                (Some(unsent), Origin::Kept) => request = unsent,
                (Some(_), Origin::Fresh) => return Err(Failure::DidNotRun(chain(error.error()))),
                (None, _) => return Err(self.judge(error.error())),
            }
            is_sent.store(false, Ordering::Relaxed);
            if tries == KEPT_TRIES_MAX {
                wanted = Origin::Fresh;
            }
        }
        unreachable!("a fresh connection ends the loop, one way or the other")
    }

    /// Rewrites the request for this service.
    fn address(
        &self,
        request: &mut Request<Upload>,
        came_by: Version,
        goes_by: Version,
        upgrade: Option<&HeaderValue>,
    ) -> Result<(), Failure> {
        let host = request.headers().get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
        if !request.headers().contains_key(HOST) {
            let authority = HeaderValue::try_from(self.authority.as_str());
            request.headers_mut().insert(HOST, authority.expect("an authority is visible ASCII"));
        }
        let upgrade = upgrade.filter(|_| goes_by != Version::HTTP_2);
        headers::to_service(request.headers_mut(), came_by, goes_by, upgrade);
        *request.version_mut() = goes_by;
        let is_prefixed = !self.prefix.is_empty() && request.uri().path().starts_with('/');
        if !is_prefixed && goes_by != Version::HTTP_2 {
            return Ok(());
        }
        let mut parts = request.uri().clone().into_parts();
        if is_prefixed {
            let behind = parts.path_and_query.as_ref().map_or("", PathAndQuery::as_str);
            let whole = PathAndQuery::try_from(format!("{}{behind}", self.prefix));
            parts.path_and_query = Some(whole.map_err(|error| Failure::DidNotRun(error.to_string()))?);
        }
        if goes_by == Version::HTTP_2 {
            parts.scheme = Some(self.scheme.clone());
            parts.authority = Some(host.unwrap_or_else(|| self.authority.clone()));
        }
        *request.uri_mut() = Uri::from_parts(parts).map_err(|error| Failure::DidNotRun(error.to_string()))?;
        Ok(())
    }

    /// The outcome for an error of a request that was not returned unsent.
    fn judge(&self, error: &hyper::Error) -> Failure {
        let text = chain(error);
        if was_refused(error) {
            return Failure::DidNotRun(text);
        }
        let reason = match error {
            _ if self.ending.is_ending() => Reason::Stopped,
            error if error.is_parse() => Reason::AnswerBroken,
            _ => Reason::ConnectionLost,
        };
        self.pool.failed();
        Failure::Unknown(reason, text)
    }

    /// The service's answer, streamed.
    fn answer(
        &self,
        mut response: Response<Incoming>,
        sender: Sender,
        upgraded: Option<OnUpgrade>,
    ) -> Result<Response<Body>, Failure> {
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let protocol = response.headers().get(UPGRADE).cloned();
            let protocol = protocol.filter(|protocol| !headers::is_http(protocol));
            let (Some(client), Some(protocol)) = (upgraded, protocol) else {
                let text = "the service switched to a protocol that was not requested";
                return Err(Failure::Unknown(Reason::AnswerBroken, text.into()));
            };
            self.tunnels.open(client, hyper::upgrade::on(&mut response));
            headers::to_client(response.headers_mut());
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(UPGRADE, protocol);
            return Ok(response.map(|body| Body::service(body, None)));
        }
        if headers::is_coded(response.headers()) {
            let text = "the answer has a transfer coding that was not requested";
            return Err(Failure::Unknown(Reason::AnswerBroken, text.into()));
        }
        headers::to_client(response.headers_mut());
        // A service that has just failed may close its connections a moment later, and what is sent then is in doubt for nothing.
        let lent = if response.status().is_server_error() {
            self.pool.failed();
            None
        } else {
            sender.lent(&self.pool)
        };
        Ok(response.map(|body| Body::service(body, lent)))
    }

    /// Answers the client, records the outcome and logs it.
    fn tell(&self, failure: &Failure, attempt: Option<&Attempt>, is_safe: bool) -> Response<Body> {
        let record = attempt.map(|attempt| attempt.handle().id.short());
        let record = record.as_ref().map(tracing::field::display);
        let resend = match attempt {
            Some(_) => Resend::of(self.effects),
            None if is_safe => Resend::Reads,
            None => Resend::Unkeyed,
        };
        let refusal = match failure {
            Failure::DidNotRun(why) => {
                tracing::warn!(upstream = %self.authority, record, why, "the request did not reach the service");
                if let Some(attempt) = attempt {
                    attempt.did_not_run();
                }
                Refusal::UpstreamUnreachable(resend)
            }
            Failure::Unknown(reason, why) => {
                tracing::warn!(upstream = %self.authority, record, why, "it is not known whether the service did the work");
                if let Some(attempt) = attempt {
                    attempt.unknown_because(*reason);
                }
                let is_late = *reason == Reason::Deadline;
                Refusal::UpstreamOutcomeUnknown(
                    if is_late { NoAnswer::TimedOut } else { NoAnswer::Lost },
                    resend,
                )
            }
        };
        problem::answer(&refusal, &self.dialect, None).map(Body::own)
    }
}

/// Whether the service itself says that it did not process the request.
fn was_refused(error: &hyper::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let is_refusal = error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && is_refusal;
        }
        cause = error.source();
    }
    false
}

/// An error and its causes on one line, for logs.
fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
