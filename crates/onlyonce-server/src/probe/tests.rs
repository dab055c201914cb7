//! Probes behind a URL, against a server that answers what it is told to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onlyonce::Engine;
use onlyonce::key::Key;
use onlyonce::record::{Handle, Id, Token, Verdict};
use onlyonce::scope::Scope;
use onlyonce::store::memory::Memory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use crate::config::{Sources, Tls};
use crate::gateway::{Gateway, Place};

const SOON: Duration = Duration::from_secs(20);

/// Answers every request with the same bytes, and remembers them.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let (listener, answer) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), answer.into());
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let all = seen.clone();
        tokio::spawn(async move {
            loop {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let (all, answer) = (all.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = tcp.read_u8().await else { return };
                        head.push(byte);
                    }
                    all.lock().unwrap().push(String::from_utf8(head).unwrap());
                    let _ = tcp.write_all(&answer).await;
                });
            }
        });
        Self { address, seen }
    }

    async fn saying(body: &str) -> Self {
        Self::answering(http(200, body)).await
    }

    fn only(&self) -> String {
        let [only] = <[_; 1]>::try_from(self.seen.lock().unwrap().clone()).expect("one request");
        only
    }
}

fn http(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nlocation: /elsewhere\r\n\r\n{body}", body.len())
}

fn config(settings: &str, environment: &[(&str, &str)]) -> Config {
    let sets = [format!("route=[{{ match = 'POST /payments/*', effects = 'queryable', {settings} }}]")];
    let environment =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let flags = vec![("--upstream", "upstream", "http://127.0.0.1:1".to_owned())];
    let loaded = config::load(&Sources { sets: sets.into(), environment, flags, ..Sources::default() });
    loaded.unwrap_or_else(|faults| panic!("{faults}")).config
}

fn probe(config: &Config) -> HttpProbe {
    let route = &config.routes[0];
    let connector = Connector::new(config).unwrap();
    Prober::default().made(route, route.probe.as_ref().unwrap(), connector).unwrap()
}

fn question(key: &str) -> Question {
    let (scope, key) = (Scope::stored([0xab; 32], None), Key::stored(key));
    let handle = Handle { id: Id::of(&scope, &key), token: Token([0x0f; 16]) };
    Question {
        scope,
        key,
        handle,
        attempt: 3,
        route: Some("POST /payments/*".into()),
        call: None,
        traceparent: None,
    }
}

async fn ask(server: &Server) -> Result<Answer, String> {
    let config = config(&format!("probe = 'http://{}/probe'", server.address), &[]);
    let answered = timeout(SOON, probe(&config).ask(question("k-1"))).await.expect("an answer in time");
    answered.map_err(|failure| failure.says.to_string())
}

