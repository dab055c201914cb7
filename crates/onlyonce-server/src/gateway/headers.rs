//! Which headers are forwarded, and which are added.
//!
//! 1. Hop-by-hop headers are removed (RFC 9110, 7.6.1): those that `Connection` names, and those defined as such. An upgrade
//!    is forwarded as one.
//! 2. `Host` is forwarded as the client sent it: services build links from it.
//! 3. `X-Forwarded-For`, `-Proto` and `-Host` describe the client. Those of a trusted proxy are extended, all others are
//!    replaced. `Forwarded` is extended for a trusted proxy that uses it, and otherwise removed.
//! 4. For a keyed request, the service gets the attempt's number, its scope and its token.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use onlyonce::fingerprint::METHOD_OVERRIDES;
use onlyonce::scope::Source;
use onlyonce::{Attempt, Policy, connection_named};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const ATTEMPT: HeaderName = HeaderName::from_static("onlyonce-attempt");
const TOKEN: HeaderName = HeaderName::from_static("onlyonce-token");
const SCOPE: HeaderName = HeaderName::from_static("onlyonce-scope");

const HOP_BY_HOP: [HeaderName; 6] =
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE];

/// The client, as described to the service.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) address: IpAddr,
    /// The address as text, made once per connection.
    text: HeaderValue,
    proto: HeaderValue,
}

impl Asker {
    pub(crate) fn new(address: IpAddr, is_secure: bool) -> Self {
        let address = address.to_canonical();
        let text = HeaderValue::try_from(address.to_string()).expect("an address is visible ASCII");
        let proto = HeaderValue::from_static(if is_secure { "https" } else { "http" });
        Self { address, text, proto }
    }
}

/// Removes the headers that `Connection` names, before anything uses them. The headers of the key stay for the layer, which
/// refuses such a request; `Host` and the length cannot be removed by the sender.
pub(crate) fn strip_named(headers: &mut HeaderMap, kept: &[&HeaderName]) {
    if !headers.contains_key(CONNECTION) {
        return;
    }
    for name in connection_named(headers) {
        if !kept.contains(&&name)
            && ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE, CONNECTION, TE].contains(&name)
        {
            headers.remove(name);
        }
    }
}

