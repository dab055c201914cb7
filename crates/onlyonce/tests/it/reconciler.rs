//! The reconciler: whom it asks, when, how often, and what follows from the answer; on a clock that the tests move.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use axum::routing::post;
use bytes::Bytes;
use http_body_util::BodyExt;
use onlyonce::operate::{Heard, Statement, Subject};
use onlyonce::probe::{Answer, Failure, Probe, Probes, Question, asking};
use onlyonce::record::{self, Handle, Id, Seen, Source, StateName, Verdict};
use onlyonce::store::clock::ManualClock;
use onlyonce::store::memory::Memory;
use onlyonce::{Effects, Engine, Onlyonce, Policy, machine};
use onlyonce_core::key::Key;
use onlyonce_core::scope::{self, Scope};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tower::ServiceExt;

const ROUTE: &str = "POST /payments";
const FIRST: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(60);
const TRIES_MAX: u32 = 5;

/// One store, and any number of nodes on it.
#[derive(Clone)]
struct World {
    clock: ManualClock,
    store: Arc<Memory>,
}

/// A node whose service answers 504: nobody knows whether the work ran.
struct Node {
    engine: Arc<Engine>,
    app: Router,
    runs: Arc<AtomicUsize>,
    /// What is held has begun, and may go on.
    began: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self { store: Arc::new(Memory::with_clock(clock.clone())), clock }
    }

    /// A node that asks this probe.
    fn node(&self, probe: Arc<dyn Probe>) -> Node {
        let node = self.node_without();
        node.ask(probe);
        node
    }

    /// A node whose routes have no probe, though records were reserved under one.
    fn node_without(&self) -> Node {
        self.node_with(Policy { reconcile_first: Some(FIRST), ..policy() })
    }

    fn node_with(&self, policy: Policy) -> Node {
        self.node_answering(policy, StatusCode::GATEWAY_TIMEOUT)
    }

    /// A node whose service answers so, and at `/held` only once it is let to.
    fn node_answering(&self, policy: Policy, status: StatusCode) -> Node {
        let onlyonce = Onlyonce::new(self.store.clone()).with_policy(policy).unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let (counted, began, go_on) = (runs.clone(), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let work = post(move || async move {
            counted.fetch_add(1, Ordering::SeqCst);
            status
        });
        let (begins, goes_on) = (began.clone(), go_on.clone());
        let held = post(move || async move {
            begins.notify_one();
            goes_on.notified().await;
            status
        });
        let app = Router::new().route("/payments", work.clone()).route("/refunds", work).route("/held", held);
        let engine = onlyonce.engine().clone();
        Node { engine, app: app.layer(onlyonce.layer()), runs, began, go_on }
    }

    fn pass(&self, span: Duration) {
        self.clock.advance(span);
    }
}

fn policy() -> Policy {
    Policy {
        effects: Effects::Queryable,
        deadline: Duration::from_secs(300),
        horizon: Duration::from_secs(30),
        ..Policy::default()
    }
}

impl Node {
    fn ask(&self, probe: Arc<dyn Probe>) {
        let mut probes = Probes::default().with_route(ROUTE, probe);
        (probes.first, probes.max, probes.tries_max, probes.at_once) = (FIRST, MAX, TRIES_MAX, 5);
        self.engine.use_probes(probes);
    }

    async fn pay(&self, key: &str) -> (u16, Bytes) {
        send(self.app.clone(), "/payments", key).await
    }

    /// An attempt that runs.
    async fn hold(&self, key: &str) -> JoinHandle<(u16, Bytes)> {
        let (app, key) = (self.app.clone(), key.to_owned());
        let client = tokio::spawn(async move { send(app, "/held", &key).await });
        self.began.notified().await;
        client
    }

    /// A key whose outcome is unknown.
    async fn unknown(&self, key: &str) {
        assert_eq!(self.pay(key).await.0, 504);
        assert_eq!(self.seen(key).await.record.state.name(), StateName::Unknown);
    }

    async fn seen(&self, key: &str) -> Seen {
        self.engine.find(id(key)).await.unwrap().expect("a record")
    }

    /// How long until its probe is asked next.
    async fn asked_in(&self, key: &str) -> Option<Duration> {
        let seen = self.seen(key).await;
        machine::facts(&seen.record).ask_at.map(|ask_at| ask_at.since(seen.now))
    }

