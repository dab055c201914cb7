//! Destinations behind a URL: messages of the outbox, POSTed and signed as Standard Webhooks has it.
//!
//! | answer | what it leads to |
//! |---|---|
//! | 2xx | delivered |
//! | a status in `dead` | a dead letter |
//! | 429; 503 with `Retry-After` | again, not before that; it does not count |
//! | any other, with `Retry-After` honoured; none | again; it counts |
//!
//! Nothing of a payload, a secret or an answer's body is told to anybody.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use onlyonce::Engine;
use onlyonce::relay::{Deliver, Delivered, Delivery, Exchanged, Relay};

use crate::config::{Destination, Protocol, ProviderId};
use crate::outgoing::{AGENT, Answer, Lost, Outgoing};
use crate::tls::Connector;
use crate::webhook::signature;

/// How much of an answer is read for the provider's id.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const DELIVERY: HeaderName = HeaderName::from_static("onlyonce-delivery");
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// A relay to these destinations.
pub(crate) fn relay(
    engine: &Arc<Engine>,
    destinations: &[Destination],
    connector: &Connector,
    every: Duration,
) -> Result<Relay> {
    let mut relay = Relay::new(engine).every(every);
    for destination in destinations {
        let outgoing = Outgoing::new(connector.clone(), &destination.uri, Protocol::Auto);
        let outgoing = outgoing.with_context(|| format!("destination \"{}\"", destination.name))?;
        let http = HttpDestination { outgoing, destination: destination.clone() };
        relay = relay.to_with(destination.name.clone(), http, destination.terms.clone());
    }
    Ok(relay)
}

/// A destination behind a URL.
struct HttpDestination {
    outgoing: Outgoing,
    destination: Destination,
}

#[async_trait]
impl Deliver for HttpDestination {
    async fn deliver(&self, delivery: &Delivery) -> Delivered {
        self.exchange(delivery).await.delivered
    }

    async fn exchange(&self, delivery: &Delivery) -> Exchanged {
        let Some(headers) = self.headers(delivery, seconds_now()) else {
            return dead(
                "its content type is not a valid header value; store the message with another",
                None,
            );
        };
        let target = self.outgoing.target.clone();
        match self.outgoing.send(Method::POST, target, headers, delivery.payload.clone()).await {
            Ok(answer) => self.judge(answer).await,
            Err(Lost(error)) => again(error, None, None, true),
        }
    }
}

impl HttpDestination {
    /// None where the message has something that no header can carry.
    fn headers(&self, delivery: &Delivery, seconds: u64) -> Option<HeaderMap> {
        let key = HeaderValue::from_str(&delivery.key).ok()?;
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(&delivery.content_type).ok()?);
        headers.insert(self.destination.key_header.clone(), key.clone());
        headers.insert(DELIVERY, delivery.number.into());
        headers.insert(WEBHOOK_ID, key);
        headers.insert(WEBHOOK_TIMESTAMP, seconds.into());
        if !self.destination.secrets.is_empty() {
            headers.insert(WEBHOOK_SIGNATURE, self.signatures(delivery, seconds)?);
        }
        Some(headers)
    }

    /// One for each secret, so that a receiver can change to a new one at any time.
    fn signatures(&self, delivery: &Delivery, seconds: u64) -> Option<HeaderValue> {
        let time = seconds.to_string();
        let signed = self.destination.secrets.iter().map(|secret| {
            let mac = signature::signed(&secret.bytes, Some(&delivery.key), &time, &delivery.payload);
            format!("v1,{}", STANDARD.encode(mac))
        });
        HeaderValue::try_from(signed.collect::<Vec<_>>().join(" ")).ok()
    }

    async fn judge(&self, answer: Answer) -> Exchanged {
        let status = answer.status();
        let code = status.as_u16();
        if status.is_success() {
            return match self.provider_id(answer).await {
                Ok(provider_id) => Exchanged { status: Some(code), ..Delivered::Done { provider_id }.into() },
                Err(Lost(error)) => again(error, Some(code), None, true),
            };
        }
        let told = match status.is_redirection() {
            true => format!("it answered {code}, and redirects are not followed"),
            false => format!("it answered {code}"),
        };
        if self.destination.dead.contains(&code) {
            return dead(&told, Some(code));
        }
        let after = retry_after(answer.headers());
        let asks_to_wait = status == StatusCode::TOO_MANY_REQUESTS
            || (status == StatusCode::SERVICE_UNAVAILABLE && after.is_some());
        again(told, Some(code), after, !asks_to_wait)
    }

    /// What the receiver calls the message. An answer that is not JSON, is too large to be looked at, or has nothing there has
    /// none: the message arrived all the same.
    async fn provider_id(&self, answer: Answer) -> Result<Option<String>, Lost> {
        match &self.destination.provider_id {
            None => Ok(None),
            Some(ProviderId::Header(name)) => {
                Ok(answer.headers().get(name).and_then(|value| Some(value.to_str().ok()?.to_owned())))
            }
            Some(ProviderId::Json(pointer)) => {
                let body = answer.body(ANSWER_BYTES_MAX).await?;
                let body: Option<serde_json::Value> =
                    body.and_then(|body| serde_json::from_slice(&body).ok());
                Ok(body.as_ref().and_then(|body| body.pointer(pointer.as_str())).and_then(scalar))
            }
        }
    }
}

fn scalar(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Array(_)
        | serde_json::Value::Object(_) => None,
    }
}

fn again(error: String, status: Option<u16>, after: Option<Duration>, counts: bool) -> Exchanged {
    Exchanged { delivered: Delivered::Again { after, error }, status, counts }
}

fn dead(error: &str, status: Option<u16>) -> Exchanged {
    Exchanged { status, ..Delivered::Dead { error: error.to_owned() }.into() }
}

/// `Retry-After`, as seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    let seconds = u64::try_from(at.as_second()).unwrap_or(0);
    Some(Duration::from_secs(seconds.saturating_sub(seconds_now())))
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
