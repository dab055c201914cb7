//! Encryption at rest, on SQLite and PostgreSQL: what is in their files, what a missing key does, and how keys are changed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::machine;
use onlyonce_core::record::{
    Asking, Effects, Evidence, Id, Reason, Response, Revision, Seen, Source, State, StateName, Token, Verdict,
};
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::outbox::{Message, OnDead, Settled, Wanted};
use onlyonce_store::postgres::{self, Postgres};
use onlyonce_store::result::{PhaseResult, Results};
use onlyonce_store::seal::{Keyring, Unsealable};
use onlyonce_store::sqlite::{self, Sqlite};
use onlyonce_store::{Change, ErrorKind, Expired, KeyUse, Query, Store, Swapped, accepted};
use onlyonce_testkit::engines::postgres::Server;

use crate::sqlite::folder::Folder;
use crate::sqlite::world::{HOUR, draft, insert};

/// A keyring of made-up keys.
pub(crate) fn keyring(numbers: &[u8]) -> Keyring {
    Keyring::new(numbers.iter().map(|number| [*number; 32])).unwrap()
}

/// The plain texts that are stored, each in another place.
const HEADER: &str = "plain-header-of-an-answer";
const BODY: &str = "plain-body-of-an-answer";
const ARCHIVED: &str = "plain-body-in-the-archive";
const EVIDENCE: &str = "plain-body-in-evidence";
const FOUND: &str = "plain-body-that-a-phase-found";
const RESULT: &str = "plain-result-of-a-phase";
const PAYLOAD: &str = "plain-payload-of-a-message";
const REQUEST: &str = "plain-credential-in-a-request";
/// How each of them begins: the files of a server are large, and are searched once.
const BEGIN: &str = "plain-";
const TEXTS: [&str; 8] = [HEADER, BODY, ARCHIVED, EVIDENCE, FOUND, RESULT, PAYLOAD, REQUEST];

/// A store that can be closed and opened with other keys.
enum Place {
    Sqlite(Folder),
    Postgres(String),
}

impl Place {
    async fn open(&self, keys: &[u8]) -> Box<dyn Store> {
        let keyring = (!keys.is_empty()).then(|| keyring(keys));
        let expired = Expired::Keep;
        match self {
            Self::Sqlite(folder) => {
                let options = sqlite::Options { keyring, expired, ..sqlite::Options::default() };
                Box::new(Sqlite::open(folder.file(), options).await.unwrap())
            }
            Self::Postgres(url) => {
                let options = postgres::Options { keyring, expired, ..postgres::Options::default() };
                let store = Postgres::open(url, options).await.unwrap();
                store.prepare().await.unwrap();
                Box::new(store)
            }
        }
    }

    /// Runs SQL of an operator, or of an attacker.
    async fn sql(&self, store: &dyn Store, sql: &'static str) {
        match self {
            Self::Sqlite(_) => {
                let store = store.as_any().unwrap().downcast_ref::<Sqlite>().unwrap();
                let run = move |tx: &sqlite::Transaction<'_>| {
                    tx.execute_batch(sql).map_err(|error| Failed(error.to_string()))
                };
                store.write(run).await.unwrap();
            }
            Self::Postgres(url) => {
                let schema = url.rsplit_once("schema=").unwrap().1;
                Server::shared().sql(&format!("SET search_path = {schema}; {sql}"));
            }
        }
    }
}

