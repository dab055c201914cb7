//! An application that completes its requests by SQL, behind gateways that die, stand still or lose their database.
//!
//! ```text
//!   client ──► onlyonce serve ✝ ──► the application ✝ ──► one transaction: row, message, onlyonce_complete
//!   retry  ──► onlyonce serve                                          │
//!                     └──────────────── one PostgreSQL ✝ ──────────────┘
//! ```
//!
//! | what dies | when | what holds |
//! |---|---|---|
//! | the gateway | while the transaction is open; after COMMIT, before the answer | a retry is replayed at once |
//! | both | before COMMIT; after it | after the lease a retry runs; a retry is replayed |
//! | the session in the database | between the completion and COMMIT | as a rollback |
//! | the database | before COMMIT; after it | runs again; replayed |
//! | the gateway, paused past the lease | a later attempt completes; none begins | OO001, one answer; the completion counts |
//! | nobody | the transaction outlives the lease; the application hangs after COMMIT | nobody else runs; the stored answer |
//!
//! The lines about the application alone are shown by the examples, which are killed at every step (`cargo xtask examples`).

use std::time::{Duration, Instant};

use onlyonce_testkit::engines::postgres::{Owned, Server, Stop};

use crate::application::{Application, Step};
use crate::client::{Answer, PATIENCE, WAIT, pay, paying, until};
use crate::node::Site;

/// Longer than any of these tests: nothing here is replayed because a lease has lapsed.
const LONG: [&str; 3] = ["policy.effects=local", "policy.lease=10m", "policy.deadline=20m"];
const LEASE: Duration = Duration::from_secs(2);
/// The store may take longer than a write waits for a row that somebody holds.
const SHORT: [&str; 4] =
    ["policy.effects=local", "policy.lease=2s", "policy.store_timeout=1s", "policy.deadline=2m"];
const FIRST: &str = "paid by attempt 1";
const SECOND: &str = "paid by attempt 2";

/// An application, and the database that it shares with its gateways.
struct World<'a> {
    server: &'a Server,
    store: String,
    schema: String,
    application: Application,
}

impl World<'static> {
    fn new() -> Self {
        World::on(Server::shared())
    }
}

impl<'a> World<'a> {
    fn on(server: &'a Server) -> Self {
        let store = server.fresh_schema();
        let schema = store.split_once("schema=").unwrap().1.to_owned();
        let application = Application::start(server, &schema);
        Self { server, store, schema, application }
    }

    fn site<'s>(&'s self, settings: &'s [&'s str]) -> Site<'s> {
        let upstream = self.application.address;
        Site { upstream, store: self.store.clone(), settings }
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&format!("SET search_path = {}; {sql}", self.schema))
    }

    /// The row and the message are there once, written by this attempt.
    fn is_paid_once_by(&self, attempt: u32) {
        assert_eq!(self.sql("SELECT attempt FROM payment"), attempt.to_string());
        assert_eq!(self.sql("SELECT count(*) FROM onlyonce_outbox"), "1");
    }

    fn is_unpaid(&self) {
        assert_eq!(
            self.sql("SELECT (SELECT count(*) FROM payment) + (SELECT count(*) FROM onlyonce_outbox)"),
            "0"
        );
    }

    fn sessions(&self) -> String {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'app-";
        self.server.sql(&format!("{count}{}'", self.schema))
    }

    /// Until the database has seen that the application is gone.
    async fn has_no_session(&self) {
        until("its sessions end", async || self.sessions() == "0").await;
    }
}

/// Answered with what this attempt has committed, from the record.
fn is_replay(answer: &Answer, said: &str) {
    assert!(answer.status == 201 && answer.is_replay() && answer.body == said, "{answer:?}");
}

/// The answer of a client whose own attempt was completed, by whichever attempt says so.
fn is_own(answer: &Answer, said: &str) {
    assert!(answer.status == 201 && !answer.is_replay() && answer.is_stored(), "{answer:?}");
    assert_eq!(answer.body, said);
}

