//! Redis in front of a database: copies of completed records, which all nodes share.
//!
//! | | |
//! |---|---|
//! | key | the prefix of the URL, `:c:`, the store's name (16 bytes), the record's id (32 bytes) |
//! | value | version · epoch (8 bytes) · the record as in `layout.rs`, with `written_at`, revision and `expires_at` · SHA-256 of the key and all that |
//! | time to live | what the layer says, an hour at most |
//!
//! What the store encrypts is encrypted here, with the same keys. The sum finds bytes that were altered and values of another
//! key; it is no signature: who may write here may forge a copy.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use redis::{Pipeline, Value};
use sha2::{Digest, Sha256};

use super::clock::Clock;
use super::connection::Link;
use super::layout::{self, Keys};
use super::url::Database;
use crate::copies::{self, Copy, CopyOf};
use crate::seal::Keyring;
use crate::sql::{Columns, Sealing};
use crate::{Attached, Epoch, Error, ErrorKind, Finding, Level};

const VERSION: u8 = 1;
const EPOCH_BYTES: usize = 8;
const SUM_BYTES: usize = 32;
/// A larger copy is not kept: whoever waits for another one would wait for it too.
const COPY_BYTES_MAX: usize = 256 << 10;
/// How long the server may take before its connection is given up. No request waits so long.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Copies of completed records in Redis; see [`crate::copies`].
pub struct Copies {
    /// What requests wait for.
    looks: Link,
    /// What nobody waits for: a large copy holds up no look.
    background: Link,
    keyring: Option<Keyring>,
}

impl Copies {
    /// Connects to the server of a URL, of the form that [`super::Redis::open`] takes. Nothing is changed there. Its settings need
    /// not be those of a store: copies may be lost.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL or the login is wrong; `Unavailable` where the server does not answer in time, or is a
    /// replica. Never with the password.
    pub async fn open(url: &str, keyring: Option<Keyring>) -> Result<Self, Error> {
        let database = Arc::new(Database::parse(url)?);
        let clock = Arc::new(Clock::new(Arc::default()));
        let link = || Link::new(&database, &clock, ANSWERS_WITHIN);
        let copies = Self { looks: link(), background: link(), keyring };
        // The command that requests will send: a user that may not is refused now.
        let mut trip = Pipeline::new();
        trip.cmd("GET").arg(copies.key(&CopyOf { store: [0; 16], id: Id([0; 32]) }));
        copies.looks.ask(trip).await?.finish()?;
        Ok(copies)
    }

    /// What a URL names, safe to show: hosts, ports and number of the database, nothing secret.
    ///
    /// # Errors
    ///
    /// `Misconfigured` where the URL cannot be used. It does not connect.
    pub fn shown(url: &str) -> Result<String, Error> {
        super::Redis::shown(url)
    }

    fn key(&self, of: &CopyOf) -> Vec<u8> {
        let mut key = format!("{}:c:", self.looks.database().prefix).into_bytes();
        key.extend_from_slice(&of.store);
        key.extend_from_slice(&of.id.0);
        key
    }
}

#[async_trait]
impl copies::Copies for Copies {
    async fn find(&self, of: CopyOf) -> Result<Option<Copy>, Error> {
        let key = self.key(&of);
        let mut trip = Pipeline::new();
        trip.cmd("GET").arg(&key);
        let value = self.looks.ask(trip).await?.bytes()?;
        value.map(|value| decode(&of, &key, &value, self.keyring.as_ref())).transpose()
    }

    async fn put(&self, of: CopyOf, copy: Copy, keep_for: Duration) -> Result<(), Error> {
        let key = self.key(&of);
        let value = encode(&of, &key, &copy, self.keyring.as_ref());
        if value.len() > COPY_BYTES_MAX {
            return Ok(());
        }
        let millis = u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX);
        let mut trip = Pipeline::new();
        trip.cmd("SET").arg(&key).arg(value).arg("PX").arg(millis);
        self.background.ask(trip).await?.finish()?;
        Ok(())
    }

    async fn remove(&self, of: CopyOf) -> Result<(), Error> {
        let mut trip = Pipeline::new();
        trip.cmd("UNLINK").arg(self.key(&of));
        self.looks.ask(trip).await?.finish()?;
        Ok(())
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let keys = Keys { prefix: self.looks.database().prefix.clone() };
        let mut trip = Pipeline::new();
        trip.cmd("GET").arg(keys.layout());
        // A user that may only use copies may not look at records.
        let is_store = self.background.ask(trip).await?.bytes().is_ok_and(|layout| layout.is_some());
        let mut found = Vec::new();
        for (_, master) in self.background.masters().await? {
            let mut trip = Pipeline::new();
            trip.cmd("INFO").arg("memory");
            let mut answers = master.ask(trip).await?;
            let info = text(answers.value()?).ok_or_else(|| answers.misunderstood())?;
            // What masters of a cluster have in common is said once.
            let new = findings(self.looks.database(), &info, is_store);
            let new: Vec<_> = new.into_iter().filter(|finding| !found.contains(finding)).collect();
            found.extend(new);
        }
        Ok(found)
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").field("at", &self.looks.database().shown).finish_non_exhaustive()
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "any other kind of answer is an error")]
fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

