//! Helpers to make records and write them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::History;
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Asking, Draft, Effects, Id, Progress, Reason, Record, Response, Revision, Seen, Source, State, Terms,
    Token,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::When;
use onlyonce_store::outbox::{Claimed, Message, OnDead, Wanted};
use onlyonce_store::sqlite::{Options, Sqlite};
use onlyonce_store::{Change, Error, Store, Swapped};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) async fn open(path: impl AsRef<Path>) -> Sqlite {
    try_open(path).await.unwrap()
}

pub(crate) async fn try_open(path: impl AsRef<Path>) -> Result<Sqlite, Error> {
    Sqlite::open(path, Options::default()).await
}

pub(crate) fn id(key: &str) -> Id {
    draft(key, Effects::Opaque, running()).0
}

pub(crate) fn draft(key: &str, effects: Effects, state: State<When>) -> (Id, Box<Draft>) {
    let (scope, key) = (Scope::stored([1; 32], Some("acme".into())), Key::stored(key));
    let id = Id::of(&scope, &key);
    let draft = Box::new(Record {
        scope,
        key,
        route: Some("POST /payments".into()),
        fingerprint: Fingerprint { version: 1, raw: [9; 32], canonical: None },
        terms: Terms {
            effects,
            lease: HOUR,
            deadline: 2 * HOUR,
            horizon: HOUR,
            retention: HOUR,
            downstream_retention: 24 * HOUR,
            reconcile_first: None,
        },
        attempt: 1,
        token: Token([5; 16]),
        relies_on_memory: false,
        created_at: When::WRITE,
        began_at: When::WRITE,
        written_at: When::WRITE,
        progress: Progress::default(),
        evidence: None,
        accepted: None,
        history: History::default(),
        trace: None,
        state,
    });
    (id, draft)
}

pub(crate) fn running() -> State<When> {
    State::Running { lapses_at: When::AfterWrite(HOUR) }
}

pub(crate) fn unknown() -> State<When> {
    let (reason, asking) = (Reason::ConnectionLost, Asking::default());
    State::Unknown { reason, since: When::WRITE, asking, ask_at: None, dead_letter: false }
}

pub(crate) fn completed(expires_at: When) -> State<When> {
    let body = Bytes::from_static(b"\x00 paid \xff");
    let response = Response { status: 201, headers: Vec::new(), body };
    State::Completed { response: Some(Arc::new(response)), by: Source::Attempt, expires_at }
}

pub(crate) fn message(key: &str) -> Message {
    Message::new(key, "billing", Bytes::from_static(b"\x00"))
}

/// Everything that the tests send.
pub(crate) fn wanted(lease: Duration) -> Wanted {
    Wanted { destination: message("any").destination, limit: 9, lease, on_dead: OnDead::Block }
}

/// A claim that nobody made.
pub(crate) fn claimed(key: &str, token: Token) -> Claimed {
    let Message { key, destination, payload, content_type, group, delay: age } = message(key);
    let (number, delivery, failures) = (1, 1, 0);
    Claimed {
        number,
        key,
        destination,
        payload: Ok(payload),
        content_type,
        group,
        delivery,
        failures,
        age,
        token,
    }
}

/// Inserts a record with this revision.
pub(crate) async fn insert(
    store: &dyn Store,
    (id, next): (Id, Box<Draft>),
    revision: u64,
) -> Result<Seen, Error> {
    let change = Change::new(None, Revision(revision), next);
    match store.swap(id, change).await? {
        Swapped::Applied(seen) => Ok(seen),
        Swapped::Lost(seen) => panic!("the swap must apply, and was lost to {seen:?}"),
    }
}

/// A completed record that is kept.
pub(crate) async fn put(store: &dyn Store, key: &str) -> Seen {
    let done = completed(When::AfterWrite(HOUR));
    insert(store, draft(key, Effects::Opaque, done), 1).await.unwrap()
}