    async fn is_dead_letter(&self, key: &str) -> bool {
        machine::facts(&self.seen(key).await.record).dead_letter
    }

    /// The probe of another route.
    fn ask_about(&self, route: &str, probe: Arc<dyn Probe>) {
        self.engine.use_probes(Probes::default().with_route(route, probe));
    }

    async fn reconcile(&self) -> usize {
        self.engine.reconcile().await.unwrap()
    }

    /// What a webhook about the key's last attempt is answered.
    async fn hear(&self, key: &str, verdict: Verdict) -> Heard {
        let seen = self.seen(key).await;
        let about = Subject::Attempt(Handle { id: id(key), token: seen.record.token });
        let statement =
            Statement { verdict, about, at: seen.now, source: "bank".into(), detail: "evt_1".into() };
        self.engine.hear(statement).await.unwrap()
    }
}

async fn send(app: Router, path: &str, key: &str) -> (u16, Bytes) {
    let request = Request::post(path).header("authorization", "Bearer t").header("idempotency-key", key);
    let response: Response<Body> = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    (response.status().as_u16(), response.into_body().collect().await.unwrap().to_bytes())
}

fn id(key: &str) -> Id {
    let credentials = scope::Source::Header(header::AUTHORIZATION);
    Id::of(&Scope::of("", [credentials.part(b"Bearer t")]).unwrap(), &Key::stored(key))
}

/// A probe that answers what it is told to, and remembers what it was asked.
#[derive(Default)]
struct Told {
    answers: Mutex<VecDeque<Result<Verdict, &'static str>>>,
    asked: Mutex<Vec<Question>>,
}

