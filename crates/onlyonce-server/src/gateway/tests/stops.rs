//! Stops and reloads: no request in flight is lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use onlyonce::store::memory::Memory;
use onlyonce::{Effects, Engine, Policy};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::service::{Connection, Service};
use super::world::{CREATED, SOON, World, config, post, route, unkeyed, upstream};
use crate::gateway::{Gateway, Place};

/// A service that answers when the test allows it.
pub(super) async fn held() -> (Service, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let gates = gate.clone();
    let service = Service::start(move |mut connection: Connection| {
        let gate = gates.clone();
        async move {
            while connection.request().await.is_some() {
                gate.acquire().await.unwrap().forget();
                connection.wire.write(CREATED).await;
            }
        }
    })
    .await;
    (service, gate)
}

/// G04, X03
#[tokio::test]
async fn a_stop_finishes_what_is_under_way_and_takes_nothing_new() {
    let (service, gate) = held().await;
    let world = World::before(&service).await;
    let address = world.gateway.address();
    let mut clients = Vec::new();
    for number in 0..10 {
        let mut client = world.connect().await;
        client.write(if number % 2 == 0 { post(&format!("k-{number}")) } else { unkeyed().into() }).await;
        clients.push(client);
    }
    let mut idle = world.connect().await;
    service.has_seen(10).await;
    let stopping = tokio::spawn(world.gateway.stop(Duration::from_secs(60)));
    // Idle connections are closed at once, and nobody new gets in.
    timeout(SOON, idle.closed()).await.unwrap();
    timeout(SOON, async { while tokio::net::TcpStream::connect(address).await.is_ok() {} }).await.unwrap();
    assert!(!stopping.is_finished());
    gate.add_permits(10);
    for mut client in clients {
        assert_eq!(timeout(SOON, client.message()).await.unwrap().unwrap().status(), 201);
    }
    timeout(SOON, stopping).await.unwrap().unwrap();
    assert_eq!(service.count(), 10);
}

/// G04, U04: what does not end in time is handed over by its effects.
#[tokio::test]
async fn a_stop_hands_over_what_does_not_end() {
    let (service, _gate) = held().await;
    let engine = Engine::new(Arc::new(Memory::new()));
    let mut config = config(service.address);
    let keyed = Policy { effects: Effects::Keyed, ..Policy::default() };
    config.routes = vec![route("POST /keyed", upstream(service.address), keyed)];
    let world =
        World { gateway: Gateway::start(config.clone(), engine.clone(), Place::Threads).await.unwrap() };
    let mut clients = Vec::new();
    for (path, key) in [("/orders", "opaque"), ("/keyed", "keyed"), ("/orders", "gone")] {
        let mut client = world.connect().await;
        client.write(post(key).replacen("/orders", path, 1)).await;
        clients.push(client);
    }
    service.has_seen(3).await;
    // One client has gone; its work is still under way.
    drop(clients.pop());
    timeout(SOON, world.gateway.stop(Duration::from_millis(50))).await.expect("in bounded time");
    for mut client in clients {
        let answer = timeout(SOON, client.message()).await.unwrap().unwrap();
        assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_outcome_unknown"));
    }
    // The next one on the same store knows.
    let world = World { gateway: Gateway::start(config, engine, Place::Threads).await.unwrap() };
    assert_eq!(world.state("opaque").await, "unknown");
    assert_eq!(world.state("keyed").await, "retryable");
    assert_eq!(world.state("gone").await, "unknown");
    assert_eq!(world.post("opaque").await.code(), "idempotency_outcome_unknown");
    assert_eq!(service.count(), 3);
}

/// G04
#[tokio::test]
async fn a_reload_holds_from_the_next_request_on_and_drops_none() {
    let (before, gate) = held().await;
    let after = Service::answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nafter").await;
    let world = World::before(&before).await;
    let mut client = world.connect().await;
    client.write(post("k-1")).await;
    before.has_seen(1).await;
    let mut next = config(after.address);
    next.listen = "127.0.0.1:1".parse().unwrap();
    next.store = crate::store::Url::Sqlite("other.db".into());
    next.default.policy = Policy { required: vec![Method::POST], ..Policy::default() };
    assert_eq!(world.gateway.reload(next).unwrap(), ["listen", "store"]);
    // On the connection that was there, and on a new one.
    assert_eq!(world.send(unkeyed()).await.code(), "idempotency_key_missing");
    assert_eq!(world.post("k-2").await.text(), "after");
    gate.add_permits(1);
    assert_eq!(timeout(SOON, client.message()).await.unwrap().unwrap().status(), 201);
    client.write(post("k-3")).await;
    assert_eq!(timeout(SOON, client.message()).await.unwrap().unwrap().text(), "after");
    // What was stored before still is.
    assert_eq!(world.post("k-1").await.header("idempotent-replayed"), Some("true"));
    assert_eq!((before.count(), after.count()), (1, 2));
}

/// L02, G04: limits hold from the next request on, and what was used before counts.
#[tokio::test]
async fn a_reload_keeps_what_callers_have_used() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    // One new key an hour.
    let limited = |keys_per_second| {
        let mut next = config(service.address);
        next.limits = onlyonce::Limits { keys_per_second, nodes: 3600, ..onlyonce::Limits::default() };
        next
    };
    assert_eq!(world.post("k-0").await.status(), 201);
    world.gateway.reload(limited(Some(1))).unwrap();
    assert_eq!(world.post("k-1").await.status(), 201);
    assert_eq!(world.post("k-2").await.code(), "idempotency_limit_reached");
    world.gateway.reload(limited(Some(2))).unwrap();
    assert_eq!(world.post("k-3").await.code(), "idempotency_limit_reached");
    world.gateway.reload(limited(None)).unwrap();
    assert_eq!(world.post("k-4").await.status(), 201);
}

/// G04
#[tokio::test]
async fn settings_that_cannot_hold_change_nothing() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let mut bad = config(Service::nowhere().await);
    bad.default.policy.lease = Duration::ZERO;
    assert!(world.gateway.reload(bad).is_err());
    assert_eq!(world.post("k-1").await.status(), 201);
}

/// G04: requests without a pause, while settings change again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_to_reloads() {
    let service = Service::answering(CREATED).await;
    let world = Arc::new(World::before(&service).await);
    let answers = Arc::new(Mutex::new(Vec::new()));
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let (world, answers) = (world.clone(), answers.clone());
            tokio::spawn(async move {
                for number in 0..50 {
                    let answer = world.post(&format!("k-{client}-{number}")).await;
                    answers.lock().unwrap().push(answer.status());
                }
            })
        })
        .collect();
    let mut reloads = 0;
    while clients.iter().any(|client| !client.is_finished()) {
        world.gateway.reload(config(service.address)).unwrap();
        reloads += 1;
        tokio::task::yield_now().await;
    }
    for client in clients {
        client.await.unwrap();
    }
    assert!(reloads > 1);
    assert_eq!(*answers.lock().unwrap(), [201; 200]);
    assert_eq!(service.count(), 200);
}
