//! Real handshakes over real sockets, with certificates made here.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::Version;
use onlyonce::Policy;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::config::{Config, Log, LogFormat, Protocol, Route, Tls, Upstream};

/// A folder of its own, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("onlyonce-tls-{}-{number}", std::process::id()));
        // A killed process with the same pid may have left one.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Somebody who issues certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
struct Identity {
    cert: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn server(&self) -> Identity {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        self.issue(CertificateParams::new(names).expect("names"))
    }

    fn client(&self, name: &str, until_year: i32) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
        self.issue(params)
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is made for this call")]
    fn issue(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Identity { cert, key: key.serialize_pem() }
    }
}

/// A server with its files.
struct Place {
    folder: Folder,
    ca: Authority,
    tls: Tls,
}

impl Place {
    fn new() -> Self {
        let folder = Folder::new();
        let ca = Authority::new("Server CA");
        let Identity { cert, key } = ca.server();
        let tls = Tls {
            cert: folder.write("cert.pem", &cert),
            key: folder.write("key.pem", &key),
            client_ca: None,
        };
        Self { folder, ca, tls }
    }

    fn believing(mut self, authorities: &[&Authority]) -> Self {
        let pem: String = authorities.iter().map(|authority| authority.pem.as_str()).collect();
        self.tls.client_ca = Some(self.folder.write("client-ca.pem", &pem));
        self
    }

    fn error(&self) -> String {
        let Err(error) = Acceptor::new(&self.tls) else { panic!("it must not be accepted") };
        format!("{error:#}")
    }

    /// What a client with `identity` is taken for, if its handshake succeeds.
    async fn meets(&self, identity: Option<&Identity>) -> Result<Option<String>, String> {
        let acceptor = Acceptor::new(&self.tls).expect("the files are good");
        let (near, far) = pair().await;
        let client = tokio::spawn(client_config(&self.ca, identity).connect(localhost(), near));
        let accepted = acceptor.accept(far).await.map_err(|error| error.to_string())?;
        client.await.expect("no panic").map_err(|error| error.to_string())?;
        Ok(accepted.certificate.map(|certificate| format!("{certificate:?}")))
    }
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
    (near, listener.accept().await.expect("accepted").0)
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}

fn client_config(ca: &Authority, identity: Option<&Identity>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).expect("PEM")).expect("an authority");
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = builder.with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { cert, key }) => {
            let cert = CertificateDer::from_pem_slice(cert.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(vec![cert], key).expect("they fit")
        }
    };
    config.alpn_protocols = vec![HTTP2.into()];
    TlsConnector::from(Arc::new(config))
}

/// S04
#[tokio::test]
async fn a_client_is_told_by_its_certificate_and_may_do_without() {
    let clients = Authority::new("Client CA");
    let place = Place::new().believing(&[&clients]);
    assert_eq!(place.meets(None).await, Ok(None));
    let [ann, renewed, bob] =
        [("ann", 2080), ("ann", 2090), ("bob", 2080)].map(|(name, year)| clients.client(name, year));
    let first = place.meets(Some(&ann)).await.expect("good").expect("named");
    assert!(first.contains("CN=ann") && first.contains("issuer CN=Client CA"), "{first}");
    assert_eq!(place.meets(Some(&renewed)).await, Ok(Some(first.clone())));
    let bob = place.meets(Some(&bob)).await.expect("good").expect("named");
    assert_ne!(first, bob);
}

/// S04
#[tokio::test]
async fn two_authorities_that_issue_one_subject_make_two_callers() {
    let [one, other] = ["Client CA", "Partner CA"].map(Authority::new);
    let place = Place::new().believing(&[&one, &other]);
    let [a, b] = [one.client("ann", 2080), other.client("ann", 2080)];
    let a = place.meets(Some(&a)).await.expect("good");
    let b = place.meets(Some(&b)).await.expect("good");
    assert!(a.is_some() && b.is_some() && a != b, "{a:?} {b:?}");
}

