//! What an application calls in its own transaction: `onlyonce_hold`, `onlyonce_complete`, `onlyonce_send`. One list of cases,
//! for every server that has them.

pub(crate) mod agreement;
pub(crate) mod arguments;
pub(crate) mod messages;
pub(crate) mod transactions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::record::{Draft, Effects, Handle, Id, Response, Revision, Seen, Token};
use onlyonce_store::{Change, Store, Swapped};

use crate::sqlite::world::{draft, id, insert, running};

/// A connection of an application's, on one kind of server.
pub(crate) trait Application: Sized {
    /// What a NUL in a header is refused by.
    const NUL: &str;
    /// What a second plain INSERT of a message's key is refused by.
    const DUPLICATE: &str;
    /// The name of a column `key`.
    const KEY: &str;
    /// In how many seconds the last message is due.
    const DUE_IN_SECONDS: &str;
    /// Sets the session's isolation level.
    const READ_COMMITTED: &str;

    /// A store in a place of its own, with a table `payment (amount)`, and an application that is connected there.
    async fn world() -> World<Self>;

    /// Another connection in the same place.
    async fn connect(place: &str) -> Self;

    /// Runs statements.
    async fn sql(&self, sql: &str) -> Result<(), Refused>;

    /// The number that a statement returns.
    async fn number(&self, sql: &str) -> i64;

    /// Bytes in the server's notation.
    fn bytes(bytes: &[u8]) -> String;

    async fn hold(&self, handle: Option<&str>) -> Result<(), Refused>;

    async fn complete(&self, handle: Option<&str>, answer: &Answer) -> Result<(), Refused>;

    /// The key of the message.
    async fn send(&self, sent: &Sent) -> Result<String, Refused>;

    /// From now on a statement of this session waits for a lock only for a moment. The code of what it is refused by.
    async fn wait_shortly(&self) -> &'static str;

    /// How many sessions wait for a lock in this place.
    fn waiting(place: &str) -> String;
}

/// A store, and a connection of an application's in the same place.
pub(crate) struct World<A> {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) place: String,
    pub(crate) app: A,
}

impl<A: Application> World<A> {
    pub(crate) async fn insert(&self, (id, draft): (Id, Box<Draft>)) -> Seen {
        insert(&*self.store, (id, draft), 1).await.unwrap()
    }

    /// A running record, and its handle.
    pub(crate) async fn reserve(&self, key: &str) -> (Seen, String) {
        let seen = self.insert(draft(key, Effects::Local, running())).await;
        let handle = handle(id(key), seen.record.token);
        (seen, handle)
    }

    pub(crate) async fn load(&self, key: &str) -> Seen {
        self.store.load(id(key)).await.unwrap().unwrap()
    }

    pub(crate) async fn renew(
        &self,
        key: &str,
        expected: Revision,
        next: u64,
    ) -> Result<Swapped, onlyonce_store::Error> {
        renewed(&*self.store, key, expected, next).await
    }

    /// Whether the record is as it was seen before.
    pub(crate) async fn is_unchanged(&self, id: Id, before: Option<&Seen>) -> bool {
        let now = self.store.load(id).await.unwrap();
        now.map(|seen| (seen.revision, seen.record))
            == before.map(|seen| (seen.revision, seen.record.clone()))
    }

    pub(crate) async fn count(&self, table: &str) -> i64 {
        self.app.number(&format!("SELECT count(*) FROM {table}")).await
    }

