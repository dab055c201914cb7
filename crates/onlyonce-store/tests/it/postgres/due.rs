//! The list of what is due: whatever happens, nothing that it must show is missing from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use onlyonce_core::record::{Effects, Reason, Revision, State, StateName};
use onlyonce_core::time::When;
use onlyonce_store::conformance::random::Random;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Query, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::NoTls;

use crate::sqlite::world::{HOUR, completed, draft, id, insert, running};

const WRITERS: u64 = 8;
const WRITES: u64 = 150;
const KEYS: u64 = 40;

struct World {
    schema: String,
    url: String,
}

impl World {
    async fn new() -> (Self, Arc<Postgres>) {
        let url = Server::shared().fresh_schema();
        let schema = url.split_once("schema=").unwrap().1.to_owned();
        let world = Self { schema, url };
        let store = world.node().await;
        store.prepare().await.unwrap();
        (world, store)
    }

    async fn node(&self) -> Arc<Postgres> {
        Arc::new(Postgres::open(&self.url, Options::default()).await.unwrap())
    }

    fn sql(&self, sql: &str) -> String {
        Server::shared().sql(&format!("SET search_path = {}; {sql}", self.schema))
    }

    /// Keys of records that are not listed as due.rs promises.
    fn missing(&self) -> String {
        self.sql(
            "SELECT record.key, record.state, record.due_at FROM onlyonce_record AS record
             WHERE (look_at <= due_at OR look_at IS NOT NULL AND due_at IS NULL) IS NOT TRUE AND NOT EXISTS (
                SELECT 1 FROM onlyonce_due AS due
                WHERE record.id = ANY(due.ids)
                  AND (record.state = 'completed' OR due.state IN ('new', record.state))
                  AND (due.due_at <= record.due_at OR record.due_at IS NULL))",
        )
    }

    /// How many list themselves.
    fn lone(&self) -> u32 {
        self.sql("SELECT count(*) FROM onlyonce_record WHERE look_at IS NOT NULL").parse().unwrap()
    }

    /// Whatever is listed is due now.
    fn all_is_due(&self) {
        self.sql(
            "UPDATE onlyonce_due SET due_at = '2000-01-01';
             UPDATE onlyonce_record SET look_at = '2000-01-01' WHERE look_at IS NOT NULL",
        );
    }

    fn listed_as(&self, state: &str) -> u32 {
        let sql =
            format!("SELECT coalesce(sum(cardinality(ids)), 0) FROM onlyonce_due WHERE state = '{state}'");
        self.sql(&sql).parse().unwrap()
    }
}

fn unknown(ask_at: Option<When>) -> State<When> {
    State::Unknown { reason: Reason::Said, since: When::WRITE, asked: 0, ask_at, dead_letter: false }
}

fn any_state(random: &mut Random) -> State<When> {
    let moment = When::AfterWrite(random.pick(&[Duration::ZERO, Duration::from_millis(3), HOUR]));
    random.pick(&[
        State::Running { lapses_at: moment },
        State::Pending { expires_at: moment },
        State::Retryable { retry_after: None, expires_at: moment },
        unknown(Some(moment)),
        unknown(None),
        completed(moment),
        completed(moment),
    ])
}

async fn due(store: &Postgres, state: Option<StateName>) -> usize {
    let query = Query { state, scope: None, only_due: true, after: None, limit: 1_000 };
    store.scan(query).await.unwrap().records.len()
}

/// M01, M02, P05: two nodes write, sweep and reap the same few records at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_and_what_will_expire_is_listed_whatever_happens_at_once() {
    let seed: u64 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos().into();
    println!("seed {seed}");
    let (world, first) = World::new().await;
    let nodes = [first, world.node().await];
    let is_over = Arc::new(AtomicBool::new(false));
    let mut others = Vec::new();
    for node in &nodes {
        let (sweeps, reaps) = (node.clone(), node.clone());
        let (swept, reaped) = (is_over.clone(), is_over.clone());
        others.push(tokio::spawn(async move {
            while !swept.load(Ordering::Acquire) {
                due(&sweeps, None).await;
            }
        }));
        others.push(tokio::spawn(async move {
            while !reaped.load(Ordering::Acquire) {
                reaps.reap(50).await.unwrap();
            }
        }));
    }
    let writers = (0..WRITERS).map(|number| {
        let node = nodes[usize::try_from(number).unwrap() % nodes.len()].clone();
        tokio::spawn(write_anything(node, Random::new(seed + number)))
    });
    let mut applied = 0;
    for writer in writers.collect::<Vec<_>>() {
        applied += writer.await.unwrap();
    }
    assert!(applied > WRITERS * WRITES / 4, "only {applied} writes applied: they hardly met");
    assert_eq!(world.missing(), "");
    is_over.store(true, Ordering::Release);
    for other in others {
        other.await.unwrap();
    }
    assert_eq!(world.missing(), "");
    // And it shows what is there: the database itself is asked what is due.
    let count = |which: &str| world.sql(&format!("SELECT count(*) FROM onlyonce_record WHERE {which}"));
    let found = due(&nodes[0], None).await.to_string();
    assert_eq!(found, count("due_at <= clock_timestamp()"));
    while nodes[1].reap(1_000).await.unwrap() > 0 {}
    assert_eq!(count("due_at <= clock_timestamp() AND state IN ('completed', 'retryable')"), "0");
}