impl Told {
    /// These answers in order, the last for ever.
    fn to(answers: impl IntoIterator<Item = Result<Verdict, &'static str>>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into_iter().collect()), asked: Mutex::default() })
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[async_trait]
impl Probe for Told {
    async fn ask(&self, question: Question) -> Result<Answer, Failure> {
        self.asked.lock().unwrap().push(question);
        let mut answers = self.answers.lock().unwrap();
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        next.expect("an answer").map(Answer::new).map_err(Failure::new)
    }
}

const UNKNOWN: Result<Verdict, &str> = Ok(Verdict::StillUnknown);
const NOT_HAPPENED: Result<Verdict, &str> = Ok(Verdict::DidNotHappen { never_will: false });

fn paid() -> Verdict {
    let response = record::Response { status: 201, headers: Vec::new(), body: Bytes::from_static(b"paid") };
    Verdict::Happened(Some(Arc::new(response)))
}

/// U05, U06, M03: the probe has the answer, and the client's retry gets it.
#[tokio::test(start_paused = true)]
async fn a_probe_that_says_happened_brings_the_answer() {
    let world = World::new();
    let probe = Told::to([Ok(paid())]);
    let node = world.node(probe.clone());
    node.unknown("k").await;
    assert_eq!(node.asked_in("k").await, Some(FIRST));
    assert_eq!((node.reconcile().await, probe.asked()), (0, 0), "not before the first pause");
    world.pass(FIRST);
    assert_eq!((node.reconcile().await, probe.asked()), (1, 1));
    let seen = node.seen("k").await;
    let question = probe.asked.lock().unwrap()[0].clone();
    assert_eq!(question.handle, Handle { id: id("k"), token: seen.record.token });
    assert_eq!((question.key.as_str(), question.attempt, question.route.as_deref()), ("k", 1, Some(ROUTE)));
    assert_eq!(machine::facts(&seen.record).by, Some(Source::Probe));
    assert_eq!(node.pay("k").await, (201, Bytes::from_static(b"paid")));
    assert_eq!(node.runs.load(Ordering::SeqCst), 1);
    world.pass(MAX);
    assert_eq!((node.reconcile().await, probe.asked()), (0, 1), "nobody asks about what is settled");
}

/// U06, M03: "did not happen" is believed once the attempt can no longer act, judged before the question.
#[tokio::test(start_paused = true)]
async fn a_probe_that_says_it_did_not_happen_is_asked_again_when_that_can_be_believed() {
    let world = World::new();
    let probe = Told::to([NOT_HAPPENED]);
    let node = world.node(probe.clone());
    node.unknown("k").await;
    world.pass(FIRST);
    assert_eq!(node.reconcile().await, 0);
    assert_eq!(node.asked_in("k").await, Some(Duration::from_secs(329)), "at the deadline and the horizon");
    world.pass(Duration::from_secs(328));
    assert_eq!((node.reconcile().await, probe.asked()), (0, 1));
    world.pass(Duration::from_secs(1));
    assert_eq!((node.reconcile().await, probe.asked()), (1, 2));
    assert_eq!(node.seen("k").await.record.state.name(), StateName::Retryable);
    assert_eq!(node.pay("k").await.0, 504);
    assert_eq!(node.runs.load(Ordering::SeqCst), 2, "it runs again");

    // Asked before that moment and answered after it: the effect may have turned up in between.
    let world = World::new();
    let clock = world.clock.clone();
    let late = asking(move |_| {
        clock.advance(Duration::from_secs(400));
        async { Ok(Answer::new(Verdict::DidNotHappen { never_will: false })) }
    });
    let node = world.node(Arc::new(late));
    node.unknown("late").await;
    world.pass(FIRST);
    assert_eq!(node.reconcile().await, 0);
    assert_eq!(node.seen("late").await.record.state.name(), StateName::Unknown);
    let world = World::new();
    let never = world.node(Told::to([Ok(Verdict::DidNotHappen { never_will: true })]));
    never.unknown("never").await;
    world.pass(FIRST);
    assert_eq!(never.reconcile().await, 1, "a final word needs no waiting");
    assert_eq!(never.seen("never").await.record.state.name(), StateName::Retryable);
}

/// M03: each pause twice the one before, up to the longest, a fifth more or less at random.
#[tokio::test(start_paused = true)]
async fn the_pauses_double_to_the_longest_with_jitter() {
    let world = World::new();
    let node = world.node(Told::to([UNKNOWN]));
    let mut drawn = Vec::new();
    for key in 0..20 {
        let key = format!("k-{key}");
        node.unknown(&key).await;
        for answers in 1..TRIES_MAX {
            let span = node.asked_in(&key).await.expect("it is asked");
            world.pass(span);
            node.reconcile().await;
            let usual = (FIRST * 2_u32.pow(answers)).min(MAX);
            let next = node.asked_in(&key).await.expect("it is asked again");
            assert!(usual * 4 / 5 <= next && next <= usual * 6 / 5, "{answers}: {next:?}");
            drawn.push(next.as_micros() * 1000 / usual.as_micros());
        }
    }
    drawn.sort_unstable();
    drawn.dedup();
    assert!(drawn.len() > 10, "at random: {drawn:?}");
}

/// U05, M03: given up after enough answers; it stays unknown, and the truth still settles it.
#[tokio::test(start_paused = true)]
async fn after_enough_answers_that_say_unknown_a_record_is_a_dead_letter() {
    let world = World::new();
    let probe = Told::to([UNKNOWN]);
    let node = world.node(probe.clone());
    node.unknown("k").await;
    for _ in 0..TRIES_MAX {
        assert!(!node.is_dead_letter("k").await);
        world.pass(node.asked_in("k").await.expect("it is asked"));
        node.reconcile().await;
    }
    assert!(node.is_dead_letter("k").await);
    assert_eq!((node.asked_in("k").await, probe.asked()), (None, TRIES_MAX as usize));
    world.pass(MAX * 100);
    assert_eq!((node.reconcile().await, probe.asked()), (0, TRIES_MAX as usize), "nobody asks any more");
    assert_eq!(node.pay("k").await.0, 409);
    assert_eq!(node.hear("k", paid()).await, Heard::Applied(StateName::Completed));
    assert_eq!(node.pay("k").await, (201, Bytes::from_static(b"paid")));
}

/// M03: an outage of the probe is no answer and flags nothing, until it has lasted long enough.
#[tokio::test(start_paused = true)]
async fn a_failed_probe_is_no_answer_and_is_told_after_five() {
    let world = World::new();
    let probe = Told::to([Err("it answered 503")]);
    let node = world.node(probe.clone());
    node.unknown("k").await;
    let mut failures = 0;
    while !node.is_dead_letter("k").await {
        let span = node.asked_in("k").await.expect("it is asked again");
        assert!(span <= MAX * 6 / 5, "{span:?}");
        world.pass(span);
        node.reconcile().await;
        failures += 1;
        assert_eq!(machine::facts(&node.seen("k").await.record).asking.answers, 0);
        assert_eq!(node.engine.failing_probes().len(), usize::from(failures >= 5), "after {failures}");
        assert!(failures < 100, "it goes on for ever");
    }
    assert!(failures > TRIES_MAX, "more often than it may answer: {failures}");
    let failing = &node.engine.failing_probes()[0];
    assert_eq!((&*failing.route, failing.failures, &*failing.says), (ROUTE, failures, "it answered 503"));
    node.unknown("another").await;
    probe.answers.lock().unwrap().push_front(UNKNOWN);
    world.pass(FIRST);
    node.reconcile().await;
    assert!(node.engine.failing_probes().is_empty(), "cleared by the first answer");
}

/// M03: a probe that does not answer holds a place for ten seconds, and decides nothing.
#[tokio::test(start_paused = true)]
async fn a_slow_probe_has_failed_after_ten_seconds() {
    let world = World::new();
    let node = world.node(Arc::new(asking(|_| std::future::pending())));
    node.unknown("k").await;
    world.pass(FIRST);
    let began = tokio::time::Instant::now();
    assert_eq!(node.reconcile().await, 0);
    assert_eq!(began.elapsed().as_secs(), 10);
    let seen = node.seen("k").await;
    let last = seen.record.history.entries.last().unwrap();
    assert_eq!(
        (last.said.map(|said| said.as_str()), last.detail.as_deref()),
        (Some("failed"), Some("no answer within 10s"))
    );
}

/// M03, M04: of many nodes that find the same records, one asks about each.
#[tokio::test(start_paused = true)]
async fn a_question_is_claimed_and_no_other_node_asks_it() {
    let world = World::new();
    let probe = Told::to([Ok(paid())]);
    let nodes: Vec<_> = (0..4).map(|_| world.node(probe.clone())).collect();
    for key in 0..250 {
        nodes[0].unknown(&format!("k-{key}")).await;
    }
    world.pass(FIRST);
    let rounds = nodes.iter().map(Node::reconcile);
    let settled: usize = futures_util::future::join_all(rounds).await.into_iter().sum();
    assert_eq!((settled, probe.asked()), (250, 250));
}

/// M03, M04: a node that dies while it asks is asked for once its claim has lapsed, and not before.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_node_died_lapses() {
    let world = World::new();
    let came = Arc::new(Notify::new());
    let comes = came.clone();
    let dying = world.node(Arc::new(asking(move |_| {
        comes.notify_one();
        std::future::pending()
    })));
    dying.unknown("k").await;
    world.pass(FIRST);
    let engine = dying.engine.clone();
    let asking = tokio::spawn(async move { engine.reconcile().await });
    came.notified().await;
    asking.abort();
    let probe = Told::to([Ok(paid())]);
    let other = world.node(probe.clone());
    world.pass(Duration::from_secs(19));
    assert_eq!((other.reconcile().await, probe.asked()), (0, 0), "the claim holds");
    world.pass(Duration::from_secs(1));
    assert_eq!((other.reconcile().await, probe.asked()), (1, 1), "and lapses after 20 s");
}

/// M03: what was settled while the probe was asked stays as it is.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_a_verdict_changes_nothing() {
    let world = World::new();
    let (came, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (comes, goes_on) = (came.clone(), go_on.clone());
    let node = world.node(Arc::new(asking(move |_| {
        let (comes, goes_on) = (comes.clone(), goes_on.clone());
        async move {
            comes.notify_one();
            goes_on.notified().await;
            Ok(Answer::new(Verdict::DidNotHappen { never_will: true }))
        }
    })));
    node.unknown("k").await;
    world.pass(FIRST);
    let engine = node.engine.clone();
    let asking = tokio::spawn(async move { engine.reconcile().await.unwrap() });
    came.notified().await;
    assert_eq!(node.hear("k", paid()).await, Heard::Applied(StateName::Completed));
    go_on.notify_one();
    assert_eq!(asking.await.unwrap(), 0);
    assert_eq!(node.pay("k").await, (201, Bytes::from_static(b"paid")));
}

/// U06, M03: clients want the answer, and not only the news.
#[tokio::test(start_paused = true)]
async fn happened_without_an_answer_asks_the_probe_once() {
    let world = World::new();
    let probe = Told::to([Ok(paid()), UNKNOWN]);
    let node = world.node(probe.clone());
    node.unknown("k").await;
    assert_eq!(node.hear("k", Verdict::Happened(None)).await, Heard::Applied(StateName::Completed));
    assert_eq!(probe.asked(), 1, "at once");
    assert_eq!(node.pay("k").await, (201, Bytes::from_static(b"paid")));
    assert_eq!(
        machine::facts(&node.seen("k").await.record).by,
        Some(Source::Webhook),
        "the webhook settled it"
    );

    node.unknown("without").await;
    assert_eq!(node.hear("without", Verdict::Happened(None)).await, Heard::Applied(StateName::Completed));
    assert_eq!(probe.asked(), 2);
    assert_eq!(node.pay("without").await.0, 409, "done, and nobody has the answer");
    node.unknown("with").await;
    assert_eq!(node.hear("with", paid()).await, Heard::Applied(StateName::Completed));
    assert_eq!(probe.asked(), 2, "an answer needs no question");
}

/// U06, M03: of a record that may be tried again, too.
#[tokio::test(start_paused = true)]
async fn happened_about_a_retryable_record_asks_the_probe_for_the_answer() {
    let world = World::new();
    let probe = Told::to([Ok(paid())]);
    let node = world.node_answering(policy(), StatusCode::TOO_MANY_REQUESTS);
    node.ask(probe.clone());
    assert_eq!(node.pay("k").await.0, 429);
    assert_eq!(
        node.hear("k", Verdict::DidNotHappen { never_will: true }).await,
        Heard::Already(StateName::Retryable)
    );
    assert_eq!(probe.asked(), 0, "nothing has happened");
    assert_eq!(node.hear("k", Verdict::Happened(None)).await, Heard::Applied(StateName::Completed));
    assert_eq!((node.pay("k").await, probe.asked()), ((201, Bytes::from_static(b"paid")), 1));
    assert_eq!(node.hear("k", Verdict::Happened(None)).await, Heard::Already(StateName::Completed));
    assert_eq!(probe.asked(), 1, "what changes nothing asks nobody");
}

/// How an attempt is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// It ends without an outcome.
    InDoubt,
    /// Nobody comes back for it, and the sweeper finds it.
    Swept,
    /// Nobody comes back for it, and a retry finds it.
    Retried,
}

