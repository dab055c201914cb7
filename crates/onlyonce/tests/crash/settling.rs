//! Killed while an unknown outcome is settled, or a record forgotten: by a probe, a webhook, a person.
//!
//! | killed | the next life finds | and then |
//! |---|---|---|
//! | before a change is durable | the record as it was, and no entry in the audit log | the order is given again, and done |
//! | after | the change, and its entry | the order is given again, and nothing is done twice |
//! | between a probe's claim and its answer | an unknown record | it is asked again once the claim has lapsed |

use std::time::Duration;

use http::Request;
use http::header::AUTHORIZATION;
use http_body_util::Full;
use tokio::time::{Instant, sleep};

use crate::failpoints::Engine;
use crate::order::{Answer, Kind, Lost, Order, Wish, retry, send};
use crate::process::{Life, PATIENCE, Victim};
use crate::world::World;

/// A pause between two looks at something that has no signal.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Who settles, or forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Probe,
    Webhook,
    Verdict,
    Forget,
    Purge,
}

impl Way {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Webhook => "webhook",
            Self::Verdict => "verdict",
            Self::Forget => "forget",
            Self::Purge => "purge",
        }
    }
}

/// Every durable step of settling, and who comes there. A purge forgets record after record.
pub(crate) const STEPS: [(&str, Way); 17] = [
    ("reconcile.schedule.before", Way::Probe),
    ("reconcile.schedule.after", Way::Probe),
    ("reconcile.claim.before", Way::Probe),
    ("reconcile.claim.after", Way::Probe),
    ("reconcile.asked", Way::Probe),
    ("reconcile.write.before", Way::Probe),
    ("reconcile.write.after", Way::Probe),
    ("webhook.before", Way::Webhook),
    ("webhook.after", Way::Webhook),
    ("verdict.before", Way::Verdict),
    ("verdict.after", Way::Verdict),
    ("forget.before", Way::Forget),
    ("forget.after", Way::Forget),
    ("forget.before", Way::Purge),
    ("forget.after", Way::Purge),
    ("purge.erase.before", Way::Purge),
    ("purge.erase.after", Way::Purge),
];

/// M03, U05, U09, L04, E03, E04: whoever dies while settling, nothing is done twice and nothing is left out of the audit log.
pub(crate) async fn killed_while_settling(engine: Engine, step: &'static str, way: Way) {
    let mut world = World::on(engine, Kind::Queryable).await;
    let victim = world.ready(Life::USUAL).await;
    for _ in 0..2 {
        world.acknowledge(&victim, Wish::None).await;
    }
    world.kill_while_working(victim).await;
    let [answered, also_answered] = [0, 1].map(|index| world.acknowledged[index].0.clone());
    let scene = Scene { answered, also_answered, unknown: world.doubtful[0].0.clone() };
    let victim = world.ready(Life::USUAL).await;
    becomes(&victim, &scene.unknown, "unknown").await;
    victim.kill().await;

    let with_probes = |life: Life| if way == Way::Probe { life.with_probes() } else { life };
    let victim = world.ready(with_probes(Life::until(step))).await;
    if way != Way::Probe {
        let ordered = order(&victim, way, &scene).await;
        assert!(ordered.is_err(), "{step} was never reached: the scenario is void");
    }
    victim.dies().await;

    let victim = world.ready(with_probes(Life::USUAL)).await;
    match way {
        Way::Probe => probed(&world, &victim, &scene).await,
        Way::Webhook => told(&world, &victim, &scene).await,
        Way::Verdict => judged(&world, &victim, &scene).await,
        Way::Forget => forgotten(&world, &victim, &scene).await,
        Way::Purge => purged(&world, &victim, &scene).await,
    }
    victim.kill().await;
}

/// Two orders that were answered, and one that nobody knows the outcome of.
struct Scene {
    answered: Order,
    also_answered: Order,
    unknown: Order,
}

impl Scene {
    /// What an order of this kind is about.
    fn subject(&self, way: Way) -> &Order {
        match way {
            Way::Probe | Way::Webhook | Way::Verdict => &self.unknown,
            Way::Forget | Way::Purge => &self.answered,
        }
    }
}

async fn probed(world: &World, victim: &Victim, scene: &Scene) {
    becomes(victim, &scene.unknown, "completed").await;
    let answer = heard(victim, &scene.unknown).await;
    assert!(answer.is_replay(), "{answer}");
    world.is_receipt(&scene.unknown, &answer);
    assert_eq!(world.ledger.calls(&scene.unknown.key).len(), 1, "asking runs nothing");
}

