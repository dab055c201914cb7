//! Which requests reach a service, and with which headers.

use std::time::Duration;

use http::Method;
use onlyonce::Policy;
use tokio::time::Instant;

use super::service::Service;
use super::world::{CREATED, World, config, loopback, post, route, upstream};

/// G02
#[tokio::test]
async fn a_keyed_request_goes_with_its_key_its_attempt_and_its_scope() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    assert_eq!(world.post("\"k-1\"").await.status(), 201);
    let seen = service.only();
    assert_eq!(seen.header("idempotency-key"), Some("\"k-1\""));
    assert_eq!(seen.header("onlyonce-attempt"), Some("1"));
    let scope = seen.header("onlyonce-scope").unwrap();
    assert!(scope.len() == 64 && scope.bytes().all(|digit| digit.is_ascii_hexdigit()), "{scope}");
    seen.header("onlyonce-token").unwrap().parse::<onlyonce::Handle>().unwrap();
    assert_eq!(seen.header("host"), Some("shop.example"));
    assert_eq!(seen.text(), "{}");
}

/// G01, G02: only we say what begins with Onlyonce.
#[tokio::test]
async fn what_a_client_says_in_our_name_is_dropped() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let ours = "onlyonce-attempt: 9\r\nonlyonce-token: x\r\nonlyonce-scope: x\r\nonlyonce-else: x\r\n";
    world.send(post("k-1").replacen("\r\n", &format!("\r\n{ours}"), 1)).await;
    world.send(format!("GET /orders HTTP/1.1\r\nhost: shop\r\n{ours}\r\n")).await;
    let upgrade = "connection: upgrade\r\nupgrade: chat\r\n";
    world.send(format!("GET /orders HTTP/1.1\r\nhost: shop\r\n{upgrade}{ours}\r\n")).await;
    let [keyed, unkeyed, upgrading] = service.seen().try_into().unwrap();
    assert_eq!(keyed.header("onlyonce-attempt"), Some("1"));
    for seen in [&unkeyed, &upgrading] {
        assert!(!seen.headers.iter().any(|(name, _)| name.starts_with("onlyonce-")), "{seen:?}");
    }
    assert!(keyed.header("onlyonce-else").is_none());
    assert_eq!(upgrading.header("upgrade"), Some("chat"));
}

