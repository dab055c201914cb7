//! An HTTP/2 client: hyper's, since no case is about its bytes.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::client::{Answer, Request, lossy};

/// A connection of HTTP/2 with prior knowledge.
pub(crate) struct Http2 {
    sender: SendRequest<Full<Bytes>>,
    driving: JoinHandle<hyper::Result<()>>,
}

impl Http2 {
    pub(crate) async fn connect(to: SocketAddr) -> io::Result<Self> {
        let stream = TokioIo::new(TcpStream::connect(to).await?);
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)?;
        Ok(Self { sender, driving: tokio::spawn(connection) })
    }

    pub(crate) async fn exchange(&self, request: &Request) -> io::Result<Answer> {
        let mut builder = http::Request::builder()
            .method(request.method.as_str())
            .uri(format!("http://api.example{}", request.target))
            .version(http::Version::HTTP_2);
        for (name, value) in &request.headers {
            builder = builder.header(name.to_ascii_lowercase(), &value[..]);
        }
        let request = builder.body(Full::new(Bytes::from(request.body.clone()))).map_err(io::Error::other)?;
        let response = self.sender.clone().send_request(request).await.map_err(io::Error::other)?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?;
        let trailers = body.trailers().map(lines).unwrap_or_default();
        Ok(Answer {
            status: head.status.as_u16(),
            headers: lines(&head.headers),
            trailers: trailers.into_iter().map(|(name, value)| (name, lossy(&value))).collect(),
            body: body.to_bytes().to_vec(),
            ..Answer::default()
        })
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

fn lines(headers: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
}
