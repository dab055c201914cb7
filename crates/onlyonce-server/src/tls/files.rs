//! Certificates and keys from PEM files, with errors that name the setting, the file and the remedy.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::config::Tls;

/// The certificates in the file of `setting`: at least one.
pub(super) fn certificates(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(setting, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.with_context(|| format!("{setting}: {path:?} is not valid PEM; replace the file"))?;
    ensure!(
        !found.is_empty(),
        "{setting}: {path:?} has no certificate; it must have \"BEGIN CERTIFICATE\"; it may be DER or the wrong file"
    );
    Ok(found)
}

pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let pem = read("tls.key", path)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        anyhow!(
            "tls.key: {path:?} has no private key that can be read ({error}); it must have \"BEGIN PRIVATE KEY\", not \
             encrypted"
        )
    })
}

/// The CAs that certificates are checked against.
pub(super) fn roots(setting: &str, path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(setting, path)? {
        roots.add(certificate).with_context(|| {
            format!("{setting}: {path:?} has a certificate that is not a CA certificate; remove it")
        })?;
    }
    Ok(roots)
}

fn read(setting: &str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path)
        .with_context(|| format!("{setting}: {path:?} cannot be read; correct the path or the permissions"))
}

/// Legal but risky things about the files, for `check` and for the log at start. A file that cannot be read is an
/// error elsewhere.
pub(crate) fn warnings(tls: &Tls) -> Vec<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let expired = certificates("tls.cert", &tls.cert).ok().and_then(|found| {
        let certificate = Certificate::from_der(found.first()?).ok()?;
        let end = certificate.tbs_certificate().validity().not_after;
        (end.to_unix_duration() <= now).then(|| {
            format!(
                "tls.cert: {:?} expired at {end}, and clients will refuse it; renew it and reload",
                tls.cert
            )
        })
    });
    expired.into_iter().chain(readable_by_others(&tls.key)).collect()
}

#[cfg(unix)]
fn readable_by_others(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;

    const GROUP_AND_OTHERS: u32 = 0o077;
    let mode = fs::metadata(path).ok()?.permissions().mode();
    (mode & GROUP_AND_OTHERS != 0)
        .then(|| format!("tls.key: {path:?} can be read by users other than its owner; run chmod 600 on it"))
}

#[cfg(not(unix))]
fn readable_by_others(_: &Path) -> Option<String> {
    None
}
