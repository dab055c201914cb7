//! Listings examine a bounded number of records, by index.

use onlyonce_core::record::{Revision, StateSet};
use rusqlite::Connection;

use super::super::audit;
use super::super::tests::{Folder, draft};
use super::*;
use crate::sqlite::Sqlite;
use crate::{Change, Cursor, Store};

/// More than two pages examine, and less than three.
const ROWS: usize = 2 * EXAMINED_MAX + 100;

/// A store with many completed records of which nothing but the filter's columns is read.
async fn filled(folder: &Folder) -> Arc<Sqlite> {
    let store = folder.open().await;
    let (id, next) = draft("template", 10);
    store.swap(id, Change::new(None, Revision(1), next)).await.unwrap();
    let others = COLUMNS.replacen("id, revision, scope, label, key,", "", 1);
    let fill = format!(
        "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {ROWS})
         INSERT INTO onlyonce_record ({COLUMNS})
         SELECT randomblob(32), n, zeroblob(32), 'acme ' || n, 'key ' || n, {others}
         FROM onlyonce_record, number"
    );
    let connection = Connection::open(folder.file()).unwrap();
    connection.execute(&fill, []).unwrap();
    store
}

async fn page(store: &Sqlite, query: &Query, after: Option<Cursor>) -> (usize, Option<Cursor>) {
    let page = store.scan(Query { after, ..query.clone() }).await.unwrap();
    (page.records.len(), page.next)
}

/// How many records each page shows.
async fn pages(store: &Sqlite, query: Query) -> Vec<usize> {
    let mut shown = Vec::new();
    let mut after = None;
    loop {
        let (count, next) = page(store, &query, after).await;
        shown.push(count);
        assert!(shown.len() <= ROWS, "the listing does not end");
        let Some(next) = next else { return shown };
        after = Some(next);
    }
}

fn searching(text: &str) -> Query {
    Query { search: Some(Search::new(text)), ..Query::all(50) }
}

/// O02: a page of a listing that hardly anything fits is short, and says where to go on.
#[tokio::test]
async fn a_narrowed_page_examines_no_more_than_its_bound() {
    let folder = Folder::new();
    let store = filled(&folder).await;
    let nothing = [
        searching("no such key"),
        Query { scope: Some([9; 32]), ..Query::all(50) },
        Query { route: Some("POST /nothing".into()), ..Query::all(50) },
        Query { dead_letter: true, ..Query::all(50) },
    ];
    for query in nothing {
        assert_eq!(pages(&store, query.clone()).await, [0, 0, 0], "{query:?}");
    }
    let (id, next) = draft("last", 10);
    store.swap(id, Change::new(None, Revision(1), next)).await.unwrap();
    assert_eq!(pages(&store, searching("last")).await, [0, 0, 1]);
    assert_eq!(pages(&store, searching("template")).await, [1, 0, 0]);
}

/// O02: an id, whole or its beginning, is found at once wherever its record stands.
#[tokio::test]
async fn an_id_is_found_on_the_first_page() {
    let folder = Folder::new();
    let store = filled(&folder).await;
    let (id, next) = draft("last", 10);
    store.swap(id, Change::new(None, Revision(1), next)).await.unwrap();
    for digits in [12, 64] {
        let query = searching(&id.to_string()[..digits]);
        assert_eq!(pages(&store, query.clone()).await, [1, 0, 0], "{digits} digits");
        let found = store.scan(query).await.unwrap().records;
        assert_eq!(found[0].0, id);
    }
}

/// O02: states with few records are found at once, whatever else there is.
#[tokio::test]
async fn a_state_with_few_records_is_listed_at_once() {
    let folder = Folder::new();
    let store = filled(&folder).await;
    let (id, next) = draft("running", 10);
    store.swap(id, Change::new(None, Revision(1), next)).await.unwrap();
    let connection = Connection::open(folder.file()).unwrap();
    let run = "UPDATE onlyonce_record SET state = 'running', lapses_at = expires_at, expires_at = NULL, status = NULL,
                   headers = NULL, body = NULL, completed_by = NULL
               WHERE key = 'running'";
    assert_eq!(connection.execute(run, []).unwrap(), 1);
    let running = StateSet::of(&[StateName::Pending, StateName::Running]);
    assert_eq!(pages(&store, Query { states: running, ..Query::all(50) }).await, [1]);
    assert_eq!(pages(&store, Query { states: running, ..searching("running") }).await, [1]);
    let others = StateSet::of(&[StateName::Completed, StateName::Running]);
    assert_eq!(pages(&store, Query { states: others, ..searching("running") }).await, [0, 0, 1]);
}

/// O02: also by an index of their own.
#[tokio::test]
async fn a_narrowed_page_of_unknown_records_examines_no_more_than_its_bound() {
    let folder = Folder::new();
    let store = filled(&folder).await;
    let connection = Connection::open(folder.file()).unwrap();
    connection.execute("UPDATE onlyonce_record SET unknown_since = number % 7", []).unwrap();
    let unknown = |query: Query| Query { order: Order::UnknownSince, ..query };
    assert_eq!(pages(&store, unknown(searching("no such key"))).await, [0, 0, 0]);
}

