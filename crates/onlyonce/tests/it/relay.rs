//! The relay on a real store: what is delivered, how often, in which order, and what becomes of what cannot be delivered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce::fingerprint::Fingerprint;
use onlyonce::key::Key;
use onlyonce::machine::{Admission, Decision, Request, decide};
use onlyonce::operate::message::{Action, Change as Changed};
use onlyonce::operate::{Operator, Order};
use onlyonce::record::{Draft, Id, Revision, Token};
use onlyonce::relay::{Deliver, Delivered, Delivery, Relay, Running, Terms};
use onlyonce::scope::Scope;
use onlyonce::store::Change;
use onlyonce::store::clock::ManualClock;
use onlyonce::store::memory::Memory;
use onlyonce::store::outbox::{Item, Message, OnDead, Query, State, Wanted};
use onlyonce::{Engine, Force, Policy};
use tokio::sync::Semaphore;

use crate::world::{Fault, FaultyStore};

const SECOND: Duration = Duration::from_secs(1);
/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);
const OFTEN: Duration = Duration::from_millis(5);

/// A destination that counts, and answers as it is told; once nothing is left to say, `Done`.
#[derive(Clone)]
struct Receiver {
    got: Arc<Mutex<Vec<Delivery>>>,
    says: Arc<Mutex<VecDeque<Says>>>,
    /// A delivery takes one of them, where it is told to wait.
    gate: Arc<Semaphore>,
}

enum Says {
    This(Delivered),
    Panic,
    /// Nothing, until the gate is opened; then `Done`.
    Wait,
}

impl Receiver {
    fn new(says: impl IntoIterator<Item = Says>) -> Self {
        let says = Arc::new(Mutex::new(says.into_iter().collect()));
        Self { got: Arc::default(), says, gate: Arc::new(Semaphore::new(0)) }
    }

    fn keys(&self) -> Vec<String> {
        self.got.lock().unwrap().iter().map(|delivery| delivery.key.to_string()).collect()
    }

    fn numbers(&self) -> Vec<u32> {
        self.got.lock().unwrap().iter().map(|delivery| delivery.number).collect()
    }
}

#[async_trait]
impl Deliver for Receiver {
    async fn deliver(&self, delivery: &Delivery) -> Delivered {
        self.got.lock().unwrap().push(delivery.clone());
        let says = self.says.lock().unwrap().pop_front();
        match says {
            None => done(),
            Some(Says::This(delivered)) => delivered,
            Some(Says::Panic) => panic!("as it was told"),
            Some(Says::Wait) => {
                self.gate.acquire().await.unwrap().forget();
                done()
            }
        }
    }
}

fn done() -> Delivered {
    Delivered::Done { provider_id: Some("evt".into()) }
}

fn again() -> Says {
    Says::This(Delivered::Again { after: None, error: "busy".into() })
}

/// The reservation of a key, to store messages with.
fn reservation(key: &str) -> (Id, Box<Draft>) {
    let (scope, key) = (Scope::stored([1; 32], None), Key::stored(key));
    let request = Request {
        scope: &scope,
        key: &key,
        route: None,
        fingerprint: &Fingerprint { version: 1, raw: [2; 32], canonical: None },
        policy: &Policy::default(),
        token: Token([3; 16]),
        admission: Admission::Run,
        trace: None,
    };
    let Decision::Begin(draft) = decide(None, &request) else { panic!("an absent key runs") };
    (Id::of(&scope, &key), draft)
}

struct World {
    /// Of the store, where a test moves it.
    clock: ManualClock,
    engine: Arc<Engine>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        let engine = Engine::new(Arc::new(Memory::with_clock(clock.clone())));
        Self { clock, engine }
    }

    /// On a store that fails on order, whose clock is tokio's.
    fn on(store: &Arc<FaultyStore>) -> Self {
        Self { clock: ManualClock::new(), engine: Engine::new(store.clone()) }
    }

    async fn send(&self, messages: Vec<Message>) {
        let (id, draft) = reservation(&messages[0].key);
        let change = Change::new(None, Revision(1), draft).with_messages(messages);
        self.engine.store().swap(id, change).await.unwrap();
        self.engine.wake_relay();
    }

    fn start(&self, receiver: &Receiver, terms: Terms) -> Running {
        Relay::new(&self.engine).to_with("mail", receiver.clone(), terms).every(OFTEN).start()
    }

    async fn all(&self) -> Vec<Item> {
        self.engine.messages(Query { limit: 100, ..Query::default() }).await.unwrap().items
    }

    async fn state(&self, key: &str) -> State {
        self.all().await.iter().find(|item| &*item.key == key).expect("it is there").state
    }

    async fn until_state(&self, key: &str, state: State) {
        until(async || self.state(key).await == state).await;
    }
}

