//! The proof proven: violations that are planted, and must be noticed. A judge that never says no says nothing.

use crate::death::die;
use crate::failpoints::{ALL, Failpoint, Left, Stage};
use crate::judge::{judge, judge_on};
use crate::order::{Kind, Wish};
use crate::process::Life;
use crate::world::World;

/// A route that calls its opaque work keyed: after a crash it runs again, and charges twice.
pub(crate) async fn a_second_charge_is_noticed() {
    let said = refusal(async {
        let mut world = World::to_fail(Kind::Opaque).await;
        let victim = world.ready(Life::USUAL.with_a_lie()).await;
        world.kill_while_working(victim).await;
        let victim = world.ready(Life::USUAL.with_a_lie()).await;
        judge_on(&mut world, &victim).await;
    });
    assert!(said.await.contains("charged 2 times"));
}

/// A store that loses what it had, as one does that is not durable.
pub(crate) async fn a_forgotten_answer_is_noticed() {
    let said = refusal(async {
        let mut world = World::to_fail(Kind::Keyed).await;
        let victim = world.ready(Life::USUAL).await;
        world.acknowledge(&victim, Wish::None).await;
        victim.kill().await;
        for path in [world.file(), world.wal()] {
            std::fs::remove_file(path).expect("a killed process leaves its files");
        }
        judge(&mut world).await;
    });
    assert!(said.await.contains("answered before, and now"));
}

/// A scenario that kills nobody.
pub(crate) async fn a_step_never_reached_is_noticed() {
    let nowhere = Failpoint { name: "nowhere", stage: Stage::Serving(Left::Nothing) };
    assert!(ALL.iter().all(|failpoint| failpoint.name != nowhere.name));
    let said = refusal(async move {
        let mut world = World::to_fail(Kind::Local).await;
        die(&mut world, &nowhere).await;
    });
    assert!(said.await.contains("the failpoint was never reached"));
}

/// What a scenario that must fail said.
async fn refusal(scenario: impl Future<Output = ()> + Send + 'static) -> String {
    let failed = tokio::spawn(scenario).await.expect_err("the violation was not noticed");
    let said = failed.into_panic();
    said.downcast_ref::<String>().expect("a failed assertion says why").clone()
}