/// U05, U06, M03: a webhook told that it happened while it ran. Once the attempt is lost, the probe is asked for the answer.
#[tokio::test(start_paused = true)]
async fn evidence_without_an_answer_asks_the_probe_once_the_attempt_is_lost() {
    for lost in [Lost::InDoubt, Lost::Swept, Lost::Retried] {
        for (answers, is_known) in [(Ok(paid()), true), (UNKNOWN, false), (Err("it answered 503"), false)] {
            let (world, probe) = (World::new(), Told::to([answers]));
            let (node, other) = (world.node_with(policy()), world.node_with(policy()));
            [&node, &other].into_iter().for_each(|node| node.ask_about("POST /held", probe.clone()));
            let client = node.hold("k").await;
            assert_eq!(node.hear("k", Verdict::Happened(None)).await, Heard::Evidence);
            assert_eq!(probe.asked(), 0, "while it runs it may bring its answer itself");
            match lost {
                Lost::InDoubt => {
                    node.go_on.notify_one();
                    client.await.unwrap();
                }
                Lost::Swept => {
                    world.pass(policy().lease);
                    assert_eq!(other.engine.sweep().await.unwrap(), 1);
                }
                Lost::Retried => world.pass(policy().lease),
            }
            let expected = if is_known { (201, Bytes::from_static(b"paid")) } else { (409, Bytes::new()) };
            let (status, body) = send(other.app.clone(), "/held", "k").await;
            assert_eq!(status, expected.0, "{lost:?}");
            assert!(body == expected.1 || !is_known, "{lost:?}");
            assert_eq!(
                (probe.asked(), node.seen("k").await.record.state.name()),
                (1, StateName::Completed),
                "{lost:?}"
            );
        }
    }
}