async fn told(world: &World, victim: &Victim, scene: &Scene) {
    let again = order(victim, Way::Webhook, scene).await.expect("nothing kills this victim");
    assert!(["applied", "already"].contains(&text(&again).as_str()), "{again}");
    let answer = heard(victim, &scene.unknown).await;
    assert_eq!((answer.status, text(&answer).as_str()), (202, "settled"), "{answer}");
    assert_eq!(world.ledger.calls(&scene.unknown.key).len(), 1);
}

async fn judged(world: &World, victim: &Victim, scene: &Scene) {
    let is_settled = state(victim, &scene.unknown).await.as_deref() == Some("completed");
    let entries = applied(victim, "verdict").await;
    assert_eq!(entries, usize::from(is_settled), "the change and its entry are one commit");
    let again = order(victim, Way::Verdict, scene).await.expect("nothing kills this victim");
    let expected = if is_settled { "record_settled" } else { "applied" };
    assert_eq!(text(&again), expected);
    assert_eq!(applied(victim, "verdict").await, 1);
    let answer = heard(victim, &scene.unknown).await;
    assert_eq!((answer.status, text(&answer).as_str()), (202, "settled"), "{answer}");
    assert_eq!(world.ledger.calls(&scene.unknown.key).len(), 1);
}

async fn forgotten(world: &World, victim: &Victim, scene: &Scene) {
    let is_gone = state(victim, &scene.answered).await.is_none();
    assert_eq!(
        applied(victim, "forget").await,
        usize::from(is_gone),
        "the change and its entry are one commit"
    );
    let again = order(victim, Way::Forget, scene).await.expect("nothing kills this victim");
    let expected = if is_gone { "record_not_found" } else { "applied" };
    assert_eq!(text(&again), expected);
    assert_eq!(applied(victim, "forget").await, 1);
    runs_anew(world, victim, scene).await;
}

/// The record in doubt is kept, since it was not forced; of what is gone no key is left in the log.
async fn purged(world: &World, victim: &Victim, scene: &Scene) {
    let mut left = 0;
    for order in [&scene.answered, &scene.also_answered] {
        left += usize::from(state(victim, order).await.is_some());
    }
    let entries = applied(victim, "purge").await;
    assert_eq!(entries, usize::from(left < 2), "the entry is written with the first record that goes");
    let again = order(victim, Way::Purge, scene).await.expect("nothing kills this victim");
    assert_eq!(
        text(&again),
        format!("forgotten {left}, kept 0 running, 1 unknown"),
        "it goes on where it was"
    );
    assert_eq!(applied(victim, "purge").await, entries + 1, "each order is in the log");
    for order in [&scene.answered, &scene.also_answered] {
        assert_eq!(state(victim, order).await, None);
        assert!(!log(victim).await.contains(&order.key), "its key is erased");
    }
    assert_eq!(state(victim, &scene.unknown).await.as_deref(), Some("unknown"));
    runs_anew(world, victim, scene).await;
}

async fn runs_anew(world: &World, victim: &Victim, scene: &Scene) {
    let answer = heard(victim, &scene.answered).await;
    assert!(!answer.is_replay(), "forgotten, and now {answer}");
    assert_eq!(world.ledger.calls(&scene.answered.key).len(), 2, "once before it was forgotten, once after");
}

/// What an operator orders, or a provider sends.
async fn order(victim: &Victim, way: Way, scene: &Scene) -> Result<Answer, Lost> {
    ask(victim, &format!("{}/{}", way.name(), scene.subject(way).key)).await
}

/// How many changes of this kind are in the audit log.
async fn applied(victim: &Victim, action: &str) -> usize {
    log(victim).await.lines().filter(|line| line.starts_with(&format!("{action} applied"))).count()
}

async fn log(victim: &Victim) -> String {
    text(&ask(victim, "log/all").await.expect("nothing kills this victim"))
}

async fn ask(victim: &Victim, path: &str) -> Result<Answer, Lost> {
    let request = Request::post(format!("/operate/{path}")).header(AUTHORIZATION, "Bearer client");
    send(victim.address, request.body(Full::default()).expect("an order is a valid request")).await
}

/// Waits until the record of an order is in this state.
async fn becomes(victim: &Victim, order: &Order, wanted: &str) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if state(victim, order).await.as_deref() == Some(wanted) {
            return;
        }
        sleep(LOOK_EVERY).await;
    }
    panic!("{}: it never becomes {wanted}", order.key);
}

/// Where the record of an order stands; none where it is not told of.
async fn state(victim: &Victim, order: &Order) -> Option<String> {
    let answer = send(victim.address, order.question()).await.expect("nothing kills this victim");
    let body: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
    body["state"].as_str().map(str::to_owned)
}

async fn heard(victim: &Victim, order: &Order) -> Answer {
    let order = Order { wish: Wish::None, ..order.clone() };
    retry(victim.address, &order).await.expect("nothing kills this victim")
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}
