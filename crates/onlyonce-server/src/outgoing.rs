//! Requests that the program makes by itself, to probes and destinations.
//!
//! 1. They are rare beside the traffic, so each has a connection of its own, which ends with it.
//! 2. No redirect is followed: who may answer stands in the settings.
//! 3. A failure names the host and what went wrong, never a header, a query or a body.

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::HOST;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;

use crate::config::{Protocol, Upstream};
use crate::tls::Connector;

pub(crate) const AGENT: &str = concat!("onlyonce/", env!("CARGO_PKG_VERSION"));

/// Where requests go.
pub(crate) struct Outgoing {
    connector: Connector,
    /// Whom to connect to; without path and query, which may hold a secret.
    upstream: Upstream,
    /// The path and query that the settings have.
    pub(crate) target: PathAndQuery,
    scheme: Scheme,
    pub(crate) authority: Authority,
}

/// What was answered, and the connection that its body comes on.
pub(crate) struct Answer {
    response: Response<Incoming>,
    _connection: JoinSet<()>,
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lost(pub(crate) String);

impl Outgoing {
    pub(crate) fn new(connector: Connector, uri: &Uri, protocol: Protocol) -> Result<Self> {
        let mut parts = uri.clone().into_parts();
        let target = parts.path_and_query.replace(PathAndQuery::from_static("/"));
        let authority = parts.authority.clone().context("it names no host")?;
        let scheme = parts.scheme.clone().unwrap_or(Scheme::HTTP);
        Ok(Self {
            connector,
            upstream: Upstream { uri: Uri::from_parts(parts)?, protocol },
            target: target.unwrap_or(PathAndQuery::from_static("/")),
            scheme,
            authority,
        })
    }

    /// Sends a request, and waits for the head of its answer.
    pub(crate) async fn send(
        &self,
        method: Method,
        target: PathAndQuery,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answer, Lost> {
        let connected = self.connector.connect(&self.upstream).await;
        let connected = connected.map_err(|error| Lost(format!("{error:#}")))?;
        let (version, io) = (connected.version, TokioIo::new(connected.stream));
        let request = self.request(method, target, headers, body, version)?;
        let mut connection = JoinSet::new();
        let response = if version == Version::HTTP_2 {
            let (mut sender, task) = http2::handshake(TokioExecutor::new(), io).await.map_err(lost)?;
            connection.spawn(async move { drop(task.await) });
            sender.send_request(request).await.map_err(lost)?
        } else {
            let (mut sender, task) = http1::handshake(io).await.map_err(lost)?;
            connection.spawn(async move { drop(task.await) });
            sender.send_request(request).await.map_err(lost)?
        };
        Ok(Answer { response, _connection: connection })
    }

    fn request(
        &self,
        method: Method,
        target: PathAndQuery,
        headers: HeaderMap,
        body: Bytes,
        version: Version,
    ) -> Result<Request<Full<Bytes>>, Lost> {
        let mut request = Request::new(Full::new(body));
        (*request.method_mut(), *request.headers_mut()) = (method, headers);
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some(target);
        if version == Version::HTTP_2 {
            parts.scheme = Some(self.scheme.clone());
            parts.authority = Some(self.authority.clone());
        } else {
            let host = HeaderValue::from_str(self.authority.as_str()).map_err(|_| unwritable())?;
            request.headers_mut().insert(HOST, host);
        }
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| unwritable())?;
        *request.version_mut() = version;
        Ok(request)
    }
}

impl Answer {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The body, to its end; none where it has more bytes.
    pub(crate) async fn body(self, bytes_max: usize) -> Result<Option<Bytes>, Lost> {
        match Limited::new(self.response.into_body(), bytes_max).collect().await {
            Ok(collected) => Ok(Some(collected.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Ok(None),
            Err(_) => Err(Lost("its answer broke off".to_owned())),
        }
    }
}

/// Passed to `map_err`, which hands the error over.
#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn lost(error: hyper::Error) -> Lost {
    let told = if error.is_parse() {
        "its answer is not HTTP"
    } else {
        "the connection was lost before it answered"
    };
    Lost(told.to_owned())
}

fn unwritable() -> Lost {
    Lost("its URL is too long to be asked for".to_owned())
}
