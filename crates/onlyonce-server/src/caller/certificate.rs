//! Who a client certificate was issued to, and by whom, as text.
//!
//! 1. The subject, the subject alternative names, and the issuer count. The serial number, the key and the dates do not: a
//!    certificate that was renewed names the same caller.
//! 2. The alternative names count since there are authorities that give all their certificates one subject, and tell
//!    workloads apart by a URI there (SPIFFE). Their order does not count.
//! 3. Names are written as RFC 4514 has it, with what separates them escaped, so no subject can be chosen that reads as
//!    another one with another issuer.
//! 4. Subjects of one name from two authorities are two callers. Authorities of one name are one: a CA that was given a
//!    new key names the same callers.

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::sync::Arc;

use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The name in the certificate of a connection, read once when the connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate(Arc<str>);

impl ClientCertificate {
    /// Of a certificate in DER whose chain and key were verified: by rustls, in the handshake. None where it names nobody,
    /// or in a way that we cannot read.
    pub(crate) fn verified(der: &[u8]) -> Option<Self> {
        let certificate = Certificate::from_der(der).ok()?;
        let certificate = certificate.tbs_certificate();
        let names = certificate.get_extension::<SubjectAltName>().ok()?;
        let names = names.map(|(_, SubjectAltName(names))| names).unwrap_or_default();
        if certificate.subject().is_empty() && names.is_empty() {
            return None;
        }
        let mut names: Vec<String> = names.iter().map(alternative).collect::<Option<_>>()?;
        names.sort_unstable();
        let also = if names.is_empty() { String::new() } else { format!("; also {}", names.join(",")) };
        Some(Self(format!("{}{also}; issuer {}", certificate.subject(), certificate.issuer()).into()))
    }

    /// `CN=ann,O=Shop; also dns:ann.example; issuer CN=Shop CA`
    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

fn alternative(name: &GeneralName) -> Option<String> {
    Some(match name {
        GeneralName::Rfc822Name(address) => format!("email:{}", Escaped(address.as_str())),
        GeneralName::DnsName(host) => format!("dns:{}", Escaped(host.as_str())),
        GeneralName::UniformResourceIdentifier(uri) => format!("uri:{}", Escaped(uri.as_str())),
        GeneralName::DirectoryName(name) => format!("name:{}", Escaped(&name.to_string())),
        GeneralName::IpAddress(bytes) => format!("ip:{}", address(bytes.as_bytes())?),
        GeneralName::OtherName(_) | GeneralName::EdiPartyName(_) | GeneralName::RegisteredId(_) => {
            name.to_der().ok()?.iter().fold("der:".to_owned(), |mut hex, byte| {
                write!(hex, "{byte:02x}").expect("a string takes all that is written");
                hex
            })
        }
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Text in a list, with what ends an item or the list escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            ',' | ';' | '\\' => write!(f, "\\{char}"),
            _ => f.write_char(char),
        })
    }
}