async fn until(holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it holds in good time");
}

fn message(key: &str) -> Message {
    Message::new(key, "mail", Bytes::from_static(b"{}"))
}

fn grouped(key: &str) -> Message {
    Message { group: Some("ann".into()), ..message(key) }
}

fn order(dry_run: bool) -> Order {
    let operator =
        Operator { who: "ann".into(), role: "operate".into(), claims: None, from: None, via: "api".into() };
    Order { operator, reason: "fixed".into(), force: Force::No, expected: None, dry_run }
}

/// W05: once, with its key, and the provider's id on record.
#[tokio::test]
async fn a_message_is_delivered_once_and_the_providers_id_is_kept() {
    let (world, receiver) = (World::new(), Receiver::new([]));
    let relay = world.start(&receiver, Terms::default());
    world.send(vec![message("m1")]).await;
    world.until_state("m1", State::Delivered).await;
    relay.stop(PATIENCE).await;
    let got = receiver.got.lock().unwrap().clone();
    let [delivery] = &got[..] else { panic!("{got:?}") };
    assert_eq!((&*delivery.key, delivery.number, &delivery.payload[..]), ("m1", 1, &b"{}"[..]));
    assert_eq!((&*delivery.destination, &*delivery.content_type), ("mail", "application/json"));
    assert_eq!(world.all().await[0].provider_id.as_deref(), Some("evt"));
}

/// W06: tried again after a pause that grows, then a dead letter with every error; a panic is a failure too.
#[tokio::test]
async fn a_message_that_fails_is_tried_again_and_then_given_up() {
    let (world, receiver) = (World::new(), Receiver::new([again(), Says::Panic, again()]));
    let terms = Terms { attempts_max: 3, retry_first: 10 * SECOND, ..Terms::default() };
    let relay = world.start(&receiver, terms);
    world.send(vec![message("m1")]).await;
    for (deliveries, pause) in [(1, 10), (2, 30)] {
        until(async || receiver.numbers().len() == deliveries && world.state("m1").await == State::Waiting)
            .await;
        let item = world.all().await.remove(0);
        let waits = item.due_at.since(item.errors.last().unwrap().at).as_secs_f64();
        assert!((0.8..=1.2).contains(&(waits / f64::from(pause))), "{waits} s after {deliveries}");
        world.clock.advance(pause * 2 * SECOND);
    }
    world.until_state("m1", State::Dead).await;
    relay.stop(PATIENCE).await;
    assert_eq!(receiver.keys(), ["m1"; 3]);
    let item = world.all().await.remove(0);
    let errors: Vec<_> = item.errors.iter().map(|error| (error.delivery, &*error.error)).collect();
    assert_eq!(errors, [(1, "busy"), (2, "the delivery panicked"), (3, "busy")]);
}

/// W06: a wait that was asked for burns no attempt.
#[tokio::test]
async fn a_wait_does_not_count() {
    let wait = || Says::This(Delivered::Again { after: Some(SECOND), error: "slow down".into() });
    let (world, receiver) = (World::new(), Receiver::new([wait(), wait(), wait()]));
    let relay = world.start(&receiver, Terms { attempts_max: 1, ..Terms::default() });
    world.send(vec![message("m1")]).await;
    for deliveries in 1..=3 {
        until(async || receiver.numbers().len() == deliveries && world.state("m1").await == State::Waiting)
            .await;
        world.clock.advance(2 * SECOND);
    }
    world.until_state("m1", State::Delivered).await;
    relay.stop(PATIENCE).await;
    assert_eq!(world.all().await[0].errors.len(), 1, "the same wait leaves one line");
}

/// W05: who delivers in code of one's own cannot hang the relay.
#[tokio::test]
async fn a_delivery_that_takes_too_long_is_a_failure() {
    let (world, receiver) = (World::new(), Receiver::new([Says::Wait]));
    let relay = world.start(&receiver, Terms { timeout: Duration::from_millis(20), ..Terms::default() });
    world.send(vec![message("m1")]).await;
    until(async || !world.all().await[0].errors.is_empty()).await;
    relay.stop(PATIENCE).await;
    assert_eq!(&*world.all().await[0].errors[0].error, "no answer within 20 ms");
}

