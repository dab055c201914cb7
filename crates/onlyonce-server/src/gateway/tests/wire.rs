//! HTTP/1.1 messages, read and written by hand, so that no library corrects them.

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection that speaks HTTP/1.1, from either end.
pub(super) struct Wire {
    pub(super) tcp: TcpStream,
    read: BytesMut,
}

/// A message: its first line, its headers in lower case, its body.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) first: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Wire {
    pub(super) fn new(tcp: TcpStream) -> Self {
        tcp.set_nodelay(true).unwrap();
        Self { tcp, read: BytesMut::new() }
    }

    pub(super) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.tcp.write_all(bytes.as_ref()).await.unwrap();
    }

    /// A whole message; none where the connection ended before one began.
    pub(super) async fn message(&mut self) -> Option<Message> {
        let mut message = self.head().await?;
        let length = message.header("content-length").map(|length| length.parse().unwrap());
        let is_chunked = message.header("transfer-encoding") == Some("chunked");
        let is_request = !message.first.starts_with("HTTP/");
        let is_bare =
            ["101", "204", "304"].iter().any(|status| message.first.split(' ').nth(1) == Some(*status));
        message.body = match length {
            _ if is_chunked => self.chunks().await,
            _ if is_bare => Vec::new(),
            Some(length) => self.exactly(length).await.expect("a body of that length"),
            None if is_request => Vec::new(),
            None => self.rest().await,
        };
        Some(message)
    }

    /// Only the head of a message.
    pub(super) async fn head(&mut self) -> Option<Message> {
        let first = self.line().await?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await.expect("a head that ends");
            if line.is_empty() {
                return Some(Message { first, headers, body: Vec::new() });
            }
            let (name, value) = line.split_once(':').expect("a header");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    pub(super) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(at + 1);
                return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            self.more().await?;
        }
    }

    pub(super) async fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.read.len() < length {
            self.more().await?;
        }
        Some(self.read.split_to(length).to_vec())
    }

    async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let size = self.line().await.expect("the size of a chunk");
            let size = usize::from_str_radix(&size, 16).expect("a number");
            body.extend(self.exactly(size).await.expect("a whole chunk"));
            if size == 0 {
                while !self.line().await.expect("the end of the chunks").is_empty() {}
                return body;
            }
            self.line().await.expect("the end of a chunk");
        }
    }

    /// What comes until the other end closes.
    pub(super) async fn rest(&mut self) -> Vec<u8> {
        while self.more().await.is_some() {}
        self.read.split().to_vec()
    }

    /// Ready once the other end has closed, or reset.
    pub(super) async fn closed(&mut self) {
        while self.more().await.is_some() {}
    }

    async fn more(&mut self) -> Option<()> {
        let read = self.tcp.read_buf(&mut self.read).await.unwrap_or(0);
        (read > 0).then_some(())
    }
}

impl Message {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn status(&self) -> u16 {
        self.first.split(' ').nth(1).expect("a status line").parse().expect("a status")
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The `code` of a problem.
    pub(super) fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).expect("a problem in JSON");
        problem["code"].as_str().unwrap_or_default().to_owned()
    }
}