/// Removes headers with an underscore that services which read it as a hyphen (CGI, WSGI, PHP, Rack) would take for ours, for one
/// that proxies set, for one that says where the body ends, or for one that the policy goes by. One that the policy itself spells with
/// an underscore stays.
pub(crate) fn strip_lookalikes(headers: &mut HeaderMap, policy: &Policy) {
    if !headers.keys().any(|name| name.as_str().contains('_')) {
        return;
    }
    let of_scope = policy.scope.iter().filter_map(|source| match source {
        Source::Header(name) | Source::Trusted(name) => Some(name),
        Source::Jwt(_) | Source::Certificate | Source::Route => None,
    });
    let counted = policy.fingerprint.headers.iter().chain(&METHOD_OVERRIDES);
    let chosen: Vec<&HeaderName> = of_scope.chain(counted).chain(policy.key_headers()).collect();
    let is_lookalike = |name: &&HeaderName| {
        if !name.as_str().contains('_') || chosen.contains(name) {
            return false;
        }
        let meant = name.as_str().replace('_', "-");
        RESERVED_STARTS.iter().any(|start| meant.starts_with(start))
            || RESERVED.contains(&&*meant)
            || chosen.iter().any(|name| name.as_str().replace('_', "-") == meant)
    };
    let names: Vec<HeaderName> = headers.keys().filter(is_lookalike).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

const RESERVED_STARTS: [&str; 4] = ["onlyonce-", "idempotency-", "idempotent-", "x-forwarded-"];
const RESERVED: [&str; 6] = [
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "proxy-connection",
    "x-real-ip",
];

/// Adds the forwarding headers.
pub(crate) fn forward(headers: &mut HeaderMap, asker: &Asker, is_trusted: bool) {
    let host = headers.get(HOST).cloned();
    if !is_trusted {
        headers.insert(FORWARDED_FOR, asker.text.clone());
        headers.insert(FORWARDED_PROTO, asker.proto.clone());
        match host {
            Some(host) => headers.insert(FORWARDED_HOST, host),
            None => headers.remove(FORWARDED_HOST),
        };
        headers.remove(FORWARDED);
        return;
    }
    append(headers, FORWARDED_FOR, asker.text.clone());
    headers.entry(FORWARDED_PROTO).or_insert_with(|| asker.proto.clone());
    if let Some(host) = host {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
    if headers.contains_key(FORWARDED) {
        append(headers, FORWARDED, element(asker));
    }
}

/// `for="[2001:db8::1]";proto=https`
fn element(asker: &Asker) -> HeaderValue {
    let address = match asker.address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("\"[{address}]\""),
    };
    let proto = asker.proto.to_str().unwrap_or_default();
    HeaderValue::try_from(format!("for={address};proto={proto}")).expect("an address is visible ASCII")
}

/// On one line: some services read only the first line, some only the last.
fn append(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    if !headers.contains_key(&name) {
        headers.insert(name, value);
        return;
    }
    let mut line = Vec::new();
    for part in headers.get_all(&name).iter().chain([&value]) {
        if !line.is_empty() {
            line.extend_from_slice(b", ");
        }
        line.extend_from_slice(part.as_bytes());
    }
    let line = HeaderValue::from_bytes(&line).expect("header values joined by a comma are a header value");
    headers.insert(name, line);
}

/// The headers of a request to a service: without hop-by-hop ones. An upgrade is added again.
pub(crate) fn to_service(
    headers: &mut HeaderMap,
    came_by: Version,
    goes_by: Version,
    upgrade: Option<&HeaderValue>,
) {
    let has_trailers = headers.get(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    strip_hop_by_hop(headers);
    // The gateway itself answers `100 Continue` when the body is read.
    if headers.get(EXPECT).is_some_and(|expects| expects.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        headers.remove(EXPECT);
    }
    if came_by == Version::HTTP_2 && goes_by != Version::HTTP_2 {
        join_cookies(headers);
    }
    if goes_by == Version::HTTP_2 {
        headers.remove(HOST);
        if has_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
    if headers.contains_key(VIA) {
        append(headers, VIA, HeaderValue::from_static("1.1 onlyonce"));
    }
}

/// HTTP/2 clients may send cookies one by one; HTTP/1.1 has one line for them (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    let line = HeaderValue::from_bytes(&cookies.join(&b"; "[..])).expect("cookies joined are a header value");
    headers.insert(COOKIE, line);
}

/// Adds the headers about the attempt.
pub(crate) fn say_attempt(headers: &mut HeaderMap, attempt: &Attempt) {
    let handle = attempt.handle();
    let mut text = [0; 64 + 1 + 32];
    hex(&handle.id.0, &mut text[..64]);
    text[64] = b'.';
    hex(&handle.token.0, &mut text[65..]);
    headers.insert(TOKEN, HeaderValue::from_bytes(&text).expect("hexadecimal digits are visible ASCII"));
    let mut text = [0; 64];
    hex(attempt.scope().digest(), &mut text);
    headers.insert(SCOPE, HeaderValue::from_bytes(&text).expect("hexadecimal digits are visible ASCII"));
    headers.insert(ATTEMPT, HeaderValue::from(attempt.number()));
}

fn hex(bytes: &[u8], text: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// The headers of an answer to a client: without hop-by-hop ones.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    strip_named(headers, &[]);
    strip_hop_by_hop(headers);
}

/// Whether a body is in a transfer coding other than chunked. It would be lost on the way.
pub(crate) fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|coding| !is_chunked(coding)) || codings.next().is_some()
}

/// Most answers have none, and one pass over their few names is cheaper than a lookup for each.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        for name in &HOP_BY_HOP {
            headers.remove(name);
        }
    }
}

/// The protocol of an upgrade request. Another HTTP version is refused: it would tunnel requests to the service past every
/// check.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(CONNECTION)?;
    let mut protocols = headers.get_all(UPGRADE).iter();
    let (protocol, other) = (protocols.next()?, protocols.next());
    let asks = connection_named(headers).contains(&UPGRADE) && other.is_none() && !is_http(protocol);
    asks.then(|| protocol.clone())
}