/// The same key again while it is told to come back: in progress, or the store is away.
async fn retry(to: std::net::SocketAddr) -> Answer {
    let began = Instant::now();
    loop {
        let answer = pay(to, "k").await.unwrap();
        if !matches!(answer.status, 409 | 503) {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "no end: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// W01, W09, X02: the gateway dies while the transaction is open, which commits. A retry elsewhere is replayed at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_outlives_its_gateway_is_replayed() {
    for step in [Step::Rows, Step::Completed] {
        let world = World::new();
        let site = world.site(&LONG);
        let [dies, other] = site.nodes().await;
        world.application.stop(1, step);
        let lost = paying(dies.address, "k", "");
        world.application.stopped(1, step).await;
        dies.kill().await;
        assert!(lost.await.unwrap().is_none(), "nobody answers for a dead process");
        let early = pay(other.address, "k").await.unwrap();
        assert!(early.is(409, "idempotency_key_in_progress"), "{early:?}");
        world.is_unpaid();
        world.application.go_on();
        assert_eq!(world.application.end(1).await, "committed");
        is_replay(&pay(other.address, "k").await.unwrap(), FIRST);
        assert_eq!(world.application.runs(), 1);
        world.is_paid_once_by(1);
    }
}

/// W01, W09, X02: the gateway dies after COMMIT and before the answer, and the application has not answered yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_gateway_dies_before_the_answer_is_replayed_at_once() {
    let world = World::new();
    let site = world.site(&LONG);
    let [dies, other] = site.nodes().await;
    world.application.stop(1, Step::Committed);
    let lost = paying(dies.address, "k", "");
    world.application.stopped(1, Step::Committed).await;
    is_replay(&pay(other.address, "k").await.unwrap(), FIRST);
    dies.kill().await;
    assert!(lost.await.unwrap().is_none(), "nobody answers for a dead process");
    for node in [&other, &site.node().await] {
        is_replay(&pay(node.address, "k").await.unwrap(), FIRST);
    }
    assert_eq!(world.application.runs(), 1);
    world.is_paid_once_by(1);
}

/// W01, W09, U04: both die before COMMIT. Until the lease lapses a retry is told to wait; then it runs, and rows are there once.
#[tokio::test(flavor = "multi_thread")]
async fn where_both_die_before_commit_a_retry_runs_after_the_lease() {
    for step in [Step::Rows, Step::Completed] {
        let mut world = World::new();
        let [dies, other] = world.site(&SHORT).nodes().await;
        world.application.stop(1, step);
        let began = Instant::now();
        let lost = paying(dies.address, "k", "");
        world.application.stopped(1, step).await;
        // The gateway first: it must not see the application die.
        dies.kill().await;
        world.application.kill();
        assert!(lost.await.unwrap().is_none(), "nobody answers for a dead process");
        world.has_no_session().await;
        world.is_unpaid();
        world.application.start_again().await;
        let early = pay(other.address, "k").await.unwrap();
        if began.elapsed() < LEASE {
            assert!(early.is(409, "idempotency_key_in_progress"), "{early:?}");
        }
        let ran = retry(other.address).await;
        assert!(ran.status == 201 && ran.body == SECOND, "{ran:?}");
        is_replay(&pay(other.address, "k").await.unwrap(), SECOND);
        assert_eq!(world.application.runs(), 2);
        world.is_paid_once_by(2);
    }
}

/// W01, W09: both die after COMMIT. A retry is replayed at once, and needs no application.
#[tokio::test(flavor = "multi_thread")]
async fn where_both_die_after_commit_a_retry_is_replayed() {
    let mut world = World::new();
    let [dies, other] = world.site(&LONG).nodes().await;
    world.application.stop(1, Step::Committed);
    let lost = paying(dies.address, "k", "");
    world.application.stopped(1, Step::Committed).await;
    dies.kill().await;
    world.application.kill();
    assert!(lost.await.unwrap().is_none(), "nobody answers for a dead process");
    is_replay(&pay(other.address, "k").await.unwrap(), FIRST);
    assert_eq!(world.application.runs(), 1);
    world.is_paid_once_by(1);
}

/// W01, W09: the session in the database is ended between the completion and COMMIT: as a rollback.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_before_commit_is_a_rollback() {
    let world = World::new();
    let [node, other] = world.site(&LONG).nodes().await;
    world.application.stop(1, Step::Completed);
    let first = paying(node.address, "k", "");
    world.application.stopped(1, Step::Completed).await;
    let ended =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'app-";
    assert_eq!(world.server.sql(&format!("{ended}{}'", world.schema)), "1");
    world.has_no_session().await;
    world.application.go_on();
    assert_ne!(world.application.end(1).await, "committed");
    let first = first.await.unwrap().unwrap();
    assert!(first.status == 500 && !first.is_stored(), "{first:?}");
    world.is_unpaid();
    let ran = pay(other.address, "k").await.unwrap();
    is_own(&ran, SECOND);
    is_replay(&pay(node.address, "k").await.unwrap(), SECOND);
    world.is_paid_once_by(2);
}

