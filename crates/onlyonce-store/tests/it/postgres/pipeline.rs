//! Two batches in flight on one connection: the second is sent while the first is executed.

use std::fs;
use std::future::poll_fn;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use onlyonce_core::record::{Effects, Revision};
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Error, ErrorKind, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

use crate::sqlite::world::{draft, id, running};

/// Whatever takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// As large as a batch gets: it goes behind the first whatever its pace.
const SECOND: usize = 256;
const FIRST: usize = 200;
/// Of many keys, so many are looked at.
const SAMPLE: usize = 3;

type Writing = JoinHandle<Result<Swapped, Error>>;

/// A store on a schema where a row whose key begins with `held` or `lone` is inserted only once that gate is open, and where it is
/// noted which process of the server inserted a row.
struct World<'a> {
    store: Arc<Postgres>,
    server: &'a Server,
    schema: String,
    lone: AtomicUsize,
}

/// Two batches on their way: the server works on the first, and has not yet read the second.
struct UnderWay {
    first: Vec<Writing>,
    second: Vec<Writing>,
    process: i32,
}

impl<'a> World<'a> {
    async fn new(server: &'a Server, options: Options) -> Self {
        let url = server.fresh_schema();
        let schema = url.split_once("schema=").unwrap().1.to_owned();
        let store = Postgres::open(&format!("{url}&application_name={schema}"), options).await.unwrap();
        store.prepare().await.unwrap();
        server.sql(&format!(
            "CREATE TABLE {schema}.gate (name text);
             CREATE TABLE {schema}.seen (key text, process integer);
             CREATE FUNCTION {schema}.pass() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN
                 WHILE NOT EXISTS (SELECT FROM {schema}.gate WHERE name = split_part(NEW.key, '-', 1)) LOOP
                     PERFORM pg_sleep(0.005);
                 END LOOP;
                 RETURN NEW;
             END $$;
             CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO {schema}.seen VALUES (NEW.key, pg_backend_pid()); RETURN NULL; END $$;
             CREATE TRIGGER pass BEFORE INSERT ON {schema}.onlyonce_record
                 FOR EACH ROW WHEN (NEW.key LIKE 'held-%' OR NEW.key LIKE 'lone-%') EXECUTE FUNCTION {schema}.pass();
             CREATE TRIGGER note AFTER INSERT ON {schema}.onlyonce_record
                 FOR EACH ROW EXECUTE FUNCTION {schema}.note()"
        ));
        Self { store: Arc::new(store), server, schema, lone: AtomicUsize::new(0) }
    }

    fn open(&self, gate: &str) {
        // Also where a standby is away.
        self.sql(&format!(
            "SET synchronous_commit = local; INSERT INTO {}.gate VALUES ('{gate}')",
            self.schema
        ));
    }

    fn close(&self, gate: &str) {
        self.sql(&format!("DELETE FROM {}.gate WHERE name = '{gate}'", self.schema));
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(sql)
    }

