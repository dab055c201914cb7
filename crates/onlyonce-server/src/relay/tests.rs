//! Deliveries to a server that answers what it is told to.

use bytes::Bytes;
use http::Uri;
use onlyonce::relay::Terms;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::config::Secret;

/// The secret of the specification's own example.
const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn secret(text: &str) -> Secret {
    Secret { source: "env:SECRET".into(), bytes: STANDARD.decode(text).unwrap() }
}

fn destination(uri: Uri) -> Destination {
    Destination {
        name: "mail".into(),
        uri,
        secrets: vec![secret(SECRET), secret(&STANDARD.encode([7; 24]))],
        terms: Terms::default(),
        dead: vec![410],
        provider_id: None,
        key_header: HeaderName::from_static("idempotency-key"),
    }
}

fn delivery() -> Delivery {
    Delivery {
        key: "msg_p5jXN8AQM9LWM0D4loKWxJek".into(),
        destination: "mail".into(),
        payload: Bytes::from_static(br#"{"test": 2432232314}"#),
        content_type: "application/vnd.receipt+json".into(),
        group: None,
        number: 2,
    }
}

/// Delivers to a server that answers so; what came of it, and what the server saw.
async fn exchanged(
    answer: &str,
    change: impl FnOnce(&mut Destination, &mut Delivery),
) -> (Exchanged, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (mut destination, mut delivery) =
        (destination(format!("http://{address}/receipts?x=1").parse().unwrap()), delivery());
    change(&mut destination, &mut delivery);
    let (length, answer) = (delivery.payload.len(), answer.to_owned());
    let server = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
            seen.push(tcp.read_u8().await.unwrap());
        }
        let mut body = vec![0; length];
        tcp.read_exact(&mut body).await.unwrap();
        seen.extend(body);
        // Who has read enough may be gone.
        let _ = tcp.write_all(answer.as_bytes()).await;
        String::from_utf8(seen).unwrap()
    });
    let connector = Connector::for_destinations(&[], None).unwrap();
    let outgoing = Outgoing::new(connector, &destination.uri, Protocol::Auto).unwrap();
    let told = HttpDestination { outgoing, destination }.exchange(&delivery).await;
    (told, server.await.unwrap())
}

async fn answered(answer: &str) -> Exchanged {
    exchanged(answer, |_, _| {}).await.0
}

fn done(provider_id: Option<&str>) -> Delivered {
    Delivered::Done { provider_id: provider_id.map(str::to_owned) }
}

/// W05: what a receiver gets; every secret signs.
#[tokio::test]
async fn a_delivery_carries_its_key_its_number_and_signatures() {
    let (told, seen) = exchanged("HTTP/1.1 204 No Content\r\n\r\n", |_, _| {}).await;
    assert_eq!(told, Exchanged { delivered: done(None), status: Some(204), counts: true });
    let (head, body) = seen.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /receipts?x=1 HTTP/1.1\r\n"), "{head}");
    assert_eq!(body, r#"{"test": 2432232314}"#);
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in {head}"))
    };
    assert_eq!(header("content-type"), "application/vnd.receipt+json");
    assert_eq!(header("idempotency-key"), "msg_p5jXN8AQM9LWM0D4loKWxJek");
    assert_eq!(header("webhook-id"), "msg_p5jXN8AQM9LWM0D4loKWxJek");
    assert_eq!((header("onlyonce-delivery"), header("user-agent")), ("2", AGENT));
    let time: u64 = header("webhook-timestamp").parse().unwrap();
    assert!(seconds_now().abs_diff(time) < 60);
    let signatures: Vec<_> = header("webhook-signature").split(' ').collect();
    assert!(signatures.len() == 2 && signatures.iter().all(|signature| signature.starts_with("v1,")));
}