fn own_server() -> Owned {
    Server::start(&[]).unwrap_or_else(|reason| panic!("no PostgreSQL: {reason}"))
}

/// W01, W09, X03: the database stops at once with the transaction open, and is started again: the request runs again.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_database_dies_before_commit_the_request_runs_again() {
    for step in [Step::Rows, Step::Completed] {
        let server = own_server();
        let world = World::on(&server);
        let node = world.site(&LONG).node().await;
        world.application.stop(1, step);
        let first = paying(node.address, "k", "");
        world.application.stopped(1, step).await;
        server.stop(Stop::Immediate);
        server.start_again();
        world.is_unpaid();
        world.application.go_on();
        assert_ne!(world.application.end(1).await, "committed");
        let first = first.await.unwrap().unwrap();
        assert!(first.status == 500 && !first.is_stored(), "{first:?}");
        let ran = retry(node.address).await;
        is_own(&ran, SECOND);
        is_replay(&pay(node.address, "k").await.unwrap(), SECOND);
        world.is_paid_once_by(2);
    }
}

/// W01, W09, X03: the database stops at once after COMMIT: what it has confirmed is there, and is replayed.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_database_dies_after_commit_the_request_is_replayed() {
    let server = own_server();
    let world = World::on(&server);
    let node = world.site(&LONG).node().await;
    world.application.stop(1, Step::Committed);
    let first = paying(node.address, "k", "");
    world.application.stopped(1, Step::Committed).await;
    server.stop(Stop::Immediate);
    server.start_again();
    world.application.go_on();
    let first = first.await.unwrap().unwrap();
    assert!(first.status == 201 && first.body == FIRST, "{first:?}");
    is_replay(&retry(node.address).await, FIRST);
    assert_eq!(world.application.runs(), 1);
    world.is_paid_once_by(1);
}

/// W01, W09, R05: the gateway stands still past the lease, and a later attempt completes elsewhere. The first is refused with
/// OO001 and rolled back, and both clients have one answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_was_superseded_is_rolled_back_and_both_clients_have_one_answer() {
    let world = World::new();
    let [paused, other] = world.site(&SHORT).nodes().await;
    world.application.stop(1, Step::Rows);
    let first = paying(paused.address, "k", "");
    world.application.stopped(1, Step::Rows).await;
    paused.signal("STOP").await;
    let later = retry(other.address).await;
    is_own(&later, SECOND);
    world.application.go_on();
    assert_eq!(world.application.end(1).await, "OO001");
    paused.signal("CONT").await;
    let first = first.await.unwrap().unwrap();
    assert!(first.status == 201 && first.body == SECOND, "{first:?}");
    for node in [&paused, &other] {
        is_replay(&pay(node.address, "k").await.unwrap(), SECOND);
    }
    assert_eq!(world.application.runs(), 2);
    world.is_paid_once_by(2);
}

