//! HTTP/2 services, frame by frame, and HTTP/2 clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::service::{Connection, Service};
use super::wire::Wire;
use super::world::{CREATED, World, config, unkeyed};
use crate::config::Protocol;

const PREFACE: usize = 24;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_HEADERS: u8 = 4;
const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn goaway(last: u32, reason: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), reason.to_be_bytes()].concat())
}

/// Reads frames until the head of a request, and says on which stream it came.
async fn request(wire: &mut Wire) -> Option<u32> {
    loop {
        let head = wire.exactly(9).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        wire.exactly(usize::try_from(length).unwrap()).await?;
        if head[3] == HEADERS {
            return Some(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        }
    }
}

/// A service that answers each stream with these frames, made of the stream's number, and then closes where it is told to.
struct Frames {
    address: std::net::SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Frames {
    async fn start(answer: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static, closes: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let (count, answer) = (requests.clone(), Arc::new(answer));
        tokio::spawn(async move {
            loop {
                let mut wire = Wire::new(listener.accept().await.unwrap().0);
                let (count, answer) = (count.clone(), answer.clone());
                tokio::spawn(async move {
                    wire.write(frame(SETTINGS, 0, 0, &[])).await;
                    wire.exactly(PREFACE).await;
                    while let Some(stream) = request(&mut wire).await {
                        count.fetch_add(1, Ordering::SeqCst);
                        wire.write(answer(stream)).await;
                        if closes {
                            wire.tcp.shutdown().await.unwrap();
                            break;
                        }
                    }
                    wire.closed().await;
                });
            }
        });
        Self { address, requests }
    }

    async fn world(&self) -> World {
        let mut config = config(self.address);
        config.default.upstream.protocol = Protocol::Http2;
        World::with(config).await
    }

    fn count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn did_not_run(frames: &Frames) {
    let world = frames.world().await;
    for attempt in 1..=2 {
        let answer = world.post("k-1").await;
        assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_unreachable"));
        assert_eq!(world.state("k-1").await, "retryable");
        assert_eq!(frames.count(), attempt, "sent once, and once more by the client's retry");
    }
    assert_eq!(world.send(unkeyed()).await.code(), "upstream_unreachable");
    assert_eq!(frames.count(), 3);
}

async fn is_unknown(frames: &Frames) {
    let world = frames.world().await;
    let answer = world.post("k-1").await;
    assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_outcome_unknown"));
    assert_eq!(world.state("k-1").await, "unknown");
    assert_eq!(world.post("k-1").await.code(), "idempotency_outcome_unknown");
    assert_eq!(frames.count(), 1);
    assert_eq!(world.send(unkeyed()).await.code(), "upstream_outcome_unknown");
    assert_eq!(frames.count(), 2);
}

/// G01, U02
#[tokio::test]
async fn a_refused_stream_did_not_run() {
    let refused = |stream| frame(RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes());
    did_not_run(&Frames::start(refused, false).await).await;
}

/// G01, U02
#[tokio::test]
async fn a_goaway_below_our_stream_did_not_run() {
    did_not_run(&Frames::start(|stream| goaway(stream.saturating_sub(2), 0), true).await).await;
    did_not_run(&Frames::start(|_| goaway(0, INTERNAL_ERROR), true).await).await;
}

/// G01, U03
#[tokio::test]
async fn a_goaway_that_includes_our_stream_is_doubt() {
    is_unknown(&Frames::start(|stream| goaway(stream, 0), true).await).await;
    is_unknown(&Frames::start(|stream| goaway(stream, INTERNAL_ERROR), true).await).await;
    is_unknown(&Frames::start(|_| goaway(u32::MAX >> 1, 0), true).await).await;
}

/// G01, U03
#[tokio::test]
async fn any_other_reset_of_a_stream_is_doubt() {
    let reset = |stream| frame(RST_STREAM, 0, stream, &INTERNAL_ERROR.to_be_bytes());
    is_unknown(&Frames::start(reset, false).await).await;
}

/// G01, U03
#[tokio::test]
async fn a_connection_closed_under_a_stream_is_doubt() {
    is_unknown(&Frames::start(|_| Vec::new(), true).await).await;
}

/// G01, U03
#[tokio::test]
async fn frames_that_are_none_are_doubt() {
    is_unknown(&Frames::start(|_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), true).await).await;
}

/// L06, U03: a flood of interim answers (`:status: 100`) is none.
#[tokio::test]
async fn a_flood_of_interim_heads_is_doubt() {
    let flood = |stream| frame(HEADERS, END_HEADERS, stream, b"\x08\x03100").repeat(3000);
    is_unknown(&Frames::start(flood, false).await).await;
}

/// A client with HTTP/2 by prior knowledge.
async fn client(world: &World) -> http2::SendRequest<Full<Bytes>> {
    let tcp = TcpStream::connect(world.gateway.address()).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn order(key: &str) -> Request<Full<Bytes>> {
    Request::post("http://shop.example/orders")
        .header("authorization", "Bearer ann")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Full::from("{}"))
        .unwrap()
}

/// G01, G02
#[tokio::test]
async fn http2_comes_in_and_http1_goes_out() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let mut client = client(&world).await;
    let response = client.send_request(order("k-1")).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (201, Version::HTTP_2));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    let replay = client.send_request(order("k-1")).await.unwrap();
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    let seen = service.only();
    assert_eq!(seen.first, "POST /orders HTTP/1.1");
    assert_eq!(seen.header("host"), Some("shop.example"));
    assert_eq!(seen.header("cookie"), Some("a=1; b=2"));
    assert_eq!(seen.header("onlyonce-attempt"), Some("1"));
    // The same key by the other HTTP.
    assert_eq!(world.post("k-1").await.header("idempotent-replayed"), Some("true"));
}

