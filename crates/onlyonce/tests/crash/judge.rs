//! What must hold once the process lives again. The ledger is the witness.
//!
//! | left of an order | opaque, queryable | keyed | local |
//! |---|---|---|---|
//! | nothing | runs: one charge | runs: one charge | runs |
//! | its reservation | unknown, no charge | runs again: one charge | runs again |
//! | its reservation, and the work is done | unknown, one charge | runs again: still one charge | runs again |
//! | its completion | replayed: one charge | replayed: one charge | replayed |

use crate::failpoints::Left;
use crate::order::{Answer, Kind, Order, Wish, retry};
use crate::process::{Life, Victim};
use crate::world::World;

/// The process lives again: every promise is held against what its clients and the ledger know.
pub(crate) async fn judge(world: &mut World) {
    let victim = world.ready(Life::USUAL).await;
    judge_on(world, &victim).await;
    victim.kill().await;
}

pub(crate) async fn judge_on(world: &mut World, victim: &Victim) {
    for (order, first) in &world.acknowledged {
        replays(world, victim, order, first).await;
    }
    for (order, left) in &world.doubtful {
        settles(world, victim, order, *left).await;
    }
    for order in &world.expired {
        runs_anew(world, victim, order).await;
    }
    // And life goes on.
    world.acknowledge(victim, Wish::None).await;
}

/// An answer that a client has heard is heard again, to the byte, and nothing runs for it.
async fn replays(world: &World, victim: &Victim, order: &Order, first: &Answer) {
    let runs_before = world.ledger.calls(&order.key).len();
    let again = heard(victim, order).await;
    assert!(again.is_replay(), "{}: answered before, and now {again}", order.key);
    assert_eq!((again.status, &again.body), (first.status, &first.body), "{}", order.key);
    assert_eq!(
        again.headers.get("idempotency-key-expires"),
        first.headers.get("idempotency-key-expires"),
        "{}: the same answer until the same moment",
        order.key
    );
    assert_eq!(world.ledger.calls(&order.key).len(), runs_before, "{}: a replay runs nothing", order.key);
}

/// An order in doubt comes to an end, the right one, and stays there.
async fn settles(world: &World, victim: &Victim, order: &Order, left: Option<Left>) {
    let answer = heard(victim, order).await;
    promise_held(world, order, &answer);
    if let Some(left) = left {
        as_left(world, order, left, &answer);
    }
    let runs = world.ledger.calls(&order.key).len();
    let again = heard(victim, order).await;
    if answer.is_unknown() {
        assert!(again.is_unknown(), "{}: unknown stays unknown, and now {again}", order.key);
    } else {
        assert!(again.is_replay() && again.body == answer.body, "{}: {answer}, then {again}", order.key);
    }
    assert_eq!(world.ledger.calls(&order.key).len(), runs, "{}: what is settled does not run", order.key);
}

/// The promise for the kind of effects, wherever the process died.
fn promise_held(world: &World, order: &Order, answer: &Answer) {
    let key = &order.key;
    let (runs, charges) = (world.ledger.calls(key).len(), world.ledger.charges(key));
    assert!(charges <= 1, "{key}: charged {charges} times");
    match order.kind {
        Kind::Opaque | Kind::Queryable if answer.is_unknown() => {
            assert!(runs <= 1, "{key}: ran {runs} times");
        }
        Kind::Opaque | Kind::Queryable => {
            world.is_receipt(order, answer);
            assert_eq!((runs, charges), (1, 1), "{key}: completed, so it ran once");
        }
        Kind::Keyed => {
            world.is_receipt(order, answer);
            assert_eq!(charges, 1, "{key}: exactly once");
        }
        Kind::Local => world.is_receipt(order, answer),
    }
}

/// What exactly must have become of it, where it is known what was left.
fn as_left(world: &World, order: &Order, left: Left, answer: &Answer) {
    let key = &order.key;
    let ran = match left {
        Left::Nothing | Left::Reserved => 0,
        Left::Worked | Left::Completed => 1,
    };
    let runs_on = match left {
        Left::Nothing => true,
        Left::Reserved | Left::Worked => order.kind.runs_again(),
        Left::Completed => false,
    };
    assert_eq!(answer.is_replay(), left == Left::Completed, "{key}: {left:?} was left, and {answer}");
    assert_eq!(
        answer.is_unknown(),
        !runs_on && left != Left::Completed,
        "{key}: {left:?} was left, and {answer}"
    );
    let runs = ran + usize::from(runs_on);
    assert_eq!(world.ledger.calls(key).len(), runs, "{key}: {left:?} was left");
    if order.kind == Kind::Queryable {
        // What a probe would be told.
        assert_eq!(world.ledger.was_charged(key), runs > 0, "{key}");
    }
}

/// A key whose record expired is a new request, once, whether or not its row was deleted.
async fn runs_anew(world: &World, victim: &Victim, order: &Order) {
    let usual = Order { wish: Wish::None, ..order.clone() };
    let answer = heard(victim, &usual).await;
    assert!(!answer.is_replay(), "{}: expired, and now {answer}", order.key);
    world.is_receipt(&usual, &answer);
    replays(world, victim, &usual, &answer).await;
    assert_eq!(world.ledger.calls(&order.key).len(), 2, "{}: once before it expired, once after", order.key);
}

/// Retries on a victim that lives.
async fn heard(victim: &Victim, order: &Order) -> Answer {
    let order = Order { wish: Wish::None, ..order.clone() };
    retry(victim.address, &order).await.expect("nothing kills this victim")
}
