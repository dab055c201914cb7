//! Narrowed listings among many records.

use onlyonce_core::record::{Effects, StateName, StateSet};
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Order, Query, Search, Store};
use onlyonce_testkit::engines::postgres::Server;

use crate::sqlite::world::{draft, id, insert, running};

/// More than two pages examine, and less than three.
const MANY: u64 = 4_100;

/// A store with many records that cannot be decoded: a page that reads more than the filter's columns fails.
async fn filled() -> (Postgres, String) {
    let url = Server::shared().fresh_schema();
    let schema = url.split_once("schema=").unwrap().1.to_owned();
    let store = Postgres::open(&url, Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    insert(&store, draft("template", Effects::Opaque, running()), 1).await.unwrap();
    Server::shared().sql(&format!(
        "SET search_path = {schema};
         INSERT INTO onlyonce_record (id, revision, scope, key, route, state, attempt, token, effects, retention_us,
             created_at, began_at, written_at, due_at, dead_letter, rest)
         SELECT sha256(n::text::bytea), n, '\\x00', 'k' || n, 'POST /', 'completed', 1, token, effects, 1, created_at,
             began_at, written_at, due_at, false, '\\x01'
         FROM onlyonce_record CROSS JOIN generate_series(1, {MANY}) AS n;
         ANALYZE onlyonce_record"
    ));
    (store, schema)
}

/// How many records each page shows.
async fn pages(store: &Postgres, query: Query) -> Vec<usize> {
    let (mut shown, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan(Query { after, ..query.clone() }).await.unwrap();
        shown.push(page.records.len());
        assert!(shown.len() < 100, "the listing does not end");
        let Some(next) = page.next else { return shown };
        after = Some(next);
    }
}

fn searching(text: &str) -> Query {
    Query { search: Some(Search::new(text)), ..Query::all(50) }
}

/// O02: a page of a listing that hardly anything fits is short, and says where to go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_narrowed_page_examines_no_more_than_its_bound() {
    let (store, schema) = filled().await;
    for nothing in [
        searching("no such key"),
        Query { scope: Some([9; 32]), ..Query::all(50) },
        Query { route: Some("POST /nothing".into()), ..Query::all(50) },
        Query { dead_letter: true, ..Query::all(50) },
    ] {
        assert_eq!(pages(&store, nothing.clone()).await, [0; 3], "{nothing:?}");
    }
    assert_eq!(pages(&store, searching("template")).await.iter().sum::<usize>(), 1);
    Server::shared().sql(&format!("UPDATE {schema}.onlyonce_record SET unknown_since = clock_timestamp()"));
    let unknown = Query { order: Order::UnknownSince, ..searching("no such key") };
    assert_eq!(pages(&store, unknown).await, [0; 3]);
}

/// O02: an id is found at once wherever its record stands, and so is a state with few records.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_and_a_state_with_few_records_are_found_on_the_first_page() {
    let (store, _) = filled().await;
    for digits in [12, 64] {
        let by_id = searching(&id("template").to_string()[..digits]);
        assert_eq!(pages(&store, by_id).await, [1, 0, 0], "{digits} digits");
    }
    let of_states = StateSet::of(&[StateName::Running, StateName::Pending]);
    assert_eq!(pages(&store, Query { states: of_states, ..Query::all(50) }).await, [1]);
    assert_eq!(pages(&store, Query { states: of_states, ..searching("template") }).await, [1]);
}
