//! Attempts: they renew late, end at their deadline, outlive their client, survive a panic, and bring the truth late.

use std::sync::Arc;
use std::time::Duration;

use onlyonce::operate::Forgotten;
use onlyonce::store::{Change, Store, Swapped};
use onlyonce::{Effects, Force, Policy};
use onlyonce_core::machine::{self, About, Finish, Ruled, Ruling, Statement};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::record::{Response, Revision, Source, Token, Verdict};
use tower::ServiceExt;

use crate::world::{Answer, Fault, SLOW, World, id, order, order_with, ordered, settle};

const LEASE: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(300);

/// R01, P01, P02, P03
#[tokio::test(start_paused = true)]
async fn a_keyed_write_runs_once_and_is_replayed_byte_for_byte() {
    let world = World::new(Policy::default());
    let first = world.send(order_with("k", &[("x-answer-x-trace", "1"), ("x-answer-x-trace", "2")])).await;
    assert_eq!(first.summary(), "201 run 1");
    assert!(first.is_stored() && !first.is_replay());
    let again = world.send(order_with("k", &[("x-answer-x-trace", "other")])).await;
    assert!(again.is_replay());
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.headers.get_all("x-trace").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(again.header("idempotency-key-expires"), first.header("idempotency-key-expires"));
    assert_eq!(world.handler.runs(), 1);
}

/// R01, P01
#[tokio::test(start_paused = true)]
async fn a_fresh_request_costs_two_trips_its_first_replay_one_and_the_others_none() {
    let world = World::new(Policy::default());
    let trips = || (world.store.writes(), world.store.loads.load(std::sync::atomic::Ordering::SeqCst));
    world.send(order("k")).await;
    assert_eq!(trips(), (2, 0));
    // One that finds the key taken, and writes nothing.
    assert!(world.send(order("k")).await.is_replay());
    assert_eq!(trips(), (3, 0));
    assert!(world.send(order("k")).await.is_replay());
    assert_eq!(trips(), (3, 0));
}

/// P06
#[tokio::test(start_paused = true)]
async fn a_stored_answer_stays_as_it_was_whatever_is_written_later() {
    let world = World::new(Policy::default());
    let first = world.send(order("k")).await;
    for number in 0..5 {
        assert_eq!(
            world.send(order(&format!("later{number}"))).await.summary(),
            format!("201 run {}", number + 2)
        );
    }
    let again = world.send(order("k")).await;
    assert!(again.is_replay());
    assert_eq!((again.summary(), again.body), ("201 run 1".into(), first.body));
}

/// P05, X04
#[tokio::test(start_paused = true)]
async fn another_node_replays_with_one_trip_and_no_write_that_applies() {
    let world = World::new(Policy::default());
    world.send(order("k")).await;
    let other = World::on(world.store.clone(), Policy::default());
    let again = other.send(order("k")).await;
    assert!(again.is_replay());
    assert_eq!((again.summary(), other.handler.runs()), ("201 run 1".into(), 0));
}

/// R06
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_late_and_for_as_long_as_the_handler_lives() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.pass(LEASE / 2 - Duration::from_millis(1)).await;
    assert_eq!(world.store.writes(), 1, "no renewal before half the lease");
    world.pass(LEASE * 4).await;
    assert!(world.store.writes() > 8, "renewed all along");
    // On another node, which has only the store to go by, it still runs.
    let other = World::on(world.store.clone(), Policy::default());
    assert_eq!(other.send(order("k")).await.summary(), "409 idempotency_key_in_progress");
    world.handler.open(1);
    assert_eq!(first.await.unwrap().summary(), "201 run 1");
    assert!(other.send(order("k")).await.is_replay());
}