#[derive(Debug)]
struct Failed(#[expect(dead_code, reason = "a test that fails shows it")] String);

impl From<onlyonce_store::Error> for Failed {
    fn from(error: onlyonce_store::Error) -> Self {
        Self(error.to_string())
    }
}

fn answer(header: &'static str, body: &'static str) -> Arc<Response> {
    let headers = vec![(HeaderName::from_static("x-note"), HeaderValue::from_static(header))];
    Arc::new(Response { status: 201, headers, body: Bytes::from_static(body.as_bytes()) })
}

fn completed(response: Arc<Response>, keep: Duration) -> State<When> {
    State::Completed { response: Some(response), by: Source::Attempt, expires_at: When::AfterWrite(keep) }
}

/// A state in which a record stays when its file is opened again.
fn unknown() -> State<When> {
    let (reason, asking) = (Reason::ConnectionLost, Asking::default());
    State::Unknown { reason, since: When::WRITE, asking, ask_at: None, dead_letter: false }
}

/// What was stored, and under which ids.
struct Stored {
    completed: (Id, Seen),
    evident: (Id, Seen),
    phased: (Id, Seen),
    /// Its request is encrypted, and nothing of the record itself.
    accepted: (Id, Seen),
}

fn result() -> PhaseResult {
    PhaseResult { number: 1, phase: "charge".into(), json: format!("\"{RESULT}\"").into() }
}

/// Writes every text once.
async fn store_all(store: &dyn Store) -> Stored {
    let gone = draft("archived", Effects::Opaque, completed(answer("x", ARCHIVED), Duration::ZERO));
    insert(store, gone, 1).await.unwrap();
    assert_eq!(store.reap(9).await.unwrap(), 1);
    let (id, next) = draft("completed", Effects::Opaque, completed(answer(HEADER, BODY), HOUR));
    let message = Message::new("m", "billing", Bytes::from_static(PAYLOAD.as_bytes()));
    let change = Change::new(None, Revision(2), next).with_messages(vec![message]);
    let completed = (id, applied(store.swap(id, change).await.unwrap()));
    let (id, mut next) = draft("evident", Effects::Opaque, unknown());
    next.evidence = Some(Box::new(Evidence {
        verdict: Verdict::Happened(Some(answer("x", EVIDENCE))),
        by: Source::Webhook,
        at: Timestamp::from_micros(7),
        attempt: 1,
        source: Some("bank".into()),
    }));
    let evident = (id, insert(store, (id, next), 3).await.unwrap());
    let (id, mut next) = draft("phased", Effects::Opaque, unknown());
    next.progress.found = Some(answer("x", FOUND));
    next.progress.recovery_point = Some("charge".into());
    let first = insert(store, (id, next), 4).await.unwrap();
    let change = Change::new(Some(first.revision), Revision(5), first.record.draft());
    let change = change.with_results(Results::Add(result()));
    let phased = (id, applied(store.swap(id, change).await.unwrap()));
    let (id, next) =
        draft("accepted", Effects::Opaque, State::Pending { expires_at: When::AfterWrite(HOUR) });
    let request = accepted::Request::Put(Bytes::from_static(REQUEST.as_bytes()));
    let change = Change::new(None, Revision(6), next).with_request(request);
    let accepted = (id, applied(store.swap(id, change).await.unwrap()));
    Stored { completed, evident, phased, accepted }
}

fn applied(swapped: Swapped) -> Seen {
    match swapped {
        Swapped::Applied(seen) => seen,
        Swapped::Lost(seen) => panic!("the swap must apply, and was lost to {seen:?}"),
    }
}

fn wanted() -> Wanted {
    Wanted { destination: "billing".into(), limit: 9, lease: Duration::ZERO, on_dead: OnDead::Block }
}

/// Every text can be read again as it was written.
async fn all_are_read(store: &dyn Store, stored: &Stored) {
    for (id, seen) in [&stored.completed, &stored.evident, &stored.phased, &stored.accepted] {
        assert_eq!(store.load(*id).await.unwrap().unwrap().record, seen.record);
    }
    let (id, seen) = &stored.accepted;
    assert_eq!(store.request(*id, seen.record.created_at).await.unwrap().unwrap(), REQUEST);
    let (id, seen) = &stored.phased;
    assert_eq!(store.results(*id, seen.record.created_at).await.unwrap(), [result()]);
    let outbox = store.outbox().unwrap();
    let claims = outbox.claim(Token([1; 16]), &[wanted()]).await.unwrap();
    assert_eq!(claims.claimed[0].payload, Ok(Bytes::from_static(PAYLOAD.as_bytes())));
    let payload = outbox.payload(claims.claimed[0].number).await.unwrap().unwrap();
    assert_eq!(payload.bytes.unwrap(), PAYLOAD);
    let page = store.scan(Query { order: onlyonce_store::Order::Archived, ..Query::all(9) }).await.unwrap();
    assert_eq!(machine::stored(&page.records[0].1.record).unwrap().0.body, ARCHIVED);
    assert_eq!(store.scan(Query::all(9)).await.unwrap().unreadable, []);
}

/// Which texts are in the files below `folder`.
fn texts_in(folder: &Path) -> Vec<&'static str> {
    let mut found: Vec<_> = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                found.extend(texts_of(&bytes));
            }
        }
    }
    TEXTS.into_iter().filter(|text| found.contains(text)).collect()
}