/// Whether one of these is HTTP, or would hide it: `h2c`, `HTTP/2.0`, `TLS/1.3`, or a list that is none.
pub(crate) fn is_http(protocols: &HeaderValue) -> bool {
    let Ok(protocols) = protocols.to_str() else { return true };
    let is_token = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+".contains(&byte))
    };
    protocols.split(',').any(|protocol| {
        let (name, version) = protocol.trim().split_once('/').unwrap_or((protocol.trim(), "1"));
        let name = name.to_ascii_lowercase();
        !is_token(&name)
            || !is_token(version)
            || ["h2", "h3", "http", "tls", "spdy"].iter().any(|http| name.starts_with(http))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        HeaderMap::from_iter(pairs)
    }

    fn asker() -> Asker {
        Asker::new("::ffff:203.0.113.7".parse().unwrap(), true)
    }

    #[test]
    fn what_a_stranger_says_of_those_in_front_of_it_is_replaced() {
        let mut sent = headers(&[
            ("host", "shop.example"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "evil.example"),
            ("forwarded", "for=10.0.0.1"),
        ]);
        forward(&mut sent, &asker(), false);
        let expected = headers(&[
            ("host", "shop.example"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop.example"),
        ]);
        assert_eq!(sent, expected);
    }

    #[test]
    fn what_a_trusted_proxy_says_is_continued() {
        let mut sent = headers(&[
            ("host", "shop.example"),
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-for", "198.51.100.2"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "www.example"),
            ("forwarded", "for=198.51.100.1"),
        ]);
        forward(&mut sent, &asker(), true);
        assert_eq!(sent["x-forwarded-for"], "198.51.100.1, 198.51.100.2, 203.0.113.7");
        assert_eq!(sent["x-forwarded-proto"], "http");
        assert_eq!(sent["x-forwarded-host"], "www.example");
        assert_eq!(sent["forwarded"], "for=198.51.100.1, for=203.0.113.7;proto=https");
        let mut first = headers(&[("host", "shop.example")]);
        forward(&mut first, &asker(), true);
        assert_eq!(first["x-forwarded-for"], "203.0.113.7");
        assert_eq!(first["x-forwarded-host"], "shop.example");
        assert!(!first.contains_key(FORWARDED));
    }

    #[test]
    fn what_connection_names_is_taken_off_but_never_the_host_or_the_key() {
        let key = HeaderName::from_static("idempotency-key");
        let mut sent = headers(&[
            ("connection", "close, X-Foo, host, Idempotency-Key, x-forwarded-for"),
            ("x-foo", "1"),
            ("x-bar", "1"),
            ("host", "a.example"),
            ("idempotency-key", "k"),
        ]);
        strip_named(&mut sent, &[&key]);
        forward(&mut sent, &asker(), false);
        to_service(&mut sent, Version::HTTP_11, Version::HTTP_11, None);
        assert!(!sent.contains_key("x-foo") && !sent.contains_key(CONNECTION));
        for there in ["x-bar", "host", "idempotency-key", "x-forwarded-for"] {
            assert!(sent.contains_key(there), "{there}");
        }
    }

    /// G01, S04
    #[test]
    fn what_a_service_may_take_for_another_header_does_not_reach_it() {
        let policy = Policy {
            scope: vec![Source::Header(HeaderName::from_static("x-api-key")), Source::Route],
            ..Policy::default()
        };
        let mut sent = headers(&[
            ("onlyonce_token", "1"),
            ("onlyonce-_token", "1"),
            ("idempotency_key", "1"),
            ("x_forwarded_for", "1"),
            ("x-forwarded_host", "1"),
            ("x_api_key", "1"),
            ("if_match", "1"),
            ("x_http_method_override", "1"),
            ("content_length", "1"),
            ("transfer_encoding", "1"),
            ("api_version", "1"),
            ("x-b", "1"),
        ]);
        strip_lookalikes(&mut sent, &policy);
        assert_eq!(sent, headers(&[("api_version", "1"), ("x-b", "1")]));
        // What the settings spell with an underscore is meant.
        let policy =
            Policy { key_from: vec!["header:idempotency_key".parse().unwrap()], ..Policy::default() };
        let mut sent = headers(&[("idempotency_key", "1"), ("onlyonce_attempt", "1")]);
        strip_lookalikes(&mut sent, &policy);
        assert_eq!(sent, headers(&[("idempotency_key", "1")]));
    }

    #[test]
    fn cookies_that_came_one_by_one_go_as_one_line() {
        let mut sent = headers(&[("cookie", "a=1"), ("cookie", "b=2"), ("te", "trailers")]);
        to_service(&mut sent, Version::HTTP_2, Version::HTTP_11, None);
        assert_eq!(sent, headers(&[("cookie", "a=1; b=2")]));
    }

    #[test]
    fn an_upgrade_is_one_that_connection_names() {
        let asks = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert_eq!(upgrade(&asks).unwrap(), "websocket");
        assert_eq!(upgrade(&headers(&[("upgrade", "websocket")])), None);
        assert_eq!(upgrade(&headers(&[("connection", "upgrade")])), None);
        for http in [
            "h2c",
            "H2C",
            "websocket, h2c",
            "h2c,websocket",
            "websocket,\th2c ",
            "websocket, h2c;q=1",
            "websocket h2c",
            "\"h2c\"",
            "websocket, h2c-14",
            "websocket,,h2c",
            "websocket, ",
            "HTTP/2.0",
            "TLS/1.3",
            "websocket\u{e9}, h2c",
        ] {
            assert_eq!(upgrade(&headers(&[("connection", "upgrade"), ("upgrade", http)])), None, "{http}");
        }
        let two = [("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")];
        assert_eq!(upgrade(&headers(&two)), None);
    }
}