async fn write_anything(store: Arc<Postgres>, mut random: Random) -> u64 {
    let mut applied = 0;
    for _ in 0..WRITES {
        let key = format!("k{}", random.below(KEYS));
        let expected = store.load(id(&key)).await.unwrap().map(|seen| seen.revision);
        let (id, next) = draft(&key, Effects::Opaque, any_state(&mut random));
        let change = Change { expected, revision: Revision(random.number()), next, messages: Vec::new() };
        applied += u64::from(matches!(store.swap(id, change).await.unwrap(), Swapped::Applied(_)));
    }
    applied
}

/// E02: a completion leaves every index alone, and what is completed is moved to where its expiry is looked for.
#[tokio::test(flavor = "multi_thread")]
async fn completions_are_hot_and_their_records_wait_where_the_reaper_looks() {
    let (world, store) = World::new().await;
    let requests: Vec<_> = (0..400)
        .map(|number: u64| {
            let (store, key) = (store.clone(), format!("k{number}"));
            tokio::spawn(async move {
                let reserved = draft(&key, Effects::Opaque, running());
                let expected = Some(insert(&*store, reserved, number).await.unwrap().revision);
                let (id, next) = draft(&key, Effects::Opaque, completed(When::AfterWrite(HOUR)));
                let change =
                    Change { expected, revision: Revision(1_000 + number), next, messages: Vec::new() };
                assert!(matches!(store.swap(id, change).await.unwrap(), Swapped::Applied(_)));
            })
        })
        .collect();
    for request in requests {
        request.await.unwrap();
    }
    // The first had nobody to go with.
    let lone = world.lone();
    assert!((1..40).contains(&lone), "{lone} lone writes");
    assert_eq!(world.listed_as("new"), 400 - lone);
    // The node that completed them knows.
    assert_eq!(due(&store, None).await, 0);
    assert_eq!((world.listed_as("new"), world.listed_as("completed")), (0, 400 - lone));
    // And so does whoever looks, when that node is gone.
    world.sql("UPDATE onlyonce_due SET state = 'new'");
    world.all_is_due();
    drop(store);
    let store = world.node().await;
    assert_eq!(due(&store, None).await, 0);
    assert_eq!((world.listed_as("new"), world.listed_as("completed"), world.lone()), (0, 400, 0));
    let rows = world.sql("SELECT count(*) FROM onlyonce_due");
    assert!(rows.parse::<u32>().unwrap() <= 400 / 48 + 3, "{rows} rows for 400 records");
    drop(store);
    let hot =
        "SELECT coalesce(sum(n_tup_hot_upd) * 10 >= sum(n_tup_upd) * 7 AND sum(n_tup_upd) >= 400, false)
               FROM pg_stat_user_tables WHERE relname = 'onlyonce_record' AND schemaname = current_schema()";
    let mut is_hot = world.sql(hot);
    for _ in 0..100 {
        // The server tells what a session has done when that has ended.
        if is_hot == "t" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        is_hot = world.sql(hot);
    }
    assert_eq!(is_hot, "t", "{}", world.sql("SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables"));
}