/// S04
#[tokio::test]
async fn a_certificate_that_is_not_good_ends_the_handshake() {
    let [clients, stranger] = [Authority::new("Client CA"), Authority::new("Client CA")];
    let place = Place::new().believing(&[&clients]);
    let forged = stranger.client("ann", 2080);
    assert!(place.meets(Some(&forged)).await.is_err(), "another authority of the same name");
    let expired = clients.client("ann", 2001);
    assert!(place.meets(Some(&expired)).await.is_err(), "expired");
    let server = clients.issue({
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params
    });
    assert!(place.meets(Some(&server)).await.is_err(), "not for clients");
}

/// S04
#[tokio::test]
async fn without_client_ca_nobody_is_told_by_a_certificate() {
    let ann = Authority::new("Client CA").client("ann", 2080);
    assert_eq!(Place::new().meets(Some(&ann)).await, Ok(None));
}

/// S04
#[tokio::test]
async fn a_session_with_client_certificates_is_verified_each_time() {
    let clients = Authority::new("Client CA");
    let place = Place::new().believing(&[&clients]);
    let acceptor = Acceptor::new(&place.tls).expect("the files are good");
    let ann = clients.client("ann", 2080);
    let connector = client_config(&place.ca, Some(&ann));
    for _ in 0..2 {
        let (near, far) = pair().await;
        let connector = connector.clone();
        let client = tokio::spawn(async move {
            let mut stream = connector.connect(localhost(), near).await.expect("connected");
            stream.write_all(b"x").await.expect("written");
            let mut answer = [0];
            stream.read_exact(&mut answer).await.expect("answered");
            stream.get_ref().1.handshake_kind()
        });
        let Accepted { mut stream, certificate } = acceptor.accept(far).await.expect("accepted");
        let mut byte = [0];
        stream.read_exact(&mut byte).await.expect("read");
        stream.write_all(&byte).await.expect("written");
        stream.flush().await.expect("flushed");
        assert!(certificate.is_some());
        assert_eq!(client.await.expect("no panic"), Some(rustls::HandshakeKind::Full));
    }
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_remedy() {
    let place = Place::new();
    let (cert, key) = (place.tls.cert.clone(), place.tls.key.clone());
    let with = |cert: &Path, key: &Path, client_ca: Option<&Path>| {
        let tls = Tls { cert: cert.into(), key: key.into(), client_ca: client_ca.map(Into::into) };
        Place { folder: Folder::new(), ca: Authority::new("x"), tls }.error()
    };
    let gone = place.folder.0.join("gone.pem");
    let empty = place.folder.write("empty.pem", "");
    let broken = place.folder.write("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let no_certificate =
        place.folder.write("bad.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let other_key = place.folder.write("other.pem", &KeyPair::generate().expect("a key").serialize_pem());
    for (error, setting, says) in [
        (with(&gone, &key, None), "tls.cert: ", "cannot be read"),
        (with(&place.folder.0, &key, None), "tls.cert: ", "cannot be read"),
        (with(&cert, &gone, None), "tls.key: ", "cannot be read"),
        (with(&empty, &key, None), "tls.cert: ", "has no certificate"),
        (with(&key, &key, None), "tls.cert: ", "has no certificate"),
        (with(&broken, &key, None), "tls.cert: ", "is not valid PEM"),
        (with(&no_certificate, &key, None), "tls.cert ", "cannot be used"),
        (with(&cert, &empty, None), "tls.key: ", "has no private key"),
        (with(&cert, &cert, None), "tls.key: ", "has no private key"),
        (with(&cert, &other_key, None), "tls.key: ", "is not the key of the certificate"),
        (with(&cert, &key, Some(&gone)), "tls.client_ca: ", "cannot be read"),
        (with(&cert, &key, Some(&empty)), "tls.client_ca: ", "has no certificate"),
        (with(&cert, &key, Some(&no_certificate)), "tls.client_ca: ", "is not a CA certificate"),
    ] {
        assert!(
            error.starts_with(setting) && error.contains(says),
            "{error:?} should say {setting:?} {says:?}"
        );
        assert!(
            error.contains(".pem\"") || error.contains(&*place.folder.0.to_string_lossy()),
            "{error:?} names the file"
        );
    }
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_and_an_expired_certificate_are_warned_of() {
    use std::os::unix::fs::PermissionsExt;

    let mut place = Place::new();
    let mode = |mode| fs::set_permissions(&place.tls.key, fs::Permissions::from_mode(mode)).expect("changed");
    mode(0o640);
    let found = warnings(&place.tls).join("\n");
    assert!(found.contains("chmod 600") && !found.contains("expired"), "{found}");
    mode(0o600);
    assert_eq!(warnings(&place.tls), Vec::<String>::new());
    let expired = place.ca.client("server", 2001);
    place.tls.cert = place.folder.write("expired.pem", &expired.cert);
    let found = warnings(&place.tls).join("\n");
    assert!(found.contains("expired at 2001-01-01"), "{found}");
}

/// An upstream with TLS that offers `protocols`.
struct Service {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Service {
    async fn new(identity: &Identity, protocols: &[&[u8]]) -> Self {
        let cert = CertificateDer::from_pem_slice(identity.cert.as_bytes()).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("PEM");
        let builder = rustls::ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        let mut config = builder.with_single_cert(vec![cert], key).expect("they fit");
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = stream.write_all(b"hello").await;
                    let _ = stream.shutdown().await;
                }
            }
        });
        Self { address, task }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn upstream(uri: &str, protocol: Protocol) -> Upstream {
    Upstream { uri: uri.parse().expect("a URI"), protocol }
}

fn config(upstream: Upstream, upstream_ca: Option<PathBuf>) -> Config {
    let listen = "127.0.0.1:0".parse().expect("an address");
    Config {
        listen,
        admin: listen,
        store: "memory:".parse().expect("a store"),
        expired: onlyonce::store::sqlite::Expired::Delete,
        encryption: None,
        cache: None,
        service: "".into(),
        stop_after: Duration::from_secs(25),
        trusted_from: Vec::new(),
        listener: Default::default(),
        path_case: Default::default(),
        ambiguous_paths: Default::default(),
        tls: None,
        upstream_ca,
        jwt: None,
        routes: Vec::new(),
        default: Route { name: "*".into(), pattern: None, upstream, policy: Policy::default(), probe: None },
        background: onlyonce::worker::Background::default(),
        probing: Default::default(),
        webhooks: Vec::new(),
        destinations: Vec::new(),
        relay_every: Duration::from_secs(1),
        limits: onlyonce::Limits::default(),
        admin_tokens: Vec::new(),
        log: Log { filter: "info".into(), format: LogFormat::Text, decisions: true },
        telemetry: Default::default(),
    }
}

async fn connected(upstream: &Upstream, ca: &Path) -> Result<(Version, String), String> {
    let connector =
        Connector::new(&config(upstream.clone(), Some(ca.into()))).expect("the settings are good");
    let mut connected = connector.connect(upstream).await.map_err(|error| format!("{error:#}"))?;
    let mut text = String::new();
    connected.stream.read_to_string(&mut text).await.expect("read");
    Ok((connected.version, text))
}

#[tokio::test]
async fn an_upstream_is_spoken_to_in_what_both_sides_offer() {
    let place = Place::new();
    let ca = place.folder.write("ca.pem", &place.ca.pem);
    let identity = place.ca.server();
    for (offered, protocol, version) in [
        (&[HTTP2, HTTP1][..], Protocol::Auto, Some(Version::HTTP_2)),
        (&[HTTP1], Protocol::Auto, Some(Version::HTTP_11)),
        (&[], Protocol::Auto, Some(Version::HTTP_11)),
        (&[HTTP2, HTTP1], Protocol::Http1, Some(Version::HTTP_11)),
        (&[], Protocol::Http1, Some(Version::HTTP_11)),
        (&[HTTP2, HTTP1], Protocol::Http2, Some(Version::HTTP_2)),
        (&[HTTP1], Protocol::Http2, None),
        (&[], Protocol::Http2, None),
    ] {
        let service = Service::new(&identity, offered).await;
        for host in ["localhost", "127.0.0.1"] {
            let upstream = upstream(&format!("https://{host}:{}", service.address.port()), protocol);
            let found = connected(&upstream, &ca).await;
            match version {
                Some(version) => assert_eq!(found, Ok((version, "hello".into())), "{offered:?} {protocol:?}"),
                None => assert!(found.is_err(), "{offered:?} {protocol:?}"),
            }
        }
    }
}

#[tokio::test]
async fn an_upstream_that_is_not_who_it_should_be_is_not_spoken_to() {
    let place = Place::new();
    let ca = place.folder.write("ca.pem", &place.ca.pem);
    let stranger = Service::new(&Authority::new("Server CA").server(), &[]).await;
    let found = connected(&upstream(&format!("https://{}", stranger.address), Protocol::Auto), &ca).await;
    assert!(found.as_ref().is_err_and(|error| error.contains("no TLS with")), "{found:?}");

    let other_name = place.ca.issue(CertificateParams::new(["other.example".to_owned()]).expect("a name"));
    let service = Service::new(&other_name, &[]).await;
    let found = connected(&upstream(&format!("https://{}", service.address), Protocol::Auto), &ca).await;
    assert!(
        found.is_err_and(|error| error.contains("NotValidForName") || error.contains("not valid for name"))
    );

    // The system's roots do not know our authority.
    let service = Service::new(&place.ca.server(), &[]).await;
    let own = upstream(&format!("https://{}", service.address), Protocol::Auto);
    if let Ok(connector) = Connector::new(&config(own.clone(), None)) {
        assert!(connector.connect(&own).await.is_err());
    }
}

#[tokio::test]
async fn in_clear_the_setting_says_what_is_spoken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    for (protocol, version) in [
        (Protocol::Auto, Version::HTTP_11),
        (Protocol::Http1, Version::HTTP_11),
        (Protocol::Http2, Version::HTTP_2),
    ] {
        let plain = upstream(&format!("http://{address}/base"), protocol);
        let connector = Connector::new(&config(plain.clone(), None)).expect("no roots are needed");
        let connected = connector.connect(&plain).await.expect("connected");
        assert_eq!(connected.version, version);
        let Stream::Plain(stream) = connected.stream else { panic!("no TLS was asked for") };
        assert!(stream.nodelay().expect("known"));
    }
}

#[tokio::test]
async fn who_cannot_be_reached_is_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let closed = upstream(&format!("http://{address}"), Protocol::Auto);
    let connector = Connector::new(&config(closed.clone(), None)).expect("the settings are good");
    let error = connector.connect(&closed).await.expect_err("nobody listens");
    assert!(format!("{error:#}").contains("cannot connect to"), "{error:#}");
    let nowhere = upstream("http://nowhere.invalid", Protocol::Auto);
    assert!(connector.connect(&nowhere).await.is_err());
}

/// The paused clock advances whenever every task waits.
#[tokio::test]
async fn an_upstream_that_never_answers_is_given_up() {
    let place = Place::new();
    let ca = place.folder.write("ca.pem", &place.ca.pem);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = upstream(&format!("https://{}", listener.local_addr().expect("an address")), Protocol::Auto);
    let connector = Connector::new(&config(silent.clone(), Some(ca))).expect("the settings are good");
    let waiting = tokio::spawn(async move { connector.connect(&silent).await });
    let (_held, _) = listener.accept().await.expect("accepted");
    tokio::time::pause();
    let error = waiting.await.expect("no panic").expect_err("it never answers");
    assert!(error.to_string().contains("within 5s"), "{error:#}");
}

/// As above.
#[tokio::test]
async fn a_client_that_never_says_hello_is_given_up() {
    let place = Place::new();
    let acceptor = Acceptor::new(&place.tls).expect("the files are good");
    let (_near, far) = pair().await;
    tokio::time::pause();
    assert!(acceptor.accept(far).await.is_err());
}

#[test]
fn upstream_ca_is_read_only_where_it_is_needed() {
    let gone = PathBuf::from("gone.pem");
    assert!(
        Connector::new(&config(upstream("http://a.example", Protocol::Auto), Some(gone.clone()))).is_ok()
    );
    let Err(error) = Connector::new(&config(upstream("https://a.example", Protocol::Auto), Some(gone)))
    else {
        panic!("it is needed")
    };
    assert!(format!("{error:#}").starts_with("upstream_ca: \"gone.pem\" cannot be read"), "{error:#}");
}
