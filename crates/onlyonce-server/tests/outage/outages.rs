//! Every way in which a database can be unavailable.

use std::time::Duration;

use onlyonce_testkit::engines::postgres::Stop;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{self, Answer};
use crate::gateway::PATIENCE;
use crate::judge::judge;
use crate::ledger::HELD;
use crate::load::Load;
use crate::world::{STORE_TIMEOUT, World, until};

/// Orders whose work is done while the database is away.
const HELD_ORDERS: usize = 4;
/// So many must have been served before the outage, and after it.
const SERVED_MIN: usize = 60;
/// So many must have been refused in it, and for so long it lasts at least.
const REFUSED_MIN: usize = 30;
const LASTS: Duration = Duration::from_secs(3);
/// How often the database is asked for a connection while the breaker is open: one caller a second, and what looks at
/// its health; and before that, once for every place of the pools.
const ASKED_BEFORE: u64 = 24;
const ASKED_PER_SECOND: u64 = 6;

/// What `/readyz` must say of the store meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Failed,
    Stalled,
    /// Failed, but for what finds room in the pages that are there.
    Full,
}

/// X01, X02, X03, O04
#[tokio::test(flavor = "multi_thread")]
async fn stopped_and_started() {
    let world = World::new().await;
    let breaks = async |world: &World| world.server.stop(Stop::Fast);
    outage("stopped", world, Told::Failed, breaks, async |world| world.server.start_again()).await;
}

/// X01, X02, X03, O04
#[tokio::test(flavor = "multi_thread")]
async fn killed_and_started() {
    let world = World::new().await;
    let breaks = async |world: &World| world.server.kill();
    outage("killed", world, Told::Failed, breaks, async |world| world.server.start_again()).await;
}

/// X01, X02, X03, O04: a slow store is told from a failed one.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_and_thawed() {
    let world = World::new().await;
    let breaks = async |world: &World| world.server.freeze();
    outage("frozen", world, Told::Stalled, breaks, async |world| world.server.thaw()).await;
}

/// O04: a database that is slow is told from one that is away: requests are served, and the gateway is ready.
#[tokio::test(flavor = "multi_thread")]
async fn slow_and_quick() {
    let (world, ()) = World::with(&[], Duration::from_secs(10), |_| {}).await;
    world.wire.slow_down(Duration::from_millis(150));
    until("it is slow", async || world.gateway.readiness().await == (true, "slow".to_owned())).await;
    let answer = client::retry(world.gateway.address, "k", PATIENCE).await;
    assert_eq!((answer.status, world.ledger.charges("k")), (201, 1), "{answer:?}");
    world.wire.mend();
    until("it is quick", async || world.gateway.readiness().await == (true, "ok".to_owned())).await;
}

/// X01, X02, X03, O04
#[tokio::test(flavor = "multi_thread")]
async fn read_only_and_writable() {
    let world = World::new().await;
    let breaks = async |world: &World| set(world, "default_transaction_read_only = on");
    let repair = async |world: &World| set(world, "default_transaction_read_only = off");
    outage("read-only", world, Told::Failed, breaks, repair).await;
}

fn set(world: &World, setting: &str) {
    world.server.sql(&format!("ALTER SYSTEM SET {setting}"));
    world.server.sql("SELECT pg_reload_conf()");
}

/// X01, X02, X03, O04: all connections are somebody else's.
#[tokio::test(flavor = "multi_thread")]
async fn out_of_connections() {
    // All but those that are kept for superusers.
    const ALL: usize = 30;
    let settings = [("max_connections", "33"), ("superuser_reserved_connections", "3")];
    let (world, ()) = World::with(&settings, STORE_TIMEOUT, |_| {}).await;
    let hogs = std::sync::Mutex::new(Vec::new());
    let breaks = async |world: &World| {
        let port = world.server.port();
        let url = format!("host=127.0.0.1 port={port} user=gateway password=gateway dbname=postgres");
        until("every connection is taken", async || {
            while let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await {
                tokio::spawn(connection);
                hogs.lock().unwrap().push(client);
            }
            let sql =
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onlyonce'";
            // Attempts that are about to be refused take a place too, also one of the superuser's: then it is tried again.
            let ended = world.server.psql("postgres").args(["-c", sql]).output().unwrap();
            ended.status.success() && hogs.lock().unwrap().len() == ALL
        })
        .await;
    };
    outage("out of connections", world, Told::Failed, breaks, async |_| hogs.lock().unwrap().clear()).await;
}

