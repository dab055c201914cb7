//! TLS with clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::{Error, InconsistentKeys};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{HTTP1, HTTP2, Stream, files, provider};
use crate::caller::ClientCertificate;
use crate::config::Tls;

/// A client slower than this is not going to send a request either.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Accepts clients with the certificate that was in the files when it was made. A reload makes a new one; open connections
/// stay unchanged.
#[derive(Clone)]
pub(crate) struct Acceptor(TlsAcceptor);

/// A client's connection.
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    /// The verified client certificate, if there is one.
    pub(crate) certificate: Option<ClientCertificate>,
}

impl Acceptor {
    pub(crate) fn new(tls: &Tls) -> Result<Self> {
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match &tls.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(files::roots("tls.client_ca", path)?);
                // Whether a certificate is required depends on a route's scope. One that is presented must be valid.
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, provider()).allow_unauthenticated();
                builder.with_client_cert_verifier(verifier.build().context("tls.client_ca")?)
            }
        };
        let chain = files::certificates("tls.cert", &tls.cert)?;
        let key = files::private_key(&tls.key)?;
        let mut config = builder.with_single_cert(chain, key).map_err(|error| unfit(tls, &error))?;
        config.alpn_protocols = vec![HTTP2.into(), HTTP1.into()];
        if tls.client_ca.is_some() {
            // A resumed session is not verified again: it would outlive its certificate.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// The handshake. It waits for the client, so it must not run in the accept loop.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<Accepted> {
        let stream = timeout(HANDSHAKE_MAX, self.0.accept(stream)).await??;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.and_then(|found| ClientCertificate::verified(found));
        Ok(Accepted { stream: Stream::Tls(Box::new(stream.into())), certificate })
    }
}

fn unfit(tls: &Tls, error: &Error) -> anyhow::Error {
    let Tls { cert, key, client_ca: _ } = tls;
    if *error == Error::InconsistentKeys(InconsistentKeys::KeyMismatch) {
        return anyhow!(
            "tls.key: {key:?} is not the key of the certificate in tls.cert {cert:?}; give the two that belong together, the \
             server's own certificate first"
        );
    }
    anyhow!("tls.cert {cert:?} with tls.key {key:?} cannot be used ({error})")
}