fn findings(database: &Database, info: &str, is_store: bool) -> Vec<Finding> {
    let told = |name: &str| {
        let lines = info.lines().filter_map(|line| line.trim().split_once(':'));
        lines.into_iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    };
    let shown = &database.shown;
    let mut findings = Vec::new();
    let mut warn = |code, says: String, remedy: &str| {
        findings.push(Finding { level: Level::Warning, code, says, remedy: remedy.to_owned() });
    };
    let why = match (told("maxmemory"), told("maxmemory_policy")) {
        // A service may tell neither.
        ("", _) | (_, "") => None,
        ("0", _) => Some("maxmemory is 0".to_owned()),
        (_, policy @ "noeviction") => Some(format!("maxmemory-policy is {policy}")),
        (_, _) => None,
    };
    if let Some(why) = why {
        warn(
            "cache.evicts_nothing",
            format!("the cache at {shown} evicts nothing: {why}; when memory is full, no copy is added"),
            "set maxmemory, and maxmemory-policy allkeys-lru",
        );
    }
    if is_store {
        warn(
            "cache.is_store",
            format!("the cache at {shown} is a store as well: prefix \"{}\" has records", database.prefix),
            "use a Redis of its own for the cache: a store must evict nothing, and a cache should",
        );
    }
    findings
}

fn encode(of: &CopyOf, key: &[u8], copy: &Copy, keyring: Option<&Keyring>) -> Vec<u8> {
    let draft = copy.record.draft();
    let sealing = Sealing::of(keyring, &of.id, &draft, &mut Attached::default());
    let columns = Columns::of(&draft, sealing.as_deref());
    let at = copy.record.written_at;
    let record = layout::encode(&columns, copy.revision, draft.expires(), at);
    let mut value = Vec::with_capacity(1 + EPOCH_BYTES + record.len() + SUM_BYTES);
    value.push(VERSION);
    value.extend_from_slice(&copy.epoch.0.to_be_bytes());
    value.extend_from_slice(&record);
    let sum = sum(key, &value);
    value.extend_from_slice(&sum);
    value
}

/// # Errors
///
/// `Corrupt` where it is no copy of this record that this release has made, `Undecryptable` where its key is missing.
fn decode(of: &CopyOf, key: &[u8], value: &[u8], keyring: Option<&Keyring>) -> Result<Copy, Error> {
    let corrupt = |what: &str| {
        let id = of.id;
        Error::new(ErrorKind::Corrupt, format!("the copy of record {id} is not used: {what}"))
    };
    let (told, their_sum) =
        value.split_last_chunk::<SUM_BYTES>().ok_or_else(|| corrupt("it is cut short"))?;
    if sum(key, told) != *their_sum {
        return Err(corrupt("its bytes were altered, or are those of another key"));
    }
    let (version, told) = told.split_first().ok_or_else(|| corrupt("it is cut short"))?;
    if *version != VERSION {
        return Err(corrupt("another release has made it"));
    }
    let (epoch, record) =
        told.split_first_chunk::<EPOCH_BYTES>().ok_or_else(|| corrupt("it is cut short"))?;
    let (row, _) = layout::decode(&of.id, record)?;
    let seen = row.seen(Timestamp::from_micros(row.written_at), keyring)?;
    Ok(Copy { epoch: Epoch(u64::from_be_bytes(*epoch)), record: seen.record, revision: seen.revision })
}