fn texts_of(bytes: &[u8]) -> impl Iterator<Item = &'static str> {
    let begins = bytes.windows(BEGIN.len()).enumerate().filter(|(_, window)| *window == BEGIN.as_bytes());
    begins.filter_map(|(at, _)| TEXTS.into_iter().find(|text| bytes[at..].starts_with(text.as_bytes())))
}

/// L05: no plain text is in any file of a store with keys: the file, its WAL and index, a backup. Without keys all are: the
/// search finds what is there.
#[tokio::test]
async fn no_file_of_a_sqlite_store_has_a_plain_text() {
    for (keys, expected) in [(&[1][..], &[][..]), (&[], &TEXTS)] {
        let place = Place::Sqlite(Folder::new());
        let Place::Sqlite(folder) = &place else { unreachable!("it is a file") };
        let store = place.open(keys).await;
        let stored = store_all(&*store).await;
        assert!(folder.path().join("onlyonce.db-wal").exists(), "it is looked into as well");
        assert_eq!(texts_in(folder.path()), expected);
        let backup = Folder::new();
        let engine = store.as_any().unwrap().downcast_ref::<Sqlite>().unwrap();
        engine.backup(backup.file(), |_| {}).await.unwrap();
        assert_eq!(texts_in(backup.path()), expected);
        all_are_read(&*store, &stored).await;
        drop(store);
        assert_eq!(texts_in(folder.path()), expected, "checkpointed and closed");
    }
}

/// L05: the same of the data folder of a server, its WAL included.
#[tokio::test]
async fn no_file_of_a_postgres_server_has_a_plain_text() {
    for (keys, expected) in [(&[1][..], &[][..]), (&[], &TEXTS)] {
        let server = Server::start(&[]).unwrap();
        let place = Place::Postgres(server.fresh_schema());
        let store = place.open(keys).await;
        let stored = store_all(&*store).await;
        server.sql("CHECKPOINT");
        let data = server.folder().join("data");
        if keys.is_empty() {
            for folder in ["pg_wal", "base"] {
                assert_eq!(
                    texts_in(&data.join(folder)),
                    expected,
                    "{folder}: the search finds what is there"
                );
            }
        } else {
            assert_eq!(texts_in(server.folder()), expected);
        }
        all_are_read(&*store, &stored).await;
    }
}

macro_rules! on_both {
    ($($(#[$meta:meta])* $test:ident;)*) => {
        mod on_sqlite {
            $($(#[$meta])* #[tokio::test]
            async fn $test() {
                super::$test(super::Place::Sqlite(super::Folder::new())).await;
            })*
        }

        mod on_postgres {
            $($(#[$meta])* #[tokio::test]
            async fn $test() {
                super::$test(super::Place::Postgres(super::Server::shared().fresh_schema())).await;
            })*
        }
    };
}

on_both! {
    /// L05
    a_record_whose_key_is_missing_is_refused_and_nothing_else_is;
    /// L05
    an_expired_record_whose_key_is_missing_is_deleted;
    /// L05
    what_was_stored_in_clear_stays_readable_once_keys_are_set;
    /// L05
    keys_are_changed_without_a_record_that_cannot_be_read;
    /// L05
    an_answer_that_was_altered_or_moved_in_the_database_is_corrupt;
}

async fn a_record_whose_key_is_missing_is_refused_and_nothing_else_is(place: Place) {
    let store = place.open(&[1]).await;
    let stored = store_all(&*store).await;
    drop(store);
    let missing = keyring(&[1]).first();
    for keys in [&[][..], &[2]] {
        let store = place.open(keys).await;
        for (id, seen) in [&stored.completed, &stored.evident, &stored.phased] {
            let error = store.load(*id).await.unwrap_err();
            assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Undecryptable, true), "{error}");
            assert!(error.to_string().contains(&missing.to_string()), "{error}");
            let unreadable = error.unreadable().unwrap();
            assert_eq!((unreadable.key_id, unreadable.revision), (missing, seen.revision));
            assert_eq!(unreadable.record.state.name(), seen.record.state.name());
            let again = Change::new(None, Revision(99), seen.record.draft());
            let error = store.swap(*id, again).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Undecryptable, "{error}");
        }
        let error = store.load(stored.completed.0).await.unwrap_err();
        let unreadable = error.unreadable().unwrap();
        assert_eq!((unreadable.status, unreadable.body_bytes), (Some(201), Some(BODY.len())));
        let (id, seen) = &stored.phased;
        let error = store.results(*id, seen.record.created_at).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Undecryptable, "{error}");
        let (id, seen) = &stored.accepted;
        assert_eq!(store.load(*id).await.unwrap().unwrap().record, seen.record, "nothing of it is encrypted");
        let error = store.request(*id, seen.record.created_at).await.unwrap_err();
        assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Undecryptable, true), "{error}");
        assert!(error.to_string().contains(&missing.to_string()), "{error}");
        let outbox = store.outbox().unwrap();
        let claimed = outbox.claim(Token([2; 16]), &[wanted()]).await.unwrap().claimed.remove(0);
        assert_eq!(claimed.payload, Err(Unsealable::MissingKey(missing)));
        let error = outbox.payload(claimed.number).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Undecryptable, "{error}");
        others_are_served(&*store, keys.len()).await;
        let unknown = KeyUse { id: missing, rows: 7, is_known: false };
        assert!(store.keys_in_use().await.unwrap().contains(&unknown));
        drop(store);
    }
    let store = place.open(&[3, 2, 1]).await;
    all_are_read(&*store, &stored).await;
}