/// U05, M03: the question to the letter.
#[tokio::test]
async fn a_question_says_who_what_and_which_attempt() {
    let server = Server::saying(r#"{"verdict":"unknown"}"#).await;
    let settings = format!(
        "probe = 'http://{}/a/probe?team=x&secret=hunter2', probe_headers = {{ authorization = 'env:AUTH', x-y = 'z' }}",
        server.address
    );
    let config = config(&settings, &[("AUTH", "Bearer hunter2")]);
    let answer = probe(&config).ask(question("ü /+&=k")).await.unwrap();
    assert_eq!(answer.verdict, Verdict::StillUnknown);
    let detail = answer.detail.unwrap();
    assert!(detail.starts_with("200 in ") && detail.ends_with(" ms"), "{detail}");
    let request = server.only();
    let handle = question("ü /+&=k").handle;
    let scope = "ab".repeat(32);
    let target = format!(
        "GET /a/probe?team=x&secret=hunter2&scope={scope}&key=%C3%BC%20%2F%2B%26%3Dk&token={handle}&attempt=3&route=POST%20%2Fpayments%2F%2A HTTP/1.1\r\n"
    );
    assert!(request.starts_with(&target), "{request}\n{target}");
    let mut lines: Vec<_> = request.lines().skip(1).filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    let (host, agent) = (format!("host: {}", server.address), format!("user-agent: {AGENT}"));
    assert_eq!(lines, ["accept: application/json", "authorization: Bearer hunter2", &host, &agent, "x-y: z"]);
}

/// U05, M03
#[tokio::test]
async fn an_answer_is_a_200_with_a_verdict() {
    for (body, verdict) in [
        (r#"{"verdict":"happened"}"#, Verdict::Happened(None)),
        (r#"{"verdict":"did-not-happen"}"#, Verdict::DidNotHappen { never_will: false }),
        (r#"{"verdict":"did-not-happen","final":true}"#, Verdict::DidNotHappen { never_will: true }),
        (r#" {"verdict":"unknown","since":"Tuesday"} "#, Verdict::StillUnknown),
    ] {
        assert_eq!(ask(&Server::saying(body).await).await.unwrap().verdict, verdict, "{body}");
    }
    let body = r#"{"verdict":"happened","response":{"status":201,"headers":{"content-type":"text/plain"},"body":"paid"}}"#;
    let chunked = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    for server in [Server::saying(body).await, Server::answering(chunked).await] {
        let Verdict::Happened(Some(response)) = ask(&server).await.unwrap().verdict else {
            panic!("an answer")
        };
        assert_eq!((response.status, &response.body[..]), (201, &b"paid"[..]));
    }
}

/// U06, M03: whatever else comes decides nothing, and says why without a secret.
#[tokio::test]
async fn whatever_else_is_a_failed_probe() {
    let happened = r#"{"verdict":"happened"}"#;
    let huge = format!(r#"{{"verdict":"happened","more":"{}"}}"#, "x".repeat(1_200_000));
    for (answer, expected) in [
        (http(404, r#"{"verdict":"did-not-happen"}"#), "it answered 404, and only 200 is an answer"),
        (http(201, happened), "it answered 201, and only 200 is an answer"),
        (http(503, happened), "it answered 503, and only 200 is an answer"),
        (http(302, happened), "it answered 302, and redirects are not followed"),
        (http(200, ""), "its answer is not a JSON object"),
        (http(200, "happened"), "its answer is not a JSON object"),
        (http(200, r#"["happened"]"#), "its answer is not a JSON object"),
        (http(200, r#"{"verdict":"happened"} x"#), "its answer is not a JSON object"),
        (http(200, "{}"), "its answer cannot be used: verdict is missing"),
        (
            http(200, r#"{"verdict":"HAPPENED"}"#),
            "its answer cannot be used: verdict \"HAPPENED\" is not a verdict",
        ),
        (
            http(200, r#"{"verdict":"declined"}"#),
            "its answer cannot be used: verdict \"declined\" is not a verdict",
        ),
        (
            http(200, r#"{"verdict":"happened","response":{"status":99}}"#),
            "its answer cannot be used: response.status",
        ),
        (
            http(200, r#"{"verdict":"did-not-happen","response":{"status":200}}"#),
            "its answer cannot be used: response belongs",
        ),
        (http(200, &huge), "its answer has more than 1114112 bytes"),
        (http(200, happened).replace("content-length: 22", "content-length: 99"), "its answer broke off"),
        (String::new(), "the connection was lost before it answered"),
        ("no HTTP at all\r\n\r\n".to_owned(), "its answer is not HTTP"),
    ] {
        let told = ask(&Server::answering(answer.clone()).await).await.unwrap_err();
        assert!(told.starts_with(expected), "{}: {told}", answer.lines().next().unwrap_or_default());
    }
    let nowhere = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let settings = format!(
        "probe = 'http://{nowhere}/probe?secret=hunter2', probe_headers = {{ authorization = 'hunter2' }}"
    );
    let told = probe(&config(&settings, &[])).ask(question("k-1")).await.unwrap_err();
    assert!(
        told.says.contains(&format!("cannot connect to http://{nowhere}/: "))
            && !told.says.contains("hunter2"),
        "{}",
        told.says
    );
}

/// M03: routes share the places of a host, and a reload keeps them.
#[test]
fn four_places_are_there_for_a_host() {
    let prober = Prober::default();
    let places = |host: &str| prober.places(host);
    assert_eq!(places("bank").available_permits(), 4);
    let taken = places("Bank").try_acquire_owned().unwrap();
    assert_eq!((places("bank").available_permits(), places("shop").available_permits()), (3, 4));
    drop(taken);
    assert_eq!(places("bank").available_permits(), 4);
}

/// Files that go with the test.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// M03: by TLS against `upstream_ca`, over HTTP/2 where both offer it, although no upstream has TLS.
#[tokio::test]
async fn a_probe_is_asked_by_tls() {
    let files = Files(std::env::temp_dir().join(format!("onlyonce-probe-{}", std::process::id())));
    std::fs::create_dir_all(&files.0).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (files.0.join("cert.pem"), files.0.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = Server::saying(r#"{"verdict":"happened"}"#).await;
    // A gateway with TLS in front of the server speaks HTTP/2 by agreement.
    let mut inner = config("probe = 'http://h'", &[]);
    inner.listen = "127.0.0.1:0".parse().unwrap();
    inner.default.upstream.uri = format!("http://{}", server.address).parse().unwrap();
    inner.tls = Some(Tls { cert: cert.clone(), key, client_ca: None });
    let engine = Engine::new(Arc::new(Memory::new()));
    let inner = Gateway::start(inner, engine, Place::Threads).await.unwrap();
    let settings = format!("probe = 'https://localhost:{}/probe'", inner.address().port());
    let mut config = config(&settings, &[]);
    config.upstream_ca = Some(cert);
    let answer = timeout(SOON, probe(&config).ask(question("k-1"))).await.unwrap();
    assert_eq!(answer.map(|answer| answer.verdict), Ok(Verdict::Happened(None)));
    assert!(server.only().starts_with("GET /probe?scope="));
    config.upstream_ca = None;
    let told = probe(&config).ask(question("k-1")).await.unwrap_err();
    assert!(told.says.starts_with("no TLS with https://localhost"), "{}", told.says);
    inner.stop(SOON).await;
}