/// G01
#[tokio::test]
async fn two_hosts_in_one_http2_request_are_refused() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let mut request = order("k-1");
    request.headers_mut().insert("host", "other.example".parse().unwrap());
    assert_eq!(client(&world).await.send_request(request).await.unwrap().status(), 400);
    assert_eq!(service.count(), 0);
}

/// G01, G02: a service with HTTP/2, of a real library, that tells what it was asked.
#[tokio::test]
async fn http2_goes_out_on_one_connection() {
    use hyper::service::service_fn;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    tokio::spawn(async move {
        loop {
            let tcp = listener.accept().await.unwrap().0;
            count.fetch_add(1, Ordering::SeqCst);
            let tell = service_fn(async |request: Request<hyper::body::Incoming>| {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let attempt = parts.headers.get("onlyonce-attempt").map(|value| value.to_str().unwrap());
                let told = format!("{} {} {attempt:?} {body:?}", parts.method, parts.uri);
                Ok::<_, hyper::Error>(http::Response::new(Full::new(Bytes::from(told))))
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(tcp), tell));
        }
    });
    let mut config = config(address);
    config.default.upstream.protocol = Protocol::Http2;
    config.default.upstream.uri = format!("http://{address}/v1/").parse().unwrap();
    let world = World::with_one_worker(config).await;
    let told = world.post("k-1").await.text();
    assert_eq!(told, r#"POST http://shop.example/v1/orders Some("1") b"{}""#);
    let all = futures_util::future::join_all((2..40).map(|number| {
        let world = &world;
        async move { world.post(&format!("k-{number}")).await }
    }));
    assert!(all.await.iter().all(|answer| answer.status() == 200));
    assert_eq!(world.send(unkeyed()).await.text(), r#"POST http://shop.example/v1/orders None b"{}""#);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// G01: trailers of an unkeyed answer pass.
#[tokio::test]
async fn trailers_pass() {
    let service = Service::start(|mut connection: Connection| async move {
        connection.request().await;
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n";
        connection.wire.write(answer).await;
    })
    .await;
    let world = World::before(&service).await;
    let request = Request::get("http://shop.example/orders").body(Full::default()).unwrap();
    let response = client(&world).await.send_request(request).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "7");
    assert_eq!(collected.to_bytes(), "ok");
}
