//! Every way to lose a request or its answer on the way to an HTTP/1.1 service: the right error, the right state, and never a
//! second execution.

use std::time::Duration;

use onlyonce::{Effects, Policy};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::service::{Connection, Service};
use super::wire::Message;
use super::world::{CREATED, SOON, World, config, post, unkeyed};
use crate::config::Config;

/// What holds after a loss: for a keyed and an unkeyed request alike, whether it is known that nothing ran.
struct Loss {
    status: u16,
    code: &'static str,
    state: &'static str,
    /// What the service saw of the two requests, and of a retry of the keyed one.
    seen: usize,
    seen_after_retry: usize,
}

const UNKNOWN: Loss =
    Loss { status: 502, code: "upstream_outcome_unknown", state: "unknown", seen: 2, seen_after_retry: 2 };

impl Loss {
    async fn is_of(&self, world: &World, service: &Service) {
        let told = |answer: &Message| {
            assert_eq!((answer.status(), answer.code().as_str()), (self.status, self.code));
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
            assert_eq!(answer.header("idempotency-stored"), Some("false"));
            assert_eq!(answer.header("cache-control"), Some("no-store"));
        };
        told(&world.post("k-1").await);
        told(&world.send(unkeyed()).await);
        assert_eq!(world.state("k-1").await, self.state);
        assert_eq!(service.count(), self.seen);
        let retry = world.post("k-1").await;
        if self.state == "unknown" {
            assert_eq!((retry.status(), retry.code().as_str()), (409, "idempotency_outcome_unknown"));
        }
        assert_eq!(service.count(), self.seen_after_retry);
    }
}

