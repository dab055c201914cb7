//! Clients that mean no good: they hold connections, send slowly, and take nothing back.

use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::service::Service;
use super::stops::held;
use super::wire::{Message, Wire};
use super::world::{CREATED, SOON, World, config, post, route, unkeyed, upstream};
use crate::config::{AmbiguousPaths, Config, Listener, PathCase};
use crate::gateway::listener::STREAMS_MAX;

const SHORT: Duration = Duration::from_millis(200);
/// Kinds of frames.
const HEADERS: u8 = 1;
const GOAWAY: u8 = 7;
const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: &str = "\0\0\0\x04\0\0\0\0\0";

fn with(service: &Service, listener: Listener) -> Config {
    Config { listener, ..config(service.address) }
}

/// Long enough that only what a test is about is ever too late.
fn patient() -> Listener {
    Listener { head_timeout: 5 * SOON, body_timeout: 5 * SOON, idle_timeout: 5 * SOON, ..Listener::default() }
}

async fn is_closed(wire: &mut Wire, what: &str) {
    timeout(SOON, wire.closed()).await.unwrap_or_else(|_| panic!("{what:?} is held for ever"));
}

/// L06
#[tokio::test]
async fn a_connection_on_which_nothing_is_asked_is_closed() {
    let service = Service::answering(CREATED).await;
    let world = World::with(with(&service, Listener { idle_timeout: SHORT, ..patient() })).await;
    for sent in [String::new(), format!("{PREFACE}{SETTINGS}")] {
        let mut wire = world.connect().await;
        wire.write(&sent).await;
        is_closed(&mut wire, &sent).await;
    }
    let mut wire = world.connect().await;
    wire.write(unkeyed()).await;
    assert_eq!(wire.message().await.unwrap().status(), 201);
    is_closed(&mut wire, "a connection that was used").await;
}

/// L06
#[tokio::test]
async fn half_a_head_or_half_a_preface_is_not_waited_for() {
    let service = Service::answering(CREATED).await;
    let world = World::with(with(&service, Listener { head_timeout: SHORT, ..patient() })).await;
    for sent in ["P", "PRI * HTTP/2.0\r\n\r\nSM", "POST /orders HTTP/1.1\r\nhost: sh"] {
        let mut wire = world.connect().await;
        wire.write(sent).await;
        is_closed(&mut wire, sent).await;
    }
    // Nor is half a head behind a whole request.
    let mut wire = world.connect().await;
    wire.write(unkeyed()).await;
    assert_eq!(wire.message().await.unwrap().status(), 201);
    wire.write("POST /orders").await;
    is_closed(&mut wire, "half of a second head").await;
    assert_eq!(service.count(), 1);
}

/// L06, L01
#[tokio::test]
async fn half_a_keyed_body_is_refused_and_nothing_runs() {
    let service = Service::answering(CREATED).await;
    let world = World::with(with(&service, Listener { body_timeout: SHORT, ..patient() })).await;
    let whole = post("k-1");
    let mut wire = world.connect().await;
    wire.write(&whole[..whole.len() - 1]).await;
    let answer = timeout(SOON, wire.message()).await.expect("an answer in time").expect("an answer");
    assert_eq!((answer.status(), answer.header("connection")), (408, Some("close")));
    is_closed(&mut wire, "half a body").await;
    assert_eq!((service.count(), world.state("k-1").await.as_str()), (0, "none"));
    assert_eq!(world.post("k-1").await.status(), 201);
}

/// L06: also where HTTP/2 would keep the connection for others.
#[tokio::test]
async fn half_a_keyed_body_of_one_stream_does_not_harm_the_others() {
    let service = Service::answering(CREATED).await;
    let world = World::with(with(&service, Listener { body_timeout: SHORT, ..patient() })).await;
    let mut client = client(&world).await;
    let (body, mut sender) = slow();
    let half = order("k-1").map(|_| body);
    sender.send(Bytes::from_static(b"{")).await;
    let answer = timeout(SOON, client.send_request(half)).await.expect("in time").unwrap();
    assert_eq!(answer.status(), 408);
    let (whole, rest) = slow();
    drop(rest);
    let answer = client.send_request(order("k-2").map(|_| whole)).await.unwrap();
    assert_eq!(answer.status(), 201);
    assert_eq!(service.count(), 1);
}

