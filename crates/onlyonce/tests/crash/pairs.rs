//! Two deaths: the process that recovers from the first dies as well.

use crate::death::{Death, die, die_or_live};
use crate::failpoints::{Engine, Failpoint, Stage};
use crate::judge::judge;
use crate::order::Kind;
use crate::process::Life;
use crate::world::{PAGE_BYTES_MIN, World};

/// Every pair of steps. A file is created once: whoever dies later does not die creating it.
pub(crate) fn all(engine: Engine) -> impl Iterator<Item = (&'static Failpoint, &'static Failpoint)> {
    let all = engine.failpoints();
    let pairs = all.clone().flat_map(move |first| all.clone().map(move |second| (first, second)));
    pairs.filter(|(first, second)| first.stage == Stage::Creating || second.stage != Stage::Creating)
}

/// P05, U03, U04
pub(crate) async fn killed_twice(
    engine: Engine,
    first: &'static Failpoint,
    second: &'static Failpoint,
    kind: Kind,
) {
    let mut world = World::on(engine, kind).await;
    if [first.stage, second.stage].contains(&Stage::Checkpointing) {
        world.page_bytes = PAGE_BYTES_MIN;
    }
    if first.stage == Stage::Opening {
        let victim = world.ready(Life::USUAL).await;
        world.kill_while_working(victim).await;
    }
    die(&mut world, first).await;
    let death = die_or_live(&mut world, second).await;
    assert!(death == Death::AtTheStep || !comes_there(first, second), "{} was never reached", second.name);
    judge(&mut world).await;
}

/// Whether the second life surely comes to its step: what the first has done already is not done again, and an attempt
/// of the dead lapses once.
fn comes_there(first: &Failpoint, second: &Failpoint) -> bool {
    match second.stage {
        Stage::Creating => {
            let is_first =
                second.name == "sqlite.create.before" || second.name.ends_with(".migrate.before:1");
            first.name == second.name && is_first && second.name != "sqlite.migrate.before:1"
        }
        Stage::Opening => second.step() == "sqlite.open.ready" || first.leaves_running(),
        Stage::Serving(_) | Stage::Renewing | Stage::Sweeping | Stage::Reaping | Stage::Checkpointing => true,
    }
}
