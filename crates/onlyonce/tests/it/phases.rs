//! Foreign calls of a handler made of phases: what each end of a call leads to, and what a resumed attempt is given.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use onlyonce::operate::{Heard, Statement, Subject};
use onlyonce::phase::{Call, Called, Error};
use onlyonce::probe::{Answer as Found, Probes, Question, asking};
use onlyonce::record::{self, StateName, Verdict};
use onlyonce::store::Store;
use onlyonce::{Attempt, Effects, Force, Handle, Onlyonce, Policy, Problem};
use tower::ServiceExt;

use crate::world::{Answer, FaultyStore, id, order, ordered};

/// How a call of the bank ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Charged,
    Refused,
    Lost,
    /// It hangs, and the handler stops waiting for it.
    Hangs,
}

/// What a handler does after its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Completes,
    Fails,
}

struct Bank {
    ends: Mutex<VecDeque<(Ends, Then)>>,
    keys: Mutex<Vec<String>>,
    handles: Mutex<Vec<Handle>>,
    name: Mutex<&'static str>,
    effects: Effects,
}

impl Bank {
    async fn charge(&self, call: &Call, ends: Ends) -> Result<u32, Called<io::Error>> {
        assert!(call.deadline() > std::time::Instant::now());
        self.keys.lock().unwrap().push(call.key().to_owned());
        self.handles.lock().unwrap().push(call.handle());
        match ends {
            Ends::Charged => Ok(u32::try_from(self.calls()).unwrap()),
            Ends::Refused => Err(Called::DidNotRun(io::Error::other("refused"))),
            Ends::Lost => Err(io::Error::other("lost"))?,
            Ends::Hangs => std::future::pending().await,
        }
    }

    fn calls(&self) -> usize {
        self.keys.lock().unwrap().len()
    }
}

struct World {
    bank: Arc<Bank>,
    store: Arc<FaultyStore>,
    onlyonce: Onlyonce,
    app: Router,
}

impl World {
    fn new(effects: Effects, ends: impl IntoIterator<Item = (Ends, Then)>) -> Self {
        let bank = Arc::new(Bank {
            ends: Mutex::new(ends.into_iter().collect()),
            keys: Mutex::default(),
            handles: Mutex::default(),
            name: Mutex::new("charged"),
            effects,
        });
        let store = FaultyStore::new();
        let policy = Policy {
            effects: Effects::Local,
            reconcile_first: Some(Duration::from_secs(1)),
            ..Policy::default()
        };
        let onlyonce = Onlyonce::new(store.clone()).with_policy(policy).unwrap();
        let works = bank.clone();
        let route = post(move |attempt: Attempt| {
            let works = works.clone();
            async move { pay(&works, attempt).await.unwrap_or_else(IntoResponse::into_response) }
        });
        let app = Router::new().route("/orders", route).layer(onlyonce.layer());
        Self { bank, store, onlyonce, app }
    }

    async fn send(&self, key: &str) -> Answer {
        Answer::of(self.app.clone().oneshot(order(key)).await.unwrap()).await
    }
}

async fn pay(bank: &Bank, attempt: Attempt) -> Result<Response, Problem> {
    let (ends, then) = bank.ends.lock().unwrap().pop_front().unwrap_or((Ends::Charged, Then::Completes));
    let name = *bank.name.lock().unwrap();
    let calling = attempt.foreign(name, bank.effects, async |call| bank.charge(&call, ends).await);
    let charge: u32 = match tokio::time::timeout(Duration::from_secs(5), calling).await {
        Ok(charged) => charged?,
        Err(_) => return Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response()),
    };
    let noted: String = attempt
        .foreign("noted", Effects::Keyed, async |_| Ok::<_, Called<io::Error>>(format!("note {charge}")))
        .await?;
    if then == Then::Fails {
        return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
    }
    Ok((StatusCode::CREATED, format!("charge {charge}, {noted}")).into_response())
}

const ALL: [Effects; 3] = [Effects::Keyed, Effects::Queryable, Effects::Opaque];

/// W03, W04: what has its result on record is not called again, on any attempt.
#[tokio::test(start_paused = true)]
async fn a_resumed_attempt_is_given_the_results_of_earlier_ones() {
    for effects in ALL {
        let world = World::new(
            effects,
            [(Ends::Charged, Then::Fails), (Ends::Lost, Then::Fails), (Ends::Lost, Then::Completes)],
        );
        assert_eq!(world.send("k").await.status, 503);
        assert_eq!(world.send("k").await.status, 503);
        assert_eq!(world.send("k").await.summary(), "201 charge 1, note 1");
        assert!(world.send("k").await.is_replay());
        assert_eq!(world.bank.calls(), 1);
        assert_eq!(world.send("other").await.summary(), "201 charge 2, note 2", "another key's results");
    }
}

