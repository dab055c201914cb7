//! What operators order and providers tell: verdicts, statements, forgetting, purging, and the audit log of it.

use std::sync::Arc;
use std::time::Duration;

use onlyonce::events::Event;
use onlyonce::operate::{Forgotten, Heard, Judged, Order, Refusal, Saying, Statement, Subject};
use onlyonce::store::{Store, audit};
use onlyonce::{Force, Policy, StateName};
use onlyonce_core::record::{Handle, Response, Revision, Seen, Verdict};
use onlyonce_core::time::Timestamp;

use crate::world::{Fault, World, id, order, order_with, ordered};

fn answer(status: u16, body: &'static str) -> Verdict {
    Verdict::Happened(Some(Arc::new(Response { status, headers: Vec::new(), body: body.into() })))
}

fn saying(verdict: Verdict) -> Saying {
    Saying { verdict, token: None, ask: false }
}

/// A world in which nobody knows what became of `k`.
async fn in_doubt() -> World {
    let world = World::new(Policy::default());
    assert_eq!(world.send(order_with("k", &[("x-status", "502")])).await.status, 502);
    assert_eq!(world.send(order("k")).await.summary(), "409 idempotency_outcome_unknown");
    world
}

async fn seen(world: &World, key: &str) -> Seen {
    world.store.load(id(key)).await.unwrap().unwrap()
}