/// Records that can be read are written, read, listed and counted beside three that cannot.
async fn others_are_served(store: &dyn Store, round: usize) {
    let key = format!("other {round}");
    let (id, next) = draft(&key, Effects::Opaque, completed(answer("x", "y"), HOUR));
    insert(store, (id, next), 6).await.unwrap();
    assert_eq!(machine::stored(&store.load(id).await.unwrap().unwrap().record).unwrap().0.body, "y");
    let mut found = (Vec::new(), Vec::new());
    let mut query = Query::all(1);
    loop {
        let page = store.scan(query.clone()).await.unwrap();
        assert_eq!(page.records.len() + page.unreadable.len(), 1, "a page of each");
        found.0.extend(page.records.into_iter().map(|(id, _)| id));
        found.1.extend(page.unreadable.iter().map(|unreadable| unreadable.record.key.as_str().to_owned()));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    found.1.sort();
    assert!(found.0.contains(&id));
    assert_eq!(&found.1[..3], ["completed", "evident", "phased"]);
    let counts = store.count().await.unwrap();
    let completed = counts.iter().find(|(state, _)| *state == StateName::Completed).unwrap();
    assert!(completed.1.number().unwrap() >= 2);
}

async fn an_expired_record_whose_key_is_missing_is_deleted(place: Place) {
    let store = place.open(&[1]).await;
    let keep = Duration::from_millis(1);
    let gone = draft("gone", Effects::Opaque, completed(answer(HEADER, BODY), keep));
    let id = gone.0;
    insert(&*store, gone, 1).await.unwrap();
    insert(&*store, draft("kept", Effects::Opaque, completed(answer(HEADER, BODY), HOUR)), 2).await.unwrap();
    drop(store);
    let store = place.open(&[]).await;
    while store.reap(9).await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.load(id).await.unwrap(), None);
    assert_eq!(store.reap(9).await.unwrap(), 0);
    drop(store);
    let store = place.open(&[1]).await;
    let archived = store.archived(id, 9).await.unwrap().unwrap();
    assert_eq!(machine::stored(&archived[0]).unwrap().0.body, BODY, "the archive is encrypted too");
}

async fn what_was_stored_in_clear_stays_readable_once_keys_are_set(place: Place) {
    let store = place.open(&[]).await;
    let stored = store_all(&*store).await;
    assert_eq!(store.keys_in_use().await.unwrap(), []);
    drop(store);
    let store = place.open(&[1]).await;
    all_are_read(&*store, &stored).await;
    // The next write of a record encrypts it.
    let (id, seen) = &stored.evident;
    let change = Change::new(Some(seen.revision), Revision(50), seen.record.draft());
    applied(store.swap(*id, change).await.unwrap());
    let used = KeyUse { id: keyring(&[1]).first(), rows: 1, is_known: true };
    assert_eq!(store.keys_in_use().await.unwrap(), [used]);
    drop(store);
    let store = place.open(&[]).await;
    assert_eq!(store.load(*id).await.unwrap_err().kind(), ErrorKind::Undecryptable, "switched off");
}

