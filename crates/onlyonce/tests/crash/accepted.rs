//! Killed while work is accepted, claimed, run, finished or cancelled. Nobody retries: the next life's worker goes on.
//!
//! | left of an acceptance | opaque | keyed |
//! |---|---|---|
//! | nothing | its client asks again: one charge | the same |
//! | the request, pending | runs: one charge | runs: one charge |
//! | the claim | unknown, no charge | runs again: one charge |
//! | the claim, and the work is done | unknown, one charge | runs again: still one charge |
//! | the completion | its answer: one charge | its answer: one charge |
//! | the order to cancel it | 408, no charge | 408, no charge |

use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use http_body_util::Full;
use tokio::time::{Instant, sleep};

use crate::failpoints::Engine;
use crate::order::{Answer, Kind, Lost, Order, Wish, send};
use crate::process::{Life, PATIENCE, Victim};
use crate::world::World;

/// A pause between two looks at something that has no signal.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What is left of an acceptance when its process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    Pending,
    Claimed,
    Worked,
    Completed,
    /// Killed before the order to cancel it was durable.
    Uncancelled,
    Cancelled,
}

/// Every durable step of accepted work, and what is left after a death there.
pub(crate) const STEPS: [(&str, Left); 34] = [
    ("begin.before", Left::Nothing),
    ("sqlite.commit.before:1", Left::Nothing),
    ("sqlite.commit.after:1", Left::Pending),
    ("postgres.write.before:1", Left::Nothing),
    ("postgres.write.after:1", Left::Pending),
    ("mysql.write.before:1", Left::Nothing),
    ("mysql.write.after:1", Left::Pending),
    ("redis.write.before:1", Left::Nothing),
    ("redis.write.after:1", Left::Pending),
    ("begin.after", Left::Pending),
    ("claim.before", Left::Pending),
    ("sqlite.commit.before:2", Left::Pending),
    ("sqlite.commit.after:2", Left::Claimed),
    ("postgres.write.before:2", Left::Pending),
    ("postgres.write.after:2", Left::Claimed),
    ("mysql.write.before:2", Left::Pending),
    ("mysql.write.after:2", Left::Claimed),
    ("redis.write.before:2", Left::Pending),
    ("redis.write.after:2", Left::Claimed),
    ("claim.after", Left::Claimed),
    ("run.before", Left::Claimed),
    ("run.after", Left::Worked),
    ("finish.before", Left::Worked),
    ("sqlite.commit.before:3", Left::Worked),
    ("sqlite.commit.after:3", Left::Completed),
    ("postgres.write.before:3", Left::Worked),
    ("postgres.write.after:3", Left::Completed),
    ("mysql.write.before:3", Left::Worked),
    ("mysql.write.after:3", Left::Completed),
    ("redis.write.before:3", Left::Worked),
    ("redis.write.after:3", Left::Completed),
    ("finish.after", Left::Completed),
    ("cancel.before", Left::Uncancelled),
    ("cancel.after", Left::Cancelled),
];

/// The steps that a victim on this engine comes to.
pub(crate) fn steps(engine: Engine) -> impl Iterator<Item = (&'static str, Left)> {
    STEPS.into_iter().filter(move |(step, _)| engine.comes_to(step))
}

/// W07, T04, P05, U03, E03, E04: whoever dies, what was accepted is run, and nothing is run that must not be.
pub(crate) async fn killed_at(engine: Engine, step: &'static str, left: Left, kind: Kind) {
    let mut world = World::on(engine, kind).await;
    // The first life makes the tables, and its writes are not those that are counted.
    world.ready(Life::USUAL).await.kill().await;
    let order = world.order(Wish::None);
    match left {
        Left::Uncancelled | Left::Cancelled => {
            let victim = world.ready(Life::until(step).without_workers()).await;
            let accepted = send(victim.address, accepting(&order)).await.expect("it is accepted");
            assert_eq!(accepted.status, 202, "{accepted}");
            assert!(cancel(&victim, &order).await.is_err(), "{step} was never reached: the scenario is void");
            victim.dies().await;
        }
        Left::Nothing | Left::Pending | Left::Claimed | Left::Worked | Left::Completed => {
            let victim = world.ready(Life::until(step)).await;
            if let Ok(accepted) = send(victim.address, accepting(&order)).await {
                assert_eq!(accepted.status, 202, "{accepted}");
            }
            victim.dies().await;
        }
    }
    let victim = world.ready(Life::USUAL).await;
    judge(&world, &victim, &order, left).await;
    victim.kill().await;
}