/// A service whose answer is longer than anybody takes, and that tells by a second message that it was cut off.
async fn endless() -> Service {
    Service::start(|mut connection| async move {
        connection.request().await;
        connection.wire.write("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
        let piece = vec![b'x'; 1 << 20];
        // Until the gateway gives up.
        while AsyncWriteExt::write_all(&mut connection.wire.tcp, &piece).await.is_ok() {}
        connection.saw(Message { first: "cut off".into(), headers: Vec::new(), body: Vec::new() });
    })
    .await
}

/// L06
#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_cut_off() {
    let service = endless().await;
    let world = World::with(with(&service, Listener { body_timeout: SHORT, ..patient() })).await;
    let mut wire = world.connect().await;
    wire.write(unkeyed()).await;
    timeout(SOON, service.has_seen(2)).await.expect("the answer is given up");
}

/// L06: also where only the window of its stream is full, and the connection goes on.
#[tokio::test]
async fn a_client_that_takes_nothing_of_one_stream_is_cut_off() {
    let service = endless().await;
    let world = World::with(with(&service, Listener { body_timeout: SHORT, ..patient() })).await;
    let mut client = client(&world).await;
    let unkeyed = Request::post("http://shop.example/orders").body(Full::from("{}").boxed()).unwrap();
    let answer = client.send_request(unkeyed).await.unwrap();
    assert_eq!(answer.status(), 200);
    timeout(SOON, service.has_seen(2)).await.expect("the answer is given up");
    drop(answer);
}

/// L06
#[tokio::test]
async fn the_connection_that_has_been_idle_longest_is_closed_for_another() {
    let (service, go_on) = held().await;
    let world = World::with(with(&service, Listener { connections_max: 2, ..patient() })).await;
    let mut busy = world.connect().await;
    busy.write(post("k-1")).await;
    service.has_seen(1).await;
    let mut idle = world.connect().await;
    // One that waits for its client alone is idle too.
    idle.write("POST /orders HTTP/1.1\r\nhost: shop\r\nauthorization: a\r\nidempotency-key: k-2\r\ncontent-length: 2\r\n\r\n").await;
    let mut third = world.connect().await;
    third.write(post("k-3")).await;
    is_closed(&mut idle, "what was idle").await;
    service.has_seen(2).await;
    // Now none is idle, so the next one is refused.
    let mut fourth = world.connect().await;
    is_closed(&mut fourth, "one too many").await;
    go_on.add_permits(3);
    for wire in [&mut busy, &mut third] {
        assert_eq!(wire.message().await.unwrap().status(), 201);
    }
    assert_eq!(world.post("k-4-waits-for-nobody").await.status(), 201);
}

/// Reads frames of HTTP/2 until one of this kind came; false where the connection ended before.
async fn has_frame(wire: &mut Wire, wanted: u8) -> bool {
    loop {
        let Some(header) = wire.exactly(9).await else { return false };
        let length = usize::from(header[1]) << 8 | usize::from(header[2]);
        if wire.exactly(length).await.is_none() {
            return false;
        }
        if header[3] == wanted {
            return true;
        }
    }
}

/// L06: a client of HTTP/2 may ask before it hears that its connection is closed for idleness.
#[tokio::test]
async fn what_was_asked_while_an_idle_connection_is_closed_is_answered() {
    let (service, go_on) = held().await;
    let world = World::with(with(&service, Listener { idle_timeout: SHORT, ..patient() })).await;
    let mut wire = world.connect().await;
    wire.write(format!("{PREFACE}{SETTINGS}")).await;
    assert!(timeout(SOON, has_frame(&mut wire, GOAWAY)).await.unwrap());
    // POST http://shop/orders, whole, as stream 1.
    wire.write(b"\0\0\x11\x01\x05\0\0\0\x01\x83\x86\x04\x07/orders\x41\x04shop").await;
    timeout(SOON, service.has_seen(1)).await.expect("it is passed on");
    // Longer than an idle one has to end.
    let mut other = world.connect().await;
    other.write(format!("{PREFACE}{SETTINGS}")).await;
    is_closed(&mut other, "an idle connection").await;
    go_on.add_permits(1);
    assert!(timeout(SOON, has_frame(&mut wire, HEADERS)).await.unwrap());
}

