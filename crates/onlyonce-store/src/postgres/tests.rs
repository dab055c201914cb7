//! Query plans: by index, whatever the size of the table.

use std::fmt::Write as _;

use onlyonce_core::machine;
use onlyonce_core::record::StateSet;
use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::SimpleQueryMessage;

use super::*;

/// Enough rows that the planner does not prefer a full scan.
const ROWS: u32 = 30_000;

/// A schema with its tables and pools.
struct Subject {
    store: Postgres,
    schema: String,
}

impl Subject {
    async fn new() -> Self {
        let url = Server::shared().fresh_schema();
        let store = Postgres::open(&url, Options::default()).await.unwrap();
        store.prepare().await.unwrap();
        let schema = store.database.schema.clone();
        Self { store, schema }
    }

    /// Rows as in a busy store: nearly all completed, half of those expired, a few in each other state.
    fn fill(&self) {
        let schema = &self.schema;
        Server::shared().sql(&format!(
            "INSERT INTO {schema}.onlyonce_record
                 (id, revision, scope, key, state, attempt, token, effects, retention_us, created_at, began_at, written_at,
                  due_at, unknown_since, dead_letter, rest)
             SELECT sha256(n::text::bytea), n, '\\x01', 'k' || n,
                    coalesce((ARRAY['pending', 'running', 'retryable', 'unknown'])[n % 500 + 1], 'completed'),
                    1, '\\x01', 'opaque', 1, clock_timestamp(), clock_timestamp(), clock_timestamp(),
                    clock_timestamp() + (n - {ROWS} / 2) * interval '1 second',
                    CASE WHEN n % 500 = 3 THEN clock_timestamp() END, false, sha256(n::text::bytea)
             FROM generate_series(1, {ROWS}) AS n;
             INSERT INTO {schema}.onlyonce_outbox (key, destination, payload, state, due_at, delivered_at, group_key)
             SELECT 'm' || n, 'billing', '', coalesce((ARRAY['waiting', 'claimed', 'dead'])[n % 500 + 1], 'delivered'),
                    clock_timestamp() + (n - {ROWS} / 2) * interval '1 second', clock_timestamp(), 'g' || n
             FROM generate_series(1, {ROWS}) AS n;
             INSERT INTO {schema}.onlyonce_audit (id, at, who, role, via, action, scope, key, forced, result)
             SELECT n::text, clock_timestamp() - n * interval '1 second', 'ann', 'operate', 'api', 'verdict',
                    encode(sha256((n % 100)::text::bytea), 'hex'), 'k' || n, false, 'applied'
             FROM generate_series(1, {ROWS}) AS n;
             INSERT INTO {schema}.onlyonce_result
             SELECT sha256((n / 2)::text::bytea), n % 2, clock_timestamp(), 'charged', '1'
             FROM generate_series(1, {ROWS}) AS n;
             INSERT INTO {schema}.onlyonce_request
             SELECT sha256(n::text::bytea), clock_timestamp(), 'sealed', NULL FROM generate_series(1, {ROWS}) AS n;
             INSERT INTO {schema}.onlyonce_archive
                 (archived_at, id, revision, scope, key, state, attempt, token, effects, retention_us, created_at, began_at,
                  written_at, dead_letter, rest)
             SELECT written_at, id, revision, sha256((attempt + revision % 100)::text::bytea), key, state, attempt, token,
                    effects, retention_us, created_at, began_at, written_at, dead_letter, rest
             FROM {schema}.onlyonce_record"
        ));
        for table in ["record", "result", "request", "outbox", "audit", "archive"] {
            Server::shared().sql(&format!("VACUUM ANALYZE {schema}.onlyonce_{table}"));
        }
    }

    /// The plan on connections of this pool.
    async fn plan(&self, pool: &Pool, verb: Verb) -> String {
        let connection = pool.connect().await.unwrap();
        let sql = verb.sql(&self.store.database.quoted_schema());
        connection.client.batch_execute(&format!("PREPARE verb AS {sql}")).await.unwrap();
        let given = match self.arguments(verb) {
            none if none.is_empty() => none,
            some => format!("({some})"),
        };
        let explained = connection.simple_query(&format!("EXPLAIN EXECUTE verb{given}")).await.unwrap();
        let mut plan = String::new();
        for message in &explained {
            if let SimpleQueryMessage::Row(row) = message {
                writeln!(plan, "{}", row.get(0).unwrap_or_default()).unwrap();
            }
        }
        plan
    }