/// W01, W09, R05: the gateway stands still past the lease, the record is swept, and no later attempt begins: the late truth
/// counts, and the client of that attempt has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_commits_after_its_record_was_swept_counts() {
    for (effects, swept) in [("policy.effects=local", "retryable"), ("policy.effects=opaque", "unknown")] {
        let world = World::new();
        let settings = [&SHORT[1..], &[effects, "background.sweep_every=50ms"]].concat();
        let [paused, other] = world.site(&settings).nodes().await;
        world.application.stop(1, Step::Rows);
        let first = paying(paused.address, "k", "");
        world.application.stopped(1, Step::Rows).await;
        paused.signal("STOP").await;
        until("it is swept", async || world.sql("SELECT state FROM onlyonce_record") == swept).await;
        world.application.go_on();
        assert_eq!(world.application.end(1).await, "committed");
        is_replay(&pay(other.address, "k").await.unwrap(), FIRST);
        paused.signal("CONT").await;
        is_own(&first.await.unwrap().unwrap(), FIRST);
        is_replay(&pay(paused.address, "k").await.unwrap(), FIRST);
        assert_eq!(world.application.runs(), 1);
        world.is_paid_once_by(1);
    }
}

/// W01, W09, R05, X02: the transaction outlives the lease with the record's row locked. Duplicates are told that it is in
/// progress, or wait, on every node; none runs.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_transaction_outlives_its_lease_duplicates_wait_and_none_runs() {
    let world = World::new();
    let settings = [&SHORT[..], &["policy.wait_max=60s", "background.sweep_every=50ms"]].concat();
    let nodes = world.site(&settings).nodes::<2>().await;
    world.application.stop(1, Step::Completed);
    let first = paying(nodes[0].address, "k", "");
    world.application.stopped(1, Step::Completed).await;
    let lapsed = "SELECT clock_timestamp() > lapses_at + interval '1 second' FROM onlyonce_record";
    until("the lease lapses", async || world.sql(lapsed) == "t").await;
    for node in &nodes {
        let told = pay(node.address, "k").await.unwrap();
        assert!(told.is(409, "idempotency_key_in_progress"), "{told:?}");
    }
    let looks = async || nodes[1].figure("onlyonce_store_seconds_count", "operation=\"load\"").await;
    let before = looks().await;
    let waiting: Vec<_> = (0..6).map(|number| paying(nodes[number % 2].address, "k", WAIT)).collect();
    until("those who wait elsewhere look", async || looks().await > before + 10).await;
    assert_eq!(world.application.runs(), 1);
    world.is_unpaid();
    world.application.go_on();
    is_own(&first.await.unwrap().unwrap(), FIRST);
    for waited in waiting {
        is_replay(&waited.await.unwrap().unwrap(), FIRST);
    }
    assert_eq!(world.application.runs(), 1);
    world.is_paid_once_by(1);
}

/// W01, W09, U04: the application hangs after COMMIT. Its client has the stored answer at the next renewal, long before the
/// deadline; retries have it at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_hangs_after_commit_is_answered_for_at_the_next_renewal() {
    let world = World::new();
    let settings = ["policy.effects=local", "policy.lease=8s", "policy.deadline=20m"];
    let [node, other] = world.site(&settings).nodes().await;
    world.application.stop(1, Step::Committed);
    let began = Instant::now();
    let first = paying(node.address, "k", "");
    world.application.stopped(1, Step::Committed).await;
    for node in [&node, &other] {
        is_replay(&pay(node.address, "k").await.unwrap(), FIRST);
    }
    let first = first.await.unwrap().unwrap();
    is_own(&first, FIRST);
    let took = first.at.duration_since(began);
    // Half a lease, and some time for a machine that has much to do.
    assert!(took < Duration::from_secs(8), "answered after {took:?}");
    assert_eq!(world.application.runs(), 1);
    world.is_paid_once_by(1);
}
