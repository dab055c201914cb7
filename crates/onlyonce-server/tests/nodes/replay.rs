//! Answers are replayed after the node that gave them is gone.

use onlyonce_testkit::engines::server::Engine;

use crate::client::pay;
use crate::node::{Site, on_every_server};
use crate::service::Service;

/// P05, E03, E04, E08
async fn an_answer_is_replayed_by_every_node_also_after_its_own_was_killed(engine: Engine) {
    let service = Service::open().await;
    let site = Site::new(engine, &service, &[]);
    let [first, second, third] = site.nodes().await;
    let answer = pay(first.address, "k").await.unwrap();
    assert!(answer.status == 201 && !answer.is_replay(), "{answer:?}");
    let same = async |node: &crate::node::Node| {
        let again = pay(node.address, "k").await.unwrap();
        assert!(again.is_replay() && again.body == answer.body, "{answer:?}, then {again:?}");
    };
    same(&second).await;
    first.kill().await;
    for node in [&second, &third, &site.node().await] {
        same(node).await;
        same(node).await;
    }
    assert_eq!(service.calls("k"), 1);
}

on_every_server!({
    an_answer_is_replayed_by_every_node_also_after_its_own_was_killed,
});