    /// Sample arguments, as SQL.
    fn arguments(&self, verb: Verb) -> String {
        let id = "'\\x0102'::bytea";
        let hundred = |kind: &str, value: &str| format!("array_fill({value}::{kind}, ARRAY[100])");
        let states = |states: StateSet| {
            let names: Vec<_> = states.iter().map(|state| format!("'{state}'")).collect();
            format!("ARRAY[{}]", names.join(", "))
        };
        let write = |verb: Verb| {
            let values = verb.parameters().iter().map(|(_, kind)| match *kind {
                "bytea" => ("bytea", id),
                "text" => ("text", "'running'"),
                "bigint" => ("bigint", "1"),
                "integer" => ("integer", "201"),
                "boolean" => ("boolean", "false"),
                "interval" => ("interval", "'9 s'"),
                kind => (kind, "NULL"),
            });
            values.collect::<Vec<_>>()
        };
        let lone =
            |verb| write(verb).iter().map(|(_, value)| (*value).to_owned()).collect::<Vec<_>>().join(", ");
        let many = |verb| {
            write(verb).iter().map(|(kind, value)| hundred(kind, value)).collect::<Vec<_>>().join(", ")
        };
        // The filter of a listing: none, and one that hardly anything passes.
        let all = "NULL, NULL, NULL, false, NULL, NULL, NULL, NULL";
        let nothing = "NULL, '\\x02', 'POST /', true, 'order', 'order', '\\x02', '\\x03'";
        match verb {
            Verb::Load | Verb::Confirm => id.to_owned(),
            Verb::LoadMany => hundred("bytea", id),
            Verb::Insert | Verb::Update => lone(verb),
            Verb::InsertMany | Verb::UpdateMany => many(verb),
            Verb::ById => format!("{nothing}, {id}, '\\x60'::bytea, 51"),
            Verb::ExaminedById => format!("{id}, 9999"),
            Verb::OfStates => format!("{nothing}, {id}, ARRAY['running', 'unknown'], 20000, 51"),
            Verb::Due => format!("{all}, '-infinity', {id}, {}, 100", states(machine::EXPIRING)),
            Verb::UnknownSince => format!("{nothing}, '-infinity', {id}, 'infinity', {id}, 51"),
            Verb::ExaminedUnknown => format!("'-infinity', {id}, 9999"),
            Verb::PendingSince => format!("{nothing}, '-infinity', {id}, 'infinity', {id}, 51"),
            Verb::ExaminedPending => format!("'-infinity', {id}, 9999"),
            Verb::Archive => format!("{all}, 0, 9999, 51"),
            Verb::ExaminedArchive => "0, 9999".to_owned(),
            Verb::Count => format!("{}, 1001, '{}.onlyonce_record'", states(StateSet::ALL), self.schema),
            Verb::CountFew => format!("{}, 1001", states(StateSet::ALL)),
            Verb::AliveOfScope => format!("{id}, 1001"),
            Verb::Alive => "1001".to_owned(),
            Verb::Log => "'infinity', 0, '-infinity', 0, 'ann', 'verdict', NULL, 'k', 51".to_owned(),
            Verb::ExaminedLog => "'infinity', 0, '-infinity', 0, 9999".to_owned(),
            Verb::DeleteEntries => "'1 day', 100".to_owned(),
            Verb::BlankEntries => "'ab', 100".to_owned(),
            Verb::EraseArchived => format!("{id}, 100"),
            Verb::Archived => format!("{id}, 9"),
            Verb::Results => format!("{id}, '-infinity'"),
            Verb::DropResults | Verb::DropRequest => id.to_owned(),
            Verb::Request => format!("{id}, '-infinity'"),
            Verb::CountRequests => "100".to_owned(),
            Verb::PutRequests => {
                let many = hundred("bytea", id);
                format!("{many}, {}, {many}, {many}", hundred("bigint", "1"))
            }
            Verb::DropRequests => format!("{}, {}", hundred("bytea", id), hundred("bigint", "1")),
            Verb::Delete | Verb::DeleteAndKeep | Verb::Erase => {
                format!("{}, {}", hundred("bytea", id), hundred("bigint", "1"))
            }
            Verb::Claim => format!(
                "{id}, ARRAY['billing', 'mail'], ARRAY[8, 8], ARRAY[8, 8], ARRAY[interval '9 s', '9 s'], ARRAY['mail']"
            ),
            Verb::Deliver => format!("7, {id}, NULL"),
            Verb::DeliverMany => {
                format!("{}, {}, {}", hundred("bigint", "7"), hundred("bytea", id), hundred("text", "'p'"))
            }
            Verb::Retry => format!("7, {id}, 503, 'busy', '9 s', true"),
            Verb::Bury => format!("7, {id}, 410, 'gone'"),
            Verb::Wake => "'billing', 'g'".to_owned(),
            Verb::PassDead => "'billing'".to_owned(),
            Verb::Messages => "ARRAY[1, 2, 3]".to_owned(),
            Verb::MessagesByNumber
            | Verb::MessagesDead
            | Verb::MessagesByFirstDue
            | Verb::MessagesDelivered => "'-infinity', 0, 51".to_owned(),
            Verb::Payload => "7".to_owned(),
            Verb::Redrive | Verb::Discard => format!("7, {}, false", vec!["'x'"; 16].join(", ")),
            Verb::Prune => "'1 day', 100".to_owned(),
            Verb::CountMessages => format!("1001, '{}.onlyonce_outbox'", self.schema),
            Verb::OldestMessage => String::new(),
            Verb::AddResult
            | Verb::PutRequest
            | Verb::Note
            | Verb::Send
            | Verb::Epoch
            | Verb::RaiseEpoch
            | Verb::Settings => {
                panic!("its plan is of no interest")
            }
        }
    }
}

