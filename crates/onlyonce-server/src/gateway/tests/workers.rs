//! Several serving threads: clients cannot tell.

use super::service::Service;
use super::world::{CREATED, World, post};
use crate::gateway::worker::Worker;

/// G01, P01: whichever thread has a client, there is one store and one truth.
#[tokio::test]
async fn clients_are_spread_over_the_workers_and_a_key_is_one_key_for_all() {
    let service = Service::answering(CREATED).await;
    let world = World::before(&service).await;
    let each = 3;
    let mut clients = Vec::new();
    for _ in 0..world.gateway.workers.len() * each {
        let mut client = world.connect().await;
        client.write(post("k-1")).await;
        assert_eq!(client.message().await.unwrap().status(), 201);
        clients.push(client);
    }
    let loads: Vec<_> = world.gateway.workers.iter().map(Worker::load).collect();
    assert!(loads.iter().all(|load| *load == loads[0] && *load >= each), "{loads:?}");
    assert_eq!(service.count(), 1);
}
