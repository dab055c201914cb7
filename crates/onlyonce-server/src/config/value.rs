//! What stands in a setting, read: spans, bytes, methods, addresses. Each function says what it expects instead.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, Method, Uri};

use super::names;
use super::secret::Environment;
use super::tree::{Node, Value};
use super::{Network, Upstream};

/// What is wrong with a value. A list can have several of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// The part of it that is; none: nobody's business.
    pub(super) value: Option<String>,
    pub(super) remedy: String,
}

pub(super) type Read<T> = Result<T, Vec<Wrong>>;

pub(super) fn wrong<T>(value: impl Display, remedy: impl Into<String>) -> Read<T> {
    Err(vec![Wrong { value: Some(value.to_string()), remedy: remedy.into() }])
}

fn is_no<T>(node: &Node, expected: &str) -> Read<T> {
    wrong(&node.value, format!("is not {expected}"))
}

/// A text; from a variable or `--set` also one that TOML would read as something else.
pub(super) fn text(node: &Node) -> Read<String> {
    text_or(node, "a string; write it in quotes")
}

fn text_or(node: &Node, expected: &str) -> Read<String> {
    match (&node.value, &node.text) {
        (Value::Text(text), _) => Ok(text.clone()),
        (Value::Integer(_) | Value::Flag(_) | Value::Odd(_), Some(text)) => Ok(text.clone()),
        _ => is_no(node, expected),
    }
}

/// The elements of a list, each read; every wrong one is told.
pub(super) fn list<T>(node: &Node, expected: &str, read: impl Fn(&Node) -> Read<T>) -> Read<Vec<T>> {
    let Value::List(nodes) = &node.value else {
        return is_no(node, &format!("a list; write it like {expected}"));
    };
    let mut elements = Vec::with_capacity(nodes.len());
    let mut wrongs = Vec::new();
    for node in nodes {
        match read(node) {
            Ok(element) => elements.push(element),
            Err(found) => wrongs.extend(found),
        }
    }
    if wrongs.is_empty() { Ok(elements) } else { Err(wrongs) }
}

/// The members of a table, each read with its name; every wrong one is told.
pub(super) fn members<T>(
    node: &Node,
    expected: &str,
    read: impl Fn(&str, &Node) -> Read<T>,
) -> Read<Vec<(String, T)>> {
    let Some(table) = node.table() else {
        let remedy = format!("is not a table; write it like {expected}");
        return Err(vec![Wrong { value: None, remedy }]);
    };
    let mut members = Vec::with_capacity(table.len());
    let mut wrongs = Vec::new();
    for (name, node) in table {
        match read(name, node) {
            Ok(member) => members.push((name.clone(), member)),
            Err(found) => wrongs.extend(found),
        }
    }
    if wrongs.is_empty() { Ok(members) } else { Err(wrongs) }
}

pub(super) fn flag(node: &Node) -> Read<bool> {
    match &node.value {
        Value::Flag(flag) => Ok(*flag),
        Value::Text(_) | Value::Integer(_) | Value::List(_) | Value::Table(_) | Value::Odd(_) => {
            is_no(node, "true or false; write it without quotes")
        }
    }
}

/// From 0 to 1.
pub(super) fn part(node: &Node, _: &Environment<'_>) -> Read<f64> {
    let part = match &node.value {
        Value::Integer(_) | Value::Odd(_) => node.value.to_string().parse::<f64>().ok(),
        Value::Text(_) | Value::Flag(_) | Value::List(_) | Value::Table(_) => None,
    };
    match part {
        Some(part) if (0.0..=1.0).contains(&part) => Ok(part),
        Some(_) | None => is_no(node, "a number from 0 to 1; write it like 0.1"),
    }
}

/// `5s`, `250ms`, `23h`, `7d`.
pub(super) fn span(node: &Node) -> Read<Duration> {
    const EXPECTED: &str = "a duration; write it with its unit, like 250ms, 5s, 10m, 23h or 7d";
    let text = match &node.value {
        Value::Integer(number) => {
            return wrong(number, format!("has no unit; write {number}s if seconds are meant"));
        }
        Value::Text(text) => text.trim(),
        Value::Flag(_) | Value::List(_) | Value::Table(_) | Value::Odd(_) => return is_no(node, EXPECTED),
    };
    let (number, unit) = split_unit(text);
    let Ok(number) = number.parse::<u64>() else { return is_no(node, EXPECTED) };
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1_000),
        "m" | "min" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "d" => number.checked_mul(86_400_000),
        "" => return wrong(text, format!("has no unit; write {number}s if seconds are meant")),
        _ => return is_no(node, EXPECTED),
    };
    millis.map_or_else(|| wrong(text, "is too long; shorten it"), |millis| Ok(Duration::from_millis(millis)))
}

