//! One death each, at every step, for every kind of effects.

use crate::death::die;
use crate::failpoints::{Engine, Failpoint, Stage};
use crate::judge::judge;
use crate::order::{Kind, Wish};
use crate::process::Life;
use crate::world::{PAGE_BYTES_MIN, World};

/// Kills a process at `failpoint`, and judges what the next one makes of it.
pub(crate) async fn killed_at(engine: Engine, failpoint: &'static Failpoint, kind: Kind) {
    match failpoint.stage {
        Stage::Creating => killed_while_creating(engine, failpoint, kind).await,
        Stage::Opening => killed_while_opening(engine, failpoint, kind).await,
        Stage::Serving(_) | Stage::Renewing => killed_while_serving(engine, failpoint, kind).await,
        Stage::Sweeping => killed_while_sweeping(engine, failpoint, kind).await,
        Stage::Reaping => killed_while_reaping(engine, failpoint, kind).await,
        Stage::Checkpointing => killed_while_checkpointing(engine, failpoint, kind).await,
    }
}

/// P05, R01, U03, U04, X05, E01, E02, E03, E04, E07
async fn killed_while_serving(engine: Engine, failpoint: &Failpoint, kind: Kind) {
    let mut world = World::on(engine, kind).await;
    answered_and_killed(&mut world).await;
    die(&mut world, failpoint).await;
    judge(&mut world).await;
}

/// E01, E02, E03, E04: a file or a schema that was not finished is finished by the next process.
async fn killed_while_creating(engine: Engine, failpoint: &Failpoint, kind: Kind) {
    let mut world = World::on(engine, kind).await;
    die(&mut world, failpoint).await;
    judge(&mut world).await;
}

/// E01, U03: what a dead process left running lapses once, also where the one that finds it dies too.
async fn killed_while_opening(engine: Engine, failpoint: &Failpoint, kind: Kind) {
    let mut world = World::on(engine, kind).await;
    answered_and_killed(&mut world).await;
    let victim = world.ready(Life::USUAL).await;
    world.kill_while_working(victim).await;
    die(&mut world, failpoint).await;
    judge(&mut world).await;
}

/// M01, U03, E03, E04
async fn killed_while_sweeping(engine: Engine, failpoint: &Failpoint, kind: Kind) {
    let mut world = World::on(engine, kind).await;
    answered_and_killed(&mut world).await;
    die(&mut world, failpoint).await;
    judge(&mut world).await;
}

/// M02, P05, E03, E04: what has not expired is still replayed, and what has expired is no more.
async fn killed_while_reaping(engine: Engine, failpoint: &Failpoint, kind: Kind) {
    let mut world = World::on(engine, kind).await;
    die(&mut world, failpoint).await;
    judge(&mut world).await;
}

/// E01, P05
async fn killed_while_checkpointing(engine: Engine, failpoint: &Failpoint, kind: Kind) {
    let mut world = World::on(engine, kind).await;
    world.page_bytes = PAGE_BYTES_MIN;
    answered_and_killed(&mut world).await;
    die(&mut world, failpoint).await;
    judge(&mut world).await;
}

/// Somebody was answered before, and must be answered the same after.
async fn answered_and_killed(world: &mut World) {
    let victim = world.ready(Life::USUAL).await;
    world.acknowledge(&victim, Wish::None).await;
    victim.kill().await;
}
