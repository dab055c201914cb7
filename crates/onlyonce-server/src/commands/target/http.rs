//! A small HTTP/1.1 client for an admin port: one connection a request, no redirects, everything bounded.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::config::{Protocol, Upstream};
use crate::tls::{Connected, Connector};

/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 256 << 20;
const AGENT: &str = concat!("onlyonce-cli/", env!("CARGO_PKG_VERSION"));

/// A request to an admin port.
pub(super) struct Asked<'a> {
    pub(super) method: Method,
    /// With its query, as it is sent.
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, HeaderValue)>,
    /// JSON.
    pub(super) body: Option<String>,
    pub(super) authorization: Option<&'a HeaderValue>,
    pub(super) within: Duration,
}

pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// What went wrong, by how far the request had come.
pub(super) enum Lost {
    /// Nobody is there: nothing was sent.
    Unreachable(anyhow::Error),
    /// Something was sent, and no answer came.
    Unanswered(anyhow::Error),
}

/// Sends a request to `base` and reads all of the answer.
pub(super) async fn send(base: &Uri, connector: &Connector, asked: Asked<'_>) -> Result<Answered, Lost> {
    let upstream = Upstream { uri: base.clone(), protocol: Protocol::Http1 };
    let connected = connector.connect(&upstream).await.map_err(Lost::Unreachable)?;
    let within = asked.within;
    match timeout(within, exchange(base, connected, asked)).await {
        Ok(answered) => answered.map_err(Lost::Unanswered),
        Err(_) => Err(Lost::Unanswered(anyhow::anyhow!("no answer within {} s", within.as_secs()))),
    }
}

async fn exchange(base: &Uri, connected: Connected, asked: Asked<'_>) -> Result<Answered> {
    let request = request(base, asked)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(connected.stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let (head, body) = answer.into_parts();
    let body = match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => bail!("the answer broke off: {error}"),
    };
    connection.abort();
    Ok(Answered { status: head.status, headers: head.headers, body })
}

fn request(base: &Uri, asked: Asked<'_>) -> Result<Request<Full<Bytes>>> {
    let authority = base.authority().context("the URL names no host")?;
    let path = format!("{}{}", base.path().trim_end_matches('/'), asked.path);
    let mut request = Request::builder()
        .method(asked.method)
        .uri(path)
        .header(HOST, authority.as_str())
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "application/json, application/problem+json;q=0.9, */*;q=0.1")
        .header(CONNECTION, "close");
    if let Some(authorization) = asked.authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    for (name, value) in asked.headers {
        request = request.header(name, value);
    }
    if asked.body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    Ok(request.body(Full::from(asked.body.unwrap_or_default()))?)
}

/// Text as part of a query.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| {
        if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(encode).collect()
}

/// Text as one segment of a path. Dots alone would be taken for a folder on the way.
pub(super) fn segment(text: &str) -> String {
    if matches!(text, "." | "..") { text.replace('.', "%2E") } else { encoded(text) }
}

/// A query of those members that are given.
pub(super) fn query<'a>(members: impl IntoIterator<Item = (&'a str, Option<String>)>) -> String {
    let given = members.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded(&value?))));
    let given: Vec<_> = given.collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_plain_is_encoded() {
        assert_eq!(encoded("order-17_a.b~c"), "order-17_a.b~c");
        assert_eq!(encoded("a/b?c=d&e #%+\"é"), "a%2Fb%3Fc%3Dd%26e%20%23%25%2B%22%C3%A9");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("a..b"), "a..b");
    }

    #[test]
    fn a_query_has_only_what_is_given() {
        assert_eq!(query([("a", None), ("b", None)]), "");
        assert_eq!(
            query([("a", Some("1 2".to_owned())), ("b", None), ("c", Some(String::new()))]),
            "?a=1%202&c="
        );
    }
}