/// The whole audit log, newest first: action, result, code.
async fn log(world: &World) -> Vec<String> {
    let query = audit::Query { limit: 100, ..audit::Query::default() };
    let entries = world.onlyonce.engine().read_audit(query).await.unwrap().entries;
    let told = |written: audit::Written| {
        let audit::Entry { action, result, code, .. } = written.entry;
        [Some(action), Some(result), code].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    entries.into_iter().map(told).collect()
}

/// U05, U06, U09
#[tokio::test(start_paused = true)]
async fn a_persons_verdict_becomes_the_clients_answer_and_is_in_the_audit_log() {
    let world = in_doubt().await;
    let engine = world.onlyonce.engine();
    let Judged::Applied(applied) =
        engine.verdict(id("k"), saying(answer(201, "paid")), &ordered(Force::No)).await.unwrap()
    else {
        panic!("it is unknown, and somebody knows")
    };
    assert_eq!(applied.before.state.name(), StateName::Unknown);
    assert_eq!(applied.after.record.state.name(), StateName::Completed);
    let retry = world.send(order("k")).await;
    assert_eq!((retry.summary().as_str(), retry.is_replay()), ("201 paid", true));
    assert_eq!(world.handler.runs(), 1);
    let entries =
        engine.read_audit(audit::Query { limit: 9, ..audit::Query::default() }).await.unwrap().entries;
    let [written] = &entries[..] else { panic!("one change, one entry: {entries:?}") };
    assert_eq!(Some(&written.entry.id), applied.audit.as_ref());
    assert_eq!(written.entry.key.as_deref(), Some("k"));
    assert_eq!(written.entry.before.as_deref(), Some(r#"{"state":"unknown","attempt":1}"#));
    assert_eq!(
        written.entry.after.as_deref(),
        Some(r#"{"state":"completed","attempt":1,"status":201,"bytes":4}"#),
        "an answer is told by its status and size"
    );
    assert_eq!(written.entry.reason.as_deref(), Some("asked by the customer"));
}

/// U06: the attempt may still act until its deadline and the horizon are over; forced, the person answers for it.
#[tokio::test(start_paused = true)]
async fn did_not_happen_is_too_early_until_the_horizon_is_over_unless_forced() {
    for forced in [false, true] {
        let world = in_doubt().await;
        let engine = world.onlyonce.engine();
        let did_not = saying(Verdict::DidNotHappen { never_will: false });
        let Judged::Refused(refusal) =
            engine.verdict(id("k"), did_not.clone(), &ordered(Force::No)).await.unwrap()
        else {
            panic!("nobody can know yet")
        };
        let record = seen(&world, "k").await.record;
        let believed_at = record.deadline_at().plus(record.terms.horizon);
        assert_eq!((refusal.code(), refusal.earliest()), ("verdict_too_early", Some(believed_at)));
        let force = if forced { Force::Yes } else { Force::No };
        if !forced {
            world.pass(Policy::default().deadline + Policy::default().horizon).await;
        }
        let judged = engine.verdict(id("k"), did_not, &ordered(force)).await.unwrap();
        assert!(matches!(judged, Judged::Applied(_)), "{judged:?}");
        assert_eq!(world.send(order("k")).await.summary(), "201 run 2", "the next retry runs it");
        assert_eq!(log(&world).await, ["verdict applied", "verdict refused verdict_too_early"]);
    }
}

/// U09: a settled record is not changed, forced or not.
#[tokio::test(start_paused = true)]
async fn a_verdict_on_a_settled_record_is_refused_and_the_refusal_is_in_the_log() {
    let world = World::new(Policy::default());
    world.send(order("k")).await;
    for force in [Force::No, Force::Yes] {
        let judged =
            world.onlyonce.engine().verdict(id("k"), saying(answer(201, "other")), &ordered(force)).await;
        let Judged::Refused(refusal) = judged.unwrap() else { panic!("it is completed") };
        assert_eq!(refusal.code(), "record_settled");
    }
    assert_eq!(world.send(order("k")).await.summary(), "201 run 1");
    assert_eq!(log(&world).await, ["verdict refused record_settled"; 2]);
}

/// U09, L04
#[tokio::test(start_paused = true)]
async fn a_dry_run_answers_alike_and_writes_nothing() {
    let world = in_doubt().await;
    let engine = world.onlyonce.engine();
    let before = seen(&world, "k").await;
    let dry = Order { dry_run: true, ..ordered(Force::Yes) };
    let Judged::Applied(applied) = engine.verdict(id("k"), saying(answer(201, "paid")), &dry).await.unwrap()
    else {
        panic!("it would be applied")
    };
    assert_eq!((applied.becomes, applied.audit), (StateName::Completed, None));
    assert!(matches!(engine.forget(id("k"), &dry).await.unwrap(), Forgotten::Done(_)));
    let purged = engine.purge(*before.record.scope.digest(), &dry).await.unwrap();
    assert_eq!((purged.forgotten, purged.audit), (1, None));
    assert_eq!(seen(&world, "k").await.revision, before.revision);
    assert!(log(&world).await.is_empty());
}

/// Two operators: the second decides on what it no longer is.
#[tokio::test(start_paused = true)]
async fn an_order_on_a_record_that_has_changed_since_is_refused() {
    let world = in_doubt().await;
    let stale = Order { expected: Some(Revision(7)), ..ordered(Force::Yes) };
    let judged = world.onlyonce.engine().verdict(id("k"), saying(answer(201, "paid")), &stale).await.unwrap();
    assert!(matches!(judged, Judged::Refused(Refusal::Changed(_))), "{judged:?}");
    let forgotten = world.onlyonce.engine().forget(id("k"), &stale).await.unwrap();
    assert!(matches!(forgotten, Forgotten::Refused(Refusal::Changed(_))), "{forgotten:?}");
}

/// U03, U09: a retry would run what may have been done.
#[tokio::test(start_paused = true)]
async fn what_is_unknown_is_forgotten_only_by_force() {
    let world = in_doubt().await;
    let engine = world.onlyonce.engine();
    let Forgotten::Refused(refusal) = engine.forget(id("k"), &ordered(Force::No)).await.unwrap() else {
        panic!("nobody knows whether it ran")
    };
    assert_eq!(refusal.code(), "record_unknown");
    assert!(matches!(engine.forget(id("k"), &ordered(Force::Yes)).await.unwrap(), Forgotten::Done(_)));
    assert_eq!(world.send(order("k")).await.summary(), "201 run 2");
    assert_eq!(log(&world).await, ["forget applied", "forget refused record_unknown"]);
}

/// L04: what is running or unknown stays; of the rest nothing is left but that it was purged.
#[tokio::test(start_paused = true)]
async fn a_purge_forgets_what_is_settled_and_erases_its_keys_from_the_log() {
    let world = in_doubt().await;
    let engine = world.onlyonce.engine();
    world.send(order("a")).await;
    world.send(order("b")).await;
    engine.verdict(id("a"), saying(answer(201, "x")), &ordered(Force::No)).await.unwrap();
    let scope = *seen(&world, "k").await.record.scope.digest();
    let purged = engine.purge(scope, &ordered(Force::No)).await.unwrap();
    assert_eq!((purged.forgotten, purged.kept.unknown, purged.kept.running), (2, 1, 0));
    assert!(!purged.is_whole());
    assert_eq!(world.store.load(id("a")).await.unwrap(), None, "erased, not only expired");
    let entries =
        engine.read_audit(audit::Query { limit: 9, ..audit::Query::default() }).await.unwrap().entries;
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|written| written.entry.key.is_none()), "{entries:?}");
    assert_eq!(
        entries[0].entry.after.as_deref(),
        Some(r#"{"forgotten":2,"kept":{"running":0,"unknown":1}}"#)
    );
    let again = engine.purge(scope, &ordered(Force::Yes)).await.unwrap();
    assert_eq!((again.forgotten, again.is_whole()), (1, true));
    assert_eq!(world.send(order("a")).await.summary(), "201 run 4");
}

/// L04: what changed between the count and the purge is not told as planned.
#[tokio::test(start_paused = true)]
async fn a_purge_that_did_something_else_than_planned_says_so_in_the_log() {
    let world = Arc::new(World::new(Policy::default()));
    world.send(order("a")).await;
    world.send(order("b")).await;
    let scope = *seen(&world, "a").await.record.scope.digest();
    // The first record is forgotten slowly. Meanwhile somebody else forgets both.
    world.store.next([Fault::Slow]);
    let purges = world.clone();
    let purging =
        tokio::spawn(
            async move { purges.onlyonce.engine().purge(scope, &ordered(Force::No)).await.unwrap() },
        );
    tokio::task::yield_now().await;
    let order = ordered(Force::No);
    let forget = |key| world.onlyonce.engine().forget(id(key), &order);
    let (first, second) = tokio::join!(forget("a"), forget("b"));
    let is_done = |forgotten| matches!(forgotten, Forgotten::Done(_));
    assert_eq!(u32::from(is_done(first.unwrap())) + u32::from(is_done(second.unwrap())), 1);
    let purged = purging.await.unwrap();
    assert_eq!(purged.forgotten, 1);
    let entries = world.onlyonce.engine().read_audit(audit::Query { limit: 9, ..audit::Query::default() });
    let entries = entries.await.unwrap().entries;
    let told = entries.iter().filter(|written| &*written.entry.action == "purge");
    let told: Vec<_> = told.map(|written| written.entry.after.as_deref().unwrap()).collect();
    assert_eq!(
        told,
        [
            r#"{"forgotten":1,"kept":{"running":0,"unknown":0}}"#,
            r#"{"forgotten":2,"kept":{"running":0,"unknown":0}}"#
        ],
        "the latest first"
    );
}

async fn told(world: &World, verdict: Verdict, about: Subject, at: Timestamp) -> Heard {
    let statement = Statement { verdict, about, at, source: "bank".into(), detail: "event 1".into() };
    world.onlyonce.engine().hear(statement).await.unwrap()
}

/// U05, U06: the token is of the last attempt, or it counts for nothing.
#[tokio::test(start_paused = true)]
async fn a_webhook_settles_the_attempt_whose_token_it_names() {
    let world = in_doubt().await;
    let now = seen(&world, "k").await;
    let handle = Handle { id: id("k"), token: now.record.token };
    let other = Handle { token: onlyonce_core::record::Token([9; 16]), ..handle };
    let heard = told(&world, answer(201, "paid"), Subject::Attempt(other), now.now).await;
    assert_eq!(heard, Heard::Ignored("about an earlier use of the key"));
    let heard = told(&world, answer(201, "paid"), Subject::Attempt(handle), now.now).await;
    assert_eq!(heard, Heard::Applied(StateName::Completed));
    let heard = told(&world, answer(201, "paid"), Subject::Attempt(handle), now.now).await;
    assert_eq!(heard, Heard::Already(StateName::Completed));
    let did_not = Verdict::DidNotHappen { never_will: true };
    let heard = told(&world, did_not, Subject::Attempt(handle), now.now).await;
    assert_eq!(heard, Heard::Contradiction(StateName::Completed));
    assert_eq!(world.send(order("k")).await.summary(), "201 paid", "nothing was changed by it");
    assert!(seen(&world, "k").await.record.history.entries.iter().any(|entry| entry.contradicts));
}

/// U06: without a token, an event from before the record is about an earlier use of its key.
#[tokio::test(start_paused = true)]
async fn a_webhook_without_a_token_is_matched_by_scope_and_key_and_time() {
    let world = in_doubt().await;
    let now = seen(&world, "k").await;
    let before = Timestamp::from_micros(now.record.created_at.as_micros() - 6_000_000);
    let heard = told(&world, answer(201, "paid"), Subject::Work(id("k")), before).await;
    assert_eq!(heard, Heard::Ignored("about an earlier use of the key"));
    let about = Timestamp::from_micros(now.record.created_at.as_micros() - 4_000_000);
    let heard = told(&world, answer(201, "paid"), Subject::Work(id("k")), about).await;
    assert_eq!(heard, Heard::Applied(StateName::Completed), "clocks differ by some seconds");
    assert_eq!(
        told(&world, answer(201, "x"), Subject::Work(id("none")), about).await,
        Heard::Ignored("no record matches")
    );
}

/// U05: what was heard while it ran counts once it is lost, for any kind of effects.
#[tokio::test(start_paused = true)]
async fn a_webhook_that_comes_while_the_attempt_runs_is_kept_as_evidence() {
    for effects in [onlyonce::Effects::Opaque, onlyonce::Effects::Keyed, onlyonce::Effects::Local] {
        let world = World::new(Policy { effects, ..Policy::default() });
        let first = world.start(order_with("k", &[("x-gate", "1")])).await;
        let now = seen(&world, "k").await;
        let handle = Handle { id: id("k"), token: now.record.token };
        let heard = told(&world, answer(201, "paid"), Subject::Attempt(handle), now.now).await;
        assert_eq!(heard, Heard::Evidence);
        first.abort();
        world.store.always(Some(Fault::Refused));
        world.pass(Policy::default().lease + Duration::from_secs(1)).await;
        world.store.always(None);
        let other = World::on(world.store.clone(), Policy { effects, ..Policy::default() });
        let retry = other.send(order("k")).await;
        assert_eq!((retry.summary().as_str(), other.handler.runs()), ("201 paid", 0), "{effects:?}");
    }
}

/// U06, U09, O01: however many there were before, each contradiction is in the audit log and told to whoever watches.
#[tokio::test(start_paused = true)]
async fn every_contradiction_is_told_also_by_a_record_with_a_long_history() {
    let world = in_doubt().await;
    let now = seen(&world, "k").await;
    let about = Subject::Attempt(Handle { id: id("k"), token: now.record.token });
    assert_eq!(told(&world, answer(201, "paid"), about, now.now).await, Heard::Applied(StateName::Completed));
    let mut events = world.onlyonce.engine().events();
    for number in 1..=100 {
        let did_not = Verdict::DidNotHappen { never_will: true };
        assert_eq!(told(&world, did_not, about, now.now).await, Heard::Contradiction(StateName::Completed));
        let query =
            audit::Query { action: Some("contradiction".into()), limit: 500, ..audit::Query::default() };
        let entries = world.onlyonce.engine().read_audit(query).await.unwrap().entries;
        assert_eq!(entries.len(), number);
        let Event::Change(written) = &*events.try_recv().unwrap() else {
            panic!("an entry of the audit log")
        };
        assert_eq!(written.entry.id, entries[0].entry.id, "the newest");
    }
    assert!(seen(&world, "k").await.record.history.left_out > 0, "the history was full");
}

/// U05: a statement about an attempt that nobody came back for tells how the record stands now.
#[tokio::test(start_paused = true)]
async fn a_webhook_that_finds_a_lost_attempt_is_told_what_became_of_it() {
    for (effects, state) in
        [(onlyonce::Effects::Opaque, StateName::Unknown), (onlyonce::Effects::Keyed, StateName::Retryable)]
    {
        let world = World::new(Policy { effects, ..Policy::default() });
        let first = world.start(order_with("k", &[("x-gate", "1")])).await;
        first.abort();
        world.store.always(Some(Fault::Refused));
        world.pass(Policy::default().lease + Duration::from_secs(1)).await;
        world.store.always(None);
        let now = seen(&world, "k").await;
        let about = Subject::Attempt(Handle { id: id("k"), token: now.record.token });
        let other = World::on(world.store.clone(), Policy { effects, ..Policy::default() });
        assert_eq!(told(&other, Verdict::StillUnknown, about, now.now).await, Heard::Noted(state, None));
        assert_eq!(seen(&world, "k").await.record.state.name(), state);
    }
}
