//! Whoever delivers messages is killed around every durable step, and another takes over. The destination counts.
//!
//! | dies | must hold |
//! |---|---|
//! | before the claim commits | delivered once, as the first delivery |
//! | claimed, before the call | delivered once, as the second |
//! | during the call; answered, before settling | delivered twice, with one key, numbered on |
//! | settled | never again |
//! | told to stop, during the call | finished, settled, once |
//! | paused past its claim, another has delivered | its settling is refused; no third delivery |

use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use onlyonce::store::failpoint;
use onlyonce_testkit::engines::server::{self, Server};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::ledger::Ledger;
use crate::process::{Folder, PATIENCE, SIGNALS, Store};
use crate::{Effects, Engine};

/// Redis keeps no messages.
const ENGINES: &[Engine] = &[
    Engine::Sqlite,
    Engine::Server(server::Engine::Postgres),
    #[cfg(feature = "mysql")]
    Engine::Server(server::Engine::Mysql),
];

/// A store with a message, its destination, and the settings of who delivers.
struct World {
    store: Store,
    ledger: Arc<Ledger>,
    folder: Folder,
}

impl World {
    async fn new(engine: Engine) -> Self {
        let world = Self {
            store: Store::new(engine),
            ledger: Ledger::open(Effects::Keyed).await,
            folder: Folder::new(),
        };
        let settings = format!(
            "upstream = \"http://{address}\"\nstore = \"{store}\"\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
             [log]\nfilter = \"off\"\n[background]\nrelay_every = \"50ms\"\n\
             [destinations.ledger]\nurl = \"http://{address}/payments\"\ntimeout = \"2s\"\nprovider_id = \"json:/charge\"\n",
            address = world.ledger.address,
            store = world.store.url(),
        );
        std::fs::write(world.folder.0.join("onlyonce.toml"), settings).unwrap();
        let migrated = world.command("migrate").args(["--store", &world.store.url()]).output().await.unwrap();
        assert!(migrated.status.success(), "{migrated:?}");
        world.sql("INSERT INTO {t} ({k}, destination, payload) VALUES ('m', 'ledger', {b})");
        world
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onlyonce"));
        command.arg(verb).env_remove(failpoint::VARIABLE).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// A process that delivers, once it is ready.
    async fn start(&self, verb: &str, failpoint: Option<&str>) -> Life {
        let mut process = self
            .command(verb)
            .args(["--config", &self.folder.0.join("onlyonce.toml").display().to_string()])
            .envs(failpoint.map(|name| (failpoint::VARIABLE, name)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = timeout(PATIENCE, lines.next_line()).await.expect("it gets ready").unwrap();
        Life { process, ready: ready.unwrap_or_default() }
    }

    /// Delivers until nothing is due.
    async fn once(&self) -> Output {
        let config = self.folder.0.join("onlyonce.toml").display().to_string();
        let done = self.command("relay").args(["--config", &config, "--once"]).output();
        timeout(PATIENCE, done).await.expect("it ends").unwrap()
    }

    /// Runs SQL on the store, which nobody has open where it is a file. `{t}` is the table of messages, `{a}` the audit log, `{k}` the
    /// column of keys, `{b}` some bytes.
    fn sql(&self, sql: &str) -> String {
        let fill = |schema: &str, key: &str, bytes: &str| {
            let table = |name: &str| format!("{schema}{name}");
            let sql = sql.replace("{t}", &table("onlyonce_outbox")).replace("{a}", &table("onlyonce_audit"));
            sql.replace("{k}", key).replace("{b}", bytes)
        };
        match &self.store {
            Store::Sqlite(folder) => {
                let connection = rusqlite::Connection::open(folder.0.join("onlyonce.db")).unwrap();
                let sql = fill("", "key", "x'7b7d'");
                if sql.starts_with("SELECT") {
                    return connection.query_row(&sql, [], |row| row.get(0)).unwrap();
                }
                connection.execute(&sql, []).unwrap();
                String::new()
            }
            Store::Server { server: Server::Postgres(server), url, .. } => {
                let schema = url.rsplit('=').next().unwrap();
                server.sql(&fill(&format!("{schema}."), "key", "'{}'"))
            }
            Store::Server { server: Server::Mysql(server), url, .. } => {
                server.sql(url.rsplit('/').next().unwrap(), &fill("", "`key`", "x'7b7d'"))
            }
            Store::Server { server: Server::Redis(_) | Server::Dynamodb(_), .. } => {
                unreachable!("it keeps no messages")
            }
        }
    }

    /// How the message stands, the number of its deliveries, and the provider's id.
    fn stands(&self) -> String {
        self.sql(
            "SELECT concat(state, ' ', deliveries, ' ', coalesce(provider_id, '-')) FROM {t} WHERE {k} = 'm'",
        )
    }

    /// Another takes over, until the message is delivered.
    async fn taken_over(&self) {
        let until = Instant::now() + PATIENCE;
        while !self.stands().starts_with("delivered") {
            assert!(Instant::now() < until, "it is never delivered: {}", self.stands());
            let once = self.once().await;
            assert!(once.status.success(), "{once:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A process that delivers.
struct Life {
    process: Child,
    ready: String,
}

impl Life {
    async fn died(mut self) {
        let status = timeout(PATIENCE, self.process.wait()).await.expect("it dies").unwrap();
        let is_killed = status.signal().is_some_and(|signal| SIGNALS.contains(&signal));
        assert!(is_killed, "it was not killed but ended with {status}");
    }

    async fn kill(mut self) {
        self.process.start_kill().unwrap();
        self.died().await;
    }

    async fn signal(&self, name: &str) {
        let id = self.process.id().expect("it lives").to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().await.unwrap().success());
    }
}

/// W05, M03, E03: killed at each durable step, on every engine with messages; most of it is waiting for the claims of the dead.
#[tokio::test]
async fn a_message_is_delivered_wherever_the_relay_is_killed() {
    let steps: [(&str, &[u32], &str); 4] = [
        ("relay.claim.before", &[1], "delivered 1 1"),
        ("relay.claim.after", &[2], "delivered 2 1"),
        ("relay.settle.before", &[1, 2], "delivered 2 1"),
        ("relay.settle.after", &[1], "delivered 1 1"),
    ];
    let mut deaths = JoinSet::new();
    for engine in ENGINES.iter().copied() {
        for (step, deliveries, stands) in steps {
            deaths.spawn(async move {
                let world = World::new(engine).await;
                world.start("relay", Some(step)).await.died().await;
                world.taken_over().await;
                assert_eq!(world.ledger.deliveries("m"), deliveries, "{engine:?} {step}");
                assert_eq!(world.stands(), stands, "{engine:?} {step}");
                let again = world.once().await;
                assert_eq!(
                    String::from_utf8_lossy(&again.stdout),
                    "0 deliveries made\n",
                    "{engine:?} {step}"
                );
            });
        }
    }
    while let Some(death) = deaths.join_next().await {
        death.unwrap();
    }
}

/// W05, M03: killed from outside, while the destination is at work.
#[tokio::test]
async fn a_relay_that_is_killed_during_a_delivery_delivers_again_with_the_same_key() {
    let mut deaths = JoinSet::new();
    let lives = ENGINES.iter().copied().flat_map(|engine| [(engine, "relay"), (engine, "serve")]);
    for (engine, verb) in lives {
        deaths.spawn(async move {
            let world = World::new(engine).await;
            world.ledger.hold();
            let life = world.start(verb, None).await;
            timeout(PATIENCE, world.ledger.called("m")).await.expect("it delivers");
            life.kill().await;
            world.ledger.go_on();
            world.taken_over().await;
            assert_eq!(world.ledger.deliveries("m"), [1, 2], "{engine:?} {verb}");
            assert_eq!(world.ledger.charges("m"), 1, "the destination knows the key");
        });
    }
    while let Some(death) = deaths.join_next().await {
        death.unwrap();
    }
}

/// W05: what is under way when it is told to stop is finished and settled, once.
#[tokio::test]
async fn a_relay_that_is_told_to_stop_finishes_what_it_delivers() {
    for (engine, verb) in [(ENGINES[0], "serve"), (ENGINES[1], "serve"), (ENGINES[0], "relay")] {
        let world = World::new(engine).await;
        world.ledger.hold();
        let mut life = world.start(verb, None).await;
        timeout(PATIENCE, world.ledger.called("m")).await.expect("it delivers");
        life.signal("TERM").await;
        world.ledger.go_on();
        let status = timeout(PATIENCE, life.process.wait()).await.expect("it stops").unwrap();
        assert!(status.success(), "{engine:?} {verb}: {status}");
        assert_eq!((world.stands(), world.ledger.deliveries("m")), ("delivered 1 1".to_owned(), vec![1]));
    }
}

/// W05: a relay that was paused past its claim finds that another has delivered, and changes nothing.
#[tokio::test]
async fn a_relay_that_was_paused_past_its_claim_settles_nothing() {
    let world = World::new(ENGINES[1]).await;
    world.ledger.hold();
    let paused = world.start("relay", None).await;
    timeout(PATIENCE, world.ledger.called("m")).await.expect("it delivers");
    paused.signal("STOP").await;
    world.ledger.go_on();
    world.taken_over().await;
    assert_eq!(world.ledger.deliveries("m"), [1, 2]);
    let settled = world.stands();
    paused.signal("CONT").await;
    // It goes on delivering what comes next, so it has come to the end of the first.
    world.sql("INSERT INTO {t} ({k}, destination, payload) VALUES ('next', 'ledger', {b})");
    timeout(PATIENCE, world.ledger.called_times("next", 1)).await.expect("it goes on");
    let mut paused = paused;
    paused.signal("TERM").await;
    assert!(timeout(PATIENCE, paused.process.wait()).await.expect("it stops").unwrap().success());
    assert_eq!((world.stands(), world.ledger.deliveries("m")), (settled, vec![1, 2]));
}

/// O01, W06: a redrive and its entry in the audit log are both there, or neither.
#[tokio::test]
async fn a_redrive_that_is_cut_off_is_in_the_audit_log_or_was_not_made() {
    for engine in ENGINES.iter().copied() {
        for (step, is_made) in [("message.change.before", false), ("message.change.after", true)] {
            let world = World::new(engine).await;
            world.sql("UPDATE {t} SET state = 'dead', destination = 'nobody' WHERE {k} = 'm'");
            let life = world.start("serve", Some(step)).await;
            let admin = life.ready.split(" admin ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            let redrive = ["outbox", "redrive", "1", "--reason", "fixed", "--admin", admin];
            let cut_off = Command::new(env!("CARGO_BIN_EXE_onlyonce")).args(redrive).output().await.unwrap();
            assert_eq!(cut_off.status.code(), Some(2), "{cut_off:?}");
            life.died().await;
            let entries = world.sql("SELECT concat('', count(*)) FROM {a}");
            let expected = if is_made { ("1", "waiting 0 -") } else { ("0", "dead 0 -") };
            assert_eq!((&*entries, &*world.stands()), expected, "{engine:?} {step}");
        }
    }
}
