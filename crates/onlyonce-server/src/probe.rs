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
//! 3. Four questions go to one host at once, whichever routes they are of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use onlyonce::percent;
use onlyonce::probe::{Answer, Failure, Probe, Probes, Question};
use onlyonce::trace::TRACEPARENT;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::config::{self, Config, Protocol};
use crate::outgoing::{AGENT, Lost, Outgoing};
use crate::saying;
use crate::tls::Connector;

/// How many questions go to one host at once.
const AT_ONCE_TO_HOST: usize = 4;
/// What an answer may have beyond the largest response that is kept.
const BYTES_BESIDE_RESPONSE: u64 = 64 << 10;

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
        // The service itself is spoken to as its requests are.
        let is_service = route.upstream.uri.authority() == probe.uri.authority()
            && route.upstream.uri.scheme() == probe.uri.scheme();
        let protocol = if is_service { route.upstream.protocol } else { Protocol::Auto };
        let outgoing = Outgoing::new(connector, &probe.uri, protocol)?;
        let mut headers = HeaderMap::new();
        for (name, secret) in &probe.headers {
            let mut value = HeaderValue::from_bytes(&secret.bytes).context("a header's value is none")?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let bytes_max = route.policy.response_bytes_max.saturating_add(BYTES_BESIDE_RESPONSE);
        Ok(HttpProbe {
            places: self.places(outgoing.authority.host()),
            outgoing,
            headers,
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
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
    outgoing: Outgoing,
    headers: HeaderMap,
    places: Arc<Semaphore>,
    bytes_max: usize,
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
        let target = PathAndQuery::try_from(self.asked(question));
        let target = target.map_err(|_| Failure::new("the probe's URL is too long"))?;
        let mut headers = self.headers.clone();
        headers.extend(question.traceparent.clone().map(|parent| (TRACEPARENT, parent)));
        let sent = self.outgoing.send(Method::GET, target, headers, Bytes::new());
        let answer = sent.await.map_err(failed)?;
        let status = answer.status();
        let body = answer.body(self.bytes_max).await.map_err(failed)?;
        let too_large = || Failure::new(format!("its answer has more than {} bytes", self.bytes_max));
        Ok((status, body.ok_or_else(too_large)?))
    }

    /// The path and query of a question. A query that the settings have stays in front.
    fn asked(&self, question: &Question) -> String {
        let mut asked = self.outgoing.target.as_str().to_owned();
        let attempt = question.attempt.to_string();
        let members = [
            ("scope", question.scope.to_string()),
            ("key", question.key.as_str().to_owned()),
            ("token", question.handle.to_string()),
            ("attempt", attempt),
            ("route", question.route.as_deref().unwrap_or_default().to_owned()),
        ];
        let mut separator = match self.outgoing.target.query() {
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
        return Err(Failure::new("its answer is not a JSON object"));
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

fn failed(Lost(told): Lost) -> Failure {
    Failure::new(told)
}

#[cfg(test)]
mod tests;
