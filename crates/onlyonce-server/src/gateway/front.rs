//! The steps before the layer: refuse malformed requests, normalise the path, find the route.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use http::header::{HOST, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use onlyonce::policy::Mode;
use onlyonce::refusal::Refusal;
use onlyonce::{Limit, ResponseFuture, asked_route};
use tower_service::Service;

use super::activity::Activity;
use super::body::Body;
use super::forward::Forward;
use super::head::Head;
use super::headers::{self, Asker};
use super::inbound::{Bound, Inbound};
use super::listener::STREAMS_MAX;
use super::serving::{Answer, Serving};
use super::site::{Route, Site};
use super::{own, path, unread};
use crate::caller::ClientCertificate;
use crate::webhook::{self, Port};

/// The current site, shared by all connections.
pub(crate) type Sites = Arc<RwLock<Arc<Site>>>;

/// State of one client's connection.
pub(crate) struct Front {
    pub(crate) sites: Sites,
    pub(crate) asker: Asker,
    pub(crate) certificate: Option<ClientCertificate>,
    pub(crate) head: Head,
    pub(crate) activity: Arc<Activity>,
    pub(crate) body_timeout: Duration,
}

/// The answer to a request that is not forwarded.
type Refused = Box<Response<Bytes>>;
/// An answer that takes a while.
type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;
type Answered = Result<Response<onlyonce::Body<Body>>, Infallible>;
type Forwarding = <Forward as Service<Request<onlyonce::Body<Inbound>>>>::Future;

impl hyper::service::Service<Request<Incoming>> for Front {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future =
        Serving<Either<ResponseFuture<Forwarding, Body, Infallible>, Either<Ready<Answered>, Answering>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let under_way = self.activity.request();
        if unread::may_be_read(&request) {
            self.activity.await_unread();
        }
        let request = request.map(|body| Inbound::new(body, self.activity.clone()));
        let site = self.sites.read().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = match self.enter(request, &site) {
            Ok(Entered::Routed(request, route)) => Either::Left(route.service.clone().call(request)),
            Ok(Entered::Webhook(request)) => Either::Right(Either::Right(take(&site, request))),
            Err(answer) => Either::Right(Either::Left(ready(Ok((*answer).map(onlyonce::Body::whole))))),
        };
        Serving::new(answer, under_way)
    }
}

/// A request that is no nonsense.
enum Entered<'a> {
    /// For a service, or about a key.
    Routed(Request<Inbound>, &'a Route),
    /// For us: what became of somebody's request.
    Webhook(Request<Inbound>),
}

fn take(site: &Site, request: Request<Inbound>) -> Answering {
    let webhooks = site.webhooks.clone();
    Box::pin(async move {
        let name = webhook::named_in(request.uri().path()).unwrap_or_default().to_owned();
        Ok(webhooks.take(Port::Gateway, &name, request).await.map(onlyonce::Body::whole))
    })
}

impl Front {
    /// The normalised request and its route, or an answer.
    fn enter<'a>(&self, mut request: Request<Inbound>, site: &'a Site) -> Result<Entered<'a>, Refused> {
        if *request.method() == Method::CONNECT {
            return Err(own::no_tunnels().into());
        }
        check_coding(&request, &self.head)?;
        name_host(&mut request)?;
        spell(&mut request)?;
        if let Some(answer) = site.published.answer(request.method(), request.uri().path()) {
            return Err(Box::new(answer));
        }
        if webhook::named_in(request.uri().path()).is_some() {
            return Ok(Entered::Webhook(request.map(|body| body.bound(self.held()))));
        }
        if let Some(answer) = own::answer(&request) {
            return Err(answer.into());
        }
        let asked = asked_route(request.method(), request.uri());
        let route = match &asked {
            Some(name) => site.named(name),
            None => site.route(request.method(), request.uri().path()).ok_or_else(ambiguous)?,
        };
        let is_covered = route.policy.methods.contains(request.method());
        let of_key = route.policy.key_headers().filter(|_| is_covered);
        headers::strip_named(request.headers_mut(), &of_key.collect::<Vec<_>>());
        headers::strip_lookalikes(request.headers_mut(), &route.policy);
        site.callers.strip_untrusted(request.headers_mut(), self.address());
        let is_trusted = site.callers.trusts(self.address());
        headers::forward(request.headers_mut(), &self.asker, is_trusted);
        if asked.is_none() && !route.policy.may_carry_key(request.headers(), request.uri().query()) {
            return Ok(Entered::Routed(request, route));
        }
        let mut request = self.identified(request, route, site);
        if asked.is_some() || !is_covered {
            return Ok(Entered::Routed(request, route));
        }
        if route.policy.mode == Mode::Observe {
            return Ok(Entered::Routed(
                request.map(|body| body.bound(Bound::Observed(self.body_timeout))),
                route,
            ));
        }
        if request.version() == Version::HTTP_2 {
            let running = self.activity.run(usize::from(STREAMS_MAX)).ok_or_else(|| too_many(route))?;
            request.extensions_mut().insert(running);
        }
        Ok(Entered::Routed(request.map(|body| body.bound(self.held())), route))
    }

    /// A body that is held whole.
    fn held(&self) -> Bound {
        Bound::Held(self.body_timeout)
    }

    /// Adds the caller's identity, if the layer may need it.
    fn identified(&self, request: Request<Inbound>, route: &Route, site: &Site) -> Request<Inbound> {
        let (mut parts, body) = request.into_parts();
        let certificate = self.certificate.as_ref();
        if let Some(verified) =
            site.callers.verified(&parts, self.address(), certificate, &route.policy.scope)
        {
            parts.extensions.insert(verified);
        }
        if let Some(name) = &route.name {
            parts.extensions.insert(name.clone());
        }
        Request::from_parts(parts, body)
    }

    fn address(&self) -> IpAddr {
        self.asker.address
    }
}