/// O02: what is written between two pages neither hides nor repeats what was there.
#[tokio::test]
async fn a_listing_shows_what_stands_there_all_the_while_once() {
    let folder = Folder::new();
    let store = folder.open().await;
    for number in 0..30 {
        let (id, next) = draft(&format!("old {number}"), 10);
        store.swap(id, Change::new(None, Revision(1), next)).await.unwrap();
    }
    for query in [Query::all(4), Query { limit: 4, ..searching("old") }] {
        let (mut shown, mut after) = (Vec::new(), None);
        for turn in 0..u64::MAX {
            let page = store.scan(Query { after, ..query.clone() }).await.unwrap();
            shown.extend(page.records.iter().map(|(_, seen)| seen.record.key.as_str().to_owned()));
            // One that was shown and one that was not are written anew, and another one comes.
            for key in [format!("old {}", turn % 30), format!("old {}", 29 - turn % 30)] {
                let (id, next) = draft(&key, 20);
                let seen = store.load(id).await.unwrap().unwrap();
                let revision = Revision(seen.revision.0 + 1);
                store.swap(id, Change::new(Some(seen.revision), revision, next)).await.unwrap();
            }
            let (id, next) = draft(&format!("new {turn} {}", query.search.is_some()), 10);
            store.swap(id, Change::new(None, Revision(1), next)).await.unwrap();
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        let mut old: Vec<_> = shown.into_iter().filter(|key| key.starts_with("old")).collect();
        old.sort_unstable();
        let mut expected: Vec<_> = (0..30).map(|number| format!("old {number}")).collect();
        expected.sort_unstable();
        assert_eq!(old, expected);
    }
}

fn plan(connection: &Connection, sql: &str) -> String {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    // Without values: a plan does not depend on them.
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get::<_, String>("detail").unwrap());
    }
    lines.join("\n")
}

/// L02: a scope is counted by the index that is made for it, without reading its records.
#[tokio::test]
async fn a_scope_is_counted_by_index() {
    let folder = Folder::new();
    let store = folder.open().await;
    let connection = Connection::open(folder.file()).unwrap();
    let before = plan(&connection, ALIVE_OF_SCOPE);
    assert!(!before.contains("by_scope"), "nobody pays for what nobody asked for\n{before}");
    store.prepare_counting().await.unwrap();
    // A connection sees another schema once it runs a statement, and a plan runs none.
    let connection = Connection::open(folder.file()).unwrap();
    let of_scope = plan(&connection, ALIVE_OF_SCOPE);
    assert_eq!(of_scope.matches("COVERING INDEX onlyonce_record_by_scope (scope=?").count(), 3, "{of_scope}");
    let in_all = plan(&connection, ALIVE);
    assert!(in_all.contains("COVERING INDEX onlyonce_record_by_scope"), "{in_all}");
}

/// O02: every statement of a listing goes by the index that its comment names, in order, and scans nothing.
#[tokio::test]
async fn listings_go_by_index() {
    let folder = Folder::new();
    let _store = folder.open().await;
    let connection = Connection::open(folder.file()).unwrap();
    let key = "USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)";
    let numbers = "USING INTEGER PRIMARY KEY (rowid>?)";
    let unknown = "onlyonce_record_by_unknown ((unknown_since,id)>(?,?) AND (unknown_since,id)<(?,?))";
    let covering = "COVERING INDEX onlyonce_record_by_unknown ((unknown_since,id)>(?,?))";
    let pending = "onlyonce_record_by_pending ((created_at,id)>(?,?) AND (created_at,id)<(?,?))";
    let covering_pending = "COVERING INDEX onlyonce_record_by_pending ((created_at,id)>(?,?))";
    let log = "onlyonce_audit_by_time (at>? AND at<?)";
    for (sql, by, sorts) in [
        (&**sql::BY_ID, "USING INDEX onlyonce_record_by_id (id>? AND id<?)", false),
        (&*sql::BY_NUMBER.page, key, false),
        (&*sql::BY_NUMBER.examined, numbers, false),
        (&*sql::ARCHIVED.page, key, false),
        (&*sql::ARCHIVED.examined, numbers, false),
        // Numbers of one state, and what fell due at the same moment.
        (&**sql::OF_STATE, "USING INDEX onlyonce_record_by_due (state=?)", true),
        (&**sql::DUE, "USING INDEX onlyonce_record_by_due (state=? AND due_at>? AND due_at<?)", true),
        (&*sql::UNKNOWN.page, unknown, false),
        (&*sql::UNKNOWN.examined, covering, false),
        (&*sql::PENDING.page, pending, false),
        (&*sql::PENDING.examined, covering_pending, false),
        (&**audit::sql::LIST, log, false),
        (audit::sql::EXAMINED, log, false),
        (audit::sql::DELETE, "onlyonce_audit_by_time (at<?)", false),
        (audit::sql::BLANK, "onlyonce_audit_by_scope (scope=?)", false),
    ] {
        let plan = plan(&connection, sql);
        assert!(plan.contains(by), "{sql}\n{plan}");
        assert!(!plan.contains("SCAN"), "{sql}\n{plan}");
        assert_eq!(plan.contains("TEMP B-TREE"), sorts, "{sql}\n{plan}");
    }
}
