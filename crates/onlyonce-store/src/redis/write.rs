//! The one write of a record: compare and swap.
//!
//! ```text
//!   insert   ZADD due · SET NX GET · TIME               nothing to compare: plain commands
//!   update   [ZADD due] · SWAP · [ZADD due] · TIME      one script, on one key
//!   with …   INSERT_WITH or UPDATE_WITH · TIME          one script: the record and all that goes with it
//! ```
//!
//! 1. **The list of what is due is never late.** It is written before the record, so that a record that stands there is listed. On an
//!    update it is written again after the record: meanwhile somebody may have listed the record by its old due time.
//! 2. An update that is due later than [`LISTED_WITHIN`] leaves the list alone: its entry is earlier already. Where it is not,
//!    the script says so and writes nothing, and the update is sent again with the list.
//!    In a cluster every update begins so, since list and record may be on two servers while their slot moves, and the list must
//!    come first.
//! 3. When memory is full, `ZADD` is refused and the script is not: then the record is listed by a script of its own.
//! 4. The stamp is this node's (`clock.rs`). One that is before the record's last is refused by the script, and made anew.

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::record::{Draft, Id, Revision, Seen};
use onlyonce_core::time::{Timestamp, When};
use redis::{Pipeline, Value};

use super::connection::Answers;
use super::failure::Failure;
use super::layout::{self, Keys, bucket_of, score};
use super::{Redis, audit, script};
use crate::accepted::Request;
use crate::result::Results;
use crate::sql::{Columns, Sealing};
use crate::{Attached, Change, Error, ErrorKind, Swapped, failpoint};

/// What is due later than so is not listed anew by an update.
const LISTED_WITHIN: Duration = Duration::from_secs(3_600);
/// How often a write is sent: again with another stamp, or with the list.
const SENT_MAX: u32 = 5;

/// A write, before it is stamped.
struct Write<'a> {
    redis: &'a Redis,
    id: Id,
    expected: Option<Revision>,
    revision: Revision,
    draft: &'a Draft,
    with: &'a Attached,
    sealing: Option<&'a Sealing>,
}

/// What the server said to a write.
enum Said {
    Written,
    /// The list must be written with it.
    List,
    /// The record was written at this moment: the stamp must not be before it.
    Stamp(Timestamp),
    /// This stands there, where anything does.
    Lost(Option<Vec<u8>>),
}

pub(super) async fn swap(redis: &Redis, id: Id, mut change: Change) -> Result<Swapped, Error> {
    if !change.with.messages.is_empty() {
        let message = "this store is Redis, which keeps no messages; use PostgreSQL or SQLite for handlers that send any";
        // Of this kind, since it is about one handler: the store can be used.
        return Err(Error::new(ErrorKind::Other, message).having_written_nothing());
    }
    let sealing = Sealing::of(redis.keyring.as_ref(), &id, &change.next, &mut change.with);
    let write = Write {
        redis,
        id,
        expected: change.expected,
        revision: change.revision,
        draft: &change.next,
        with: &change.with,
        sealing: sealing.as_deref(),
    };
    let (mut floor, mut is_listed) = (Timestamp::from_micros(0), false);
    for _ in 0..SENT_MAX {
        let at = redis.writes.stamp(&redis.keys.record(id), floor).await?;
        failpoint!("redis.write.before");
        let (said, now) = write.send(at, is_listed).await?;
        failpoint!("redis.write.after");
        match said {
            Said::Written => {
                let record = Arc::new(change.next.stamp(at));
                return Ok(Swapped::Applied(Seen { record, revision: change.revision, now: now.max(at) }));
            }
            Said::List => is_listed = true,
            Said::Stamp(last) => floor = last,
            Said::Lost(None) => return Ok(Swapped::Lost(None)),
            Said::Lost(Some(value)) => return Ok(Swapped::Lost(Some(redis.seen(id, &value, now)?))),
        }
    }
    let message =
        format!("record {id} was written by others {SENT_MAX} times while this node stamped its own write");
    Err(Error::new(ErrorKind::Busy, message).having_written_nothing())
}

