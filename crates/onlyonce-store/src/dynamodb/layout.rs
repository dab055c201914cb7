//! What stands in the table, and a record as an item.
//!
//! | `id` | `part` | what |
//! |---|---|---|
//! | a record's | `0` | the record: an attribute for each column of the SQL engines (`sql.rs`), of the same name |
//! | a record's | `REVISION.n` | a piece of a record that is too large for one item: of the one that was written with this revision |
//! | a record's | `with.request`, `with.result.n` | the request of accepted work, and results of phases |
//! | a record's | `REVISION.request.n` | a piece of a request that is too large for one item |
//! | a record's | `note.REVISION`, `note.REVISION.request` | that there are pieces of this record or request: `parts` of them |
//! | `log` | `MOMENT.NUMBER.ID` | an entry of the audit log |
//! | `entry` | its id | that an entry of this id was written |
//! | `store` | `0` | layout, epoch and name of the store |
//!
//! A record has these attributes as well:
//!
//! | attribute | what | absent |
//! |---|---|---|
//! | `reap_at` | from when on age alone allows to delete it | it does not |
//! | `ttl` | when DynamoDB deletes it, in seconds | the reaper does, or nobody |
//! | `due_shard`, `due_at` | key of the index `due`: `due.n`, `reap.n` or `left.n`, n being the first four bits of the id | never due: no `due_shard` |
//! | `open_shard`, `open_since` | key of the index `open`: `unknown.n` or `pending.n`, by since when | neither |
//! | `parts` | how many pieces have its headers, body and rest | they stand in the item |
//!
//! Both indexes are sparse and have keys only. What they name is read again. Notes, requests and results are on the list `left`: once a
//! day it is looked whether anything refers to them (`left.rs`). Pieces that DynamoDB deletes by their `ttl` need no note.

use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::record::{Draft, Id, Revision, Seen};
use onlyonce_core::time::Timestamp;

use super::url::Reap;
use super::value::Item;
use crate::codec::reader::Reader;
use crate::codec::writer::Writer;
use crate::seal::Keyring;
use crate::sql::{Columns, Row};
use crate::{Error, ErrorKind};

/// The layout of this release.
pub(super) const LAYOUT: i64 = 1;
/// The part of a record's item.
pub(super) const HEAD: &str = "0";
/// What parts of all that goes with a record begin with.
pub(super) const WITH: &str = "with.";
pub(super) const REQUEST: &str = "with.request";
/// The ids of items that are no records.
pub(super) const LOG: &[u8] = b"log";
pub(super) const ENTRY: &[u8] = b"entry";
pub(super) const STORE: &[u8] = b"store";
/// Into how many parts an index is divided: each takes a thousand writes a second.
pub(super) const SHARDS: u8 = 16;
/// Headers, body and rest stand in the record's item up to so many bytes. An item may have 400 KB in all.
const INLINE_BYTES_MAX: usize = 300_000;
/// The length of a piece.
pub(super) const PIECE_BYTES: usize = 350_000;
/// DynamoDB deletes so long after a record has expired: by then every node's clock says that it has.
const DELETED_AFTER: Duration = Duration::from_secs(3_600);
/// Pieces are deleted so long after their record: it may stand for days after its time.
const PIECES_DELETED_AFTER: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How many items a transaction deletes at most; it may have a hundred in all.
pub(super) const DELETED_MAX: usize = 90;
/// After so long, and every so often, it is looked whether what stands beside a record is still referred to.
pub(super) const LOOKED_AFTER: Duration = Duration::from_secs(24 * 3_600);
/// What parts of notes begin with: behind those of pieces, and before all that goes with a record.
pub(super) const NOTE: &str = "note.";
const VERSION: u8 = 1;

/// What a record is listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// A worker must look at it.
    Due,
    /// The reaper deletes it.
    Reap,
    /// Nobody knows its outcome.
    Unknown,
    /// It was accepted.
    Pending,
    /// Requests of accepted work.
    Request,
    /// What stands beside a record, and may no longer be referred to.
    Left,
}

impl List {
    pub(super) fn shard(self, shard: u8) -> String {
        let name = match self {
            Self::Due => "due",
            Self::Reap => "reap",
            Self::Unknown => "unknown",
            Self::Pending => "pending",
            Self::Request => "request",
            Self::Left => "left",
        };
        format!("{name}.{shard:x}")
    }

