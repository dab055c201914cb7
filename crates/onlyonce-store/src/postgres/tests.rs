//! How the server carries the statements out: by index, whatever the size of the table.

use std::fmt::Write as _;

use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::SimpleQueryMessage;

use super::*;
use crate::postgres::statement::Verb;

/// Enough that reading all of them is not the server's first choice.
const ROWS: u32 = 30_000;

/// A schema with its tables, and how its pools plan.
struct Subject {
    store: Postgres,
    statements: Statements,
    schema: String,
}

impl Subject {
    async fn new() -> Self {
        let url = Server::shared().fresh_schema();
        let store = Postgres::open(&url, Options::default()).await.unwrap();
        store.prepare().await.unwrap();
        let schema = store.place.schema.clone();
        Self { statements: Statements::new(&store.place.quoted_schema()), store, schema }
    }

    /// As a busy store has them: nearly all completed, a few of each other state.
    fn fill(&self) {
        let schema = &self.schema;
        Server::shared().sql(&format!(
            "INSERT INTO {schema}.onlyonce_record
             SELECT sha256(n::text::bytea), n, clock_timestamp(), clock_timestamp() + (n - 100) * interval '1 second',
                    coalesce((ARRAY['pending', 'running', 'retryable', 'unknown'])[n % 500 + 1], 'completed'),
                    '\\x01', NULL, 'k' || n, NULL, sha256(n::text::bytea)
             FROM generate_series(1, {ROWS}) AS n;
             INSERT INTO {schema}.onlyonce_due (state, due_at, ids)
             SELECT state, due_at, ARRAY[id] FROM {schema}.onlyonce_record;
             UPDATE {schema}.onlyonce_record SET look_at = clock_timestamp() + interval '9 s' WHERE revision % 100 = 0"
        ));
        Server::shared().sql(&format!(
            "INSERT INTO {schema}.onlyonce_outbox (key, destination, payload, due_at)
             SELECT 'm' || n, 'billing', '', clock_timestamp() + (n - 100) * interval '1 second'
             FROM generate_series(1, {ROWS}) AS n"
        ));
        for table in ["record", "due", "outbox"] {
            Server::shared().sql(&format!("ANALYZE {schema}.onlyonce_{table}"));
        }
    }

    /// The plan that connections of this pool make.
    async fn plan(&self, pool: &Pool, verb: Verb) -> String {
        let client = pool.connect().await.unwrap().into_client();
        let sql = self.statements.sql(verb);
        client.batch_execute(&format!("PREPARE verb AS {sql}")).await.unwrap();
        let given = Some(arguments(verb)).filter(|given| !given.is_empty());
        let given = given.map(|given| format!("({given})")).unwrap_or_default();
        let explained = client.simple_query(&format!("EXPLAIN EXECUTE verb{given}")).await.unwrap();
        let mut plan = String::new();
        for message in &explained {
            if let SimpleQueryMessage::Row(row) = message {
                writeln!(plan, "{}", row.get(0).unwrap_or_default()).unwrap();
            }
        }
        plan
    }
}

/// Some of each kind, as SQL.
fn arguments(verb: Verb) -> String {
    let id = "'\\x0102'::bytea";
    let hundred = |kind: &str, value: &str| format!("array_fill({value}::{kind}, ARRAY[100])");
    let ids = hundred("bytea", id);
    let row = "NULL, '9 s', 'running'";
    match verb {
        Verb::Load | Verb::Confirm => id.to_owned(),
        Verb::LoadMany => format!("{ids}, 65536"),
        Verb::Epoch | Verb::RaiseEpoch | Verb::Count | Verb::LoneIsDue => String::new(),
        Verb::Insert => format!("{id}, 1, '9 s', 'running', {id}, NULL, 'k', NULL, {id}, '9 s'"),
        Verb::InsertInFull => {
            format!("{id}, 1, {row}, {id}, NULL, 'k', NULL, {id}, 1, ARRAY['m'], ARRAY['d'], ARRAY[{id}]")
        }
        Verb::Update => format!("{id}, 1, 2, '9 s', 'completed', NULL, NULL, {id}"),
        Verb::UpdateInFull => {
            format!("{id}, 1, 2, {row}, NULL, NULL, {id}, 1, ARRAY['m'], ARRAY['d'], ARRAY[{id}]")
        }
        Verb::Batch | Verb::CarefulBatch => [
            ids.clone(),
            hundred("bigint", "2"),
            hundred("text", "'k'"),
            hundred("bytea", id),
            hundred("timestamptz", "NULL"),
            hundred("interval", "'9 s'"),
            hundred("text", "'running'"),
            hundred("bytea", id),
            hundred("text", "NULL"),
            hundred("text", "NULL"),
            ["NULL"; 6].join(", "),
            ids,
            hundred("bigint", "1"),
            hundred("bigint", "2"),
            hundred("bytea", id),
            hundred("timestamptz", "NULL"),
            hundred("interval", "'9 s'"),
            hundred("text", "'completed'"),
            hundred("text", "NULL"),
            hundred("text", "NULL"),
            hundred("boolean", "true"),
            ["NULL"; 6].join(", "),
            "1".to_owned(),
        ]
        .join(", "),
        Verb::ById => format!("{id}, NULL, 100, NULL"),
        Verb::ByState => format!("'unknown', {id}, NULL, 100"),
        Verb::Listed => "'running', NULL, 0, 64".to_owned(),
        Verb::Due => format!("{ids}, 'running', NULL"),
        Verb::LoadDue => format!("{ids}, ARRAY['running', 'completed']"),
        Verb::ListAnew => format!("'new', '2000-01-01', '2000-01-02', {}", hundred("bigint", "1")),
        Verb::ListDone => format!("'2000-01-01', '2000-01-02', {}, '2000-01-03'", hundred("bigint", "1")),
        Verb::ListLone => "128".to_owned(),
        Verb::Delete | Verb::DeleteAndKeep => format!("{ids}, {}", hundred("bigint", "1")),
        Verb::Archived => format!("{id}, 10"),
        Verb::Claim => format!("{id}, '9 s', 10"),
        Verb::Deliver => format!("'m', {id}"),
        Verb::Retry => format!("'m', {id}, '9 s', 'busy'"),
        Verb::Bury => format!("'m', {id}, 'gone'"),
        Verb::DeadLetters => "10".to_owned(),
    }
}

