//! Connections to one endpoint, used again once their answer has been read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::url::Endpoint;

/// An idle connection is not used after so long: the server may be closing it.
const IDLE_MAX: Duration = Duration::from_secs(15);
/// How many idle connections are kept.
const IDLE_COUNT_MAX: usize = 64;
/// More than the largest answer of DynamoDB, which has 16 MB of attributes, in Base64.
const ANSWER_BYTES_MAX: usize = 32 << 20;

type Sender = SendRequest<Full<Bytes>>;

/// Connections to one endpoint; see the module's documentation.
pub(super) struct Pool {
    endpoint: Endpoint,
    tls: Option<TlsConnector>,
    connect_within: Duration,
    idle: Mutex<Vec<(Sender, Instant)>>,
}

/// What the server answered.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) date: Option<String>,
    pub(super) body: Bytes,
}

/// There is no answer.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) why: String,
}

impl Pool {
    pub(super) fn new(endpoint: Endpoint, connect_within: Duration) -> Self {
        let tls = endpoint.is_encrypted.then(|| TlsConnector::from(Arc::new(trusting_system())));
        Self { endpoint, tls, connect_within, idle: Mutex::default() }
    }

    /// The header `Host` of its endpoint.
    pub(super) fn authority(&self) -> String {
        self.endpoint.authority()
    }

    /// Sends a request and reads the whole answer. The caller bounds the time; `was_sent` tells it whether anything may have
    /// been sent.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        was_sent: &AtomicBool,
    ) -> Result<Answer, Lost> {
        let mut sender = match self.take() {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let response = loop {
            was_sent.store(true, Ordering::Relaxed);
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => break response,
                Err(error) => error,
            };
            // The server had closed an idle connection, and nothing was sent.
            let Some(unsent) = error.take_message() else { return Err(lost(error.error())) };
            was_sent.store(false, Ordering::Relaxed);
            request = unsent;
            sender = self.connect().await?;
        };
        let status = response.status().as_u16();
        let date =
            response.headers().get(header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| lost(&*error))?.to_bytes();
        self.give_back(sender);
        Ok(Answer { status, date, body })
    }

    fn take(&self) -> Option<Sender> {
        let mut idle = self.idle();
        idle.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE_MAX);
        idle.pop().map(|(sender, _)| sender)
    }

    fn give_back(&self, sender: Sender) {
        let mut idle = self.idle();
        if idle.len() < IDLE_COUNT_MAX && !sender.is_closed() {
            idle.push((sender, Instant::now()));
        }
    }

    async fn connect(&self) -> Result<Sender, Lost> {
        let connecting = timeout(self.connect_within, self.connect_at_leisure());
        let late = |_| Err(format!("no connection within {} ms", self.connect_within.as_millis()));
        connecting.await.unwrap_or_else(late).map_err(|why| Lost { why })
    }

    async fn connect_at_leisure(&self) -> Result<Sender, String> {
        let Endpoint { host, port, .. } = &self.endpoint;
        let told = |error: std::io::Error| error.to_string();
        let stream = TcpStream::connect((&**host, *port)).await.map_err(told)?;
        stream.set_nodelay(true).map_err(told)?;
        let Some(tls) = &self.tls else { return start(stream).await };
        let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
        start(tls.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?).await
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Sender, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task drives the connection until its sender is dropped, or the server closes it.
async fn start(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Sender, String> {
    let (mut sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("a connection to DynamoDB has ended: {error}");
        }
    });
    sender.ready().await.map_err(|error| error.to_string())?;
    Ok(sender)
}

/// The roots that the machine trusts.
fn trusting_system() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    versions
        .expect("ring has cipher suites for every version")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn lost(error: &(dyn std::error::Error + 'static)) -> Lost {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Lost { why: format!("{error}{cause}") }
}
