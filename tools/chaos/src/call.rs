//! A call of a gateway and its answer, as bytes on a connection: HTTP/1.1, as much of it as a gateway speaks.

use std::io::{BufRead, Write};
use std::net::TcpStream;

use onlyonce_testkit::history::Said;

/// A call of a gateway.
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Keep,
    Close,
}

impl Call {
    /// One request; none where the connection ends, or breaks in the middle of it.
    pub(crate) fn read(reader: &mut impl BufRead) -> Option<Self> {
        let path = line(reader)?.split(' ').nth(1)?.to_owned();
        let mut headers = Vec::new();
        while let Some((name, value)) = line(reader)?.split_once(':') {
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|(_, length)| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        Some(Self { path, headers, body: String::from_utf8(body).ok()? })
    }

    /// The value of a header, or nothing.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value.as_str())
    }
}

/// A whole line: half a line is the end of the connection, and not the end of a head.
fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.strip_suffix("\r\n").map(str::to_owned)
}

/// Sends an answer, or only so much of its body.
pub(crate) fn send(stream: &TcpStream, said: &Said, only: Option<usize>) -> Then {
    send_with(stream, said, "", only)
}

/// The same with more headers, each with the end of its line.
pub(crate) fn send_with(mut stream: &TcpStream, said: &Said, headers: &str, only: Option<usize>) -> Then {
    let Said { status, body } = said;
    let head = format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    let body = &body[..only.unwrap_or(body.len())];
    match stream.write_all(format!("{head}{body}").as_bytes()) {
        Ok(()) => Then::Keep,
        Err(_) => Then::Close,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "POST /keyed HTTP/1.1\r\nX-Request: 7\r\ncontent-length: 2\r\n\r\n{}";

    #[test]
    fn a_call_is_read() {
        let call = Call::read(&mut WHOLE.as_bytes()).unwrap();
        assert_eq!((call.path.as_str(), call.header("x-request"), call.body.as_str()), ("/keyed", "7", "{}"));
        assert_eq!(call.header("x-other"), "");
    }

    #[test]
    fn a_call_that_breaks_off_is_none() {
        for end in 0..WHOLE.len() {
            assert!(Call::read(&mut &WHOLE.as_bytes()[..end]).is_none(), "{:?}", &WHOLE[..end]);
        }
    }
}