/// A probe that counts how many ask it at once.
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
    places: Option<Arc<Semaphore>>,
}

impl Crowd {
    fn new(places: Option<usize>) -> Arc<Self> {
        let places = places.map(|places| Arc::new(Semaphore::new(places)));
        Arc::new(Self { now: AtomicUsize::new(0), most: AtomicUsize::new(0), places })
    }
}

#[async_trait]
impl Probe for Crowd {
    async fn ask(&self, _: Question) -> Result<Answer, Failure> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(Answer::new(Verdict::Happened(None)))
    }

    fn places(&self) -> Option<Arc<Semaphore>> {
        self.places.clone()
    }
}

/// M03: however many are unknown, so many questions are asked at once, and so many of one host.
#[tokio::test(start_paused = true)]
async fn many_unknown_records_are_asked_about_a_few_at_once() {
    for (places, most) in [(None, 5), (Some(2), 2)] {
        let world = World::new();
        let probe = Crowd::new(places);
        let node = world.node(probe.clone());
        for key in 0..130 {
            node.unknown(&format!("k-{key}")).await;
        }
        world.pass(FIRST);
        let mut settled = 0;
        while settled < 130 {
            let by_round = node.reconcile().await;
            assert!(by_round > 0, "{settled}");
            settled += by_round;
        }
        assert_eq!((settled, probe.most.load(Ordering::SeqCst)), (130, most));
    }
}