/// `1MiB`, `64KiB`, `1000`.
pub(super) fn bytes(node: &Node) -> Read<u64> {
    const EXPECTED: &str = "a number of bytes; write it like 64KiB, 1MiB or 1048576";
    let text = match &node.value {
        Value::Integer(number) => return u64::try_from(*number).or_else(|_| is_no(node, EXPECTED)),
        Value::Text(text) => text.trim(),
        Value::Flag(_) | Value::List(_) | Value::Table(_) | Value::Odd(_) => return is_no(node, EXPECTED),
    };
    let (number, unit) = split_unit(text);
    let Ok(number) = number.parse::<u64>() else { return is_no(node, EXPECTED) };
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return is_no(node, EXPECTED),
    };
    number.checked_mul(factor).map_or_else(|| wrong(text, "is too large; lower it"), Ok)
}

fn split_unit(text: &str) -> (&str, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (&text[..digits], text[digits..].trim_start())
}

pub(super) fn count(node: &Node) -> Read<u64> {
    match &node.value {
        Value::Integer(number) => u64::try_from(*number).or_else(|_| wrong(number, "is below 0; raise it")),
        Value::Text(_) | Value::Flag(_) | Value::List(_) | Value::Table(_) | Value::Odd(_) => {
            is_no(node, "a whole number; write it without quotes")
        }
    }
}

/// What one of a few words stands for.
pub(super) fn word<T: Copy>(node: &Node, words: &[(&str, T)]) -> Read<T> {
    let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
    let expected = format!("one of {}", names.join(", "));
    let text = text_or(node, &expected)?;
    words
        .iter()
        .find(|(name, _)| *name == text)
        .map_or_else(|| is_no(node, &meant(&text, &names, expected)), |(_, meant)| Ok(*meant))
}

/// What is expected, with the word that was probably meant.
fn meant(text: &str, names: &[&str], expected: String) -> String {
    match names::nearest(&text.to_ascii_lowercase(), names.iter().copied()) {
        Some(near) => format!("{expected}; did you mean {near}?"),
        None => expected,
    }
}

pub(super) fn method(node: &Node) -> Read<Method> {
    let text = text(node)?;
    let is_standing = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if is_standing && let Ok(method) = text.parse() {
        return Ok(method);
    }
    wrong(text, "is not a method; write it in capitals, like POST")
}

/// `true`, `false`, or a list of methods.
pub(super) fn required(node: &Node) -> Read<Required> {
    match &node.value {
        Value::Flag(true) => Ok(Required::Usual),
        Value::Flag(false) => Ok(Required::None),
        Value::List(_) => list(node, "[\"POST\"]", method).map(Required::These),
        Value::Text(_) | Value::Integer(_) | Value::Table(_) | Value::Odd(_) => {
            is_no(node, "true, false or a list of methods such as [\"POST\"]")
        }
    }
}

/// Which methods must carry a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Required {
    None,
    /// POST and PATCH, as far as they are covered.
    Usual,
    These(Vec<Method>),
}

pub(super) fn status(node: &Node) -> Read<u16> {
    const EXPECTED: &str = "is not a final HTTP status; use 200 to 599";
    match &node.value {
        Value::Integer(number @ 200..=599) => u16::try_from(*number).or_else(|_| wrong(number, EXPECTED)),
        Value::Integer(number) => wrong(number, EXPECTED),
        Value::Text(_) | Value::Flag(_) | Value::List(_) | Value::Table(_) | Value::Odd(_) => {
            is_no(node, "an HTTP status; write it like 429")
        }
    }
}

pub(super) fn header(node: &Node) -> Read<HeaderName> {
    let text = text(node)?;
    text.parse().or_else(|_| wrong(text, "is not a header name; write it like Idempotency-Key"))
}

