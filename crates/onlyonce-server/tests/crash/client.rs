//! A hand-written client with one connection per request: no library that could retry on its own.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How often a client comes back that is told to.
const TRIES_MAX: usize = 20;

/// The connection broke, or there was none: the client knows nothing.
#[derive(Debug)]
pub(crate) struct Lost;

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn is_replay(&self) -> bool {
        self.head.to_ascii_lowercase().contains("idempotent-replayed: true")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn is_to_wait(&self) -> bool {
        self.status == 503 || self.text().contains("idempotency_key_in_progress")
    }
}

pub(crate) async fn pay(to: SocketAddr, key: &str) -> Result<Answer, Lost> {
    let body = format!(r#"{{"order":"{key}"}}"#);
    let request = format!(
        "POST /payments HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer client\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(to).await.map_err(|_| Lost)?;
    stream.write_all(request.as_bytes()).await.map_err(|_| Lost)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.map_err(|_| Lost)?;
    read(&bytes).ok_or(Lost)
}

/// As a client does it: the same key, while it is told to come back.
pub(crate) async fn retry(to: SocketAddr, key: &str) -> Answer {
    for _ in 0..TRIES_MAX {
        let answer = pay(to, key).await.unwrap_or_else(|Lost| panic!("{key}: nothing kills this gateway"));
        if !answer.is_to_wait() {
            return answer;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("{key}: no answer after {TRIES_MAX} tries")
}

/// An answer that is whole: its body is as long as it says.
fn read(bytes: &[u8]) -> Option<Answer> {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..at].to_vec()).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = bytes[at + 4..].to_vec();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    (length == Some(body.len())).then_some(Answer { status, head, body })
}
