//! The service behind a proxy: it counts its runs, and keeps its connections open, as services do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

/// How long the work takes: long enough for others to come meanwhile.
const WORK: Duration = Duration::from_millis(60);

/// A service on a port of its own, for as long as this process lives.
pub(super) struct Service {
    pub(super) address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    runs: AtomicUsize,
    /// Whether the last connection that broke had carried a request before.
    used: AtomicBool,
}

struct Request {
    path: String,
    headers: Vec<(String, String)>,
}

impl Service {
    pub(super) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Seen::default());
        let shared = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = shared.clone();
                std::thread::spawn(move || serve(&stream, &seen));
            }
        });
        Ok(Self { address, seen })
    }

    /// How often a write ran.
    pub(super) fn runs(&self) -> usize {
        self.seen.runs.load(Ordering::SeqCst)
    }

    /// Whether the request that died last came on a connection that had been used before.
    pub(super) fn died_on_used_connection(&self) -> bool {
        self.seen.used.load(Ordering::SeqCst)
    }
}

/// One request after the other, until the connection ends or a path asks for that.
fn serve(stream: &TcpStream, seen: &Seen) {
    let mut reader = BufReader::new(stream);
    let mut used = false;
    while let Some(request) = read(&mut reader) {
        let answer = match request.path.as_str() {
            "/count" => answer(200, &seen.runs.load(Ordering::SeqCst).to_string()),
            // It dies after the effect.
            "/dies" => {
                seen.used.store(used, Ordering::SeqCst);
                seen.runs.fetch_add(1, Ordering::SeqCst);
                return;
            }
            path => {
                let run = seen.runs.fetch_add(1, Ordering::SeqCst) + 1;
                std::thread::sleep(WORK);
                let host = request.header("host");
                let clients = request.values("x-forwarded-for");
                let attempt = request.header("onlyonce-attempt");
                answer(
                    201,
                    &json!({"id": run, "path": path, "host": host, "clients": clients, "attempt": attempt})
                        .to_string(),
                )
            }
        };
        let mut writer = stream;
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
        used = true;
    }
}

fn answer(status: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nServer: shop/7\r\nX-Shop-Note: as it was\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// None at the end of the connection, and for a request that is not whole.
fn read(reader: &mut impl BufRead) -> Option<Request> {
    let first = line(reader)?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let line = line(reader)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let request = Request { path, headers };
    if request.header("transfer-encoding").is_some() {
        drop_chunks(reader)?;
    } else {
        let length = request.header("content-length").map_or(Some(0), |length| length.parse().ok())?;
        drop_bytes(reader, length)?;
    }
    Some(request)
}

fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.ends_with('\n').then(|| line.trim_end().to_owned())
}

fn drop_bytes(reader: &mut impl BufRead, count: u64) -> Option<()> {
    let read = std::io::copy(&mut reader.take(count), &mut std::io::sink()).ok()?;
    (read == count).then_some(())
}

fn drop_chunks(reader: &mut impl BufRead) -> Option<()> {
    loop {
        let size = u64::from_str_radix(line(reader)?.split(';').next()?.trim(), 16).ok()?;
        drop_bytes(reader, size)?;
        line(reader)?;
        if size == 0 {
            return Some(());
        }
    }
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The elements of a header that is a list, on however many lines.
    fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.iter().filter(|(own, _)| own == name);
        lines.flat_map(|(_, value)| value.split(',')).map(str::trim).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(bytes: &str) -> Option<String> {
        read(&mut bytes.as_bytes()).map(|request| request.path)
    }

    #[test]
    fn half_a_request_is_none() {
        assert_eq!(path("POST /pay HTTP/1.1\r\nContent-Length: 2\r\n\r\nok").as_deref(), Some("/pay"));
        assert_eq!(path("POST /pay HTTP/1.1\r\nContent-Length: 2\r\n\r\no"), None);
        let chunked = "POST /pay HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        assert_eq!(path(chunked).as_deref(), Some("/pay"));
        assert_eq!(path(&chunked[..chunked.len() - 5]), None);
    }
}
