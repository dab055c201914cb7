//! The log of what operators changed.
//!
//! An entry stands in the part of the record that it is about, so that it is written with the change; one that is about no
//! record stands in the first part. Its id is unique in that part: what is sent twice is written once.

use std::time::Duration;

use onlyonce_core::time::Timestamp;
use redis::Pipeline;
use sha2::{Digest, Sha256};

use super::layout::{bucket_of, buckets, score};
use super::{Redis, script};
use crate::audit::table::{self, EXAMINED_MAX, Part, Place, TEXTS};
use crate::audit::{Entry, Page, Query, Written};
use crate::codec::reader::Reader;
use crate::codec::writer::Writer;
use crate::{Error, ErrorKind};

const VERSION: u8 = 1;
/// How many entries one trip reads.
const ENTRIES_MAX: usize = 500;

pub(super) fn encode(entry: &Entry) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    for text in table::texts(entry) {
        out.option(text.as_deref(), Writer::text);
    }
    out.flag(entry.forced);
    out.finish()
}

fn decode(id: &[u8], value: &[u8]) -> Result<Entry, Error> {
    let read = || {
        let mut from = Reader::new(value);
        from.version(VERSION)?;
        let mut texts = Vec::with_capacity(TEXTS);
        for _ in 0..TEXTS {
            texts.push(from.option("text", |from| from.shared_text("text"))?);
        }
        let forced = from.flag("forced")?;
        from.end()?;
        table::entry(|place| Ok::<_, Error>(texts[place].clone()), forced)
    };
    read().map_err(|error| {
        let id = String::from_utf8_lossy(id);
        let message = format!("entry {id} of the log cannot be read; restore it from a backup");
        Error::new(ErrorKind::Corrupt, message).because(error)
    })
}

/// Writes an entry by itself. It is listed first: one that is listed and not there is left out, and goes with its age.
pub(super) async fn write(redis: &Redis, entry: &Entry) -> Result<(), Error> {
    let bucket = entry.record.map_or(0, bucket_of);
    let at = redis.writes.stamp(&redis.keys.log(bucket), Timestamp::from_micros(0)).await?;
    let mut trip = Pipeline::new();
    trip.cmd("ZADD").arg(redis.keys.log(bucket)).arg("NX").arg(score(Some(at))).arg(&*entry.id);
    trip.cmd("HSETNX").arg(redis.keys.entries(bucket)).arg(&*entry.id).arg(encode(entry));
    redis.writes.ask(trip).await?.finish()?;
    Ok(())
}

/// An entry that is listed.
struct Listed {
    place: Place,
    bucket: u8,
    id: Vec<u8>,
}

/// Entries, newest first. Of each part as many are read as a page may have.
pub(super) async fn list(redis: &Redis, query: &Query) -> Result<Page, Error> {
    let part = Part::of(query)?;
    let page = query.limit.saturating_add(1).min(EXAMINED_MAX);
    let count = if query.is_narrow() { EXAMINED_MAX } else { page };
    let (from, to) = (score(Some(part.before.at)), score(Some(part.from.at)));
    // One more: the entry that the last page ended with is read again.
    let range = ["REV", "BYSCORE", "LIMIT", "0", &(count + 1).to_string(), "WITHSCORES"];
    let mut listed = read(redis, &from, &to, &range).await?;
    listed.retain(|listed| listed.place < part.before && listed.place >= part.from);
    listed.sort_unstable_by_key(|listed| std::cmp::Reverse(listed.place));
    let is_more = listed.len() > count;
    listed.truncate(count);
    let mut found = Vec::new();
    for some in listed.chunks(ENTRIES_MAX) {
        for (listed, entry) in some.iter().zip(entries(redis, some).await?) {
            let Some(entry) = entry else { continue };
            let written = Written { at: listed.place.at, entry };
            if query.covers(&written) {
                found.push((listed.place, written));
            }
        }
    }
    found.truncate(query.limit.saturating_add(1));
    let examined = listed.last().map(|listed| listed.place).filter(|_| is_more);
    Ok(table::page(found, query.limit, examined))
}