/// U02, W04: a call that was certainly not made is made by the next attempt, with the same key.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_made_is_made_again_at_once() {
    for effects in ALL {
        let world = World::new(effects, [(Ends::Refused, Then::Completes)]);
        let first = world.send("k").await;
        assert_eq!(first.summary(), "502 upstream_unreachable");
        assert!(!first.is_stored());
        assert_eq!(world.send("k").await.summary(), "201 charge 2, note 2");
        let keys = world.bank.keys.lock().unwrap().clone();
        assert_eq!(keys[0], keys[1]);
    }
}

/// U03, U04, W04: what a lost call leads to follows from its effects, also where the handler stops waiting for it.
#[tokio::test(start_paused = true)]
async fn a_lost_call_is_judged_by_its_own_effects() {
    for effects in ALL {
        for ends in [Ends::Lost, Ends::Hangs] {
            let world = World::new(effects, [(ends, Then::Completes)]);
            let first = world.send("k").await;
            assert!(first.status >= 500 && !first.is_stored(), "{first:?}");
            let second = world.send("k").await;
            let (expected, calls) = match effects {
                Effects::Keyed => ("201 charge 2, note 2", 2),
                Effects::Queryable | Effects::Opaque | Effects::Local => {
                    ("409 idempotency_outcome_unknown", 1)
                }
            };
            assert_eq!(
                (second.summary().as_str(), world.bank.calls()),
                (expected, calls),
                "{effects:?} {ends:?}"
            );
        }
    }
}

/// W04: the result cannot be written after the call was made: then nobody may say that it was not.
#[tokio::test(start_paused = true)]
async fn a_call_whose_result_is_not_written_is_doubt() {
    use crate::world::Fault;
    let world = World::new(Effects::Opaque, []);
    // The reservation, the look of the first phase and "calling" are written; the result is not.
    world.store.next([Fault::None, Fault::None, Fault::None, Fault::Refused]);
    assert_eq!(world.send("k").await.status, 500);
    assert_eq!(world.send("k").await.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(world.bank.calls(), 1);
}

/// W03: a handler that was changed under way runs nothing, and a person is asked.
#[tokio::test(start_paused = true)]
async fn a_phase_that_was_renamed_under_way_leaves_the_record_unknown() {
    for (ends, effects) in
        [((Ends::Charged, Then::Fails), Effects::Opaque), ((Ends::Lost, Then::Fails), Effects::Keyed)]
    {
        let world = World::new(effects, [ends]);
        assert!(world.send("k").await.status >= 500);
        *world.bank.name.lock().unwrap() = "paid";
        assert_eq!(world.send("k").await.status, 500);
        assert_eq!(world.send("k").await.summary(), "409 idempotency_outcome_unknown");
        assert_eq!(world.bank.calls(), 1, "nothing runs");
        let seen = world.store.load(id("k")).await.unwrap().unwrap();
        let said = onlyonce::machine::why(&seen, |_| String::new());
        assert!(said.contains("handler's phases have changed since"), "{said}");
    }
}

/// W03: a handler that was made shorter while a record was under way completes nothing, by its answer alone; what is on record
/// stays, and a person is asked.
#[tokio::test(start_paused = true)]
async fn an_answer_without_a_phase_that_is_on_record_is_not_stored() {
    /// What the handler does on later attempts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Later {
        Nothing,
        First,
        Both,
    }
    // Of the first attempt: both calls have a result, or the second is lost and may be made again.
    for is_lost in [false, true] {
        for later in [Later::Nothing, Later::First, Later::Both] {
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = calls.clone();
            let call = move |attempt: Attempt, name: &'static str, is_lost: bool| {
                let counted = counted.clone();
                async move {
                    let called = attempt.foreign(name, Effects::Keyed, async |_| {
                        counted.fetch_add(1, Ordering::SeqCst);
                        if is_lost { Err(io::Error::other("lost"))? } else { Ok::<_, Called<io::Error>>(1) }
                    });
                    called.await
                }
            };
            let route = post(move |attempt: Attempt| {
                let call = call.clone();
                async move {
                    let is_first = attempt.number() == 1;
                    if is_first || later != Later::Nothing {
                        call(attempt.clone(), "one", false).await?;
                    }
                    if is_first || later == Later::Both {
                        call(attempt.clone(), "two", is_first && is_lost).await?;
                    }
                    let status = if is_first { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::CREATED };
                    Ok::<_, Problem>((status, "done"))
                }
            });
            let policy = Policy { effects: Effects::Local, ..Policy::default() };
            let store = FaultyStore::new();
            let onlyonce = Onlyonce::new(store.clone()).with_policy(policy).unwrap();
            let app = Router::new().route("/orders", route).layer(onlyonce.layer());
            let send = async || Answer::of(app.clone().oneshot(order("k")).await.unwrap()).await;
            assert!(send().await.status >= 500);
            let second = send().await;
            if later == Later::Both {
                assert_eq!(second.summary(), "201 done", "{is_lost}");
                continue;
            }
            assert_eq!(second.summary(), "502 upstream_outcome_unknown", "{later:?}, {is_lost}");
            assert_eq!(send().await.summary(), "409 idempotency_outcome_unknown");
            assert_eq!(calls.load(Ordering::SeqCst), 2, "nothing is called again");
            let seen = store.load(id("k")).await.unwrap().unwrap();
            let said = onlyonce::machine::why(&seen, |_| String::new());
            assert!(said.contains("handler's phases have changed since"), "{said}");
            let results = store.results(id("k"), seen.record.created_at).await.unwrap();
            assert_eq!(results.len(), if is_lost { 1 } else { 2 }, "nothing is lost");
        }
    }
}

