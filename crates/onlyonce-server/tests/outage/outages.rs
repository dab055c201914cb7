//! Every way in which a database can be unavailable.

use std::time::Duration;

use onlyonce_testkit::engines::postgres;
use onlyonce_testkit::engines::server::{Engine, Owned, Server};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{self, Answer};
use crate::gateway::PATIENCE;
use crate::judge::judge;
use crate::ledger::HELD;
use crate::load::Load;
use crate::world::{STORE_TIMEOUT, World, on_every_server, prepared, started, until};

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
/// On DynamoDB each call that cannot be sent asks for a connection twice, and the sweeper's look at what is due is sixteen calls.
const ASKED_BY_A_SWEEPER: u64 = 32;

/// What `/readyz` must say of the store meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Failed,
    Stalled,
    /// Failed, but for what finds room, or was reserved before.
    Full,
}

/// X01, X02, X03, O04, E03, E04
async fn stopped_and_started(engine: Engine) {
    let breaks = async |world: &World| world.server().stop();
    let repair = async |world: &World| world.server().start_again();
    outage("stopped", World::new(engine).await, Told::Failed, breaks, repair).await;
}

/// X01, X02, X03, O04, E03, E04
async fn killed_and_started(engine: Engine) {
    let breaks = async |world: &World| world.server().kill();
    let repair = async |world: &World| world.server().start_again();
    outage("killed", World::new(engine).await, Told::Failed, breaks, repair).await;
}

/// X01, X02, X03, O04, E03, E04: a slow store is told from a failed one.
async fn frozen_and_thawed(engine: Engine) {
    let breaks = async |world: &World| world.server().freeze();
    let repair = async |world: &World| world.server().thaw();
    outage("frozen", World::new(engine).await, Told::Stalled, breaks, repair).await;
}

/// X01, X02, X03, O04, E03, E04: it can be asked, and takes no write.
async fn read_only_and_writable(engine: Engine) {
    let breaks = async |world: &World| read_only(world.server(), true);
    let repair = async |world: &World| read_only(world.server(), false);
    outage("read-only", World::new(engine).await, Told::Failed, breaks, repair).await;
}

fn read_only(server: Server<'_>, is_on: bool) {
    match server {
        Server::Postgres(server) => {
            let setting = if is_on { "on" } else { "off" };
            server.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {setting}"));
            server.sql("SELECT pg_reload_conf()");
        }
        Server::Mysql(server) => drop(server.sql("", &format!("SET GLOBAL read_only = {}", u8::from(is_on)))),
        // A master that lacks its replicas.
        Server::Redis(server) => {
            let replicas = if is_on { "1" } else { "0" };
            server.command(&["CONFIG", "SET", "min-replicas-to-write", replicas]);
        }
        Server::Dynamodb(_) => unreachable!("it cannot be read-only"),
    }
}

/// X01, X02, X03, O04, E03, E04: its password is another one, and its connections are ended.
async fn locked_out_and_let_in(engine: Engine) {
    let breaks = async |world: &World| password(world, "another");
    let repair = async |world: &World| password(world, "gateway");
    let server = started(engine);
    let store = match server.server() {
        server @ (Server::Postgres(_) | Server::Mysql(_) | Server::Dynamodb(_)) => prepared(server),
        Server::Redis(server) => {
            server.command(&["ACL", "SETUSER", "gateway", "on", ">gateway", "~{gateway*", "+@all"]);
            format!("{}?prefix=gateway", server.url_of("gateway:gateway@"))
        }
    };
    let world = World::on(server, store, STORE_TIMEOUT).await;
    outage("locked out", world, Told::Failed, breaks, repair).await;
}

