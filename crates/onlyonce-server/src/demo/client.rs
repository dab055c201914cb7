//! A client with one connection: it does not retry by itself, and can disconnect.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::bank::Payment;

/// Payments that only a webhook or a person can tell about, once their answer is lost.
pub(crate) const PAYMENTS: &str = "/payments";
/// The same service under a route with a probe: it can be asked what became of them.
pub(crate) const ASKED: &str = "/payments/asked";

#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<()>,
}

/// Who pays what, under which key.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) caller: &'static str,
    pub(crate) key: &'static str,
    /// Where it is sent: [`PAYMENTS`], or [`ASKED`].
    pub(crate) path: &'static str,
    pub(crate) payment: Payment,
    /// `Prefer: wait=N`, in seconds.
    pub(crate) wait: Option<u32>,
}

/// An answer, read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot reach {address}"))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // Requests get the connection's errors.
        let connection = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { address, sender, connection })
    }

    pub(crate) async fn pay(&mut self, order: &Order) -> Result<Answer> {
        let Payment { order: name, card, amount, token: _ } = &order.payment;
        let body = serde_json::json!({ "order": name, "card": card.name(), "amount": amount }).to_string();
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(order.path)
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", order.key);
        if let Some(seconds) = order.wait {
            request = request.header("prefer", format!("wait={seconds}"));
        }
        self.send(request, order.caller, body.into()).await
    }

    pub(crate) async fn ask(&mut self, caller: &str, path: &str) -> Result<Answer> {
        self.send(Request::builder().uri(path), caller, Bytes::new()).await
    }

    /// Sends bytes to the admin port, as a provider's webhook does.
    pub(crate) async fn tell(&mut self, path: &str, header: (&str, &str), body: Bytes) -> Result<Answer> {
        let request = Request::post(path).header(CONTENT_TYPE, "application/json").header(header.0, header.1);
        self.send(request, "nobody", body).await
    }

    /// Pays, and disconnects at `moment`, whatever is in flight.
    pub(crate) async fn pay_and_hang_up(
        mut self,
        order: &Order,
        moment: impl Future<Output = ()>,
    ) -> Result<()> {
        tokio::select! {
            answer = self.pay(order) => bail!("answered {} before the client could hang up", answer?.status),
            () = moment => {}
        }
        self.connection.abort();
        Ok(())
    }

    async fn send(&mut self, request: http::request::Builder, caller: &str, body: Bytes) -> Result<Answer> {
        let request = request
            .header(HOST, self.address.to_string())
            .header(AUTHORIZATION, format!("Bearer {caller}"))
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The `code` of a refusal.
    pub(crate) fn code(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        body["code"].as_str().map(str::to_owned)
    }
}
