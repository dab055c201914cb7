//! TLS is verified in full.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use onlyonce_store::redis::{Options, Redis};
use onlyonce_store::{Error, ErrorKind, Store};
use onlyonce_testkit::engines::redis::{Owned, Server};
use onlyonce_testkit::process::free_address;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::outages::until;
use super::refusals::{PASSWORD, add_user};
use crate::sqlite::world::put;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap()
}

/// A file of this test.
fn file(name: &str, text: &str) -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let folder = std::env::temp_dir().join(format!("onlyonce-redis-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{}-{name}", MADE.fetch_add(1, Ordering::Relaxed)));
    std::fs::write(&file, text).unwrap();
    file
}

/// The files of a certificate for `host`, and of its key.
fn certificate(authority: &Authority, name: &str, host: &str) -> [String; 2] {
    let key = KeyPair::generate().unwrap();
    let mut certificate = CertificateParams::new(vec![host.to_owned()]).unwrap();
    // Another name than the authority's: else OpenSSL takes it for its own issuer.
    certificate.distinguished_name.push(DnType::CommonName, name);
    let certificate = certificate.signed_by(&key, authority).unwrap();
    let files = [("crt", certificate.pem()), ("key", key.serialize_pem())];
    files.map(|(kind, text)| file(&format!("{name}.{kind}"), &text).display().to_string())
}

/// A server that shows a certificate for `host`, with the port for TLS.
fn server(authority: &Authority, host: &str, wants_clients: &str, cluster: &str) -> (Owned, u16) {
    let port = free_address().unwrap().port();
    let [certificate, key] = certificate(authority, "server", host);
    let authority = file("server-ca.pem", &authority.pem());
    let settings = [
        ("tls-port", &*port.to_string()),
        ("tls-cert-file", &certificate),
        ("tls-key-file", &key),
        ("tls-ca-cert-file", authority.to_str().unwrap()),
        ("tls-auth-clients", wants_clients),
        ("cluster-enabled", cluster),
        // Without it, Redis 7.0 announces the port without TLS, also to those who ask by TLS.
        ("tls-cluster", cluster),
    ];
    (Server::start(&settings).unwrap(), port)
}

async fn open(port: u16, parameters: &str) -> Result<Redis, Error> {
    Redis::open(&format!("rediss://127.0.0.1:{port}/0?{parameters}"), Options::default()).await
}

async fn refused(port: u16, parameters: &str, told: &str) {
    let error = open(port, parameters).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains(told), "{error}");
}

/// S04, E07
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_trusted_by_its_authority_and_its_host() {
    let (ours, theirs) = (authority(), authority());
    let (server, port) = server(&ours, "127.0.0.1", "no", "no");
    let known = format!("sslrootcert={}", file("ours.pem", &ours.pem()).display());
    let store = open(port, &known).await.unwrap();
    store.prepare().await.unwrap();
    put(&store, "k").await;
    let clients = server.command(&["CLIENT", "LIST", "TYPE", "NORMAL"]);
    assert!(clients.contains(&format!("laddr=127.0.0.1:{port}")), "{clients}");
    let stranger = format!("sslrootcert={}", file("theirs.pem", &theirs.pem()).display());
    for parameters in [&*stranger, "sslmode=verify-full"] {
        refused(port, parameters, "sslrootcert=FILE").await;
    }
    let error = open(server.port(), &format!("{known}&connect_timeout=1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("that this is its tls-port"), "{error}");
}

/// S04
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_host_is_refused_and_one_of_ours_is_shown_where_it_is_wanted() {
    let ours = authority();
    let known = format!("sslrootcert={}", file("ours.pem", &ours.pem()).display());
    let (other, port) = server(&ours, "db.internal", "no", "no");
    refused(port, &known, "the host name that the certificate is for").await;
    drop(other);
    let (_server, port) = server(&ours, "127.0.0.1", "yes", "no");
    refused(port, &known, "name its files by sslcert and sslkey").await;
    let [certificate, key] = certificate(&ours, "client", "onlyonce");
    open(port, &format!("{known}&sslcert={certificate}&sslkey={key}")).await.unwrap();
}

/// S04, E07: a cluster tells the ports for TLS to those who ask by TLS.
#[tokio::test(flavor = "multi_thread")]
async fn the_members_of_a_cluster_are_verified() {
    let (ours, theirs) = (authority(), authority());
    let (server, port) = server(&ours, "127.0.0.1", "no", "yes");
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("it has all slots", async || server.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        .await;
    // By the user that docs/engines.md lists.
    add_user(&server);
    let url = |authority: &Authority| {
        let root = file("root.pem", &authority.pem());
        format!("rediss+cluster://onlyonce:{PASSWORD}@127.0.0.1:{port}/?sslrootcert={}", root.display())
    };
    let store = Redis::open(&url(&ours), Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    put(&store, "k").await;
    let clients = server.command(&["CLIENT", "LIST", "TYPE", "NORMAL"]);
    let in_clear = clients.lines().filter(|line| !line.contains(&format!("laddr=127.0.0.1:{port} ")));
    assert_eq!(in_clear.count(), 1, "only the one that asks: {clients}");
    let error = Redis::open(&url(&theirs), Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("sslrootcert=FILE"), "{error}");
}
