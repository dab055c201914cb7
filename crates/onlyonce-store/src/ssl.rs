//! What the URL of a server says about TLS, and the files it names: for every engine with a server.
//!
//! TLS is either off or fully verified. Encryption without verification protects a password only from passive listeners.
//! Without `sslmode`, a server on this machine is reached without TLS, any other with TLS.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
#[cfg(any(feature = "postgres", feature = "redis"))]
use std::sync::Arc;

use onlyonce_core::percent::{Piece, pieces};
#[cfg(any(feature = "postgres", feature = "redis"))]
use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why a URL cannot be used, with the remedy.
#[derive(Debug)]
pub(crate) struct Unusable(pub(crate) String);

/// The parameters of a URL that are about TLS.
pub(crate) struct Ssl {
    /// Whose URL it is, for messages.
    engine: &'static str,
    mode: Option<String>,
    root: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Ssl {
    pub(crate) fn of(engine: &'static str) -> Self {
        Self { engine, mode: None, root: None, certificate: None, key: None }
    }

    /// Takes a parameter; false where it is not about TLS.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> bool {
        match name {
            "sslmode" => self.mode = Some(value.to_owned()),
            "sslrootcert" => self.root = Some(value.into()),
            "sslcert" => self.certificate = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            _ => return false,
        }
        true
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_wanted(&self, are_all_local: bool) -> Result<bool, Unusable> {
        match self.mode.as_deref() {
            None => Ok(!are_all_local),
            Some("disable") => Ok(false),
            Some("require" | "verify-full") => Ok(true),
            Some(other) => Err(wrong(format!(
                "sslmode \"{other}\" of the {} URL would trust an unverified server; write sslmode=verify-full, with \
                 sslrootcert=FILE for your own authority, or sslmode=disable",
                self.engine
            ))),
        }
    }

    /// The authorities in the file of the URL, or the system's.
    pub(crate) fn roots(&self) -> Result<Vec<CertificateDer<'static>>, Unusable> {
        let mut store = RootCertStore::empty();
        match self.root.as_deref().filter(|root| *root != Path::new("system")) {
            Some(file) => {
                let roots = self.certificates("sslrootcert", file)?;
                for root in &roots {
                    let added = store.add(root.clone());
                    added.map_err(|error| self.unread("sslrootcert", file, &error.to_string()))?;
                }
                Ok(roots)
            }
            None => {
                let system = rustls_native_certs::load_native_certs().certs;
                Ok(system.into_iter().filter(|root| store.add(root.clone()).is_ok()).collect())
            }
        }
    }

    /// How the server is verified, and our client certificate where there is one.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, Unusable> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.roots()?);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(format!("TLS cannot be set up: {error}")))?
            .with_root_certificates(roots);
        let config = match self.client()? {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let refused = |error: rustls::Error| self.unread("sslcert", chain, &error.to_string());
                builder
                    .with_client_auth_cert(self.certificates("sslcert", chain)?, self.private_key(key)?)
                    .map_err(refused)?
            }
        };
        Ok(Arc::new(config))
    }

    /// The files of our client certificate and its key, where the URL names them.
    pub(crate) fn client(&self) -> Result<Option<(&Path, &Path)>, Unusable> {
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (Some(_), None) | (None, Some(_)) => Err(wrong(format!(
                "the {} URL has only one of sslcert and sslkey; a client certificate needs both, as PEM files",
                self.engine
            ))),
        }
    }

    /// The certificates in a file that a parameter of the URL names.
    pub(crate) fn certificates(
        &self,
        parameter: &str,
        file: &Path,
    ) -> Result<Vec<CertificateDer<'static>>, Unusable> {
        let failed = |error: rustls::pki_types::pem::Error| self.unread(parameter, file, &error.to_string());
        let certificates = CertificateDer::pem_file_iter(file).map_err(failed)?;
        let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        if certificates.is_empty() {
            return Err(self.unread(parameter, file, "it holds no certificate"));
        }
        Ok(certificates)
    }

    pub(crate) fn private_key(&self, file: &Path) -> Result<PrivateKeyDer<'static>, Unusable> {
        PrivateKeyDer::from_pem_file(file).map_err(|error| self.unread("sslkey", file, &error.to_string()))
    }

    pub(crate) fn unread(&self, parameter: &str, file: &Path, why: &str) -> Unusable {
        let (engine, file) = (self.engine, file.display());
        wrong(format!(
            "{parameter} \"{file}\" of the {engine} URL cannot be used: {why}; use a readable PEM file"
        ))
    }
}

/// Whether a host is this machine, by its name or address.
pub(crate) fn is_local(name: &str) -> bool {
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Percent-decoded; `None` if an escape is malformed, or if it is not UTF-8.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let bytes = pieces(text.as_bytes()).map(|piece| match piece {
        Piece::Plain(byte) | Piece::Escaped(byte) => Some(byte),
        Piece::Malformed => None,
    });
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

fn wrong(message: String) -> Unusable {
    Unusable(message)
}