const HOT: [Verb; 9] = [
    Verb::Load,
    Verb::Confirm,
    Verb::LoadMany,
    Verb::Insert,
    Verb::Update,
    Verb::InsertInFull,
    Verb::UpdateInFull,
    Verb::Batch,
    Verb::CarefulBatch,
];

/// E02: also on an empty table, where reading all of it looks cheap; the plan may be used long after it has grown.
#[tokio::test(flavor = "multi_thread")]
async fn hot_statements_go_by_the_primary_key_on_a_table_of_any_size() {
    let subject = Subject::new().await;
    for is_filled in [false, true] {
        if is_filled {
            subject.fill();
        }
        for verb in HOT {
            let plan = subject.plan(&subject.store.front, verb).await;
            assert!(!plan.contains("Seq Scan on onlyonce_record"), "{verb:?}, filled: {is_filled}\n{plan}");
            assert!(plan.contains("onlyonce_record_pkey"), "{verb:?}, filled: {is_filled}\n{plan}");
            // Nor the whole of its index, which no id is looked up in.
            let [scans, lookups] =
                ["using onlyonce_record_pkey", "Index Cond: (id = "].map(|part| plan.matches(part).count());
            assert_eq!(scans, lookups, "{verb:?}, filled: {is_filled}\n{plan}");
            assert!(!plan.contains("JIT"), "{verb:?}\n{plan}");
        }
    }
}

/// M01, M02: what is due is found without reading the rest.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_on_behind_the_requests_goes_by_index() {
    let subject = Subject::new().await;
    subject.fill();
    for (verb, index) in [
        (Verb::Listed, "onlyonce_due_pkey"),
        (Verb::Due, "onlyonce_record_pkey"),
        (Verb::LoadDue, "onlyonce_record_pkey"),
        (Verb::ListAnew, "onlyonce_due_pkey"),
        (Verb::ListAnew, "onlyonce_record_pkey"),
        (Verb::ListDone, "onlyonce_due_pkey"),
        (Verb::LoneIsDue, "onlyonce_record_by_look"),
        (Verb::ListLone, "onlyonce_record_by_look"),
        (Verb::ListLone, "onlyonce_record_pkey"),
        (Verb::ByState, "onlyonce_due_pkey"),
        (Verb::ByState, "onlyonce_record_by_look"),
        (Verb::ByState, "onlyonce_record_pkey"),
        (Verb::ById, "onlyonce_record_pkey"),
        (Verb::Delete, "onlyonce_record_pkey"),
        (Verb::DeleteAndKeep, "onlyonce_record_pkey"),
        (Verb::Claim, "onlyonce_outbox_by_due"),
        (Verb::Deliver, "onlyonce_outbox_key_key"),
        (Verb::Retry, "onlyonce_outbox_key_key"),
        (Verb::Bury, "onlyonce_outbox_key_key"),
        (Verb::DeadLetters, "onlyonce_outbox_by_due"),
    ] {
        let plan = subject.plan(&subject.store.behind, verb).await;
        assert!(plan.contains(index), "{verb:?}\n{plan}");
        assert!(!plan.contains("Seq Scan"), "{verb:?}\n{plan}");
    }
}

/// Every verb has its own place, or one statement would be sent for another.
#[test]
fn every_verb_has_its_own_place() {
    for (place, verb) in Verb::ALL.into_iter().enumerate() {
        assert_eq!(verb as usize, place);
    }
}

/// A future that is handed to an `async fn` has its room twice: that is soon ten thousand bytes for each write to allocate.
#[tokio::test]
async fn a_write_under_way_takes_little_room() {
    const BYTES_MAX: usize = 4_500;
    let subject = Subject::new().await;
    let bytes = size_of_val(&write::together(&subject.store.front, Vec::new()));
    assert!(bytes <= BYTES_MAX, "{bytes}");
}
