//! Who may use the admin port.
//!
//! 1. Once any token is configured, every request shows one, also from this machine: a forwarded port and a proxy arrive from
//!    loopback too.
//! 2. Without any token, peers on this machine may do everything, as `local`. Their requests must name a loopback address as
//!    their host: a page that a browser loaded under a name of its own, and that resolves to 127.0.0.1 now, is refused.
//! 3. A change that a page of another origin sends is refused, whatever token it shows.
//! 4. Of two `Authorization`, `Host` or `Origin` lines it is ambiguous which counts: none does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Uri};
use onlyonce::operate::Operator;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::refusal::{Code, Refusal};
use crate::config::{AdminToken, Role};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// What the person calls itself: nobody has verified it.
pub(super) const AS: HeaderName = HeaderName::from_static("onlyonce-as");
/// The longest name that a person may call itself, in characters.
pub(crate) const AS_CHARS_MAX: usize = 100;
/// How the commands of the program call themselves in `User-Agent`.
const CLI: &str = "onlyonce-cli/";
/// Who does what is done without a token.
const LOCAL: &str = "local";

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// The token's name; none without a token.
    token: Option<Arc<str>>,
    pub(super) role: Role,
    from: IpAddr,
}

impl Caller {
    /// Who asks, where that may be told.
    pub(super) fn of(tokens: &[AdminToken], peer: IpAddr, head: &Parts) -> Result<Self, Refusal> {
        let from = peer.to_canonical();
        if tokens.is_empty() {
            return Self::local(from, head);
        }
        let shown = bearer(&head.headers)
            .ok_or_else(|| unauthorized("send a token in one header line: Authorization: Bearer TOKEN"))?;
        let token = tokens.iter().find(|token| is_equal(&token.token.bytes, shown.as_bytes()));
        let token = token.ok_or_else(|| unauthorized("this token is not in the settings"))?;
        Ok(Self { token: Some(token.name.as_str().into()), role: token.role, from })
    }

    fn local(from: IpAddr, head: &Parts) -> Result<Self, Refusal> {
        if !from.is_loopback() {
            return Err(unauthorized(
                "requests from other machines need a token; add an [[admin_token]] to the settings",
            ));
        }
        if !names_loopback(head) {
            return Err(Refusal::new(
                Code::HostRefused,
                "without a token, the host must be 127.0.0.1, [::1] or localhost; use one of these, or add an [[admin_token]] to the settings",
            ));
        }
        Ok(Self { token: None, role: Role::Operate, from })
    }

    /// Somebody who asks for what everybody may see.
    pub(super) fn anybody(peer: IpAddr) -> Self {
        Self { token: None, role: Role::Read, from: peer.to_canonical() }
    }

    /// The caller as it is told itself.
    pub(super) fn told(&self) -> Value {
        json!({ "who": self.token.as_deref().unwrap_or(LOCAL), "role": role_name(self.role) })
    }

    /// Whether it showed a token. What others can bring about is not in the audit log: anybody could fill it.
    pub(super) fn is_known(&self) -> bool {
        self.token.is_some()
    }

    /// The caller as the audit log has it.
    pub(super) fn operator(&self, headers: &HeaderMap) -> Operator {
        let is_cli = headers
            .get(http::header::USER_AGENT)
            .and_then(|agent| agent.to_str().ok())
            .is_some_and(|agent| agent.starts_with(CLI));
        Operator {
            who: self.token.clone().unwrap_or_else(|| LOCAL.into()),
            role: role_name(self.role).into(),
            claims: headers.get(AS).and_then(name).map(Arc::from),
            from: Some(self.from.to_string().into()),
            via: if is_cli { "cli" } else { "api" }.into(),
        }
    }
}

/// What a person calls itself; none where that is no name.
pub(super) fn name(value: &http::HeaderValue) -> Option<&str> {
    let name = std::str::from_utf8(value.as_bytes()).ok()?.trim();
    let is_name =
        !name.is_empty() && name.chars().count() <= AS_CHARS_MAX && !name.chars().any(char::is_control);
    is_name.then_some(name)
}

pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Read => "read",
        Role::Operate => "operate",
    }
}

fn unauthorized(detail: &str) -> Refusal {
    Refusal::new(Code::Unauthorized, detail)
}

/// Refuses a change that a page of another origin sends.
pub(super) fn refuse_other_origin(head: &Parts) -> Result<(), Refusal> {
    let is_own = match only(&head.headers, &ORIGIN) {
        Only::None => true,
        Only::One(origin) => is_own_origin(origin, head),
        Only::Ambiguous => false,
    };
    let is_cross_site = head.headers.get_all(SEC_FETCH_SITE).iter().any(|site| site == "cross-site");
    if is_own && !is_cross_site {
        return Ok(());
    }
    let detail = "a page of another origin sent this; changes are accepted only from pages of this address, and from programs";
    Err(Refusal::new(Code::OriginRefused, detail).with("needs", role_name(Role::Operate)))
}

