//! Rows as people and other programs see them.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::record::{Asking, Effects, Reason, Response, Revision, Source, State};
use onlyonce_core::time::When;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;

use crate::sqlite::world::{HOUR, draft, id, insert, running};

struct World {
    store: Postgres,
    schema: String,
}

impl World {
    async fn new() -> Self {
        let url = Server::shared().fresh_schema();
        let store = Postgres::open(&url, Options::default()).await.unwrap();
        store.prepare().await.unwrap();
        Self { store, schema: url.split_once("schema=").unwrap().1.to_owned() }
    }

    fn sql(&self, sql: &str) -> String {
        Server::shared().sql(&format!("SET search_path = {}; {sql}", self.schema))
    }
}

fn paid() -> State<When> {
    let headers =
        vec![(HeaderName::from_static("content-type"), HeaderValue::from_static("application/json"))];
    let response = Response { status: 201, headers, body: Bytes::from_static(b"{\"id\":7}") };
    State::Completed {
        response: Some(Arc::new(response)),
        by: Source::Attempt,
        expires_at: When::AfterWrite(HOUR),
    }
}

/// R08, O02: an operator's question is answered by `psql`.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_can_be_read_with_psql() {
    let world = World::new().await;
    insert(&world.store, draft("order-1", Effects::Opaque, paid()), 1).await.unwrap();
    let told = world.sql(
        "SELECT key, state, attempt, status, expires_at - written_at, convert_from(body, 'UTF8') FROM onlyonce_record",
    );
    assert_eq!(told, "order-1|completed|1|201|01:00:00|{\"id\":7}");
    let told =
        world.sql("SELECT convert_from(headers, 'UTF8'), label, route, completed_by FROM onlyonce_record");
    assert_eq!(told, "content-type: application/json\n|acme|POST /payments|attempt");
    let unknown = State::Unknown {
        reason: Reason::Lapsed,
        since: When::WRITE,
        asking: Asking::default(),
        ask_at: None,
        dead_letter: false,
    };
    insert(&world.store, draft("order-2", Effects::Opaque, unknown), 1).await.unwrap();
    let told = world.sql(
        "SELECT scope_label, key, state, reason, unknown_since = updated_at, due_at IS NULL, length(id), length(scope)
         FROM onlyonce_keys WHERE state = 'unknown'",
    );
    assert_eq!(told, "acme|order-2|unknown|lapsed|t|t|64|64");
}

/// R08: a program of somebody else's completes a record, with a new revision and a later stamp. Whoever looks sees it, and whoever
/// saw the record before it writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_by_another_program_is_seen_at_the_next_look() {
    let world = World::new().await;
    let reserved = insert(&world.store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    world.sql(
        "UPDATE onlyonce_record
         SET revision = 77, written_at = greatest(clock_timestamp(), written_at), state = 'completed', lapses_at = NULL,
             completed_by = 'attempt', status = 200, headers = convert_to(E'x-by: hand\n', 'UTF8'), body = 'done',
             expires_at = clock_timestamp() + interval '1 day', due_at = clock_timestamp() + interval '1 day'
         WHERE token = '\\x05050505050505050505050505050505'",
    );
    let seen = world.store.load(id("k")).await.unwrap().unwrap();
    assert_eq!(seen.revision, Revision(77));
    assert!(seen.record.written_at >= reserved.record.written_at);
    let State::Completed { response: Some(response), by: Source::Attempt, .. } = &seen.record.state else {
        panic!("{:?}", seen.record.state)
    };
    assert_eq!((response.status, &response.body[..]), (200, &b"done"[..]));
    assert_eq!(response.headers, [(HeaderName::from_static("x-by"), HeaderValue::from_static("hand"))]);
    let (id, next) = draft("k", Effects::Opaque, paid());
    let late = Change::new(Some(reserved.revision), Revision(2), next);
    let Swapped::Lost(Some(current)) = world.store.swap(id, late).await.unwrap() else {
        panic!("it is lost")
    };
    assert_eq!((current.revision, current.record), (seen.revision, seen.record));
}
