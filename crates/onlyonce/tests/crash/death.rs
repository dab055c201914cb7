//! How a victim is brought to a step, and dies there.
//!
//! A scenario may do so more than once on one world: then the clients of the first death retry in the second life, so
//! that the second death finds their orders in the middle again.

use crate::failpoints::{Failpoint, Left, Stage};
use crate::order::{Lost, Wish, retry};
use crate::process::{Life, Started};
use crate::world::World;

/// One large order fills the WAL so far that it is carried over; a process that is still alive after so many never came
/// there.
const LARGE_ORDERS_MAX: usize = 20;

/// Whether the process came to its step at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    AtTheStep,
    /// Nothing brought it there; it was killed in the end.
    Elsewhere,
}

/// Lets a process die at `failpoint`, and fails where it does not.
pub(crate) async fn die(world: &mut World, failpoint: &Failpoint) {
    let death = die_or_live(world, failpoint).await;
    assert_eq!(death, Death::AtTheStep, "{} was never reached: the scenario is void", failpoint.name);
}

/// Lets a process die at `failpoint`, if it comes there.
pub(crate) async fn die_or_live(world: &mut World, failpoint: &Failpoint) -> Death {
    let life = Life::until(failpoint.name);
    match failpoint.stage {
        Stage::Creating | Stage::Opening => ends(world.start(life).await).await,
        Stage::Serving(left) => serve(world, life, Wish::None, left).await,
        Stage::Renewing => serve(world, life.with_short_leases(), Wish::Held, Left::Worked).await,
        Stage::Sweeping => {
            let life = life.with_short_leases().without_renewals();
            serve(world, life, Wish::Held, Left::Worked).await
        }
        Stage::Reaping => {
            leave_expired(world).await;
            let Started::Ready(victim) = world.start(life).await else { return Death::AtTheStep };
            victim.dies().await;
            Death::AtTheStep
        }
        Stage::Checkpointing => fill_the_wal(world, life).await,
    }
}

/// Everybody whose connection broke before retries, and then there is a new order, until the process is dead.
async fn serve(world: &mut World, life: Life, wish: Wish, left: Left) -> Death {
    let victim = world.ready(life).await;
    // After another death it depends on both what is left, and other writes come before this order's.
    let left = (world.doubtful.is_empty() && world.expired.is_empty()).then_some(left);
    for index in 0..world.doubtful.len() {
        let (order, known) = &mut world.doubtful[index];
        order.wish = wish;
        *known = None;
        if retry(victim.address, order).await.is_err() {
            victim.dies().await;
            return Death::AtTheStep;
        }
    }
    let order = world.order(wish);
    world.lose(&victim, order, left).await;
    victim.dies().await;
    Death::AtTheStep
}

/// A record that has expired and was not deleted, and beside it one that has not.
async fn leave_expired(world: &mut World) {
    let victim = world.ready(Life::USUAL.without_workers()).await;
    world.acknowledge(&victim, Wish::None).await;
    world.acknowledge(&victim, Wish::Brief).await;
    let (brief, _) = world.acknowledged.pop().expect("it was just answered, and its answer is stored");
    world.expires(&victim, &brief).await;
    world.expired.push(brief);
    victim.kill().await;
}

/// Large orders, one after the other, until the process dies while it checkpoints the WAL.
async fn fill_the_wal(world: &mut World, life: Life) -> Death {
    let victim = world.ready(life).await;
    for _ in 0..LARGE_ORDERS_MAX {
        let order = world.order(Wish::Large);
        match retry(victim.address, &order).await {
            Ok(answer) => world.hear(order, answer),
            Err(Lost) => {
                world.doubtful.push((order, None));
                victim.dies().await;
                return Death::AtTheStep;
            }
        }
    }
    ends(Started::Ready(victim)).await
}

async fn ends(started: Started) -> Death {
    let Started::Ready(victim) = started else { return Death::AtTheStep };
    victim.kill().await;
    Death::Elsewhere
}