    /// The part that a record is listed in, of so many.
    pub(super) fn shard_of(self, id: Id, shards: u8) -> String {
        self.shard((id.0[0] >> 4) % shards.max(1))
    }

    /// Its index, and the names of the index's key.
    pub(super) fn index(self) -> [&'static str; 3] {
        match self {
            Self::Due | Self::Reap | Self::Left => ["due", "due_shard", "due_at"],
            Self::Unknown | Self::Pending | Self::Request => ["open", "open_shard", "open_since"],
        }
    }
}

/// What is divided into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// Headers, body and rest of a record.
    Record,
    Request,
}

/// The pieces of a record or a request, of the write with this revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) of: Whole,
    pub(super) revision: Revision,
    pub(super) count: usize,
}

impl Pieces {
    /// Those that so many bytes are divided into.
    pub(super) fn new(of: Whole, revision: Revision, bytes: &[u8]) -> Self {
        Self { of, revision, count: bytes.len().div_ceil(PIECE_BYTES) }
    }

    /// The pieces of a request, where it has any.
    pub(super) fn of_request(request: &Item) -> Option<Self> {
        let count = request.number("parts").and_then(|parts| usize::try_from(parts).ok())?;
        Some(Self { of: Whole::Request, revision: revision_of(request)?, count })
    }

    /// Those that a note is about.
    pub(super) fn of_note(note: &Item) -> Option<Self> {
        let name = note.text("part")?.strip_prefix(NOTE)?;
        let (revision, of) = match name.strip_suffix(".request") {
            Some(revision) => (revision, Whole::Request),
            None => (name, Whole::Record),
        };
        let count = note.number("parts").and_then(|parts| usize::try_from(parts).ok())?;
        Some(Self { of, revision: Revision(u64::from_str_radix(revision, 16).ok()?), count })
    }

    /// The part of a piece.
    pub(super) fn part(&self, number: usize) -> String {
        match self.of {
            Whole::Record => format!("{:016x}.{number}", self.revision.0),
            Whole::Request => format!("{:016x}.request.{number}", self.revision.0),
        }
    }

    /// The keys of all of them.
    pub(super) fn keys(&self, id: Id) -> Vec<Item> {
        (0..self.count).map(|number| Item::key(&id.0, &self.part(number))).collect()
    }

    /// The key of their note.
    pub(super) fn note(&self, id: Id) -> Item {
        let request = match self.of {
            Whole::Record => "",
            Whole::Request => ".request",
        };
        Item::key(&id.0, &format!("{NOTE}{:016x}{request}", self.revision.0))
    }
}

/// The revision of a write, where it stands in its item.
pub(super) fn revision_of(item: &Item) -> Option<Revision> {
    item.number("revision").map(|revision| Revision(revision.cast_unsigned()))
}

pub(super) fn result_part(number: u32) -> String {
    format!("with.result.{number:010}")
}

/// A record that is about to be written, before it is stamped.
pub(super) struct Unstamped<'a> {
    pub(super) id: Id,
    pub(super) revision: Revision,
    pub(super) draft: &'a Draft,
    pub(super) columns: Columns<'a>,
    /// Headers, body and rest, where they are too large for the item.
    pub(super) large: Option<Vec<u8>>,
}

impl<'a> Unstamped<'a> {
    pub(super) fn new(id: Id, revision: Revision, draft: &'a Draft, columns: Columns<'a>) -> Self {
        let length = columns.headers.as_deref().map_or(0, <[u8]>::len) + columns.body.map_or(0, <[u8]>::len);
        let is_large = length + columns.rest.len() > INLINE_BYTES_MAX;
        let large = is_large.then(|| {
            let mut out = Writer::new(VERSION);
            out.option(columns.headers.as_deref(), Writer::bytes);
            out.option(columns.body, Writer::bytes);
            out.bytes(&columns.rest);
            out.finish()
        });
        Self { id, revision, draft, columns, large }
    }

