//! Short ways to make records and write them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Draft, Effects, Id, Progress, Record, Response, Revision, Seen, Source, State, Terms, Token,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::When;
use onlyonce_store::outbox::Message;
use onlyonce_store::{Change, Error, Store, Swapped};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn id(key: &str) -> Id {
    draft(key, running()).0
}

pub(crate) fn draft(key: &str, state: State<When>) -> (Id, Box<Draft>) {
    let (scope, key) = (Scope::stored([1; 32], Some("acme".into())), Key::stored(key));
    let id = Id::of(&scope, &key);
    let draft = Box::new(Record {
        scope,
        key,
        route: Some("POST /payments".into()),
        fingerprint: Fingerprint { version: 1, raw: [9; 32], canonical: None },
        terms: Terms {
            effects: Effects::Opaque,
            lease: HOUR,
            deadline: 2 * HOUR,
            horizon: HOUR,
            retention: HOUR,
            downstream_retention: 24 * HOUR,
        },
        attempt: 1,
        token: Token([5; 16]),
        relies_on_memory: false,
        created_at: When::WRITE,
        began_at: When::WRITE,
        written_at: When::WRITE,
        progress: Progress::default(),
        evidence: None,
        state,
    });
    (id, draft)
}

pub(crate) fn running() -> State<When> {
    State::Running { lapses_at: When::AfterWrite(HOUR) }
}

pub(crate) fn completed(expires_at: When) -> State<When> {
    let response = Response { status: 201, headers: Vec::new(), body: Bytes::from_static(b"paid") };
    State::Completed { response: Some(Arc::new(response)), by: Source::Attempt, expires_at }
}

pub(crate) fn message(key: &str) -> Message {
    Message::new(key, "billing", Bytes::from_static(b"\x00"))
}

pub(crate) fn change(expected: Option<u64>, revision: u64, next: Box<Draft>) -> Change {
    Change::new(expected.map(Revision), Revision(revision), next)
}

/// Inserts a record with this revision.
pub(crate) async fn insert(
    store: &dyn Store,
    (id, next): (Id, Box<Draft>),
    revision: u64,
) -> Result<Seen, Error> {
    Ok(applied(store.swap(id, change(None, revision, next)).await?))
}

#[track_caller]
pub(crate) fn applied(swapped: Swapped) -> Seen {
    match swapped {
        Swapped::Applied(seen) => seen,
        Swapped::Lost(seen) => panic!("the swap must apply, and was lost to {seen:?}"),
    }
}

/// A completed record that is kept.
pub(crate) async fn put(store: &dyn Store, key: &str) -> Seen {
    insert(store, draft(key, completed(When::AfterWrite(HOUR))), 1).await.unwrap()
}