/// Whether an origin is the scheme, host and port that the request itself is for. Behind a proxy that ends TLS the scheme is
/// the proxy's: a page of another origin cannot send `X-Forwarded-Proto` without asking first, and is never allowed to.
fn is_own_origin(origin: &str, head: &Parts) -> bool {
    let own_scheme = match only(&head.headers, &FORWARDED_PROTO) {
        Only::One("https") => "https",
        Only::One(_) | Only::None | Only::Ambiguous => "http",
    };
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let (Some(theirs), Some(own)) = (Authority::parse(authority), host(head)) else { return false };
    let default_port = if own_scheme == "https" { 443 } else { 80 };
    scheme.eq_ignore_ascii_case(own_scheme)
        && theirs.host.eq_ignore_ascii_case(own.host)
        && theirs.port.unwrap_or(default_port) == own.port.unwrap_or(default_port)
}

/// Whether a request is for this machine by an address that no name server can give to another.
fn names_loopback(head: &Parts) -> bool {
    host(head).is_some_and(|authority| {
        let is_ipv4 = authority.host.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback());
        let bare = authority.host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_ipv6 = bare.is_some_and(|host| host.parse() == Ok(Ipv6Addr::LOCALHOST));
        is_ipv4 || is_ipv6 || authority.host.eq_ignore_ascii_case("localhost")
    })
}

/// The host of a request. Where its target names one too, both must be the same.
fn host(head: &Parts) -> Option<Authority<'_>> {
    let Only::One(host) = only(&head.headers, &HOST) else { return None };
    let host = Authority::parse(host)?;
    match target(&head.uri) {
        None => Some(host),
        Some(target) => (Authority::parse(target)? == host).then_some(host),
    }
}

fn target(uri: &Uri) -> Option<&str> {
    uri.authority().map(http::uri::Authority::as_str)
}

/// A host and perhaps a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Authority<'a> {
    host: &'a str,
    port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// None where it is malformed, or more than a host and a port.
    fn parse(text: &'a str) -> Option<Self> {
        let after_host = match text.strip_prefix('[') {
            Some(rest) => rest.find(']')? + 2,
            None => text.find(':').unwrap_or(text.len()),
        };
        let (host, rest) = text.split_at_checked(after_host)?;
        let port = match rest.strip_prefix(':') {
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
            Some(_) => return None,
            None if rest.is_empty() => None,
            None => return None,
        };
        let is_host = !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(&byte));
        is_host.then_some(Self { host, port })
    }
}

/// A header that may come once.
enum Only<'a> {
    None,
    One(&'a str),
    /// Several lines, or no text.
    Ambiguous,
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Only<'a> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Only::None,
        (Some(value), None) => value.to_str().map_or(Only::Ambiguous, Only::One),
        (Some(_), Some(_)) => Only::Ambiguous,
    }
}

