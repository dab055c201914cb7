//! What is due, and what of it may be deleted.
//!
//! The list of what is due is a hint that is never late. Whoever reads it puts right what was early: an update that is due
//! later leaves its entry where it was.

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use redis::Pipeline;
use std::time::Duration;

use super::layout::{Head, Keys, bucket_of, revision_text, score};
use super::list::{self, Span};
use super::{Redis, script};
use crate::listing::Place;
use crate::{Error, failpoint};

/// An entry without a record is taken off the list so long after it was due. A reservation writes the entry first, and what was
/// sent may arrive late, but not as late as this: TCP gives up within sixteen minutes.
const UNLISTED_AFTER: Duration = Duration::from_secs(3_600);
/// At least so many entries are read at once, so that many that are early are put right together; and at most so many.
const ENTRIES_MIN: usize = 500;
const ENTRIES_MAX: usize = 5_000;
/// How often a list is read again because entries were early. Each time they are put right.
const READ_MAX: u32 = 1_000;

/// Records that are due at `until`, each by its own due time.
pub(super) struct Reading<'a> {
    redis: &'a Redis,
    span: Span,
}

impl<'a> Reading<'a> {
    pub(super) fn new(redis: &'a Redis, after: Place, until: Timestamp) -> Self {
        Self { redis, span: Span { list: Keys::due, after, until } }
    }

    /// The next records, in the order they fell due: about `count`, or none once there are no more. Damaged ones are left out.
    pub(super) async fn next(&mut self, count: usize) -> Result<Option<Vec<(Place, Head)>>, Error> {
        let (link, keys) = (&self.redis.background, &self.redis.keys);
        for _ in 0..READ_MAX {
            let entries = self.span.first(link, keys, count.clamp(ENTRIES_MIN, ENTRIES_MAX)).await?;
            let Some(last) = entries.last().copied() else { return Ok(None) };
            let ids: Vec<Id> = entries.iter().map(|entry| entry.id).collect();
            let heads = list::heads(link, keys, &ids).await?;
            let (mut due, mut wrong) = (Vec::new(), Vec::new());
            for (entry, head) in entries.into_iter().zip(heads) {
                match head {
                    Some(Ok(head)) if score(head.due_at) == score(Some(entry.at)) => due.push((entry, head)),
                    Some(Ok(head)) => wrong.push((entry.id, Some(head))),
                    Some(Err(error)) => tracing::warn!("left out of what is due: {error}"),
                    None if self.span.until.since(entry.at) > UNLISTED_AFTER => wrong.push((entry.id, None)),
                    None => {}
                }
            }
            // What cannot be put right now stays for another time.
            if wrong.is_empty() || !put_right(self.redis, &wrong).await? {
                self.span.after = last;
                return Ok(Some(due));
            }
        }
        tracing::warn!("what is due was read {READ_MAX} times, and each time entries were early");
        Ok(None)
    }
}

/// Lists records by their due time, and takes entries without a record off the list; unless the record was written meanwhile.
/// False where that has to wait: keys are moving to another server.
async fn put_right(redis: &Redis, wrong: &[(Id, Option<Head>)]) -> Result<bool, Error> {
    let mut trip = Pipeline::new();
    for (id, head) in wrong {
        let keys = [redis.keys.due(bucket_of(*id)), redis.keys.record(*id)];
        match head {
            Some(head) => script::call(&mut trip, &script::RELIST, &keys)
                .arg(revision_text(head.revision))
                .arg(&id.0)
                .arg(score(head.due_at)),
            None => script::call(&mut trip, &script::UNLIST, &keys).arg("").arg(&id.0),
        };
    }
    let mut answers = redis.background.ask(trip).await?;
    let mut are_all = true;
    for _ in wrong {
        are_all &= answers.integer_unless_moving()?.is_some();
    }
    Ok(are_all)
}

/// Deletes up to `limit` records that have finished and expired.
pub(super) async fn reap(redis: &Redis, limit: usize) -> Result<usize, Error> {
    let until = redis.now().await?;
    let mut reading = Reading::new(redis, Place::START, until);
    let mut reaped = 0;
    while reaped < limit {
        let Some(due) = reading.next(limit - reaped).await? else { break };
        let expired: Vec<_> = due
            .into_iter()
            .filter(|(_, head)| head.may_reap(until))
            .map(|(place, head)| (place.id, head))
            .take(limit - reaped)
            .collect();
        reaped += delete(redis, &expired).await?;
    }
    Ok(reaped)
}

/// Deletes records that were judged, with all that goes with them; those that were written meanwhile, or whose keys are moving to
/// another server, stay.
pub(super) async fn delete(redis: &Redis, judged: &[(Id, Head)]) -> Result<usize, Error> {
    if judged.is_empty() {
        return Ok(0);
    }
    let keys = &redis.keys;
    let mut trip = Pipeline::new();
    for (id, head) in judged {
        let bucket = bucket_of(*id);
        let of_record = [keys.record(*id), keys.results(*id), keys.request(*id)];
        let of_bucket = [keys.due(bucket), keys.open(bucket), keys.requests(bucket)];
        script::call(&mut trip, &script::DELETE, &[of_record, of_bucket].concat())
            .arg(revision_text(head.revision))
            .arg(&id.0);
    }
    failpoint!("redis.reap.before");
    let mut answers = redis.background.ask(trip).await?;
    failpoint!("redis.reap.after");
    let mut deleted = 0;
    for _ in judged {
        deleted += usize::from(answers.integer_unless_moving()? == Some(1));
    }
    Ok(deleted)
}