/// R06, U03
#[tokio::test(start_paused = true)]
async fn an_attempt_ends_at_its_deadline_and_is_unknown() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.pass(DEADLINE + Duration::from_secs(1)).await;
    let first = first.await.unwrap();
    assert_eq!(first.summary(), "504 upstream_outcome_unknown");
    assert_eq!(first.header("idempotency-stored"), Some("false"));
    let again = world.send(order("k")).await;
    assert_eq!(again.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(again.header("link"), Some("</_onlyonce/keys/k>; rel=\"status\""));
    assert!(again.header("retry-after").is_some());
    assert_eq!(world.handler.runs(), 1);
}

/// R06, U04: what a look allows, such as one more rerun while downstream remembers, must still hold when the attempt ends.
#[tokio::test(start_paused = true)]
async fn an_attempt_ends_at_its_deadline_counted_from_the_look_it_was_decided_on() {
    let world = World::new(Policy::default());
    assert_eq!(world.send(order_with("k", &[("x-status", "500")])).await.status, 500);
    // The write that finds the record is slow, and so is the one that reserves the next attempt.
    world.store.next([Fault::Slow, Fault::Slow]);
    let asked_at = tokio::time::Instant::now();
    let answer = world.send(order_with("k", &[("x-gate", "1")])).await;
    assert_eq!(answer.summary(), "504 upstream_outcome_unknown");
    assert_eq!(world.handler.runs(), 2);
    let took = asked_at.elapsed();
    assert!((DEADLINE..DEADLINE + Duration::from_millis(5)).contains(&took), "{took:?}");
}

/// A lease of which half is used when a store that is slow has answered twice.
fn short_lease() -> Policy {
    let lease = SLOW * 3;
    Policy { lease, store_timeout: lease / 2, ..Policy::default() }
}

/// A world in which the next attempt of `k` is reserved so slowly that half its lease is used by then.
async fn reserved_slowly(next: &[Fault]) -> World {
    let world = World::new(short_lease());
    assert_eq!(world.send(order_with("k", &[("x-status", "500")])).await.status, 500);
    world.store.next([Fault::Slow, Fault::Slow].into_iter().chain(next.iter().copied()));
    world
}

/// R06
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_half_used_is_renewed_before_anything_is_sent() {
    let world = reserved_slowly(&[]).await;
    let before = world.store.writes();
    assert_eq!(world.send(order("k")).await.summary(), "201 run 2");
    assert_eq!(world.store.writes() - before, 4, "found, reserved, renewed, completed");
}

/// R06: and where that fails nothing is sent, and the key is free at once.
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_under_a_half_used_lease_that_is_not_renewed() {
    for fault in [Fault::Refused, Fault::Stalled, Fault::AnswerLost] {
        let world = reserved_slowly(&[fault]).await;
        assert_eq!(world.send(order("k")).await.summary(), "503 idempotency_store_unavailable", "{fault:?}");
        assert_eq!(world.handler.runs(), 1, "{fault:?}");
        world.onlyonce.engine().idle().await;
        assert_eq!(world.send(order("k")).await.summary(), "201 run 2", "{fault:?}");
    }
}

/// R05, R06
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_where_the_record_has_moved_on_before_it_was() {
    let world = reserved_slowly(&[]).await;
    let request = tokio::spawn({
        let app = world.app.clone();
        async move { Answer::of(app.oneshot(order("k")).await.unwrap()).await }
    });
    // The reservation is written, and its answer on the way.
    world.pass(SLOW + SLOW / 2).await;
    let engine = World::on(world.store.clone(), short_lease()).onlyonce.engine().clone();
    let forgetting = tokio::spawn(async move { engine.forget(id("k"), &ordered(Force::Yes)).await });
    assert_eq!(request.await.unwrap().summary(), "503 idempotency_store_unavailable");
    assert_eq!(world.handler.runs(), 1, "only the first attempt ran");
    assert!(matches!(forgetting.await.unwrap().unwrap(), Forgotten::Done(_)));
    assert_eq!(world.send(order("k")).await.summary(), "201 run 2");
}