/// G01
#[tokio::test]
async fn what_is_about_one_connection_stays_on_it() {
    let answer = "HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nserver: theirs\r\n\
                  date: Sun, 06 Nov 1994 08:49:37 GMT\r\nx-end: 1\r\ncontent-length: 0\r\n\r\n";
    let service = Service::answering(answer).await;
    let world = World::before(&service).await;
    let told = world
        .send("GET /a HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, x-foo\r\nx-foo: 1\r\nx-bar: 1\r\nte: gzip\r\n\r\n")
        .await;
    for name in ["x-hop", "keep-alive", "connection"] {
        assert!(told.header(name).is_none(), "{name}");
    }
    assert_eq!(told.header("server"), Some("theirs"));
    assert_eq!(told.header("date"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    assert_eq!(told.header("x-end"), Some("1"));
    let seen = service.only();
    assert_eq!(seen.header("x-bar"), Some("1"));
    for name in ["x-foo", "connection", "te"] {
        assert!(seen.header(name).is_none(), "{name}");
    }
}

/// G01
#[tokio::test]
async fn who_asked_is_said_and_believed_only_of_trusted_proxies() {
    let service = Service::answering(CREATED).await;
    let asks = "GET / HTTP/1.1\r\nhost: shop.example\r\nx-forwarded-for: 198.51.100.1\r\nx-forwarded-proto: https\r\n\r\n";
    World::before(&service).await.send(asks).await;
    let mut trusting = config(service.address);
    trusting.trusted_from = vec![loopback()];
    World::with(trusting).await.send(asks).await;
    let [stranger, proxy] = service.seen().try_into().unwrap();
    assert_eq!(stranger.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(stranger.header("x-forwarded-proto"), Some("http"));
    assert_eq!(stranger.header("x-forwarded-host"), Some("shop.example"));
    assert_eq!(proxy.header("x-forwarded-for"), Some("198.51.100.1, 127.0.0.1"));
    assert_eq!(proxy.header("x-forwarded-proto"), Some("https"));
}

/// G01
#[tokio::test]
async fn the_path_that_is_judged_is_the_path_that_is_passed_on() {
    let service = Service::answering(CREATED).await;
    let mut config = config(service.address);
    let strict = Policy { required: vec![Method::POST], ..Policy::default() };
    config.routes = vec![route("POST /orders", upstream(service.address), strict)];
    let world = World::with(config).await;
    for path in ["/orders", "/%6frders", "/a/../orders", "/%2e/orders", "/a/%2E%2e/orders?x=%6f"] {
        let answer =
            world.send(format!("POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n")).await;
        assert_eq!((answer.status(), answer.code().as_str()), (400, "idempotency_key_missing"), "{path}");
    }
    assert_eq!(service.count(), 0);
    let keyed = |path: &str| post("k-1").replacen("/orders", path, 1);
    assert_eq!(world.send(keyed("/a/../%6frders?q=%6f")).await.status(), 201);
    assert_eq!(world.send(keyed("/orders?q=%6f")).await.header("idempotent-replayed"), Some("true"));
    assert_eq!(service.only().first, "POST /orders?q=%6f HTTP/1.1");
    for path in ["/%", "/%zz", "/a%00", "/x/..%2forders"] {
        let answer = world.send(keyed(path)).await;
        assert_eq!(answer.status(), 400, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(service.count(), 1);
}

/// G01: the first route of the file wins, each with its own policy and service; questions go to the route they name.
#[tokio::test]
async fn each_route_has_its_policy_and_its_service() {
    let [payments, refunds, rest] = [
        Service::answering("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\npayments").await,
        Service::answering("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nrefunds").await,
        Service::answering("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nrest").await,
    ];
    let mut config = config(rest.address);
    let by_route = Policy {
        scope: vec!["route".parse().unwrap(), "header:authorization".parse().unwrap()],
        ..Policy::default()
    };
    config.routes = vec![
        route("POST /payments/*", upstream(payments.address), by_route.clone()),
        route("POST /payments/**", upstream(refunds.address), by_route),
    ];
    let world = World::with(config).await;
    let sent = async |path: &str| world.send(post("k-1").replacen("/orders", path, 1)).await.text();
    assert_eq!(sent("/payments/1").await, "payments");
    assert_eq!(sent("/payments/1/refunds").await, "refunds");
    assert_eq!(sent("/orders").await, "rest");
    let asked = async |query: &str| {
        let head = "HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer ann\r\n\r\n";
        world.send(format!("GET /_onlyonce/keys/k-1/response{query} {head}")).await.text()
    };
    assert_eq!(asked("?route=POST%20/payments/*").await, "payments");
    assert_eq!(asked("?route=POST+/payments/**").await, "refunds");
    assert_eq!(asked("").await, "rest");
}

/// G01: nothing of ours is a service's.
#[tokio::test]
async fn our_own_paths_never_go_to_a_service() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    for path in ["/_onlyonce/else", "/_onlyonce", "/%5fonlyonce/x", "/a/../_onlyonce/keys/k/x"] {
        let answer =
            world.send(format!("POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n")).await;
        assert_eq!(answer.status(), 404, "{path}");
    }
    assert_eq!(service.count(), 0);
}

/// G01: two ways to read where a request ends are one too many.
#[tokio::test]
async fn a_length_and_a_coding_are_refused_and_the_connection_closes() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    for lengths in
        ["content-length: 5\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 5"]
    {
        let mut client = world.connect().await;
        // Also as the second request of a connection.
        client.write("GET / HTTP/1.1\r\nhost: shop\r\n\r\n").await;
        assert_eq!(client.message().await.unwrap().status(), 201);
        client
            .write(format!(
                "POST /orders HTTP/1.1\r\nhost: shop\r\n{lengths}\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n"
            ))
            .await;
        assert_eq!(client.message().await.unwrap().status(), 400);
        client.closed().await;
    }
    assert!(service.seen().iter().all(|seen| seen.first == "GET / HTTP/1.1"));
    // Sent at once with another, it is read one way only, and nothing is read behind it.
    let before = service.count();
    let mut client = world.connect().await;
    let both = "GET / HTTP/1.1\r\nhost: shop\r\n\r\n\
                POST /both HTTP/1.1\r\nhost: shop\r\ncontent-length: 60\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n\
                GET /smuggled HTTP/1.1\r\nhost: shop\r\n\r\n";
    client.write(both).await;
    assert_eq!(client.message().await.unwrap().status(), 201);
    client.closed().await;
    let seen = service.seen();
    assert!(seen[before..].iter().all(|seen| !seen.first.contains("smuggled")));
    let both: Vec<_> = seen.iter().filter(|seen| seen.first.contains("/both")).collect();
    assert!(
        both.iter().all(|seen| seen.header("content-length").is_none() && seen.text() == "{}"),
        "{both:?}"
    );
}

/// G01
#[tokio::test]
async fn exactly_one_host_is_named() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    for hosts in ["", "host: a\r\nhost: b\r\n", "host: a, b\r\n", "host: a/b\r\n", "host: u@a\r\n"] {
        let answer = world.send(format!("GET / HTTP/1.1\r\n{hosts}\r\n")).await;
        assert_eq!(answer.status(), 400, "{hosts}");
    }
    assert_eq!(service.count(), 0);
    world.send("GET http://a.example/x HTTP/1.1\r\nhost: b.example\r\n\r\n").await;
    let seen = service.only();
    assert_eq!((seen.first.as_str(), seen.header("host")), ("GET /x HTTP/1.1", Some("a.example")));
    // HTTP/1.0 may do without.
    assert_eq!(world.send("GET /y HTTP/1.0\r\n\r\n").await.status(), 201);
    assert_eq!(service.seen()[1].header("host"), Some(service.address.to_string().as_str()));
}

/// G01
#[tokio::test]
async fn no_tunnel_is_opened() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let answer = world.send("CONNECT shop.example:443 HTTP/1.1\r\nhost: shop.example:443\r\n\r\n").await;
    assert_eq!(answer.status(), 405);
    assert_eq!(service.count(), 0);
}

/// G01
#[tokio::test]
async fn a_prefix_of_the_service_goes_in_front_of_every_path() {
    let service = Service::answering(CREATED).await;
    let mut config = config(service.address);
    config.default.upstream.uri = format!("http://{}/api/v1/", service.address).parse().unwrap();
    let world = World::with(config).await;
    world.send("GET /orders?a=1 HTTP/1.1\r\nhost: shop\r\n\r\n").await;
    world.send("OPTIONS * HTTP/1.1\r\nhost: shop\r\n\r\n").await;
    let [orders, options] = service.seen().try_into().unwrap();
    assert_eq!(orders.first, "GET /api/v1/orders?a=1 HTTP/1.1");
    assert_eq!(options.first, "OPTIONS * HTTP/1.1");
}

/// G01
#[tokio::test]
async fn answers_without_a_body_have_none() {
    for (answer, request) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", "GET / HTTP/1.1\r\nhost: shop\r\n\r\n"),
        ("HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n", "GET / HTTP/1.1\r\nhost: shop\r\n\r\n"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", "HEAD / HTTP/1.1\r\nhost: shop\r\n\r\n"),
    ] {
        let service = Service::answering(answer).await;
        let world = World::before(&service).await;
        let mut client = world.connect().await;
        for _ in 0..2 {
            client.write(request).await;
            let head = client.head().await.unwrap();
            assert_eq!(head.status().to_string(), answer[9..12]);
            assert!(head.header("transfer-encoding").is_none(), "{head:?}");
            if answer.contains("content-length") {
                assert_eq!(head.header("content-length"), Some("7"));
            }
        }
        assert_eq!(service.count(), 2);
    }
}

/// G01: the client is told to go on by us, and the service gets a whole request.
#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let head = "POST /orders HTTP/1.1\r\nhost: shop\r\nexpect: 100-continue\r\ncontent-length: 2\r\n";
    for key in ["", "authorization: Bearer ann\r\nidempotency-key: k-1\r\n"] {
        let mut client = world.connect().await;
        client.write(format!("{head}{key}\r\n")).await;
        assert_eq!(client.head().await.unwrap().status(), 100);
        client.write("{}").await;
        assert_eq!(client.message().await.unwrap().status(), 201);
    }
    assert!(service.seen().iter().all(|seen| seen.text() == "{}" && seen.header("expect").is_none()));
}