/// Anything that reads itself and says what is wrong.
pub(super) fn parsed<T: FromStr<Err: Display>>(node: &Node) -> Read<T> {
    let text = text(node)?;
    text.parse().map_err(|error: T::Err| vec![Wrong { value: None, remedy: error.to_string() }])
}

pub(super) fn address(node: &Node) -> Read<SocketAddr> {
    let text = text(node)?;
    if let Some(port) = text.strip_prefix("localhost:") {
        return wrong(&text, format!("is a host name; write an address, like 127.0.0.1:{port}"));
    }
    let is_port = text.strip_prefix(':').unwrap_or(&text).parse::<u16>().is_ok();
    let port = if is_port { text.trim_start_matches(':') } else { "8080" };
    text.parse().or_else(|_| {
        wrong(
            &text,
            format!(
                "is not an address with a port; write 127.0.0.1:{port}, or 0.0.0.0:{port} for all interfaces"
            ),
        )
    })
}

fn path(node: &Node) -> Read<PathBuf> {
    match text(node)? {
        empty if empty.is_empty() => wrong(empty, "is empty; write the path of a file"),
        path => Ok(path.into()),
    }
}

/// A file in PEM that can be read now and has such a part; what is in it is read by those who use it.
pub(super) fn pem(node: &Node, label: &str) -> Read<PathBuf> {
    let path = path(node)?;
    match std::fs::read(&path) {
        Ok(bytes) if has_pem(&bytes, label) => Ok(path),
        Ok(_) => wrong(path.display(), format!("has no \"{label}\" in PEM; use a file that has one")),
        Err(error) => {
            wrong(path.display(), format!("cannot be read: {error}; use a file that this user may read"))
        }
    }
}

fn has_pem(bytes: &[u8], label: &str) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let end = format!("{label}-----");
    text.lines().any(|line| line.trim().strip_prefix("-----BEGIN ").is_some_and(|rest| rest.ends_with(&end)))
}

/// A service: `http://…` or `https://…`, with a path perhaps, and nothing else.
pub(super) fn service(node: &Node) -> Read<Uri> {
    let uri = url(node)?;
    if uri.query().is_some() {
        return wrong(&uri, "has a query, but requests have their own; remove it");
    }
    Ok(uri)
}

/// `http://…` or `https://…` without credentials.
pub(super) fn url(node: &Node) -> Read<Uri> {
    const EXPECTED: &str = "write it like http://127.0.0.1:3000";
    let text = text(node)?;
    if text
        .split_once("://")
        .is_some_and(|(_, rest)| rest.split('/').next().is_some_and(|host| host.contains('@')))
    {
        let remedy = format!("contains credentials, which would appear in logs; remove them and {EXPECTED}");
        return Err(vec![Wrong { value: None, remedy }]);
    }
    if !text.contains("://") {
        return wrong(&text, format!("does not begin with http:// or https://; {EXPECTED}"));
    }
    if text.contains('#') {
        return wrong(&text, "has a fragment, which is never sent; remove it");
    }
    let Ok(uri) = text.parse::<Uri>() else { return wrong(&text, format!("is not a URL; {EXPECTED}")) };
    let Some(authority) = uri.authority() else {
        return wrong(&text, format!("has no host; {EXPECTED}"));
    };
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return wrong(&text, format!("is neither http:// nor https://; {EXPECTED}"));
    }
    let port = authority.as_str().rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    if authority.host().is_empty()
        || port.is_some_and(|(_, port)| !port.parse::<u16>().is_ok_and(|port| port > 0))
    {
        return wrong(&text, format!("has no valid host or port; {EXPECTED}"));
    }
    Ok(uri)
}

impl Upstream {
    /// The address it is at, where that can be told without asking anybody.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let host = self.uri.host()?.trim_start_matches('[').trim_end_matches(']');
        let address = if host == "localhost" { IpAddr::from([127, 0, 0, 1]) } else { host.parse().ok()? };
        let usual = if self.uri.scheme_str() == Some("https") { 443 } else { 80 };
        Some(SocketAddr::new(address, self.uri.port_u16().unwrap_or(usual)))
    }
}

