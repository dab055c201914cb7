//! TLS is verified in full.

use std::path::PathBuf;

use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_store::{Error, ErrorKind, Store};
use onlyonce_testkit::engines::mariadb::{Owned, Server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::sqlite::world::put;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap()
}

/// A file of a test that the server's user can read.
fn file(name: &str, text: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("onlyonce-mysql-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
    folder.join(name)
}

/// A server that shows a certificate for `host`.
fn server(authority: &Authority, host: &str) -> Owned {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&key, authority).unwrap();
    let certificate = file("server.crt", &certificate.pem());
    let key = file("server.key", &key.serialize_pem());
    let [certificate, key] =
        [("cert", certificate), ("key", key)].map(|(name, file)| format!("ssl-{name}={}", file.display()));
    Server::start(&[&certificate, &key]).unwrap()
}

async fn open(server: &Server, parameters: &str) -> Result<Mysql, Error> {
    let url = format!("{}?{parameters}", server.url(&server.fresh_database()));
    Mysql::open(&url, Options::default()).await
}

/// S04, E03
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_trusted_by_its_authority_and_its_host() {
    let (ours, theirs) = (authority(), authority());
    let server = server(&ours, "127.0.0.1");
    let (known, unknown) = (file("ours.pem", &ours.pem()), file("theirs.pem", &theirs.pem()));
    // A user that the server does not let in without TLS.
    server.sql("", "CREATE USER ann@'127.0.0.1' REQUIRE SSL; GRANT ALL ON *.* TO ann@'127.0.0.1'");
    let url = server.url_of("ann", &server.fresh_database());
    let known = format!("sslmode=verify-full&sslrootcert={}", known.display());
    let store = Mysql::open(&format!("{url}?{known}"), Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    put(&store, "k").await;
    assert!(Mysql::open(&url, Options::default()).await.is_err(), "in clear");
    let stranger = format!("sslmode=verify-full&sslrootcert={}", unknown.display());
    for parameters in [&*stranger, "sslmode=require"] {
        let error = open(&server, parameters).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("sslrootcert=FILE"), "{error}");
    }
}

/// S04
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_host_is_refused() {
    let ours = authority();
    let server = server(&ours, "db.internal");
    let known = format!("sslmode=verify-full&sslrootcert={}", file("ours.pem", &ours.pem()).display());
    let error = open(&server, &known).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("the host name that the certificate is for"), "{error}");
}

/// S04
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_where_tls_is_wanted() {
    let error = open(Server::shared(), "sslmode=require").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("sslmode=disable"), "{error}");
}
