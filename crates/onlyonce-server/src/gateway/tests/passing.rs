//! Streaming: bodies, events, upgraded protocols.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::service::{Connection, Service};
use super::world::{CREATED, SOON, World, post, unkeyed};

/// More than the buffers of four sockets and two libraries hold.
const MORE_THAN_BUFFERS: usize = 256 * 1024 * 1024;
static PIECE: [u8; 64 * 1024] = [b'x'; 64 * 1024];

/// Writes until the buffers are full; returns how much was written.
async fn fill(tcp: &mut tokio::net::TcpStream) -> usize {
    let mut written = 0;
    while let Ok(piece) = timeout(Duration::from_millis(500), tcp.write(&PIECE)).await {
        written += piece.unwrap();
        assert!(written < MORE_THAN_BUFFERS / 4, "it is held by the gateway");
    }
    written
}

/// G01: an upload is not held: while the service does not read, the client cannot write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_passes_as_the_service_takes_it() {
    let (go_on, gone_on) = oneshot::channel::<()>();
    let gone_on = std::sync::Mutex::new(Some(gone_on));
    let service = Service::start(move |mut connection: Connection| {
        let gone_on = gone_on.lock().unwrap().take().unwrap();
        async move {
            let head = connection.wire.head().await.unwrap();
            connection.saw(head);
            gone_on.await.unwrap();
            let mut left = MORE_THAN_BUFFERS;
            while left > 0 {
                let piece = left.min(PIECE.len());
                connection.wire.exactly(piece).await.unwrap();
                left -= piece;
            }
            connection.wire.write(CREATED).await;
        }
    })
    .await;
    let world = World::before(&service).await;
    let mut client = world.connect().await;
    client
        .write(format!("POST /orders HTTP/1.1\r\nhost: shop\r\ncontent-length: {MORE_THAN_BUFFERS}\r\n\r\n"))
        .await;
    service.has_seen(1).await;
    let written = fill(&mut client.tcp).await;
    go_on.send(()).unwrap();
    let mut left = MORE_THAN_BUFFERS - written;
    while left > 0 {
        let piece = left.min(PIECE.len());
        client.write(&PIECE[..piece]).await;
        left -= piece;
    }
    assert_eq!(client.message().await.unwrap().status(), 201);
}

/// G01: nor is a download.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_passes_as_the_client_takes_it() {
    let (filled, written) = mpsc::unbounded_channel();
    let service = Service::start(move |mut connection: Connection| {
        let filled = filled.clone();
        async move {
            connection.request().await;
            connection.wire.write("HTTP/1.1 200 OK\r\n\r\n").await;
            filled.send(fill(&mut connection.wire.tcp).await).unwrap();
        }
    })
    .await;
    let world = World::before(&service).await;
    let mut client = world.connect().await;
    client.write("GET / HTTP/1.1\r\nhost: shop\r\n\r\n").await;
    let mut written = written;
    let written = timeout(SOON, written.recv()).await.unwrap().unwrap();
    let answer = client.message().await.unwrap();
    assert_eq!(answer.body.len(), written);
}

/// G01, P08: each event is there before the next one is sent, also for a keyed request.
#[tokio::test]
async fn events_pass_as_they_come() {
    for request in [unkeyed().to_owned(), post("k-1")] {
        let (next, mut events) = mpsc::unbounded_channel::<()>();
        let events = std::sync::Mutex::new(Some(async move || events.recv().await));
        let service = Service::start(move |mut connection: Connection| {
            let mut next = events.lock().unwrap().take().unwrap();
            async move {
                connection.request().await;
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
                connection.wire.write(head).await;
                connection.wire.write("9\r\ndata: 1\n\n\r\n").await;
                next().await;
                connection.wire.write("9\r\ndata: 2\n\n\r\n0\r\n\r\n").await;
            }
        })
        .await;
        let world = World::before(&service).await;
        let mut client = world.connect().await;
        client.write(request).await;
        let head = timeout(SOON, client.head()).await.unwrap().unwrap();
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        assert_eq!(timeout(SOON, client.exactly(14)).await.unwrap().unwrap(), b"9\r\ndata: 1\n\n\r\n");
        next.send(()).unwrap();
        assert_eq!(timeout(SOON, client.exactly(14)).await.unwrap().unwrap(), b"9\r\ndata: 2\n\n\r\n");
    }
}