/// G01, L01: a client that still sends can read why it was refused.
#[tokio::test]
async fn a_client_that_still_sends_can_read_why_it_was_refused() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let size = 8_000_000;
    let head =
        post("k-1").replacen("content-length: 2\r\n\r\n{}", &format!("content-length: {size}\r\n\r\n"), 1);
    let mut client = world.connect().await;
    client.write(head).await;
    // All of it, before a byte of the answer is read.
    client.write(vec![b'x'; size]).await;
    let answer = client.message().await.unwrap();
    assert_eq!((answer.status(), answer.code().as_str()), (413, "idempotency_body_too_large"));
    assert_eq!(service.count(), 0);
}

/// G01, K01: a request is refused by its head, and its body comes later. Some clients lose the answer if the connection is closed
/// before they have sent all of it: Go's, and proxies written in Go.
#[tokio::test]
async fn a_refusal_waits_for_a_small_body_and_keeps_the_connection() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let refused = post("").replacen("\r\n\r\n{}", "\r\n\r\n", 1);
    let mut client = world.connect().await;
    for _ in 0..2 {
        client.write(&refused).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.write("{}").await;
        let answer = client.message().await.unwrap();
        assert_eq!((answer.status(), answer.code().as_str()), (400, "idempotency_key_invalid"));
        assert_eq!(answer.header("connection"), None);
    }
    client.write(post("k-1")).await;
    assert_eq!(client.message().await.unwrap().status(), 201, "the connection goes on");
    assert_eq!(service.count(), 1);
}

/// G01: the body of a refused request is not waited for for long, and not at all if it is large or the client asks first.
#[tokio::test]
async fn a_refusal_does_not_wait_for_a_large_body_nor_for_long() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let head = |with: &str| post("").replacen("content-length: 2\r\n\r\n{}", &format!("{with}\r\n\r\n"), 1);
    for (with, waits) in [
        ("content-length: 2", true),
        ("content-length: 2\r\nexpect: 100-continue", false),
        ("content-length: 100000", false),
    ] {
        let mut client = world.connect().await;
        let began = Instant::now();
        client.write(head(with)).await;
        let answer = client.message().await.unwrap();
        assert_eq!((answer.status(), answer.header("connection")), (400, Some("close")), "{with}");
        let took = began.elapsed();
        assert_eq!(took >= Duration::from_millis(900), waits, "{with} took {took:?}");
    }
    assert_eq!(service.count(), 0);
}