/// U05, U06, W04: a call has its own probe, and what it finds is the call's result.
#[tokio::test(start_paused = true)]
async fn a_verdict_about_a_call_resumes_behind_it() {
    let world = World::new(Effects::Queryable, [(Ends::Lost, Then::Completes)]);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let questions = asked.clone();
    let probe = asking(move |question: Question| {
        questions.lock().unwrap().push(question.call.unwrap());
        let response = record::Response { status: 200, headers: Vec::new(), body: Bytes::from_static(b"7") };
        async { Ok(Found::new(Verdict::Happened(Some(Arc::new(response))))) }
    });
    let whole = asking(|_: Question| async { panic!("the route's probe is not asked about a call") });
    let probes = Probes::default().with_route("POST /orders", Arc::new(whole)).with_call(
        "POST /orders",
        "charged",
        Arc::new(probe),
    );
    world.onlyonce.engine().use_probes(probes);
    assert_eq!(world.send("k").await.status, 502);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.onlyonce.engine().reconcile().await.unwrap(), 1);
    let asked = asked.lock().unwrap().clone();
    assert_eq!((&*asked[0].name, &*asked[0].key), ("charged", &*world.bank.keys.lock().unwrap()[0]));
    assert_eq!(asked[0].handle, world.bank.handles.lock().unwrap()[0]);
    world.bank.ends.lock().unwrap().push_back((Ends::Lost, Then::Fails));
    assert_eq!(world.send("k").await.status, 503, "it goes on behind the call, and fails later");
    assert_eq!(world.send("k").await.summary(), "201 charge 7, note 7", "what was found is kept");
    assert_eq!(world.bank.calls(), 1);
}

/// W04, U03, U05: of two calls a webhook settles the one whose handle it brings. One about the first that comes while the second
/// is in doubt leaves it in doubt; so does one that names no call.
#[tokio::test(start_paused = true)]
async fn a_late_webhook_about_one_call_is_not_taken_for_the_next() {
    let (store, calls) = (FaultyStore::new(), Arc::new(Mutex::new(Vec::<Handle>::new())));
    let policy = Policy { effects: Effects::Local, ..Policy::default() };
    let onlyonce = Onlyonce::new(store.clone()).with_policy(policy).unwrap();
    let told = calls.clone();
    let route = post(move |attempt: Attempt| {
        let told = told.clone();
        async move {
            let charged = attempt.foreign("charged", Effects::Opaque, async |call| {
                told.lock().unwrap().push(call.handle());
                Ok::<_, Called<io::Error>>(1)
            });
            let charge: u32 = charged.await?;
            let shipped = attempt.foreign("shipped", Effects::Opaque, async |call| {
                told.lock().unwrap().push(call.handle());
                Err::<u32, _>(Called::Unknown(io::Error::other("lost")))
            });
            let parcel: u32 = shipped.await?;
            Ok::<_, Problem>(format!("charge {charge}, parcel {parcel}"))
        }
    });
    let app = Router::new().route("/orders", route).layer(onlyonce.layer());
    let send = || async { Answer::of(app.clone().oneshot(order("k")).await.unwrap()).await };
    assert_eq!(send().await.status, 502);
    let [charged, shipped] = calls.lock().unwrap()[..] else { panic!("two calls") };
    let record = store.load(id("k")).await.unwrap().unwrap().record;
    let attempt = Handle { id: id("k"), token: record.token };
    let hear = |about: Handle, verdict| {
        let response = record::Response { status: 200, headers: Vec::new(), body: Bytes::from_static(b"7") };
        let verdict = match verdict {
            "happened" => Verdict::Happened(Some(Arc::new(response))),
            _ => Verdict::DidNotHappen { never_will: true },
        };
        onlyonce.engine().hear(Statement {
            verdict,
            about: Subject::Attempt(about),
            at: record.written_at,
            source: "bank".into(),
            detail: "evt_1".into(),
        })
    };
    for verdict in ["happened", "did not happen"] {
        for about in [charged, attempt] {
            let heard = hear(about, verdict).await.unwrap();
            assert!(matches!(heard, Heard::Already(_) | Heard::Ignored(_)), "{heard:?}");
            assert_eq!(send().await.summary(), "409 idempotency_outcome_unknown", "{verdict}");
        }
    }
    assert_eq!(hear(shipped, "happened").await.unwrap(), Heard::Applied(StateName::Retryable));
    assert_eq!(send().await.summary(), "200 charge 1, parcel 7");
    assert_eq!(calls.lock().unwrap().len(), 2, "each call was made once");
}