const HOT: [Verb; 7] = [
    Verb::Load,
    Verb::Confirm,
    Verb::LoadMany,
    Verb::Insert,
    Verb::Update,
    Verb::InsertMany,
    Verb::UpdateMany,
];

/// E02: also on an empty table, where a full scan looks cheap; the plan may be reused after it has grown.
#[tokio::test(flavor = "multi_thread")]
async fn hot_statements_go_by_the_primary_key_on_a_table_of_any_size() {
    let subject = Subject::new().await;
    for is_filled in [false, true] {
        if is_filled {
            subject.fill();
        }
        for verb in HOT {
            let plan = subject.plan(&subject.store.requests, verb).await;
            assert!(!plan.contains("Seq Scan on onlyonce_record"), "{verb:?}, filled: {is_filled}\n{plan}");
            assert!(plan.contains("onlyonce_record_pkey"), "{verb:?}, filled: {is_filled}\n{plan}");
            // Nor a full scan of its index, without looking up an id.
            let [scans, lookups] =
                ["using onlyonce_record_pkey", "Index Cond: (id = "].map(|part| plan.matches(part).count());
            assert_eq!(scans, lookups, "{verb:?}, filled: {is_filled}\n{plan}");
            assert!(!plan.contains("JIT"), "{verb:?}\n{plan}");
        }
    }
}

