//! Nodes of two releases on one schema of PostgreSQL, as in a rolling upgrade.

use onlyonce_testkit::engines::postgres::Server;
use onlyonce_testkit::engines::server::Engine;

use crate::client::{pay, paying, until};
use crate::node::Site;
use crate::service::Service;

/// What a later release might bring that this one can work with: whatever adds, and leaves what is there.
const ADDS: &str = "
    ALTER TABLE onlyonce_record ADD COLUMN tag text;
    ALTER TABLE onlyonce_store ADD COLUMN raised_at timestamptz;
    CREATE INDEX onlyonce_record_by_scope ON onlyonce_record (scope, id);
    CREATE TABLE onlyonce_later (number bigint PRIMARY KEY);";

/// Applied as a release does it, with the oldest schema that its nodes must know.
fn migrate(site: &Site<'_>, needs: u32) {
    let schema = site.store.split_once("schema=").unwrap().1;
    Server::shared().sql(&format!(
        "SET search_path = {schema}; BEGIN; {ADDS}
         INSERT INTO onlyonce_migration (number, name, checksum, needs) VALUES (3, '0003-later', '\\x03', {needs});
         COMMIT"
    ));
}

/// P05, P07: a node works on while a later release adds to the schema, and one of its release may still join.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_node_works_on_beside_a_newer_release_that_only_adds() {
    let service = Service::open().await;
    let site = Site::new(Engine::Postgres, &service, &[]);
    let older = site.node().await;
    let before = pay(older.address, "before").await.unwrap();
    service.hold();
    let meanwhile: Vec<_> = (0..20).map(|n| paying(older.address, &format!("meanwhile-{n}"), "")).collect();
    service.called((0..20).map(|n| format!("meanwhile-{n}"))).await;
    migrate(&site, 1);
    service.go_on();
    for answer in meanwhile {
        let answer = answer.await.unwrap().unwrap();
        assert!(answer.status == 201 && !answer.is_replay(), "{answer:?}");
    }
    assert_eq!(pay(older.address, "after").await.unwrap().status, 201);
    let joins = site.node().await;
    for key in ["before", "meanwhile-7", "after"] {
        assert!(pay(joins.address, key).await.unwrap().is_replay(), "{key}");
        assert_eq!(service.calls(key), 1);
    }
    assert_eq!(pay(joins.address, "before").await.unwrap().body, before.body);
}

/// P07: one that cannot work with a later schema does not start on it, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_node_does_not_start_on_a_schema_that_it_cannot_work_with() {
    let service = Service::open().await;
    let site = Site::new(Engine::Postgres, &service, &[]);
    drop(site.node().await);
    migrate(&site, 3);
    let told = site.try_node().await.unwrap_err();
    assert!(told.contains("exit status: 2"), "{told}");
    assert!(
        told.contains(r#"\"0003-later\" of a newer release"#) && told.contains("upgrade this node"),
        "{told}"
    );
}

/// P07: nor does one that runs work on with it. It refuses within seconds, is not ready, and runs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_node_that_runs_stops_working_with_a_schema_that_it_cannot_work_with() {
    let service = Service::open().await;
    let site = Site::new(Engine::Postgres, &service, &[]);
    let older = site.node().await;
    assert_eq!(pay(older.address, "before").await.unwrap().status, 201);
    migrate(&site, 3);
    let mut tries = 0;
    until("it refuses", async || {
        tries += 1;
        pay(older.address, &format!("meanwhile-{tries}"))
            .await
            .unwrap()
            .is(503, "idempotency_store_unavailable")
    })
    .await;
    let refused = pay(older.address, "after").await.unwrap();
    assert!(refused.is(503, "idempotency_store_unavailable"), "{refused:?}");
    let stored = pay(older.address, "before").await.unwrap();
    assert!(stored.is_replay() || stored.status == 503, "{stored:?}");
    assert_eq!((service.calls("after"), service.calls("before")), (0, 1));
    assert!(!older.is_ready().await);
    assert!(older.logged().iter().any(|line| line.contains("migrated by a newer release")), "it says why");
    // A migration that was taken back is no reason to stay away.
    let schema = site.store.split_once("schema=").unwrap().1;
    Server::shared().sql(&format!("DELETE FROM {schema}.onlyonce_migration WHERE number = 3"));
    until("it works on", async || pay(older.address, "after").await.unwrap().status == 201).await;
    assert_eq!(service.calls("after"), 1);
}

/// P07: a record in a shape of a later release is refused and not run over; what this release knows is served.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_a_later_shape_is_refused_and_not_run_over() {
    let service = Service::open().await;
    let site = Site::new(Engine::Postgres, &service, &[]);
    let [one, two] = site.nodes().await;
    for key in ["later", "ours"] {
        assert_eq!(pay(one.address, key).await.unwrap().status, 201);
    }
    let schema = site.store.split_once("schema=").unwrap().1;
    let sql = format!("UPDATE {schema}.onlyonce_record SET rest = set_byte(rest, 0, 99) WHERE key = 'later'");
    Server::shared().sql(&sql);
    for _ in 0..8 {
        let refused = pay(two.address, "later").await.unwrap();
        assert!(refused.is(503, "idempotency_store_unavailable"), "{refused:?}");
    }
    assert!(pay(two.address, "ours").await.unwrap().is_replay(), "one bad record is no outage");
    assert_eq!((service.calls("later"), service.calls("ours")), (1, 1));
}