/// Whether a request on this connection was answered; not where the connection is closed.
async fn is_answered(wire: &mut Wire) -> bool {
    wire.tcp.write_all(unkeyed().as_bytes()).await.is_ok() && wire.message().await.is_some()
}

/// L06: whatever was passed on when its connection was told to close is answered.
#[tokio::test]
async fn what_was_asked_just_before_its_connection_is_closed_for_another_is_answered() {
    let service = Service::answering(CREATED).await;
    let world = World::with(with(&service, Listener { connections_max: 1, ..patient() })).await;
    let mut answered = 0;
    for _ in 0..100 {
        let mut first = world.connect().await;
        answered += usize::from(is_answered(&mut first).await);
        let (_second, is_answered) = tokio::join!(world.connect(), is_answered(&mut first));
        answered += usize::from(is_answered);
    }
    assert_eq!(service.count(), answered);
    assert!(answered > 1);
}

/// L06: HTTP/2 rapid reset. What goes on without its client counts.
#[tokio::test]
async fn requests_whose_streams_were_reset_count_against_their_connection() {
    let (service, go_on) = held().await;
    let world = World::with(with(&service, patient())).await;
    let mut client = client(&world).await;
    let streams = usize::from(STREAMS_MAX);
    for number in 1..=streams {
        let mut asked = Box::pin(client.send_request(order(&format!("k-{number}"))));
        assert!(poll!(asked.as_mut()).is_pending());
        timeout(SOON, service.has_seen(number)).await.expect("it is passed on");
        // Dropped, its stream is reset; the work goes on.
    }
    let refused = timeout(SOON, client.send_request(order("k-new"))).await.expect("in time").unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    let problem = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&problem).contains("idempotency_limit_reached"));
    assert_eq!(service.count(), streams);
    go_on.add_permits(2 * streams);
    // Their work has ended: there is room again.
    let again = async {
        loop {
            let answer = client.send_request(order("k-new")).await.unwrap();
            if answer.status() == 201 {
                return;
            }
        }
    };
    timeout(SOON, again).await.expect("room in time");
}

/// L06: so does what is still being answered.
#[tokio::test]
async fn requests_whose_answer_has_begun_count_against_their_connection() {
    let service = Service::start(|mut connection| async move {
        while connection.request().await.is_some() {
            connection.wire.write("HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\no").await;
        }
    })
    .await;
    let world = World::with(with(&service, patient())).await;
    let mut client = client(&world).await;
    for number in 1..=usize::from(STREAMS_MAX) {
        let mut asked = Box::pin(client.send_request(order(&format!("k-{number}"))));
        assert!(poll!(asked.as_mut()).is_pending());
        timeout(SOON, service.has_seen(number)).await.expect("it is passed on");
    }
    let refused = timeout(SOON, client.send_request(order("k-new"))).await.expect("in time").unwrap();
    assert_eq!(refused.status(), 429);
}

/// L06: a body that is not held has no time-out of one that is.
#[tokio::test]
async fn half_a_body_with_a_key_that_is_passed_on_is_waited_for() {
    let service = Service::answering(CREATED).await;
    let mut config = with(&service, Listener { body_timeout: SHORT, ..patient() });
    config.default.policy.methods = vec![http::Method::POST];
    let world = World::with(config).await;
    let (passed, held) = (post("k-1").replace("POST", "PUT"), post("k-2"));
    let (mut passing, mut holding) = (world.connect().await, world.connect().await);
    passing.write(&passed[..passed.len() - 1]).await;
    holding.write(&held[..held.len() - 1]).await;
    for _ in 0..2 {
        let late = timeout(SOON, holding.message()).await.expect("an answer in time").expect("an answer");
        assert_eq!(late.status(), 408);
        holding = world.connect().await;
        holding.write(&held[..held.len() - 1]).await;
    }
    passing.write(&passed[passed.len() - 1..]).await;
    assert_eq!(timeout(SOON, passing.message()).await.unwrap().unwrap().status(), 201);
}