fn password(world: &World, password: &str) {
    match world.server() {
        Server::Postgres(server) => {
            server.sql(&format!("ALTER ROLE gateway PASSWORD '{password}'"));
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gateway'");
        }
        Server::Mysql(server) => {
            server.sql("", &format!("ALTER USER gateway IDENTIFIED BY '{password}'; KILL USER gateway"));
        }
        Server::Redis(server) => {
            server.command(&["ACL", "SETUSER", "gateway", "resetpass", &format!(">{password}")]);
            server.command(&["CLIENT", "KILL", "USER", "gateway"]);
        }
        // Its keys are not the gateway's any more.
        Server::Dynamodb(server) => {
            let refuses = r#""count":1000000,"status":400,"type":"UnrecognizedClientException""#;
            let fault = if password == "gateway" { r#""clear":true"# } else { refuses };
            server.fault(world.store(), fault);
        }
    }
}

/// X01, X02, X03, O04, E03, E04: there is no room for new records; what finds room in the pages that are there, or was reserved before,
/// completes.
async fn full_and_emptied(engine: Engine) {
    const MEGABYTES: u32 = 24;
    let server = started(engine);
    let world = match server.server() {
        Server::Postgres(postgres) => {
            let disk = postgres.mount_disk(MEGABYTES);
            postgres.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.display()));
            let store = prepared(server.server());
            postgres.sql("GRANT CREATE ON TABLESPACE small TO gateway; ALTER ROLE gateway SET default_tablespace = small");
            World::on(server, store, STORE_TIMEOUT).await
        }
        Server::Mysql(mysql) => {
            let store = mysql.url(mysql.mount_database(MEGABYTES));
            World::on(server, store, STORE_TIMEOUT).await
        }
        Server::Redis(_) | Server::Dynamodb(_) => World::with(server, STORE_TIMEOUT).await,
    };
    let filler = std::sync::Mutex::new(None);
    let fill = async |world: &World| match world.server() {
        Server::Postgres(server) => *filler.lock().unwrap() = Some(server.fill_disk()),
        Server::Mysql(server) => *filler.lock().unwrap() = Some(server.fill_disk()),
        Server::Redis(server) => drop(server.command(&["CONFIG", "SET", "maxmemory", "1"])),
        Server::Dynamodb(_) => unreachable!("it cannot be full"),
    };
    let empty = async |world: &World| match world.server() {
        Server::Postgres(_) | Server::Mysql(_) => {
            std::fs::remove_file(filler.lock().unwrap().take().unwrap()).unwrap();
        }
        Server::Redis(server) => drop(server.command(&["CONFIG", "SET", "maxmemory", "0"])),
        Server::Dynamodb(_) => unreachable!("it cannot be full"),
    };
    outage("full", world, Told::Full, fill, empty).await;
}

/// O04: a database that is slow is told from one that is away: requests are served, and the gateway is ready.
async fn slow_and_quick(engine: Engine) {
    let world = World::shared(engine, Duration::from_secs(10)).await;
    world.wire.slow_down(Duration::from_millis(150));
    until("it is slow", async || world.gateway.readiness().await == (true, "slow".to_owned())).await;
    let answer = client::retry(world.gateway.address, "k", PATIENCE).await;
    assert_eq!((answer.status, world.ledger.charges("k")), (201, 1), "{answer:?}");
    world.wire.mend();
    until("it is quick", async || world.gateway.readiness().await == (true, "ok".to_owned())).await;
}

// DynamoDB has no disk to fill, and no state in which it can be read and not written.
on_every_server!({
    stopped_and_started,
    killed_and_started,
    frozen_and_thawed,
    locked_out_and_let_in,
    slow_and_quick,
}, and not on DynamoDB: {
    read_only_and_writable,
    full_and_emptied,
});

/// X01, X02, X03, O04: all connections are somebody else's. PostgreSQL's alone: a node on Redis has three connections for all time.
#[tokio::test(flavor = "multi_thread")]
async fn out_of_connections() {
    // All but those that are kept for superusers.
    const ALL: usize = 30;
    let settings = [("max_connections", "33"), ("superuser_reserved_connections", "3")];
    let server =
        postgres::Server::start(&settings).unwrap_or_else(|reason| panic!("no PostgreSQL: {reason}"));
    let world = World::with(Owned::Postgres(server), STORE_TIMEOUT).await;
    let hogs = std::sync::Mutex::new(Vec::new());
    let breaks = async |world: &World| {
        let port = world.server().port();
        let url = format!("host=127.0.0.1 port={port} user=gateway password=gateway dbname=postgres");
        until("every connection is taken", async || {
            while let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await {
                tokio::spawn(connection);
                hogs.lock().unwrap().push(client);
            }
            let sql =
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onlyonce'";
            // Attempts that are about to be refused take a place too, also one of the superuser's: then it is tried again.
            let ended = world.postgres().psql("postgres").args(["-c", sql]).output().unwrap();
            ended.status.success() && hogs.lock().unwrap().len() == ALL
        })
        .await;
    };
    outage("out of connections", world, Told::Failed, breaks, async |_| hogs.lock().unwrap().clear()).await;
}

/// Serves, breaks, refuses, repairs, serves; then everything is judged.
pub(crate) async fn outage(
    what: &str,
    mut world: World,
    told: Told,
    breaks: impl AsyncFnOnce(&World),
    repair: impl AsyncFnOnce(&World),
) {
    let load = Load::start(world.gateway.address, world.server().engine());
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
    let per_second = match world.server().engine() {
        Engine::Postgres | Engine::Mysql | Engine::Redis => ASKED_PER_SECOND,
        Engine::Dynamodb => ASKED_PER_SECOND + ASKED_BY_A_SWEEPER,
    };
    println!(
        "{refused} were refused in {seconds} s, and the database was asked {asked} times for a connection"
    );
    assert!(asked <= ASKED_BEFORE + per_second * seconds, "it is hammered: {asked} times in {seconds} s");
}