async fn echo(mut connection: Connection) {
    let request = connection.request().await.unwrap();
    assert_eq!(request.header("connection"), Some("upgrade"));
    let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: echo\r\nx-mine: 1\r\n\r\nhello\n";
    connection.wire.write(head).await;
    while let Some(line) = connection.wire.line().await {
        connection.wire.write(format!("{line}\n")).await;
    }
}

pub(super) const UPGRADE: &str =
    "GET /chat HTTP/1.1\r\nhost: shop\r\nconnection: keep-alive, Upgrade\r\nupgrade: echo\r\n\r\n";

/// G01: web sockets begin so.
#[tokio::test]
async fn another_protocol_passes_both_ways() {
    let service = Service::start(echo).await;
    let world = World::before(&service).await;
    let mut client = world.connect().await;
    client.write(UPGRADE).await;
    let head = timeout(SOON, client.head()).await.unwrap().unwrap();
    assert_eq!(
        (head.status(), head.header("upgrade"), head.header("x-mine")),
        (101, Some("echo"), Some("1"))
    );
    assert_eq!(client.line().await.unwrap(), "hello");
    for word in ["one", "two"] {
        client.write(format!("{word}\n")).await;
        assert_eq!(timeout(SOON, client.line()).await.unwrap().unwrap(), word);
    }
    // The client's end is the service's end, and the other way round.
    client.tcp.shutdown().await.unwrap();
    timeout(SOON, client.closed()).await.unwrap();
    assert_eq!(service.only().first, "GET /chat HTTP/1.1");
}

/// G01: a tunnel of HTTP would lead past every rule.
#[tokio::test]
async fn another_http_is_no_other_protocol() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let asks = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n";
    assert_eq!(world.send(format!("GET / HTTP/1.1\r\nhost: shop\r\n{asks}\r\n")).await.status(), 201);
    let seen = service.only();
    for name in ["upgrade", "connection", "http2-settings"] {
        assert_eq!(seen.header(name), None);
    }
}

/// G04: what has no end of its own is closed once all else has ended.
#[tokio::test]
async fn a_stop_closes_what_has_become_another_protocol() {
    let service = Service::start(echo).await;
    let world = World::before(&service).await;
    let mut client = world.connect().await;
    client.write(UPGRADE).await;
    assert_eq!(client.head().await.unwrap().status(), 101);
    assert_eq!(client.line().await.unwrap(), "hello");
    timeout(SOON, world.gateway.stop(Duration::from_secs(60)))
        .await
        .expect("it does not wait for the tunnel");
    timeout(SOON, client.closed()).await.unwrap();
}

/// G01: a client that breaks off takes its unkeyed request with it.
#[tokio::test]
async fn a_client_that_breaks_off_is_passed_on() {
    let (ended, mut has_ended) = mpsc::unbounded_channel();
    let service = Service::start(move |mut connection: Connection| {
        let ended = ended.clone();
        async move {
            let head = connection.wire.head().await.unwrap();
            connection.saw(head);
            ended.send(connection.wire.rest().await.len()).unwrap();
        }
    })
    .await;
    let world = World::before(&service).await;
    let mut client = world.connect().await;
    client.write("POST / HTTP/1.1\r\nhost: shop\r\ncontent-length: 10\r\n\r\nhalf").await;
    service.has_seen(1).await;
    drop(client);
    let length = timeout(SOON, has_ended.recv()).await.expect("the service sees the end").unwrap();
    assert!(length < 10);
}

/// R07: a keyed request goes on without its client.
#[tokio::test]
async fn a_keyed_request_goes_on_without_its_client() {
    let (answer, answered) = oneshot::channel::<()>();
    let answered = std::sync::Mutex::new(Some(answered));
    let service = Service::start(move |mut connection: Connection| {
        let answered = answered.lock().unwrap().take();
        async move {
            connection.request().await;
            if let Some(answered) = answered {
                answered.await.unwrap();
            }
            connection.wire.write(CREATED).await;
        }
    })
    .await;
    let world = World::before(&service).await;
    let mut client = world.connect().await;
    client.write(post("k-1")).await;
    service.has_seen(1).await;
    drop(client);
    answer.send(()).unwrap();
    let waits = post("k-1").replacen("\r\n", "\r\nprefer: wait=10\r\n", 1);
    let answer = world.send(waits).await;
    assert_eq!((answer.status(), answer.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!(service.count(), 1);
}