    /// Inserts a record, and comes back when that has been handed in.
    async fn write(&self, key: &str) -> Writing {
        let (store, (id, next)) = (self.store.clone(), draft(key, Effects::Opaque, running()));
        let change = Change::new(None, Revision(2), next);
        let mut writing = Box::pin(async move { store.swap(id, change).await });
        poll_fn(|context| {
            assert!(writing.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        tokio::spawn(writing)
    }

    async fn write_all(&self, keys: impl Iterator<Item = String>) -> Vec<Writing> {
        let mut all = Vec::new();
        for key in keys {
            all.push(self.write(&key).await);
        }
        all
    }

    /// Beside two lone writes nothing goes; what waits for them goes as one batch.
    async fn batch(&self, keys: impl Iterator<Item = String>) -> Vec<Writing> {
        self.close("lone");
        let number = self.lone.fetch_add(2, Ordering::Relaxed);
        let lone = self.write_all((number..number + 2).map(|number| format!("lone-{number}"))).await;
        let batch = self.write_all(keys).await;
        self.open("lone");
        all_applied(lone).await;
        batch
    }

    /// A batch that the server works on until its gate is opened, and by which process.
    async fn held(&self, rows: usize) -> (Vec<Writing>, i32) {
        let writings = self.batch(keys("held", rows)).await;
        let executes = format!(
            "SELECT pid FROM pg_stat_activity WHERE application_name = '{}' AND wait_event = 'PgSleep'",
            self.schema
        );
        let process = until("the batch is executed", || self.value(&executes)).await;
        (writings, process)
    }

    async fn two_under_way(&self) -> UnderWay {
        let (first, process) = self.held(FIRST).await;
        let second = self.write_all(keys("next", SECOND)).await;
        let port = self.value(&format!("SELECT client_port FROM pg_stat_activity WHERE pid = {process}"));
        let (server, port) = (self.server.port(), port.expect("it comes by TCP"));
        until("the second is sent", || (unread(server, port) > 0).then_some(())).await;
        assert!(first.iter().chain(&second).all(|writing| !writing.is_finished()));
        UnderWay { first, second, process }
    }

    /// What one asks for, where it is there already.
    fn value<T: FromStr>(&self, sql: &str) -> Option<T> {
        self.sql(sql).parse().ok()
    }

    /// A batch goes, on another connection than this.
    async fn goes_on_without(&self, process: i32) {
        all_applied(self.batch(keys("later", SAMPLE)).await).await;
        let other = self.processes("later").parse::<i32>().expect("it is one batch");
        assert_ne!(other, process);
    }

    /// Which processes of the server have inserted these.
    fn processes(&self, like: &str) -> String {
        self.sql(&format!("SELECT DISTINCT process FROM {}.seen WHERE key LIKE '{like}-%'", self.schema))
    }

    async fn are_absent(&self, keys: impl Iterator<Item = String>) {
        for key in keys {
            assert_eq!(self.store.load(id(&key)).await.unwrap(), None, "{key}");
        }
    }
}

fn keys(name: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |number| format!("{name}-{number}"))
}

async fn until<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
    let over = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = holds() {
            return value;
        }
        assert!(Instant::now() < over, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many bytes have come to the server on a connection of ours that it has not read.
fn unread(server: u16, client: u16) -> usize {
    let all = fs::read_to_string("/proc/net/tcp").unwrap();
    let (server, client) = (format!(":{server:04X}"), format!(":{client:04X}"));
    let fields = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut ours = fields.filter(|fields| fields[1].ends_with(&server) && fields[2].ends_with(&client));
    let queues = ours.next().expect("the connection is there")[4];
    usize::from_str_radix(queues.split_once(':').unwrap().1, 16).unwrap()
}

async fn answered(writing: Writing) -> Result<Swapped, Error> {
    tokio::time::timeout(PATIENCE, writing).await.expect("everybody is answered").unwrap()
}

async fn all_applied(writings: Vec<Writing>) {
    for writing in writings {
        let swapped = answered(writing).await;
        assert!(matches!(swapped, Ok(Swapped::Applied(_))), "{swapped:?}");
    }
}

async fn all_unknown(writings: Vec<Writing>) {
    for writing in writings {
        let error = answered(writing).await.unwrap_err();
        assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Unavailable, false), "{error}");
    }
}

fn patient() -> Options {
    Options { lock_wait: PATIENCE, statement_timeout: PATIENCE, ..Options::default() }
}

/// E02, E07
#[tokio::test(flavor = "multi_thread")]
async fn the_next_batch_is_sent_while_the_one_before_is_executed() {
    let world = World::new(Server::shared(), patient()).await;
    let under_way = world.two_under_way().await;
    world.open("held");
    all_applied(under_way.first).await;
    all_applied(under_way.second).await;
    let process = under_way.process.to_string();
    assert_eq!((world.processes("held"), world.processes("next")), (process.clone(), process));
}

/// E02: refused, or held up by somebody else's insert; the one behind it goes all the same, on the same connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_fails_leaves_the_one_behind_it_as_it_is() {
    for (code, is_told) in [("P0001", true), ("55P03", true), ("40001", false)] {
        let world = World::new(Server::shared(), patient()).await;
        // Once on the pipeline, and where the batch is to fail for good, again where it goes alone.
        world.server.sql(&format!(
            "CREATE SEQUENCE {schema}.times;
             CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN
                 IF {is_told} OR nextval('{schema}.times') = 1 THEN
                     RAISE EXCEPTION 'not this one' USING ERRCODE = '{code}';
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON {schema}.onlyonce_record
                 FOR EACH ROW WHEN (NEW.key = 'held-1') EXECUTE FUNCTION {schema}.refuse()",
            schema = world.schema
        ));
        let UnderWay { mut first, second, process } = world.two_under_way().await;
        world.open("held");
        all_applied(second).await;
        assert_eq!(world.processes("next"), process.to_string());
        if is_told {
            let error = answered(first.remove(1)).await.unwrap_err();
            assert!(error.to_string().contains("not this one") && error.wrote_nothing(), "{error}");
            world.are_absent(["held-1".to_owned()].into_iter()).await;
        }
        all_applied(first).await;
    }
}