/// W05: in the order of their numbers, one at a time; others are not held up.
#[tokio::test]
async fn a_group_is_delivered_in_order_and_holds_up_nobody_else() {
    let (world, receiver) = (World::new(), Receiver::new([Says::Wait]));
    world.send(vec![grouped("a1"), grouped("a2"), grouped("a3"), message("free")]).await;
    let relay = world.start(&receiver, Terms::default());
    world.until_state("free", State::Delivered).await;
    assert_eq!(receiver.keys(), ["a1", "free"]);
    receiver.gate.add_permits(1);
    world.until_state("a3", State::Delivered).await;
    relay.stop(PATIENCE).await;
    assert_eq!(receiver.keys(), ["a1", "free", "a2", "a3"]);
}

/// W06: a dead letter blocks its group until a person ends it, or is passed where the settings say so.
#[tokio::test]
async fn a_dead_letter_blocks_its_group_or_is_skipped() {
    for (on_dead, after) in [(OnDead::Block, State::Waiting), (OnDead::Skip, State::Delivered)] {
        let dead = Says::This(Delivered::Dead { error: "gone".into() });
        let (world, receiver) = (World::new(), Receiver::new([dead]));
        world.send(vec![grouped("a1"), grouped("a2"), message("last")]).await;
        let relay = world.start(&receiver, Terms { on_dead, ..Terms::default() });
        world.until_state("a1", State::Dead).await;
        world.until_state("last", State::Delivered).await;
        until(async || world.state("a2").await == after).await;
        relay.stop(PATIENCE).await;
    }
}

/// W06: the key stays, numbers go on, and it is counted anew; each with its entry in the audit log.
#[tokio::test]
async fn a_dead_letter_can_be_redriven_and_discarded() {
    let dead = || Says::This(Delivered::Dead { error: "gone".into() });
    let (world, receiver) = (World::new(), Receiver::new([dead(), dead()]));
    world.send(vec![message("m1"), message("m2")]).await;
    let relay = world.start(&receiver, Terms::default());
    world.until_state("m1", State::Dead).await;
    world.until_state("m2", State::Dead).await;
    let [first, second] = &world.all().await[..] else { panic!("two messages") };
    let change = async |item: &Item, action, dry_run| {
        world.engine.change_message(item.number, action, &order(dry_run)).await.unwrap()
    };
    let dry = change(first, Action::Redrive, true).await;
    assert_eq!(dry, Changed::Done { before: first.clone(), audit: None });
    assert_eq!(world.state("m1").await, State::Dead);
    assert!(matches!(change(first, Action::Redrive, false).await, Changed::Done { .. }));
    world.until_state("m1", State::Delivered).await;
    assert!(matches!(change(first, Action::Redrive, false).await, Changed::Refused(_)));
    assert!(matches!(change(second, Action::Discard, false).await, Changed::Done { .. }));
    assert_eq!(change(second, Action::Discard, false).await, Changed::Absent);
    relay.stop(PATIENCE).await;
    assert_eq!(receiver.keys(), ["m1", "m2", "m1"]);
    assert_eq!(receiver.numbers(), [1, 1, 2]);
    let log = world.engine.read_audit(onlyonce::store::audit::Query { limit: 9, ..<_>::default() }).await;
    let log: Vec<_> = log.unwrap().entries.into_iter().map(|written| written.entry).collect();
    let told: Vec<_> =
        log.iter().map(|entry| (&*entry.action, &*entry.result, entry.key.as_deref())).collect();
    assert_eq!(
        told,
        [
            ("discard", "applied", Some("m2")),
            ("redrive", "refused", Some("m1")),
            ("redrive", "applied", Some("m1"))
        ]
    );
}

/// W05: what is under way when it is stopped is finished and settled, once; nothing more is claimed.
#[tokio::test]
async fn a_stop_finishes_what_is_under_way_and_claims_no_more() {
    let (world, receiver) = (World::new(), Receiver::new([Says::Wait]));
    world.send(vec![message("m1")]).await;
    let relay = world.start(&receiver, Terms { at_once: 1, ..Terms::default() });
    until(async || receiver.keys() == ["m1"]).await;
    relay.stop_claiming();
    world.send(vec![message("m2")]).await;
    receiver.gate.add_permits(1);
    relay.stop(PATIENCE).await;
    assert_eq!((world.state("m1").await, world.state("m2").await), (State::Delivered, State::Waiting));
    assert_eq!(receiver.keys(), ["m1"]);
}