/// Refuses a body whose end can be read in two ways, or whose coding would be lost on the way.
fn check_coding(request: &Request<Inbound>, head: &Head) -> Result<(), Refused> {
    if !request.headers().contains_key(TRANSFER_ENCODING) {
        return Ok(());
    }
    if head.is_ambiguous() {
        return Err(own::bad_request_and_close("The request has both a length and a transfer coding.").into());
    }
    if headers::is_coded(request.headers()) {
        return Err(own::unknown_coding().into());
    }
    Ok(())
}

fn ambiguous() -> Refused {
    own::bad_request("The path can be read as another route's path. Send its plain spelling.").into()
}

/// 429: as many keyed requests run for this connection as there may be, those included whose stream was reset.
fn too_many(route: &Route) -> Refused {
    let limit = Limit::Streams;
    metrics::counter!("onlyonce_limited_total", "limit" => limit.as_str()).increment(1);
    let refusal = Refusal::LimitReached { limit, retry_after: Duration::from_secs(1) };
    Box::new(onlyonce::problem::answer(&refusal, &route.policy.dialect, None))
}

/// Puts exactly one host into `Host`, and removes it from the target: HTTP/1.1 requires the header, an absolute target
/// overrides it, and HTTP/2 has it in the target.
fn name_host(request: &mut Request<Inbound>) -> Result<(), Refused> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(own::bad_request_and_close("The request has more than one Host.").into());
    }
    if host.is_some_and(|host| !is_host(host.as_bytes())) {
        return Err(own::bad_request_and_close("The request's Host is not a valid host name.").into());
    }
    match (request.uri().authority(), host) {
        (None, None) if request.version() == Version::HTTP_11 => {
            Err(own::bad_request_and_close("The request has no Host.").into())
        }
        (None, _) => Ok(()),
        (Some(authority), Some(host))
            if request.version() == Version::HTTP_2 && !is_same(authority, host) =>
        {
            Err(own::bad_request("The request names two different hosts.").into())
        }
        (Some(authority), _) => {
            if !is_host(authority.as_str().as_bytes()) {
                return Err(own::bad_request("The request's host is not a valid host name.").into());
            }
            let host = HeaderValue::try_from(authority.as_str());
            let host = host.map_err(|_| own::bad_request("The request's host is not a valid host name."))?;
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
            request.headers_mut().insert(HOST, host);
            Ok(())
        }
    }
}

/// Whether it has only characters of one host and port.
fn is_host(host: &[u8]) -> bool {
    host.iter().all(|byte| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']' | b'%')
    })
}

fn is_same(authority: &Authority, host: &HeaderValue) -> bool {
    authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes())
}

/// Normalises the path. `OPTIONS *` has none.
fn spell(request: &mut Request<Inbound>) -> Result<(), Refused> {
    let uri = request.uri();
    if uri.path() == "*" && *request.method() == Method::OPTIONS {
        return Ok(());
    }
    let spelt = path::normalised(uri.path()).map_err(|fault| own::bad_request(fault.detail()))?;
    let std::borrow::Cow::Owned(spelt) = spelt else { return Ok(()) };
    let whole = match uri.query() {
        Some(query) => format!("{spelt}?{query}"),
        None => spelt,
    };
    let whole = PathAndQuery::try_from(whole).map_err(|_| own::bad_request("The path cannot be read."))?;
    *request.uri_mut() = Uri::from(whole);
    Ok(())
}