/// X01, X02, X03, O04
#[tokio::test(flavor = "multi_thread")]
async fn out_of_disk() {
    let (world, _) = World::with(&[], STORE_TIMEOUT, |server| {
        let disk = server.mount_disk(24);
        server.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.display()));
        server.sql(
            "GRANT CREATE ON TABLESPACE small TO gateway; ALTER ROLE gateway SET default_tablespace = small",
        );
    })
    .await;
    let filler = std::sync::Mutex::new(None);
    let breaks = async |world: &World| *filler.lock().unwrap() = Some(world.server.fill_disk());
    let repair = async |_: &World| std::fs::remove_file(filler.lock().unwrap().take().unwrap()).unwrap();
    outage("out of disk", world, Told::Full, breaks, repair).await;
}

/// Serves, breaks, refuses, repairs, serves; then everything is judged.
pub(crate) async fn outage(
    what: &str,
    mut world: World,
    told: Told,
    breaks: impl AsyncFnOnce(&World),
    repair: impl AsyncFnOnce(&World),
) {
    let load = Load::start(world.gateway.address);
    until("it serves", async || load.count(Answer::is_stored) >= SERVED_MIN).await;
    assert!(world.gateway.readiness().await.0, "it is ready, if not quick");
    let held = hold(&world).await;

    breaks(&world).await;
    let broken_at = Instant::now();
    let asked_before = world.wire.asked();
    let refused_before = load.count(Answer::is_unavailable);
    until("it refuses", async || load.count(Answer::is_unavailable) >= refused_before + REFUSED_MIN).await;
    world.ledger.release();
    let held = not_stored(what, held, told).await;
    until("it lasts", async || broken_at.elapsed() >= LASTS).await;
    not_ready(&world, told).await;
    not_hammered(&world, &load, asked_before, broken_at);
    let errors = world.gateway.counted("onlyonce_store_errors_total", &[]).await;
    let refused = world.gateway.counted("onlyonce_requests_total", &["store_unavailable"]).await;
    assert!(errors > 0.0 && refused > 0.0, "{errors} errors and {refused} refusals are counted");

    repair(&world).await;
    let served_before = load.count(Answer::is_stored);
    until("it serves again", async || load.count(Answer::is_stored) >= served_before + SERVED_MIN).await;
    until("it is ready again", async || world.gateway.readiness().await.0).await;
    let heard = load.stop().await;
    for (key, first) in held {
        let again = client::retry(world.gateway.address, &key, PATIENCE).await;
        assert!(again.is_replay() && again.body == first.body, "{key}: {first:?}, then {again:?}");
        assert_eq!(world.ledger.charges(&key), 1, "{key}");
    }
    judge(&mut world, what, heard, REFUSED_MIN).await;
}

type Held = JoinSet<(String, Answer)>;

/// Orders that the service has done and not answered.
async fn hold(world: &World) -> Held {
    let mut orders = JoinSet::new();
    for number in 0..HELD_ORDERS {
        let (to, key) = (world.gateway.address, format!("{HELD}{number}"));
        orders.spawn(async move {
            let answer = client::pay(to, &key).await;
            (key, answer)
        });
    }
    for number in 0..HELD_ORDERS {
        world.ledger.charged(&format!("{HELD}{number}")).await;
    }
    orders
}

/// X03: the clients of these have their answer, and are told that it is not stored.
async fn not_stored(what: &str, orders: Held, told: Told) -> Vec<(String, Answer)> {
    let answers = orders.join_all().await;
    for (key, answer) in &answers {
        assert_eq!(answer.status, 201, "{what}: {key}: {answer:?}");
        assert!(told == Told::Full || !answer.is_stored(), "{what}: {key}: {answer:?}");
    }
    answers
}

async fn not_ready(world: &World, told: Told) {
    let expected = match told {
        Told::Failed | Told::Full => "failed",
        Told::Stalled => "stalled",
    };
    until(&format!("not ready, since the store is {expected}"), async || {
        world.gateway.readiness().await == (false, expected.to_owned())
    })
    .await;
}

/// X02: the breaker lets a caller through now and then, however many there are.
fn not_hammered(world: &World, load: &Load, asked_before: u64, broken_at: Instant) {
    let (asked, seconds) = (world.wire.asked() - asked_before, broken_at.elapsed().as_secs() + 1);
    let refused = load.count(Answer::is_unavailable);
    println!(
        "{refused} were refused in {seconds} s, and the database was asked {asked} times for a connection"
    );
    assert!(
        asked <= ASKED_BEFORE + ASKED_PER_SECOND * seconds,
        "it is hammered: {asked} times in {seconds} s"
    );
}
