//! An HTTP/1.1 client with control over every byte.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request as it goes on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) chunked: bool,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// 1xx answers before it.
    pub(crate) interim: Vec<u16>,
    pub(crate) took: Duration,
    /// The result of a second request on the same connection, if one was tried.
    pub(crate) after: Option<After>,
}

/// The state of a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Reusable,
    Closed,
    /// Neither: malformed bytes, or no answer.
    Broken,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        self.lines(name).next()
    }

    pub(crate) fn lines<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let own = |(own, _): &&(String, Vec<u8>)| own.eq_ignore_ascii_case(name);
        self.headers.iter().filter(own).map(|(_, value)| &value[..]).collect::<Vec<_>>().into_iter()
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.header(name)?).ok()
    }
}

impl Request {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name))
    }

    fn awaits_continue(&self) -> bool {
        let asks = |(name, value): &(String, Vec<u8>)| {
            name.eq_ignore_ascii_case("expect") && value.eq_ignore_ascii_case(b"100-continue")
        };
        self.headers.iter().any(asks)
    }

    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if !self.has("host") {
            head.extend(b"Host: api.example\r\n");
        }
        for (name, value) in &self.headers {
            head.extend(name.as_bytes());
            head.extend(b": ");
            head.extend(value);
            head.extend(b"\r\n");
        }
        if self.chunked {
            head.extend(b"Transfer-Encoding: chunked\r\n");
        } else if !self.body.is_empty() || matches!(&*self.method, "POST" | "PUT" | "PATCH") {
            head.extend(format!("Content-Length: {}\r\n", self.body.len()).bytes());
        }
        head.extend(b"\r\n");
        head
    }

    /// In three chunks if chunked, so that no server reads it whole by luck.
    pub(crate) fn framed(&self) -> Vec<u8> {
        if !self.chunked {
            return self.body.clone();
        }
        let mut framed = Vec::new();
        for chunk in self.body.chunks(self.body.len().div_ceil(3).max(1)) {
            framed.extend(format!("{:x}\r\n", chunk.len()).bytes());
            framed.extend(chunk);
            framed.extend(b"\r\n");
        }
        framed.extend(b"0\r\n\r\n");
        framed
    }
}

/// A connection of HTTP/1.1.
pub(crate) struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    pub(crate) async fn connect(to: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect(to).await?)
    }

    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new() })
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Sends a request; with `Expect`, its body only after `100 Continue`. Returns an answer that came early.
    pub(crate) async fn send(&mut self, request: &Request) -> io::Result<Option<Answer>> {
        if !request.awaits_continue() {
            let mut bytes = request.head();
            bytes.extend(request.framed());
            self.write(&bytes).await?;
            return Ok(None);
        }
        self.write(&request.head()).await?;
        let (status, headers) = self.read_head().await?;
        if (100..200).contains(&status) {
            self.write(&request.framed()).await?;
            return Ok(Some(Answer { interim: vec![status], ..Answer::default() }));
        }
        let mut answer = Answer { status, headers, ..Answer::default() };
        self.read_body(&mut answer, &request.method).await?;
        Ok(Some(answer))
    }

    /// The final answer, after any 1xx.
    pub(crate) async fn answer(&mut self, method: &str) -> io::Result<Answer> {
        let mut answer = Answer::default();
        loop {
            let (status, headers) = self.read_head().await?;
            if (100..200).contains(&status) && status != 101 {
                answer.interim.push(status);
                continue;
            }
            (answer.status, answer.headers) = (status, headers);
            self.read_body(&mut answer, method).await?;
            return Ok(answer);
        }
    }

    async fn read_head(&mut self) -> io::Result<(u16, Vec<(String, Vec<u8>)>)> {
        let (first, headers) = self.read_start().await?;
        let status = first.strip_prefix("HTTP/1.1 ").or_else(|| first.strip_prefix("HTTP/1.0 "));
        let status = status.and_then(|rest| rest.get(..3)?.parse().ok()).ok_or_else(|| malformed(&first))?;
        Ok((status, headers))
    }

    /// The first line of a message and its headers.
    pub(crate) async fn read_start(&mut self) -> io::Result<(String, Vec<(String, Vec<u8>)>)> {
        let mut head = self.read_until(b"\r\n\r\n").await?;
        head.truncate(head.len() - 2);
        let mut lines =
            head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let first = lossy(lines.next().unwrap_or_default());
        let headers = lines.filter(|line| !line.is_empty()).map(header_line).collect::<io::Result<_>>()?;
        Ok((first, headers))
    }

    async fn read_body(&mut self, answer: &mut Answer, method: &str) -> io::Result<()> {
        if method == "HEAD" || matches!(answer.status, 101 | 204 | 304) {
            return Ok(());
        }
        if answer.text("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            (answer.body, answer.trailers) = self.read_chunks().await?;
            return Ok(());
        }
        match answer.text("content-length") {
            Some(length) => {
                let length = length.parse().map_err(|_| malformed(length))?;
                answer.body = self.read_exactly(length).await?;
            }
            None => {
                while self.fill().await? > 0 {}
                answer.body = std::mem::take(&mut self.read);
            }
        }
        Ok(())
    }

    /// A body in chunks, and its trailers.
    pub(crate) async fn read_chunks(&mut self) -> io::Result<(Vec<u8>, Vec<(String, String)>)> {
        let (mut body, mut trailers) = (Vec::new(), Vec::new());
        loop {
            let line = self.read_until(b"\r\n").await?;
            let line = lossy(&line);
            let size = line.trim().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|_| malformed(&line))?;
            if size == 0 {
                break;
            }
            body.extend(self.read_exactly(size).await?);
            self.read_exactly(2).await?;
        }
        loop {
            let line = self.read_until(b"\r\n").await?;
            if line == b"\r\n" {
                return Ok((body, trailers));
            }
            let (name, value) = header_line(&line[..line.len() - 2])?;
            trailers.push((name, lossy(&value)));
        }
    }

    async fn read_until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end) {
                return Ok(self.read.drain(..at + end.len()).collect());
            }
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    pub(crate) async fn read_exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < length {
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.read.drain(..length).collect())
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 16 * 1024];
        let length = self.stream.read(&mut piece).await?;
        self.read.extend_from_slice(&piece[..length]);
        Ok(length)
    }

    /// Closes the connection, and waits until the server has closed its side too.
    pub(crate) async fn hang_up(mut self) {
        // If the server has closed it already, that is as good.
        if self.stream.shutdown().await.is_ok() {
            while self.fill().await.is_ok_and(|length| length > 0) {}
        }
    }

    /// Tries the connection once more: it must either serve another request or be closed.
    pub(crate) async fn after(&mut self) -> After {
        if self.write(b"GET /health HTTP/1.1\r\nHost: api.example\r\n\r\n").await.is_err() {
            return After::Closed;
        }
        match self.answer("GET").await {
            Ok(answer) if answer.status == 200 && answer.body == b"well" => After::Reusable,
            // No byte at all: closed. Part of an answer: broken.
            Err(error) if error.kind() != io::ErrorKind::InvalidData && self.read.is_empty() => After::Closed,
            Ok(_) | Err(_) => After::Broken,
        }
    }
}

pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn header_line(line: &[u8]) -> io::Result<(String, Vec<u8>)> {
    let colon = line.iter().position(|byte| *byte == b':');
    let colon = colon.ok_or_else(|| malformed(&lossy(line)))?;
    Ok((lossy(&line[..colon]), line[colon + 1..].trim_ascii().to_vec()))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP answer: {what:?}"))
}
