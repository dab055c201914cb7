//! A hand-written client with one connection per request: no library that could retry on its own.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// An answer, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Done, and a retry is promised the same.
    pub(crate) fn is_stored(&self) -> bool {
        self.status == 201 && self.header("idempotency-stored").is_none()
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        self.status == 503 && self.body.contains("idempotency_store_unavailable")
    }

    /// Whether its client is told to come back later.
    pub(crate) fn is_to_wait(&self) -> bool {
        self.status == 503 || (self.status == 409 && self.body.contains("idempotency_key_in_progress"))
    }
}

/// One request, with no retries. None of these tests kills the gateway: an answer that does not come is a failure.
pub(crate) async fn pay(to: SocketAddr, key: &str) -> Answer {
    let body = format!(r#"{{"order":"{key}"}}"#);
    let request = format!(
        "POST /payments HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer client\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    send(to, &request).await
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Answer {
    send(to, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await
}

/// The same key again while the client is told to come back, for as long as `patience`.
pub(crate) async fn retry(to: SocketAddr, key: &str, patience: Duration) -> Answer {
    let until = Instant::now() + patience;
    loop {
        let answer = pay(to, key).await;
        if !answer.is_to_wait() {
            return answer;
        }
        assert!(Instant::now() < until, "{key}: no end within {patience:?}: {answer:?}");
        sleep(Duration::from_millis(200)).await;
    }
}

async fn send(to: SocketAddr, request: &str) -> Answer {
    let began = Instant::now();
    let mut stream = TcpStream::connect(to).await.expect("the gateway listens");
    stream.write_all(request.as_bytes()).await.expect("the gateway reads");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("the gateway answers");
    let text = String::from_utf8(bytes).expect("all of it is text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole answer: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("it has a status");
    Answer { status, head: head.to_owned(), body: body.to_owned(), took: began.elapsed() }
}