/// M02: what a node knows to be done it tells by and by, so that little of it is looked into where the node dies.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_told_what_is_done_before_anybody_sweeps() {
    const CALLERS: u64 = 8;
    const KEYS_EACH: u64 = 250;
    let (world, store) = World::new().await;
    let callers = (0..CALLERS).map(|caller| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in 0..KEYS_EACH {
                let key = format!("k{caller}-{number}");
                let reserved = insert(&*store, draft(&key, Effects::Opaque, running()), 1).await.unwrap();
                let (id, next) = draft(&key, Effects::Opaque, completed(When::AfterWrite(HOUR)));
                let expected = Some(reserved.revision);
                let change = Change { expected, revision: Revision(2), next, messages: Vec::new() };
                assert!(matches!(store.swap(id, change).await.unwrap(), Swapped::Applied(_)));
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let rows = world.sql("SELECT count(*) FROM onlyonce_due").parse::<u32>().unwrap();
    assert!(rows > 300, "{rows} batches are too few to show anything");
    let mut told = world.listed_as("completed");
    for _ in 0..100 {
        if told > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        told = world.listed_as("completed");
    }
    assert!(told > 0, "nothing was told");
    assert_eq!(world.missing(), "");
}

/// M01, M02: records of before the list are found too.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_older_schema_holds_is_listed_when_it_is_migrated() {
    let (world, store) = World::new().await;
    let soon = When::AfterWrite(Duration::ZERO);
    for (key, state) in [
        ("lapsed", State::Running { lapses_at: soon }),
        ("runs", running()),
        ("expired", completed(soon)),
        ("kept", completed(When::AfterWrite(HOUR))),
        ("unknown", unknown(None)),
    ] {
        insert(&*store, draft(key, Effects::Opaque, state), 1).await.unwrap();
    }
    drop(store);
    world.sql(
        "DROP TABLE onlyonce_due; DELETE FROM onlyonce_migration WHERE number >= 5;
         ALTER TABLE onlyonce_record DROP COLUMN look_at;
         CREATE INDEX onlyonce_record_by_due ON onlyonce_record (state, due_at)",
    );
    let store = world.node().await;
    store.prepare().await.unwrap();
    assert_eq!(world.missing(), "");
    assert_eq!(due(&store, Some(StateName::Running)).await, 1);
    assert_eq!(store.reap(10).await.unwrap(), 1);
    let counts: Vec<u64> = store.count().await.unwrap().into_iter().map(|(_, count)| count).collect();
    assert_eq!(counts.iter().sum::<u64>(), 4);
    assert_eq!(world.missing(), "");
}

/// M02: a record that was unknown for long and is settled is found when it expires, though it is listed as unknown.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_settled_late_is_reaped() {
    let (world, store) = World::new().await;
    let seen = insert(&*store, draft("k", Effects::Opaque, unknown(None)), 1).await.unwrap();
    world.all_is_due();
    assert_eq!(due(&store, None).await, 0);
    assert_eq!(world.listed_as("unknown"), 1);
    let (id, next) = draft("k", Effects::Opaque, completed(When::AfterWrite(HOUR)));
    let change = Change { expected: Some(seen.revision), revision: Revision(2), next, messages: Vec::new() };
    store.swap(id, change).await.unwrap();
    assert_eq!((world.listed_as("new"), world.listed_as("unknown")), (0, 1));
    // An hour later.
    world.sql(
        "UPDATE onlyonce_due SET due_at = '2000-01-01'; UPDATE onlyonce_record SET due_at = '2000-01-01'",
    );
    assert_eq!(store.reap(10).await.unwrap(), 0, "it says itself that it has not expired");
    assert_eq!((world.listed_as("unknown"), world.listed_as("completed")), (0, 1));
}

/// M02: an expired record that somebody holds is left to the next time, and the others go.
#[tokio::test(flavor = "multi_thread")]
async fn a_reaper_neither_waits_for_what_is_held_nor_comes_back_to_it_at_once() {
    let (world, store) = World::new().await;
    for number in 0..30 {
        let done = completed(When::AfterWrite(Duration::ZERO));
        insert(&*store, draft(&format!("k{number}"), Effects::Opaque, done), number).await.unwrap();
    }
    let (other, connection) =
        tokio_postgres::connect(&Server::shared().url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let hold = format!("BEGIN; SELECT 1 FROM {}.onlyonce_record WHERE key = 'k7' FOR UPDATE", world.schema);
    other.batch_execute(&hold).await.unwrap();
    let reaped = tokio::time::timeout(Duration::from_secs(30), store.reap(100)).await;
    assert_eq!(reaped.expect("it comes to an end").unwrap(), 29);
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(store.reap(100).await.unwrap(), 1);
    assert_eq!(world.sql("SELECT count(*) FROM onlyonce_record"), "0");
}