fn sum(key: &[u8], value: &[u8]) -> [u8; SUM_BYTES] {
    let length = (key.len() as u64).to_be_bytes();
    Sha256::new().chain_update(length).chain_update(key).chain_update(value).finalize().into()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderName, HeaderValue};
    use onlyonce_core::fingerprint::Fingerprint;
    use onlyonce_core::history::History;
    use onlyonce_core::key::Key;
    use onlyonce_core::policy::Policy;
    use onlyonce_core::record::{Progress, Record, Response, Revision, Source, State, Token};
    use onlyonce_core::scope::Scope;

    use super::*;

    const AT: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn of(key: &str) -> CopyOf {
        let scope = Scope::stored([7; 32], None);
        CopyOf { store: [1; 16], id: Id::of(&scope, &Key::stored(key)) }
    }

    fn copy() -> Copy {
        let header = (HeaderName::from_static("x-header"), HeaderValue::from_static("s3cret header"));
        let response =
            Response { status: 201, headers: vec![header], body: Bytes::from_static(b"s3cret body") };
        let record = Record {
            scope: Scope::stored([7; 32], None),
            key: Key::stored("k"),
            route: Some("POST /payments".into()),
            fingerprint: Fingerprint { version: 1, raw: [1; 32], canonical: None },
            terms: Policy::default().terms(),
            attempt: 1,
            token: Token([1; 16]),
            relies_on_memory: false,
            created_at: AT,
            began_at: AT,
            written_at: AT,
            progress: Progress::default(),
            evidence: None,
            accepted: None,
            history: History::default(),
            trace: None,
            state: State::Completed {
                response: Some(Arc::new(response)),
                by: Source::Attempt,
                expires_at: AT.plus(Duration::from_secs(3_600)),
            },
        };
        Copy { epoch: Epoch(7), record: Arc::new(record), revision: Revision(u64::MAX - 1) }
    }

    /// E04, L05: what comes back is what was put there, and nothing else comes back.
    #[test]
    fn a_copy_is_read_as_it_was_written_or_not_at_all() {
        let keyring = Keyring::new([[7; 32]]).unwrap();
        for keyring in [None, Some(&keyring)] {
            let value = encode(&of("k"), b"key", &copy(), keyring);
            assert_eq!(decode(&of("k"), b"key", &value, keyring).unwrap(), copy());
            let has = |plain: &[u8]| value.windows(plain.len()).any(|window| window == plain);
            assert_eq!(has(b"s3cret header") || has(b"s3cret body"), keyring.is_none());
            let refused = |of: &CopyOf, key: &[u8], value: &[u8]| {
                decode(of, key, value, keyring).map_err(|error| error.kind()) == Err(ErrorKind::Corrupt)
            };
            for place in 0..value.len() {
                let mut altered = value.clone();
                altered[place] ^= 1;
                assert!(refused(&of("k"), b"key", &altered), "byte {place}");
                assert!(refused(&of("k"), b"key", &value[..place]), "cut at {place}");
            }
            assert!(refused(&of("k"), b"another key", &value), "from elsewhere");
            // Even with a sum that is right.
            assert!(refused(&of("another"), b"key", &value), "another record");
            let mut newer = value[..value.len() - SUM_BYTES].to_vec();
            newer[0] = VERSION + 1;
            newer.extend_from_slice(&sum(b"key", &newer));
            assert!(refused(&of("k"), b"key", &newer), "of another release");
        }
        let sealed = encode(&of("k"), b"key", &copy(), Some(&keyring));
        for other in [None, Some(&Keyring::new([[8; 32]]).unwrap())] {
            let error = decode(&of("k"), b"key", &sealed, other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Undecryptable);
        }
    }

    fn codes(info: &str, is_store: bool) -> Vec<&'static str> {
        let database = Database::parse("redis://localhost").unwrap();
        findings(&database, info, is_store).iter().map(|finding| finding.code).collect()
    }

    /// E04, E07
    #[test]
    fn a_cache_that_evicts_nothing_or_is_a_store_is_told() {
        let evicts = "# Memory\r\nmaxmemory:1000000\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(codes(evicts, false), [""; 0]);
        assert_eq!(codes("maxmemory:1000000\r\nmaxmemory_policy:volatile-lru\r\n", false), [""; 0]);
        assert_eq!(codes("", false), [""; 0], "a service that tells nothing");
        let full = "maxmemory:1000000\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(codes(full, false), ["cache.evicts_nothing"]);
        let unbounded = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(codes(unbounded, true), ["cache.evicts_nothing", "cache.is_store"]);
    }
}