    /// Until a session here waits for a lock.
    async fn until_somebody_waits(&self) {
        let began = Instant::now();
        while A::waiting(&self.place) == "0" {
            assert!(began.elapsed() < SOON, "nobody waits");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// A renewal by the record's own node.
pub(crate) async fn renewed(
    store: &dyn Store,
    key: &str,
    expected: Revision,
    next: u64,
) -> Result<Swapped, onlyonce_store::Error> {
    let (id, draft) = draft(key, Effects::Local, running());
    store.swap(id, Change::new(Some(expected), Revision(next), draft)).await
}

const SOON: Duration = Duration::from_secs(20);
/// InnoDB shows what it showed before to everybody who looks within a tenth of a second of somebody else. Several tests look.
const LOOK_EVERY: Duration = Duration::from_millis(400);

pub(crate) fn handle(id: Id, token: Token) -> String {
    Handle { id, token }.to_string()
}

/// An answer as an application gives it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: i64,
    pub(crate) headers: String,
    pub(crate) body: Option<Vec<u8>>,
    /// In microseconds.
    pub(crate) retention: Option<i64>,
}

/// A message as an application stores it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) destination: Option<String>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) key: Option<String>,
    pub(crate) group_key: Option<String>,
    /// In microseconds.
    pub(crate) delay: Option<i64>,
    pub(crate) content_type: Option<String>,
    pub(crate) handle: Option<String>,
}

pub(crate) fn receipt() -> Sent {
    Sent { destination: Some("receipts".to_owned()), payload: Some(b"{}".to_vec()), ..Sent::default() }
}

pub(crate) fn created() -> Answer {
    Answer {
        status: 201,
        headers: r#"{"Content-Type": "application/json"}"#.to_owned(),
        body: Some(b"{\"id\":7}".to_vec()),
        retention: None,
    }
}

/// [`created`], as it is stored.
pub(crate) fn stored() -> Arc<Response> {
    let headers =
        vec![(HeaderName::from_static("content-type"), HeaderValue::from_static("application/json"))];
    Arc::new(Response { status: 201, headers, body: Bytes::from_static(b"{\"id\":7}") })
}

/// What a server said to a statement that it refused.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Its SQLSTATE.
    pub(crate) state: String,
    pub(crate) message: String,
    /// All that it said.
    pub(crate) whole: String,
}

/// The SQLSTATE of what was refused; empty where it was not.
pub(crate) fn code<T>(result: Result<T, Refused>) -> String {
    result.err().map_or_else(String::new, |refused| refused.state)
}

/// The cases as tests of one kind of server.
macro_rules! cases {
    ($application:ty: $($case:ident :: $name:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                $crate::write_first::$case::$name::<$application>().await;
            }
        )*
    };
}
pub(crate) use cases;

/// Every case there is.
macro_rules! all_cases {
    ($application:ty) => {
        $crate::write_first::cases! {
            $application:
            agreement::every_state_of_a_record_is_judged_as_by_the_rules,
            agreement::random_records_are_completed_as_by_the_rules,
            agreement::a_completion_writes_one_row_and_nothing_else,
            arguments::a_fault_of_an_argument_is_refused_by_its_sqlstate_and_changes_nothing,
            arguments::a_handle_that_is_malformed_is_told_from_one_that_is_void,
            arguments::headers_that_no_retry_should_see_are_left_out,
            arguments::a_body_of_null_completes_without_an_answer,
            messages::a_message_that_is_sent_returns_its_key,
            messages::a_message_has_its_own_key_group_delay_and_record,
            messages::a_key_that_is_there_already_is_stored_once,
            messages::what_breaks_a_rule_is_refused_and_nothing_is_stored,
            transactions::rows_messages_and_completion_commit_together_or_not_at_all,
            transactions::a_transaction_that_is_retried_after_its_commit_is_told_so_and_rolled_back,
            transactions::who_ignores_an_error_and_commits_has_nothing_to_commit,
            transactions::a_completion_is_undone_with_its_savepoint,
            transactions::while_the_row_is_held_no_renewal_and_no_other_attempt_is_written,
            transactions::of_two_transactions_of_one_attempt_one_commits,
            transactions::an_attempt_that_is_superseded_while_it_waits_is_refused,
            transactions::at_read_committed_a_renewal_does_not_fail_the_transaction,
            transactions::the_outcome_of_the_node_and_the_completion_exclude_each_other,
        }
    };
}
pub(crate) use all_cases;
