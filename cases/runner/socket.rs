//! U behind a socket: HTTP/1.1 with control over every byte, for nodes that are another process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::client::Wire;
use super::payload::unescaped;
use super::upstream::{STEP, Shared};

const QUEUE: u32 = 1024;

/// U's port, which can be closed.
pub(crate) struct Socket {
    pub(crate) address: SocketAddr,
    upstream: Shared,
    accepting: JoinHandle<()>,
    closes: Arc<Notify>,
}

impl Socket {
    pub(crate) async fn open(upstream: &Shared) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let closes = Arc::new(Notify::new());
        let accepting = tokio::spawn(accept(listener, upstream.clone(), closes.clone()));
        Ok(Self { address, upstream: upstream.clone(), accepting, closes })
    }

    /// Closes the port and every connection. The port stays bound, so that nothing else answers there.
    pub(crate) async fn close(&mut self) -> io::Result<TcpSocket> {
        self.closes.notify_one();
        (&mut self.accepting).await?;
        let reserved = TcpSocket::new_v4()?;
        reserved.set_reuseaddr(true)?;
        reserved.bind(self.address)?;
        Ok(reserved)
    }

    pub(crate) fn reopen(&mut self, reserved: TcpSocket) -> io::Result<()> {
        let listener = reserved.listen(QUEUE)?;
        self.accepting = tokio::spawn(accept(listener, self.upstream.clone(), self.closes.clone()));
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, upstream: Shared, closes: Arc<Notify>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => drop(connections.spawn(serve(stream, upstream.clone()))),
            // The result shows at the other end.
            Some(_) = connections.join_next() => {}
            () = closes.notified() => break,
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Serves a connection until either side closes it. An ordered panic ends it too.
async fn serve(stream: TcpStream, upstream: Shared) -> io::Result<()> {
    let mut wire = Wire::new(stream)?;
    loop {
        let request = read(&mut wire).await?;
        let is_head = request.method() == http::Method::HEAD;
        if request.uri().path() == "/health" {
            write(&mut wire, Response::new(Body::from("well")), is_head).await?;
            continue;
        }
        let step = request.headers().get(STEP).and_then(|step| step.to_str().ok()).unwrap_or_default();
        let order = upstream.order_of(step);
        let response = upstream.answer(request).await;
        if order.close {
            return Ok(());
        }
        if let Some(raw) = &order.raw {
            return wire.write(&unescaped(raw)).await;
        }
        for status in &order.interim {
            wire.write(format!("HTTP/1.1 {status} Wait\r\nX-Interim: yes\r\n\r\n").as_bytes()).await?;
        }
        write(&mut wire, response, is_head).await?;
    }
}

async fn read(wire: &mut Wire) -> io::Result<Request<Body>> {
    let (first, headers) = wire.read_start().await?;
    let mut words = first.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let mut request = Request::builder().method(next()).uri(next());
    for (name, value) in &headers {
        request = request.header(name, &value[..]);
    }
    let request = request.body(()).map_err(io::Error::other)?;
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let body = match (header("transfer-encoding"), header("content-length")) {
        (Some(_), _) => wire.read_chunks().await?.0,
        (None, Some(length)) => wire.read_exactly(length.parse().map_err(io::Error::other)?).await?,
        (None, None) => Vec::new(),
    };
    Ok(request.map(|()| Body::from(body)))
}

async fn write(wire: &mut Wire, response: Response<Body>, is_head: bool) -> io::Result<()> {
    let (parts, mut body) = response.into_parts();
    let mut head = format!("HTTP/1.1 {} As Ordered\r\n", parts.status.as_u16()).into_bytes();
    let mut line = |name: &HeaderName, value: &HeaderValue| {
        head.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    };
    parts.headers.iter().for_each(|(name, value)| line(name, value));
    let length = body.size_hint().exact();
    let is_empty = is_head || matches!(parts.status.as_u16(), 204 | 304);
    match length {
        _ if is_empty || parts.headers.contains_key("content-length") => {}
        Some(length) => line(&http::header::CONTENT_LENGTH, &length.into()),
        None => line(&http::header::TRANSFER_ENCODING, &HeaderValue::from_static("chunked")),
    }
    head.extend(b"\r\n");
    wire.write(&head).await?;
    if is_empty {
        return Ok(());
    }
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(io::Error::other)?;
        match (frame.into_data(), length) {
            (Ok(data), Some(_)) => wire.write(&data).await?,
            (Ok(data), None) => wire.write(&chunk(&data)).await?,
            (Err(frame), _) => return wire.write(&last_chunk(frame.trailers_ref())).await,
        }
    }
    if length.is_none() { wire.write(&last_chunk(None)).await } else { Ok(()) }
}

/// Empty for no data: an empty chunk would be the last.
fn chunk(data: &Bytes) -> Vec<u8> {
    if data.is_empty() {
        return Vec::new();
    }
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

fn last_chunk(trailers: Option<&http::HeaderMap>) -> Vec<u8> {
    let mut bytes = b"0\r\n".to_vec();
    for (name, value) in trailers.into_iter().flatten() {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(b"\r\n");
    bytes
}
