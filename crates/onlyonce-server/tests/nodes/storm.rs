//! Many requests with one key at once, over three gateways.

use futures_util::future::join_all;
use onlyonce_testkit::engines::server::Engine;

use crate::client::{WAIT, paying};
use crate::node::{Site, on_every_server};
use crate::service::Service;

const KEYS: usize = 5;
const REQUESTS: usize = 120;

/// R02, R04, E03, E04, E08: whoever waits gets the answer of the one that ran, on whatever node.
async fn a_storm_on_one_key_over_three_gateways_runs_once(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &["policy.wait_max=60s"]);
    let nodes = site.nodes::<3>().await;
    for round in 0..KEYS {
        let key = format!("storm-{round}");
        let storm = (0..REQUESTS).map(|number| paying(nodes[number % 3].address, &key, WAIT));
        let answers = join_all(storm).await;
        let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
        for answer in &answers {
            assert!(answer.status == 201 && answer.body == answers[0].body, "{answer:?}");
        }
        assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1, "one ran");
        assert_eq!(service.calls(&key), 1);
    }
}

/// R02, R03, E03, E04, E08: who does not wait is told that it is in progress, or gets the answer.
async fn a_storm_of_impatient_clients_over_three_gateways_runs_once(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &[]);
    let nodes = site.nodes::<3>().await;
    service.hold();
    let storm: Vec<_> = (0..REQUESTS).map(|number| paying(nodes[number % 3].address, "k", "")).collect();
    service.called(["k".to_owned()]).await;
    service.go_on();
    let answers: Vec<_> = join_all(storm).await.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
    assert_eq!(answers.iter().filter(|answer| answer.status == 201 && !answer.is_replay()).count(), 1);
    for answer in answers {
        assert!(answer.status == 201 || answer.is(409, "idempotency_key_in_progress"), "{answer:?}");
    }
    assert_eq!(service.calls("k"), 1);
}

on_every_server!({
    a_storm_on_one_key_over_three_gateways_runs_once,
    a_storm_of_impatient_clients_over_three_gateways_runs_once,
});
