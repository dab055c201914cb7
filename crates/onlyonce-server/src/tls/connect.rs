//! Connections to upstreams, with or without TLS.
//!
//! If anything fails here, no byte of a request was sent: the work did not run.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::uri::Scheme;
use http::{Uri, Version};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::{HTTP1, HTTP2, Stream, files, provider};
use crate::config::{Config, Destination, Protocol, Route, Upstream};

/// The time limit for DNS, TCP and TLS together. A working network takes a fraction of it.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Makes connections to upstreams.
#[derive(Clone)]
pub(crate) struct Connector {
    /// `None` if no upstream and no probe uses TLS: then no CAs are needed.
    tls: Option<Arc<ClientConfig>>,
}

/// A connection on which nothing was sent.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) stream: Stream,
    /// The negotiated HTTP version.
    pub(crate) version: Version,
}

impl Connector {
    /// For the upstreams and probes of `config`: certificates are checked against `upstream_ca` alone, or else the system's roots.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let routes = || config.routes.iter().chain([&config.default]);
        let is_asked_by_tls = |route: &Route| route.probe.as_ref().is_some_and(|probe| is_https(&probe.uri));
        if !routes().any(|route| has_tls(&route.upstream) || is_asked_by_tls(route)) {
            return Ok(Self { tls: None });
        }
        Self::with_ca(config.upstream_ca.as_deref())
    }

    /// For these destinations: certificates are checked alike.
    pub(crate) fn for_destinations(destinations: &[Destination], upstream_ca: Option<&Path>) -> Result<Self> {
        match destinations.iter().any(|destination| is_https(&destination.uri)) {
            true => Self::with_ca(upstream_ca),
            false => Ok(Self { tls: None }),
        }
    }

    /// For this URL: a certificate is checked as those of upstreams are.
    pub(crate) fn for_uri(uri: &Uri, upstream_ca: Option<&Path>) -> Result<Self> {
        if is_https(uri) { Self::with_ca(upstream_ca) } else { Ok(Self { tls: None }) }
    }

    fn with_ca(upstream_ca: Option<&Path>) -> Result<Self> {
        let roots = match upstream_ca {
            Some(path) => files::roots("upstream_ca", path)?,
            None => system_roots()?,
        };
        Self::trusting(roots)
    }

    /// For this URL alone: a certificate is checked against the system's roots.
    pub(crate) fn for_url(uri: &Uri) -> Result<Self> {
        if is_https(uri) { Self::trusting(system_roots()?) } else { Ok(Self { tls: None }) }
    }

    fn trusting(roots: RootCertStore) -> Result<Self> {
        let builder =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        Ok(Self { tls: Some(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())) })
    }

    /// A new connection to `upstream`.
    pub(crate) async fn connect(&self, upstream: &Upstream) -> Result<Connected> {
        let deadline = Instant::now() + CONNECT_MAX;
        let connected = timeout_at(deadline, self.connect_by(upstream, deadline)).await;
        connected.unwrap_or_else(|_| bail!("no connection to {} within {CONNECT_MAX:?}", upstream.uri))
    }

    async fn connect_by(&self, upstream: &Upstream, deadline: Instant) -> Result<Connected> {
        let uri = &upstream.uri;
        let host = uri.host().with_context(|| format!("upstream \"{uri}\" has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if has_tls(upstream) { 443 } else { 80 });
        let stream = tcp(host, port, deadline).await.with_context(|| format!("cannot connect to {uri}"))?;
        stream.set_nodelay(true)?;
        if has_tls(upstream) {
            return self
                .handshake(stream, host, upstream)
                .await
                .with_context(|| format!("no TLS with {uri}"));
        }
        Ok(Connected { stream: Stream::Plain(stream), version: in_clear(upstream.protocol) })
    }

    async fn handshake(&self, stream: TcpStream, host: &str, upstream: &Upstream) -> Result<Connected> {
        let config =
            self.tls.as_ref().context("the settings had no upstream with TLS when they were read")?;
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = offered(upstream.protocol);
        let name = ServerName::try_from(host.to_owned())?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let version = match (stream.get_ref().1.alpn_protocol(), upstream.protocol) {
            (Some(HTTP2), Protocol::Auto | Protocol::Http2) => Version::HTTP_2,
            (_, Protocol::Auto | Protocol::Http1) => Version::HTTP_11,
            (_, Protocol::Http2) => bail!("it does not offer HTTP/2, which upstream_protocol requires"),
        };
        Ok(Connected { stream: Stream::Tls(Box::new(stream.into())), version })
    }
}

fn has_tls(upstream: &Upstream) -> bool {
    is_https(&upstream.uri)
}

fn is_https(uri: &Uri) -> bool {
    uri.scheme() == Some(&Scheme::HTTPS)
}

fn in_clear(protocol: Protocol) -> Version {
    match protocol {
        Protocol::Auto | Protocol::Http1 => Version::HTTP_11,
        Protocol::Http2 => Version::HTTP_2,
    }
}

fn offered(protocol: Protocol) -> Vec<Vec<u8>> {
    match protocol {
        Protocol::Auto => vec![HTTP2.into(), HTTP1.into()],
        Protocol::Http1 => vec![HTTP1.into()],
        Protocol::Http2 => vec![HTTP2.into()],
    }
}

fn system_roots() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    let faults: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
    ensure!(
        !roots.is_empty(),
        "the system has no root certificates to verify https upstreams with{}{}; install ca-certificates, or set \
         upstream_ca",
        if faults.is_empty() { "" } else { ": " },
        faults.join(", "),
    );
    Ok(roots)
}

/// Each address of the host gets a share of the remaining time, so that a dead one does not use it all.
async fn tcp(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for (number, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let left = u32::try_from(addresses.len() - number).unwrap_or(u32::MAX);
        let share = now + deadline.saturating_duration_since(now) / left;
        failed = match timeout_at(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(late) => late.into(),
        };
    }
    Err(failed)
}