impl Write<'_> {
    /// Sends the write, stamped with `at`.
    async fn send(&self, at: Timestamp, is_listed: bool) -> Result<(Said, Timestamp), Error> {
        let columns = Columns::of(self.draft, self.sealing);
        let value = layout::encode(&columns, self.revision, self.draft.expires(), at);
        let due_at = columns.due.stamp(at);
        let open_since = open_since(self.draft, &columns).map(|since| since.stamp(at));
        match self.expected {
            _ if !self.with.is_empty() || open_since.is_some() => {
                self.send_with(&value, due_at, open_since, at).await
            }
            None => self.insert(&value, due_at).await,
            Some(expected) => {
                // While a slot moves, list and record may be on two servers.
                let is_ordered = !self.redis.writes.database().is_cluster;
                let is_soon = due_at.is_some_and(|due_at| due_at <= at.plus(LISTED_WITHIN));
                if is_listed && !is_ordered {
                    let mut first = Pipeline::new();
                    self.list(&mut first, due_at);
                    self.redis.writes.ask(first).await?;
                }
                let is_listed = is_listed || (is_ordered && is_soon);
                self.update(expected, &value, due_at, is_listed).await
            }
        }
    }

    async fn insert(&self, value: &[u8], due_at: Option<Timestamp>) -> Result<(Said, Timestamp), Error> {
        let mut trip = Pipeline::new();
        self.list(&mut trip, due_at);
        trip.cmd("SET").arg(self.keys().record(self.id)).arg(value).arg("NX").arg("GET");
        let mut answers = self.redis.writes.ask(trip).await?;
        let listed = answers.integer();
        let stands = answers.bytes()?;
        let listed =
            listed.map_err(|failure| if stands.is_none() { failure.after_others() } else { failure })?;
        if stands.is_none() && listed == 0 {
            // The entry was there before the record, so it was that of a record that was deleted in between, and may have
            // gone with it.
            let mut again = Pipeline::new();
            self.list(&mut again, due_at);
            let listed = self.redis.writes.ask(again).await.and_then(Answers::finish);
            listed.map_err(Failure::after_others)?;
        }
        Ok((stands.map_or(Said::Written, |stands| Said::Lost(Some(stands))), answers.now))
    }

    async fn update(
        &self,
        expected: Revision,
        value: &[u8],
        due_at: Option<Timestamp>,
        is_listed: bool,
    ) -> Result<(Said, Timestamp), Error> {
        let mut trip = Pipeline::new();
        if is_listed {
            self.list(&mut trip, due_at);
        }
        script::call(&mut trip, &script::SWAP, &[self.keys().record(self.id)])
            .arg(layout::revision_text(expected))
            .arg(value)
            .arg(u8::from(is_listed));
        if is_listed {
            self.list(&mut trip, due_at);
        }
        let mut answers = self.redis.writes.ask(trip).await?;
        let listed_before = if is_listed { answers.integer() } else { Ok(0) };
        let said = said(&mut answers)?;
        let listed = listed_before.and(if is_listed { answers.integer() } else { Ok(0) });
        if listed.is_err() && matches!(said, Said::Written) {
            self.relist(due_at).await?;
        }
        Ok((said, answers.now))
    }

    /// Lists the record by a script, which may also do so when memory is full.
    async fn relist(&self, due_at: Option<Timestamp>) -> Result<(), Error> {
        let mut trip = Pipeline::new();
        let keys = [self.keys().due(bucket_of(self.id)), self.keys().record(self.id)];
        script::call(&mut trip, &script::RELIST, &keys)
            .arg(layout::revision_text(self.revision))
            .arg(&self.id.0)
            .arg(score(due_at));
        let listed = self.redis.writes.ask(trip).await.and_then(Answers::finish);
        listed.map_err(Failure::after_others)?;
        Ok(())
    }

    async fn send_with(
        &self,
        value: &[u8],
        due_at: Option<Timestamp>,
        open_since: Option<Timestamp>,
        at: Timestamp,
    ) -> Result<(Said, Timestamp), Error> {
        let (script, expected) = match self.expected {
            None => (&script::INSERT_WITH, String::new()),
            Some(expected) => (&script::UPDATE_WITH, layout::revision_text(expected)),
        };
        let mut commands = Commands::new(self.keys().record(self.id));
        self.attach(&mut commands, due_at, open_since, at);
        let mut trip = Pipeline::new();
        script::call(&mut trip, script, &commands.keys).arg(expected).arg(value);
        for word in &commands.words {
            trip.arg(word);
        }
        let mut answers = self.redis.writes.ask(trip).await?;
        Ok((said(&mut answers)?, answers.now))
    }

    /// The commands that go with the record.
    fn attach(
        &self,
        commands: &mut Commands,
        due_at: Option<Timestamp>,
        open_since: Option<Timestamp>,
        at: Timestamp,
    ) {
        let (keys, id, bucket) = (self.keys(), &self.id.0[..], bucket_of(self.id));
        let used_at = self.draft.created_at.stamp(at);
        commands.add("ZADD", keys.due(bucket), &[b"LT", score(due_at).as_bytes(), id]);
        if open_since.is_some() {
            commands.add("ZADD", keys.open(bucket), &[score(open_since).as_bytes(), id]);
        }
        match &self.with.results {
            Results::Keep => {}
            Results::Drop => commands.add("DEL", keys.results(self.id), &[]),
            Results::Add(result) => {
                let sealed = self.sealing.and_then(|sealing| sealing.result.as_deref());
                let value = layout::encode_result(used_at, result, sealed);
                commands.add("HSET", keys.results(self.id), &[result.number.to_string().as_bytes(), &value]);
            }
        }
        match &self.with.request {
            Request::Keep => {}
            Request::Drop => {
                commands.add("DEL", keys.request(self.id), &[]);
                commands.add("SREM", keys.requests(bucket), &[id]);
            }
            Request::Put(request) => {
                let key_id = self.sealing.and_then(Sealing::request_key);
                let value = layout::encode_request(used_at, request, key_id);
                commands.add("SET", keys.request(self.id), &[&value]);
                commands.add("SADD", keys.requests(bucket), &[id]);
            }
        }
        if let Some(entry) = &self.with.audit {
            let [written, listed] = [keys.entries(bucket), keys.log(bucket)];
            commands.add("HSETNX", written, &[entry.id.as_bytes(), &audit::encode(entry)]);
            commands.add("ZADD", listed, &[b"NX", score(Some(at)).as_bytes(), entry.id.as_bytes()]);
        }
    }

    /// Lists the record by when it is due, unless it is listed earlier.
    fn list(&self, trip: &mut Pipeline, due_at: Option<Timestamp>) {
        let key = self.keys().due(bucket_of(self.id));
        trip.cmd("ZADD").arg(key).arg("LT").arg(score(due_at)).arg(&self.id.0);
    }

    fn keys(&self) -> &Keys {
        &self.redis.keys
    }
}