/// L06, G01
#[tokio::test]
async fn an_upload_that_was_answered_before_its_end_goes_on() {
    let service = Service::start(|mut connection| async move {
        connection.wire.head().await.unwrap();
        connection.wire.write(CREATED).await;
        let body = connection.wire.exactly(4).await.unwrap();
        connection.saw(Message { first: "upload".into(), headers: Vec::new(), body });
    })
    .await;
    let world = World::with(with(&service, Listener { head_timeout: SHORT, ..patient() })).await;
    let mut wire = world.connect().await;
    wire.write("POST /orders HTTP/1.1\r\nhost: shop\r\ncontent-length: 4\r\n\r\n").await;
    assert_eq!(timeout(SOON, wire.message()).await.unwrap().unwrap().status(), 201);
    for byte in ["b", "o", "d", "y"] {
        wire.write(byte).await;
        // As long as half a head may take.
        let mut other = world.connect().await;
        other.write("POST").await;
        is_closed(&mut other, "half a head").await;
    }
    timeout(SOON, service.has_seen(1)).await.expect("all of it comes");
    assert_eq!(service.only().body, b"body");
}

/// A keyed request with a body of so many bytes.
fn sized(key: &str, bytes: usize) -> String {
    format!(
        "POST /orders HTTP/1.1\r\nhost: shop\r\nauthorization: a\r\nidempotency-key: {key}\r\ncontent-length: {bytes}\r\n\r\n{}",
        "x".repeat(bytes)
    )
}

