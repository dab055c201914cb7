//! Due and expired records are found under concurrent changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use onlyonce_core::record::{Asking, Effects, Reason, Revision, State, StateName, StateSet};
use onlyonce_core::time::When;
use onlyonce_store::conformance::random::Random;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Count, Query, Store, Swapped};
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
}

fn unknown(ask_at: Option<When>) -> State<When> {
    State::Unknown {
        reason: Reason::Said,
        since: When::WRITE,
        asking: Asking::default(),
        ask_at,
        dead_letter: false,
    }
}

fn any_state(random: &mut Random) -> State<When> {
    let moment = When::AfterWrite(random.pick(&[Duration::ZERO, Duration::from_millis(3), HOUR]));
    random.pick(&[
        State::Running { lapses_at: moment },
        State::Pending { expires_at: moment },
        State::Retryable { retry_after: None, expires_at: moment, stuck_since: None },
        unknown(Some(moment)),
        unknown(None),
        completed(moment),
        completed(moment),
    ])
}

async fn due(store: &Postgres) -> usize {
    store.scan(Query::due(StateSet::ALL, 1_000)).await.unwrap().records.len()
}

/// M01, M02, P05: two nodes write, sweep and reap the same few records at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_is_found_whatever_happens_at_once() {
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
                due(&sweeps).await;
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
    is_over.store(true, Ordering::Release);
    for other in others {
        other.await.unwrap();
    }
    // What was given a few milliseconds has fallen due by now, and the database itself is asked what is due.
    world.sql("SELECT pg_sleep(0.005)");
    let count = |which: &str| world.sql(&format!("SELECT count(*) FROM onlyonce_record WHERE {which}"));
    assert_eq!(due(&nodes[0]).await.to_string(), count("due_at <= clock_timestamp()"));
    while nodes[1].reap(1_000).await.unwrap() > 0 {}
    assert_eq!(count("expires_at <= clock_timestamp() AND state IN ('completed', 'retryable')"), "0");
}

async fn write_anything(store: Arc<Postgres>, mut random: Random) -> u64 {
    let mut applied = 0;
    for _ in 0..WRITES {
        let key = format!("k{}", random.below(KEYS));
        let expected = store.load(id(&key)).await.unwrap().map(|seen| seen.revision);
        let (id, next) = draft(&key, Effects::Opaque, any_state(&mut random));
        let change = Change::new(expected, Revision(random.number()), next);
        applied += u64::from(matches!(store.swap(id, change).await.unwrap(), Swapped::Applied(_)));
    }
    applied
}

/// M02: an expired record that somebody holds is left to the next time, and the others go.
#[tokio::test(flavor = "multi_thread")]
async fn a_reaper_neither_waits_for_what_is_held_nor_comes_back_to_it_at_once() {
    const KEPT: u64 = 300;
    let (world, store) = World::new().await;
    for number in 0..KEPT {
        let done = completed(When::AfterWrite(Duration::ZERO));
        insert(&*store, draft(&format!("k{number}"), Effects::Opaque, done), number).await.unwrap();
    }
    let (other, connection) =
        tokio_postgres::connect(&Server::shared().url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let hold = format!("BEGIN; SELECT 1 FROM {}.onlyonce_record WHERE key = 'k7' FOR UPDATE", world.schema);
    other.batch_execute(&hold).await.unwrap();
    let reaped = tokio::time::timeout(Duration::from_secs(30), store.reap(1_000)).await;
    assert_eq!(reaped.expect("it comes to an end").unwrap(), usize::try_from(KEPT).unwrap() - 1);
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(store.reap(1_000).await.unwrap(), 1);
    assert_eq!(world.sql("SELECT count(*) FROM onlyonce_record"), "0");
}

/// M01, P05: a listing writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_never_writes() {
    let (world, store) = World::new().await;
    for key in ["a", "b"] {
        insert(&*store, draft(key, Effects::Opaque, running()), 1).await.unwrap();
    }
    // Who wrote and locked a row last, and where it lies.
    let rows = || world.sql("SELECT xmin, xmax, ctid, key FROM onlyonce_record ORDER BY key");
    let before = rows();
    for query in [Query::all(10), Query::due(StateSet::ALL, 10), Query::unknown_since(10)] {
        store.scan(query).await.unwrap();
    }
    store.count().await.unwrap();
    assert_eq!(rows(), before);
}

/// O02: beyond a bound records are no longer counted, and the number is said to be about right.
#[tokio::test(flavor = "multi_thread")]
async fn many_records_are_counted_about() {
    const MANY: u64 = 120_000;
    let (world, store) = World::new().await;
    insert(&*store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    let fill = format!(
        "INSERT INTO onlyonce_record (id, revision, scope, key, state, attempt, token, effects, retention_us, created_at,
             began_at, written_at, due_at, dead_letter, rest)
         SELECT sha256(n::text::bytea), n, scope, 'k' || n, 'completed', 1, token, effects, 1, created_at, began_at,
             written_at, due_at, false, '\\x01'
         FROM onlyonce_record CROSS JOIN generate_series(1, {MANY}) AS n"
    );
    world.sql(&fill);
    let counted = async |state: StateName| {
        let counts = store.count().await.unwrap();
        counts.into_iter().find(|(counted, _)| *counted == state).unwrap().1
    };
    let Count::About(at_least) = counted(StateName::Completed).await else { panic!("there are too many") };
    assert!((100_000..=2 * MANY).contains(&at_least), "{at_least}");
    world.sql("ANALYZE onlyonce_record");
    let Count::About(about) = counted(StateName::Completed).await else { panic!("there are too many") };
    assert!((MANY * 9 / 10..=MANY * 11 / 10).contains(&about), "{about}");
    assert_eq!(counted(StateName::Running).await, Count::Exact(1));
}
