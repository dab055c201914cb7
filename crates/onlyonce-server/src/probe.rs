//! Probes behind a URL: `GET`, and a verdict in JSON.
//!
//! ```text
//!  GET /probe?scope=<hex>&key=<key>&token=<handle>&attempt=<n>&route=<match>
//!  200 {"verdict": "happened", "response": {"status": 201, "body": "…"}}
//! ```
//!
//! 1. Only a 200 with a verdict is an answer. Anything else is a failure and decides nothing, whatever its body says: a 404
//!    may come from a proxy, or from a service that was not deployed yet.
//! 2. No redirect is followed: who may answer stands in the settings.
//! 3. Questions are rare, so each has a connection of its own. Four go to one host at once, whichever routes they are of.
//! 4. A failure names the host and what went wrong, never a header or a query.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use onlyonce::percent;
use onlyonce::probe::{Answer, Failure, Probe, Probes, Question};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::config::{self, Config, Protocol, Upstream};
use crate::saying;
use crate::tls::Connector;

/// How many questions go to one host at once.
const AT_ONCE_TO_HOST: usize = 4;
/// What an answer may have beyond the largest response that is kept.
const BYTES_BESIDE_RESPONSE: u64 = 64 << 10;
const AGENT: &str = concat!("onlyonce/", env!("CARGO_PKG_VERSION"));

/// Makes probes of settings. The places of a host stay the same over a reload.
#[derive(Debug, Default)]
pub(crate) struct Prober {
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Prober {
    /// The probes of these settings.
    pub(crate) fn probes(&self, config: &Config) -> Result<Probes> {
        let connector = Connector::new(config)?;
        let mut probes = Probes::default();
        let config::Probing { first, max, tries_max, at_once } = config.probing;
        (probes.first, probes.max, probes.tries_max, probes.at_once) = (first, max, tries_max, at_once);
        for route in &config.routes {
            let Some(probe) = &route.probe else { continue };
            let made = self.made(route, probe, connector.clone());
            let made = made.with_context(|| format!("probe of route \"{}\"", route.name))?;
            probes = probes.with_route(route.name.clone(), Arc::new(made));
        }
        Ok(probes)
    }

    fn made(&self, route: &config::Route, probe: &config::Probe, connector: Connector) -> Result<HttpProbe> {
        let mut parts = probe.uri.clone().into_parts();
        let target = parts.path_and_query.replace(PathAndQuery::from_static("/"));
        let authority = parts.authority.clone().context("it names no host")?;
        let scheme = parts.scheme.clone().unwrap_or(Scheme::HTTP);
        // The service itself is spoken to as its requests are.
        let is_service = route.upstream.uri.authority() == Some(&authority)
            && route.upstream.uri.scheme() == Some(&scheme);
        let protocol = if is_service { route.upstream.protocol } else { Protocol::Auto };
        let mut headers = HeaderMap::new();
        for (name, secret) in &probe.headers {
            let mut value = HeaderValue::from_bytes(&secret.bytes).context("a header's value is none")?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        Ok(HttpProbe {
            connector,
            upstream: Upstream { uri: Uri::from_parts(parts)?, protocol },
            target: target.unwrap_or(PathAndQuery::from_static("/")),
            places: self.places(authority.host()),
            authority,
            scheme,
            headers,
            bytes_max: route.policy.response_bytes_max.saturating_add(BYTES_BESIDE_RESPONSE),
        })
    }

    fn places(&self, host: &str) -> Arc<Semaphore> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || Arc::new(Semaphore::new(AT_ONCE_TO_HOST));
        places.entry(host.to_ascii_lowercase()).or_insert_with(made).clone()
    }
}

/// A probe behind a URL.
struct HttpProbe {
    connector: Connector,
    /// Whom to connect to; without path and query, which may hold a secret.
    upstream: Upstream,
    target: PathAndQuery,
    scheme: Scheme,
    authority: Authority,
    headers: HeaderMap,
    places: Arc<Semaphore>,
    bytes_max: u64,
}

#[async_trait]
impl Probe for HttpProbe {
    async fn ask(&self, question: Question) -> Result<Answer, Failure> {
        let asked_at = Instant::now();
        let (status, body) = self.exchange(&question).await?;
        let verdict = verdict(status, &body)?;
        let detail = format!("{} in {} ms", status.as_u16(), asked_at.elapsed().as_millis());
        Ok(Answer { verdict, detail: Some(detail.into()) })
    }