/// L06
#[tokio::test]
async fn what_is_held_of_all_bodies_together_is_bounded() {
    let (service, go_on) = held().await;
    let world = World::with(with(&service, Listener { buffered_bytes_max: 10_500, ..patient() })).await;
    let mut first = world.connect().await;
    first.write(sized("k-1", 4_000)).await;
    service.has_seen(1).await;
    let refused = world.send(sized("k-2", 7_000)).await;
    assert_eq!((refused.status(), refused.code().as_str()), (429, "idempotency_limit_reached"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(service.count(), 1);
    go_on.add_permits(2);
    assert_eq!(first.message().await.unwrap().status(), 201);
    // What was held is given back once its request has ended.
    let again = async { while world.send(sized("k-2", 7_000)).await.status() != 201 {} };
    timeout(SOON, again).await.expect("room in time");
}

/// L01, L06: chunks of one byte cost what they carry.
#[tokio::test]
async fn a_body_in_chunks_of_one_byte_is_taken() {
    let service = Service::answering(CREATED).await;
    let world = World::with(with(&service, Listener { buffered_bytes_max: 64 << 10, ..patient() })).await;
    let head = "POST /orders HTTP/1.1\r\nhost: shop\r\nauthorization: a\r\nidempotency-key: k-1\r\ntransfer-encoding: chunked\r\n\r\n";
    let answer = world.send(format!("{head}{}0\r\n\r\n", "1\r\nx\r\n".repeat(20_000))).await;
    assert_eq!(answer.status(), 201);
    assert_eq!(service.only().body, vec![b'x'; 20_000]);
}

/// L06, U03: a service that says "wait" without end has not answered.
#[tokio::test]
async fn a_flood_of_interim_answers_ends_its_request_and_no_other() {
    let service = Service::start(|mut connection| async move {
        while let Some(request) = connection.request().await {
            if request.first.starts_with("POST /fine") {
                connection
                    .wire
                    .write(format!(
                        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n{CREATED}"
                    ))
                    .await;
                continue;
            }
            let flood = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
            // Until the gateway gives up.
            while AsyncWriteExt::write_all(&mut connection.wire.tcp, flood.as_bytes()).await.is_ok() {}
            return;
        }
    })
    .await;
    let world = World::with(with(&service, patient())).await;
    let fine = unkeyed().replace("/orders", "/fine");
    let (flooded, others) = tokio::join!(world.post("k-1"), async {
        for _ in 0..20 {
            assert_eq!(world.send(&fine).await.status(), 201);
        }
    });
    assert_eq!((flooded.status(), flooded.code().as_str()), (502, "upstream_outcome_unknown"));
    assert_eq!(world.state("k-1").await, "unknown");
    let () = others;
}

/// G01: a key is required on one route only.
fn required(service: &Service) -> Config {
    let policy = onlyonce::Policy { required: vec![http::Method::POST], ..onlyonce::Policy::default() };
    let mut config = config(service.address);
    config.routes = vec![
        route("POST /payments", upstream(service.address), policy),
        route("POST /a/**", upstream(service.address), onlyonce::Policy::default()),
    ];
    config
}

fn unkeyed_to(path: &str) -> String {
    unkeyed().replace("/orders", path)
}

const DODGES: [&str; 7] = [
    "/Payments",
    "//payments",
    "/payments;x",
    "/payments/",
    "/a/..;/payments",
    "/%2Fpayments",
    "/a/b/..;/..;/payments",
];

/// G01, K01
#[tokio::test]
async fn another_spelling_of_a_path_does_not_dodge_its_route_where_spellings_are_refused() {
    let service = Service::answering(CREATED).await;
    let lax = World::with(required(&service)).await;
    assert_eq!(lax.send(unkeyed_to("/payments")).await.code(), "idempotency_key_missing");
    for path in DODGES {
        assert_eq!(
            lax.send(unkeyed_to(path)).await.status(),
            201,
            "{path} is another path unless the settings say so"
        );
    }
    let config = Config { ambiguous_paths: AmbiguousPaths::Refuse, ..required(&service) };
    let strict = World::with(config).await;
    for path in DODGES {
        assert_eq!(strict.send(unkeyed_to(path)).await.status(), 400, "{path}");
    }
    // What has several spellings, none of which is another route's, passes.
    for path in ["/other//x", "/Other", "/other/", "/other;x", "/a/B/c"] {
        assert_eq!(strict.send(unkeyed_to(path)).await.status(), 201, "{path}");
    }
    assert_eq!(strict.send(unkeyed_to("/payments")).await.code(), "idempotency_key_missing");
}

/// G01
#[tokio::test]
async fn the_case_of_a_path_does_not_dodge_its_route_where_it_is_folded() {
    let service = Service::answering(CREATED).await;
    let world = World::with(Config { path_case: PathCase::Fold, ..required(&service) }).await;
    assert_eq!(world.send(unkeyed_to("/PayMents")).await.code(), "idempotency_key_missing");
    let keyed = post("k-1").replace("/orders", "/PayMents");
    assert_eq!(world.send(keyed).await.status(), 201);
    assert_eq!(service.only().first, "POST /PayMents HTTP/1.1", "it goes on as it came");
}

/// G01
#[tokio::test]
async fn headers_that_a_service_may_take_for_ours_do_not_reach_it() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let sent = post("k-1").replace(
        "host:",
        "Onlyonce_Token: forged\r\nIdempotency_Key: other\r\nX_Forwarded_For: 10.0.0.1\r\nX_Kept: 1\r\nhost:",
    );
    assert_eq!(world.send(sent).await.status(), 201);
    let seen = service.only();
    for name in ["onlyonce_token", "idempotency_key", "x_forwarded_for"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert_eq!((seen.header("x_kept"), seen.header("idempotency-key")), (Some("1"), Some("k-1")));
}

/// G01: a coding that is not undone would be lost on the way.
#[tokio::test]
async fn a_transfer_coding_other_than_chunked_is_refused() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    for coding in
        ["gzip, chunked", "chunked, chunked", "identity, chunked", "x\r\ntransfer-encoding: chunked"]
    {
        let sent = format!(
            "POST /orders HTTP/1.1\r\nhost: shop\r\ntransfer-encoding: {coding}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
        );
        let answer = world.send(sent).await;
        assert!([400, 501].contains(&answer.status()), "{coding}: {}", answer.first);
    }
    assert_eq!(service.count(), 0);
    let coded =
        Service::answering("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
            .await;
    let world = World::before(&coded).await;
    assert_eq!(world.post("k-1").await.code(), "upstream_outcome_unknown");
}

/// A client with HTTP/2 by prior knowledge.
async fn client(world: &World) -> http2::SendRequest<Slow> {
    let tcp = TcpStream::connect(world.gateway.address()).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
    tokio::spawn(connection);
    sender
}

type Slow = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

fn order(key: &str) -> Request<Slow> {
    Request::post("http://shop.example/orders")
        .header("authorization", "Bearer ann")
        .header("idempotency-key", key)
        .body(Full::from("{}").boxed())
        .unwrap()
}

/// A body that comes as it is sent, and ends when the sender is dropped.
fn slow() -> (Slow, Sender) {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(4);
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((Ok(http_body::Frame::data(piece)), receiver))
    });
    (BodyExt::boxed(http_body_util::StreamBody::new(pieces)), Sender(sender))
}

struct Sender(tokio::sync::mpsc::Sender<Bytes>);

impl Sender {
    async fn send(&mut self, piece: Bytes) {
        self.0.send(piece).await.unwrap();
    }
}