/// W03: results are gone with the use of the key: forgotten, it is called anew.
#[tokio::test(start_paused = true)]
async fn a_forgotten_key_has_no_results() {
    let world = World::new(Effects::Opaque, [(Ends::Charged, Then::Fails)]);
    assert_eq!(world.send("k").await.status, 503);
    let used_at = world.store.load(id("k")).await.unwrap().unwrap().record.created_at;
    assert_eq!(world.store.results(id("k"), used_at).await.unwrap().len(), 2);
    world.onlyonce.engine().forget(id("k"), &ordered(Force::Yes)).await.unwrap();
    assert_eq!(world.store.results(id("k"), used_at).await.unwrap(), []);
    assert_eq!(world.send("k").await.summary(), "201 charge 2, note 2");
}

/// W10: half-done work outlives its retention, is flagged, and a retry does the rest.
#[tokio::test(start_paused = true)]
async fn half_done_work_is_flagged_and_goes_on_whenever_its_request_comes_back() {
    let world = World::new(Effects::Opaque, [(Ends::Charged, Then::Fails)]);
    assert_eq!(world.send("k").await.status, 503);
    tokio::time::sleep(Duration::from_secs(48 * 3600)).await;
    let engine = world.onlyonce.engine();
    assert_eq!((engine.sweep().await.unwrap(), engine.reap(9).await.unwrap()), (1, 0));
    let dead = onlyonce::store::Query { dead_letter: true, ..onlyonce::store::Query::unknown_since(9) };
    assert_eq!(world.store.scan(dead).await.unwrap().records.len(), 1, "listed as a dead letter");
    assert_eq!(engine.sweep().await.unwrap(), 0, "flagged once");
    assert_eq!(world.send("k").await.summary(), "201 charge 1, note 1");
    assert_eq!(world.bank.calls(), 1);
}

/// W04: misuse is told, and ends nothing.
#[tokio::test(start_paused = true)]
async fn a_phase_that_cannot_be_carried_out_is_refused() {
    let route = post(|attempt: Attempt| async move {
        let call = async |_: Call| Ok::<_, Called<io::Error>>("x".repeat(70_000));
        let told = |error: Error<io::Error>| error.to_string();
        let local = attempt.foreign("a", Effects::Local, call).await.map_err(told).unwrap_err();
        let nameless = attempt.foreign("", Effects::Keyed, call).await.map_err(told).unwrap_err();
        let first = attempt.foreign("a", Effects::Keyed, async |_| {
            let inner =
                attempt.foreign("b", Effects::Keyed, async |_: Call| Ok::<_, Called<io::Error>>(1)).await;
            Ok::<_, Called<io::Error>>(inner.map_err(told).unwrap_err())
        });
        let inner: String = first.await.map_err(told).unwrap();
        let last = if attempt.key().as_str() == "again" { "a" } else { "large" };
        let last = attempt.foreign(last, Effects::Keyed, call).await.map_err(told).unwrap_err();
        let ended = attempt.foreign("more", Effects::Keyed, call).await.map_err(told).unwrap_err();
        [local, nameless, inner, last, ended].join("\n")
    });
    let policy = Policy { effects: Effects::Local, ..Policy::default() };
    let onlyonce = Onlyonce::new(FaultyStore::new()).with_policy(policy).unwrap();
    let app = Router::new().route("/orders", route).layer(onlyonce.layer());
    for (key, last) in [("again", "committed already"), ("large", "at most 65536")] {
        let answer = Answer::of(app.clone().oneshot(order(key)).await.unwrap()).await;
        let told: Vec<_> = answer.text().lines().collect();
        let expected =
            ["has the effects local", "is not a valid phase name", "is running", last, "has ended"];
        for (told, says) in told.iter().zip(expected) {
            assert!(told.contains(says), "{told}\n  does not say {says}");
        }
        assert_eq!(told.len(), expected.len());
        let retried = Answer::of(app.clone().oneshot(order(key)).await.unwrap()).await;
        let is_run_again = retried.text().contains("has the effects local");
        assert_eq!(
            is_run_again,
            key == "large",
            "a keyed call is made again, a changed handler is not run: {retried:?}"
        );
    }
}