/// Each request is read whole, and then this is done.
async fn after_reading<F>(act: impl Fn(Connection) -> F + Send + Sync + Clone + 'static) -> Service
where
    F: Future<Output = ()> + Send + 'static,
{
    Service::start(move |mut connection| {
        let act = act.clone();
        async move {
            if connection.request().await.is_some() {
                act(connection).await;
            }
        }
    })
    .await
}

async fn answering_broken(answer: &'static str) -> Service {
    after_reading(move |mut connection| async move {
        connection.wire.write(answer).await;
    })
    .await
}

/// G01, U02
#[tokio::test]
async fn a_service_that_is_not_there_did_not_run_anything() {
    let nowhere = Service::nowhere().await;
    let world = World::with(config(nowhere)).await;
    for _ in 0..2 {
        for request in [post("k-1"), unkeyed().to_owned()] {
            let answer = world.send(request).await;
            assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_unreachable"));
            assert_eq!(answer.header("idempotency-stored"), Some("false"));
        }
        assert_eq!(world.state("k-1").await, "retryable");
    }
    // Once it is there, the same key runs.
    let listener = tokio::net::TcpListener::bind(nowhere).await.unwrap();
    let serving = tokio::spawn(async move {
        let mut wire = super::wire::Wire::new(listener.accept().await.unwrap().0);
        let request = wire.message().await.unwrap();
        wire.write(CREATED).await;
        request
    });
    assert_eq!(world.post("k-1").await.status(), 201);
    assert_eq!(serving.await.unwrap().header("onlyonce-attempt"), Some("3"));
}

/// G01, U02
#[tokio::test]
async fn a_name_that_leads_nowhere_did_not_run_anything() {
    let mut config = config(Service::nowhere().await);
    config.default.upstream.uri = "http://nowhere.invalid:80".parse().unwrap();
    let world = World::with(config).await;
    let answer = world.post("k-1").await;
    assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_unreachable"));
    assert_eq!(world.state("k-1").await, "retryable");
}

/// G01, U03
#[tokio::test]
async fn a_connection_reset_after_the_request_is_doubt() {
    let service = after_reading(async |connection| connection.reset()).await;
    UNKNOWN.is_of(&World::before(&service).await, &service).await;
}

/// G01, U03
#[tokio::test]
async fn a_connection_reset_in_the_middle_of_the_request_is_doubt() {
    let service = Service::start(|mut connection: Connection| async move {
        let head = connection.wire.head().await.unwrap();
        connection.saw(head);
        connection.reset();
    })
    .await;
    UNKNOWN.is_of(&World::before(&service).await, &service).await;
}

/// G01, U03
#[tokio::test]
async fn a_connection_closed_without_an_answer_is_doubt() {
    let service = after_reading(async |connection| drop(connection)).await;
    UNKNOWN.is_of(&World::before(&service).await, &service).await;
}

/// G01, U03
#[tokio::test]
async fn half_a_head_is_doubt() {
    let service = answering_broken("HTTP/1.1 201 Created\r\ncontent-le").await;
    UNKNOWN.is_of(&World::before(&service).await, &service).await;
}

/// G01, U03
#[tokio::test]
async fn a_head_that_is_no_http_is_doubt() {
    for answer in ["SMTP ready\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 201 Created\r\nno header\r\n\r\n"]
    {
        let service = answering_broken(answer).await;
        UNKNOWN.is_of(&World::before(&service).await, &service).await;
    }
}

/// G01, U03
#[tokio::test]
async fn a_protocol_that_nobody_asked_for_is_doubt() {
    let service =
        answering_broken("HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n").await;
    UNKNOWN.is_of(&World::before(&service).await, &service).await;
}

/// G01, U03: the answer of a keyed request is read before its client is told; that of any other passes as it comes.
#[tokio::test]
async fn half_a_body_is_doubt() {
    for answer in [
        "HTTP/1.1 201 Created\r\ncontent-length: 10\r\n\r\nhalf",
        "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let service = answering_broken(answer).await;
        let world = World::before(&service).await;
        let told = world.post("k-1").await;
        assert_eq!((told.status(), told.code().as_str()), (502, "upstream_outcome_unknown"), "{answer}");
        assert_eq!(world.state("k-1").await, "unknown");
        assert_eq!(world.post("k-1").await.status(), 409);
        assert_eq!(service.count(), 1);
        let mut client = world.connect().await;
        client.write(unkeyed()).await;
        // It breaks off for the client as it did for us, perhaps before the head was on its way.
        if let Some(head) = timeout(SOON, client.head()).await.unwrap() {
            assert_eq!(head.status(), 201);
        }
        let rest = timeout(SOON, client.rest()).await.unwrap();
        assert!(!rest.ends_with(b"0\r\n\r\n") && rest.len() < 10, "{rest:?}");
        assert_eq!(service.count(), 2);
    }
}

const DEADLINE: Duration = Duration::from_secs(1);

fn within_a_second(service: &Service) -> Config {
    let mut config = config(service.address);
    let store_timeout = DEADLINE / 4;
    config.default.policy =
        Policy { lease: DEADLINE, deadline: DEADLINE, store_timeout, ..Policy::default() };
    config
}

/// G01, U03
#[tokio::test]
async fn no_answer_until_the_deadline_is_doubt() {
    let service = after_reading(async |mut connection| connection.wire.closed().await).await;
    let world = World::with(within_a_second(&service)).await;
    let loss = Loss { status: 504, ..UNKNOWN };
    loss.is_of(&world, &service).await;
}

/// G01: an upload that moves has no deadline; one that stands still has.
#[tokio::test]
async fn the_deadline_counts_from_when_an_upload_last_moved() {
    let service = Service::answering(CREATED).await;
    let world = World::with(within_a_second(&service)).await;
    let mut client = world.connect().await;
    client.write("POST /orders HTTP/1.1\r\nhost: shop\r\ncontent-length: 8\r\n\r\n").await;
    // Twice the deadline in all, and never half of it without a byte.
    for byte in "12345678".chars() {
        tokio::time::sleep(DEADLINE / 4).await;
        client.write(byte.to_string()).await;
    }
    assert_eq!(client.message().await.unwrap().status(), 201);
    assert_eq!(service.only().text(), "12345678");
    let mut client = world.connect().await;
    client.write("POST /orders HTTP/1.1\r\nhost: shop\r\ncontent-length: 8\r\n\r\n1234").await;
    assert_eq!(timeout(SOON, client.message()).await.unwrap().unwrap().status(), 504);
}

/// G01, U02: a connection that the service has closed while it was idle costs nobody a request.
#[tokio::test]
async fn a_kept_connection_that_was_closed_is_not_used() {
    let (closed, mut is_closed) = mpsc::unbounded_channel();
    let service = Service::start(move |mut connection| {
        let closed = closed.clone();
        async move {
            connection.request().await;
            connection.wire.write(CREATED).await;
            connection.wire.tcp.shutdown().await.unwrap();
            // The gateway has seen it, and closes its end.
            connection.wire.closed().await;
            closed.send(connection.number).unwrap();
        }
    })
    .await;
    let world = World::before(&service).await;
    for number in 1..=3 {
        assert_eq!(world.post(&format!("k-{number}")).await.status(), 201);
        assert_eq!(is_closed.recv().await, Some(number), "each request has a connection of its own");
    }
    assert_eq!(service.count(), 3);
}

/// G01, U02: where the service closes just as a request comes, it ran once, or nobody knows, or it is sent on another
/// connection; never twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_races_with_a_close_is_never_sent_twice() {
    let service = Service::start(|mut connection| async move {
        connection.request().await;
        connection.wire.write(CREATED).await;
    })
    .await;
    let world = World::before(&service).await;
    for number in 0..200 {
        let key = format!("k-{number}");
        let answer = world.post(&key).await;
        let seen = service.seen().iter().filter(|seen| seen.header("idempotency-key") == Some(&key)).count();
        match answer.status() {
            201 => assert_eq!(seen, 1),
            502 if answer.code() == "upstream_unreachable" => assert_eq!(seen, 0),
            502 => assert_eq!((seen, world.state(&key).await.as_str()), (0, "unknown")),
            other => panic!("{other}"),
        }
    }
}

