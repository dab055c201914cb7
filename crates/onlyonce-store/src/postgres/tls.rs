//! TLS to the server: its certificate is verified, including the host name.
//!
//! `tokio-postgres-rustls` would do this too, but depends on a certificate parser for channel binding. Channel binding
//! protects against a man in the middle, which full verification excludes already.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use super::failure::Failure;
use crate::ErrorKind;

/// How the server is verified, and our client certificate.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Trusts the CAs in the file `root`, or the system's; presents a client certificate if there is one.
    pub(super) fn new(root: Option<&Path>, certificate: Option<(&Path, &Path)>) -> Result<Self, Failure> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(format!("TLS cannot be set up: {error}")))?
            .with_root_certificates(roots(root)?);
        let config = match certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let refused = |error: rustls::Error| unread("sslcert", chain, &error.to_string());
                builder
                    .with_client_auth_cert(certificates("sslcert", chain)?, private_key(key)?)
                    .map_err(refused)?
            }
        };
        Ok(Self { config: Arc::new(config) })
    }
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            for certificate in certificates("sslrootcert", file)? {
                let added = roots.add(certificate);
                added.map_err(|error| unread("sslrootcert", file, &error.to_string()))?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    Ok(roots)
}

fn certificates(parameter: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let failed = |error: rustls::pki_types::pem::Error| unread(parameter, file, &error.to_string());
    let certificates = CertificateDer::pem_file_iter(file).map_err(failed)?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if certificates.is_empty() {
        return Err(unread(parameter, file, "it holds no certificate"));
    }
    Ok(certificates)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, Failure> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| unread("sslkey", file, &error.to_string()))
}

fn unread(parameter: &str, file: &Path, why: &str) -> Failure {
    let file = file.display();
    wrong(format!(
        "{parameter} \"{file}\" of the PostgreSQL URL cannot be used: {why}; name a PEM file that can be read"
    ))
}

fn wrong(message: String) -> Failure {
    Failure::refused(ErrorKind::Misconfigured, message)
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type TlsConnect = Connect;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Connect, InvalidDnsNameError> {
        Ok(Connect { config: self.config.clone(), host: ServerName::try_from(host.to_owned())? })
    }
}

/// One handshake.
pub(super) struct Connect {
    config: Arc<ClientConfig>,
    host: ServerName<'static>,
}

impl<S> TlsConnect<S> for Connect
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let connector = TlsConnector::from(self.config);
            Ok(Stream(Box::new(connector.connect(self.host, stream).await?)))
        })
    }
}

/// An encrypted connection.
pub(super) struct Stream<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
