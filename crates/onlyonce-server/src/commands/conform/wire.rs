//! One request and its answer over HTTP/1.1, byte by byte: a key may be malformed, and a client may hang up.

use std::time::Duration;

use http::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::config::{Protocol, Upstream};
use crate::tls::{Connector, Stream};

const HEAD_BYTES_MAX: usize = 256 << 10;
const BODY_BYTES_MAX: usize = 16 << 20;

/// How far the client goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// It waits for the answer.
    Patient,
    /// It sends everything, and is gone.
    HangsUp,
    /// It sends half of the body, and is gone.
    BreaksOff,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(super) fn is_refusal(&self) -> bool {
        (400..500).contains(&self.status)
    }
}

/// Sends `head` and `body`. None where the client did not wait for an answer.
///
/// # Errors
///
/// Why there is no answer.
pub(super) async fn exchange(
    target: &Uri,
    connector: &Connector,
    (head, body): (&[u8], &[u8]),
    manner: Manner,
    within: Duration,
) -> Result<Option<Answer>, String> {
    let upstream = Upstream { uri: target.clone(), protocol: Protocol::Http1 };
    let connected = connector.connect(&upstream).await.map_err(|error| format!("{error:#}"))?;
    let mut stream = connected.stream;
    let all = async {
        let broke = |error: std::io::Error| format!("the connection broke: {error}");
        let sent = if manner == Manner::BreaksOff { &body[..body.len() / 2] } else { body };
        stream.write_all(head).await.map_err(broke)?;
        stream.write_all(sent).await.map_err(broke)?;
        stream.flush().await.map_err(broke)?;
        if manner != Manner::Patient {
            stream.shutdown().await.map_err(broke)?;
            return Ok(None);
        }
        read(&mut stream).await.map(Some)
    };
    timeout(within, all).await.unwrap_or_else(|_| Err(format!("no answer within {within:?}")))
}

/// What was read so far, of which the beginning is taken.
struct Reader<'a> {
    stream: &'a mut Stream,
    bytes: Vec<u8>,
}

async fn read(stream: &mut Stream) -> Result<Answer, String> {
    let mut reader = Reader { stream, bytes: Vec::new() };
    loop {
        let head = reader.until(b"\r\n\r\n", HEAD_BYTES_MAX).await?;
        let (status, headers) = parsed(&String::from_utf8_lossy(&head))?;
        if (100..200).contains(&status) && status != 101 {
            continue;
        }
        let body = reader.body(status, &headers).await?;
        return Ok(Answer { status, headers, body });
    }
}

impl Reader<'_> {
    /// More bytes; false at the end.
    async fn more(&mut self) -> Result<bool, String> {
        if self.bytes.len() > HEAD_BYTES_MAX + BODY_BYTES_MAX {
            return Err(format!("the answer is longer than {} MiB", BODY_BYTES_MAX >> 20));
        }
        let count = self.stream.read_buf(&mut self.bytes).await;
        Ok(count.map_err(|error| format!("the answer broke off: {error}"))? > 0)
    }

    /// The bytes up to and with `end`.
    async fn until(&mut self, end: &[u8], most: usize) -> Result<Vec<u8>, String> {
        loop {
            if let Some(at) = self.bytes.windows(end.len()).position(|window| window == end) {
                return Ok(self.bytes.drain(..at + end.len()).collect());
            }
            if self.bytes.len() > most || !self.more().await? {
                return Err("the connection was closed without an answer".to_owned());
            }
        }
    }

    async fn exactly(&mut self, count: usize) -> Result<Vec<u8>, String> {
        if count > BODY_BYTES_MAX {
            return Err(format!("the answer is longer than {} MiB", BODY_BYTES_MAX >> 20));
        }
        while self.bytes.len() < count {
            if !self.more().await? {
                return Err("the answer broke off".to_owned());
            }
        }
        Ok(self.bytes.drain(..count).collect())
    }

    async fn body(&mut self, status: u16, headers: &[(String, String)]) -> Result<Vec<u8>, String> {
        let of = |name: &str| headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        if matches!(status, 204 | 304) {
            return Ok(Vec::new());
        }
        if of("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return self.chunks().await;
        }
        if let Some(length) = of("content-length") {
            let length = length.parse().map_err(|_| format!("a content-length of \"{length}\""))?;
            return self.exactly(length).await;
        }
        while self.more().await? {}
        Ok(std::mem::take(&mut self.bytes))
    }

    async fn chunks(&mut self) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        loop {
            let line = self.until(b"\r\n", HEAD_BYTES_MAX).await?;
            let line = String::from_utf8_lossy(&line);
            let size = line.split([';', '\r']).next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| format!("a chunk of \"{size}\""))?;
            if size == 0 {
                return Ok(body);
            }
            body.extend(self.exactly(size).await?);
            self.until(b"\r\n", HEAD_BYTES_MAX).await?;
            if body.len() > BODY_BYTES_MAX {
                return Err(format!("the answer is longer than {} MiB", BODY_BYTES_MAX >> 20));
            }
        }
    }
}

fn parsed(head: &str) -> Result<(u16, Vec<(String, String)>), String> {
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    let status = status.ok_or_else(|| format!("not an answer of HTTP/1.1: \"{}\"", first.escape_debug()))?;
    let fields = lines.filter_map(|line| line.split_once(':'));
    Ok((status, fields.map(|(name, value)| (name.trim().to_lowercase(), value.trim().to_owned())).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_a_status_and_fields() {
        let (status, headers) =
            parsed("HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nX: a: b\r\n\r\n").unwrap();
        assert_eq!(status, 201);
        assert_eq!(
            headers,
            [("content-type", "text/plain"), ("x", "a: b")].map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
        for head in ["", "HTTP/2 200\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1\r\n\r\n"] {
            assert!(parsed(head).is_err(), "{head:?}");
        }
    }
}