/// G01: connections are kept and used again.
#[tokio::test]
async fn a_connection_is_kept_for_the_next_request() {
    let service = Service::start(|mut connection| async move {
        while connection.request().await.is_some() {
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{}", connection.number);
            connection.wire.write(answer).await;
        }
    })
    .await;
    let world = World::with_one_worker(config(service.address)).await;
    for number in 0..5 {
        assert_eq!(world.post(&format!("k-{number}")).await.text(), "1");
        assert_eq!(world.send(unkeyed()).await.text(), "1");
    }
}

/// G01, U02: a service that has just failed may close its connection a moment later; the next request has another.
#[tokio::test]
async fn a_connection_that_has_just_answered_5xx_is_not_used_again() {
    let service = Service::start(|mut connection| async move {
        while connection.request().await.is_some() {
            let status = if connection.number == 1 { "500 Oh No" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 1\r\n\r\n{}", connection.number);
            connection.wire.write(answer).await;
        }
    })
    .await;
    let world = World::with_one_worker(config(service.address)).await;
    let failed = world.post("k").await;
    assert_eq!((failed.status(), failed.text().as_str()), (500, "1"));
    for number in 0..3 {
        let retried = world.post(&format!("k-{number}")).await;
        assert_eq!(
            (retried.status(), retried.text().as_str()),
            (200, "2"),
            "a new one, and that one is kept"
        );
    }
    let retried = world.post("k").await;
    assert_eq!(
        (retried.status(), retried.text().as_str()),
        (200, "3"),
        "the retry itself: on none from before"
    );
}

/// How many crashes `no_immediate_retry_after_a_crash_is_left_unknown` goes through, if not a few hundred.
const CRASHES: &str = "ONLYONCE_CRASHES";

/// G01, U02: a handler crashes: the service answers 500 and closes the connection a moment later. A retry that comes at
/// once runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_immediate_retry_after_a_crash_is_left_unknown() {
    let service = Service::start(|mut connection| async move {
        while let Some(request) = connection.request().await {
            if request.header("onlyonce-attempt") == Some("1") {
                connection.wire.write(CRASHED).await;
                // Closed at once, or up to 0.2 ms later: the retry comes before it, with it, or after it.
                tokio::time::sleep(Duration::from_micros(connection.number as u64 % 10 * 20)).await;
                return;
            }
            connection.wire.write(CREATED).await;
        }
    })
    .await;
    let world = World::before(&service).await;
    let crashes = std::env::var(CRASHES).map_or(300, |crashes| crashes.parse().expect("a number"));
    let mut unknown = 0;
    for number in 0..crashes {
        let key = format!("k-{number}");
        assert_eq!(world.post(&key).await.status(), 500);
        match world.post(&key).await.status() {
            201 => {}
            502 => unknown += 1,
            other => panic!("{other}"),
        }
    }
    eprintln!("{unknown} of {crashes} immediate retries after a crash were left unknown");
    assert_eq!(unknown, 0);
}