/// U04
#[tokio::test(start_paused = true)]
async fn keyed_work_that_reached_its_deadline_runs_again() {
    let world = World::new(Policy { effects: Effects::Keyed, ..Policy::default() });
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.pass(DEADLINE + Duration::from_secs(1)).await;
    assert_eq!(first.await.unwrap().summary(), "504 upstream_outcome_unknown");
    assert_eq!(world.send(order("k")).await.summary(), "201 run 2");
}

/// R07
#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_changes_nothing() {
    let world = World::new(Policy::default());
    let call = world.app.clone().oneshot(order_with("k", &[("x-gate", "1")]));
    let hung_up = tokio::time::timeout(Duration::from_secs(1), call).await;
    assert!(hung_up.is_err(), "the handler still waits");
    settle().await;
    assert_eq!(world.send(order("k")).await.summary(), "409 idempotency_key_in_progress");
    world.handler.open(1);
    world.onlyonce.engine().idle().await;
    let again = world.send(order("k")).await;
    assert!(again.is_replay());
    assert_eq!((again.summary(), world.handler.runs()), ("201 run 1".into(), 1));
}

/// R07
#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_while_the_store_is_asked_leaves_nothing_behind_unrun() {
    let world = World::new(Policy::default());
    world.store.next([Fault::Stalled]);
    let call = world.app.clone().oneshot(order("k"));
    assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
    world.onlyonce.engine().idle().await;
    let again = world.send(order("k")).await;
    assert_eq!(again.summary(), "201 run 1", "nothing was reserved, so it runs now");
}

/// U03
#[tokio::test(start_paused = true)]
async fn a_panicking_handler_leaves_the_outcome_unknown_and_the_process_alive() {
    let world = World::new(Policy::default());
    let first = world.send(order_with("k", &[("x-panic", "1")])).await;
    assert_eq!(first.summary(), "502 upstream_outcome_unknown");
    assert_eq!(world.send(order("k")).await.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(world.send(order("other")).await.summary(), "201 run 2");
}

/// U03: an interim status is no answer, whatever the handler did before it.
#[tokio::test(start_paused = true)]
async fn a_handler_that_ends_with_an_interim_status_leaves_the_outcome_unknown() {
    let world = World::new(Policy::default());
    for status in ["100", "103", "199"] {
        let first = world.send(order_with(status, &[("x-status", status)])).await;
        assert_eq!(first.summary(), "502 upstream_outcome_unknown", "{status}");
        assert_eq!(world.send(order(status)).await.summary(), "409 idempotency_outcome_unknown", "{status}");
    }
}

/// U04
#[tokio::test(start_paused = true)]
async fn local_work_whose_handler_panicked_runs_again() {
    let world = World::new(Policy { effects: Effects::Local, ..Policy::default() });
    assert_eq!(
        world.send(order_with("k", &[("x-panic", "1")])).await.summary(),
        "502 upstream_outcome_unknown"
    );
    assert_eq!(world.send(order("k")).await.summary(), "201 run 2");
}

/// R05: cut off from the store past its lease, the attempt comes back with no later one in between.
#[tokio::test(start_paused = true)]
async fn the_late_truth_settles_the_unknown() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.store.always(Some(Fault::Refused));
    world.pass(LEASE + Duration::from_secs(1)).await;
    world.store.always(None);
    let other = World::on(world.store.clone(), Policy::default());
    assert_eq!(other.send(order("k")).await.summary(), "409 idempotency_outcome_unknown");
    world.handler.open(1);
    let first = first.await.unwrap();
    assert_eq!(first.summary(), "201 run 1");
    assert!(first.is_stored());
    assert!(other.send(order("k")).await.is_replay());
    assert_eq!(other.handler.runs(), 0);
}

/// What downstream tells by itself, while the attempt of `k` still runs.
async fn told_by_webhook(world: &World, verdict: Verdict) {
    let seen = world.store.load(id("k")).await.unwrap().unwrap();
    let ruling = Ruling {
        verdict,
        about: About::Attempt(seen.record.token),
        statement: Statement::by(Source::Webhook),
        force: Force::No,
        token: Token([9; 16]),
        probe: None,
    };
    let Ruled::Keeps(next) = machine::verdict(&seen, &ruling) else { panic!("it is taken down") };
    let change = Change::new(Some(seen.revision), Revision(9), next);
    let swapped = world.store.swap(id("k"), change).await.unwrap();
    assert!(matches!(swapped, Swapped::Applied(_)));
}

