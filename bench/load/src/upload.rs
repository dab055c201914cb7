//! One large body without a key: does the server let it pass, or does it hold it?

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::connection::read;
use crate::memory::memory_bytes;

/// Written at once. The server's memory is looked at after every so many of them.
const CHUNK: [u8; 64 << 10] = [b'x'; 64 << 10];
const LOOK_EVERY: u64 = 64;
/// A server that takes longer for one chunk has stopped reading.
const CHUNK_WITHIN: Duration = Duration::from_secs(30);

/// Sends it to `/upload`, which answers with the number of bytes that came.
pub(crate) async fn run(address: SocketAddr, bytes: u64, pid: u64, headers: &[String]) -> io::Result<Value> {
    let before = memory_bytes(pid)?;
    let mut most = before;
    let began = Instant::now();
    let mut stream = TcpStream::connect(address).await?;
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head =
        format!("POST /upload HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Length: {bytes}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut left = bytes;
    for chunk in 1_u64.. {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK.len());
        if size == 0 {
            break;
        }
        tokio::time::timeout(CHUNK_WITHIN, stream.write_all(&CHUNK[..size])).await??;
        left -= size as u64;
        if chunk.is_multiple_of(LOOK_EVERY) {
            most = most.max(memory_bytes(pid)?);
        }
    }
    let answer = read(&mut stream).await?;
    let arrived: Option<u64> = String::from_utf8_lossy(&answer.body).trim().parse().ok();
    Ok(json!({
        "bytes": bytes,
        "arrived": arrived,
        "status": answer.status,
        "seconds": began.elapsed().as_secs_f64(),
        "memory_before_bytes": before,
        "memory_max_bytes": most.max(memory_bytes(pid)?),
    }))
}
