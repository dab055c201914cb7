//! Two requests on one connection: a proxy sends the second on a connection that it has used for the first.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onlyonce_testkit::http::Request;

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The status of the second answer; none if the connection was closed instead. The first must succeed.
pub(super) fn second_status(address: &str, first: Request<'_>, second: Request<'_>) -> Result<Option<u16>> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut reader = BufReader::new(&stream);
    (&stream).write_all(text(address, first).as_bytes())?;
    let answer = read(&mut reader)?.context("the first request has no answer")?;
    ensure!(answer < 300, "the first request is answered with {answer}");
    (&stream).write_all(text(address, second).as_bytes())?;
    read(&mut reader)
}

fn text(address: &str, request: Request<'_>) -> String {
    let Request { method, path, headers, body } = request;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads an answer that has a length, and gives its status.
fn read(reader: &mut impl BufRead) -> Result<Option<u16>> {
    let mut first = String::new();
    // A connection that is reset is closed too.
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return Ok(None);
    }
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(Some(status.with_context(|| format!("an answer begins with {first:?}"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_end() {
        let mut two = &b"HTTP/1.1 201 -\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 502 -\r\n\r\n"[..];
        assert_eq!(read(&mut two).unwrap(), Some(201));
        assert_eq!(read(&mut two).unwrap(), Some(502));
        assert_eq!(read(&mut two).unwrap(), None);
        assert!(read(&mut &b"nonsense\r\n\r\n"[..]).is_err());
    }
}