/// W05: and what is not finished in time is somebody else's once its claim has lapsed.
#[tokio::test]
async fn what_a_stop_does_not_wait_for_is_delivered_again() {
    let (world, receiver) = (World::new(), Receiver::new([Says::Wait]));
    world.send(vec![message("m1")]).await;
    let relay = world.start(&receiver, Terms::default());
    until(async || receiver.keys() == ["m1"]).await;
    relay.stop(Duration::ZERO).await;
    let other = Relay::new(&world.engine).to("mail", receiver.clone());
    assert_eq!(other.once().await.unwrap(), 0, "its claim has not lapsed");
    world.clock.advance(20 * SECOND);
    assert_eq!(Relay::new(&world.engine).to("mail", receiver.clone()).once().await.unwrap(), 1);
    assert_eq!((receiver.keys(), receiver.numbers()), (vec!["m1".to_owned(); 2], vec![1, 2]));
}

/// W05: a relay that was paused past its claim settles nothing, and there is no third delivery.
#[tokio::test]
async fn a_relay_that_comes_back_late_is_superseded() {
    let (world, receiver) = (World::new(), Receiver::new([Says::Wait]));
    world.send(vec![message("m1")]).await;
    let paused = world.start(&receiver, Terms::default());
    until(async || receiver.keys() == ["m1"]).await;
    paused.stop_claiming();
    world.clock.advance(20 * SECOND);
    let other = Receiver::new([]);
    assert_eq!(Relay::new(&world.engine).to("mail", other.clone()).once().await.unwrap(), 1);
    let settled = world.all().await;
    receiver.gate.add_permits(1);
    paused.stop(PATIENCE).await;
    assert_eq!(world.all().await, settled, "its result is not stored");
    assert_eq!((other.numbers(), receiver.numbers()), (vec![2], vec![1]));
}

/// W05: until nothing is due, through groups and more messages than go at once.
#[tokio::test]
async fn a_relay_that_runs_once_delivers_all_that_is_due() {
    let (world, receiver) = (World::new(), Receiver::new([]));
    let later = Message { delay: SECOND, ..message("later") };
    let free = (0..20).map(|number| message(&format!("m{number}")));
    let group = (0..5).map(|number| grouped(&format!("g{number}")));
    world.send(free.chain(group).chain([later]).collect()).await;
    let elsewhere = Message { destination: "unknown".into(), ..message("elsewhere") };
    world.send(vec![elsewhere]).await;
    let relay = Relay::new(&world.engine).to("mail", receiver.clone());
    assert_eq!(relay.once().await.unwrap(), 25);
    assert_eq!(
        (world.state("later").await, world.state("elsewhere").await),
        (State::Waiting, State::Waiting)
    );
}

/// W05: of two relays on one store each message is one's.
#[tokio::test]
async fn two_relays_share_the_work() {
    let (world, receiver) = (World::new(), Receiver::new([]));
    let relays = [(); 2].map(|()| world.start(&receiver, Terms { at_once: 2, ..Terms::default() }));
    world.send((0..40).map(|number| message(&format!("m{number}"))).collect()).await;
    until(async || world.all().await.iter().all(|item| item.state == State::Delivered)).await;
    for relay in relays {
        relay.stop(PATIENCE).await;
    }
    assert_eq!(receiver.keys().len(), 40);
    let all = Wanted { destination: "mail".into(), limit: 9, lease: SECOND, on_dead: OnDead::Block };
    let claims = world.engine.store().outbox().unwrap().claim(Token([1; 16]), &[all]).await;
    assert_eq!(claims.unwrap().claimed, []);
}

/// W10: delivered ones are forgotten after their time, and nothing else is.
#[tokio::test]
async fn only_what_was_delivered_is_deleted_by_age() {
    let dead = Says::This(Delivered::Dead { error: "gone".into() });
    let (world, receiver) = (World::new(), Receiver::new([dead]));
    world.send(vec![message("m1"), message("m2")]).await;
    Relay::new(&world.engine)
        .to_with("mail", receiver.clone(), Terms { at_once: 1, ..Terms::default() })
        .once()
        .await
        .unwrap();
    let later = Message { destination: "unknown".into(), ..message("undelivered") };
    world.send(vec![later]).await;
    world.clock.advance(1_000 * 24 * 3_600 * SECOND);
    assert_eq!(world.engine.reap_messages(7 * 24 * 3_600 * SECOND, 1).await.unwrap(), 1);
    let left: Vec<_> = world.all().await.into_iter().map(|item| item.key.to_string()).collect();
    assert_eq!(left, ["m1", "undelivered"]);
}