/// M03: nobody is asked where there is no probe, and nothing is due.
#[tokio::test(start_paused = true)]
async fn without_a_probe_nothing_is_asked_and_nothing_is_due() {
    let world = World::new();
    let plain = world.node_with(policy());
    plain.unknown("never").await;
    assert_eq!(plain.asked_in("never").await, None);
    let probe = Told::to([Ok(paid())]);
    let node = world.node(probe.clone());
    node.unknown("was").await;
    world.pass(FIRST);
    let elsewhere = world.node_without();
    elsewhere.engine.use_probes(Probes::default().with_route("POST /other", probe.clone()));
    assert_eq!((elsewhere.reconcile().await, probe.asked()), (0, 0), "its route has a probe no more");
    assert_eq!(node.asked_in("was").await, None);
    assert_eq!(node.seen("was").await.record.state.name(), StateName::Unknown);
}

/// M03, G04: a probe that the settings bring later is asked about what is unknown already, and about what was reserved before it.
#[tokio::test(start_paused = true)]
async fn a_probe_that_comes_later_is_asked_about_what_is_unknown_already() {
    let world = World::new();
    let node = world.node_with(policy());
    for key in 0..250 {
        node.unknown(&format!("k-{key}")).await;
    }
    assert_eq!((node.reconcile().await, node.asked_in("k-0").await), (0, None));
    let probe = Told::to([Ok(paid())]);
    node.ask(probe.clone());
    assert_eq!(node.reconcile().await, 0);
    let first = node.asked_in("k-249").await.expect("it is asked about");
    assert!(FIRST * 4 / 5 <= first && first <= FIRST * 6 / 5, "{first:?}");
    node.unknown("reserved-before").await;
    assert_eq!(node.asked_in("reserved-before").await, None);
    assert_eq!(node.reconcile().await, 0);
    world.pass(FIRST * 6 / 5);
    assert_eq!((node.reconcile().await, probe.asked()), (251, 251));

    // And gone again: nothing is asked about, nor said to be.
    let node = world.node(probe.clone());
    node.unknown("k").await;
    node.engine.use_probes(Probes::default());
    node.reconcile().await;
    assert_eq!(node.asked_in("k").await, None);
}

/// M03: while one provider does not answer, the records of another are settled.
#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_does_not_hold_up_the_others() {
    struct Hanging(Arc<Semaphore>);
    #[async_trait]
    impl Probe for Hanging {
        async fn ask(&self, _: Question) -> Result<Answer, Failure> {
            std::future::pending().await
        }

        fn places(&self) -> Option<Arc<Semaphore>> {
            Some(self.0.clone())
        }
    }
    let world = World::new();
    let node = world.node_without();
    let (hanging, quick) = (Arc::new(Hanging(Arc::new(Semaphore::new(2)))), Told::to([Ok(paid())]));
    let probes = Probes::default().with_route(ROUTE, hanging).with_route("POST /refunds", quick.clone());
    node.engine.use_probes(probes);
    for key in 0..230 {
        node.unknown(&format!("k-{key}")).await;
    }
    world.pass(FIRST / 2);
    assert_eq!(send(node.app.clone(), "/refunds", "refund").await.0, 504);
    world.pass(FIRST);
    let began = tokio::time::Instant::now();
    assert_eq!((node.reconcile().await, quick.asked()), (1, 1));
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