/// Listed entries of all parts, in no order.
async fn read(redis: &Redis, from: &str, to: &str, range: &[&str]) -> Result<Vec<Listed>, Error> {
    let mut trip = Pipeline::new();
    for bucket in buckets() {
        trip.cmd("ZRANGE").arg(redis.keys.log(bucket)).arg(from).arg(to).arg(range);
    }
    let mut answers = redis.background.ask(trip).await?;
    let mut listed = Vec::new();
    for bucket in buckets() {
        let words = answers.strings()?;
        for pair in words.chunks_exact(2) {
            let micros = str::from_utf8(&pair[1]).ok().and_then(|score| score.parse().ok());
            let at = Timestamp::from_micros(micros.ok_or_else(|| answers.misunderstood())?);
            listed.push(Listed {
                place: Place { at, number: number(&pair[0]) },
                bucket,
                id: pair[0].clone(),
            });
        }
    }
    Ok(listed)
}

/// What orders entries of the same moment.
fn number(id: &[u8]) -> i64 {
    let digest = Sha256::digest(id);
    i64::from_be_bytes(*digest.first_chunk().expect("a SHA-256 digest has 32 bytes"))
}

async fn entries(redis: &Redis, listed: &[Listed]) -> Result<Vec<Option<Entry>>, Error> {
    let mut trip = Pipeline::new();
    for Listed { bucket, id, .. } in listed {
        trip.cmd("HGET").arg(redis.keys.entries(*bucket)).arg(id);
    }
    let mut answers = redis.background.ask(trip).await?;
    let entry = |listed: &Listed| answers.bytes()?.map(|value| decode(&listed.id, &value)).transpose();
    listed.iter().map(entry).collect()
}

/// Deletes up to `limit` entries that are older than `age`, the oldest first.
pub(super) async fn prune(redis: &Redis, age: Duration, limit: usize) -> Result<usize, Error> {
    let limit = limit.min(EXAMINED_MAX);
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    let before = redis.now().await?.as_micros().saturating_sub(age);
    let range = ["BYSCORE", "LIMIT", "0", &limit.to_string(), "WITHSCORES"];
    let mut old = read(redis, "-inf", &format!("({before}"), &range).await?;
    old.sort_unstable_by_key(|listed| listed.place);
    old.truncate(limit);
    let mut trip = Pipeline::new();
    for Listed { bucket, id, .. } in &old {
        trip.cmd("HDEL").arg(redis.keys.entries(*bucket)).arg(id);
        trip.cmd("ZREM").arg(redis.keys.log(*bucket)).arg(id);
    }
    let mut answers = redis.background.ask(trip).await?;
    let mut pruned = 0;
    for _ in &old {
        answers.integer()?;
        // Another node may have been faster.
        pruned += usize::from(answers.integer()? == 1);
    }
    Ok(pruned)
}

/// Takes keys and labels out of the entries of a scope.
pub(super) async fn erase(redis: &Redis, scope: [u8; 32]) -> Result<(), Error> {
    for bucket in buckets() {
        let key = redis.keys.entries(bucket);
        let mut trip = Pipeline::new();
        trip.cmd("HGETALL").arg(&key);
        let words = redis.background.ask(trip).await?.strings()?;
        let mut trip = Pipeline::new();
        for pair in words.chunks_exact(2) {
            let entry = decode(&pair[0], &pair[1])?;
            if entry.scope == Some(scope) {
                let blank = Entry { key: None, scope_label: None, ..entry };
                script::call(&mut trip, &script::REPLACE_ENTRY, std::slice::from_ref(&key))
                    .arg(&pair[0])
                    .arg(encode(&blank));
            }
        }
        redis.background.ask(trip).await?.finish()?;
    }
    Ok(())
}