/// R06: somebody else wrote the record meanwhile, and left the attempt its token.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_also_where_its_record_was_touched() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    told_by_webhook(&world, Verdict::DidNotHappen { never_will: false }).await;
    world.pass(LEASE * 2).await;
    let other = World::on(world.store.clone(), Policy::default());
    assert_eq!(other.send(order("k")).await.summary(), "409 idempotency_key_in_progress");
    world.handler.open(1);
    assert!(first.await.unwrap().is_stored());
}

/// U03, P01: the attempt does not know what became of its work, and a webhook has told.
#[tokio::test(start_paused = true)]
async fn where_a_verdict_settles_the_doubt_the_first_client_gets_the_answer_that_every_retry_gets() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1"), ("x-panic", "1")])).await;
    let found = Response { status: 202, headers: Vec::new(), body: "charged".into() };
    told_by_webhook(&world, Verdict::Happened(Some(Arc::new(found)))).await;
    world.handler.open(1);
    let first = first.await.unwrap();
    assert_eq!(first.summary(), "202 charged");
    assert!(first.is_stored());
    let again = world.send(order("k")).await;
    assert_eq!((again.summary(), again.is_replay()), ("202 charged".into(), true));
}

/// R05
#[tokio::test(start_paused = true)]
async fn an_attempt_that_a_later_one_has_replaced_writes_nothing_and_its_client_gets_the_stored_answer() {
    let keyed = Policy { effects: Effects::Keyed, ..Policy::default() };
    let world = World::new(keyed.clone());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.store.always(Some(Fault::Refused));
    world.pass(LEASE + Duration::from_secs(1)).await;
    world.store.always(None);
    let other = World::on(world.store.clone(), keyed);
    let second = other.send(order_with("k", &[("x-answer-x-by", "second")])).await;
    assert_eq!((second.summary(), second.header("x-by")), ("201 run 1".into(), Some("second")));
    world.handler.open(1);
    let first = first.await.unwrap();
    assert_eq!(first.header("x-by"), Some("second"), "the stored answer counts");
    assert!(first.is_replay());
}

/// R05: the later attempt still runs, so there is no stored answer yet.
#[tokio::test(start_paused = true)]
async fn a_replaced_attempt_with_nothing_stored_yet_gives_its_own_answer_marked_as_not_stored() {
    let keyed = Policy { effects: Effects::Keyed, ..Policy::default() };
    let world = World::new(keyed.clone());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    world.store.always(Some(Fault::Refused));
    world.pass(LEASE + Duration::from_secs(1)).await;
    world.store.always(None);
    let other = World::on(world.store.clone(), keyed);
    let second = other.start(order_with("k", &[("x-gate", "1")])).await;
    world.handler.open(1);
    let first = first.await.unwrap();
    assert_eq!((first.summary(), first.header("idempotency-stored")), ("201 run 1".into(), Some("false")));
    other.handler.open(1);
    assert!(second.await.unwrap().is_stored());
}

/// T01, T02
#[tokio::test(start_paused = true)]
async fn an_answer_is_replayed_until_it_expires_and_not_a_moment_longer() {
    let world = World::new(Policy { retention: Duration::from_secs(10), ..Policy::default() });
    world.send(order("k")).await;
    world.pass(Duration::from_millis(9_990)).await;
    assert!(world.send(order("k")).await.is_replay());
    world.pass(Duration::from_millis(20)).await;
    let anew = world.send(order_with("k", &[("x-answer-x-new", "1")])).await;
    assert_eq!((anew.summary(), anew.is_replay()), ("201 run 2".into(), false));
}

