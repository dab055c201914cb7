//! A hand-written client with one connection per request: no library that could retry on its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// How long anything may take before the test is over: a bound, never a pause.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longer than anybody waits.
pub(crate) const WAIT: &str = "Prefer: wait=50\r\n";

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
    /// When it had come whole.
    pub(crate) at: Instant,
}

impl Answer {
    pub(crate) fn is_replay(&self) -> bool {
        self.head.to_ascii_lowercase().contains("idempotent-replayed: true")
    }

    /// Whether its client is promised that a retry gets the same.
    pub(crate) fn is_stored(&self) -> bool {
        !self.head.to_ascii_lowercase().contains("idempotency-stored: false")
    }

    pub(crate) fn is(&self, status: u16, code: &str) -> bool {
        self.status == status && self.body.contains(code)
    }
}

/// A payment with this key; none where the connection broke.
pub(crate) async fn pay(to: SocketAddr, key: &str) -> Option<Answer> {
    pay_with(to, key, "").await
}

/// The same with more headers, each with its line end.
pub(crate) async fn pay_with(to: SocketAddr, key: &str, headers: &str) -> Option<Answer> {
    let body = format!(r#"{{"order":"{key}"}}"#);
    let request = format!(
        "POST /payments HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer client\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n{body}",
        body.len()
    );
    send(to, &request).await
}

/// In a task.
pub(crate) fn paying(to: SocketAddr, key: &str, headers: &'static str) -> JoinHandle<Option<Answer>> {
    let key = key.to_owned();
    tokio::spawn(async move { pay_with(to, &key, headers).await })
}

pub(crate) async fn send(to: SocketAddr, request: &str) -> Option<Answer> {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.ok()?;
        Some(bytes)
    };
    let bytes = tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in good time")?;
    let at = Instant::now();
    let text = String::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned(), at })
}

/// Looks until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "{what} in good time");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