    fn places(&self) -> Option<Arc<Semaphore>> {
        Some(self.places.clone())
    }
}

impl HttpProbe {
    /// Asks, and reads the answer to its end.
    async fn exchange(&self, question: &Question) -> Result<(StatusCode, Bytes), Failure> {
        let connected = self.connector.connect(&self.upstream).await;
        let connected = connected.map_err(|error| Failure::new(format!("{error:#}")))?;
        let (version, io) = (connected.version, TokioIo::new(connected.stream));
        let request = self.request(question, version)?;
        // The connection ends with the question.
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
        let status = response.status();
        Ok((status, self.body(response).await?))
    }

    fn request(&self, question: &Question, version: Version) -> Result<Request<Empty<Bytes>>, Failure> {
        let mut request = Request::new(Empty::new());
        *request.headers_mut() = self.headers.clone();
        let target = PathAndQuery::try_from(self.asked(question)).map_err(|_| unaskable())?;
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some(target);
        if version == Version::HTTP_2 {
            parts.scheme = Some(self.scheme.clone());
            parts.authority = Some(self.authority.clone());
        } else {
            let host = HeaderValue::from_str(self.authority.as_str()).map_err(|_| unaskable())?;
            request.headers_mut().insert(HOST, host);
        }
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| unaskable())?;
        *request.version_mut() = version;
        Ok(request)
    }

    /// The path and query of a question. A query that the settings have stays in front.
    fn asked(&self, question: &Question) -> String {
        let mut asked = self.target.as_str().to_owned();
        let attempt = question.attempt.to_string();
        let members = [
            ("scope", question.scope.to_string()),
            ("key", question.key.as_str().to_owned()),
            ("token", question.handle.to_string()),
            ("attempt", attempt),
            ("route", question.route.as_deref().unwrap_or_default().to_owned()),
        ];
        let mut separator = match self.target.query() {
            None => "?",
            Some("") => "",
            Some(_) => "&",
        };
        for (name, value) in members {
            asked.push_str(separator);
            asked.push_str(name);
            asked.push('=');
            push_encoded(&mut asked, &value);
            separator = "&";
        }
        asked
    }

    async fn body(&self, response: Response<Incoming>) -> Result<Bytes, Failure> {
        let bytes_max = usize::try_from(self.bytes_max).unwrap_or(usize::MAX);
        match Limited::new(response.into_body(), bytes_max).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(Failure::new(format!("its answer has more than {bytes_max} bytes")))
            }
            Err(_) => Err(Failure::new("its answer broke off")),
        }
    }
}

/// What an answer says; only a 200 says anything.
fn verdict(status: StatusCode, body: &[u8]) -> Result<onlyonce::record::Verdict, Failure> {
    if status.is_redirection() {
        return Err(Failure::new(format!("it answered {}, and redirects are not followed", status.as_u16())));
    }
    if status != StatusCode::OK {
        return Err(Failure::new(format!("it answered {}, and only 200 is an answer", status.as_u16())));
    }
    let Ok(Value::Object(members)) = serde_json::from_slice(body) else {
        return Err(Failure::new("its answer is no JSON object"));
    };
    saying::verdict(&members).map_err(|faults| {
        let told: Vec<_> = faults.iter().map(ToString::to_string).collect();
        Failure::new(format!("its answer cannot be used: {}", told.join("; ")))
    })
}

fn push_encoded(text: &mut String, value: &str) {
    for byte in value.bytes() {
        if percent::is_unreserved(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// Passed to `map_err`, which hands the error over.
#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn lost(error: hyper::Error) -> Failure {
    let told =
        if error.is_parse() { "its answer is no HTTP" } else { "the connection was lost before it answered" };
    Failure::new(told)
}

fn unaskable() -> Failure {
    Failure::new("the question is too long to be asked")
}

#[cfg(test)]
mod tests;