    /// The item, written at `at`.
    pub(super) fn item(&self, at: Timestamp, reap: Reap, shards: u8) -> Item {
        let columns = &self.columns;
        let mut item = Item::key(&self.id.0, HEAD);
        item.put_number("revision", self.revision.0.cast_signed());
        item.put_bytes("scope", columns.scope);
        item.put_text("key", columns.key);
        item.put_text("state", columns.state);
        item.put_number("attempt", columns.attempt);
        item.put_bytes("token", columns.token);
        item.put_text("effects", columns.effects);
        item.put_number("retention_us", columns.retention_us);
        item.put_number("written_at", at.as_micros());
        for (name, moment) in [
            ("created_at", Some(columns.created_at)),
            ("began_at", Some(columns.began_at)),
            ("lapses_at", columns.lapses_at),
            ("expires_at", columns.expires_at),
            ("unknown_since", columns.unknown_since),
        ] {
            if let Some(moment) = moment {
                item.put_number(name, moment.stamp(at).as_micros());
            }
        }
        for (name, text) in [
            ("label", columns.label),
            ("route", columns.route),
            ("reason", columns.reason.as_deref()),
            ("completed_by", columns.completed_by),
            ("recovery_point", columns.recovery_point),
        ] {
            if let Some(text) = text {
                item.put_text(name, text);
            }
        }
        if columns.dead_letter {
            item.put_flag("dead_letter", true);
        }
        if let Some(status) = columns.status {
            item.put_number("status", status.into());
        }
        for (name, bytes) in [("key_id", columns.key_id), ("rest_key_id", columns.rest_key_id)] {
            if let Some(bytes) = bytes {
                item.put_bytes(name, bytes);
            }
        }
        self.put_answer(&mut item);
        self.list(&mut item, at, reap, shards);
        item
    }

    fn put_answer(&self, item: &mut Item) {
        if let Some(pieces) = self.pieces() {
            item.put_number("parts", i64::try_from(pieces.count).unwrap_or(i64::MAX));
            return;
        }
        if let Some(headers) = &self.columns.headers {
            item.put_bytes("headers", headers);
        }
        if let Some(body) = self.columns.body {
            item.put_bytes("body", body);
        }
        item.put_bytes("rest", &self.columns.rest);
    }

    /// When somebody must look at it, and who.
    fn list(&self, item: &mut Item, at: Timestamp, reap: Reap, shards: u8) {
        let due_at = self.columns.due.stamp(at);
        if let Some(due_at) = due_at {
            item.put_number("due_at", due_at.as_micros());
        }
        let reap_at = self.draft.expires().map(|expires| expires.stamp(at));
        if let Some(reap_at) = reap_at {
            item.put_number("reap_at", reap_at.as_micros());
        }
        // What age alone allows to delete is due for nothing else.
        match (reap_at, reap, due_at) {
            (Some(reap_at), Reap::Ttl, _) => {
                item.put_number("ttl", reap_at.plus(DELETED_AFTER).as_secs_ceil());
            }
            (Some(_), Reap::Index, Some(_)) => {
                item.put_text("due_shard", &List::Reap.shard_of(self.id, shards));
            }
            (None, _, Some(_)) => item.put_text("due_shard", &List::Due.shard_of(self.id, shards)),
            (Some(_), Reap::Index, None) | (None, _, None) => {}
        }
        let open = match self.columns.unknown_since {
            Some(since) => Some((List::Unknown, since)),
            None => machine::is_accepted(self.draft).then_some((List::Pending, self.columns.created_at)),
        };
        if let Some((list, since)) = open {
            item.put_text("open_shard", &list.shard_of(self.id, shards));
            item.put_number("open_since", since.stamp(at).as_micros());
        }
    }

    /// Its pieces, where it is too large for the item.
    pub(super) fn pieces(&self) -> Option<Pieces> {
        self.large.as_ref().map(|large| Pieces::new(Whole::Record, self.revision, large))
    }

    /// When DynamoDB deletes the pieces of this write, should nobody else: in seconds. None where a note must be left of them.
    pub(super) fn pieces_ttl(&self, now: Timestamp, reap: Reap) -> Option<i64> {
        let expires = self.draft.expires().filter(|_| reap == Reap::Ttl)?;
        Some(expires.stamp(now).max(now).plus(DELETED_AFTER).plus(PIECES_DELETED_AFTER).as_secs_ceil())
    }
}

/// A record as it was read: its item, and where that is too small, its pieces put together.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) id: Id,
    pub(super) item: Item,
    pub(super) large: Option<Vec<u8>>,
}

