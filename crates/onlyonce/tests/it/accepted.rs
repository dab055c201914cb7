//! Accepted work, on a clock that the tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use http::{Method, Request, StatusCode};
use metrics_util::debugging::DebuggingRecorder;
use onlyonce::accepted::{App, Running, Runs, Terms, Work};
use onlyonce::policy::{Accept, InFlight, StoreDown};
use onlyonce::scope::Source;
use onlyonce::store::Store;
use onlyonce::worker::{Background, Workers};
use onlyonce::{Effects, Limits, Onlyonce, Policy};

use crate::world::{Answer, Fault, FaultyStore, World, order, order_with};

const ASYNC: (&str, &str) = ("prefer", "respond-async");
const GATE: (&str, &str) = ("x-gate", "1");
const STORED: usize = 1_000;

fn policy(effects: Effects) -> Policy {
    Policy { effects, accept: Accept::Allowed, ..Policy::default() }
}

fn terms() -> Terms {
    Terms { pause_max: Duration::from_secs(4), ..Terms::default() }
}

/// Lets workers of this node run what is accepted.
fn work(world: &World, accepted: Terms) -> Workers {
    accept(world);
    Workers::start(world.onlyonce.engine(), &Background { accepted, ..Background::default() })
}

/// Lets this node accept.
fn accept(world: &World) {
    world.onlyonce.engine().run_accepted_with(Arc::new(App::<_, Body>::new(world.app.clone())));
}

/// Before a node dies, or a test ends: the runner has the engine, and the engine the runner.
fn end(world: &World) {
    world.onlyonce.engine().forget_accepted();
}

async fn ask(world: &World, method: Method, path: &str, caller: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("authorization", caller);
    world.send(request.body(Body::empty()).unwrap()).await
}

async fn status(world: &World, key: &str) -> (u16, String) {
    let answer = ask(world, Method::GET, &format!("/_onlyonce/keys/{key}"), "Bearer t1").await;
    let told: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    (answer.status, told["state"].as_str().unwrap_or("none").to_owned())
}

async fn response(world: &World, key: &str) -> Answer {
    ask(world, Method::GET, &format!("/_onlyonce/keys/{key}/response"), "Bearer t1").await
}

async fn cancel(world: &World, key: &str) -> Answer {
    ask(world, Method::DELETE, &format!("/_onlyonce/keys/{key}"), "Bearer t1").await
}

async fn stored(world: &World) -> usize {
    world.store.requests(STORED).await.unwrap()
}

/// W07, O05, R03
#[tokio::test(start_paused = true)]
async fn accepted_work_is_answered_at_once_and_its_answer_is_polled_or_replayed() {
    let world = World::new(policy(Effects::Opaque));
    let _workers = work(&world, terms());
    let accepted = world.send(order_with("a/b", &[ASYNC, GATE])).await;
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    assert_eq!(accepted.header("location"), Some("/_onlyonce/keys/a%2Fb"));
    assert_eq!(accepted.header("retry-after"), Some("1"));
    assert_eq!(accepted.header("cache-control"), Some("no-store"));
    let told: serde_json::Value = serde_json::from_slice(&accepted.body).unwrap();
    assert_eq!((&told["state"], &told["attempt"]), (&"pending".into(), &0.into()));
    world.pass(Duration::from_secs(2)).await;
    assert_eq!(status(&world, "a%2Fb").await, (202, "running".to_owned()));
    assert_eq!(response(&world, "a%2Fb").await.status, 202);
    world.handler.open(1);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(status(&world, "a%2Fb").await, (200, "completed".to_owned()));
    let polled = response(&world, "a%2Fb").await;
    assert_eq!((polled.status, polled.text(), polled.is_replay()), (201, "run 1", true));
    let retried = world.send(order_with("a/b", &[ASYNC, GATE])).await;
    assert_eq!((retried.status, retried.text(), retried.is_replay()), (201, "run 1", true));
    assert_eq!((world.handler.runs(), stored(&world).await), (1, 0), "the request goes with its end");
    end(&world);
}

