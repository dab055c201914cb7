//! `mode = "observe"`: as if we were not there.

use axum::body::Body;
use http::Request;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use onlyonce::policy::Mode;
use onlyonce::{Effects, Policy};

use crate::world::{Fault, FaultyStore, World, order, order_with, post, settle};

fn observing() -> Policy {
    Policy { mode: Mode::Observe, required: vec![http::Method::POST], ..Policy::default() }
}

/// What was counted of `metric`, as `decision count` lines in their order.
fn counted(snapshotter: &Snapshotter, metric: &str) -> Vec<String> {
    let mut lines: Vec<_> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(key, ..)| key.key().name() == metric)
        .map(|(key, _, _, value)| {
            let label =
                |name| key.key().labels().find(|label| label.key() == name).map(|label| label.value());
            let DebugValue::Counter(count) = value else { panic!("{metric} is no counter") };
            format!("{} {} {count}", label("route").unwrap(), label("decision").unwrap())
        })
        .collect();
    lines.sort();
    lines
}

/// G03
#[tokio::test(start_paused = true)]
async fn every_request_passes_untouched_and_what_would_have_been_decided_is_counted() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let world = World::new(observing());

    let first = world.send(order("k")).await;
    let again = world.send(order("k")).await;
    assert_eq!((first.summary(), again.summary()), ("201 run 1".into(), "201 run 2".into()));
    for answer in [first, again] {
        let ours = answer.headers.keys().find(|name| name.as_str().starts_with("idempot"));
        assert_eq!(ours, None, "an answer is not marked");
    }
    let other = post("k").body(Body::from(r#"{"amount":6}"#)).unwrap();
    assert_eq!(world.send(other).await.summary(), "201 run 3");
    let keyless = Request::post("/orders").header("authorization", "Bearer t1").body(Body::empty()).unwrap();
    assert_eq!(world.send(keyless).await.summary(), "201 run 4");
    assert_eq!(world.send(order("")).await.summary(), "201 run 5");
    let unknown = Request::post("/orders").header("idempotency-key", "k").body(Body::empty()).unwrap();
    assert_eq!(world.send(unknown).await.summary(), "201 run 6");
    // In earnest the second of these two would have been told to come back.
    let held = world.start(order_with("slow", &[("x-gate", "1")])).await;
    assert_eq!(world.send(order_with("slow", &[])).await.summary(), "201 run 8");
    world.handler.open(1);
    assert_eq!(held.await.unwrap().summary(), "201 run 7");
    // A server error would have been tried again.
    assert_eq!(world.send(order_with("e", &[("x-status", "500")])).await.status, 500);
    assert_eq!(world.send(order_with("e", &[])).await.status, 201);

    let snapshotter = recorder.snapshotter();
    assert_eq!(
        counted(&snapshotter, "onlyonce_observed_total"),
        [
            "POST /orders executed 3",
            "POST /orders in_progress 1",
            "POST /orders invalid 1",
            "POST /orders key_reused 1",
            "POST /orders missing 1",
            "POST /orders replayed 1",
            "POST /orders retried 1",
            "POST /orders scope_missing 1",
        ]
    );
}

/// G03
#[tokio::test(start_paused = true)]
async fn what_was_observed_never_decides_in_earnest() {
    let store = FaultyStore::new();
    let observed = World::on(store.clone(), observing());
    assert_eq!(observed.send(order("k")).await.summary(), "201 run 1");
    settle().await;
    let enforced = World::on(store, Policy::default());
    let first = enforced.send(order("k")).await;
    assert_eq!((first.summary(), first.is_replay()), ("201 run 1".into(), false));
    assert!(enforced.send(order("k")).await.is_replay());
}

/// G03
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_no_business_of_the_client() {
    let world = World::new(observing());
    for fault in [Fault::Refused, Fault::Corrupt, Fault::Stalled] {
        world.store.always(Some(fault));
        assert_eq!(world.send(order("k")).await.status, 201, "{fault:?}");
    }
    assert_eq!(world.handler.runs(), 3);
}

/// O01
#[tokio::test(start_paused = true)]
async fn a_request_counts_once_by_its_decision_and_paths_are_no_labels() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let world = World::new(Policy { required: vec![http::Method::POST], ..Policy::default() });
    for _ in 0..3 {
        world.send(order("k")).await;
    }
    world.send(post("k").body(Body::from("other")).unwrap()).await;
    world.send(order_with("e", &[("x-status", "500")])).await;
    world.send(order_with("e", &[])).await;
    world.send(order_with("p", &[("x-panic", "1")])).await;
    world.send(order_with("p", &[])).await;
    world.send(order("")).await;
    world.send(Request::post("/nowhere/17").body(Body::empty()).unwrap()).await;
    let snapshotter = recorder.snapshotter();
    assert_eq!(
        counted(&snapshotter, "onlyonce_requests_total"),
        [
            "POST /orders executed 3",
            "POST /orders invalid 1",
            "POST /orders key_reused 1",
            "POST /orders replayed 2",
            "POST /orders retried 1",
            "POST /orders unknown 1",
            "other missing 1",
        ]
    );
}

/// W01, O01: anything above 0 is a fault of the service: a crash at the wrong moment would run its work twice.
#[tokio::test(start_paused = true)]
async fn local_work_that_is_done_and_not_completed_by_its_own_transaction_is_counted() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let outside = |snapshotter: Snapshotter| {
        let metrics = snapshotter.snapshot().into_vec().into_iter();
        let found = metrics.filter(|(key, ..)| key.key().name() == "onlyonce_completed_outside_total");
        found.map(|(_, _, _, value)| value).collect::<Vec<_>>()
    };
    let opaque = World::new(Policy::default());
    opaque.send(order("k")).await;
    let local = World::new(Policy { effects: Effects::Local, ..Policy::default() });
    local.send(order_with("refused", &[("x-status", "404")])).await;
    local.send(order_with("failed", &[("x-status", "500")])).await;
    assert_eq!(outside(recorder.snapshotter()), []);
    assert!(local.send(order("k")).await.is_stored());
    local.send(order("k")).await;
    assert_eq!(outside(recorder.snapshotter()), [DebugValue::Counter(1)], "once, and no replay");
}