/// Delivers one message to a store with these faults, of a claim first, then of settlements; which deliveries there were.
async fn delivered_despite(faults: &[Fault]) -> Vec<u32> {
    let (store, receiver) = (FaultyStore::new(), Receiver::new([]));
    let world = World::on(&store);
    world.send(vec![message("m1")]).await;
    store.next(faults.iter().copied());
    let relay = world.start(&receiver, Terms { timeout: SECOND, ..Terms::default() });
    world.until_state("m1", State::Delivered).await;
    relay.stop(PATIENCE).await;
    assert_eq!(world.all().await[0].provider_id.as_deref(), Some("evt"), "{faults:?}");
    receiver.numbers()
}

/// W05: a store that does not answer has nothing delivered, and what was delivered is settled once it answers again.
#[tokio::test(start_paused = true)]
async fn a_settlement_that_the_store_does_not_take_is_tried_again() {
    use Fault::{AnswerLost, Busy, None, Refused};
    assert_eq!(delivered_despite(&[Refused, Refused]).await, [1], "not claimed, and not delivered");
    assert_eq!(delivered_despite(&[None, Refused, Busy, Refused]).await, [1]);
    assert_eq!(delivered_despite(&[None, AnswerLost]).await, [1], "it was stored, and is recognised");
}

/// W05: a claim whose answer was lost, and a settlement that the store does not take for as long as the claim holds, lead to
/// the next delivery of the same message.
#[tokio::test(start_paused = true)]
async fn a_message_whose_claim_lapsed_is_delivered_again() {
    assert_eq!(delivered_despite(&[Fault::AnswerLost]).await, [2], "nobody knows that it was claimed");
    let (store, receiver) = (FaultyStore::new(), Receiver::new([]));
    let world = World::on(&store);
    world.send(vec![message("m1")]).await;
    store.next([Fault::None]);
    store.always(Some(Fault::Refused));
    let relay = world.start(&receiver, Terms { timeout: SECOND, ..Terms::default() });
    until(async || receiver.numbers() == [1]).await;
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(world.state("m1").await, State::Claimed, "nobody could say otherwise");
    store.always(None);
    world.until_state("m1", State::Delivered).await;
    relay.stop(PATIENCE).await;
    assert_eq!(receiver.numbers(), [1, 2]);
}

/// W05: a place that is free is used at once, also while the others are taken for long. Nobody waits for the next round.
#[tokio::test(start_paused = true)]
async fn a_free_place_is_used_while_the_others_are_taken() {
    let (store, receiver) = (FaultyStore::new(), Receiver::new((0..12).map(|_| Says::Wait)));
    let world = World::on(&store);
    world.send((0..12).map(|number| message(&format!("m{number}"))).collect()).await;
    let terms = Terms { at_once: 8, timeout: 3_600 * SECOND, ..Terms::default() };
    let relay =
        Relay::new(&world.engine).to_with("mail", receiver.clone(), terms).every(3_600 * SECOND).start();
    until(async || receiver.keys().len() == 8).await;
    for (opened, begun) in [(1, 9), (2, 11), (8, 12)] {
        receiver.gate.add_permits(opened);
        tokio::time::sleep(SECOND / 10).await;
        assert_eq!(receiver.keys().len(), begun, "{opened} have ended");
    }
    receiver.gate.add_permits(1);
    relay.stop(PATIENCE).await;
    assert!(world.all().await.iter().all(|item| item.state == State::Delivered));
}

/// W05: a destination that takes all its time holds up nobody else.
#[tokio::test(start_paused = true)]
async fn a_slow_destination_holds_up_no_other() {
    let (store, slow, mail) =
        (FaultyStore::new(), Receiver::new((0..9).map(|_| Says::Wait)), Receiver::new([]));
    let world = World::on(&store);
    let to_slow = |number| Message { destination: "slow".into(), ..message(&format!("s{number}")) };
    world.send((0..9).map(to_slow).collect()).await;
    let terms = Terms { at_once: 2, timeout: 3_600 * SECOND, ..Terms::default() };
    let relay = Relay::new(&world.engine)
        .to_with("slow", slow.clone(), terms.clone())
        .to_with("mail", mail.clone(), terms)
        .every(OFTEN)
        .start();
    until(async || slow.keys().len() == 2).await;
    world.send((0..9).map(|number| message(&format!("m{number}"))).collect()).await;
    until(async || mail.keys().len() == 9).await;
    assert_eq!(slow.keys().len(), 2);
    slow.gate.add_permits(9);
    until(async || slow.keys().len() == 9).await;
    relay.stop(PATIENCE).await;
    assert!(world.all().await.iter().all(|item| item.state == State::Delivered));
}
