//! Killed at any moment, with many orders under way.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::failpoints::Engine;
use crate::judge::judge_on;
use crate::order::{Answer, Kind, Lost, Order, Wish, retry};
use crate::process::Life;
use crate::world::World;

/// Set it to what a failed run printed, to have the same kills again.
const SEED: &str = "ONLYONCE_CRASH_SEED";
/// At least so many kills; more, up to four times as many, while too few orders were hit: where many share a commit, most
/// of them are before it or after it at once. On a server each round waits for the leases of the dead.
const fn rounds(engine: Engine) -> u64 {
    match engine {
        Engine::Sqlite => 12,
        Engine::Server(_) => 4,
    }
}

const CLIENTS: u64 = 50;
/// A process is killed after so many answers, at the latest.
const ANSWERS_MAX: u64 = 150;
/// And after so many milliseconds more, so that it is not always right after a commit.
const MORE_MS_MAX: u64 = 5;

/// So many orders must have been cut in the middle of their work, or the kills proved nothing.
const CUT_MIN: usize = 4;

/// P05, U03, E01, E02, E03, E04, E07
pub(crate) async fn killed_at_any_moment(engine: Engine) {
    let mut random = Random::seeded();
    let mut world = World::on(engine, Kind::Opaque).await;
    let (mut in_doubt, mut unfinished) = (0, 0);
    for round in 0..4 * rounds(engine) {
        if round >= rounds(engine) && unfinished >= CUT_MIN {
            break;
        }
        let (answers, more) = (1 + random.below(ANSWERS_MAX), random.below(MORE_MS_MAX));
        kill_under_load(&mut world, round, answers, Duration::from_millis(more)).await;
        let victim = world.ready(Life::USUAL).await;
        in_doubt += world.doubtful.len();
        judge_on(&mut world, &victim).await;
        unfinished += world.doubtful.iter().filter(|(order, _)| was_cut(&world, order)).count();
        world.doubtful.clear();
        // One of each round is asked for again to the end.
        world.acknowledged.truncate(usize::try_from(round).unwrap_or(usize::MAX) + 1);
        victim.kill().await;
    }
    eprintln!("{in_doubt} orders were under way, {unfinished} of them were cut in the middle of their work");
    assert!(unfinished >= CUT_MIN, "too few orders were hit: the run is void");
}

/// Whether an order that may run again has: then its first run was cut in the middle.
fn was_cut(world: &World, order: &Order) -> bool {
    world.ledger.calls(&order.key).len() > 1
}

/// Many clients, each with one order after the other, until the process is gone.
async fn kill_under_load(world: &mut World, round: u64, answers: u64, more: Duration) {
    let victim = world.ready(Life::USUAL).await;
    let (answered, mut answers_seen) = mpsc::unbounded_channel();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(order_until_lost(victim.address, round, client, answered.clone()));
    }
    drop(answered);
    for _ in 0..answers {
        let (order, answer) = answers_seen.recv().await.expect("clients go on until the process is gone");
        world.hear(order, answer);
    }
    tokio::time::sleep(more).await;
    victim.kill().await;
    while let Some(lost) = clients.join_next().await {
        world.doubtful.push((lost.expect("a client does not panic"), None));
    }
    while let Some((order, answer)) = answers_seen.recv().await {
        world.hear(order, answer);
    }
}

/// The order whose answer did not come.
async fn order_until_lost(
    to: std::net::SocketAddr,
    round: u64,
    client: u64,
    answered: mpsc::UnboundedSender<(Order, Answer)>,
) -> Order {
    for number in 0.. {
        let kind = Kind::ALL[usize::try_from((client + number) % 4).expect("below four")];
        let order = Order { kind, key: format!("load-{round}-{client}-{number}"), wish: Wish::None };
        match retry(to, &order).await {
            Err(Lost) => return order,
            Ok(answer) => {
                // The driver reads until every client has ended.
                let _ = answered.send((order, answer));
            }
        }
    }
    unreachable!("a client ends with its connection")
}

/// SplitMix64: the same kills from the same seed.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let given = std::env::var(SEED).ok().map(|seed| seed.parse().expect("the seed is a number"));
        let seed = given.unwrap_or_else(rand::random);
        eprintln!("{SEED}={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