/// M03, O02: whichever node is asked tells of a probe that another one asks in vain, until it hears an answer itself or the
/// time line has one.
#[tokio::test(start_paused = true)]
async fn a_failing_probe_that_another_node_asks_is_told_of_on_every_node() {
    let world = World::new();
    let probe = Told::to([Err("it answered 503")]);
    let (asking, other) = (world.node(probe.clone()), world.node(probe.clone()));
    asking.unknown("k").await;
    for failures in 1..=6 {
        world.pass(asking.asked_in("k").await.expect("it is asked"));
        asking.reconcile().await;
        assert_eq!(other.engine.failing_probes(), []);
        let told = other.engine.failing_probes_of_all().await.unwrap();
        assert_eq!(told.len(), usize::from(failures >= 5), "after {failures}");
    }
    let told = other.engine.failing_probes_of_all().await.unwrap();
    let own = asking.engine.failing_probes_of_all().await.unwrap();
    assert_eq!((&*told[0].route, told[0].failures, &*told[0].says), (ROUTE, 6, "it answered 503"));
    assert_eq!((own.len(), own[0].failures), (1, 6), "told of once");
    // The other node hears an answer about another record.
    other.unknown("another").await;
    probe.answers.lock().unwrap().push_front(UNKNOWN);
    world.pass(FIRST);
    other.reconcile().await;
    assert_eq!(other.engine.failing_probes_of_all().await.unwrap(), [], "it answers again");
    // Nobody has asked for long.
    let third = world.node(probe);
    assert_eq!(third.engine.failing_probes_of_all().await.unwrap().len(), 1);
    world.pass(MAX * 4);
    assert_eq!(third.engine.failing_probes_of_all().await.unwrap(), []);
}

/// M03, O02: a probe that is gone fails no more.
#[tokio::test(start_paused = true)]
async fn a_failing_probe_that_the_settings_have_no_more_is_not_told_of() {
    let world = World::new();
    let node = world.node(Told::to([Err("it answered 503")]));
    node.unknown("k").await;
    for _ in 0..5 {
        world.pass(node.asked_in("k").await.expect("it is asked"));
        node.reconcile().await;
    }
    assert_eq!(node.engine.failing_probes().len(), 1);
    node.ask(Told::to([Err("it answered 502")]));
    assert_eq!(node.engine.failing_probes().len(), 1, "its route has a probe still");
    node.engine.use_probes(Probes::default());
    assert_eq!(node.engine.failing_probes(), []);
}

/// M03, O02: another node has settled what it was asked about, so this one will never hear an answer.
#[tokio::test(start_paused = true)]
async fn a_failing_probe_that_nobody_asks_any_more_is_not_told_of_for_ever() {
    let world = World::new();
    let node = world.node(Told::to([Err("it answered 503")]));
    node.unknown("k").await;
    for _ in 0..5 {
        world.pass(node.asked_in("k").await.expect("it is asked"));
        node.reconcile().await;
    }
    tokio::time::advance(MAX * 2).await;
    assert_eq!(node.engine.failing_probes().len(), 1, "the next question may be that far away");
    tokio::time::advance(MAX * 2).await;
    assert_eq!(node.engine.failing_probes(), []);
}

/// An event that says nothing of the outcome stays in the history of an unknown record, and nowhere else.
#[tokio::test(start_paused = true)]
async fn an_event_that_settles_nothing_is_kept_for_people() {
    let world = World::new();
    let node = world.node(Told::to([UNKNOWN]));
    node.unknown("k").await;
    let seen = node.seen("k").await;
    let handle = Handle { id: id("k"), token: seen.record.token };
    let bank: Arc<str> = "bank".into();
    node.engine.note(Subject::Attempt(handle), seen.now, &bank, "charge.pending evt_1").await.unwrap();
    let foreign = Handle { token: record::Token([7; 16]), ..handle };
    node.engine.note(Subject::Attempt(foreign), seen.now, &bank, "charge.pending evt_2").await.unwrap();
    let noted = node.seen("k").await;
    assert_eq!(noted.record.history.entries.len(), seen.record.history.entries.len() + 1);
    let last = noted.record.history.entries.last().unwrap();
    assert_eq!(
        (last.said.map(|said| said.as_str()), last.source.as_deref()),
        (Some("ignored"), Some("bank"))
    );
    assert_eq!(last.detail.as_deref(), Some("charge.pending evt_1"));
    assert_eq!(node.asked_in("k").await, Some(FIRST), "it changes nothing else");
    node.hear("k", paid()).await;
    let settled = node.seen("k").await.revision;
    node.engine.note(Subject::Work(id("k")), seen.now, &bank, "charge.pending evt_3").await.unwrap();
    assert_eq!(node.seen("k").await.revision, settled);
}
