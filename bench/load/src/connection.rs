//! One HTTP/1.1 connection, by hand: ten thousand of them must cost the load less than they cost the server.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer that takes longer than this is counted as none.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Where requests go, and what they carry.
pub(crate) struct Target {
    /// The servers, which requests go to in turn: at least one.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) body: String,
    pub(crate) delay_ms: u64,
    pub(crate) headers: Vec<String>,
}

/// An answer, and when its last byte came.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) at: Instant,
    pub(crate) body: Vec<u8>,
}

impl Target {
    /// The first server.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        connect(self.address()).await
    }

    /// To the server whose turn it is.
    pub(crate) async fn connect_in_turn(&self, number: usize) -> io::Result<TcpStream> {
        connect(self.addresses[number % self.addresses.len()]).await
    }

    /// The payment under `key`, as it goes over the wire.
    pub(crate) fn payment(&self, key: &str) -> String {
        let headers: String = self.headers.iter().map(|header| format!("{header}\r\n")).collect();
        format!(
            "POST /payments HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nIdempotency-Key: {key}\r\n\
             X-Delay-Ms: {}\r\n{headers}Content-Length: {}\r\n\r\n{}",
            self.address(),
            self.delay_ms,
            self.body.len(),
            self.body
        )
    }

    /// How often the handler really ran so far, on all servers.
    pub(crate) async fn runs(&self) -> io::Result<u64> {
        let mut runs = 0;
        for address in &self.addresses {
            let mut stream = connect(*address).await?;
            let request = format!("GET /_count HTTP/1.1\r\nHost: {address}\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let answer = read(&mut stream).await?;
            runs += String::from_utf8_lossy(&answer.body).trim().parse::<u64>().map_err(io::Error::other)?;
        }
        Ok(runs)
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads one answer, within the bound.
pub(crate) async fn read(stream: &mut TcpStream) -> io::Result<Answer> {
    tokio::time::timeout(ANSWER_WITHIN, read_unbounded(stream)).await?
}

async fn read_unbounded(stream: &mut TcpStream) -> io::Result<Answer> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some(end) = find(&bytes, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let body = &bytes[end + 4..];
            if is_whole(&head, body)? {
                return Ok(Answer { status: status(&head)?, at: Instant::now(), body: body.to_vec() });
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn is_whole(head: &str, body: &[u8]) -> io::Result<bool> {
    if let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length:")) {
        return Ok(body.len() >= length.trim().parse::<usize>().map_err(io::Error::other)?);
    }
    if head.contains("transfer-encoding: chunked") {
        return Ok(body.ends_with(b"0\r\n\r\n"));
    }
    Ok(true)
}

fn status(head: &str) -> io::Result<u16> {
    head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}