/// W07: the settings and the client say whether.
#[tokio::test(start_paused = true)]
async fn only_what_may_be_accepted_is() {
    for (accept, prefer, status) in [
        (Accept::Never, "respond-async", 201),
        (Accept::Allowed, "wait=0", 201),
        (Accept::Allowed, "Respond-Async; x=1", 202),
        (Accept::Always, "wait=0", 202),
    ] {
        let world = World::new(Policy { accept, ..Policy::default() });
        let _workers = work(&world, terms());
        let answer = world.send(order_with("k", &[("prefer", prefer)])).await;
        assert_eq!(answer.status, status, "{accept:?}, {prefer}");
        end(&world);
    }
    let nobody = World::new(Policy { accept: Accept::Always, ..Policy::default() });
    assert_eq!(nobody.send(order("k")).await.status, 201, "nobody would run it");
}

/// W07, L05: a request has credentials, and they are not stored in clear.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_store_that_encrypts_nothing_accepts_nothing() {
    use onlyonce::store::seal::Keyring;
    use onlyonce::store::sqlite::{Options, Sqlite};

    let folder = std::env::temp_dir().join(format!("onlyonce-accept-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (keyring, is_refused) in [(None, true), (Some(Keyring::new([[1; 32]]).unwrap()), false)] {
        let options = Options { keyring, ..Options::default() };
        let store = Sqlite::open(folder.join("onlyonce.db"), options).await.unwrap();
        let onlyonce = Onlyonce::new(Arc::new(store));
        for accept in [Accept::Allowed, Accept::Always] {
            let faults = onlyonce.clone().with_policy(Policy { accept, ..Policy::default() }).err();
            let told = faults.as_ref().map(ToString::to_string).unwrap_or_default();
            assert_eq!(told.contains("policy.accept") && told.contains("keyring"), is_refused, "{told}");
        }
        assert!(onlyonce.with_policy(Policy::default()).is_ok());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// W07: a client that waits gets the answer, if that comes in time.
#[tokio::test(start_paused = true)]
async fn a_client_that_would_wait_a_little_gets_the_answer_or_a_202() {
    let world = World::new(policy(Effects::Opaque));
    let _workers = work(&world, terms());
    let quick = world.send(order_with("quick", &[("prefer", "respond-async, wait=5")])).await;
    assert_eq!((quick.status, quick.text()), (201, "run 1"));
    let began = tokio::time::Instant::now();
    let slow = world.send(order_with("slow", &[("prefer", "respond-async, wait=5"), GATE])).await;
    assert_eq!((slow.status, began.elapsed().as_secs()), (202, 5));
    world.handler.open(1);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(response(&world, "slow").await.text(), "run 2");
    end(&world);
}

/// W07, R03: who asks for a 202 gets one, and the others what their policy says.
#[tokio::test(start_paused = true)]
async fn a_duplicate_of_accepted_work_is_told_where_to_ask() {
    for (in_flight, plain) in [(InFlight::Refuse, 409), (InFlight::Accept, 202)] {
        let world = World::new(Policy { in_flight, ..policy(Effects::Opaque) });
        accept(&world);
        let mut workers = None;
        assert_eq!(world.send(order_with("k", &[ASYNC, GATE])).await.status, 202);
        for is_running in [false, true] {
            let duplicate = world.send(order_with("k", &[ASYNC, GATE])).await;
            assert_eq!(duplicate.status, 202, "{}", duplicate.text());
            assert_eq!(duplicate.header("location"), Some("/_onlyonce/keys/k"));
            assert_eq!(world.send(order_with("k", &[GATE])).await.status, plain, "running: {is_running}");
            let other = order_with("k", &[ASYNC, ("if-match", "other")]);
            assert_eq!(world.send(other).await.status, 422, "it is another request");
            if !is_running {
                workers = Some(work(&world, terms()));
                world.pass(Duration::from_secs(2)).await;
                assert_eq!(status(&world, "k").await.1, "running");
            }
        }
        assert_eq!(world.handler.runs(), 1);
        drop(workers);
        end(&world);
    }
}

/// W07: any node runs what another has accepted, once.
#[tokio::test(start_paused = true)]
async fn work_of_a_node_that_is_gone_is_run_by_others_once() {
    let first = World::new(policy(Effects::Opaque));
    accept(&first);
    for number in 0..40 {
        assert_eq!(first.send(order_with(&format!("k{number}"), &[ASYNC])).await.status, 202);
    }
    end(&first);
    let nodes: Vec<_> = (0..3).map(|_| World::on(first.store.clone(), policy(Effects::Opaque))).collect();
    let workers: Vec<_> = nodes.iter().map(|node| work(node, terms())).collect();
    nodes[0].pass(Duration::from_secs(5)).await;
    let runs: usize = nodes.iter().map(|node| node.handler.runs()).sum();
    assert_eq!((runs, first.handler.runs(), stored(&first).await), (40, 0, 0));
    for number in 0..40 {
        assert_eq!(response(&first, &format!("k{number}")).await.status, 201);
    }
    drop(workers);
    nodes.iter().for_each(end);
}

/// W07, T04: released work is run again after a pause that doubles, until its time is over; then a 408 says so.
#[tokio::test(start_paused = true)]
async fn work_that_did_not_run_is_run_again_until_it_expires() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let policy = Policy { retention: Duration::from_secs(60), ..policy(Effects::Opaque) };
    let world = World::new(policy);
    let _workers = work(&world, terms());
    assert_eq!(world.send(order_with("k", &[ASYNC, ("x-status", "503")])).await.status, 202);
    // Attempts begin within a second after 0, 1, 3 and 7 s, then every 4 s.
    for (seconds, runs) in [(1, 1), (2, 2), (3, 3), (5, 4)] {
        world.pass(Duration::from_secs(seconds)).await;
        assert!((runs..=runs + 1).contains(&world.handler.runs()), "{}", world.handler.runs());
        assert_eq!(status(&world, "k").await.0, 202, "a worker runs it again");
    }
    assert_eq!(stored(&world).await, 1, "the request is kept");
    world.pass(Duration::from_secs(60)).await;
    let answer = response(&world, "k").await;
    assert_eq!(answer.summary(), "408 idempotency_not_run");
    assert!(answer.text().contains("no attempt succeeded in time"), "{}", answer.text());
    assert_eq!(stored(&world).await, 0);
    let runs = world.handler.runs();
    world.pass(Duration::from_secs(30)).await;
    assert_eq!(world.handler.runs(), runs);
    let counted = recorder.snapshotter().snapshot().into_vec().into_iter();
    let lapsed = counted.filter(|(key, ..)| key.key().name() == "onlyonce_lapsed_total").count();
    assert_eq!(lapsed, 0, "no attempt was lost");
    end(&world);
}

/// W07, U03: a node dies while it runs accepted work.
#[tokio::test(start_paused = true)]
async fn lost_work_runs_again_without_a_client_only_where_that_is_safe() {
    for (effects, runs, told) in [
        (Effects::Local, 1, "completed"),
        (Effects::Keyed, 1, "completed"),
        (Effects::Queryable, 0, "unknown"),
        (Effects::Opaque, 0, "unknown"),
    ] {
        let dies = World::new(policy(effects));
        let workers = work(&dies, terms());
        assert_eq!(dies.send(order_with("k", &[ASYNC, GATE])).await.status, 202);
        dies.pass(Duration::from_secs(1)).await;
        assert_eq!(dies.handler.runs(), 1);
        // Its process is gone: nobody renews, and nobody writes.
        drop(workers);
        end(&dies);
        let lives = World::on(dies.store.clone(), policy(effects));
        dies.store.always(Some(Fault::Refused));
        dies.pass(Duration::from_secs(400)).await;
        dies.store.always(None);
        dies.pass(Duration::from_secs(5)).await;
        let _workers = work(&lives, terms());
        lives.handler.open(1);
        lives.pass(Duration::from_secs(20)).await;
        assert_eq!((lives.handler.runs(), status(&lives, "k").await.1.as_str()), (runs, told), "{effects:?}");
        assert_eq!(stored(&lives).await, 0, "{effects:?}");
        end(&lives);
    }
}

/// W07: cancelled by its caller, and by nobody else.
#[tokio::test(start_paused = true)]
async fn a_caller_cancels_what_has_not_begun() {
    let world = World::new(policy(Effects::Opaque));
    accept(&world);
    assert_eq!(cancel(&world, "k").await.status, 404);
    assert_eq!(world.send(order_with("k", &[ASYNC])).await.status, 202);
    let foreign = ask(&world, Method::DELETE, "/_onlyonce/keys/k", "Bearer t2").await;
    assert_eq!(foreign.status, 404);
    let nobody = Request::delete("/_onlyonce/keys/k").body(Body::empty()).unwrap();
    assert_eq!(world.send(nobody).await.status, 401);
    let cancelled = cancel(&world, "k").await;
    assert_eq!((cancelled.status, cancelled.text()), (204, ""));
    assert_eq!(stored(&world).await, 0);
    let answer = response(&world, "k").await;
    assert_eq!(answer.summary(), "408 idempotency_not_run");
    assert!(answer.text().contains("cancelled"), "{}", answer.text());
    assert_eq!(world.send(order_with("k", &[ASYNC])).await.summary(), "408 idempotency_not_run");
    let again = cancel(&world, "k").await;
    let told: serde_json::Value = serde_json::from_slice(&again.body).unwrap();
    assert_eq!((again.status, &told["state"], &told["status"]), (409, &"completed".into(), &408.into()));
    let _workers = work(&world, terms());
    assert_eq!(world.send(order_with("runs", &[ASYNC, GATE])).await.status, 202);
    world.pass(Duration::from_secs(1)).await;
    let running = cancel(&world, "runs").await;
    let told: serde_json::Value = serde_json::from_slice(&running.body).unwrap();
    assert_eq!((running.status, &told["state"]), (409, &"running".into()));
    assert!(running.header("retry-after").is_some());
    assert_eq!(world.handler.runs(), 1);
    end(&world);
}

/// W07: no more waits than is allowed, and what is refused left nothing behind.
#[tokio::test(start_paused = true)]
async fn too_much_that_waits_is_refused() {
    let world = World::new(policy(Effects::Opaque));
    let _workers = work(&world, Terms { at_once: 1, pending_max: 2, ..terms() });
    assert_eq!(world.send(order_with("k0", &[ASYNC, GATE])).await.status, 202);
    world.pass(Duration::from_millis(10)).await;
    assert_eq!(world.handler.runs(), 1, "one runs");
    for number in 1..=2 {
        assert_eq!(world.send(order_with(&format!("k{number}"), &[ASYNC, GATE])).await.status, 202);
    }
    for _ in 0..3 {
        let refused = world.send(order_with("k3", &[ASYNC, GATE])).await;
        assert_eq!(refused.summary(), "429 idempotency_limit_reached");
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert!(refused.text().contains(r#""limit":"pending_max""#), "{}", refused.text());
        world.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(stored(&world).await, 3);
    assert_eq!(status(&world, "k3").await, (404, "none".to_owned()));
    assert_eq!(world.send(order_with("k1", &[ASYNC, GATE])).await.status, 202, "a duplicate is no more work");
    world.handler.open(1);
    world.pass(Duration::from_millis(10)).await;
    assert_eq!(world.send(order_with("k3", &[ASYNC, GATE])).await.status, 202);
    world.handler.open(9);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!((world.handler.runs(), stored(&world).await), (4, 0));
    end(&world);
}

/// W07: whoever is told 503 has nothing that runs behind its back.
#[tokio::test(start_paused = true)]
async fn an_acceptance_whose_answer_was_lost_is_withdrawn() {
    let world = World::new(policy(Effects::Opaque));
    accept(&world);
    world.store.next([Fault::AnswerLost]);
    assert_eq!(world.send(order_with("k", &[ASYNC])).await.summary(), "503 idempotency_store_unavailable");
    world.pass(Duration::from_secs(5)).await;
    assert_eq!((status(&world, "k").await.0, stored(&world).await), (404, 0));
    let _workers = work(&world, terms());
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(world.handler.runs(), 0);
    assert_eq!(world.send(order_with("k", &[ASYNC])).await.status, 202);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.handler.runs(), 1);
    end(&world);
}

/// W07, X03: work that was accepted, or may have been, is a worker's, also where the policy runs what the store is down for.
#[tokio::test(start_paused = true)]
async fn accepted_work_is_not_run_beside_its_worker_while_the_store_is_down() {
    let world = World::new(Policy { store_down: StoreDown::Run, ..policy(Effects::Opaque) });
    accept(&world);
    world.store.next([Fault::AnswerLost]);
    let lost = world.send(order_with("lost", &[ASYNC])).await;
    assert_eq!((lost.summary().as_str(), world.handler.runs()), ("503 idempotency_store_unavailable", 0));
    world.pass(Duration::from_secs(5)).await;
    let waiting = world.start(order_with("k", &[("prefer", "respond-async, wait=8")])).await;
    assert_eq!(status(&world, "k").await.0, 202);
    world.store.always(Some(Fault::Refused));
    world.pass(Duration::from_secs(9)).await;
    assert_eq!((waiting.await.unwrap().status, world.handler.runs()), (202, 0));
    world.store.always(None);
    end(&world);
}

/// W07, L03: whoever was accepted is told so, however many look-ups its caller has taken.
#[tokio::test(start_paused = true)]
async fn an_acceptance_is_not_refused_afterwards_by_a_limit() {
    let limits = Limits { lookups_per_second: Some(1), ..Limits::default() };
    let world = World::within(FaultyStore::new(), policy(Effects::Opaque), limits);
    let _workers = work(&world, terms());
    let waiting = world.start(order_with("k", &[("prefer", "respond-async, wait=5"), GATE])).await;
    assert_eq!(status(&world, "k").await.0, 202);
    let looks = world.store.looks();
    world.pass(Duration::from_secs(6)).await;
    assert_eq!(waiting.await.unwrap().status, 202);
    assert!(world.store.looks() - looks < 100, "it waits without asking all the time");
    world.handler.open(1);
    world.pass(Duration::from_secs(1)).await;
    end(&world);
}

/// W07: with the route in the scope, the way back to the answer names it.
#[tokio::test(start_paused = true)]
async fn where_to_ask_names_the_route_where_the_scope_has_it() {
    let scope = vec!["header:authorization".parse().unwrap(), Source::Route];
    let world = World::new(Policy { scope, ..policy(Effects::Opaque) });
    let _workers = work(&world, terms());
    let accepted = world.send(order_with("k", &[ASYNC])).await;
    let location = accepted.header("location").unwrap().to_owned();
    assert!(location.contains("?route="), "{location}");
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(ask(&world, Method::GET, &location, "Bearer t1").await.status, 200);
    end(&world);
}

/// W07: a stop finishes what runs, and leaves the rest pending.
#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_runs_and_leaves_the_rest_pending() {
    let world = World::new(policy(Effects::Opaque));
    let workers = work(&world, Terms { at_once: 1, ..terms() });
    for key in ["first", "second"] {
        assert_eq!(world.send(order_with(key, &[ASYNC, GATE])).await.status, 202);
        world.pass(Duration::from_secs(1)).await;
    }
    world.onlyonce.engine().stop_accepted();
    world.handler.open(9);
    world.onlyonce.engine().idle().await;
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(status(&world, "first").await.1, "completed");
    assert_eq!((status(&world, "second").await.1.as_str(), world.handler.runs()), ("pending", 1));
    drop(workers);
    end(&world);
    let next = World::on(world.store.clone(), policy(Effects::Opaque));
    let _workers = work(&next, terms());
    next.handler.open(9);
    next.pass(Duration::from_secs(2)).await;
    assert_eq!((status(&next, "second").await.1.as_str(), next.handler.runs()), ("completed", 1));
    end(&next);
}

/// A runner without a route.
struct Gone;

impl Runs for Gone {
    fn run(&self, work: Work) -> Result<Running, Work> {
        Err(work)
    }
}

/// W07: work whose route is gone did not run, and is run once the route is back.
#[tokio::test(start_paused = true)]
async fn work_whose_route_is_gone_waits_for_it() {
    let world = World::new(policy(Effects::Opaque));
    accept(&world);
    assert_eq!(world.send(order_with("k", &[ASYNC])).await.status, 202);
    let engine = world.onlyonce.engine();
    engine.run_accepted_with(Arc::new(Gone));
    let _workers = Workers::start(engine, &Background { accepted: terms(), ..Background::default() });
    world.pass(Duration::from_secs(100)).await;
    assert_eq!((status(&world, "k").await, world.handler.runs()), ((202, "pending".to_owned()), 0));
    accept(&world);
    world.pass(Duration::from_secs(2)).await;
    assert_eq!((status(&world, "k").await.1.as_str(), world.handler.runs()), ("completed", 1));
    end(&world);
}

/// W07: a claim whose answer was lost is given back, and the work is run all the same.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_is_given_back() {
    for is_read_back in [false, true] {
        let world = World::new(policy(Effects::Opaque));
        accept(&world);
        assert_eq!(world.send(order_with("k", &[ASYNC])).await.status, 202);
        // Another node looks first; this one knows what it wrote.
        let runs = if is_read_back { World::on(world.store.clone(), policy(Effects::Opaque)) } else { world };
        runs.store.next(is_read_back.then_some(Fault::None).into_iter().chain([Fault::AnswerLost]));
        let _workers = work(&runs, terms());
        runs.pass(Duration::from_secs(10)).await;
        assert_eq!((status(&runs, "k").await.1.as_str(), runs.handler.runs()), ("completed", 1));
        let answer = ask(&runs, Method::GET, "/_onlyonce/keys/k", "Bearer t1").await;
        assert!(answer.text().contains(r#""attempt":2"#), "{}", answer.text());
        assert_eq!(stored(&runs).await, 0);
        end(&runs);
    }
}

/// W07, K01: what is accepted runs under a claim, once, whatever a later policy takes for a keyed request.
#[tokio::test(start_paused = true)]
async fn accepted_work_is_claimed_also_where_the_policy_has_changed() {
    let changed = [
        Policy { key_from: vec!["header:x-key".parse().unwrap()], ..policy(Effects::Opaque) },
        Policy { methods: vec![Method::PUT], required: vec![], ..policy(Effects::Opaque) },
    ];
    for changed in changed {
        let before = World::new(policy(Effects::Opaque));
        accept(&before);
        assert_eq!(before.send(order_with("k", &[ASYNC])).await.status, 202);
        end(&before);
        let after = World::on(before.store.clone(), changed);
        let _workers = work(&after, terms());
        after.pass(Duration::from_secs(200)).await;
        assert_eq!((status(&after, "k").await.1.as_str(), after.handler.runs()), ("completed", 1));
        assert_eq!(response(&before, "k").await.text(), "run 1");
        end(&after);
    }
}

/// W07: a handler that is reached without the layer is not given the work again and again; where nothing ran, it is.
#[tokio::test(start_paused = true)]
async fn work_that_a_service_answers_without_the_layer_is_handed_over_again_only_where_nothing_ran() {
    for (answer, handed_over) in [(StatusCode::OK, 1), (StatusCode::NOT_FOUND, 2)] {
        let world = World::new(policy(Effects::Opaque));
        accept(&world);
        assert_eq!(world.send(order_with("k", &[ASYNC])).await.status, 202);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let bare = Router::new().fallback(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { answer }
        });
        let engine = world.onlyonce.engine();
        engine.run_accepted_with(Arc::new(App::<_, Body>::new(bare)));
        let _workers = Workers::start(engine, &Background { accepted: terms(), ..Background::default() });
        world.pass(Duration::from_secs(100)).await;
        assert_eq!(calls.load(Ordering::SeqCst), handed_over, "{answer}");
        assert_eq!(status(&world, "k").await.1, "pending");
        accept(&world);
        world.pass(Duration::from_secs(2)).await;
        assert_eq!((status(&world, "k").await.1.as_str(), world.handler.runs()), ("completed", 1));
        end(&world);
    }
}

/// W07: the lease and the deadline of an attempt count from its claim, and its first attempt runs.
#[tokio::test(start_paused = true)]
async fn work_that_waited_for_long_has_its_whole_deadline() {
    let world = World::new(policy(Effects::Opaque));
    accept(&world);
    assert_eq!(world.send(order_with("k", &[ASYNC, GATE])).await.status, 202);
    world.pass(Duration::from_secs(600)).await;
    let _workers = work(&world, terms());
    world.pass(Duration::from_secs(200)).await;
    let told = ask(&world, Method::GET, "/_onlyonce/keys/k", "Bearer t1").await;
    let told: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!((&told["state"], &told["attempt"]), (&"running".into(), &1.into()));
    world.handler.open(1);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!((status(&world, "k").await.1.as_str(), world.handler.runs()), ("completed", 1));
    end(&world);
}

/// W07, L02: work that a limit leaves no place for is not read in vain, and runs as soon as there is one.
#[tokio::test(start_paused = true)]
async fn a_full_limit_does_not_have_the_backlog_read() {
    let backlog = 100;
    for limits in [
        Limits { in_flight: Some(1), ..Limits::default() },
        Limits { in_flight_total: Some(1), ..Limits::default() },
    ] {
        let world = World::within(FaultyStore::new(), policy(Effects::Opaque), limits);
        accept(&world);
        for number in 0..backlog {
            let accepted = world.send(order_with(&format!("k{number}"), &[ASYNC, GATE])).await;
            assert_eq!(accepted.status, 202);
        }
        let _workers = work(&world, Terms { at_once: 2, ..terms() });
        world.pass(Duration::from_secs(2)).await;
        assert_eq!(world.handler.runs(), 1);
        let before = world.store.looks();
        world.pass(Duration::from_secs(10)).await;
        let looks = world.store.looks() - before;
        assert!(looks <= 22, "{looks} records were read in 10 s, two a second have a place");
        world.handler.open(backlog);
        world.pass(Duration::from_millis(100)).await;
        assert_eq!(
            (world.handler.runs(), stored(&world).await),
            (backlog, 0),
            "each end lets the next begin"
        );
        end(&world);
    }
}

/// W07: where nothing is accepted, the store is seldom asked for it, and new work is begun at once all the same.
#[tokio::test(start_paused = true)]
async fn a_store_without_accepted_work_is_seldom_asked_for_it() {
    let world = World::new(policy(Effects::Opaque));
    let _workers = work(&world, terms());
    world.pass(Duration::from_secs(100)).await;
    let looks = world.store.requests.load(Ordering::SeqCst);
    assert!((9..=12).contains(&looks), "{looks} looks in 100 s");
    assert_eq!(world.send(order_with("k", &[ASYNC])).await.status, 202);
    world.pass(Duration::from_millis(10)).await;
    assert_eq!(world.handler.runs(), 1);
    end(&world);
}

/// W07: middleware in front of the layer that gives up does not end an attempt.
#[tokio::test(start_paused = true)]
async fn accepted_work_goes_on_when_middleware_gives_up_on_it() {
    let world = World::new(policy(Effects::Opaque));
    let app = world.app.clone().layer(from_fn(|request, next: Next| async move {
        let answer = tokio::time::timeout(Duration::from_secs(1), next.run(request)).await;
        answer.unwrap_or_else(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
    }));
    let engine = world.onlyonce.engine();
    engine.run_accepted_with(Arc::new(App::<_, Body>::new(app)));
    let _workers = Workers::start(engine, &Background { accepted: terms(), ..Background::default() });
    assert_eq!(world.send(order_with("k", &[ASYNC, GATE])).await.status, 202);
    world.pass(Duration::from_secs(100)).await;
    assert_eq!(status(&world, "k").await, (202, "running".to_owned()));
    world.handler.open(1);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!((status(&world, "k").await.1.as_str(), world.handler.runs()), ("completed", 1));
    end(&world);
}