/// X05: nobody is told what nobody knows, and the next batch has a connection again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_is_cut_leaves_both_batches_unknown_and_the_next_one_goes() {
    let world = World::new(Server::shared(), patient()).await;
    let UnderWay { first, second, process } = world.two_under_way().await;
    world.server.sql(&format!("SELECT pg_terminate_backend({process})"));
    all_unknown(first).await;
    all_unknown(second).await;
    world.are_absent(keys("held", SAMPLE).chain(keys("next", SAMPLE))).await;
    world.goes_on_without(process).await;
}

/// X05, P06: the second has waited behind the first, and for no longer than anybody waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_is_given_up_by_both_batches() {
    let server = Server::start(&[]).unwrap();
    let options = Options { statement_timeout: Duration::from_secs(1), ..Options::default() };
    let world = World::new(&server, options).await;
    let UnderWay { first, second, process } = world.two_under_way().await;
    server.freeze();
    all_unknown(first).await;
    all_unknown(second).await;
    server.thaw();
    world.goes_on_without(process).await;
}

/// X05: the server commits the first without its standby, and says so; the second waits for the standby in its turn.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_standby_did_not_confirm_is_told_to_neither_batch_as_done() {
    let server = Server::start(&[]).unwrap();
    let standby = server.start_standby().unwrap();
    let options = Options { statement_timeout: Duration::from_secs(2), ..Options::default() };
    let world = World::new(&server, options).await;
    let UnderWay { first, second, process } = world.two_under_way().await;
    standby.freeze();
    world.open("held");
    let waits = || world.value::<i32>("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
    assert_eq!(until("the first waits for the standby", waits).await, process);
    server.sql(&format!("SELECT pg_cancel_backend({process})"));
    for writing in first {
        let error = answered(writing).await.unwrap_err();
        assert!(error.to_string().contains("the standby did not confirm the commit"), "{error}");
        assert!(!error.wrote_nothing(), "{error}");
    }
    all_unknown(second).await;
    for key in keys("held", SAMPLE) {
        let shown = world.store.load(id(&key)).await;
        assert!(shown.is_err(), "the standby does not have it: {shown:?}");
    }
    standby.thaw();
    for key in keys("held", SAMPLE).chain(keys("next", SAMPLE)) {
        let over = Instant::now() + PATIENCE;
        while !matches!(world.store.load(id(&key)).await, Ok(Some(_))) {
            assert!(Instant::now() < over, "it is confirmed, and shown");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    world.goes_on_without(process).await;
}

/// X05: on one thread, so that every task has noticed what its connection was told before this one goes on.
#[tokio::test]
async fn a_pipeline_that_was_closed_while_nobody_used_it_fails_no_batch() {
    let world = World::new(Server::shared(), patient()).await;
    let (watch, connection) = tokio_postgres::connect(&world.server.url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    all_applied(world.batch(keys("next", SAMPLE)).await).await;
    let process = world.processes("next").parse().expect("it is one batch");
    let close = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{}'",
        world.schema
    );
    // Each of them has been told so before it is no longer listed.
    until("all are closed", || (world.sql(&close) == "0").then_some(())).await;
    // What came before this answer has been noticed with it.
    watch.query("SELECT 1", &[]).await.unwrap();
    world.goes_on_without(process).await;
}

/// A store may outlive the runtime of its connections, and what was under way there comes to an end.
#[test]
fn a_pipeline_ends_with_its_runtime() {
    let runtime = || Runtime::new().unwrap();
    let (carries, other) = (runtime(), runtime());
    let world = carries.block_on(World::new(Server::shared(), patient()));
    let UnderWay { first, second, process } = carries.block_on(world.two_under_way());
    drop(carries);
    other.block_on(async {
        for writing in first.into_iter().chain(second) {
            assert!(writing.await.unwrap_err().is_cancelled());
        }
        world.goes_on_without(process).await;
    });
}