/// New key last everywhere, new key first everywhere, old key out once nothing needs it.
async fn keys_are_changed_without_a_record_that_cannot_be_read(place: Place) {
    let steps: [[&[u8]; 3]; 7] = [
        [&[1], &[1], &[1]],
        [&[1, 2], &[1], &[1]],
        [&[1, 2], &[1, 2], &[1, 2]],
        [&[2, 1], &[1, 2], &[1, 2]],
        [&[2, 1], &[2, 1], &[2, 1]],
        [&[2, 1], &[2, 1], &[2]],
        [&[2], &[2], &[2]],
    ];
    let mut ids = Vec::new();
    for (step, nodes) in steps.into_iter().enumerate() {
        if step == 5 {
            forget_what_needs_the_old_key(&place, &mut ids).await;
        }
        for (node, keys) in nodes.into_iter().enumerate() {
            let (id, next) =
                draft(&format!("{step} {node}"), Effects::Opaque, completed(answer(HEADER, BODY), HOUR));
            let store = place.open(keys).await;
            insert(&*store, (id, next), 1).await.unwrap();
            ids.push(id);
        }
        // A file has one process, so its nodes take turns.
        for keys in nodes {
            let store = place.open(keys).await;
            for id in &ids {
                let seen = store.load(*id).await.unwrap().unwrap();
                assert_eq!(machine::stored(&seen.record).unwrap().0.body, BODY, "step {step}");
            }
        }
    }
}

/// Deletes, as expiry would, what is encrypted with key 1; then nothing needs it.
async fn forget_what_needs_the_old_key(place: &Place, ids: &mut Vec<Id>) {
    let old = keyring(&[1]).first();
    let is_needed = |used: Vec<KeyUse>| used.iter().any(|used| used.id == old);
    let store = place.open(&[2, 1]).await;
    assert!(is_needed(store.keys_in_use().await.unwrap()));
    drop(store);
    let store = place.open(&[2]).await;
    let page = store.scan(Query::all(100)).await.unwrap();
    assert!(!page.unreadable.is_empty() && page.unreadable.iter().all(|unreadable| unreadable.key_id == old));
    drop(store);
    let store = place.open(&[2, 1]).await;
    for unreadable in page.unreadable {
        let mut next = unreadable.record.draft();
        next.state = completed(answer("x", "y"), Duration::ZERO);
        let change = Change::new(Some(unreadable.revision), Revision(77), next);
        applied(store.swap(unreadable.id(), change).await.unwrap());
        ids.retain(|id| *id != unreadable.id());
    }
    while !store.scan(Query::due(machine::EXPIRING, 9)).await.unwrap().records.is_empty() {
        store.reap(100).await.unwrap();
    }
    assert!(!is_needed(store.keys_in_use().await.unwrap()), "doctor would say so");
}

async fn an_answer_that_was_altered_or_moved_in_the_database_is_corrupt(place: Place) {
    let store = place.open(&[1]).await;
    let stored = store_all(&*store).await;
    let (other, next) = draft("other", Effects::Opaque, completed(answer(HEADER, "another answer"), HOUR));
    insert(&*store, (other, next), 9).await.unwrap();
    place
        .sql(
            &*store,
            "UPDATE onlyonce_record SET body = (SELECT body FROM onlyonce_record WHERE key = 'other') WHERE key = 'completed';
             UPDATE onlyonce_outbox SET key = 'another';
             UPDATE onlyonce_result SET number = 2;
             UPDATE onlyonce_request SET request = (SELECT body FROM onlyonce_record WHERE key = 'other')",
        )
        .await;
    let error = store.load(stored.completed.0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("the encrypted column \"body\" was altered"), "{error}");
    assert!(store.load(other).await.unwrap().is_some());
    let (id, seen) = &stored.phased;
    let error = store.results(*id, seen.record.created_at).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let (id, seen) = &stored.accepted;
    let error = store.request(*id, seen.record.created_at).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let outbox = store.outbox().unwrap();
    let claimed = outbox.claim(Token([3; 16]), &[wanted()]).await.unwrap().claimed.remove(0);
    assert_eq!(claimed.payload, Err(Unsealable::Altered));
    let delivered = Settled::Delivered { provider_id: None };
    assert!(outbox.settle(&claimed, delivered).await.unwrap());
    let old = keyring(&[1]).first();
    let rows = store.keys_in_use().await.unwrap().iter().find(|used| used.id == old).map(|used| used.rows);
    assert_eq!(rows, Some(7), "a delivered message needs no key");
}