/// T02
#[tokio::test(start_paused = true)]
async fn an_expired_key_is_gone_where_the_policy_says_so() {
    let policy = Policy {
        retention: Duration::from_secs(10),
        on_expired: onlyonce::policy::OnExpired::Gone,
        ..Policy::default()
    };
    let world = World::new(policy);
    world.send(order("k")).await;
    world.pass(Duration::from_secs(11)).await;
    assert_eq!(world.send(order("k")).await.summary(), "410 idempotency_key_expired");
    assert_eq!(world.handler.runs(), 1);
}

/// C02, C03, C04
#[tokio::test(start_paused = true)]
async fn a_released_key_runs_again_and_still_demands_the_same_request() {
    let world = World::new(Policy::default());
    let mut runs = 0;
    for status in ["401", "403", "425", "429", "500", "503"] {
        let first = world.send(order_with(status, &[("x-status", status)])).await;
        runs += 1;
        assert_eq!(first.header("idempotency-stored"), Some("false"), "{status}");
        let other = crate::world::post(status).body(r#"{"amount":6}"#.into()).unwrap();
        assert_eq!(world.send(other).await.summary(), "422 idempotency_key_reused", "{status}");
        let again = world.send(order(status)).await;
        runs += 1;
        assert_eq!(again.summary(), format!("201 run {runs}"), "{status}");
    }
    assert_eq!(world.handler.runs(), runs);
}

/// C02, T01: whoever is denied corrects its credentials and may then send something else; who is told to come back later may not.
#[tokio::test(start_paused = true)]
async fn after_a_denial_a_key_is_kept_for_five_minutes_and_after_a_throttle_for_its_whole_retention() {
    let world = World::new(Policy::default());
    let other = |key: &str| crate::world::post(key).body(r#"{"amount":6}"#.into()).unwrap();
    for status in ["401", "403", "425", "429"] {
        assert_eq!(world.send(order_with(status, &[("x-status", status)])).await.status.to_string(), status);
    }
    world.pass(Duration::from_secs(5 * 60 - 1)).await;
    for status in ["401", "403", "425", "429"] {
        assert_eq!(world.send(other(status)).await.summary(), "422 idempotency_key_reused", "{status}");
    }
    world.pass(Duration::from_secs(1)).await;
    for status in ["401", "403"] {
        assert_eq!(world.send(other(status)).await.status, 201, "{status}");
    }
    for status in ["425", "429"] {
        assert_eq!(world.send(other(status)).await.summary(), "422 idempotency_key_reused", "{status}");
    }
}

/// F06, F07, S02
#[tokio::test(start_paused = true)]
async fn a_reused_key_is_refused_also_while_the_first_runs_and_another_caller_is_not_concerned() {
    let world = World::new(Policy::default());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    let other_body = || crate::world::post("k").body(axum::body::Body::from(r#"{"amount":6}"#)).unwrap();
    assert_eq!(world.send(other_body()).await.summary(), "422 idempotency_key_reused");
    let other_caller = http::Request::post("/orders")
        .header("authorization", "Bearer t2")
        .header("idempotency-key", "k")
        .body(axum::body::Body::empty())
        .unwrap();
    assert_eq!(world.send(other_caller).await.summary(), "201 run 2");
    world.handler.open(1);
    first.await.unwrap();
    assert_eq!(world.send(other_body()).await.summary(), "422 idempotency_key_reused");
}

/// The client's own `Onlyonce-*` never reach a handler, and an upgrade is not offered to one that runs once.
#[tokio::test(start_paused = true)]
async fn what_only_we_may_say_is_dropped_on_all_traffic() {
    use axum::routing::any;
    let onlyonce = onlyonce::Onlyonce::new(crate::world::FaultyStore::new());
    let echo = any(|headers: http::HeaderMap| async move {
        headers.keys().map(|name| name.as_str().to_owned()).collect::<Vec<_>>().join(" ")
    });
    let app = axum::Router::new().route("/", echo).layer(onlyonce.layer());
    for (method, key) in [("GET", None), ("POST", None), ("POST", Some("k"))] {
        let mut request = http::Request::builder()
            .method(method)
            .header("authorization", "t")
            .header("Onlyonce-Token", "forged")
            .header("onlyonce-attempt", "9")
            .header("connection", "upgrade")
            .header("upgrade", "websocket");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = app.clone().oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
        let seen = Answer::of(response).await.text().to_owned();
        assert!(!seen.contains("onlyonce-"), "{method} {key:?}: {seen}");
        assert_eq!(seen.contains("upgrade"), key.is_none(), "{method} {key:?}: {seen}");
    }
}

/// The service's own transaction completes the attempt of `k`, as the SQL function does.
async fn completed_inside(world: &World, response: Option<Response>) {
    let seen = world.store.load(id("k")).await.unwrap().unwrap();
    let outcome = Outcome::Completed { response: response.map(Arc::new), keep_for: None };
    let Finish::Write(next) = machine::finish(Some(&seen), seen.record.token, &outcome) else {
        panic!("it may complete")
    };
    let change = Change::new(Some(seen.revision), Revision(7), next);
    assert!(matches!(world.store.swap(id("k"), change).await.unwrap(), Swapped::Applied(_)));
}

fn local() -> Policy {
    Policy { effects: Effects::Local, ..Policy::default() }
}

fn paid() -> Response {
    Response { status: 201, headers: Vec::new(), body: "paid".into() }
}

/// W01: the service hangs after its commit.
#[tokio::test(start_paused = true)]
async fn a_client_has_the_stored_answer_within_half_a_lease_of_the_commit() {
    let world = World::new(local());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    completed_inside(&world, Some(paid())).await;
    assert!(!first.is_finished());
    world.pass(LEASE / 2 + Duration::from_secs(1)).await;
    let first = first.await.unwrap();
    assert_eq!((first.summary().as_str(), first.is_replay()), ("201 paid", false));
    assert!(first.is_stored());
    assert!(world.send(order("k")).await.is_replay());
    assert_eq!(world.handler.runs(), 1);
}

/// W01: a stream, or an answer too large to be stored, is the service's own to give.
#[tokio::test(start_paused = true)]
async fn a_completion_without_an_answer_leaves_the_client_to_the_service() {
    let world = World::new(local());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    completed_inside(&world, None).await;
    world.pass(LEASE).await;
    assert!(!first.is_finished());
    world.handler.open(1);
    let first = first.await.unwrap();
    assert_eq!((first.summary().as_str(), first.is_stored()), ("201 run 1", false));
    assert_eq!(world.send(order("k")).await.summary(), "409 idempotency_response_not_stored");
}

/// W01: without an answer on record and without one of the service's own, the client is told that nobody knows what was said.
#[tokio::test(start_paused = true)]
async fn a_completion_without_an_answer_whose_service_hangs_is_no_answer() {
    let world = World::new(local());
    let first = world.start(order_with("k", &[("x-gate", "1")])).await;
    completed_inside(&world, None).await;
    world.pass(DEADLINE + Duration::from_secs(1)).await;
    let first = first.await.unwrap();
    assert_eq!((first.summary().as_str(), first.is_stored()), ("504 upstream_outcome_unknown", false));
    assert_eq!(world.send(order("k")).await.summary(), "409 idempotency_response_not_stored");
    assert_eq!(world.handler.runs(), 1);
}

/// W01: what its transaction stored wins over what the service answers.
#[tokio::test(start_paused = true)]
async fn local_work_that_completed_itself_costs_one_look_and_no_lost_write() {
    let world = World::new(local());
    let first = world.start(order_with("k", &[("x-gate", "1"), ("x-status", "500")])).await;
    completed_inside(&world, Some(paid())).await;
    let (looks, writes) = (world.store.looks(), world.store.writes());
    world.handler.open(1);
    assert_eq!(first.await.unwrap().summary(), "201 paid");
    assert_eq!((world.store.looks() - looks, world.store.writes() - writes), (1, 0));
}