/// Commands for a script.
struct Commands {
    keys: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
}

impl Commands {
    fn new(record: Vec<u8>) -> Self {
        Self { keys: vec![record], words: Vec::new() }
    }

    fn add(&mut self, name: &str, key: Vec<u8>, more: &[&[u8]]) {
        self.words.push((2 + more.len()).to_string().into_bytes());
        self.words.extend([name.as_bytes().to_vec(), key.clone()]);
        self.words.extend(more.iter().map(|word| word.to_vec()));
        self.keys.push(key);
    }
}

/// By when it is listed as open: since when nobody knows the outcome, or when it was accepted.
fn open_since(draft: &Draft, columns: &Columns<'_>) -> Option<When> {
    columns.unknown_since.or_else(|| machine::is_accepted(draft).then_some(columns.created_at))
}

/// What a script said.
#[allow(clippy::wildcard_enum_match_arm, reason = "any other kind of answer is an error")]
fn said(answers: &mut Answers) -> Result<Said, Error> {
    Ok(match answers.value()? {
        Value::Int(0) => Said::List,
        Value::Int(1) => Said::Written,
        Value::Int(stamp) => Said::Stamp(Timestamp::from_micros(stamp)),
        Value::Nil => Said::Lost(None),
        Value::BulkString(value) => Said::Lost(Some(value)),
        _ => return Err(answers.misunderstood().into()),
    })
}