/// The one token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let Only::One(value) = only(headers, &AUTHORIZATION) else { return None };
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Compares digests, so that the time taken reveals nothing about the token.
fn is_equal(known: &[u8], shown: &[u8]) -> bool {
    !known.is_empty() && Sha256::digest(known) == Sha256::digest(shown)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::config::Secret;

    fn tokens() -> Vec<AdminToken> {
        [("reader", "r-token", Role::Read), ("operator", "o-token", Role::Operate), ("empty", "", Role::Read)]
            .map(|(name, token, role)| AdminToken {
                name: name.to_owned(),
                token: Secret { source: "env:T".to_owned(), bytes: token.as_bytes().to_vec() },
                role,
            })
            .to_vec()
    }

    fn head(target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::post(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn code(asked: Result<Caller, Refusal>) -> Result<Option<Arc<str>>, Code> {
        asked.map(|caller| caller.token).map_err(|refusal| refusal.code)
    }

    const FAR: &str = "192.0.2.7";
    const HERE: &str = "127.0.0.1";

    /// L04
    #[test]
    fn once_there_are_tokens_everybody_shows_one_also_from_this_machine() {
        for peer in [FAR, HERE, "::1"] {
            let asks = |values: &[&str]| {
                // The host does not matter: nothing relies on loopback.
                let mut headers = vec![("host", "admin.example.com")];
                headers.extend(values.iter().map(|value| ("authorization", *value)));
                code(Caller::of(&tokens(), peer.parse().unwrap(), &head("/v1/keys", &headers)))
            };
            assert_eq!(asks(&["Bearer r-token"]), Ok(Some("reader".into())));
            assert_eq!(asks(&["bearer  o-token "]), Ok(Some("operator".into())));
            for wrong in [
                &[][..],
                &["Bearer "],
                &["Bearer"],
                &["Bearer x"],
                &["Bearer r-toke"],
                &["Bearer r-token2"],
                &["Basic r-token"],
                &["r-token"],
                &["Bearer r-token", "Bearer x"],
                &["Bearer r-token", "Bearer r-token"],
            ] {
                assert_eq!(asks(wrong), Err(Code::Unauthorized), "{peer} {wrong:?}");
            }
        }
    }

    /// L04
    #[test]
    fn without_tokens_this_machine_may_and_nobody_else() {
        let asks = |peer: &str| {
            let head = head("/v1/keys", &[("host", "localhost"), ("authorization", "Bearer r-token")]);
            code(Caller::of(&[], peer.parse().unwrap(), &head))
        };
        for here in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(asks(here), Ok(None), "{here}");
        }
        for far in [FAR, "0.0.0.0", "::ffff:192.0.2.7", "2001:db8::1"] {
            assert_eq!(asks(far), Err(Code::Unauthorized), "{far}");
        }
    }

    /// L04: a page under a name that resolves to 127.0.0.1 gets nothing.
    #[test]
    fn what_relies_on_loopback_names_a_loopback_host() {
        let asks = |target: &str, hosts: &[&str]| {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            code(Caller::of(&[], HERE.parse().unwrap(), &head(target, &headers)))
        };
        for host in [
            "localhost",
            "LocalHost:8081",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.9.9.9:65535",
            "[::1]",
            "[::1]:8081",
            "[0:0:0:0:0:0:0:1]",
        ] {
            assert_eq!(asks("/v1/keys", &[host]), Ok(None), "{host}");
        }
        for host in [
            "",
            "evil.com",
            "127.0.0.1.evil.com",
            "127.0.0.1.evil.com:8081",
            "localhost.evil.com",
            "localhost.",
            "evil-localhost",
            "localhost:8081@evil.com",
            "evil.com#localhost",
            "user@localhost",
            "localhost/x",
            "127.1",
            "0x7f.0.0.1",
            "2130706433",
            "0127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:x",
            "127.0.0.1:65536",
            "localhost:80:80",
            "[::1",
            "::1",
            "[::1]x",
            "[::2]",
            "[::ffff:127.0.0.1]",
            "0.0.0.0",
            "[::]",
            "128.0.0.1",
            "localhost,evil.com",
            "localhost evil.com",
        ] {
            assert_eq!(asks("/v1/keys", &[host]), Err(Code::HostRefused), "{host:?}");
        }
        assert_eq!(asks("/v1/keys", &[]), Err(Code::HostRefused), "none");
        assert_eq!(asks("/v1/keys", &["localhost", "localhost"]), Err(Code::HostRefused), "two");
        assert_eq!(asks("http://evil.com/v1/keys", &["localhost"]), Err(Code::HostRefused), "another target");
        assert_eq!(asks("http://localhost/v1/keys", &["localhost"]), Ok(None));
    }

    /// L04
    #[test]
    fn changes_come_from_pages_of_the_same_origin_or_from_programs() {
        let may = |headers: &[(&str, &str)]| refuse_other_origin(&head("/v1/keys", headers)).is_ok();
        let own = ("host", "admin.example.com:8081");
        assert!(may(&[own]));
        assert!(may(&[own, ("origin", "http://admin.example.com:8081")]));
        assert!(may(&[own, ("origin", "http://Admin.Example.com:8081"), ("sec-fetch-site", "same-origin")]));
        assert!(may(&[("host", "localhost"), ("origin", "http://localhost:80")]));
        let proxied = ("x-forwarded-proto", "https");
        assert!(may(&[("host", "ops.example.com"), proxied, ("origin", "https://ops.example.com")]));
        assert!(!may(&[("host", "ops.example.com"), proxied, ("origin", "http://ops.example.com")]));
        for origin in [
            "null",
            "",
            "http://admin.example.com",
            "http://admin.example.com:8082",
            "https://admin.example.com:8081",
            "http://admin.example.com:8081.evil.com",
            "http://evil.com",
            "http://evil.com:8081",
            "http://admin.example.com:8081/",
            "http://x@admin.example.com:8081",
            "admin.example.com:8081",
        ] {
            assert!(!may(&[own, ("origin", origin)]), "{origin}");
        }
        let twice = ("origin", "http://admin.example.com:8081");
        assert!(!may(&[own, twice, twice]));
        assert!(!may(&[own, ("sec-fetch-site", "cross-site")]));
        assert!(!may(&[own, twice, ("sec-fetch-site", "cross-site")]));
        assert!(!may(&[twice]), "without a host nothing is its own");
    }
}