/// W05: the example of the specification.
#[test]
fn signatures_are_those_of_standard_webhooks() {
    let secret = STANDARD.decode(SECRET).unwrap();
    let signed =
        signature::signed(&secret, Some("msg_p5jXN8AQM9LWM0D4loKWxJek"), "1614265330", &delivery().payload);
    assert_eq!(STANDARD.encode(signed), "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

/// W05, W06
#[tokio::test]
async fn each_answer_leads_to_what_the_table_says() {
    let again = |status, error: &str, after: Option<u64>, counts| Exchanged {
        delivered: Delivered::Again { after: after.map(Duration::from_secs), error: error.into() },
        status,
        counts,
    };
    let gone = answered("HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n").await;
    let dead = Delivered::Dead { error: "it answered 410".into() };
    assert_eq!(gone, Exchanged { delivered: dead, status: Some(410), counts: true });
    for (answer, expected) in [
        ("HTTP/1.1 500 No\r\n\r\n", again(Some(500), "it answered 500", None, true)),
        ("HTTP/1.1 404 No\r\n\r\n", again(Some(404), "it answered 404", None, true)),
        ("HTTP/1.1 429 No\r\n\r\n", again(Some(429), "it answered 429", None, false)),
        ("HTTP/1.1 429 No\r\nretry-after: 7\r\n\r\n", again(Some(429), "it answered 429", Some(7), false)),
        ("HTTP/1.1 503 No\r\nretry-after: 7\r\n\r\n", again(Some(503), "it answered 503", Some(7), false)),
        ("HTTP/1.1 503 No\r\n\r\n", again(Some(503), "it answered 503", None, true)),
        ("HTTP/1.1 500 No\r\nretry-after: 7\r\n\r\n", again(Some(500), "it answered 500", Some(7), true)),
        (
            "HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\n\r\n",
            again(Some(302), "it answered 302, and redirects are not followed", None, true),
        ),
        ("", again(None, "the connection was lost before it answered", None, true)),
        ("what?\r\n\r\n", again(None, "its answer is not HTTP", None, true)),
    ] {
        assert_eq!(answered(answer).await, expected, "{answer}");
    }
}

/// W06
#[tokio::test]
async fn nobody_there_is_a_failure_that_counts() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let destination = destination(format!("http://{free}/").parse().unwrap());
    let connector = Connector::for_destinations(&[], None).unwrap();
    let outgoing = Outgoing::new(connector, &destination.uri, Protocol::Auto).unwrap();
    let told = HttpDestination { outgoing, destination }.exchange(&delivery()).await;
    let Delivered::Again { after: None, error } = told.delivered else { panic!("{told:?}") };
    assert!(error.contains("cannot connect to"), "{error}");
    assert_eq!((told.status, told.counts), (None, true));
}

/// W05
#[tokio::test]
async fn the_providers_id_is_found_in_a_header_or_in_the_body() {
    let of = async |answer: &str, text: &str| {
        let place = match text.split_once(':') {
            Some(("header", name)) => ProviderId::Header(name.parse().unwrap()),
            _ => ProviderId::Json(text.parse().unwrap()),
        };
        exchanged(answer, |destination, _| destination.provider_id = Some(place)).await.0.delivered
    };
    let answer = "HTTP/1.1 200 OK\r\nx-id: evt_1\r\ncontent-length: 24\r\n\r\n{\"event\":{\"id\":\"evt_2\"}}";
    assert_eq!(of(answer, "header:x-id").await, done(Some("evt_1")));
    assert_eq!(of(answer, "header:y-id").await, done(None));
    assert_eq!(of(answer, "/event/id").await, done(Some("evt_2")));
    assert_eq!(of(answer, "/event").await, done(None));
    assert_eq!(of("HTTP/1.1 202 OK\r\ncontent-length: 2\r\n\r\nno", "/id").await, done(None));
    // It arrived, however much the receiver has to say about it.
    let large = format!("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{}", " ".repeat(100_000));
    assert_eq!(of(&large, "/id").await, done(None));
    let broken = of("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", "/id").await;
    assert!(matches!(broken, Delivered::Again { after: None, .. }), "{broken:?}");
}

/// W06
#[test]
fn a_retry_after_is_seconds_or_a_date() {
    let of = |text: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().unwrap());
        retry_after(&headers)
    };
    assert_eq!(of("120"), Some(Duration::from_secs(120)));
    assert_eq!(of("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
    assert!(of("Fri, 31 Dec 2100 23:59:59 GMT") > Some(Duration::from_secs(3600)));
    assert_eq!(of("soon"), None);
}

/// W06
#[tokio::test]
async fn a_content_type_that_no_header_can_have_is_a_dead_letter() {
    let uri = "http://127.0.0.1:1/".parse().unwrap();
    let destination = destination(uri);
    let connector = Connector::for_destinations(&[], None).unwrap();
    let outgoing = Outgoing::new(connector, &destination.uri, Protocol::Auto).unwrap();
    let odd = Delivery { content_type: "a\nb".into(), ..delivery() };
    let told = HttpDestination { outgoing, destination }.exchange(&odd).await;
    assert!(matches!(told.delivered, Delivered::Dead { .. }), "{told:?}");
}
