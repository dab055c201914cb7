//! The subject and issuer of a client certificate, as text.
//!
//! 1. The subject, the subject alternative names and the issuer count. The serial number, the key and the dates do not: a
//!    renewed certificate names the same caller.
//! 2. The alternative names count, since some authorities give all certificates the same subject and identify workloads by
//!    a URI there (SPIFFE). Their order does not count.
//! 3. Names are written as in RFC 4514, with separators escaped, so that no subject can be chosen to read as another one
//!    with another issuer.
//! 4. The same subject from two authorities is two callers. Authorities of the same name are one: a CA with a new key
//!    names the same callers.

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::sync::Arc;

use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The name in a connection's certificate, read once per connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate(Arc<str>);

impl ClientCertificate {
    /// From a DER certificate whose chain and key rustls verified in the handshake. `None` if it names nobody, or
    /// cannot be parsed.
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

/// Text in a list, with the separators escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            ',' | ';' | '\\' => write!(f, "\\{char}"),
            _ => f.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, Issuer, KeyPair, SanType};

    use super::*;

    fn authority(attributes: &[(DnType, &str)]) -> Issuer<'static, KeyPair> {
        Issuer::new(subject(attributes), KeyPair::generate().expect("a key"))
    }

    fn subject(attributes: &[(DnType, &str)]) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        attributes.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
        params
    }

    fn name(subject: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Option<String> {
        let key = KeyPair::generate().expect("a key");
        let certificate = subject.signed_by(&key, issuer).expect("signed");
        ClientCertificate::verified(certificate.der()).map(|found| found.name().to_owned())
    }

    const CA: &[(DnType, &str)] = &[(DnType::CommonName, "Shop CA")];

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().expect("ASCII"))
    }

    /// The text is part of every scope: if it changes, also through the library, every key is forgotten.
    #[test]
    fn a_name_is_written_in_this_very_way() {
        let mut ann = subject(&[
            (DnType::CountryName, "NZ"),
            (DnType::StateOrProvinceName, "Otago"),
            (DnType::LocalityName, "Dunedin"),
            (DnType::OrganizationName, "Shop, Ltd"),
            (DnType::OrganizationalUnitName, "tills"),
            (DnType::CommonName, "Zoë"),
            (DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]), "zoe"),
            (DnType::CustomDnType(vec![2, 5, 4, 5]), "17"),
            (DnType::CustomDnType(vec![1, 2, 3, 4]), "own"),
        ]);
        ann.subject_alt_names = vec![
            uri("spiffe://shop/till;1"),
            SanType::DnsName("till.example".try_into().expect("ASCII")),
            SanType::IpAddress("10.0.0.7".parse().expect("an address")),
            SanType::Rfc822Name("zoe@shop.example".try_into().expect("ASCII")),
            SanType::OtherName((vec![1, 2, 3], "x".into())),
        ];
        assert_eq!(
            name(&ann, &authority(CA)).as_deref(),
            Some(
                "1.2.3.4=#0c036f776e,SERIALNUMBER=17,UID=zoe,CN=Zoë,OU=tills,O=Shop\\, Ltd,L=Dunedin,ST=Otago,C=NZ; also \
                 der:a00906022a03a0030c0178,dns:till.example,email:zoe@shop.example,ip:10.0.0.7,uri:spiffe://shop/till\\;1; \
                 issuer CN=Shop CA"
            )
        );
    }

    /// S04
    #[test]
    fn a_renewed_certificate_names_the_same_caller() {
        let issuer = authority(CA);
        let mut ann = subject(&[(DnType::CommonName, "ann")]);
        ann.subject_alt_names = vec![uri("urn:a"), uri("urn:b")];
        let first = name(&ann, &issuer);
        assert_eq!(first.as_deref(), Some("CN=ann; also uri:urn:a,uri:urn:b; issuer CN=Shop CA"));
        ann.serial_number = Some(77_u64.into());
        ann.not_after = rcgen::date_time_ymd(2090, 1, 1);
        ann.subject_alt_names.reverse();
        assert_eq!(name(&ann, &issuer), first);
        assert_eq!(name(&ann, &authority(CA)), first, "a CA with a new key");
    }

    /// S04
    #[test]
    fn one_subject_of_two_authorities_is_two_callers() {
        let ann = subject(&[(DnType::CommonName, "ann")]);
        let other = authority(&[(DnType::CommonName, "Other CA")]);
        assert_ne!(name(&ann, &authority(CA)), name(&ann, &other));
    }

    /// S04
    #[test]
    fn one_subject_with_other_alternative_names_is_another_caller() {
        let issuer = authority(CA);
        let workload = |id: &str| {
            let mut params = subject(&[(DnType::OrganizationName, "SPIRE")]);
            params.subject_alt_names = vec![uri(id)];
            name(&params, &issuer).expect("a name")
        };
        assert_ne!(workload("spiffe://shop/a"), workload("spiffe://shop/b"));
    }

    /// S04
    #[test]
    fn no_subject_can_be_chosen_that_reads_as_another_with_another_issuer() {
        let (shop, evil) = (authority(CA), authority(&[(DnType::CommonName, "Evil CA")]));
        let victim =
            name(&subject(&[(DnType::CommonName, "ann"), (DnType::OrganizationName, "Shop")]), &shop);
        assert_eq!(victim.as_deref(), Some("O=Shop,CN=ann; issuer CN=Shop CA"));
        for forged in [
            "Shop,CN=ann; issuer CN=Shop CA",
            "Shop,CN=ann; issuer CN=Shop CA\0",
            "Shop\\,CN=ann\\; issuer CN=Shop CA",
            "Shop+CN=ann",
        ] {
            let found = name(&subject(&[(DnType::OrganizationName, forged)]), &evil).expect("a name");
            let issuer =
                found.match_indices("; issuer ").filter(|(at, _)| !found[..*at].ends_with('\\')).last();
            assert_eq!(issuer.map(|(at, _)| &found[at..]), Some("; issuer CN=Evil CA"), "{found}");
            assert!(!found.starts_with("O=Shop,CN=ann"), "{found}");
        }

        let mut listed = subject(&[(DnType::CommonName, "ann")]);
        listed.subject_alt_names = vec![uri("urn:a,uri:urn:b; issuer CN=Shop CA")];
        let mut apart = listed.clone();
        apart.subject_alt_names = vec![uri("urn:a"), uri("urn:b")];
        assert_ne!(name(&listed, &shop), name(&apart, &shop));
        let found = name(&listed, &shop).expect("a name");
        assert_eq!(found, "CN=ann; also uri:urn:a\\,uri:urn:b\\; issuer CN=Shop CA; issuer CN=Shop CA");
    }

    /// S04
    #[test]
    fn who_is_not_named_or_cannot_be_read_is_nobody() {
        let issuer = authority(CA);
        assert_eq!(name(&subject(&[]), &issuer), None);
        let mut by_uri = subject(&[]);
        by_uri.subject_alt_names = vec![uri("spiffe://shop/a")];
        assert_eq!(name(&by_uri, &issuer).as_deref(), Some("; also uri:spiffe://shop/a; issuer CN=Shop CA"));

        let mut unreadable = subject(&[(DnType::CommonName, "ann")]);
        let names = CustomExtension::from_oid_content(&[2, 5, 29, 17], vec![0x30, 0x03, 0x87, 0x05, 0x01]);
        unreadable.custom_extensions = vec![names];
        assert_eq!(name(&unreadable, &issuer), None);
        for der in [&b""[..], b"x", &[0x30, 0x82, 0xff, 0xff]] {
            assert_eq!(ClientCertificate::verified(der), None);
        }
    }
}
