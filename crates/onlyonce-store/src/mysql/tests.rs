//! Query plans: by index, among enough rows that a full scan would not look cheap.

use mysql_async::Value;
use onlyonce_testkit::engines::mariadb::Server;

use super::pool::ask;
use super::*;

const ROWS: u32 = 30_000;

/// A database with as many rows, of which this id is one.
async fn filled_store() -> (Mysql, [u8; 32]) {
    let server = Server::shared();
    let name = server.fresh_database();
    let store = Mysql::open(&server.url(&name), Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    let fill = format!(
        "INSERT INTO onlyonce_record
             (id, revision, attempt, retention_us, created_at, began_at, written_at, due_at, dead_letter, state, token,
              effects, scope, `key`, rest, unknown_since)
         SELECT UNHEX(SHA2(seq, 256)), seq, 1, 1, seq, seq, seq, seq, FALSE,
                CASE seq % 500 WHEN 0 THEN 'running' WHEN 1 THEN 'pending' WHEN 2 THEN 'unknown' ELSE 'completed' END,
                REPEAT('t', 16), 'opaque', UNHEX(SHA2(seq % 7, 256)), seq, 'x', IF(seq % 500 = 2, seq, NULL)
         FROM seq_1_to_{ROWS};
         ANALYZE TABLE onlyonce_record"
    );
    server.sql(&name, &fill);
    let id = server.sql(&name, "SELECT HEX(id) FROM onlyonce_record WHERE revision = 5");
    let byte = |place: usize| u8::from_str_radix(&id[2 * place..2 * place + 2], 16).unwrap();
    (store, std::array::from_fn(byte))
}

/// The table's way of access and index, where the last values of a statement are these. The others do not change the plan.
async fn plan(store: &Mysql, sql: &str, last: Vec<Value>) -> (String, String) {
    let mut values = vec![Value::NULL; sql.matches('?').count() - last.len()];
    values.extend(last);
    let mut connection = store.requests.connect().await.unwrap();
    let rows = ask(&mut connection, &format!("EXPLAIN {sql}"), values).await.unwrap().rows;
    let text = |place| column::<Option<&str>>(&rows[0], place).unwrap().unwrap_or_default().to_owned();
    (text(3), text(5))
}

/// E03: by the primary key, one row or a few.
#[tokio::test(flavor = "multi_thread")]
async fn hot_statements_go_by_the_primary_key() {
    let (store, id) = filled_store().await;
    let (id, revision) = (Value::from(id), Value::from(5));
    let (access, index) = plan(&store, &statement::LOAD, vec![id.clone()]).await;
    assert_eq!((&*access, &*index), ("const", "PRIMARY"));
    let one = vec![id.clone(), revision.clone()];
    let (access, index) = plan(&store, &statement::UPDATE, one).await;
    assert_eq!((&*access, &*index), ("range", "PRIMARY"));
    // Two rows of four: the others are filled with nulls.
    let null = || Value::NULL;
    let expected = [id.clone(), revision.clone(), id.clone(), revision, null(), null(), null(), null()];
    let four = expected.into_iter().chain([id.clone(), id, null(), null()]).collect();
    let (access, index) = plan(&store, &statement::updates(4), four).await;
    assert_eq!((&*access, &*index), ("range", "PRIMARY"));
}
