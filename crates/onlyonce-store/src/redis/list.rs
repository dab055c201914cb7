//! The sorted sets of all parts, read as one list; and the records that their entries are about.

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use redis::Pipeline;

use super::connection::{Answers, Link};
use super::layout::{BUCKETS, HEAD_BYTES, Head, Keys, buckets};
use crate::Error;
use crate::listing::Place;

/// How many heads, and how many whole records, one trip reads.
const HEADS_MAX: usize = 2_000;
const RECORDS_MAX: usize = 64;
/// At least so many entries are read of a part; where it was too little, so many times as many.
const PART_MIN: usize = 8;
const PART_GROWS_BY: usize = 4;

/// The key of a list, in a part.
pub(super) type Key = fn(&Keys, u8) -> Vec<u8>;

/// The entries of a list that lie between two moments.
pub(super) struct Span {
    pub(super) list: Key,
    /// Only what comes after this.
    pub(super) after: Place,
    pub(super) until: Timestamp,
}

impl Span {
    /// The first `count` entries, in order.
    pub(super) async fn first(&self, link: &Link, keys: &Keys, count: usize) -> Result<Vec<Place>, Error> {
        let mut parts: Vec<Part> = buckets().map(Part::new).collect();
        let mut size = PART_MIN + 2 * count / BUCKETS;
        loop {
            let bound = bound(&parts, count);
            let mut short: Vec<_> = parts.iter_mut().filter(|part| part.is_short(bound)).collect();
            if short.is_empty() {
                break;
            }
            let mut trip = Pipeline::new();
            for part in &short {
                let (from, to) = (self.after.at.as_micros().max(0), self.until.as_micros());
                trip.cmd("ZRANGE").arg((self.list)(keys, part.bucket)).arg(from).arg(to).arg("BYSCORE");
                trip.arg("LIMIT").arg(0).arg(size).arg("WITHSCORES");
            }
            let mut answers = link.ask(trip).await?;
            for part in &mut short {
                part.read(&mut answers, self.after, size)?;
            }
            size *= PART_GROWS_BY;
        }
        let mut entries: Vec<Place> = parts.into_iter().flat_map(|part| part.entries).collect();
        entries.sort_unstable();
        entries.truncate(count);
        Ok(entries)
    }
}

/// What was read of one part of a list: its first entries.
struct Part {
    bucket: u8,
    entries: Vec<Place>,
    /// The last entry that was read, where there may be more.
    more_after: Option<Place>,
    is_read: bool,
}

impl Part {
    fn new(bucket: u8) -> Self {
        Self { bucket, entries: Vec::new(), more_after: None, is_read: false }
    }

    /// Whether it may have more entries up to `bound`.
    fn is_short(&self, bound: Option<Place>) -> bool {
        let has_more = self.more_after.is_some_and(|last| bound.is_none_or(|bound| last < bound));
        !self.is_read || has_more
    }

    fn read(&mut self, answers: &mut Answers, after: Place, size: usize) -> Result<(), Error> {
        let words = answers.strings()?;
        let entries = words.chunks_exact(2).map(|pair| entry(&pair[0], &pair[1]));
        let entries: Option<Vec<Place>> = entries.collect();
        let entries = entries.ok_or_else(|| answers.misunderstood())?;
        self.more_after = entries.last().copied().filter(|_| entries.len() == size);
        self.entries = entries.into_iter().filter(|place| *place > after).collect();
        self.is_read = true;
        Ok(())
    }
}

/// The last of the first `count` entries, where there are so many.
fn bound(parts: &[Part], count: usize) -> Option<Place> {
    let mut entries: Vec<Place> = parts.iter().flat_map(|part| part.entries.iter().copied()).collect();
    let last = count.checked_sub(1)?;
    (entries.len() > last).then(|| *entries.select_nth_unstable(last).1)
}

/// An id and its score.
fn entry(id: &[u8], score: &[u8]) -> Option<Place> {
    let micros = str::from_utf8(score).ok()?.parse().ok()?;
    Some(Place { at: Timestamp::from_micros(micros), id: Id(id.try_into().ok()?) })
}

/// The ids of all records of a part, in order.
pub(super) async fn ids(link: &Link, keys: &Keys, bucket: u8) -> Result<Vec<Id>, Error> {
    let mut trip = Pipeline::new();
    trip.cmd("ZRANGE").arg(keys.due(bucket)).arg(0).arg(-1);
    let mut answers = link.ask(trip).await?;
    let ids = answers.strings()?.into_iter().map(|id| id.try_into().ok().map(Id));
    let ids: Option<Vec<Id>> = ids.collect();
    let mut ids = ids.ok_or_else(|| answers.misunderstood())?;
    ids.sort_unstable();
    Ok(ids)
}

/// The head of each record; none where there is no record. One that is damaged is an error of its own.
pub(super) async fn heads(
    link: &Link,
    keys: &Keys,
    ids: &[Id],
) -> Result<Vec<Option<Result<Head, Error>>>, Error> {
    let mut heads = Vec::with_capacity(ids.len());
    for some in ids.chunks(HEADS_MAX) {
        let mut trip = Pipeline::new();
        for id in some {
            trip.cmd("GETRANGE").arg(keys.record(*id)).arg(0).arg(HEAD_BYTES - 1);
        }
        let mut answers = link.ask(trip).await?;
        for id in some {
            let head = answers.bytes()?.filter(|head| !head.is_empty());
            heads.push(head.map(|head| Head::read(*id, &head)));
        }
    }
    Ok(heads)
}

/// Each record that stands there, and the store's now.
pub(super) async fn records(
    link: &Link,
    keys: &Keys,
    ids: &[Id],
) -> Result<Vec<(Id, Vec<u8>, Timestamp)>, Error> {
    let mut records = Vec::new();
    for some in ids.chunks(RECORDS_MAX) {
        let mut trip = Pipeline::new();
        for id in some {
            trip.cmd("GET").arg(keys.record(*id));
        }
        let mut answers = link.ask(trip).await?;
        for id in some {
            let value = answers.bytes()?;
            records.extend(value.map(|value| (*id, value, answers.now)));
        }
    }
    Ok(records)
}