/// `10.0.0.0/8`, or one address.
pub(super) fn network(node: &Node) -> Read<Network> {
    const EXPECTED: &str = "is not an address or network; write it like 10.0.0.0/8 or ::1";
    let text = text(node)?;
    let (address, prefix) =
        text.split_once('/').map_or((&*text, None), |(address, prefix)| (address, Some(prefix)));
    let Ok(address) = address.parse::<IpAddr>() else { return wrong(&text, EXPECTED) };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let prefix_bits = match prefix.map(str::parse::<u8>) {
        None => bits,
        Some(Ok(prefix)) if prefix <= bits => prefix,
        Some(_) => return wrong(&text, EXPECTED),
    };
    let network = Network { address, prefix_bits };
    let first = network.first();
    if first != address {
        return wrong(
            &text,
            format!("is an address inside a network; write {first}/{prefix_bits}, or {address} alone"),
        );
    }
    Ok(network)
}

impl Network {
    /// The first address of the network that the address lies in.
    fn first(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0);
                IpAddr::from((u32::from(address) & mask).to_be_bytes())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits)).unwrap_or(0);
                IpAddr::from((u128::from(address) & mask).to_be_bytes())
            }
        }
    }

    /// Whether all of it is this machine.
    pub(super) fn is_loopback(&self) -> bool {
        match self.address {
            IpAddr::V4(address) => address.is_loopback() && self.prefix_bits >= 8,
            IpAddr::V6(address) => address.is_loopback() && self.prefix_bits == 128,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Place;
    use super::*;

    fn node(text: &str) -> Node {
        Node::bare(text, &Place::Set)
    }

    fn told<T: std::fmt::Debug>(read: Read<T>) -> String {
        let wrongs = read.unwrap_err();
        wrongs.into_iter().map(|wrong| format!("{:?} {}", wrong.value, wrong.remedy)).collect()
    }

    #[test]
    fn spans_have_units() {
        for (text, millis) in
            [("250ms", 250), ("5s", 5_000), ("10m", 600_000), ("23h", 82_800_000), ("7d", 604_800_000)]
        {
            assert_eq!(span(&node(text)), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert!(told(span(&node("5"))).contains("write 5s if seconds are meant"));
        assert!(told(span(&node("'5'"))).contains("write 5s if seconds are meant"));
        for text in [
            "",
            "s",
            "-5s",
            "1.5h",
            "5 weeks",
            "5S",
            "true",
            "[]",
            "99999999999999999999s",
            "300000000000000000d",
        ] {
            assert!(span(&node(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_have_units_or_none() {
        for (text, expected) in
            [("1MiB", 1 << 20), ("64KiB", 65_536), ("1000", 1_000), ("2 GiB", 2 << 30), ("5MB", 5_000_000)]
        {
            assert_eq!(bytes(&node(text)), Ok(expected), "{text}");
        }
        for text in ["", "-1", "1.5MiB", "1Mb", "99999999999GiB", "lots"] {
            assert!(bytes(&node(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn networks_are_whole() {
        assert_eq!(
            network(&node("10.0.0.0/8")),
            Ok(Network { address: [10, 0, 0, 0].into(), prefix_bits: 8 })
        );
        assert_eq!(network(&node("::1")).map(|network| network.is_loopback()), Ok(true));
        assert_eq!(network(&node("0.0.0.0/0")).map(|network| network.is_loopback()), Ok(false));
        assert!(told(network(&node("10.1.2.3/8"))).contains("write 10.0.0.0/8, or 10.1.2.3 alone"));
        for text in ["10.0.0.0/33", "10.0.0/8", "example.com", "::/129", "", "/8"] {
            assert!(network(&node(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn a_url_never_shows_its_credentials() {
        let told = told(url(&node("http://ann:hunter2@host/")));
        assert!(!told.contains("hunter2") && told.contains("credentials"), "{told}");
        for text in [
            "host:80",
            "ftp://host/",
            "http://",
            "/path",
            "http://host:0/",
            "http://host:99999/",
            "http://host/#x",
            "",
        ] {
            assert!(url(&node(text)).is_err(), "{text}");
        }
        assert!(url(&node("http://[::1]:3000/base")).is_ok());
        assert!(url(&node("http://[::1]")).is_ok());
        assert!(service(&node("http://host/?a=b")).is_err());
    }
}