impl Stored {
    /// None where the item is no record.
    pub(super) fn of(item: Item) -> Option<Self> {
        let id = Id(item.bytes("id")?.try_into().ok()?);
        (item.text("part") == Some(HEAD)).then_some(Self { id, item, large: None })
    }

    pub(super) fn revision(&self) -> Option<Revision> {
        revision_of(&self.item)
    }

    pub(super) fn written_at(&self) -> Timestamp {
        Timestamp::from_micros(self.item.number("written_at").unwrap_or(0))
    }

    /// Its pieces, where it has any.
    pub(super) fn pieces(&self) -> Option<Pieces> {
        let count = self.item.number("parts").and_then(|parts| usize::try_from(parts).ok());
        let count = count.filter(|count| *count > 0)?;
        Some(Pieces { of: Whole::Record, revision: self.revision()?, count })
    }

    /// Whether age alone allows to delete it.
    pub(super) fn may_reap(&self, now: Timestamp) -> bool {
        self.item.number("reap_at").is_some_and(|reap_at| reap_at <= now.as_micros())
    }

    /// The record, at the store's `now`.
    pub(super) fn seen(&self, now: Timestamp, keyring: Option<&Keyring>) -> Result<Seen, Error> {
        let item = &self.item;
        let missing = |name: &str| corrupt(self.id, &format!("it has no attribute \"{name}\""));
        let number = |name: &str| item.number(name).ok_or_else(|| missing(name));
        let text = |name: &str| item.text(name).ok_or_else(|| missing(name));
        let bytes = |name: &str| item.bytes(name).ok_or_else(|| missing(name));
        // An attribute that is there, and of another type, is not taken for one that is absent.
        for (name, value) in &item.0 {
            let is_readable = item.text(name).is_some()
                || item.number(name).is_some()
                || item.flag(name).is_some()
                || value.get("B").is_some() && item.bytes(name).is_some();
            if !is_readable {
                return Err(corrupt(self.id, &format!("its attribute \"{name}\" cannot be read")));
            }
        }
        let (scope, token, key_id) = (bytes("scope")?, bytes("token")?, item.bytes("key_id"));
        let (headers, body, rest) = match (self.pieces(), &self.large) {
            (None, _) => (item.bytes("headers"), item.bytes("body"), bytes("rest")?),
            (Some(_), Some(large)) => self.open_large(large)?,
            (Some(_), None) => return Err(corrupt(self.id, "some of its parts are missing")),
        };
        let row = Row {
            id: &self.id.0,
            revision: number("revision")?,
            scope: &scope,
            label: item.text("label"),
            key: text("key")?,
            route: item.text("route"),
            state: text("state")?,
            attempt: number("attempt")?,
            token: &token,
            effects: text("effects")?,
            retention_us: number("retention_us")?,
            created_at: number("created_at")?,
            began_at: number("began_at")?,
            written_at: number("written_at")?,
            due_at: item.number("due_at"),
            lapses_at: item.number("lapses_at"),
            expires_at: item.number("expires_at"),
            unknown_since: item.number("unknown_since"),
            reason: item.text("reason"),
            dead_letter: item.flag("dead_letter").unwrap_or(false),
            completed_by: item.text("completed_by"),
            recovery_point: item.text("recovery_point"),
            status: item.number("status"),
            headers: headers.as_deref(),
            body: body.as_deref(),
            rest: &rest,
            key_id: key_id.as_deref(),
        };
        row.seen(now.max(self.written_at()), keyring)
    }

    fn open_large(&self, large: &[u8]) -> Result<Large, Error> {
        let read = || {
            let mut from = Reader::new(large);
            from.version(VERSION)?;
            let headers = from.option("headers", |from| from.bytes("headers"))?.map(<[u8]>::to_vec);
            let body = from.option("body", |from| from.bytes("body"))?.map(<[u8]>::to_vec);
            let rest = from.bytes("rest")?.to_vec();
            from.end()?;
            Ok((headers, body, rest))
        };
        read().map_err(|error: Error| corrupt(self.id, "its parts were cut short or altered").because(error))
    }
}

/// Headers, body and rest.
type Large = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<u8>);

pub(super) fn corrupt(id: Id, fault: &str) -> Error {
    let message = format!(
        "record {id} cannot be read: {fault}; nothing was changed: restore it from a backup, or delete it if its key may be \
         used anew"
    );
    Error::new(ErrorKind::Corrupt, message)
}