async fn judge(world: &World, victim: &Victim, order: &Order, left: Left) {
    if left == Left::Nothing {
        assert_eq!(state(victim, order).await, None, "nothing was accepted");
        let accepted = send(victim.address, accepting(order)).await.expect("nothing kills this victim");
        assert_eq!(accepted.status, 202, "{accepted}");
    }
    let ended = ends(victim, order).await;
    let (runs, charges) = (world.ledger.calls(&order.key).len(), world.ledger.charges(&order.key));
    let is_lost = matches!(left, Left::Claimed | Left::Worked) && !order.kind.runs_again();
    let worked = usize::from(left == Left::Worked);
    match left {
        Left::Cancelled => {
            assert_eq!((ended.as_str(), runs), ("completed", 0), "{left:?}");
            let answer = answer(victim, order).await;
            assert_eq!(answer.code().as_deref(), Some("idempotency_not_run"), "{answer}");
        }
        Left::Claimed | Left::Worked if is_lost => {
            assert_eq!((ended.as_str(), runs, charges), ("unknown", worked, worked), "{left:?}");
        }
        Left::Nothing
        | Left::Pending
        | Left::Claimed
        | Left::Worked
        | Left::Completed
        | Left::Uncancelled => {
            assert_eq!((ended.as_str(), runs), ("completed", 1 + worked), "{left:?}");
            let answer = answer(victim, order).await;
            assert!(answer.is_replay(), "{answer}");
            world.is_receipt(order, &answer);
            assert!(order.kind == Kind::Local || charges == 1, "{left:?}: charged {charges} times");
        }
    }
    // What has ended stays as it is, and its client is answered from it.
    let again = send(victim.address, accepting(order)).await.expect("nothing kills this victim");
    assert_eq!((again.is_unknown(), again.is_replay()), (is_lost, !is_lost), "{again}");
    assert_eq!(world.ledger.calls(&order.key).len(), runs, "{left:?}: what is settled does not run");
}

/// The order, to be accepted.
fn accepting(order: &Order) -> Request<Full<Bytes>> {
    let mut request = order.request();
    request.headers_mut().insert("prefer", HeaderValue::from_static("respond-async"));
    request
}

async fn cancel(victim: &Victim, order: &Order) -> Result<Answer, Lost> {
    let mut request = order.question();
    *request.method_mut() = http::Method::DELETE;
    send(victim.address, request).await
}

async fn answer(victim: &Victim, order: &Order) -> Answer {
    let path = format!("/_onlyonce/keys/{}/response", order.key);
    let request = Request::get(path).header(AUTHORIZATION, "Bearer client").body(Full::default());
    let request = request.expect("a question is a valid request");
    send(victim.address, request).await.expect("nothing kills this victim")
}

/// Waits, without sending it again, until the work is no longer under way.
async fn ends(victim: &Victim, order: &Order) -> String {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(state) = state(victim, order).await
            && ["completed", "unknown"].contains(&state.as_str())
        {
            return state;
        }
        sleep(LOOK_EVERY).await;
    }
    panic!("{}: it never ends: {:?}", order.key, state(victim, order).await);
}

/// Where the record of an order stands; none where it is not told of.
async fn state(victim: &Victim, order: &Order) -> Option<String> {
    let answer = send(victim.address, order.question()).await.expect("nothing kills this victim");
    let body: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
    body["state"].as_str().map(str::to_owned)
}