/// G01, U02: a process of the service crashes with all its connections, and another one listens on the same port. The retry
/// that comes at once is not sent on a connection of the dead one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_immediate_retry_is_sent_on_another_connection_of_a_crashed_service() {
    const CONNECTIONS: usize = 4;
    let (crash, _) = tokio::sync::broadcast::channel(1);
    let crashing = crash.clone();
    let service = Service::start(move |mut connection| {
        let (crash, mut crashed) = (crashing.clone(), crashing.subscribe());
        async move {
            loop {
                let request = tokio::select! {
                    request = connection.request() => request,
                    // With the process, within 2 ms: the retry comes before it, with it, or after it.
                    _ = crashed.recv() => {
                        tokio::time::sleep(Duration::from_micros(connection.number as u64 % 10 * 200)).await;
                        return;
                    }
                };
                let Some(request) = request else { return };
                match (request.first.contains("/slow"), request.header("onlyonce-attempt")) {
                    // Until all of them are there, each has a connection of its own.
                    (true, _) => tokio::time::sleep(Duration::from_millis(5)).await,
                    (false, Some("1")) => {
                        // The connections that come now are those of the next process.
                        let _ = crash.send(());
                        connection.wire.write(CRASHED).await;
                        return;
                    }
                    (false, _) => {}
                }
                connection.wire.write(CREATED).await;
            }
        }
    })
    .await;
    let world = World::with_one_worker(config(service.address)).await;
    let crashes: usize = std::env::var(CRASHES).map_or(300, |crashes| crashes.parse().expect("a number"));
    let (mut crashed, mut unknown) = (0, 0);
    for number in 0..2 * crashes {
        let slow = "GET /slow HTTP/1.1\r\nhost: shop.example\r\n\r\n";
        futures_util::future::join_all((0..CONNECTIONS).map(|_| world.send(slow))).await;
        let key = format!("k-{number}");
        match world.post(&key).await.status() {
            500 => crashed += 1,
            // Sent on a connection that is still to be closed by the crash before: nobody can know better.
            502 => continue,
            other => panic!("{other}"),
        }
        match world.post(&key).await.status() {
            201 => {}
            502 => unknown += 1,
            other => panic!("{other}"),
        }
        if crashed == crashes {
            break;
        }
    }
    eprintln!("{unknown} of {crashed} immediate retries after a crash were left unknown");
    assert_eq!(unknown, 0);
    assert_eq!(crashed, crashes);
}

const CRASHED: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// G02: what is promised of sending a request again holds for it.
#[tokio::test]
async fn an_answer_that_never_came_promises_only_what_holds() {
    let service = Service::start(|mut connection| async move {
        connection.request().await;
    })
    .await;
    for (effects, keyed) in [
        (Effects::Opaque, "it is not run again before its outcome is known."),
        (Effects::Keyed, "Send it again with the same key.\""),
    ] {
        let mut config = config(service.address);
        config.default.policy.effects = effects;
        let world = World::with_one_worker(config).await;
        let told = world.post("k").await;
        assert!(told.status() == 502 && told.text().contains(keyed), "{}", told.text());
        let told = world.send(unkeyed()).await;
        assert!(told.status() == 502 && told.text().contains("again may run it twice"), "{}", told.text());
        let told = world.send("GET /orders HTTP/1.1\r\nhost: shop.example\r\n\r\n").await;
        assert!(told.status() == 502 && told.text().contains("It may be sent again."), "{}", told.text());
    }
    let world = World::with_one_worker(config(Service::nowhere().await)).await;
    let told = world.send(unkeyed()).await;
    assert!(
        told.status() == 502 && told.text().contains("was not sent. It may be sent again."),
        "{}",
        told.text()
    );
}
