//! TLS is verified in full.

use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Error, ErrorKind, Store};
use onlyonce_testkit::engines::postgres::{Owned, Server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::sqlite::world::put;

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap()
}

/// A server that shows a certificate for `host`.
fn server(authority: &CertifiedIssuer<'static, KeyPair>, host: &str) -> Owned {
    let server = Server::start(&[]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&key, authority).unwrap();
    for (name, text) in [("server.crt", certificate.pem()), ("server.key", key.serialize_pem())] {
        let path = server.folder().join("data").join(name);
        // Written by the server itself: the key must be its own, and nobody else's to read.
        let lines = format!("SELECT unnest(string_to_array('{}', chr(10)))", text.trim());
        server.sql(&format!("COPY ({lines}) TO PROGRAM 'umask 077; cat > {}'", path.display()));
    }
    server.sql("ALTER SYSTEM SET ssl = on");
    server.sql("SELECT pg_reload_conf()");
    server
}

async fn open(server: &Server, parameters: &str) -> Result<Postgres, Error> {
    let url = format!("{}?{parameters}", server.url("postgres"));
    Postgres::open(&url, Options::default()).await
}

/// S04, E02
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_trusted_by_its_authority_and_its_host() {
    let (ours, theirs) = (authority(), authority());
    let server = server(&ours, "127.0.0.1");
    let (known, unknown) = (server.folder().join("ours.pem"), server.folder().join("theirs.pem"));
    std::fs::write(&known, ours.pem()).unwrap();
    std::fs::write(&unknown, theirs.pem()).unwrap();

    let store = open(&server, &format!("sslmode=verify-full&sslrootcert={}", known.display())).await.unwrap();
    store.prepare().await.unwrap();
    put(&store, "k").await;
    let in_clear = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                    WHERE application_name = 'onlyonce' AND NOT ssl";
    assert_eq!(server.sql(in_clear), "0");
    assert_ne!(server.sql(&in_clear.replace("NOT ssl", "ssl")), "0");

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
    let known = server.folder().join("ours.pem");
    std::fs::write(&known, ours.pem()).unwrap();
    let error =
        open(&server, &format!("sslmode=verify-full&sslrootcert={}", known.display())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("the host name that the certificate is for"), "{error}");
}

/// S04
#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_wanted() {
    let error = open(Server::shared(), "sslmode=require").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("sslmode=disable"), "{error}");
}