/// M01, M02, O02: due and unknown records, and counts, are found without reading the rest.
#[tokio::test(flavor = "multi_thread")]
async fn background_work_goes_by_index() {
    let subject = Subject::new().await;
    subject.fill();
    for (verb, index) in [
        (Verb::ById, "Index Cond: ((id > '\\x0102'::bytea) AND (id <= '\\x60'::bytea))"),
        (Verb::ExaminedById, "Index Only Scan using onlyonce_record_pkey"),
        (Verb::OfStates, "onlyonce_record_by_due"),
        (Verb::Due, "onlyonce_record_by_due"),
        (Verb::UnknownSince, "onlyonce_record_by_unknown"),
        (Verb::ExaminedUnknown, "Index Only Scan using onlyonce_record_by_unknown"),
        (Verb::PendingSince, "onlyonce_record_by_pending"),
        (Verb::ExaminedPending, "Index Only Scan using onlyonce_record_by_pending"),
        (Verb::Archive, "onlyonce_archive_pkey"),
        (Verb::ExaminedArchive, "Index Only Scan using onlyonce_archive_pkey"),
        (Verb::Count, "onlyonce_record_by_due"),
        (Verb::CountFew, "Index Only Scan using onlyonce_record_by_due"),
        (Verb::Delete, "onlyonce_record_pkey"),
        (Verb::DeleteAndKeep, "onlyonce_record_pkey"),
        (Verb::Erase, "onlyonce_record_pkey"),
        (Verb::EraseArchived, "onlyonce_archive_by_scope"),
        (Verb::Archived, "onlyonce_archive_by_id"),
        (Verb::Results, "onlyonce_result_pkey"),
        (Verb::DropResults, "onlyonce_result_pkey"),
        (Verb::Request, "onlyonce_request_pkey"),
        (Verb::DropRequest, "onlyonce_request_pkey"),
        (Verb::CountRequests, "onlyonce_request_pkey"),
        (Verb::PutRequests, "onlyonce_record_pkey"),
        (Verb::DropRequests, "onlyonce_request_pkey"),
        (Verb::Log, "onlyonce_audit_by_time"),
        (Verb::ExaminedLog, "Index Only Scan Backward using onlyonce_audit_by_time"),
        (Verb::DeleteEntries, "onlyonce_audit_by_time"),
        (Verb::BlankEntries, "onlyonce_audit_by_scope"),
        (Verb::Claim, "onlyonce_outbox_by_due"),
        (Verb::Claim, "onlyonce_outbox_by_group"),
        (Verb::Claim, "onlyonce_outbox_one_at_a_time"),
        (Verb::Claim, "onlyonce_outbox_dead"),
        (Verb::Deliver, "onlyonce_outbox_pkey"),
        (Verb::DeliverMany, "onlyonce_outbox_pkey"),
        (Verb::Retry, "onlyonce_outbox_pkey"),
        (Verb::Bury, "onlyonce_outbox_pkey"),
        (Verb::Wake, "onlyonce_outbox_by_group"),
        (Verb::PassDead, "onlyonce_outbox_dead"),
        (Verb::Messages, "onlyonce_outbox_pkey"),
        (Verb::MessagesByNumber, "onlyonce_outbox_pkey"),
        (Verb::MessagesDead, "onlyonce_outbox_dead"),
        (Verb::MessagesByFirstDue, "onlyonce_outbox_by_first_due"),
        (Verb::MessagesDelivered, "onlyonce_outbox_delivered"),
        (Verb::Payload, "onlyonce_outbox_pkey"),
        (Verb::Redrive, "onlyonce_outbox_pkey"),
        (Verb::Discard, "onlyonce_outbox_pkey"),
        (Verb::Prune, "onlyonce_outbox_delivered"),
        (Verb::CountMessages, "onlyonce_outbox_by_first_due"),
        (Verb::CountMessages, "Index Only Scan using onlyonce_outbox_delivered"),
        (Verb::OldestMessage, "onlyonce_outbox_by_first_due"),
    ] {
        let is_of_relay =
            [Verb::Claim, Verb::Deliver, Verb::DeliverMany, Verb::Retry, Verb::Bury, Verb::Wake]
                .contains(&verb);
        let pool = if is_of_relay { &subject.store.requests } else { &subject.store.background };
        let plan = subject.plan(pool, verb).await;
        assert!(plan.contains(index), "{verb:?}\n{plan}");
        for table in ["record", "result", "outbox", "audit", "archive"] {
            assert!(!plan.contains(&format!("Seq Scan on onlyonce_{table}")), "{verb:?}\n{plan}");
        }
    }
}

/// L02: a scope is counted by the index that is made for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_scope_is_counted_by_index() {
    let subject = Subject::new().await;
    subject.fill();
    let before = subject.plan(&subject.store.requests, Verb::AliveOfScope).await;
    assert!(!before.contains("by_scope"), "nobody pays for what nobody asked for\n{before}");
    subject.store.prepare_counting().await.unwrap();
    for verb in [Verb::AliveOfScope, Verb::Alive] {
        let plan = subject.plan(&subject.store.requests, verb).await;
        assert!(plan.contains("using onlyonce_record_by_scope"), "{verb:?}\n{plan}");
        assert!(!plan.contains("Seq Scan on onlyonce_record"), "{verb:?}\n{plan}");
    }
}

/// M02: half of all records have expired, and only those with the same due time are sorted.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_is_read_in_the_order_of_the_index() {
    let subject = Subject::new().await;
    subject.fill();
    let plan = subject.plan(&subject.store.background, Verb::Due).await;
    assert!(plan.contains("Presorted Key: record.due_at"), "{plan}");
}
