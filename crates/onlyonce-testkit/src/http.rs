//! One HTTP/1.1 request on a connection of its own: enough to ask a server under test, without a client library.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A request.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the parts of an HTTP request")]
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a str,
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body, without its chunked coding.
    pub body: Vec<u8>,
}

impl Answer {
    /// The first value of a header, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Whether one line of a header has this value.
    pub fn has(&self, name: &str, value: &str) -> bool {
        self.headers.iter().any(|(own, said)| own.eq_ignore_ascii_case(name) && said == value)
    }
}

/// A GET without headers.
///
/// # Errors
///
/// Where there is no connection, or no whole answer.
pub fn get(address: &str, path: &str) -> Result<Answer> {
    send(address, Request { method: "GET", path, headers: &[], body: "" })
}

/// Sends a request and reads the answer to its end.
///
/// # Errors
///
/// Where there is no connection, or no whole answer.
pub fn send(address: &str, request: Request<'_>) -> Result<Answer> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let Request { method, path, headers, body } = request;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).with_context(|| format!("no answer to {method} {path}"))?;
    parse(&bytes).with_context(|| format!("cannot read the answer to {method} {path}"))
}

/// The answer that these bytes are.
///
/// # Errors
///
/// Where it is malformed, or breaks off.
pub fn parse(bytes: &[u8]) -> Result<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("it has no head")?;
    let head = std::str::from_utf8(&bytes[..end]).context("its head is not text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    let status = status.with_context(|| format!("it begins with {:?}", head.lines().next()))?;
    let mut answer = Answer { status, headers, body: bytes[end + 4..].to_vec() };
    if answer.header("transfer-encoding").is_some() {
        answer.body = unchunked(&answer.body).context("its chunks are malformed")?;
    } else if let Some(length) =
        answer.header("content-length").and_then(|length| length.parse::<usize>().ok())
        && answer.body.len() != length
    {
        bail!("it has {} bytes of {length}", answer.body.len());
    }
    Ok(answer)
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let chunk = rest.get(end + 2..)?;
        body.extend_from_slice(chunk.get(..size)?);
        rest = chunk.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let answer =
            parse(b"HTTP/1.1 201 Created\r\nX-Name:  value \r\ncontent-length: 2\r\n\r\nok").unwrap();
        assert_eq!(
            (answer.status, answer.header("x-name"), &answer.body[..]),
            (201, Some("value"), &b"ok"[..])
        );
        let chunked =
            parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n");
        assert_eq!(chunked.unwrap().body, b"ok0123456789");
    }

    #[test]
    fn half_an_answer_is_none() {
        assert!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\no").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\n").is_err());
    }
}
